"""Check types of every call at a tenth of the cost; tests/conftest.py puts it in the place of `jaxtyping.jaxtyped`.

jaxtyping binds the arguments of every call to the signature and checks them twice, which took two fifths of the suite's
time. That is needed where sizes of axes must agree. Elsewhere beartype alone checks the same types.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

_jaxtyped = jaxtyping.jaxtyped
_check = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeError))
"""An int is a float, as for mypy; a wrong type is what Python calls one."""


def checked(target: Any = None, *, typechecker: Any = None) -> Any:
    """What `jaxtyping.jaxtyped` does for its import hook: decorate a function, or the constructor of a dataclass."""
    if target is None:
        return functools.partial(checked, typechecker=typechecker)
    if inspect.isclass(target):
        init = vars(target).get("__init__")
        if hasattr(target, "__dataclass_fields__") and inspect.isfunction(init) and not hasattr(init, "__wrapped__"):
            target.__init__ = checked(init)
        return target
    return _checked(target) if inspect.isfunction(target) else _jaxtyped(target, typechecker=_check)


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that refuses values of wrong types; what only type checkers import is not known and passes."""
    written = function.__annotations__
    function.__annotations__ = {name: _type(hint, function.__globals__) for name, hint in written.items()}
    shapes = any(map(_has_shape, function.__annotations__.values()))
    wrapper = _check(function)
    if shapes:  # one context for the sizes of axes in arguments and result
        wrapper = _jaxtyped(wrapper, typechecker=None)
    function.__annotations__ = written  # as everybody else reads them
    if wrapper is not function:
        wrapper.__annotations__ = written
    return wrapper


def _type(hint: Any, names: dict[str, Any]) -> Any:
    """The type that an annotation names, or Any."""

    def probe() -> None: ...

    probe.__annotations__ = {"value": hint}
    try:
        return typing.get_type_hints(probe, names, include_extras=True)["value"]
    except (NameError, AttributeError, TypeError):  # imported for type checkers, or defined further below
        return Any


def _has_shape(hint: Any) -> bool:
    """Whether jaxtyping's arrays are part of a type."""
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_has_shape, typing.get_args(hint)))
