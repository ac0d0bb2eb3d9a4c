"""Triton's interpreter without its largest cost: it makes its language's functions its own again at every inner call.

A kernel's functions call one another, and the interpreter looks through all of `triton.language` at each such call, to
replace what the outermost call has replaced already: half of the time of the checks that use it. What a kernel computes
is not touched.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
import traceback
from collections.abc import Mapping
from typing import Any


def patch_once() -> None:
    """Let calls within a kernel find the language as its launch has left it."""
    import triton.language as tl
    from triton.runtime import interpreter

    whole, patched = interpreter._patch_lang, set[str]()

    @functools.cache
    def languages(fn: Any) -> frozenset[str]:
        return frozenset(value.__name__ for value in fn.__globals__.values() if value is tl or value is tl.core)

    def patch(fn: Any) -> Any:
        new = languages(fn) - patched
        if not new:
            return interpreter._LangPatchScope()  # nothing changed, nothing to restore
        scope = whole(fn)
        patched.update(new)
        restore = scope.restore

        def end() -> None:
            restore()
            patched.difference_update(new)

        scope.restore = end
        return scope

    interpreter._patch_lang = patch
    gc.set_threshold(100_000)  # every operation makes objects of the language, hardly any of them in circles
    gc.freeze()


def run_named(checks: Mapping[str, Any], *, frames: int) -> None:
    """Run the checks that the command line names; print of each None, or its error's last frames, as JSON."""
    import torch

    patch_once()
    outcome: dict[str, str | None] = {}
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        try:
            checks[name]()
            outcome[name] = None
        except Exception:  # noqa: BLE001  reported by the test of that name
            outcome[name] = traceback.format_exc(limit=-frames)
    json.dump(outcome, sys.stdout)
