"""Words of architectures: which mixers a stack has, in what frame, and in which order it reads its tokens. No torch.

    mamba, mamba/32, mamba2, h3, attention, gla ...   a mixer, with a number of states where it has them
    transformer                                       attention with feed-forward layers
    mamba2.mamba2.attention                           mixers in turn, over and over, layer by layer

Behind it stand parts, each added by + or taken away by -:

| part | what |
|---|---|
| +positive, +negative, +mixed, +complex | eigenvalues of S_Cᵀ S_B in Mamba (paper 3; `repflow.mixers.eigen`) |
| +shift | what paper 3's code adds to their sizes |
| +scaled | S_Cᵀ S_B has a spectral norm that all rows share at the start, free maps too |
| +chunks, +prefix | tokens sorted by importance, causal forms (`repflow.mixers.reorder`) |
| +leaky | whole sequences sorted: paper 3's form, in which a token of a language model reads its future |
| +identity, +random | in place of the sort: tokens as they come, or in an order that is drawn once |
| +hard, +descending | a sort in place of SoftSort; most important first |
| +gates, +restore, +all | gates moved with their tokens; outputs put back; in all blocks, not in the first alone |
| +shared | all layers have the same weights |
| +mlp, -mlp | feed-forward layers |
| -norm, -norm+final | no norms at all; none but the last |
| -conv | no short convolution |

A row such as `mamba+positive+scaled` or `mamba-conv+leaky` is one architecture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repflow.core.errors import InputError, nearest, teach

MODELS = {
    **{"mamba": "s6", "mamba2": "ssd", "attention": "softmax_attention", "transformer": "softmax_attention"},
    **{name: name for name in ("h3", "s4d", "gla", "retention", "linear_attention", "rwkv4", "rwkv5", "rg_lru")},
    **{name: name for name in ("delta_net", "gated_delta_net", "kda", "hgrn2", "min_gru", "min_lstm", "mlstm")},
}
"""Words of mixers and their families."""
STATES = ("s6", "ssd", "h3", "s4d")
"""Families with a number of states."""
STATE = 16
"""States of a mixer that names none."""
CONVOLUTIONS = ("s6", "ssd", "h3")
EIGENVALUES = ("positive", "negative", "mixed", "complex")
FORMS = {"chunks": "chunks", "prefix": "prefix", "leaky": "whole"}
CONTROLS = ("identity", "random")
OPTIONS = {"hard": "hard", "descending": "descending", "gates": "gate", "restore": "restore"}
ADDED = (
    *(*EIGENVALUES, "shift", "scaled", *FORMS, *CONTROLS, *OPTIONS, "all"),
    *("shared", "mlp", "final"),
)
TAKEN = ("norm", "conv", "mlp")
ROW = re.compile(r"(?P<mixers>[a-z0-9_]+(?:/[1-9]\d*)?(?:\.[a-z0-9_]+(?:/[1-9]\d*)?)*)(?P<parts>(?:[+-][a-z]+)*)")


@dataclass(frozen=True)
class Numbers:
    """What the parts of a row leave open.

    Attributes:
        heads: of attention.
        chunk: tokens of a chunk.
        temperature: of SoftSort.
        power: of SoftSort.
        shift: what `+shift` adds.
        scale: spectral norm of `+scaled`.
    """

    heads: int = 4
    chunk: int = 16
    temperature: float = 1.0
    power: float = 1.0
    shift: float = 0.7
    scale: float = 0.5


@dataclass(frozen=True)
class Architecture:
    """A row, read.

    Attributes:
        word: as it was typed.
        mixers: words of the mixers in turn, each with its number of states or None.
        parts: what it has.
        without: what it lacks.
    """

    word: str
    mixers: tuple[tuple[str, int | None], ...]
    parts: frozenset[str]
    without: frozenset[str]

    @property
    def families(self) -> tuple[str, ...]:
        """Of its mixers."""
        return tuple(MODELS[name] for name, _ in self.mixers)

    @property
    def leaky(self) -> bool:
        """Whether tokens of a language model read later ones."""
        return "leaky" in self.parts and "identity" not in self.parts

    @property
    def reordered(self) -> bool:
        """Whether tokens are read in another order, or in chunks as if they were."""
        return bool(self.parts & FORMS.keys())

    def order(self, numbers: Numbers, *, language: bool = True) -> dict[str, Any] | None:
        """Options of `StackConfig.reorder`; None for tokens as they come."""
        form = next((name for name in FORMS if name in self.parts), None)
        if form is None:
            return None
        order: dict[str, Any] = {"form": FORMS[form], "blocks": "all" if "all" in self.parts else "first"}
        order |= {"chunk": numbers.chunk} if form == "chunks" else {}
        control = next((name for name in CONTROLS if name in self.parts), None)
        order |= {"order": control} if control else {"temperature": numbers.temperature, "power": numbers.power}
        order |= {option: True for part, option in OPTIONS.items() if part in self.parts}
        return order | ({"leaky": True} if self.leaky and language else {})

    def frame(self, layers: int, numbers: Numbers = Numbers(), *, language: bool = True) -> dict[str, Any]:  # noqa: B008
        """Options of StackConfig but for width and vocabulary."""
        entries = [self._mixer(name, state, numbers) for name, state in self.mixers]
        frame: dict[str, Any] = {"mixers": [entries[layer % len(entries)] for layer in range(layers)]}
        mlps = [_has_mlp(name, self) for name, _ in self.mixers]
        if any(mlps):
            frame["mlp"] = ["gelu" if mlps[layer % len(mlps)] else None for layer in range(layers)]
        if "norm" in self.without:
            frame |= {"norm": "none", "final_norm": "final" in self.parts}
        if "shared" in self.parts:
            frame["share"] = True
        order = self.order(numbers, language=language)
        return frame | ({} if order is None else {"reorder": order})

    def _mixer(self, name: str, state: int | None, numbers: Numbers) -> dict[str, Any]:
        family = MODELS[name]
        mixer: dict[str, Any] = {"name": family}
        if family in STATES:
            mixer["state"] = STATE if state is None else state
        if family == "softmax_attention":
            mixer["heads"] = numbers.heads
        if family == "s6":
            kind = next((kind for kind in EIGENVALUES if kind in self.parts), None)
            mixer |= {} if kind is None else {"eigenvalues": kind}
            mixer |= {"eigenvalue_shift": numbers.shift} if "shift" in self.parts else {}
            mixer |= {"eigenvalue_norm": numbers.scale} if "scaled" in self.parts else {}
        if "conv" in self.without and family in CONVOLUTIONS:
            mixer["conv"] = 0
        return mixer


def _has_mlp(name: str, row: Architecture) -> bool:
    return "mlp" in row.parts or (name == "transformer" and "mlp" not in row.without)


def parse_architecture(word: str) -> Architecture:
    """The architecture that a row names.

    >>> row = parse_architecture("mamba/8+negative+scaled-conv")
    >>> row.frame(1)["mixers"]
    [{'name': 's6', 'state': 8, 'eigenvalues': 'negative', 'eigenvalue_norm': 0.5, 'conv': 0}]
    >>> parse_architecture("mamba+leaky+hard").order(Numbers())["leaky"], parse_architecture("transformer").leaky
    (True, False)
    """
    match = ROW.fullmatch(word)
    if match is None:
        expected = "a row such as mamba, mamba/32+positive, mamba2.attention or transformer+chunks"
        raise InputError(teach(expected, repr(word), "write parts behind the mixers, each with + or -"))
    mixers = tuple(_mixer(part) for part in match["mixers"].split("."))
    added: set[str] = set()
    taken: set[str] = set()
    for sign, part in re.findall(r"([+-])([a-z]+)", match["parts"]):
        known, own = (ADDED, added) if sign == "+" else (TAKEN, taken)
        if part not in known:
            raise InputError(teach(f"parts with {sign}: {', '.join(known)}", repr(part), nearest(part, known)))
        if part in own:
            raise InputError(teach("each part once", repr(word), f"leave one {sign}{part} out"))
        own.add(part)
    row = Architecture(word, mixers, frozenset(added), frozenset(taken))
    _check(row)
    return row


def _mixer(word: str) -> tuple[str, int | None]:
    name, _, state = word.partition("/")
    if name not in MODELS:
        raise InputError(teach(f"a mixer among {', '.join(MODELS)}", repr(name), nearest(name, MODELS)))
    if state and MODELS[name] not in STATES:
        raise InputError(teach(f"{name} without a number of states", repr(word), f"write {name}"))
    return name, int(state) if state else None


def _check(row: Architecture) -> None:
    """Refuse parts that do not fit one another."""
    families, parts, mixers = set(row.families), row.parts, row.mixers
    kinds, forms, controls = (parts & set(names) for names in (EIGENVALUES, FORMS, CONTROLS))
    sorting = parts & {"hard", "descending"}
    problems: Mapping[str, bool] = {
        "one kind of eigenvalues": len(kinds) > 1,
        "one form of reordering": len(forms) > 1,
        "one order": len(controls) > 1,
        "eigenvalues and their scale in mamba alone": bool(kinds | parts & {"shift", "scaled"}) and families != {"s6"},
        "eigenvalues with +shift": "shift" in parts and not kinds,
        "chunks, prefix or leaky with an order": bool(parts & {*CONTROLS, *OPTIONS, "all"}) and not forms,
        "a sort with +hard or +descending": bool(sorting) and bool(controls),
        "prefix or leaky with +gates or +restore": bool(parts & {"gates", "restore"}) and "chunks" in forms,
        "-norm with +final": "final" in parts and "norm" not in row.without,
        "a convolution where -conv takes it away": "conv" in row.without and not families & set(CONVOLUTIONS),
        "feed-forward layers where -mlp takes them away": "mlp" in row.without and ("transformer", None) not in mixers,
    }
    wrong = next((expected for expected, broken in problems.items() if broken), None)
    if wrong is not None:
        raise InputError(teach(wrong, repr(row.word), "see repflow architecture --help"))
