"""Perplexity of a text, document by document, with intervals over documents.

A document is cut into windows that the model reads one by one, so that every token is predicted once, from those before
it in its window and from the end-of-text token before the first. What is left over is padded; the models are causal,
and one that sorts whole sequences gets a mask.

    perplexity = exp(Σ nats / Σ tokens) over documents        bits per byte = Σ nats / (ln 2 · Σ bytes)

Perplexities of two tokenizers cannot be compared, bits per byte can. Both are ratios of sums over documents: their
intervals are Student's of the ratio, from what each document adds to it. Tokens of one document are not independent,
and an interval over tokens would be far too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repflow.core.intervals import ratio_interval
from repflow.core.results import Band
from repflow.models.stack.replicas import ReplicaStack
from repflow.training.batch import Batch
from repflow.training.callback import Callback, Moment
from repflow.training.losses.cross_entropy import IGNORED, read_logits, takes, token_cross_entropy
from repflow.training.text.tokens import Tokens

ROWS = 32
"""Windows that are read at once."""


@dataclass(frozen=True)
class TextLoss:
    """What a model pays for a text.

    Attributes:
        nats: sum of cross entropies of each document (document,).
        tokens: tokens that were predicted (document,).
        sizes: bytes of text (document,).
        place_nats: sum of cross entropies at each place of a window (token,).
        place_tokens: tokens that were predicted there (token,).
    """

    nats: np.ndarray
    tokens: np.ndarray
    sizes: np.ndarray
    place_nats: np.ndarray
    place_tokens: np.ndarray

    @property
    def loss(self) -> Band:
        """Mean nats of a token, with its interval over documents."""
        return ratio_interval(self.nats, self.tokens)

    @property
    def perplexity(self) -> Band:
        """Perplexity, with its interval over documents."""
        return Band(*(np.exp(part) for part in self.loss))

    @property
    def bits_per_byte(self) -> Band:
        """Bits of a byte, with their interval over documents."""
        return ratio_interval(self.nats / math.log(2), self.sizes)

    @property
    def by_place(self) -> np.ndarray:
        """Mean nats at each place of a window (token,); NaN where no token was predicted."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.place_nats / self.place_tokens


def windows(tokens: Tokens, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Documents cut into windows: (document, first place, inputs) of each window, longest first, and ids of all.

    The last number is how many inputs the window has; behind each stands its target.
    """
    rows = []
    for number in range(len(tokens)):
        begin, end = int(tokens.starts[number]), int(tokens.starts[number + 1])
        rows += [(number, start, min(length, end - 1 - start)) for start in range(begin, end - 1, length)]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return table[np.argsort(-table[:, 2], kind="stable")], tokens.ids


@torch.no_grad()
def text_loss(
    network: nn.Module,
    tokens: Tokens,
    *,
    length: int,
    rows: int = ROWS,
    half: bool = False,
    say: Callable | None = None,
) -> TextLoss:
    """Cross entropy of every document of a text.

    Args:
        network: a language model, on its device; it is read in evaluation mode.
        tokens: the text.
        length: tokens of a window.
        rows: windows that are read at once.
        half: products in bfloat16, on a GPU.
        say: is given the number of tokens read so far.
    """
    device = next(network.parameters()).device
    table, ids = windows(tokens, length)
    nats, place_nats, place_tokens = (np.zeros(size) for size in (len(tokens), length, length))
    training, done = network.training, 0
    network.eval()
    try:
        for start in range(0, len(table), rows):
            part = table[start : start + rows]
            batch = _batch(part, ids).to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
                losses = read_losses(network, batch).double().cpu().numpy()
            np.add.at(nats, part[:, 0], losses.sum(1))
            place_nats[: losses.shape[1]] += losses.sum(0)
            place_tokens[: losses.shape[1]] += (np.arange(losses.shape[1]) < part[:, 2:]).sum(0)
            done += int(part[:, 2].sum())
            if say is not None:
                say(done)
    finally:
        network.train(training)
    counts = np.bincount(table[:, 0], weights=table[:, 2], minlength=len(tokens))
    return TextLoss(nats, counts, tokens.sizes, place_nats, place_tokens)


def _batch(part: np.ndarray, ids: np.ndarray) -> Batch:
    """Windows of a table, padded to the longest of them; what is padding has no target."""
    most = int(part[0, 2])
    places = part[:, 1:2] + np.arange(most + 1)
    inside = np.arange(most) < part[:, 2:]
    wide = torch.from_numpy(ids[np.minimum(places, len(ids) - 1)].astype(np.int64))
    mask = torch.from_numpy(inside)
    padded = not bool(inside.all())
    targets = wide[:, 1:].masked_fill(~mask, IGNORED) if padded else wide[:, 1:]
    return Batch(wide[:, :-1], targets, mask=mask.long() if padded else None)


def read_losses(network: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of each target (batch, token), 0 where there is none; a causal stack needs no mask."""
    kind: Any = type(network)
    causal = getattr(getattr(network, "config", None), "sorts_whole", None) is False
    if causal or not takes(kind, "attention_mask"):
        batch = Batch(batch.inputs, batch.targets)
    targets = batch.targets
    assert targets is not None
    return token_cross_entropy(read_logits(network, batch), targets)


class TextPerplexity(Callback):
    """Perplexity on held-out documents while a model trains, logged as `NAME_perplexity`.

    Of a `ReplicaStack` each replica is read by itself: `NAME_perplexity 0`, `NAME_perplexity 1` ...

    Args:
        tests: texts by name.
        length: tokens of a window.
        most: tokens of each text that are read, its first documents; all for None.
        rows: windows that are read at once.
        half: products in bfloat16, on a GPU.
    """

    def __init__(
        self,
        tests: Mapping[str, Tokens],
        *,
        length: int,
        most: int | None = None,
        rows: int = ROWS,
        half: bool = False,
    ) -> None:
        self.tests = {name: part.some(most) for name, part in tests.items()}
        self.length, self.rows, self.half = length, rows, half

    def on_evaluate(self, moment: Moment) -> dict[str, float]:
        """Read every text."""
        network = moment.network
        if not isinstance(network, ReplicaStack):
            return {f"{name}_perplexity": self._read(network, part) for name, part in self.tests.items()}
        alone = [one.to(moment.device) for one in network.put_back()]
        return {
            f"{name}_perplexity {number}": self._read(one, part)
            for name, part in self.tests.items()
            for number, one in enumerate(alone)
        }

    def _read(self, network: nn.Module, tokens: Tokens) -> float:
        loss = text_loss(network, tokens, length=self.length, rows=self.rows, half=self.half)
        return float(loss.perplexity.mean)
