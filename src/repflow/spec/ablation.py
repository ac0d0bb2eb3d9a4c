"""The names of ablations. No torch, so that a misspelt request is refused at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repflow.core.errors import InputError, nearest, teach

ABLATIONS = {
    "norm-affine": "scales of norms reset to identity, their biases to zero",
    "norm": "norms bypassed",
    "positions": "learned positions zero, rotary positions the identity",
    "attention-window": "attention to the last W tokens only, itself included",
    "attention-uniform": "equal attention to every allowed token",
    "block": "contribution of a block to the stream taken out (block N gives state N)",
    "branch": "contribution of a kind of branch to the stream taken out, in one block or in all",
}
SCOPES = ("block", "inner", "final")
"""Which norms: those at a block's stream, those inside its mixers, the one after the last block."""
PARTS = ("attention", "ssm", "recurrent", "conv", "mlp")
"""Kinds of branch, as in `--states branch:KIND`."""
SCOPED = ("norm-affine", "norm")
WINDOW = "attention-window"


@dataclass(frozen=True)
class Ablation:
    """One ablation.

    Attributes:
        kind: A key of `ABLATIONS`.
        scope: For norms, one of `SCOPES`; None for all of them.
        window: For `attention-window`, the tokens a query may see, itself included.
        block: For `block` and `branch`, the block's number from 1; None for the branches of all blocks.
        part: For `branch`, one of `PARTS`.
    """

    kind: str
    scope: str | None = None
    window: int | None = None
    block: int | None = None
    part: str | None = None

    def __str__(self) -> str:
        if self.kind in ("block", "branch"):
            return f"{self.kind}:{'.'.join(str(word) for word in (self.block, self.part) if word is not None)}"
        option = self.scope if self.window is None else self.window
        return self.kind if option is None else f"{self.kind}:{option}"


def parse_ablation(text: str) -> Ablation:
    """Read one ablation.

    >>> str(parse_ablation("attention-window:64")), parse_ablation("norm:final").scope
    ('attention-window:64', 'final')
    """
    kind, colon, option = text.strip().partition(":")
    if kind not in ABLATIONS:
        raise InputError(teach("an ablation", repr(text), nearest(kind, [*ABLATIONS, "attention-window:W", "block:N"])))
    if kind == WINDOW:
        if not option.isdecimal() or int(option) < 1:
            raise InputError(teach("attention-window:W with W of at least 1", repr(text), "write attention-window:64"))
        return Ablation(kind, window=int(option))
    if kind in ("block", "branch"):
        return _parse_branch(text, kind, option)
    if not colon:
        return Ablation(kind)
    if kind in SCOPED:
        if option not in SCOPES:
            raise InputError(teach(f"{kind}, or {kind}:SCOPE", repr(text), nearest(option, SCOPES)))
        return Ablation(kind, scope=option)
    raise InputError(teach(f"{kind} without an option", repr(text), f"write {kind}"))


def _parse_branch(text: str, kind: str, option: str) -> Ablation:
    """`block:N`, `branch:KIND` or `branch:N.KIND`.

    >>> str(parse_ablation("branch:3.attention")), parse_ablation("block:2").block
    ('branch:3.attention', 2)
    """
    number, _, part = option.rpartition(".") if kind == "branch" else (option, "", "")
    block: int | None = None
    if kind == "block" or number:
        if not number.isdecimal() or int(number) < 1:
            raise InputError(teach(f"{kind}:N with N from 1", repr(text), "state N is the output of block N"))
        block = int(number)
    if kind == "branch" and part not in PARTS:
        raise InputError(teach("branch:KIND or branch:N.KIND", repr(text), nearest(part, PARTS)))
    return Ablation(kind, block=block, part=part or None)


def parse_ablations(texts: str | Sequence[str]) -> tuple[Ablation, ...]:
    """Read ablations, in a fixed order, so that the same set always has the same name; commas and + join them.

    >>> [str(ablation) for ablation in parse_ablations(["positions+norm-affine"])]
    ['norm-affine', 'positions']
    """
    entries = [texts] if isinstance(texts, str) else list(texts)
    words = [word for text in entries for word in text.replace("+", ",").split(",") if word.strip()]
    ablations = [parse_ablation(word) for word in words]
    if twice := [str(a) for a in ablations if ablations.count(a) > 1]:
        raise InputError(teach("different ablations", f"{twice[0]} twice", "name each once"))
    if sum(ablation.kind == WINDOW for ablation in ablations) > 1:
        raise InputError(teach("one attention window", ", ".join(map(str, ablations)), "keep the narrowest"))
    order = {kind: index for index, kind in enumerate(ABLATIONS)}
    return tuple(sorted(ablations, key=lambda ablation: (order[ablation.kind], str(ablation))))
