"""Arguments of the closed forms: numbers, arrays and words, checked once and converted to float64.

Lists, NumPy arrays and torch tensors are taken alike. Axis sizes are learnt from the first array that names an axis,
so that a mismatch is reported with the name of the axis and of the array that set it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from repflow.core.errors import InputError, nearest, teach

ArrayLike: TypeAlias = Any
"""Nested list, NumPy array or torch tensor of numbers."""
Number: TypeAlias = Any
"""A number: int, float, or anything that `float` takes."""

FORMS = ("corrected", "printed")


def numbers(value: ArrayLike, name: str, *, allow_complex: bool = False) -> np.ndarray:
    """Convert a list, array or tensor to float64 (complex128 where allowed and needed); NaN and Inf are refused.

    >>> numbers([1, 2], "b")
    array([1., 2.])
    """
    if hasattr(value, "detach"):  # a torch tensor, without importing torch for it
        value = value.detach().cpu()
        value = (value if value.is_complex() else value.double()).numpy()
    expected = "numbers" if allow_complex else "real numbers"
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biufc":  # None would become NaN, and the text "1" a number
            raise TypeError("None" if value is None else f"{type(value).__name__} with other things in it")
        kept_complex = allow_complex and np.iscomplexobj(array)
        if np.iscomplexobj(array) and not allow_complex:
            raise TypeError("complex numbers")
        array = array.astype(np.complex128 if kept_complex else np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(teach(f"{name} made of {expected}", f"{error}", "pass a list, array or tensor")) from None
    if not np.isfinite(array).all():
        raise InputError(teach(f"finite {name}", "NaN or infinity in it", "look at the weights it was made from"))
    return array


class Shapes:
    """Axis sizes of one call: the first array with an axis sets its size, the others must agree.

    >>> shapes = Shapes()
    >>> shapes.take([[1.0, 2.0, 3.0]], "W1", "d_ff d").shape, shapes["d"]
    ((1, 3), 3)
    """

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, str]] = {}

    def __getitem__(self, axis: str) -> int:
        return self._sizes[axis][0]

    def take(self, value: ArrayLike, name: str, *layouts: str, allow_complex: bool = False) -> np.ndarray:
        """Check an array against one of its layouts, each a string of axis names, and learn the sizes."""
        array = numbers(value, name, allow_complex=allow_complex)
        fitting = [layout.split() for layout in layouts if len(layout.split()) == array.ndim]
        wanted = " or ".join(f"({', '.join(layout.split())})" for layout in layouts)
        if not fitting or 0 in array.shape:
            raise InputError(teach(f"{name} of shape {wanted}", f"shape {array.shape}", "see the function's docstring"))
        for axis, size in zip(fitting[0], array.shape, strict=True):
            known, source = self._sizes.setdefault(axis, (size, name))
            if known != size:
                expected = f"{name} of shape {wanted} with {axis} = {known}, as {source} has it"
                remedy = "weights are in the column convention: a matrix acts on a column vector from the left"
                raise InputError(teach(expected, f"shape {array.shape}", remedy))
        return array


def scalar(value: Number, name: str) -> float:
    """A finite real number."""
    array = numbers(value, name)
    if array.size != 1:
        raise InputError(teach(f"one number for {name}", f"shape {array.shape}", "pass a single value"))
    return float(array.reshape(-1)[0])


def positive(value: Number, name: str, why: str) -> float:
    """A number > 0; `why` names the assumption that asks for it."""
    number = scalar(value, name)
    if number <= 0:
        raise InputError(teach(f"{name} > 0 ({why})", f"{number:g}", f"pass a positive {name}"))
    return number


def variance(value: Number, name: str = "sigma2") -> float:
    """σ² of Assumption 1, the Gaussian input."""
    return positive(value, name, "Assumption 1: tokens are Gaussian with covariance σ² I")


def not_negative(value: Number, name: str, why: str) -> float:
    """A number ≥ 0; `why` names the assumption that asks for it."""
    number = scalar(value, name)
    if number < 0:
        raise InputError(teach(f"{name} ≥ 0 ({why})", f"{number:g}", f"pass {name} as it is bounded, not its negative"))
    return number


def count(value: Number, name: str) -> int:
    """A whole number ≥ 1."""
    number = scalar(value, name)
    if number < 1 or number != math.floor(number):
        raise InputError(teach(f"{name} as a whole number ≥ 1", f"{number:g}", f"pass the number of {name}"))
    return int(number)


def word(value: Any, name: str, known: Sequence[str]) -> str:
    """One of some words."""
    if value not in known:
        words = ", ".join(repr(entry) for entry in known)
        remedy = nearest(value, known) if isinstance(value, str) else "pass one of them"
        raise InputError(teach(f"{name} to be one of {words}", repr(value), remedy))
    return str(value)


def is_printed(form: Any) -> bool:
    """Whether the paper's own formula is wanted; unknown words are refused."""
    return word(form, "form", FORMS) == "printed"
