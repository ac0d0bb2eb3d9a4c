"""Recipes of paper 2's figures: which study runs each, on which models, and what the paper states in words.

A study of these recipes is a module of `repflow.studies` with

    run(config: ReproduceConfig, *, out, name=None, progress=None) -> Result

    requests(config, out, *, make=True) -> {role: config of the study}, with make=False for a dry run

which runs what is missing in `OUT/recency-SCALE`, stores the comparison as the run `OUT/NAME` and gives it back, with
`provenance["title"]`, `provenance["note"]` and `provenance["lines"]`: the paper's statements, each a `Line`.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, nearest, teach
from repflow.core.intervals import LEAST_VALUES, NO_INTERVAL
from repflow.studies.reproduce.config import ReproduceConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from repflow.core.results import Result
SCALES = ("tiny", "zoo", "paper")
TAKEN = ("recipe", "scale", "models", "tasks", "lengths", "samples", "seed", "tokenizer", "dtype", "device", "scan",
         "batch_size")  # fmt: skip
"""Options of `repflow reproduce` that mean something to these recipes."""


@dataclass(frozen=True)
class Role:
    """A model of paper 2 and what stands for it.

    Attributes:
        name: as the paper calls it.
        hub: hub id of the checkpoint, inferred from its name.
        zoo: built-in model that stands for it at scale zoo.
        tiny: random model that does at scale tiny (a role of `reproduce_models.TINY`).
        tokenizer: hub id of its tokenizer, where its repository has none.
    """

    name: str
    hub: str
    zoo: str
    tiny: str
    tokenizer: str | None = None


ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        Role("Mamba-130M", "state-spaces/mamba-130m-hf", "mamba", "Mamba-2.8B"),
        Role("Mamba-1.4B", "state-spaces/mamba-1.4b-hf", "mamba", "Mamba-2.8B"),
        Role("Mamba-Codestral-7B", "mistralai/Mamba-Codestral-7B-v0.1", "mamba2", "Mamba2-2.7B"),
        Role("Mistral-7B", "mistralai/Mistral-7B-v0.1", "gpt-neox", "Pythia-2.8B"),
        Role("Pythia-160M", "EleutherAI/pythia-160m", "gpt-neox", "Pythia-2.8B"),
        Role("Pythia-1.4B", "EleutherAI/pythia-1.4b", "gpt-neox", "Pythia-2.8B"),
    )
}
"""Paper 2 names sizes, not repositories."""


@dataclass(frozen=True)
class Line:
    """One statement of the paper beside what was measured.

    Attributes:
        what: what it is of.
        stated: the paper's words or number, with their place.
        ours: what was measured, in words and numbers.
        holds: whether it bears the statement out; None where it does not decide.
        trained: it is a statement on trained models, which a random one does not decide.
    """

    what: str
    stated: str
    ours: str
    holds: bool | None
    trained: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def above(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool | None:
    """Whether one interval lies above another; None where they meet, or where there is none.

    >>> above((0.2, 0.4), (0.0, 0.0)), above((-0.1, 0.4), (0.0, 0.0)), above((-0.3, -0.1), (0.0, 0.0))
    (True, None, False)
    """
    return True if a[0] > b[1] else False if a[1] < b[0] else None


def check_recency(config: ReproduceConfig, roles: Sequence[str]) -> None:
    """Refuse options that mean nothing to these recipes, and roles that the recipe does not show."""
    plain = ReproduceConfig(recipe=config.recipe)
    for name in asdict(config):
        if name not in TAKEN and getattr(config, name) != getattr(plain, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(teach(f"{config.recipe} without {option}", "one with it", f"leave {option} out"))
    if config.scale not in SCALES:
        raise InputError(teach("--scale tiny, zoo or paper", repr(config.scale), nearest(config.scale, SCALES)))
    if config.samples is not None and config.samples < 1:
        raise InputError(teach("--samples of at least 1", f"{config.samples}", "or leave it out"))
    given_models(config, roles)


def given_models(config: ReproduceConfig, roles: Sequence[str]) -> dict[str, str]:
    """`--model ROLE=SPEC` options by role."""
    named: dict[str, str] = {}
    spelled = {name.lower(): name for name in roles}
    for entry in config.models:
        role, equals, spec = entry.partition("=")
        if not equals or not spec.strip():
            known = ", ".join(roles)
            remedy = f"ROLE is one of {known}; SPEC a folder, zoo:NAME or hub id"
            raise InputError(teach("--model ROLE=SPEC", repr(entry), remedy))
        if role.strip().lower() not in spelled:
            raise InputError(f"unknown model of {config.recipe} {role.strip()!r}; {nearest(role.strip(), roles)}")
        named[spelled[role.strip().lower()]] = spec.strip()
    return named


def stand_ins(
    config: ReproduceConfig, roles: Sequence[str], folder: Path, *, make: bool = True
) -> dict[str, tuple[str, str | None]]:
    """Spec and tokenizer of what is run for each role.

    Args:
        config: the request.
        roles: models of the figure.
        folder: where the tiny random models are.
        make: write the tiny models that are not there.
    """
    from repflow.studies.reproduce.models import TINY_NAMES, make_tiny

    named = given_models(config, roles)
    if named:
        return {role: (named[role], config.tokenizer) for role in roles if role in named}
    if config.scale == "paper":
        return {role: (ROLES[role].hub, config.tokenizer or ROLES[role].tokenizer) for role in roles}
    roles = tuple(_sharing(config, roles))
    if config.scale == "zoo":
        return {role: (f"zoo:{ROLES[role].zoo}", config.tokenizer) for role in roles}
    tiny = [ROLES[role].tiny for role in roles]
    if make:
        make_tiny(folder, list(dict.fromkeys(tiny)))
    return {role: (str(folder / TINY_NAMES[ROLES[role].tiny]), config.tokenizer) for role in roles}


def _sharing(config: ReproduceConfig, roles: Sequence[str]) -> dict[str, list[str]]:
    """Roles that one model stands for, under the first of them: it is run, and said, once."""
    if config.models or config.scale == "paper":
        return {role: [role] for role in roles}
    found: dict[str, list[str]] = {}
    for role in roles:
        spec = getattr(ROLES[role], config.scale)
        first = next((other for other in found if getattr(ROLES[other], config.scale) == spec), role)
        found.setdefault(first, []).append(role)
    return found


def is_random(config: ReproduceConfig) -> bool:
    """Whether the models are the small random ones, of which nothing follows for trained ones."""
    return config.scale == "tiny" and not config.models


def stand_in_labels(config: ReproduceConfig, roles: Sequence[str], found: Mapping[str, Result]) -> dict[str, str]:
    """What each row is of: the paper's models and what ran for them.

    Args:
        config: the request.
        roles: models of the figure.
        found: runs by role.
    """
    from repflow.studies.reproduce.models import stand_in_label

    sharing, labels = _sharing(config, roles), {}
    for role, result in found.items():
        model = result.provenance["model"]
        own = config.scale == "paper" and not config.models
        spec = None if own else str(model["spec"])
        names = ", ".join(sharing.get(role, [role]))
        labels[role] = stand_in_label(names, spec, model["parameters"], trained=not is_random(config))
    return labels


def told_lines(
    lines: Sequence[Line], config: ReproduceConfig, labels: Mapping[str, str], prompts: int
) -> list[dict[str, Any]]:
    """Lines as plain values, each with what it is `of`.

    A random model leaves statements on trained ones open, and too few prompts for an interval leave all of them so.
    """
    names = re.compile(f"({'|'.join(map(re.escape, labels))})(, )?") if labels else None
    told = []
    for line in lines:
        if is_random(config) and line.trained:
            line = replace(line, holds=None, ours=f"{line.ours}; random weights decide nothing on training")
        elif prompts < LEAST_VALUES and line.holds is not None:
            line = replace(line, holds=None, ours=f"{line.ours}; {NO_INTERVAL}")
        of = line.what
        if names is not None:
            of = names.sub(lambda found: labels[found[1]] + (": " if found[2] else ""), of)
        told.append(line.to_json() | {"of": of})
    return told


def run_options(
    config: ReproduceConfig, task: str, lengths: Mapping[str, int], samples: Mapping[str, int]
) -> dict[str, Any]:
    """Fields that the runs of a figure share, whichever study makes them.

    Args:
        config: the request.
        task: where it names none.
        lengths: tokens per prompt by scale, where it names none.
        samples: prompts by scale, where it names none.
    """
    return {
        "task": config.tasks[0] if config.tasks else task,
        "length": config.lengths[0] if config.lengths else lengths[config.scale],
        "samples": config.samples or samples[config.scale],
        "seed": config.seed,
        "match": "tokens",
        "dtype": config.dtype,
        "device": config.device,
        "scan": config.scan,
        "batch_size": config.batch_size,
    }


def cell_name(name: str, request: Any) -> str:
    """Name of a run with a hash of its request, so that another number of prompts is another run."""
    from repflow.studies.engine.loading import identity

    tag = hashlib.sha256(json.dumps(identity(request), sort_keys=True).encode()).hexdigest()[:8]
    return f"{name}-{tag}"


def figure_name(config: ReproduceConfig) -> str:
    """Name of the run that holds the comparison: recipe, scale and a hash of the request."""
    from repflow.studies.engine.loading import identity

    asked = {key: value for key, value in identity(config).items() if key in TAKEN}
    tag = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]
    return f"{config.recipe}-{config.scale}-{tag}"


def finish_figure(result: Result, config: ReproduceConfig, out: str | Path, name: str | None) -> Result:
    """Store the comparison; `result.provenance` has title, note, models and lines."""
    from repflow.core.results import Finding
    from repflow.studies.engine.loading import identity
    from repflow.studies.engine.opening import keep_result
    from repflow.studies.reproduce.models import STAND_IN
    from repflow.version import __version__

    asked = {key: value for key, value in identity(config).items() if key in TAKEN}
    result.config = {"study": "recency-figure", **asked}
    if config.scale != "paper" or config.models:
        kind = "small random" if is_random(config) else "other"
        text = f"{kind} models stand for the paper's: {STAND_IN}"
        result.findings.append(Finding("stand_in", None, text))
    return keep_result(result, out, name or figure_name(config), {"repflow": __version__})
