"""Building a network with random weights on a GPU, every weight drawn once.

transformers' models draw twice: torch's layers initialise themselves as they are made, and `_init_weights` then draws
most of them again by the architecture's own rule. Here the layers' own draws are put off: a layer that would draw fills
its parameter with NaN, and whatever is NaN still when the architecture is done gets its draw then. What is built
follows the same rules as an ordinary construction; the order of the draws, and so the values of a seed, are other.

An architecture that reads what its layers drew (which scales it, say, or writes only a part) would compute with NaN:
it is recognised and built in the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

DRAWING = (
    "uniform_",
    "normal_",
    "trunc_normal_",
    "xavier_uniform_",
    "xavier_normal_",
    "kaiming_uniform_",
    "kaiming_normal_",
    "orthogonal_",
    "sparse_",
)
"""Functions of torch.nn.init that draw, as torch's layers call them."""
SHARE_OF_MEMORY = 0.5
"""Share of a device's memory that float32 weights may take to be drawn there."""

Draw = Callable[[], object]


def build_once(build: Callable[[], nn.Module]) -> nn.Module | None:
    """Build a network, every weight drawn once; None where only the ordinary construction is right.

    Args:
        build: Makes the network, under the device and seed that are to hold.
    """
    with _putting_off() as put_off:
        network = build()
    parameters = list(network.parameters())
    for parameter, lacks in zip(parameters, _with_nan(parameters), strict=True):
        if not lacks:
            continue
        draws = put_off.get(id(parameter))
        if draws is None or _version(parameter) != draws.version or not bool(parameter.isnan().all()):
            return None
        for draw in draws.calls:
            draw()
    return network


class _PutOff:
    """Draws of one parameter that wait."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor, _version(tensor)
        self.calls: list[Draw] = []

    def add(self, draw: Draw) -> None:
        """Note a draw, and fill with NaN in its place."""
        with torch.no_grad():
            self.tensor.fill_(float("nan"))
        self.calls.append(draw)
        self.version = _version(self.tensor)


def _version(tensor: Tensor) -> int:
    """How often a tensor was written to; not counted in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def _putting_off() -> Iterator[dict[int, _PutOff]]:
    """Have torch's layers note their draws, by the parameter's identity; transformers' own functions still draw."""
    draws: dict[int, _PutOff] = {}
    originals = {name: getattr(nn.init, name) for name in DRAWING}

    def noting(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def note(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            draws.setdefault(id(tensor), _PutOff(tensor)).add(lambda: original(tensor, *args, **kwargs))
            return tensor

        return note

    for name, original in originals.items():
        setattr(nn.init, name, noting(original))
    try:
        yield draws
    finally:
        for name, original in originals.items():
            setattr(nn.init, name, original)


def _with_nan(tensors: Sequence[Tensor]) -> list[bool]:
    """Which tensors hold a NaN; the device is waited for once."""
    if not tensors:
        return []
    return torch.stack([torch.isnan(tensor.detach()).any() for tensor in tensors]).tolist()


def fits(device: torch.device, parameters: int) -> bool:
    """Whether a GPU has room for drawing this many weights in float32.

    Read off its whole memory, not what is free: the same request must give the same weights.
    """
    return 4 * parameters <= SHARE_OF_MEMORY * torch.cuda.get_device_properties(device).total_memory


def device_words(device: torch.device) -> str:
    """Who drew: `cpu`, or the GPU by name, since the streams of two kinds of GPU differ.

    >>> device_words(torch.device("cpu"))
    'cpu'
    """
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def cast(network: Any, dtype: torch.dtype) -> Any:
    """Cast a network except its rotary frequencies: transformers keeps them in float32 in every dtype.

    In bfloat16 a frequency is off by up to 0.4 %, which is eight radians after 2,000 tokens.
    """
    buffers = [
        (module, name, buffer)
        for module in network.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if "inv_freq" in name and name in module._non_persistent_buffers_set
    ]
    network = network.to(dtype)
    for module, name, buffer in buffers:
        module.register_buffer(name, buffer, persistent=False)
    return network
