"""Training batches: half prose, half retrieval prompts, the same for every model of a seed.

Windows are drawn many steps at a time with numpy, by a thread of its own, so that a GPU never waits: a chunk of 64
steps of 96 × 512 tokens takes a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, teach
from tools.zoo.data import ZooData
from tools.zoo.facts import fact_row
from tools.zoo.kvpr import ANSWER, FREE, TEXT, kvpr_rows, layouts

if TYPE_CHECKING:
    import torch

    from repflow.training import Batch

CHUNK = 64
AHEAD = 2


@dataclass(frozen=True)
class BatchConfig:
    """What batches hold.

    Attributes:
        batch: windows per step.
        seed: seed of the draws.
        prose: share of prose among the windows.
        mdqa: share of numbered documents among the retrieval windows.
        answer_weight: weight of an answer's token in the loss, where prose has 1. Answers are one token in twenty of a
            retrieval window; at 1 their part of the loss is so small that copying is learnt late.
        chunk: steps drawn at a time; another number gives other draws.
    """

    batch: int = 96
    seed: int = 0
    prose: float = 0.5
    mdqa: float = 0.25
    answer_weight: float = 5.0
    chunk: int = CHUNK


@dataclass(frozen=True)
class Chunk:
    """Windows of several steps.

    Attributes:
        ids: token ids (step, batch, window).
        weights: weight of each token's loss, as the token to be predicted (step, batch, window); float32.
    """

    ids: np.ndarray
    weights: np.ndarray


def window_counts(data: ZooData, config: BatchConfig) -> dict[str, int]:
    """Windows of each kind in a step; without numbered documents where two of them do not fit."""
    prose = round(config.batch * config.prose)
    facts = round((config.batch - prose) * config.mdqa) if _facts_fit(data) else 0
    return {"prose": prose, "kvpr": config.batch - prose - facts, "mdqa": facts}


def draw_chunk(data: ZooData, config: BatchConfig, number: int) -> Chunk:
    """Chunk `number` of a seed; it depends on the two alone."""
    rng = np.random.Generator(np.random.PCG64([config.seed, number]))
    window, batch, steps = data.window, config.batch, config.chunk
    counts = window_counts(data, config)
    prose, pairs = counts["prose"], counts["kvpr"]
    if pairs and data.template.most(window) < 2:
        need = data.template.size(2)
        raise InputError(teach(f"a window of at least {need} tokens", str(window), "prepare with a larger --length"))
    ids = np.full((steps, batch, window), data.template.end, dtype=np.uint16)
    roles = np.full((steps, batch, window), FREE, dtype=np.uint8)
    if prose:
        starts = rng.integers(0, len(data.prose) - window, size=(steps, prose, 1))
        ids[:, :prose] = data.prose[starts + np.arange(window)]
        roles[:, :prose] = TEXT
    _fill_pairs(data, rng, ids[:, prose : prose + pairs], roles[:, prose : prose + pairs])
    for step in range(steps):
        for row in range(prose + pairs, batch):
            tokens, role = fact_row(data.facts, rng, window)
            ids[step, row, : len(tokens)], roles[step, row, : len(role)] = tokens, role
    weights = np.zeros(3, dtype=np.float32)
    weights[TEXT], weights[ANSWER] = 1.0, config.answer_weight
    return Chunk(ids, weights[roles])


def _facts_fit(data: ZooData) -> bool:
    """Whether two of the longest articles fit into a window, with room for the question."""
    if not len(data.facts):
        return False
    longest = int(np.diff(data.facts.bounds).max())
    return 2 * longest + len(data.facts.head) + 64 <= data.window


def _fill_pairs(data: ZooData, rng: np.random.Generator, ids: np.ndarray, roles: np.ndarray) -> None:
    """Write kvpr windows, each layout for as many of them as the draw gives it."""
    steps, rows, window = ids.shape
    if not rows:
        return
    plans = layouts(data.template, window)
    choice = rng.integers(0, len(plans), size=(steps, rows))
    for number, plan in enumerate(plans):
        place = np.nonzero(choice == number)
        parts = [kvpr_rows(data.template, rng, len(place[0]), *prompt) for prompt in plan]
        tokens, role = (np.concatenate([part[which] for part in parts], axis=1)[:, :window] for which in (0, 1))
        step, row = place
        ids[step, row, : tokens.shape[1]] = tokens
        roles[step, row, : tokens.shape[1]] = role


def chunks(data: ZooData, config: BatchConfig, steps: int, first: int = 0) -> Generator[Chunk, None, None]:
    """Chunks from number `first` for this many steps in all, drawn ahead by a thread."""
    from repflow.training import ahead

    return ahead(lambda number: draw_chunk(data, config, number), range(first, -(-steps // config.chunk)), AHEAD)


class ZooBatches:
    """Batches of a training, by step: drawn ahead, and moved to the device a chunk at a time."""

    def __init__(self, data: ZooData, config: BatchConfig, steps: int, device: torch.device) -> None:
        self.data, self.config, self.steps, self.device = data, config, steps, device
        self._drawn: Generator[Chunk, None, None] | None = None
        self._number = -1

    def batch(self, step: int) -> Batch:
        """Windows of a step, prose first; the weights are those of tokens to be predicted."""
        from repflow.training import Batch

        number, place = divmod(step, self.config.chunk)
        if number != self._number:
            self._move(number)
        return Batch(self._ids[place], weights=self._weights[place])

    def _move(self, number: int) -> None:
        import torch

        if self._drawn is None or number != self._number + 1:
            self.close()
            self._drawn = chunks(self.data, self.config, self.steps, number)
        chunk = next(self._drawn)
        self._number = number
        # half the bytes travel, and the models want int64
        self._ids = torch.from_numpy(chunk.ids.astype("int32")).to(self.device).long()
        self._weights = torch.from_numpy(chunk.weights).to(self.device)

    def close(self) -> None:
        """End the thread that draws."""
        if self._drawn is not None:
            self._drawn.close()
        self._drawn, self._number = None, -1

    def facts(self) -> dict[str, Any]:
        """The prepared data and what batches hold."""
        return {"digests": self.data.facts_of["digests"], **asdict(self.config)}
