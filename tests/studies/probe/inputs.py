"""Models and tasks for probes: real tiny ones with a tokenizer, and one whose states hold the label at one place."""

import functools
from dataclasses import dataclass

import numpy as np
import torch
import transformers
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from repflow.models import Model, load
from repflow.tasks import Prompt, Prompts
from repflow.tasks.draw import Draw
from tests.models.tiny_configs import tiny_config, tiny_model

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

KINDS = ("gpt_neo", "gpt_neox", "mamba", "mamba2", "bamba")
CLASSES = 4
"""Classes of the planted label."""


@functools.cache
def tokenizer():
    """Small byte-level BPE that knows the words of the kvpr template, so that prompts stay short."""
    draws = (Draw(0, 99, i) for i in range(200))
    text = ["Extract the value corresponding to the specified key in the JSON object below. JSON data: Key: "] * 300
    text += ["".join(f"{d.below(16):x}" for _ in range(40)) for d in draws]
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(text, vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )


@functools.cache
def reader(kind):
    """Tiny random model that can take kvpr prompts; shared, so never change it."""
    config = tiny_config(kind)
    config.vocab_size, config.max_position_embeddings = len(tokenizer()), 512
    config.bos_token_id = config.eos_token_id = config.pad_token_id = 0
    torch.manual_seed(0)
    return load(AutoModelForCausalLM.from_config(config).eval(), tokenizer=tokenizer())


KVPR = {"length": 300, "items": 3, "samples": 45, "seeds": 2, "answers": 3, "answer_tokens": 4, "lens": 5}


@dataclass(frozen=True)
class PlantedTask:
    """The label is (first + second token) mod 4: no token, count or bag of tokens reveals it."""

    samples_per_group: int = 1
    name: str = "planted"

    def prompts(self, encoder, *, length, samples, seed):
        return planted_prompts(samples, seed, self.samples_per_group)


def planted_prompts(samples=240, seed=0, per_group=1, words=CLASSES):
    rows = []
    for index in range(samples):
        rng = np.random.default_rng([seed, index])
        a, b = rng.integers(0, 32, 2)
        fill = rng.integers(64, 128, int(rng.integers(6, 12)))
        ids = (int(a) + 3, int(b) + 3, *fill.tolist(), 2)
        group = f"{seed}:{index // per_group}"
        rows.append(Prompt(ids, label=int(a + b) % words, group=group, key=f"{int(a) % 16:x}"))
    return Prompts("planted", tuple(rows), tuple(map(str, range(words))))


class PlantedModel(Model):
    """A model whose states are made by hand: noise, plus the label at one state and likeness of tokens at another."""

    def __init__(self, *, label_at=2, alike_at=1, strength=6.0, kind="gpt_neox"):
        self.__dict__.update(load(tiny_model(kind)).__dict__)
        self.tokenizer = tokenizer()
        self.label_at, self.alike_at, self.strength = label_at, alike_at, strength

    def stream(self, ids, mask=None, *, kind="residual", on_state, on_final_norm=None):
        lengths = torch.full((len(ids),), ids.shape[1]) if mask is None else mask.sum(1)
        label = (ids[:, 0] + ids[:, 1] - 6) % CLASSES
        for state in range(self.n_states):
            on_state(state, self._made(ids, lengths, label, state))
        if on_final_norm is not None:
            on_final_norm(self._made(ids, lengths, label, self.n_states - 1))

    def _made(self, ids, lengths, label, state):
        rows = []
        for row, length, mine in zip(ids.tolist(), lengths.tolist(), label.tolist(), strict=True):
            own = row[: int(length)]
            rng = np.random.default_rng([state, *own])
            hidden = rng.standard_normal((ids.shape[1], self.width))
            if state == self.alike_at:
                hidden += 8 * np.random.default_rng([99, *own]).standard_normal(self.width)
            if state == self.label_at:
                hidden[int(length) - 1, mine] += self.strength
            rows.append(hidden)
        return torch.tensor(np.stack(rows), dtype=torch.float32)
