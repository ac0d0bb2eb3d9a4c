"""Batches of images, which stay where the model is trained: a step picks rows of a tensor of bytes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.models.weights.digest import weights_digest
from repflow.spec.request import check_least, check_seed
from repflow.tasks.pixels import Images, PixelLayout
from repflow.training.batch import Batch, step_seed

UNIT = (0.0, 1.0)


class PixelRows:
    """Images as sequences on a device, once for all trainings that read them.

    Args:
        images: images with labels.
        layout: how they become sequences.
        device: where they lie.
        mirror: whether their mirror images lie there too, left for right.

    Attributes:
        tokens: uint8 (image, token, channel).
        mirrored: the same of the mirror images; None without them.
        labels: int64 (image,).
    """

    def __init__(
        self,
        images: Images,
        layout: PixelLayout | None = None,
        *,
        device: str | torch.device = "cpu",
        mirror: bool = False,
    ) -> None:
        layout = layout or PixelLayout()
        self.tokens = torch.from_numpy(layout.sequence(images.pixels)).to(device)
        self.labels = torch.from_numpy(images.labels).to(device)
        self.mirrored: Tensor | None = None
        if mirror:
            turned = np.ascontiguousarray(images.pixels[:, :, ::-1])
            self.mirrored = torch.from_numpy(layout.sequence(turned)).to(device)

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, index: Tensor | slice, bounds: tuple[float, float] = UNIT, turned: Tensor | None = None) -> Batch:
        """Some images, black and white at the bounds, in float32; those that are `turned` in their mirror image."""
        low, high = bounds
        tokens = self.tokens[index]
        if turned is not None:
            assert self.mirrored is not None
            tokens = torch.where(turned[:, None, None], self.mirrored[index], tokens)
        pixels = tokens.float().mul_((high - low) / 255)
        return Batch(pixels if low == 0 else pixels.add_(low), self.labels[index])

    @cached_property
    def digest(self) -> str:
        """Of tokens and labels."""
        return weights_digest([("tokens", self.tokens), ("labels", self.labels)])


class PixelBatches:
    """Images of a step, each epoch in an order of its own; what does not fill a last batch is left out.

    Where the rows have mirror images, half of an epoch's images are mirrored, others in every epoch.

    Args:
        rows: all images.
        size: images of a batch.
        seed: of the orders.
        bounds: values of black and white.

    >>> from repflow.tasks.pixels.drawn import draw_images
    >>> source = PixelBatches(PixelRows(draw_images(10, side=8)), 5)
    >>> sorted(torch.cat([source.batch(0).targets, source.batch(1).targets]).tolist()), source.epoch_steps
    ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 2)
    """

    def __init__(self, rows: PixelRows, size: int, *, seed: int = 0, bounds: tuple[float, float] = UNIT) -> None:
        check_least([("size", size, 1)])
        check_seed(seed)
        if size > len(rows):
            expected = f"batches of at most {len(rows)}, the number of images"
            raise InputError(teach(expected, str(size), "choose a smaller batch or give more images"))
        self.rows, self.size, self.seed, self.bounds = rows, size, seed, bounds
        self.epoch_steps = len(rows) // size
        self._order: tuple[int, Tensor, Tensor | None] = (-1, torch.empty(0), None)

    def batch(self, step: int) -> Batch:
        """The images of a step."""
        epoch, place = divmod(step, self.epoch_steps)
        if self._order[0] != epoch:
            self._order = (epoch, *self._drawn(epoch))
        _, order, turned = self._order
        index = order[place * self.size : (place + 1) * self.size]
        return self.rows.batch(index, self.bounds, None if turned is None else turned[index])

    def _drawn(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        """Order of an epoch's images, and which of them are mirrored; the order does not depend on whether any is."""
        draws, device = torch.Generator().manual_seed(step_seed(self.seed, epoch)), self.rows.tokens.device
        order = torch.randperm(len(self.rows), generator=draws).to(device)
        if self.rows.mirrored is None:
            return order, None
        return order, (torch.rand(len(self.rows), generator=draws) < 0.5).to(device)

    def facts(self) -> dict[str, Any]:
        """Digest of the images, batch size, seed and bounds, and that images are mirrored where they are."""
        own: dict[str, Any] = {"size": self.size, "seed": self.seed, "bounds": list(self.bounds)}
        own |= {} if self.rows.mirrored is None else {"mirror": True}
        return {"images": self.rows.digest, **own}
