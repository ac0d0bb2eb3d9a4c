"""Checks of what the zoo's command lines are asked for, before anything is made."""

from __future__ import annotations

import argparse
from pathlib import Path

from repflow.core.errors import InputError, teach
from repflow.spec.request import check_least, check_seed
from repflow.store.disk import check_place

LEAST = {
    "steps": 1, "batch": 1, "chunk": 1, "warmup": 0, "limit": 1, "prompts": 0, "samples": 1, "length": 1, "room": 0,
    "articles": 1, "characters": 1, "tokenizer_characters": 1,
}  # fmt: skip
"""Whole numbers that an option takes at least, by its name."""
SHARES = ("prose", "mdqa")
POSITIVE = ("rate", "clip", "seconds", "answer_weight")


def check_numbers(options: argparse.Namespace) -> None:
    """Refuse numbers that no step can use: too small, a negative seed, a share beyond 1.

    Raises:
        InputError: the first of them, by its option.
    """
    check_least([(f"--{name.replace('_', '-')}", getattr(options, name, None), least) for name, least in LEAST.items()])
    check_seed(getattr(options, "seed", None))
    for name in POSITIVE:
        value = getattr(options, name, None)
        if value is not None and not value > 0:  # NaN is not either
            raise InputError(teach(f"--{name.replace('_', '-')} above 0", f"{value}", "give another number"))
    for name in SHARES:
        share = getattr(options, name, 0.0)
        if not 0 <= share <= 1:
            raise InputError(teach(f"--{name} from 0 to 1", f"{share}", "it is a share of the windows"))


def check_folder(folder: Path, option: str) -> None:
    """Refuse a folder to write that cannot be one, as a file stands in its way."""
    try:
        check_place(folder)
    except InputError:
        got = f"{folder}, where a file is in the way"
        raise InputError(teach(f"a folder for {option}", got, f"choose another {option}")) from None


def check_file(file: Path, option: str) -> None:
    """Refuse a file to write that cannot be one."""
    if file.is_dir():
        raise InputError(teach(f"a file for {option}", f"{file}, which is a folder", "name a file in it"))
    check_folder(file.parent, option)
