"""Twins: does the shape of token similarity over depth come from the architecture or from training?

The trained model and its random twins, over a grid of inits, seeds of weights and lengths, all on the same prompts.
Each cell is a run of `repflow measure` and resumes like one. `repflow.studies.twins.verdict` says what is judged.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, RepflowError, teach
from repflow.core.seconds import CLOCK
from repflow.studies.engine.loading import identity
from repflow.studies.engine.naming import Names, known_name, spell
from repflow.studies.engine.opening import keep_judged
from repflow.studies.engine.parts import (
    Ablation,
    Batches,
    Chat,
    Classes,
    FirstToken,
    GoldIndex,
    Inits,
    Items,
    Lengths,
    Machine,
    Permissions,
    Placement,
    Repetitions,
    Sampling,
    Scans,
    Spec,
    StateKind,
    Task,
    Templates,
    TextFiles,
    ablation_names,
    defaults,
    listed,
    option,
    words,
)
from repflow.studies.engine.prompts import readable
from repflow.studies.engine.study import LEAKY, BaseStudy, Call
from repflow.studies.measure import MeasureConfig, check_request
from repflow.studies.twins.verdict import (
    TRAINED,
    CellSign,
    break_statement,
    crossed_interval,
    depth_ends,
    grid_gaps,
    judge,
)

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.core.results import Finding, Result
    from repflow.studies.engine.cell import Cell, Work
    from repflow.studies.engine.cells import Outcome

INITS = ("default", "gaussian:0.02", "gaussian:0.1", "gaussian:0.02+residual", "xavier", "xavier:0.5", "he")
LENGTHS = ("128", "512", "2K")
METRICS = {"raw": "token_similarity", "excess": "token_similarity_excess"}
SUMMARY = "summary"
Key = tuple[str, str, int, int]
"""Ablation ("" for none), weights, length, number of the seed."""
AXES = ("ablation", "weights", "length", "seed", "sample")


@dataclass
@defaults(
    {
        "samples": "number of prompts, the same for all weights",
        "seed": "seed of the prompts, and first seed of random weights",
        "ablate": "measure all weights without these parts too (+ joins parts); may be given several times",
        "states": "kind of state: residual or branch",
    },
    lengths=listed(
        f"tokens per prompt, repeated or comma separated; 1K is 1,000; default {', '.join(LENGTHS)}",
        LENGTHS,
        aliases=("--length",),
    ),
    inits=listed(
        f"random schemes, repeated or comma separated; default {', '.join(INITS)}", INITS, aliases=("--init",)
    ),
    seeds=option(3, "random twins of each scheme, with weights of seeds SEED, SEED + 1 ..."),
)
class TwinsConfig(
    Inits,
    Repetitions,
    StateKind,
    Batches,
    FirstToken,
    Chat,
    Items,
    Classes,
    GoldIndex,
    Templates,
    Sampling,
    Lengths,
    TextFiles,
    Task,
    Permissions,
    Scans,
    Placement,
    Machine,
    Ablation,
    Spec,
):
    """What to compare with each other; the fields are the command line's options and the `config` of the Result."""

    share: float = option(1 / 3, "share of the blocks that counts as early, and as late")

    def __post_init__(self) -> None:
        """Take lists apart at their commas; every set of ablations gets its fixed name."""
        self.inits = words(self.inits)
        self.lengths = words(self.lengths)
        self.ablate = ["+".join(ablation_names([entry])) for entry in self.ablate]

    @property
    def tokens(self) -> list[int]:
        """The lengths as numbers."""
        from repflow.spec.length import parse_length

        return [parse_length(length) for length in self.lengths]

    @property
    def weights(self) -> list[str]:
        """Kinds of weights, the trained ones first where the model has any."""
        return [*([] if self.model.startswith("config:") else [TRAINED]), *self.inits]


