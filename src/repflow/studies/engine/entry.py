"""Calls from Python: options as a config stores them, and the model they name or pass."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from repflow.core.errors import InputError, nearest, teach
from repflow.spec.length import parse_length
from repflow.spec.request import typed_options
from repflow.studies.engine.loading import load_model
from repflow.studies.engine.parts import as_list

if TYPE_CHECKING:
    from repflow.models import Model

C = TypeVar("C")
LOADING = ("init", "init_seed", "tokenizer", "dtype", "device", "device_map", "scan", "trust_remote_code")
"""Options that say how a model is loaded, and so mean nothing to one that is."""


def check_options(kind: type, options: dict[str, Any], *named: str) -> None:
    """Refuse a keyword that a config does not have, or that the call takes in another way (`named`)."""
    known = {entry.name for entry in fields(kind)}
    if unknown := sorted(options.keys() - (known - {*named})):
        raise InputError(f"unknown option {unknown[0]!r}; {nearest(unknown[0], known)}")


def plain_options(kind: type, options: dict[str, Any]) -> dict[str, Any]:
    """Options as a config stores them: paths, dtypes, devices and a live tokenizer by their names."""
    lists = {entry.name for entry in fields(kind) if entry.default_factory is not MISSING}
    plain: dict[str, Any] = {name: as_list(value) if name in lists else value for name, value in options.items()}
    if "length" in plain:
        plain["length"] = parse_length(plain["length"])
    for name in ("dtype", "device"):
        if plain.get(name) is not None:
            plain[name] = str(plain[name]).removeprefix("torch.")
    tokenizer = plain.get("tokenizer")
    if tokenizer is not None and not isinstance(tokenizer, (str, Path)):
        named = getattr(tokenizer, "name_or_path", None) or getattr(tokenizer, "__name__", None)
        plain["tokenizer"] = named or type(tokenizer).__name__
    return plain | ({"tokenizer": str(plain["tokenizer"])} if tokenizer is not None else {})


def loaded_model(model: Any, config: Any, options: dict[str, Any]) -> Model:
    """Load what is not loaded yet; the config then says what was measured."""
    from repflow.interventions import ablate
    from repflow.models import Model, load

    if isinstance(model, (str, Path)):
        config.model = str(model)
        loaded = load_model(config, options.get("tokenizer"))
    elif isinstance(model, Model):
        if options_left := [name for name in LOADING if name in options]:
            expected = "a spec or live model with options for loading"
            raise InputError(teach(expected, f"{options_left[0]} with a loaded Model", "pass it to repflow.load"))
        loaded = model
    else:
        extra: dict[str, Any] = {"dtype": config.dtype} if config.dtype else {}
        extra |= {"tokenizer": options.get("tokenizer"), "device": config.device, "scan": config.scan}
        seed = config.seed if config.init_seed is None else config.init_seed
        loaded = load(model, init=config.init, seed=seed, **extra)
    if not isinstance(model, (str, Path)):
        loaded = ablate(loaded, config.ablate)
    config.model, config.init = config.model or loaded.spec, loaded.init
    config.ablate = list(loaded.ablations)
    return loaded


def prepared(kind: type[C], model: Any, task: Any, options: dict[str, Any]) -> tuple[C, Model, Any]:
    """Config, loaded model and Task object (None for a name) of a call from Python."""
    options = typed_options(kind, options)
    chosen = None if isinstance(task, (str, Path)) else task
    named = {} if task is None else {"task": str(task if chosen is None else task.name)}
    config: Any = kind(**plain_options(kind, options), **named)
    return config, loaded_model(model, config, options), chosen
