"""Accuracy on fresh rows: by number of pairs, and by distance between pair and query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from repflow.models.stack.network import StackForCausalLM
from repflow.tasks.recall import RecallSetting, recall_rows
from repflow.training.batch import step_seed

TEST_SEED = 1_000_003
"""Seed of the test rows: the same for all models, and no seed of training rows."""


def distance_edges(length: int) -> list[int]:
    """Bounds of the bins of distances: 1, 2, 4, ... up to what a row can have.

    >>> distance_edges(12)
    [1, 2, 4, 8, 16]
    """
    edges = [1]
    while edges[-1] < length:
        edges.append(2 * edges[-1])
    return edges


@torch.no_grad()
def count_right(
    network: StackForCausalLM, settings: Sequence[RecallSetting], rows: int, *, offset: int = 0
) -> dict[str, np.ndarray]:
    """Right answers and queries (pairs, gap), on fresh rows in float32.

    Args:
        network: in eval mode.
        settings: kinds of rows, of one length.
        rows: of each kind.
        offset: added to all ids, where those of recall stand behind others.
    """
    device = next(network.parameters()).device
    edges = distance_edges(settings[0].length)
    right, seen = (torch.zeros(len(settings), len(edges) - 1, dtype=torch.float64) for _ in range(2))
    size = max(1, min(rows, 64))
    for place, setting in enumerate(settings):
        for start in range(0, rows, size):
            generator = torch.Generator(device).manual_seed(step_seed(TEST_SEED + place, start))
            drawn = recall_rows(setting, min(size, rows - start), generator)
            states = network.model(drawn.ids + offset).last_hidden_state
            index = drawn.positions[..., None].expand(-1, -1, states.shape[-1])
            hit = network.lm_head(states.gather(1, index)).argmax(-1) == drawn.targets + offset
            bins = torch.bucketize(drawn.distances, torch.tensor(edges[1:], device=device), right=True)
            seen[place] += torch.bincount(bins.flatten(), minlength=len(edges) - 1).cpu()
            right[place] += torch.bincount(bins[hit], minlength=len(edges) - 1).cpu()
    return {"right": right.numpy(), "queries": seen.numpy()}


def state_bytes(network: StackForCausalLM, tokens: int) -> int:
    """Bytes in float32 of what all layers keep of the tokens: their states, or keys and values of the tokens."""
    blocks: Any = network.model.blocks
    sizes = [block.mixer.state_size for block in blocks]
    return 4 * sum(2 * tokens * network.config.hidden_size if size is None else int(size) for size in sizes)