def check_words(config: TwinsConfig) -> None:
    """Refuse what is wrong whatever the model is."""
    from repflow.spec.scheme import parse_scheme
    from repflow.tasks.make import check_size

    lengths = [str(length) for length in config.tokens]
    for name, values in (("--inits", config.inits), ("--lengths", lengths), ("--ablate", config.ablate)):
        if twice := [value for value in values if values.count(value) > 1]:
            raise InputError(teach(f"different entries in {name}", f"{twice[0]} twice", "name each once"))
    if not config.inits or not config.lengths:
        raise InputError(teach("at least one init and one length", "none", "leave the option out for the default"))
    for init in config.inits:
        if parse_scheme(init).name == TRAINED:
            raise InputError(teach("random schemes in --inits", repr(init), "the trained model is always measured"))
    if config.seeds < 1 or config.samples < 2:
        got = f"{config.seeds} seeds and {config.samples} samples"
        raise InputError(teach("at least 1 seed and 2 samples", got, "intervals need several of both"))
    if not 0 < config.share <= 0.5:
        raise InputError(teach("--share over 0 and at most 0.5", f"{config.share}", "0.33 is the default"))
    if config.states not in ("residual", "branch"):
        raise InputError(teach("--states residual or branch", repr(config.states), "residual is the default"))
    for length in config.tokens:
        check_size(length, config.samples)
    check_request(cell_config(config, TRAINED, config.tokens[0], 0, ""))


def cell_config(config: TwinsConfig, weights: str, length: int, seed: int, ablation: str) -> MeasureConfig:
    """Request of one cell; prompts depend on the study's seed alone, so that all weights read the same ones."""
    shared = {f.name for f in fields(MeasureConfig)} & {f.name for f in fields(TwinsConfig)} - {"ablate"}
    return MeasureConfig(
        **{name: getattr(config, name) for name in shared},
        init=weights,
        init_seed=None if weights == TRAINED else config.seed + seed,
        length=length,
        ablate=[ablation] if ablation else [],
        metrics=list(METRICS.values()),
        keep_samples=0,
    )


def cells(config: TwinsConfig) -> dict[Key, Cell]:
    """Cells by ablation ("" for none), weights, length and number of the seed; those that share a model in a row."""
    from repflow.studies.engine.cell import Cell
    from repflow.studies.engine.grid import cell_name

    plan = {}
    for ablation in ("", *config.ablate):
        for weights in config.weights:
            for seed in range(1 if weights == TRAINED else config.seeds):
                for length in config.tokens:
                    request = cell_config(config, weights, length, seed, ablation)
                    plan[ablation, weights, length, seed] = Cell(cell_name(request), request)
    return plan


class Twins(BaseStudy[TwinsConfig]):
    """Trained weights against random twins. Made of measured cells, so it has its own way to run."""

    name = "twins"
    config = TwinsConfig
    one_model = False

    def check(self, config: TwinsConfig) -> None:
        """Refuse wrong options, tasks and files."""
        check_words(config)

    def conduct(self, config: TwinsConfig, call: Call) -> Result:
        """Measure every cell and judge; the study is a folder in `out`, with a run per cell and the run `summary`."""
        progress = call.progress
        return judged(config, call.out, call.name, progress=None if progress is None else lambda _: progress)

    def work(self, config: TwinsConfig, out: Path, name: str, split: int = 1) -> Work:
        """Its cells, divided as runs of `measure` are."""
        from repflow.studies.engine.cell import Work
        from repflow.studies.engine.table import study_for

        _check_model(config)
        whole = cells(readable(config)).values()
        divided = [replace(cell, split=study_for(cell.config).shares(cell.config, split)) for cell in whole]
        return Work(out / name, tuple(divided))

    def reads(self, config: TwinsConfig) -> tuple[int, int]:
        """Every kind of weights reads the same prompts, whole and without each set of parts."""
        draws = len(config.inits) * config.seeds + (len(config.weights) - len(config.inits))
        each = config.samples * draws * (1 + len(config.ablate))
        return each * len(config.tokens), each * sum(config.tokens)

    def result_place(self, folder: Path) -> Path:
        """The summary is in the study's folder, beside the cells."""
        return folder / SUMMARY

    def place(self, folder: Path) -> tuple[Path, str]:
        """The summary is in the study's folder, beside the cells."""
        return folder.parent.parent, folder.parent.name

    def names(self, config: TwinsConfig) -> Names:
        """Model, task and `twins`."""
        parts = [Path(config.task).stem]
        parts += [config.states] if config.states != "residual" else []
        return spell(config, [*parts, "twins"], ("task", "states"))


