"""How well a model of the zoo retrieves and predicts, on prompts and prose that training never saw.

A greedy answer is the whole value exactly when, with the right answer fed in, the likeliest token is right at each of
its places: up to the first mistake both read the same tokens. So one pass over prompt and answer judges an answer.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tools.zoo.data import HeldOut, ZooData, open_data

if TYPE_CHECKING:
    import torch

ROWS = 32
"""Windows per forward pass."""


def exact_match(network: Any, prompts: HeldOut, device: torch.device) -> np.ndarray:
    """Whether the greedy answer to each prompt is right in all its tokens (sample,)."""
    import torch

    network.eval()
    right = np.zeros(len(prompts.ids), dtype=bool)
    for start in range(0, len(prompts.ids), ROWS):
        part = slice(start, start + ROWS)
        ids = torch.from_numpy(prompts.ids[part].astype(np.int64)).to(device)
        with torch.inference_mode():
            best = network(input_ids=ids, use_cache=False).logits[:, :-1].argmax(-1)
        hit = (best == ids[:, 1:]).cpu().numpy()
        for row, (prompt, answer) in enumerate(zip(prompts.prompt[part], prompts.answer[part], strict=True)):
            right[start + row] = hit[row, prompt - 1 : prompt - 1 + answer].all()
    return right


def prose_loss(network: Any, ids: np.ndarray, window: int, device: torch.device) -> tuple[float, int]:
    """Mean cross entropy in nats over whole windows side by side, and the number of tokens predicted."""
    import torch
    from torch.nn.functional import cross_entropy

    network.eval()
    count = len(ids) // window
    rows = torch.from_numpy(ids[: count * window].reshape(count, window).astype(np.int64))
    total = 0.0
    for start in range(0, count, ROWS):
        part = rows[start : start + ROWS].to(device)
        with torch.inference_mode():
            logits = network(input_ids=part, use_cache=False).logits[:, :-1].float()
            total += float(cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
    return total / (count * (window - 1)), count * (window - 1)


def evaluate(
    folder: str | Path, data: str | Path, *, device: str | None = None, limit: int | None = None
) -> dict[str, Any]:
    """Judge a saved model in float32 and write evaluation.json beside it.

    Args:
        folder: the model's.
        data: folder that `prepare` wrote.
        device: cpu or cuda; None takes the GPU where there is one.
        limit: held-out prompts of each set; None for all.
    """
    from repflow.models import load
    from tools.zoo.save import write_json

    opened = open_data(data)
    model = load(folder, device=device)
    content = {"dtype": "float32", "device": str(model.device), **judge(model.network, opened, model.device, limit)}
    content["scan"] = model.scans.facts()
    write_json(Path(folder) / "evaluation.json", content)
    return content


def judge(network: Any, data: ZooData, device: torch.device, limit: int | None = None) -> dict[str, Any]:
    """Retrieval by set of held-out prompts, and loss on held-out prose, of a network that is there."""
    content: dict[str, Any] = {"retrieval": {}}
    for name, prompts in data.held_out.items():
        right = exact_match(network, _first(prompts, limit), device)
        content["retrieval"][name] = {"exact": int(right.sum()), "of": len(right), "tokens": int(prompts.prompt.max())}
    loss, tokens = prose_loss(network, _valid(data, limit), data.window, device)
    per_byte = data.facts_of["valid_tokens"] / data.facts_of["valid_bytes"] / math.log(2)
    content["prose"] = {"nats_per_token": loss, "bits_per_byte": loss * per_byte, "tokens": tokens}
    return content


def _first(prompts: HeldOut, limit: int | None) -> HeldOut:
    return HeldOut(prompts.ids[:limit], prompts.prompt[:limit], prompts.answer[:limit])


def _valid(data: ZooData, limit: int | None) -> np.ndarray:
    return data.valid if limit is None else data.valid[: limit * data.window]
