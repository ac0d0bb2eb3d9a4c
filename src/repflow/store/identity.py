"""When a run may resume with a model: the same weights, configuration, code and function as it was started with.

A run of several versions is still readable: an old one has no identity beside the digest of its weights, and its digest
may be of an earlier scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from repflow.core.errors import ConfigChangedError

FACTOR = 8.0
"""Standard deviations of the noise, and steps of rounding, by which projections of equal functions may differ."""
ABSENT = "(absent)"

Earlier = Mapping[str, Callable[[], str]]
"""Digests by an earlier scheme, by their key; computed only where a stored run needs one."""


def refusal(key: str, before: str, after: str, folder: Path) -> ConfigChangedError:
    """Error of a run that was started with another model."""
    return ConfigChangedError(
        f"model key {key!r}: stored {before}, now {after}; the run was started with another model: "
        f"pass the same one, use another --name or delete the folder {folder}"
    )


def check_models(stored: Mapping[str, Any], current: Mapping[str, Any], folder: Path) -> list[str]:
    """Compare the identities of a run's models, by their label; return what a reader should know, as sentences.

    Raises:
        ConfigChangedError: Names the first key that differs.
    """
    if current and not stored:
        return ["identity: stored by a version that kept none; weights were compared, configuration and code were not"]
    notes: list[str] = []
    for label in [label for label in current if label in stored]:
        prefix = "" if label == "model" else f"{label}."
        notes += _check_model(stored[label], current[label], prefix, folder)
    return notes


def _check_model(stored: Mapping[str, Any], current: Mapping[str, Any], prefix: str, folder: Path) -> list[str]:
    notes = []
    same_version = stored.get("transformers") == current.get("transformers")
    for key, before, after in differences(stored.get("config", {}), current.get("config", {})):
        # Another version writes out other defaults; a key that both know must agree.
        if ABSENT in (before, after) and not same_version:
            notes.append(f"{prefix}config.{key}: stored {before}, now {after}")
            continue
        raise refusal(f"{prefix}config.{key}", before, after, folder)
    for name in ("drawn_on", "code"):
        if name in stored and name in current:
            for key, before, after in differences({name: stored[name]}, {name: current[name]}):
                raise refusal(prefix + key, before, after, folder)
    if "function" in stored and "function" in current:
        for key, before, after in function_differences(stored["function"], current["function"]):
            raise refusal(prefix + key, before, after, folder)
    return notes


def function_differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Parts whose fingerprints (`repflow.models.identity.fingerprint`) are further apart than rounding explains.

    >>> one = {"step": 0.001, "parts": [[1.0, 0.002, 0.5]]}
    >>> function_differences(one, one | {"parts": [[1.0, 0.002, 0.51]]})
    []
    >>> function_differences(one, one | {"parts": [[1.0, 0.002, 0.61]]})
    [('function.embedding', '0.5', '0.61 (rounding explains 0.024)')]
    """
    a, b = stored["parts"], current["parts"]
    if len(a) != len(b):
        return [("function.parts", str(len(a)), str(len(b)))]
    names = ["embedding", *(f"block {number}" for number in range(1, len(a) - 1)), "logits"]
    step = max(stored["step"], current["step"])
    changes = []
    for name, (size, noise, *before), (size_now, noise_now, *after) in zip(names, a, b, strict=False):
        for old, new in zip(before, after, strict=True):
            known = [size, noise, old, size_now, noise_now, new]
            if any(value is None for value in known):
                if (old is None) != (new is None):
                    changes.append((f"function.{name}", str(old), str(new)))
                continue
            limit = FACTOR * (max(noise, noise_now) + step * max(size, size_now))
            if abs(old - new) > limit:
                changes.append((f"function.{name}", f"{old:g}", f"{new:g} (rounding explains {limit:.2g})"))
    return changes


def same_digests(stored: Mapping[str, Any], current: Mapping[str, Any], earlier: Earlier) -> tuple[dict, list[str]]:
    """The requested digests, by the schemes of the stored ones where they can be computed; and what was done."""
    digests, notes = dict(current), []
    for key, digest in earlier.items():
        if key in stored and _scheme(stored[key]) != _scheme(current[key]):
            digests[key] = digest()
            if digests[key] == stored[key]:
                notes.append(f"digests.{key}: stored by an earlier scheme (SHA-256 of all bytes), by which it is equal")
    return digests, notes


def _scheme(digest: Any) -> str:
    return str(digest).partition(":")[2]


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Walk two JSON values and give (key path, old value, new value) where they differ.

    >>> list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    [('a.b', '1', '3')]
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{path}.{key}" if path else key
            if key not in old or key not in new:
                yield inner, _show(old[key]) if key in old else ABSENT, _show(new[key]) if key in new else ABSENT
            else:
                yield from differences(old[key], new[key], inner)
    elif type(old) is not type(new) or old != new:  # JSON's true is not its 1
        yield path, _show(old), _show(new)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
