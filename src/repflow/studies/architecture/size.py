"""Widths that give rows as many parameters as another row has."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from typing import Any

from repflow.core.errors import InputError, teach
from repflow.spec.architecture import MODELS, Numbers, parse_architecture
from repflow.studies.laboratory.outline import outlined

STEP = 8
"""Widths are multiples of this, and of twice the heads where there is attention."""
SSD_HEAD = 64
"""Channels of a head of Mamba-2, whose inner width is twice the stream's."""
MOST = 1 << 15


@functools.cache
def count_parameters(word: str, layers: int, width: int, vocabulary: int, numbers: Numbers) -> int:
    """Parameters of a row's language model with a tied head; where its mixers allow it, weights take no memory."""
    row = parse_architecture(word)
    frame = row.frame(layers, numbers)
    for mixer in frame["mixers"]:
        mixer.pop("eigenvalue_norm", None)  # a scale, which weights without values cannot have
    frame.pop("reorder", None)
    mixers, mlps = frame.pop("mixers"), frame.pop("mlp", [None] * layers)
    blocks = [json.dumps(block, sort_keys=True) for block in zip(mixers, mlps, strict=True)]
    shape, rest = (width, vocabulary), json.dumps(frame, sort_keys=True)
    if "shared" in row.parts:
        return _count(tuple(blocks), *shape, rest) + _scores(word, layers, width, numbers)
    # blocks add up: of each kind what a second one adds to a first
    own = {block: _count((block,), *shape, rest) for block in set(blocks)}
    added = {block: _count((block, block), *shape, rest) - own[block] for block in own}
    total = own[blocks[0]] - added[blocks[0]] + sum(added[block] for block in blocks)
    return total + _scores(word, layers, width, numbers)


@functools.cache
def _count(blocks: tuple[str, ...], width: int, vocabulary: int, frame: str) -> int:
    """Parameters of a stack of these blocks: mixer and feed-forward layer of each."""
    import torch

    from repflow.models.stack.config import StackConfig
    from repflow.models.stack.network import StackForCausalLM

    mixers, mlps = zip(*(json.loads(block) for block in blocks), strict=True)
    size: dict[str, Any] = {"hidden_size": width, "vocab_size": vocabulary, "tie_word_embeddings": True}
    config = StackConfig(list(mixers), mlp=list(mlps), **size, **json.loads(frame))
    with torch.random.fork_rng(devices=[]):
        network = outlined(lambda: StackForCausalLM(config))
        network.tie_weights()
    return sum(part.numel() for part in network.parameters())


def _scores(word: str, layers: int, width: int, numbers: Numbers) -> int:
    """Parameters of the importance scores: a vector K for every block that sorts."""
    row = parse_architecture(word)
    order = row.order(numbers)
    if order is None or order.get("order", "sorted") != "sorted":
        return 0
    families = [MODELS[name] for name, _ in row.laid(layers)]
    sorting = families if order["blocks"] == "all" else families[:1]
    return sum(2 * width if family == "s6" else width for family in sorting)


def width_step(families: Sequence[str], numbers: Numbers) -> int:
    """What widths of these mixers are multiples of.

    >>> width_step(["s6"], Numbers()), width_step(["ssd"], Numbers()), width_step(["ssd"], Numbers(head_dim=16))
    (8, 32, 8)
    """
    heads = [2 * numbers.heads] if "softmax_attention" in families else []
    channels = [(numbers.head_dim or SSD_HEAD) // 2] if "ssd" in families else []
    return math.lcm(STEP, *(max(1, size) for size in heads + channels))


def matched_width(
    word: str,
    goal: str,
    layers: int,
    width: int,
    vocabulary: int,
    numbers: Numbers,
    *,
    goal_layers: int | None = None,
) -> int:
    """Width at which a row has about as many parameters as the row `goal` at the given one.

    Args:
        word: the row.
        goal: the row to match.
        layers: blocks of the row.
        width: of the row to match.
        vocabulary: token ids.
        numbers: what rows leave open.
        goal_layers: blocks of the row to match; as many as the row has, if left out.

    Raises:
        InputError: no width comes close.
    """
    goal_layers = layers if goal_layers is None else goal_layers
    if (word, layers) == (goal, goal_layers):
        return width
    target = count_parameters(goal, goal_layers, width, vocabulary, numbers)
    step = width_step(parse_architecture(word).families, numbers)
    low, high = 1, 2
    while count_parameters(word, layers, step * high, vocabulary, numbers) < target and step * high < MOST:
        low, high = high, 2 * high
    while low < high - 1:  # the count rises with the width
        middle = (low + high) // 2
        if count_parameters(word, layers, step * middle, vocabulary, numbers) <= target:
            low = middle
        else:
            high = middle
    counts = {step * k: count_parameters(word, layers, step * k, vocabulary, numbers) for k in (low, high)}
    best = min(counts, key=lambda size: abs(counts[size] - target))
    if abs(counts[best] - target) > 0.1 * target:
        got = f"{counts[best]:,} at width {best}"
        raise InputError(teach(f"about {target:,} parameters of {word}, as {goal} has", got, "choose other widths"))
    return best
