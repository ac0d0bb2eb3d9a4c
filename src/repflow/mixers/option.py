"""Checks of a mixer's options: a wrong one is refused with what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

from repflow.core.errors import InputError, nearest, teach

_KINDS: dict[str, tuple[type, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "a word"),
    "None": (type(None), "none"),
}


def of_kind(name: str, value: object, annotation: str) -> None:
    """Refuse a value of another kind than its annotation says: a word "no" would be taken for true.

    >>> of_kind("gate", "no", "bool")
    Traceback (most recent call last):
    repflow.core.errors.InputError: expected gate to be true or false; got 'no'; see the options of the class
    """
    kinds = [kind.strip() for kind in annotation.split("|")]
    if not all(kind in _KINDS for kind in kinds):  # a sequence or mapping, which its owner checks
        return
    fits = any(isinstance(value, _KINDS[kind][0]) for kind in kinds)
    if not fits or (isinstance(value, bool) and "bool" not in kinds):
        expected = " or ".join(_KINDS[kind][1] for kind in kinds)
        raise InputError(teach(f"{name} to be {expected}", repr(value), "see the options of the class"))


def at_least(least: int, **options: int) -> None:
    """Refuse sizes below a least value.

    >>> at_least(1, state=0)
    Traceback (most recent call last):
    repflow.core.errors.InputError: expected state of at least 1; got 0; give a larger state
    """
    for name, value in options.items():
        if value < least:
            raise InputError(teach(f"{name} of at least {least}", str(value), f"give a larger {name}"))


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a word that an option does not know.

    >>> one_of("polarize", "ones", ("one", "zero", "both"))
    Traceback (most recent call last):
    repflow.core.errors.InputError: expected polarize among one, zero, both; got 'ones'; did you mean one?
    """
    if value not in known:
        raise InputError(teach(f"{name} among {', '.join(known)}", repr(value), nearest(str(value), known)))


def divides(whole: int, parts: int, name: str, into: str) -> int:
    """Number of `parts` in `whole`, refused where it is not a whole one.

    >>> divides(64, 16, "inner width", "head_dim")
    4
    """
    if parts < 1 or whole % parts:
        expected = f"{into} that divides the {name} of {whole}"
        raise InputError(teach(expected, str(parts), f"change {into} or the width"))
    return whole // parts