STUDY = Twins()
run = STUDY.run


def judged(
    config: TwinsConfig,
    out: Path | None,
    name: str | None = None,
    *,
    progress: Callable[[Cell], Progress] | None = None,
    note: Callable[[str], None] | None = None,
) -> Result:
    """Measure every cell and judge the sign of late minus early similarity.

    Args:
        config: what to do.
        out: folder of runs; the study is a folder in it, with a run per cell and the run `summary`; None keeps nothing.
        name: name of the study's folder; by default from the model and the task.
        progress: gives the callback for a cell.
        note: called with a line for every cell that was not measured.

    Returns:
        Result: arrays over (ablation, weights, length, seed, sample), `provenance["verdicts"]`, a finding per verdict.
    """
    begun = CLOCK.seconds()
    check_words(config)
    config = readable(config)
    if out is None:
        with tempfile.TemporaryDirectory() as passing:
            return _judged(config, _measured(config, Path(passing), progress, note))
    from repflow.capture.provenance import machine
    from repflow.store import check_name

    folder = out / (check_name(name) if name else study_name(config, out))
    _check_model(config)
    return keep_judged(
        lambda: _judged(config, _measured(config, folder, progress, note)),
        folder,
        SUMMARY,
        config=identity(config) | {"study": STUDY.name},
        provenance={**machine(config.device or "default"), "digests": {}},
        begun=begun,
    )


def study_name(config: TwinsConfig, out: Path | None = None) -> str:
    """Name of the study's folder; that of an earlier version where `out` holds the same request under it."""
    config = readable(config)
    names = STUDY.names(config)
    if out is None:
        return names.current
    stored = identity(config) | {"study": STUDY.name}
    inside = Names(*(f"{name}/{SUMMARY}" for name in names))
    return known_name(out, inside, stored).removesuffix(f"/{SUMMARY}")


def _check_model(config: TwinsConfig) -> None:
    """Refuse a model that is not there before a folder is made."""
    from repflow.models.load import find_source, read_config

    read_config(find_source(config.model), config.trust_remote_code)


def _measured(
    config: TwinsConfig,
    folder: Path,
    progress: Callable[[Cell], Progress] | None,
    note: Callable[[str], None] | None,
) -> dict[Key, Outcome]:
    from repflow.studies.engine.cells import run_cells

    grid = cells(config)
    outcomes: Iterator[Outcome] = run_cells(list(grid.values()), folder, progress=progress)
    by_key = {}
    for key, outcome in zip(grid, outcomes, strict=True):
        by_key[key] = outcome
        if outcome.status != "finished" and note is not None:
            note(f"{_shown(key)}: {outcome.status}: {outcome.reason}")
    if not any(outcome.result is not None for outcome in by_key.values()):
        first = next(iter(by_key.values()))
        raise first.error if isinstance(first.error, RepflowError) else RepflowError(first.reason)
    return by_key


def _shown(key: Key) -> str:
    ablation, weights, length, seed = key
    seed_text = f" seed {seed}" if weights != TRAINED else ""
    return f"{weights} n={length}{seed_text}" + (f" without {ablation}" if ablation else "")


def _judged(config: TwinsConfig, outcomes: dict[Key, Outcome]) -> Result:
    from repflow.core.results import Finding, Result

    arrays = _collect(config, outcomes)
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(arrays, AXES)
    absent = {key: outcome for key, outcome in outcomes.items() if outcome.result is None}
    missing = [f"{_shown(key)} ({outcome.reason})" for key, outcome in absent.items()]
    intact = [text for text, key in zip(missing, absent, strict=True) if not key[0]]
    gaps = grid_gaps(config.inits, config.tokens, config.seeds, intact)
    verdicts, findings = {}, []
    for measure in METRICS:
        name = f"{measure}/late_minus_early"
        signs = _signs(config, arrays[name])
        verdicts[measure] = judge(measure, signs[""], gaps)
        findings.append(Finding(f"twins_{verdicts[measure].code}", None, verdicts[measure].statement))
        _store_intervals(config, name, signs, arrays, axes)
    conditions = _conditions(config, arrays, axes, findings)
    first = next(outcome.result for outcome in outcomes.values() if outcome.result is not None)
    provenance = {
        "model": first.provenance["model"],
        "labels": {"ablation": ["none", *config.ablate], "weights": config.weights, "length": config.tokens},
        "cells": {_shown(key): outcome.cell.name for key, outcome in outcomes.items()},
        "missing": missing,
        "failed": [_shown(key) for key, outcome in outcomes.items() if outcome.status == "failed"],
        "verdicts": {name: verdict.to_json() for name, verdict in verdicts.items()},
        "break_conditions": conditions,
        "digests": {"prompts": _prompt_digests(outcomes)},
    }
    findings += [finding for finding in first.findings if finding.code in ("random_ids", LEAKY)]
    stored = identity(config) | {"study": STUDY.name}
    return Result(arrays, axes, stored, provenance, findings)


