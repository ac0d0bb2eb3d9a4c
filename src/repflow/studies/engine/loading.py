"""Options that every study of a model shares, checked by their words alone, before torch or a model is loaded."""

from __future__ import annotations

from dataclasses import MISSING, Field, asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, nearest, teach
from repflow.spec.request import (
    check_device,
    check_device_map,
    check_least,
    check_scan,
    check_seed,
    dtype_name,
    parse_drop,
    sublayer_kind,
)
from repflow.spec.scheme import parse_scheme

if TYPE_CHECKING:
    from repflow.models import Model


def load_model(config: Any, tokenizer: Any = None) -> Model:
    """Load the model a config names, without the parts it takes out; a live tokenizer may replace the one it names."""
    from repflow.interventions import ablate
    from repflow.models import load

    extra = {"dtype": config.dtype} if config.dtype else {}
    own_seed = getattr(config, "init_seed", None)
    loaded = load(
        config.model,
        init=config.init,
        tokenizer=config.tokenizer if tokenizer is None else tokenizer,
        device=config.device,
        device_map=getattr(config, "device_map", None),
        scan=getattr(config, "scan", "auto"),
        trust_remote_code=config.trust_remote_code,
        seed=config.seed if own_seed is None else own_seed,
        **extra,
    )
    return ablate(loaded, getattr(config, "ablate", []))


def check_loading(config: Any) -> None:
    """Refuse what no model could be loaded or run with; a field that the config lacks is ignored."""
    for name in ("init", "init_b"):
        if (value := getattr(config, name, None)) is not None:
            parse_scheme(value)
    check_seed(config.seed)
    check_seed(getattr(config, "init_seed", None), "--init-seed")
    check_least([("--batch-size", getattr(config, "batch_size", None), 1)])
    sublayer_kind(getattr(config, "states", "residual"))
    check_device_map(getattr(config, "device_map", None))
    check_scan(getattr(config, "scan", "auto"))
    if config.device is not None:
        check_device(config.device)
    if config.dtype is not None and dtype_name(config.dtype) == "float16" and not config.allow_float16:
        got = "float16, whose range ends at 65,504, below the massive activations of many models"
        remedy = "pass --dtype float32 or bfloat16, or --allow-float16 if you mean it"
        raise InputError(teach("float32 or bfloat16 for measuring", got, remedy))


HOW = ("scan",)
"""Options that change a run's speed and no number beyond its dtype's rounding: a run started with one may resume
with another, and they are in neither its name nor its stored config. Its provenance says which form the check ran."""


LATER = ("recall_pairs", "attack_regions")
"""Options that requests of earlier versions do not have: as they are by default, they are left out, so that those are
found."""


def identity(config: Any) -> dict[str, Any]:
    """Fields of a config that say what a run is."""
    known = {name: value for name, value in asdict(config).items() if name not in HOW}
    later = {entry.name: entry for entry in fields(config) if entry.name in LATER}
    return {name: value for name, value in known.items() if name not in later or value != _default(later[name])}


def _default(entry: Field[Any]) -> Any:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


def check_measuring(config: Any) -> None:
    """Refuse numbers and words of `repflow measure` that mean nothing, whatever the model and the prompts."""
    from repflow.tasks.make import check_size

    check_loading(config)
    check_size(config.length, config.samples)
    parse_drop(config.drop)
    for option, value, known in (
        ("--cka-form", config.cka_form, ("unbiased", "paper")),
        ("--cka-pool", config.cka_pool, ("mean", "rows")),
    ):
        if value not in known:
            raise InputError(teach(f"{option} {' or '.join(known)}", repr(value), nearest(value, known)))
    check_least([("--grid", config.grid, 1), ("--keep-samples", config.keep_samples, 0)])
    if config.meter_memory is not None and config.meter_memory < 1:
        got = f"{config.meter_memory}"
        raise InputError(teach("--meter-memory of at least 1 MiB", got, "leave it out for six states of one batch"))


def check_files(*files: str) -> None:
    """Refuse a file that is not there."""
    for file in files:
        if not Path(file).is_file():
            what = "a folder" if Path(file).is_dir() else "no such file"
            raise InputError(f"cannot read {file}: {what}; check the path")
