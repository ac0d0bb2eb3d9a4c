"""Names of runs and shards: one safe path component, on every file system."""

from __future__ import annotations

import hashlib
import re

from repflow.core.errors import InputError, teach

MAX_BYTES = 200
FORBIDDEN = frozenset('<>:"/\\|?*')
# Windows opens a device instead of a file for these, whatever the extension.
DEVICES = frozenset(["con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(10))])


def check_name(name: str, what: str = "run name") -> str:
    """Return the name if it is one safe path component.

    Args:
        name: Candidate name.
        what: What the name is for, as the error message calls it.

    Raises:
        InputError: The name could leave its folder, pose as an option or not exist on some file system.

    >>> check_name("gpt2-512")
    'gpt2-512'
    """
    fault = _fault(name)
    if fault:
        raise InputError(
            teach(f"a {what} that is one safe path component", f"{name!r} ({fault})", f"try {safe_name(name)!r}")
        )
    return name


def safe_name(text: str) -> str:
    """Make a run name from any text, such as a model spec.

    Different texts may share a name: the stored config distinguishes such runs.

    >>> safe_name("zoo:hybrid"), safe_name("EleutherAI/pythia-70m@step1000")
    ('zoo-hybrid', 'EleutherAI-pythia-70m-step1000')
    """
    name = re.sub(r"-{2,}", "-", re.sub(r"[^A-Za-z0-9._-]", "-", text)).strip("-. ")
    if not name:
        return f"run-{_tag(text)}"
    if len(name) > MAX_BYTES:
        name = f"{name[: MAX_BYTES - 9]}-{_tag(text)}"
    return f"run-{name}" if _is_device(name) else name


def distinct_name(text: str) -> str:
    """A safe name that no other text shares: one that had to be changed ends with eight digits of its own.

    >>> distinct_name("target-frog"), distinct_name("target-a/b") == distinct_name("target-a-b")
    ('target-frog', False)
    """
    name = safe_name(text)
    return name if name == text else f"{name[: MAX_BYTES - 9]}-{_tag(text)}"


def _fault(name: str) -> str:
    checks = {
        "empty": not name,
        "starts with a dot": name.startswith("."),
        "starts with a dash": name.startswith("-"),
        "ends with a dot or a space": name.endswith((".", " ")),
        "starts with a space": name.startswith(" "),
        "holds a control or unprintable character": not name.isprintable(),
        f"holds one of {' '.join(sorted(FORBIDDEN))}": bool(FORBIDDEN & set(name)),
        "is a device on Windows": _is_device(name),
        f"longer than {MAX_BYTES} bytes": len(name.encode("utf-8", "replace")) > MAX_BYTES,
    }
    return next((fault for fault, present in checks.items() if present), "")


def _is_device(name: str) -> bool:
    return name.split(".")[0].strip().lower() in DEVICES


def _tag(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
