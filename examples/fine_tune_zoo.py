"""Fine-tune a built-in model on a CPU and watch its flow, with a page at the end: two minutes, two lines to watch it.

The model learns rows of names and towns. `FlowMeter` reads it every ten steps on prompts that are not trained on, and
stores what it read in ./runs; the page shows it by depth and step. The environment variable STEPS shortens it.
"""

import os
import random
import subprocess
import sys

import torch

import repflow
from repflow.training import FlowMeter

STEPS = int(os.environ.get("STEPS", "120"))
NAMES = ("Ada", "Bela", "Cleo", "Dora", "Emil", "Finn", "Gina", "Hugo")
TOWNS = ("Rome", "Oslo", "Lima", "Bern", "Kiev", "Cork", "Bonn", "Turin")
WATCHED = [
    "The sea was calm in the morning, and the boats went out before the sun was up.",
    "Hugo lives in Oslo. Dora lives in Lima. Hugo lives in",
    "When the rain came at last, nobody in the valley was surprised by it.",
]


def rows(tokenizer, draws, count=8, length=48):
    """Token ids (count, length): sentences of who lives where, each row with towns of its own."""
    made = []
    for _ in range(count):
        home = dict(zip(NAMES, draws.sample(TOWNS, len(TOWNS)), strict=True))
        text = " ".join(f"{name} lives in {home[name]}." for name in draws.choices(NAMES, k=24))
        made.append(tokenizer(text, add_special_tokens=False)["input_ids"][:length])
    shortest = min(map(len, made))
    return torch.tensor([row[:shortest] for row in made])


def main():
    torch.manual_seed(0)
    draws = random.Random(0)
    loaded = repflow.load("zoo:gpt-neox")
    model, tokenizer = loaded.network.train(), loaded.tokenizer
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4)

    meter = FlowMeter(model, WATCHED, every=10, tokenizer=tokenizer, name="fine-tune")
    meter.measure(0)
    losses = []
    for step in range(1, STEPS + 1):
        ids = rows(tokenizer, draws)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
        flow = meter.step(step)
        if flow:
            print(f"step {step}: loss {losses[-1]:.2f}, token similarity {flow['flow/token_similarity']:.3f}")
    folder = meter.path
    meter.close(STEPS)

    similarity = repflow.load_result(folder).mean("token_similarity")
    print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}; similarity at the last state {similarity[0, -1]:.3f} → ", end="")
    print(f"{similarity[-1, -1]:.3f}")
    subprocess.run([sys.executable, "-m", "repflow", "report", str(folder), "--out", "fine-tune.html"], check=True)
    print("the page is fine-tune.html")


if __name__ == "__main__":
    main()
