"""The leak of a language model: what its loss owes to tokens that it should not have read yet.

    leak = loss when it reads the prefix alone − loss when it reads the whole window,   at the same positions

A causal model has none: both are the same number. A model that sorts whole sequences reads the next token among all
others, and pays for it once that token is missing. So its loss on whole windows is not the loss of a model that
predicts; the loss on prefixes is, for this model, though it was never trained on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from repflow.core.intervals import ratio_interval
from repflow.core.results import Band
from repflow.spec.request import check_least, check_seed
from repflow.training.batch import Batch
from repflow.training.losses.cross_entropy import read_logits, token_cross_entropy
from repflow.training.text.perplexity import ROWS, windows
from repflow.training.text.tokens import Tokens

POSITIONS = 2000


@dataclass(frozen=True)
class Leak:
    """Losses of one model at sampled positions.

    Attributes:
        whole: nats where the model reads the whole window (position,).
        prefix: nats where it reads the tokens up to the position alone (position,).
        documents: number of the document of each (position,).
        places: its place in the window (position,).
    """

    whole: np.ndarray
    prefix: np.ndarray
    documents: np.ndarray
    places: np.ndarray

    def _mean(self, values: np.ndarray) -> Band:
        sums, counts = (np.bincount(self.documents, weights=part) for part in (values, np.ones_like(values)))
        return ratio_interval(sums, counts)

    @property
    def gap(self) -> Band:
        """Mean of prefix less whole in nats, with its interval over documents."""
        return self._mean(self.prefix - self.whole)

    @property
    def whole_loss(self) -> Band:
        """Mean loss on whole windows."""
        return self._mean(self.whole)

    @property
    def prefix_loss(self) -> Band:
        """Mean loss on prefixes."""
        return self._mean(self.prefix)


def draw_positions(tokens: Tokens, length: int, count: int, seed: int) -> np.ndarray:
    """Positions (document, first place and tokens of the window, place in it), drawn from all, each at most once."""
    table, _ = windows(tokens, length)
    ends = np.cumsum(table[:, 2])
    total = int(ends[-1])
    chosen = np.sort(np.random.default_rng([seed, 21]).choice(total, size=min(count, total), replace=False))
    rows = np.searchsorted(ends, chosen, side="right")
    place = chosen - (ends[rows] - table[rows, 2])
    return np.concatenate([table[rows], place[:, None]], 1)


@torch.no_grad()
def measure_leak(
    network: nn.Module, tokens: Tokens, *, length: int, positions: int = POSITIONS, seed: int = 0, rows: int = ROWS
) -> Leak:
    """Loss of a language model with the whole window and with the prefix alone, at sampled positions.

    Args:
        network: the model, on its device.
        tokens: held-out text.
        length: tokens of a window, as in `text_loss`.
        positions: how many; all where there are fewer.
        seed: of the draw: equal ones give equal positions, so that models can be compared.
        rows: sequences that are read at once.
    """
    check_least([("length", length, 2), ("positions", positions, 1)])
    check_seed(seed)
    drawn = draw_positions(tokens, length, positions, seed)
    training = network.training
    network.eval()
    try:
        whole = _losses(network, tokens, drawn, drawn[:, 2], rows)
        prefix = _losses(network, tokens, drawn, drawn[:, 3] + 1, rows)
    finally:
        network.train(training)
    return Leak(whole, prefix, drawn[:, 0], drawn[:, 3])


def _losses(network: nn.Module, tokens: Tokens, drawn: np.ndarray, sizes: np.ndarray, rows: int) -> np.ndarray:
    """Nats (position,) of each position's next token, where its sequence holds this many tokens of its window."""
    device = next(network.parameters()).device
    losses = np.empty(len(drawn))
    order = np.argsort(sizes, kind="stable")  # sequences of like lengths have little padding
    for start in range(0, len(drawn), rows):
        part = order[start : start + rows]
        most = int(sizes[part].max())
        places = np.minimum(drawn[part, 1:2] + np.arange(most), len(tokens.ids) - 1)
        mask = np.arange(most) < sizes[part, None]
        # padding holds no token of the text, so that none can be read from it
        ids = np.where(mask, tokens.ids[places].astype(np.int64), 0)
        targets = tokens.ids[drawn[part, 1] + drawn[part, 3] + 1].astype(np.int64)
        batch = Batch(
            torch.from_numpy(ids),
            torch.from_numpy(targets[:, None]),
            positions=torch.from_numpy(drawn[part, 3:4]),
            mask=torch.from_numpy(mask).long(),
        ).to(device)
        assert batch.targets is not None
        losses[part] = token_cross_entropy(read_logits(network, batch), batch.targets)[:, 0].double().cpu().numpy()
    return losses
