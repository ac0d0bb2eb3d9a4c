"""Words of architectures: which mixers a stack has, in what frame, and in which order it reads its tokens. No torch.

    mamba, mamba/32, mamba2, h3, attention, gla ...   a mixer, with a number of states where it has them
    transformer                                       attention with feed-forward layers
    mamba2.mamba2.attention, 2xmamba2.attention       mixers in turn, over and over, layer by layer
    10xmamba2..3xattention                            a stretch of layers, then another: 10 and 3 of 13 parts

A stretch takes of the depth what its mixers are among all, so `mamba2..attention` changes over in the middle and
`6xmamba2..mamba2.attention` alternates in its last quarter. Behind it stand parts, each added by + or taken away by -:

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
| -norm, -norm+final | no norms in blocks and behind them; none but the last |
| +embednorm | a norm behind the embedding, whose vectors are short beside what blocks add at the start |
| -conv | no short convolution |
| +one, +zero, +poles | states of Mamba or Mamba-2 with decay 1, 0, both (paper 2; `repflow.mixers.polarize`) |
| +skip@0.9, +learned | λ-skip: h ← λ h + mixer; each block learns its own λ |
| +neutreno@0.5 | pulls what a block reads back to what the first one read |
| +frozen | gains of norms stay at 1 |
| +diversity@0.1, +excess, +smooth, +stable | penalty with its weight while training (`repflow.training.losses`) |
| +supervision@0.3 | heads at a quarter, half and three quarters of depth are trained too |
| +contract@1 | decays above a bound cost; in attention alone the growth of tokens in a block |
| +held | the number behind @ is not a weight but the value that each penalty is held at |

A row such as `mamba+positive+scaled` or `mamba-conv+leaky` is one architecture. Tokens of equal score share their
ranks; to refuse them is an option of `StackConfig.reorder` (`ties`), not of a row.
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
GATED = ("s6",)
"""Families whose gates can be moved with their tokens."""
EIGENVALUES = ("positive", "negative", "mixed", "complex")
FORMS = {"chunks": "chunks", "prefix": "prefix", "leaky": "whole"}
CONTROLS = ("identity", "random")
OPTIONS = {"hard": "hard", "descending": "descending", "gates": "gate", "restore": "restore"}
PENALTIES = {"diversity": 0.1, "excess": 0.1, "smooth": 0.1, "stable": 0.1, "supervision": 0.3, "contract": 1.0}
"""Terms beside the loss, and the weight of each that names none."""
STREAM = {"skip": 0.9, "neutreno": 0.5}
"""What changes the residual stream, and the usual λ."""
POLES = {"one": "one", "zero": "zero", "poles": "both"}
POLARIZED = ("s6", "ssd")
REMEDIES = (*PENALTIES, *STREAM, *POLES, "learned", "held", "frozen")
ADDED = (
    *(*EIGENVALUES, "shift", "scaled", *FORMS, *CONTROLS, *OPTIONS, "all"),
    *("shared", "mlp", "final", "embednorm"),
    *REMEDIES,
)
TAKEN = ("norm", "conv", "mlp")
_MIXER = r"(?:[1-9]\d*x)?[a-z][a-z0-9_]*(?:/[1-9]\d*)?"
_PART = r"[+-][a-z]+(?:@(?:\d+\.?\d*|\.\d+))?"
ROW = re.compile(rf"(?P<mixers>{_MIXER}(?:\.\.?{_MIXER})*)(?P<parts>(?:{_PART})*)")


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
        head_dim: channels of a head of Mamba-2; None for its own.
    """

    heads: int = 4
    chunk: int = 16
    temperature: float = 1.0
    power: float = 1.0
    shift: float = 0.7
    scale: float = 0.5
    head_dim: int | None = None


