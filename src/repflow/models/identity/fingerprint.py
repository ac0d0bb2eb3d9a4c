"""Fingerprint of a model's function: what every part gives on fixed inputs, so that changed code shows.

Weights and configuration do not say what the code computes from them. The logits of a fixed prompt alone would, but
rounding grows through depth: a random Mamba's own bfloat16 pass is 86 % off its float32 pass after 16 blocks, and no
tolerance would both let another machine pass and see anything. So one forward pass over 16 fixed token ids hands every
block the same fixed states in place of its predecessor's, and what is kept is what each part makes of its own input:
the embedding of the ids, what each block adds, and the last token's logits behind the last block. Rounding then grows
through one block only.

Each part is kept as four projections s·v / √n on fixed signs s, with its size and its noise: how far it moves, root
mean square, when every entry of its input moves by `STEP`, the coarsest rounding that a machine may apply in that dtype
(TF32 for float32). Two fingerprints are equal where the projections differ by at most `repflow.store.identity.FACTOR`
times the step's effect; a block that amplifies rounding has a wider tolerance by its own measure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from repflow.core.seconds import timed
from repflow.models.reading import hidden_of, input_of

if TYPE_CHECKING:
    from repflow.models.pretrained import Model

TOKENS = 16
PROJECTIONS = 4
SIZE = 0.0625
"""Of the states' entries: far above the epsilons of norms, and small beside what most blocks add."""
STEP = {torch.float64: 2.0**-20, torch.float32: 2.0**-11, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Relative rounding by dtype. Many models compute parts in float32 in float64 too."""
DIGITS = 6


@timed("digest")
def fingerprint(model: Model) -> dict[str, Any]:
    """Fingerprint of a model: its step, and a row (size, noise, projections) per part; null where it is not finite."""
    step = STEP.get(model.dtype, 2.0**-8)
    with _unrecorded(model):
        plain, up, down = (_parts(model, moved) for moved in (0.0, step, -step))
    signs: dict[int, Tensor] = {}
    numbers = torch.stack([_row(*pair, signs).cpu() for pair in zip(plain, up, down, strict=True)]).double().numpy()
    return {"step": step, "parts": [[_rounded(value) for value in row] for row in numbers]}


@contextmanager
def _unrecorded(model: Model) -> Iterator[None]:
    """Leave the record of which scans ran as it is: this is not a pass of the study."""
    counters = [Counter(layer.ran) for layer in model.scans.layers]
    try:
        yield
    finally:
        for layer, ran in zip(model.scans.layers, counters, strict=True):
            layer.ran.clear()
            layer.ran.update(ran)


def _parts(model: Model, step: float) -> list[Tensor]:
    """Embedding, what each call of a block adds, logits of the last token; inputs moved by a relative step."""
    random = np.random.default_rng(17)
    ids = torch.from_numpy(random.integers(0, model.vocab_size, (1, TOKENS)))
    states = random.standard_normal((1, TOKENS, model.width)) * SIZE
    states *= 1 + step * random.standard_normal(states.shape)
    fixed = torch.from_numpy(states).float()
    parts: list[Tensor] = []

    def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        hidden = input_of(args, kwargs)
        if not parts:
            parts.append(hidden.detach().float())
        value = model.reading.spread(fixed.to(hidden))
        if args:
            return (value, *args[1:]), kwargs
        name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
        return args, {**kwargs, name: value}

    def after(_: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        # a block may have written into its input: what it was given is known
        entered = model.reading.spread(fixed.to(hidden_of(output)))
        parts.append(hidden_of(output).detach().float() - entered.float())

    with ExitStack() as stack, torch.inference_mode():
        for block in {id(block): block for block in model.blocks}.values():
            stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(after, with_kwargs=True).remove)
        # a classifier with a class token has no logits for ids without it
        network = model.network if model.class_token is None else model.reading.base
        output = network(**model.reading.arguments(ids.to(model.device), None))
        logits = getattr(output, "logits", None)
        last = output[0] if logits is None else logits
        return [*parts, last.detach().float().reshape(-1, last.shape[-1])[-1]]


def _row(plain: Tensor, up: Tensor, down: Tensor, signs: dict[int, Tensor]) -> Tensor:
    """Size, noise and projections of one part.

    The noise is the larger of a step and its opposite: where a router is about to choose another expert, one of them
    makes it do so.
    """
    flat = plain.reshape(-1)
    if len(flat) not in signs:
        bits = np.random.default_rng(len(flat)).integers(0, 2, (PROJECTIONS, len(flat)))
        signs[len(flat)] = torch.from_numpy(2.0 * bits - 1.0).to(flat)
    noise = torch.maximum(*((plain - moved).square().mean().sqrt() for moved in (up, down)))
    projections = signs[len(flat)].to(flat) @ flat / len(flat) ** 0.5
    return torch.stack([flat.square().mean().sqrt(), noise, *projections])


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None
