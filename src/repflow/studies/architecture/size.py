"""Widths that give rows as many parameters as another row has."""

from __future__ import annotations

import functools

from repflow.core.errors import InputError, teach
from repflow.spec.architecture import MODELS, Numbers, parse_architecture

STEP = 8
"""Widths are multiples of this, and of twice the heads where there is attention."""
MOST = 1 << 15
VALUELESS = ("s6", "ssd", "softmax_attention")
"""Families whose constructors look at no value of a weight."""


@functools.cache
def count_parameters(word: str, layers: int, width: int, vocabulary: int, numbers: Numbers) -> int:
    """Parameters of a row's language model with a tied head; where its mixers allow it, weights take no memory."""
    import torch

    from repflow.models.stack.config import StackConfig
    from repflow.models.stack.network import StackForCausalLM

    row = parse_architecture(word)
    if layers > 2 and len(row.mixers) == 1 and not row.reordered and "shared" not in row.parts:
        one, two = (count_parameters(word, few, width, vocabulary, numbers) for few in (1, 2))
        return one + (layers - 1) * (two - one)  # equal blocks
    frame = row.frame(layers, numbers)
    for mixer in frame["mixers"]:
        mixer.pop("eigenvalue_norm", None)  # a scale, which weights without values cannot have
    frame.pop("reorder", None)
    config = StackConfig(hidden_size=width, vocab_size=vocabulary, tie_word_embeddings=True, **frame)
    place = "meta" if set(row.families) <= set(VALUELESS) else "cpu"
    with torch.random.fork_rng(devices=[]), torch.device(place):
        network = StackForCausalLM(config)
        network.tie_weights()
    return sum(part.numel() for part in network.parameters()) + _scores(word, layers, width, numbers)


def _scores(word: str, layers: int, width: int, numbers: Numbers) -> int:
    """Parameters of the importance scores: a vector K for every block that sorts."""
    row = parse_architecture(word)
    order = row.order(numbers)
    if order is None or order.get("order", "sorted") != "sorted":
        return 0
    families = [MODELS[name] for name, _ in row.laid(layers)]
    sorting = families if order["blocks"] == "all" else families[:1]
    return sum(2 * width if family == "s6" else width for family in sorting)


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
    step = STEP if "softmax_attention" not in parse_architecture(word).families else max(STEP, 2 * numbers.heads)
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