@dataclass(frozen=True)
class Architecture:
    """A row, read.

    Attributes:
        word: as it was typed.
        mixers: words of the mixers in turn, each with its number of states or None.
        parts: what it has.
        without: what it lacks.
        stretches: how many of the mixers each stretch of layers has in turn.
        strengths: numbers behind its parts, by part.
    """

    word: str
    mixers: tuple[tuple[str, int | None], ...]
    parts: frozenset[str]
    without: frozenset[str]
    stretches: tuple[int, ...] = ()
    strengths: tuple[tuple[str, float], ...] = ()

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

    def laid(self, layers: int) -> list[tuple[str, int | None]]:
        """The mixer of every layer.

        >>> [name for name, _ in parse_architecture("2xmamba2..attention").laid(6)]
        ['mamba2', 'mamba2', 'mamba2', 'mamba2', 'attention', 'attention']

        Raises:
            InputError: a stretch gets no layer.
        """
        placed: list[tuple[str, int | None]] = []
        first, whole = 0, len(self.mixers)
        for size in self.stretches or (whole,):
            turn = self.mixers[first : first + size]
            first += size
            end = (2 * layers * first + whole) // (2 * whole)  # to the nearest layer, halves up
            if end == len(placed):
                expected = f"layers for every stretch of {self.word}"
                raise InputError(teach(expected, f"{layers}", f"train at least {whole}, or another order"))
            placed += [turn[layer % size] for layer in range(end - len(placed))]
        return placed

    def attention_at(self, layers: int) -> list[int]:
        """Layers with attention, from 0."""
        return [at for at, (name, _) in enumerate(self.laid(layers)) if MODELS[name] == "softmax_attention"]

    def strength(self, part: str) -> float | None:
        """Number behind a part, or its usual one; None where the row lacks the part.

        >>> row = parse_architecture("mamba2+diversity+skip@0.8")
        >>> row.strength("diversity"), row.strength("skip"), row.strength("neutreno")
        (0.1, 0.8, None)
        """
        if part not in self.parts:
            return None
        return dict(self.strengths).get(part, {**PENALTIES, **STREAM}.get(part))

    @property
    def penalties(self) -> tuple[str, ...]:
        """Terms beside its loss."""
        return tuple(name for name in PENALTIES if name in self.parts)

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
        placed = self.laid(layers)
        frame: dict[str, Any] = {"mixers": [self._mixer(name, state, numbers) for name, state in placed]}
        mlps = [_has_mlp(name, self) for name, _ in placed]
        if any(mlps):
            frame["mlp"] = ["gelu" if has else None for has in mlps]
        frame |= {name: self.strength(name) for name in STREAM if name in self.parts}
        frame |= {"skip_learned": True} if "learned" in self.parts else {}
        if "norm" in self.without:
            frame |= {"norm": "none", "final_norm": "final" in self.parts}
        if "embednorm" in self.parts:
            frame["embedding_norm"] = True
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
        if family == "ssd" and numbers.head_dim is not None:
            mixer["head_dim"] = numbers.head_dim
        if family == "s6":
            kind = next((kind for kind in EIGENVALUES if kind in self.parts), None)
            mixer |= {} if kind is None else {"eigenvalues": kind}
            mixer |= {"eigenvalue_shift": numbers.shift} if "shift" in self.parts else {}
            mixer |= {"eigenvalue_norm": numbers.scale} if "scaled" in self.parts else {}
        pole = next((option for part, option in POLES.items() if part in self.parts), None)
        if pole is not None and family in POLARIZED:
            mixer["polarize"] = pole
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
    >>> parse_architecture("transformer+embednorm").frame(1)["embedding_norm"]
    True
    """
    match = ROW.fullmatch(word)
    if match is None:
        expected = "a row such as mamba, mamba/32+positive, 3xmamba2.attention or transformer+diversity@0.1"
        raise InputError(teach(expected, repr(word), "write parts behind the mixers, each with + or -"))
    turns = [[one for part in turn.split(".") for one in _mixers(part)] for turn in match["mixers"].split("..")]
    added: set[str] = set()
    taken: set[str] = set()
    strengths: dict[str, float] = {}
    for sign, part, number in re.findall(r"([+-])([a-z]+)(?:@([0-9.]+))?", match["parts"]):
        known, own = (ADDED, added) if sign == "+" else (TAKEN, taken)
        if part not in known:
            raise InputError(teach(f"parts with {sign}: {', '.join(known)}", repr(part), nearest(part, known)))
        if part in own:
            raise InputError(teach("each part once", repr(word), f"leave one {sign}{part} out"))
        own.add(part)
        if number and (part not in {**PENALTIES, **STREAM} or sign == "-"):
            expected = f"@ behind {', '.join({**PENALTIES, **STREAM})}"
            raise InputError(teach(expected, repr(word), f"leave @{number} out"))
        strengths |= {part: float(number)} if number else {}
    mixers, sizes = tuple(one for turn in turns for one in turn), tuple(len(turn) for turn in turns)
    strong = tuple(sorted(strengths.items()))
    row = Architecture(word, mixers, frozenset(added), frozenset(taken), sizes, strong)
    _check(row)
    return row


def _mixers(word: str) -> list[tuple[str, int | None]]:
    """A mixer as often as the number in front of it says."""
    count, mixer = re.fullmatch(r"(?:(\d+)x)?(.+)", word).groups()  # type: ignore[union-attr]
    return [_mixer(mixer)] * int(count or 1)


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
    sorting_families = families if "all" in parts else set(row.families[:1])  # by default the first block sorts
    problems: Mapping[str, bool] = {
        "one kind of eigenvalues": len(kinds) > 1,
        "one form of reordering": len(forms) > 1,
        "one order": len(controls) > 1,
        "eigenvalues and their scale in mamba alone": bool(kinds | parts & {"shift", "scaled"}) and families != {"s6"},
        "eigenvalues with +shift": "shift" in parts and not kinds,
        "chunks, prefix or leaky with an order": bool(parts & {*CONTROLS, *OPTIONS, "all"}) and not forms,
        "a sort with +hard or +descending": bool(sorting) and bool(controls),
        "prefix or leaky with +gates or +restore": bool(parts & {"gates", "restore"}) and "chunks" in forms,
        "a gate to move with +gates, which mamba has": "gates" in parts and not sorting_families <= set(GATED),
        "-norm with +final": "final" in parts and "norm" not in row.without,
        "a convolution where -conv takes it away": "conv" in row.without and not families & set(CONVOLUTIONS),
        "one kind of poles": len(parts & set(POLES)) > 1,
        "poles in mamba or mamba2": bool(parts & set(POLES)) and not families & set(POLARIZED),
        "more states than the poles take": any(
            state is not None and state <= (2 if "poles" in parts else 1) for _, state in mixers
        )
        and bool(parts & set(POLES)),
        "+skip with +learned": "learned" in parts and "skip" not in parts,
        "a penalty with +held": "held" in parts and not row.penalties,
        "norms where +frozen keeps their gains": "frozen" in parts and "norm" in row.without,
        "a value above 0 to hold": "held" in parts and any(row.strength(name) == 0 for name in row.penalties),
        "feed-forward layers where -mlp takes them away": "mlp" in row.without and ("transformer", None) not in mixers,
    }
    wrong = next((expected for expected, broken in problems.items() if broken), None)
    if wrong is not None:
        raise InputError(teach(wrong, repr(row.word), "python -m pydoc repflow.spec.architecture has all parts"))
