"""Batches of images, which stay where the model is trained: a step picks rows of a tensor of bytes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

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

    Attributes:
        tokens: uint8 (image, token, channel).
        labels: int64 (image,).
    """

    def __init__(
        self, images: Images, layout: PixelLayout | None = None, *, device: str | torch.device = "cpu"
    ) -> None:
        sequence = (layout or PixelLayout()).sequence(images.pixels)
        self.tokens = torch.from_numpy(sequence).to(device)
        self.labels = torch.from_numpy(images.labels).to(device)

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, index: Tensor | slice, bounds: tuple[float, float] = UNIT) -> Batch:
        """Some images, black and white at the bounds, in float32."""
        low, high = bounds
        pixels = self.tokens[index].float().mul_((high - low) / 255)
        return Batch(pixels if low == 0 else pixels.add_(low), self.labels[index])

    @cached_property
    def digest(self) -> str:
        """Of tokens and labels."""
        return weights_digest([("tokens", self.tokens), ("labels", self.labels)])


class PixelBatches:
    """Images of a step, each epoch in an order of its own; what does not fill a last batch is left out.

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
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def batch(self, step: int) -> Batch:
        """The images of a step."""
        epoch, place = divmod(step, self.epoch_steps)
        if self._order[0] != epoch:
            draws = torch.Generator().manual_seed(step_seed(self.seed, epoch))
            self._order = (epoch, torch.randperm(len(self.rows), generator=draws).to(self.rows.tokens.device))
        return self.rows.batch(self._order[1][place * self.size : (place + 1) * self.size], self.bounds)

    def facts(self) -> dict[str, Any]:
        """Digest of the images, batch size, seed and bounds."""
        own = {"size": self.size, "seed": self.seed, "bounds": list(self.bounds)}
        return {"images": self.rows.digest, **own}
