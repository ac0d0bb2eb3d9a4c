"""Checks of what users hand to the dynamics; each message names the assumption of paper 3 that is broken."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.dynamics.step_size import Numbers

LARGEST = 1e60
"""Tokens and parameters beyond this leave float64 in the cubic right-hand side."""


def check_tokens(x0: Numbers) -> np.ndarray:
    """Initial tokens (token,) of the one-dimensional system: finite and none of them zero."""
    tokens = _floats(x0, "x0")
    if tokens.ndim != 1 or not tokens.size:
        got = f"shape {tokens.shape}"
        raise InputError(teach("x0 of shape (token,), one number per token", got, "simulate_nd takes (token, dim)"))
    zero = np.flatnonzero(tokens == 0)
    if zero.size:
        raise InputError(_zero_token(int(zero[0]), "a number"))
    return tokens


def check_tokens_nd(x0: Numbers, dim: int | None = None) -> np.ndarray:
    """Initial tokens (token, dim): finite and none of them the zero vector."""
    tokens = _floats(x0, "x0")
    if tokens.ndim != 2 or not tokens.size:
        got = f"shape {tokens.shape}"
        raise InputError(teach("x0 of shape (token, dim), one row per token", got, "simulate takes (token,)"))
    if dim is not None and tokens.shape[1] != dim:
        expected = f"x0 of shape (token, {dim}), as io_matrix is ({dim}, {dim})"
        raise InputError(teach(expected, f"shape {tokens.shape}", "one row per token, one column per channel"))
    zero = np.flatnonzero(~tokens.any(axis=1))
    if zero.size:
        raise InputError(_zero_token(int(zero[0]), "a vector"))
    return tokens


def _zero_token(index: int, kind: str) -> str:
    return teach(
        f"{kind} other than zero for every initial token (the paper assumes x_l(0) ≠ 0; zero never moves)",
        f"zero at token {index}",
        "leave that token out: it adds nothing to the others' sums but its decay 2^-a",
    )


def check_number(value: Any, name: str) -> float:
    """One finite number."""
    array = _floats(value, name)
    if array.size != 1:
        raise InputError(teach(f"{name} as one number", f"shape {array.shape}", "simulate_nd takes matrices"))
    return float(array.reshape(()))


def check_decay(a: Any, *, paper_sign: bool = False, dim: int | None = None) -> np.ndarray:
    """The decay a of A = -a I: positive, one number, or one per channel (dim,) in more dimensions.

    Returns:
        Shape () without `dim`, (dim,) with it.
    """
    values = _floats(a, "a")
    if values.size == 1:
        values = values.reshape(())
    shape = () if dim is None else (dim,)
    if values.shape not in ((), shape):
        expected = "a as one number" if dim is None else f"a as one number or of shape ({dim},), one per channel"
        raise InputError(teach(expected, f"shape {values.shape}", "the paper's A_d is -a_d times the identity"))
    if (values <= 0).any() and not paper_sign:
        raise InputError(
            teach(
                "a > 0 (the paper assumes A = -a I with a > 0, so that the past decays)",
                f"a = {float(values.min()):g}",
                "pass |a|: Figures 3 and 4 print a negative a, a slip; paper_sign=True computes with it as printed",
            )
        )
    return np.broadcast_to(values, shape).astype(np.float64)


def check_matrix(value: Any, name: str, dim: int | None = None) -> np.ndarray:
    """A square matrix (dim, dim); a number stands for (1, 1)."""
    matrix = _floats(value, name)
    if matrix.size == 1:
        matrix = matrix.reshape(1, 1)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(teach(f"{name} as a square matrix (dim, dim)", f"shape {matrix.shape}", _MATRIX[name]))
    if dim is not None and len(matrix) != dim:
        expected = f"{name} of shape ({dim}, {dim}), as io_matrix"
        raise InputError(teach(expected, f"shape {matrix.shape}", _MATRIX[name]))
    return matrix


_MATRIX = {
    "io_matrix": "pass S_Cᵀ S_B, (dim, state) times (state, dim)",
    "s_delta": "row d is S_Δ,d, the step-size vector of channel d",
}


def check_times(t: Numbers) -> np.ndarray:
    """Times: finite, from 0, strictly increasing."""
    times = np.atleast_1d(_floats(t, "t"))
    if times.ndim != 1 or not times.size:
        raise InputError(teach("t of shape (time,)", f"shape {times.shape}", "pass one increasing array of times"))
    if times[0] < 0:
        raise InputError(teach("times from 0, where x0 holds", f"t[0] = {times[0]:g}", "start at 0 or later"))
    down = np.flatnonzero(np.diff(times) <= 0)
    if down.size:
        i = int(down[0])
        got = f"t[{i}] = {times[i]:g} before t[{i + 1}] = {times[i + 1]:g}"
        raise InputError(teach("strictly increasing times", got, "sort t and drop repeats: numpy.unique(t)"))
    return times


def _floats(value: Any, name: str) -> np.ndarray:
    if hasattr(value, "detach"):  # a torch tensor, of any precision and with a gradient, without importing torch
        value = value.detach().cpu().double().numpy()
    try:
        if np.asarray(value).dtype.kind not in "biuf":  # None would become NaN, and the text "1" a number
            raise TypeError
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(teach(f"{name} as numbers", type(value).__name__, "pass real numbers of equal rows")) from None
    if not np.isfinite(array).all():
        raise InputError(teach(f"finite {name}", "NaN or infinity", "check where it comes from"))
    if name != "t" and array.size and np.abs(array).max() > LARGEST:
        got = f"{np.abs(array).max():g}"
        raise InputError(teach(f"{name} of at most {LARGEST:g}", got, "rescale the tokens: float64 ends at 1.8e308"))
    return array


def check_budget(budget: int) -> int:
    """Evaluations of the right-hand side that may be spent."""
    if budget < 1:
        raise InputError(teach("a budget of at least 1 evaluation", f"{budget}", "or leave it out"))
    return int(budget) if not math.isinf(budget) else budget
