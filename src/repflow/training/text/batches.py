"""Batches of a text: every epoch all windows of it once, in an order and from a place of the epoch's own."""

from __future__ import annotations

from typing import Any

import torch

from repflow.core.errors import InputError, teach
from repflow.spec.request import check_least, check_seed
from repflow.training.batch import Batch, step_seed
from repflow.training.text.tokens import Tokens


class TextBatches:
    """Windows of `length` tokens with the token behind each as its target.

    Documents follow one another, parted by the end-of-text id; a window may hold the end of one and the beginning of
    the next. An epoch cuts the text into windows from a place that is drawn for it, so that words do not always stand
    at the same place of a window, and takes them in a drawn order; what does not fill a last batch is left out.

    Args:
        tokens: documents to train on.
        length: tokens of a window.
        rows: windows of a batch.
        seed: of places and orders.
        device: where the ids are kept; the windows are the same on every one.

    Raises:
        InputError: the text is smaller than one batch.

    >>> from repflow.training.text import text_data
    >>> source = TextBatches(text_data("english", share=0.2).train, length=64, rows=4)
    >>> batch = source.batch(0)
    >>> batch.inputs.shape, torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    (torch.Size([4, 64]), True)
    """

    def __init__(
        self, tokens: Tokens, *, length: int, rows: int, seed: int = 0, device: str | torch.device = "cpu"
    ) -> None:
        check_least([("length", length, 2), ("rows", rows, 1)])
        check_seed(seed)
        self.tokens, self.length, self.rows, self.seed = tokens, length, rows, seed
        # one window less than fit: an epoch begins up to a window's length later than the text
        self.windows = (len(tokens.ids) - 1) // length - 1
        if self.windows < rows:
            expected = f"text for one batch, {rows} windows of {length} tokens and one more"
            got = f"{len(tokens.ids):,} tokens, which hold {max(self.windows, 0)}"
            raise InputError(teach(expected, got, "pass more text, shorter windows or fewer of them"))
        self.epoch_steps = self.windows // rows
        self._ids = torch.as_tensor(tokens.ids.astype("int32"), device=device)
        self._within = torch.arange(length + 1, device=device)
        self._epoch: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def _starts(self, epoch: int) -> torch.Tensor:
        """Where the windows of an epoch begin, in its order."""
        if self._epoch[0] != epoch:
            draws = torch.Generator().manual_seed(step_seed(self.seed, epoch))
            first = int(torch.randint(self.length, (), generator=draws))
            order = torch.randperm(self.windows, generator=draws)
            self._epoch = (epoch, (first + order * self.length).to(self._ids.device))
        return self._epoch[1]

    def batch(self, step: int) -> Batch:
        """The windows of a step."""
        epoch, place = divmod(step, self.epoch_steps)
        starts = self._starts(epoch)[place * self.rows : (place + 1) * self.rows]
        windows = self._ids[starts[:, None] + self._within].long()
        return Batch(windows[:, :-1], windows[:, 1:])

    def facts(self) -> dict[str, Any]:
        """Digest of the text, sizes and seed."""
        return {"text": self.tokens.digest, "length": self.length, "rows": self.rows, "seed": self.seed}
