"""Anatomy of a decoder: its blocks, what kind each one is, and the sublayers that add to the residual stream.

Everything here is read from the configuration's `layer_types` and the modules themselves, so that a decoder nobody
listed works as well; whether the reading is right is decided by `repflow.models.self_check`, which runs the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from repflow.core.errors import UnsupportedModelError, teach
from repflow.mixers.base import Mixer
from repflow.models.families import FAMILIES, STACK, Family

RECURRENT = re.compile(
    r"Rglru|RecurrentBlock|Rwkv\w*Attention|mLSTM|LSTMLayer|DeltaNet|DeltaAttention|Lightning\w*Attention"
    r"|LinearAttention|Retention"
)
MIXTURE = re.compile(r"M[oO]E|Moe|Experts")
MIXER_NAMES = (
    *("attn", "attention", "self_attn", "self_attention", "temporal_block", "linear_attn", "mlstm_layer"),
    *("mamba", "mixer", "conv"),
)
SUBLAYER_NAMES = (
    *MIXER_NAMES,
    *("mlp", "feed_forward", "mlp_block", "ffn", "moe", "block_sparse_moe", "shared_mlp", "per_layer_projection"),
)
LAYER_COUNT_NAMES = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers")
NORM_BEHIND_MLP = ("post_feedforward_layernorm", "post_mlp_layernorm")
NORM_BEHIND_MIXER = ("post_self_attn_layernorm", "post_attention_layernorm")
"""Norms of a sublayer's output; in a block with none of the first, the last is the norm before the MLP."""


@dataclass(frozen=True)
class Sublayer:
    """A module whose output, times `scale`, its block adds to the residual stream.

    Attributes:
        kind: attention, ssm, recurrent, conv or mlp (a mixture of experts is an mlp here).
        module: The module whose output is added; the norm after it where the block has one.
        scale: Factor of the block, such as Granite's residual multiplier.
    """

    kind: str
    module: nn.Module
    scale: float


def text_config(config: Any) -> Any:
    """Part of a configuration that describes the language model."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def family_of(config: Any) -> Family:
    """Row of an architecture, or of the language model inside it; an empty one where there is none."""
    kinds = [str(config.model_type), str(getattr(text_config(config), "model_type", ""))]
    return next((FAMILIES[kind] for kind in kinds if kind in FAMILIES), Family())


def listed(config: Any) -> bool:
    """Whether the tests hold an architecture, or the language model inside it, to its kinds."""
    kinds = {str(config.model_type), str(getattr(text_config(config), "model_type", ""))}
    return bool(kinds & FAMILIES.keys()) or kinds == {STACK}


def declared_layers(config: Any) -> int | None:
    """Number of blocks that the configuration promises, None where it has no such entry."""
    return next(iter(layer_counts(config)), None)


def layer_counts(config: Any) -> list[int]:
    """Every number of layers in a configuration; LongCat counts sublayers under one name and blocks under another."""
    values = [getattr(text_config(config), name, None) for name in LAYER_COUNT_NAMES]
    return list(dict.fromkeys(value for value in values if isinstance(value, int)))


def find_blocks(base: nn.Module, config: Any) -> list[nn.Module]:
    """Find the residual blocks: the shallowest, largest module list with as many entries as the model has layers.

    Lists of the language model come before those of a vision tower beside it.
    """
    counts = layer_counts(config)
    wanted = next(iter(counts), None)
    lists = [(name, module) for name, module in base.named_modules() if isinstance(module, nn.ModuleList) and module]
    apart = {id(_model_around(base, name)) for name, _ in lists}
    fitting = lists if wanted is None and len(apart) == 1 else []
    for count in counts:
        fitting = fitting or [(name, module) for name, module in lists if len(module) == count]
    if not fitting:
        lengths = {name: len(module) for name, module in lists}
        raise UnsupportedModelError(
            "self-check 'number of blocks' failed: "
            + teach(
                f"a module list of {wanted} blocks, as the configuration says" if wanted else "one stack of blocks",
                f"{type(base).__name__} with {lengths or 'no module list'}",
                "repflow reads decoders whose blocks are in one ModuleList",
            )
        )
    text = type(text_config(config))
    best = min(fitting, key=lambda item: (not _of_text(base, item[0], text), item[0].count("."), -_size(item[1])))
    return list(best[1])


def _of_text(base: nn.Module, name: str, text: type) -> bool:
    """Whether the innermost model around a module is the one that the text configuration describes."""
    around = _model_around(base, name)
    return around is None or isinstance(around.config, text)


def _model_around(base: nn.Module, name: str) -> PreTrainedModel | None:
    """Innermost model around a module."""
    models = [(at, module) for at, module in base.named_modules() if isinstance(module, PreTrainedModel)]
    around = [module for at, module in models if not at or name.startswith(f"{at}.")]
    return around[-1] if around else None


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def innermost(network: nn.Module, blocks: list[nn.Module]) -> nn.Module:
    """Smallest transformers model that holds the blocks; OPT's whole model skips the wrapper around its decoder."""
    holders = [m for m in network.modules() if isinstance(m, PreTrainedModel) and _holds(m, blocks[-1])]
    return min(holders, key=lambda holder: sum(1 for _ in holder.modules()))


def _holds(module: nn.Module, part: nn.Module) -> bool:
    return any(inner is part for inner in module.modules())


