"""Forecast of memory: what a batch will take, compared with what is free, before the first prompt is read.

An operating system hands out memory that it does not have and ends the process later; it is better to know right
away that a batch cannot fit. The forecast is rough, a factor of two either way, so it warns and refuses nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from repflow.core.errors import RepflowError
from repflow.metrics.flow import meter_bytes
from repflow.models import Model
from repflow.models.anatomy import text_config
from repflow.models.room import free_bytes, size_words

STREAMS, INSIDE = 6, 3
"""Tensors of the stream's width, and of the width inside a block, that are alive at once in a forward pass."""
INNER_NAMES = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")


class MemoryWarning(UserWarning):
    """The work may take more memory than is free."""


def batch_bytes(model: Model, batch: int, token: int, group: int = 1) -> int:
    """Rough bytes that a batch takes on top of the weights: activations of one block, and the meters."""
    config = text_config(model.network.config)
    inner = max(_inner(config), 2 * model.width)
    size = model.dtype.itemsize
    several = 1 if model.streams is None else model.streams.count
    activations = batch * token * size * (STREAMS * several * model.width + INSIDE * inner)
    if getattr(config, "_attn_implementation", None) == "eager":
        heads = getattr(config, "num_attention_heads", None)
        activations += 2 * batch * (heads if isinstance(heads, int) else 1) * token * token * size
    return activations + meter_bytes(batch, token, model.width, size, group)


def _inner(config: Any) -> int:
    """Width inside a block; four widths where the configuration names none."""
    widths = [value for name in INNER_NAMES if isinstance(value := getattr(config, name, None), int)]
    return max(widths) if widths else 4 * int(getattr(config, "hidden_size", 1) or 1)


def warn_of_batches(model: Model, batches: Sequence[Sequence[int]], lengths: Sequence[int], group: int = 1) -> None:
    """Warn if the largest batch takes more than is free, and say which batch size would fit.

    Args:
        model: What runs.
        batches: Samples of each batch.
        lengths: Tokens of each sample.
        group: States that the meters reduce together.
    """
    free = free_bytes(model.device)
    if free is None or not batches:
        return
    size, longest = max((len(batch), max(lengths[sample] for sample in batch)) for batch in batches)
    need = batch_bytes(model, size, longest, group)
    if need <= free:
        return
    one = batch_bytes(model, 1, longest, group)
    remedy = f"pass --batch-size {free // one}" if one <= free else "use shorter prompts or --dtype bfloat16"
    say_short(f"{size} prompts of {longest:,} tokens", need, free, str(model.device), remedy)


def say_short(what: str, need: int, free: int, where: str, remedy: str) -> None:
    """Warn in the caller's terms: the command line's options or Python's arguments."""
    need_words = f"{what} take about {size_words(need)} on top of the weights, and {where} has {size_words(free)} free"
    warnings.warn(str(RepflowError(f"memory may run out: {need_words}; {remedy}")), MemoryWarning, stacklevel=2)