def _prompt_digests(outcomes: dict[Key, Outcome]) -> dict[str, str]:
    """One digest per length: every kind of weights read the same prompts."""
    digests: dict[str, str] = {}
    for (_, _, length, _), outcome in outcomes.items():
        if outcome.result is not None:
            digest = outcome.result.provenance["digests"]["prompts"]
            assert digests.setdefault(str(length), digest) == digest, "twins must share their prompts"
    return digests


def _collect(config: TwinsConfig, outcomes: dict[Key, Outcome]) -> dict[str, np.ndarray]:
    """Early, late and their difference for every cell, NaN where there is none."""
    shape = (1 + len(config.ablate), len(config.weights), len(config.lengths), config.seeds, config.samples)
    names = [f"{measure}/{part}" for measure in METRICS for part in ("early", "late", "late_minus_early")]
    arrays = {name: np.full(shape, np.nan) for name in names}
    ablations, tokens = ["", *config.ablate], config.tokens
    for (ablation, weights, length, seed), outcome in outcomes.items():
        if outcome.result is None:
            continue
        place = (ablations.index(ablation), config.weights.index(weights), tokens.index(length), seed)
        for measure, metric in METRICS.items():
            values = outcome.result[metric][1 if config.states == "residual" else 0 :]  # the embedding is no block
            early, late = depth_ends(values, config.share)
            for part, value in (("early", early), ("late", late), ("late_minus_early", late - early)):
                arrays[f"{measure}/{part}"][place][: len(value)] = value
    return arrays


def _signs(config: TwinsConfig, values: np.ndarray) -> dict[str, list[CellSign]]:
    """Cells of (ablation, weights, length, seed, sample) values with their intervals, by ablation."""
    return {
        ablation: [
            CellSign(weights, length, *crossed_interval(values[a, w, n]))
            for w, weights in enumerate(config.weights)
            for n, length in enumerate(config.tokens)
        ]
        for a, ablation in enumerate(["", *config.ablate])
    }


def _store_intervals(
    config: TwinsConfig,
    name: str,
    signs: dict[str, list[CellSign]],
    arrays: dict[str, np.ndarray],
    axes: dict[str, tuple[str, ...]],
) -> None:
    shape = (len(signs), len(config.weights), len(config.lengths))
    for part in ("mean", "low", "high"):
        values = [getattr(cell, part) for cell_signs in signs.values() for cell in cell_signs]
        arrays[f"{name}_{part}"] = np.array(values).reshape(shape)
        axes[f"{name}_{part}"] = AXES[:3]


def _conditions(
    config: TwinsConfig,
    arrays: dict[str, np.ndarray],
    axes: dict[str, tuple[str, ...]],
    findings: list[Finding],
) -> dict[str, Any]:
    """What each ablation does to early similarity, against the same weights, seed and prompt with nothing taken out."""
    from repflow.core.results import Finding

    if not config.ablate:
        return {}
    early = arrays["raw/early"]
    signs = _signs(config, early - early[:1])
    _store_intervals(config, "raw/early_change", signs, arrays, axes)
    statements = {ablation: break_statement(ablation, signs[ablation]) for ablation in config.ablate}
    findings += [Finding("break_condition", None, text) for text in statements.values()]
    return {
        ablation: {"statement": statements[ablation], "cells": [asdict(cell) for cell in signs[ablation]]}
        for ablation in config.ablate
    }
