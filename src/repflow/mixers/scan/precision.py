"""Sums of a scan keep their precision inside autocast, which rounds every product to half precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Switch autocast off inside the block; nothing to do on a device that has none (meta).

    >>> with torch.autocast("cpu", dtype=torch.float16), without_autocast(torch.device("cpu")):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
