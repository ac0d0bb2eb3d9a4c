"""Variants of the zoo's models for the study of what architecture decides: one thing changed at a time.

| variant | what is changed |
|---|---|
| gpt-neox, mamba2, hybrid, hybrid-mirror | nothing |
| mamba2-shallow, mamba2-deep | half and twice the blocks |
| mamba2-narrow, gpt-neox-narrow | half the width, of a Transformer's MLP too: other sizes for the demo |
| mamba2-small-state | a quarter of the state |
| gpt-neox-frozen-norms | weights and biases of the norms stay as they start |
| gpt-neox-window | attention to the last 64 tokens alone |
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from repflow.core.errors import InputError, nearest
from tools.zoo.fast import OWN_WINDOW
from tools.zoo.models import SIZES, build


@dataclass(frozen=True)
class Variant:
    """One model of the study.

    Attributes:
        base: model of the zoo it comes from.
        factor: what is changed, in words.
        size: fields of `Size` that differ, as multiples of the base's.
        frozen_norms: whether the norms' parameters stay as they start.
        window: tokens that attention sees; None for all.
    """

    base: str
    factor: str = "none"
    size: dict[str, float] = field(default_factory=dict)
    frozen_norms: bool = False
    window: int | None = None


VARIANTS = {
    "gpt-neox": Variant("gpt-neox"),
    "mamba2": Variant("mamba2"),
    "hybrid": Variant("hybrid"),
    "hybrid-mirror": Variant("hybrid-mirror"),
    "gpt-neox-frozen-norms": Variant("gpt-neox", "norms frozen", frozen_norms=True),
    "gpt-neox-window": Variant("gpt-neox", "attention to 64 tokens", window=64),
    "mamba2-shallow": Variant("mamba2", "half the blocks", {"blocks": 0.5}),
    "mamba2-deep": Variant("mamba2", "twice the blocks", {"blocks": 2.0}),
    "mamba2-narrow": Variant("mamba2", "half the width", {"width": 0.5}),
    "mamba2-small-state": Variant("mamba2", "a quarter of the state", {"state": 0.25}),
    "gpt-neox-narrow": Variant("gpt-neox", "half the width", {"width": 0.5, "inner": 0.5}),
}
"""By name, in the order in which they are trained."""


def build_variant(name: str, size: str, vocabulary: int, window: int, seed: int) -> Any:
    """Network of a variant, seeded, in float32 on the CPU."""
    if name not in VARIANTS:
        raise InputError(f"unknown variant {name!r}; {nearest(name, VARIANTS)}")
    variant, base = VARIANTS[name], SIZES[size]
    changed = replace(base, **{key: round(getattr(base, key) * by) for key, by in variant.size.items()})
    network = build(variant.base, changed, vocabulary, window, seed)
    if variant.frozen_norms:
        _freeze_norms(network)
    if variant.window is not None:
        _narrow(network, variant.window)
    return network


def _freeze_norms(network: Any) -> None:
    from repflow.models.weights.initialise import parameter_groups

    kinds = parameter_groups(network)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(kinds[name] != "norms")


def _narrow(network: Any, window: int) -> None:
    """Attention through torch's fused product under a band of its own, so that a CUDA graph can hold it."""
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = f"{OWN_WINDOW}{window}"
    usual = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
        place = torch.arange(query.shape[2], device=query.device)
        far = place[:, None] - place[None, :]
        return usual(module, query, key, value, ((far >= 0) & (far < window))[None, None], **kwargs)

    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, lambda *_, **__: None)
    network.config._attn_implementation = name