def token_mixers(network: PreTrainedModel) -> dict[nn.Module, str]:
    """Modules of the blocks that mix tokens, and how: attention, ssm, recurrent or conv.

    The configuration's `layer_types` says whether a block attends; names of classes alone mislead, since
    KimiLinearAttention is full attention and MiniMaxLightningAttention is not. transformers calls every layer with a
    state of fixed size `linear_attention`; whether it is a state-space model is read from the module.
    """
    blocks = find_blocks(network.base_model, network.config)
    family = type(text_config(network.config)).__name__.removesuffix("Config").removesuffix("Text")
    listed = family_of(network.config)
    mixers: dict[nn.Module, str] = {}
    for block, declared in zip(blocks, declared_types(network.config, len(blocks)), strict=True):
        kinds = {module: kind for module in block.modules() if (kind := mixing_kind(module, family))}
        kinds |= {child: listed.mixers[name] for name, child in block.named_children() if name in listed.mixers}
        if not kinds and (module := _unknown_mixer(block)) is not None:
            kinds = {module: ""}
        mixers |= {module: kind for module, claims in kinds.items() if (kind := _settled(claims, declared))}
    return mixers


def declared_types(config: Any, n_blocks: int) -> list[str | None]:
    """Type of each block as the configuration has it; None where it does not say, or gives another number."""
    types = getattr(text_config(config), "layer_types", None)
    if not isinstance(types, list | tuple) or len(types) != n_blocks:
        return [None] * n_blocks
    return list(types)


def _unknown_mixer(block: nn.Module) -> nn.Module | None:
    return next((child for name, child in block.named_children() if name in MIXER_NAMES), None)


def _settled(kind: str, declared: str | None) -> str:
    """Kind of a module by what the configuration says of its block, where that decides; "" for no mixing at all.

    >>> _settled("attention", "linear_attention"), _settled("ssm", "linear_attention"), _settled("ssm", "hybrid")
    ('recurrent', 'ssm', 'ssm')
    """
    if declared == "linear_attention":
        return kind if kind in ("ssm", "recurrent", "conv") else "recurrent"
    if declared is not None and (declared.endswith("_attention") or declared == "minimax_m3_sparse"):
        return kind if kind == "conv" else "attention"
    return kind


def layer_kind(block: nn.Module, mixers: Mapping[nn.Module, str]) -> str:
    """Kind of a block by how it mixes tokens: attention, ssm, recurrent, conv, joined by + ; else moe or mlp."""
    kinds = {mixers[module] for module in block.modules() if module in mixers}
    if "ssm" in kinds or "recurrent" in kinds:
        kinds.discard("conv")  # their short convolution is part of the mixer
    if kinds:
        return "+".join(sorted(kinds))
    return "moe" if any(MIXTURE.search(type(module).__name__) for module in block.modules()) else "mlp"


def mixing_kind(module: nn.Module, family: str = "") -> str | None:
    """Kind of token mixing that one module seems to do by itself; None for everything that acts on single tokens.

    Args:
        module: any module of a block.
        family: what the names of an architecture's classes begin with: KimiLinear says nothing of KimiLinearAttention,
            nor RobertaPreLayerNorm of RobertaPreLayerNormAttention.
    """
    if isinstance(module, Mixer):
        return module.mixing
    name = type(module).__name__
    bare = name.removeprefix(family)
    if hasattr(module, "A_log") and hasattr(module, "D"):
        return "ssm"
    if RECURRENT.search(bare if family.endswith("Linear") else name):
        return "recurrent"
    if name.endswith("ShortConv"):
        return "conv"
    if "Attention" in bare and "Layer" not in bare and "Block" not in bare:
        return "attention"
    return None


def find_sublayers(block: nn.Module, mixers: Mapping[nn.Module, str]) -> list[Sublayer]:
    """List the sublayers that add to the stream, as far as their names are known; the self-check verifies the sum."""
    # Zamba 2: the shared transformer only feeds the mixer, it adds nothing itself
    block = dict(block.named_children()).get("mamba_decoder", block)
    children = dict(block.named_children())
    names = [name for name, child in children.items() if name in SUBLAYER_NAMES or child in mixers]
    if {"fc1", "fc2"} <= children.keys():  # OPT keeps its MLP as two loose matrices
        names.append("fc2")
    return [_sublayer(block, name, children[name], mixers) for name in names]


def _sublayer(block: nn.Module, name: str, module: nn.Module, mixers: Mapping[nn.Module, str]) -> Sublayer:
    kinds = {mixers[part] for part in module.modules() if part in mixers}
    kind = next((k for k in ("ssm", "recurrent", "attention", "conv") if k in kinds), "mlp")
    scale = float(getattr(block, "residual_multiplier", 1.0))
    if kind == "ssm":
        scale *= float(getattr(block, "ssm_out_multiplier", 1.0))
    if kind == "attention":
        scale *= float(getattr(block, "attn_out_multiplier", 1.0))
    if any(hasattr(block, norm) for norm in NORM_BEHIND_MLP):  # Gemma 2, OLMo 2 and GLM-4 norm what a sublayer adds
        norms: tuple[str, ...] = NORM_BEHIND_MLP if kind == "mlp" else NORM_BEHIND_MIXER
        norms = ("post_per_layer_input_norm",) if name == "per_layer_projection" else norms
        module = next((getattr(block, norm) for norm in norms if hasattr(block, norm)), module)
    return Sublayer(kind, module, scale)


def layers_with(kind: str, sublayers: Iterable[list[Sublayer]]) -> list[int]:
    """Indices of the blocks that have a sublayer of one kind."""
    return [index for index, parts in enumerate(sublayers) if any(part.kind == kind for part in parts)]
