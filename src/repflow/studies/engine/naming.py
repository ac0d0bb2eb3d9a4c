"""Names of runs: what a reader looks for is spelt out, eight digits encode all other options.

Two requests with different results never share a folder, and a quick try does not block the real run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

DIGITS = 8
UNNAMED = frozenset(
    (
        *("allow_leak", "drop_features", "batch_size", "device", "device_map", "scan", "allow_float16"),
        *("trust_remote_code", "checkpointing", "meter_memory", "cka_memory", "reference_memory", "maps"),
        *("seconds", "checkpoint", "keep_models"),
    )
)
"""Options that say how and where to compute, not what: with another one a run is the same or refused."""


class Names(NamedTuple):
    """Names of a run.

    Attributes:
        current: the one it gets.
        earlier: with a folder's whole path, as earlier versions wrote it.
        bare: without the digits, which some studies left out; two requests may share it.
    """

    current: str
    earlier: str
    bare: str


def model_word(spec: str) -> str:
    """What a model is called in names: a folder by its last part, a configuration by its file.

    >>> model_word("config:models/gpt.json"), model_word("EleutherAI/pythia-70m"), model_word("/data/models/m1/")
    ('gpt', 'EleutherAI/pythia-70m', 'm1')
    """
    if spec.startswith("config:"):
        return Path(spec.removeprefix("config:")).stem
    return Path(spec).name if is_path(spec) else spec


def is_path(spec: str) -> bool:
    """Whether a spec is spelt as a path: hub ids have one slash at most, and none in front."""
    return spec.startswith(("/", ".", "~")) or spec.rstrip("/").count("/") > 1 or "\\" in spec


def weight_words(config: Any) -> list[str]:
    """Random weights, their seed, and what was taken out."""
    parts = [config.init] if getattr(config, "init", "trained") != "trained" else []
    parts += [f"init{config.init_seed}"] if getattr(config, "init_seed", None) is not None else []
    return parts + (["ablated", *config.ablate] if getattr(config, "ablate", []) else [])


def option_tag(config: Any, named: Collection[str], **more: Any) -> str:
    """Eight digits for the options that are not at their default, and for other values; "" where there are none.

    Args:
        config: of a study.
        named: options that the name spells out.
        more: what else decides the result.
    """
    plain = asdict(type(config)())
    left = {key: value for key, value in asdict(config).items() if key not in UNNAMED and key not in named}
    other = {key: value for key, value in left.items() if value != plain[key]} | more
    return hashlib.sha256(json.dumps(other, sort_keys=True).encode()).hexdigest()[:DIGITS] if other else ""


def spell(config: Any, parts: Sequence[str], named: Collection[str], model: str | None = None) -> Names:
    """Names of a run: the one it gets, and those that earlier versions gave it.

    Args:
        config: of a study.
        parts: words after the model's.
        named: options that these spell out, beside `model`.
        model: spec of the model, where it is not `config.model`.
    """
    from repflow.store import safe_name

    spec = config.model if model is None else model
    # folders of one name in different places are different models
    place = {"model": spec} if is_path(spec) or (spec.startswith("config:") and is_path(spec[len("config:") :])) else {}
    named = {"model", *named}
    old = Path(spec.removeprefix("config:")).stem if spec.startswith("config:") else spec
    tried = [
        (model_word(spec), option_tag(config, named, **place)),
        (old, option_tag(config, named)),
        (old, ""),  # some studies' names left options out
    ]
    return Names(*(safe_name("-".join(filter(None, [word, *parts, tag]))) for word, tag in tried))


def known_name(out: Path, names: Names, request: Mapping[str, Any]) -> str:
    """The current name, unless the same request was stored under one of the others by an earlier version.

    Args:
        out: folder of runs.
        names: of the run.
        request: what is to run; keys that the stored one lacks, as options added later, are not compared.
    """
    from repflow.store.canonical import plain
    from repflow.store.record import is_run, read_record

    now = plain(request, "config")
    for name in dict.fromkeys(names):
        if not is_run(out / name):
            continue
        stored = read_record(out / name).config
        if name == names.current or all(stored[key] == now[key] for key in stored.keys() & now.keys()):
            return name
    return names.current
