"""What the Triton forms share on the host: where they can run, and the small things every launch needs."""

from __future__ import annotations

import contextlib
import importlib.util
import os

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's own switch: kernels then run on CPU tensors, slowly, which is how the tests check them without a GPU."""
PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)


def obstacle(*tensors: Tensor | None) -> str | None:
    """Why the kernels cannot take these tensors; None if they can.

    >>> obstacle(torch.zeros(2))
    'tensors on the cpu'
    """
    present = [tensor for tensor in tensors if tensor is not None]
    device = present[0].device
    for tensor in present:
        if tensor.device != device:
            return f"tensors on {device} and {tensor.device}"
        if tensor.dtype not in PRECISIONS:
            return f"dtype {str(tensor.dtype).removeprefix('torch.')}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type != "cuda" and not INTERPRETED:
        return f"tensors on the {device.type}"
    if any(tensor.numel() == 0 for tensor in present):
        return "a tensor without elements"
    return None


def on_device(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Launch on the tensor's own GPU, which need not be the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def rowwise(tensor: Tensor) -> Tensor:
    """The tensor with its last axis dense, as the kernels read it; a copy only where it was not.

    >>> rowwise(torch.zeros(2, 3).t()).stride()
    (2, 1)
    """
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def aligned(tensor: Tensor) -> Tensor:
    """As `rowwise`, with rows of whole 32 bytes starting at multiples of 16 bytes, so that a thread reads many at once.

    For small tensors whose rows every thread reads, such as a scan's B and C: a layer's projection may leave them at
    odd places. Rows of other sizes stay where they are.

    >>> part = torch.zeros(1, 2, 44)[..., 12:28]
    >>> part.stride(), aligned(part).stride()
    ((88, 44, 1), (32, 16, 1))
    """
    tensor = rowwise(tensor)
    if tensor.shape[-1] % 16 or (tensor.stride(-2) % 16 == 0 and tensor.data_ptr() % 16 == 0):
        return tensor
    return tensor.contiguous()


def power(size: int, least: int = 1) -> int:
    """The least power of two that holds a size.

    >>> power(5), power(5, 16)
    (8, 16)
    """
    return max(least, 1 << (size - 1).bit_length())


def ceil_div(whole: int, part: int) -> int:
    """Parts that cover the whole.

    >>> ceil_div(9, 4)
    3
    """
    return -(-whole // part)


def head_strides(tensor: Tensor) -> tuple[int, int, int]:
    """Strides of batch, token and the third axis.

    >>> head_strides(torch.zeros(2, 3, 4, 5))
    (60, 20, 5)
    """
    batch, token, third, *_ = tensor.stride()
    return batch, token, third
