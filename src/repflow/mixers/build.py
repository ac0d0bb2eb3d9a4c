"""build: a mixer by the name of its family."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

from repflow.core.errors import InputError, nearest, teach
from repflow.mixers.base import Mixer
from repflow.mixers.option import of_kind

HERE = "repflow.mixers"
_CLASSES = {
    "softmax_attention": "SoftmaxAttention",
    "linear_attention": "LinearAttention",
    "retention": "Retention",
    "gla": "GLA",
    "s4d": "S4D",
    "h3": "H3",
    "s6": "S6",
    "ssd": "SSD",
    "rwkv4": "RWKV4",
    "rwkv5": "RWKV5",
    "rg_lru": "RGLRU",
    "delta_net": "delta.DeltaNet",
    "gated_delta_net": "delta.GatedDeltaNet",
    "kda": "delta.KDA",
    "hgrn2": "HGRN2",
    "min_gru": "MinGRU",
    "min_lstm": "MinLSTM",
    "mlstm": "MLSTM",
}
"""Family, which is also its file, and its class, behind the folder the file is in."""

_ALIASES = {
    "attention": "softmax_attention",
    "transformer": "softmax_attention",
    "softmax": "softmax_attention",
    "retnet": "retention",
    "gated_linear_attention": "gla",
    "mamba": "s6",
    "mamba1": "s6",
    "mamba2": "ssd",
    "rwkv": "rwkv4",
    "rwkv52": "rwkv5",
    "griffin": "rg_lru",
    "hawk": "rg_lru",
    "recurrentgemma": "rg_lru",
    "delta_rule": "delta_net",
    "gdn": "gated_delta_net",
    "gated_delta_rule": "gated_delta_net",
    "qwen3_next": "gated_delta_net",
    "kimi_delta_attention": "kda",
    "kimi_linear": "kda",
    "xlstm": "mlstm",
}


def families() -> tuple[str, ...]:
    """Names of all families.

    >>> families()[:3]
    ('softmax_attention', 'linear_attention', 'retention')
    """
    return tuple(_CLASSES)


def family_name(name: str) -> str:
    """Family meant by a name, whatever its case and punctuation, by its own name or a model's.

    >>> family_name("RG-LRU"), family_name("Mamba-2"), family_name("rwkv-5.2")
    ('rg_lru', 'ssd', 'rwkv5')
    """
    known = {_letters(own): own for own in _CLASSES} | {_letters(alias): own for alias, own in _ALIASES.items()}
    family = known.get(_letters(name))
    if family is None:
        names = [*_CLASSES, *_ALIASES]
        wanted = re.sub(r"[\W_]+", "_", name.lower()).strip("_")
        raise InputError(teach(f"a mixer among {', '.join(_CLASSES)}", repr(name), nearest(wanted, names)))
    return family


def build(name: str, width: int, **options: Any) -> Mixer:
    """Make a mixer (batch, token, width) → same.

    Args:
        name: Family (`families()`), or a model that uses it: mamba, mamba2, retnet, griffin, attention, ...
        width: Channels in and out.
        options: Those of the family's class, for example `heads`, `state`, `norm`, `conv`.

    >>> mixer = build("linear attention", 8, heads=2, normalise=False)
    >>> mixer.family, mixer.state_size
    ('linear_attention', 32)
    """
    family = family_name(name)
    of_kind("width", width, "int")
    known = mixer_options(family)
    for option, value in options.items():
        if option not in known:
            raise InputError(teach(f"an option of {family} ({', '.join(known)})", option, nearest(option, known)))
        of_kind(f"{option} of {family}", value, str(known[option].annotation))
    return _class(family)(width, **options)


def mixer_options(name: str) -> dict[str, inspect.Parameter]:
    """Options that a family takes beside its width.

    >>> list(mixer_options("linear attention"))[:2]
    ['heads', 'state']
    """
    parameters = inspect.signature(_class(family_name(name))).parameters
    return {option: parameter for option, parameter in parameters.items() if option != "width"}


def _class(family: str) -> type[Mixer]:
    folder, _, name = _CLASSES[family].rpartition(".")
    kind: type[Mixer] = getattr(importlib.import_module(".".join(filter(None, (HERE, folder, family)))), name)
    return kind


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())
