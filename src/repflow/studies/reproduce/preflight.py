"""What can be said of a recipe before it starts: what will run, whether models, tokenizers, lengths and disk do."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from repflow.core.errors import InputError
from repflow.core.tasks import DRAWN
from repflow.papers.values import short_length
from repflow.studies.engine.table import study_for
from repflow.studies.reproduce.cost import ReproduceCost, estimate
from repflow.studies.reproduce.models import TINY, StandIn
from repflow.studies.reproduce.recipe import ReproduceCell, ReproducePlan


@dataclass(frozen=True)
class Preflight:
    """What was found; nothing was loaded, downloaded or written.

    Attributes:
        cells: every run: its name, study, model, task, tokens, states, init, and whether it is finished; None for what
            its study does not have.
        needed: bytes that the unfinished runs and the checkpoints still take.
        free: bytes free where the runs go.
        problems: what makes runs fail: a model or tokenizer that is not there.
        notes: what is left out or not known: a length over a model's limit, a model that must be downloaded.
        work: what a recipe without runs does.
    """

    cells: tuple[dict[str, Any], ...]
    needed: int
    free: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    work: str = ""

    @property
    def room(self) -> bool:
        """Whether the disk holds what is needed."""
        return self.needed <= self.free

    def lines(self) -> list[str]:
        """What will run, one line per model, study and init."""
        order = dict.fromkeys((cell["model"], cell["study"], cell["init"]) for cell in self.cells)
        return [self._line(*key) for key in order] or [self.work]

    def _line(self, model: str, study: str, init: str | None) -> str:
        keys = {"model": model, "study": study, "init": init}
        mine = [cell for cell in self.cells if all(cell[key] == value for key, value in keys.items())]
        tasks, states = ([*dict.fromkeys(cell[key] for cell in mine if cell[key])] for key in ("task", "states"))
        lengths = dict.fromkeys(length for cell in mine for length in cell["lengths"])
        at = f"at {', '.join(map(short_length, lengths))} tokens" if lengths else ""
        parts = [" ".join(filter(None, [", ".join(tasks), at]))]
        parts += [f"{', '.join(states)} states"] if states else []
        parts += [f"{init} weights"] if init not in (None, "trained") else []
        done = Counter(cell["finished"] for cell in mine)[True]
        count = f"{len(mine)} run{'s' * (len(mine) > 1)}" + (f", {done} finished" if done else "")
        return ": ".join(filter(None, [f"{study} {model}", ", ".join(filter(None, parts)), count]))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {name: list(getattr(self, name)) for name in ("cells", "problems", "notes")}


def preflight(plan: ReproducePlan, cost: ReproduceCost) -> Preflight:
    """Look at everything that a plan needs."""
    cells = tuple(_about(plan, cell) for cell in plan.cells)
    left = [cell for cell, about in zip(plan.cells, cells, strict=True) if not about["finished"]]
    rest = estimate(plan, left) if len(left) < len(cells) else cost
    problems: list[str] = []
    notes: list[str] = []
    for role, model in plan.models.items():
        mine = [about for cell, about in zip(plan.cells, cells, strict=True) if cell.role == role]
        _check_model(model, mine, problems, notes)
    place = next(folder for folder in (plan.folder.absolute(), *plan.folder.absolute().parents) if folder.is_dir())
    needed = rest.run_bytes + rest.feature_bytes + (rest.download_bytes if left else 0)
    free = shutil.disk_usage(place).free
    return Preflight(cells, needed, free, tuple(problems), tuple(notes), plan.recipe.work)


def _about(plan: ReproducePlan, cell: ReproduceCell) -> dict[str, Any]:
    from repflow.store import list_runs

    study = study_for(cell.config)
    path = study.result_place(plan.folder / cell.name)
    stored = list_runs(path) if path.is_dir() else []
    lengths = [int(length) for length in getattr(cell.config, "lengths", [getattr(cell.config, "length", 0)]) if length]
    return {
        "run": cell.name,
        "study": study.name,
        "model": cell.role or str(cell.key),
        "task": getattr(cell.config, "task", None),
        "length": max(lengths, default=None),
        "lengths": lengths,
        "states": getattr(cell.config, "states", None),
        "init": getattr(cell.config, "init", None),
        "finished": bool(stored and stored[0].finished and not stored[0].damaged),
    }


def _check_model(model: StandIn, cells: Sequence[dict[str, Any]], problems: list[str], notes: list[str]) -> None:
    """Configuration, tokenizer and lengths of one model."""
    from pathlib import Path

    from repflow.models.load import hub_reachable, read_config
    from repflow.models.spec_tokenizer import spec_tokenizer
    from repflow.studies.engine.size import local_source

    where = f"{model.role} ({model.spec})"
    if model.made_here and not Path(model.spec).exists():  # the run itself makes it
        _check_lengths(cells, where, TINY[model.made_here], notes)
        return
    try:
        source = local_source(model.spec)
        config = None if source is None else read_config(source, False)
    except (InputError, OSError) as error:
        problems.append(f"{where}: {error}")
        return
    if config is None and not model.spec.endswith(".gguf"):
        reachable = hub_reachable()
        remedy = f"download it first, or name a folder: --model {model.role}=FOLDER"
        reason = (
            "looked at once it is downloaded" if reachable else f"not here, and the hub cannot be reached; {remedy}"
        )
        (notes if reachable else problems).append(f"{where}: {reason}")
    elif config is not None:
        _check_lengths(cells, where, config.to_dict(), notes)
    tasks = dict.fromkeys(cell["task"] or cell["study"] for cell in cells)
    texts = [task for task in tasks if task not in DRAWN]
    known = config is not None or (model.tokenizer is not None and Path(model.tokenizer).exists())
    if texts and known and spec_tokenizer(model.spec, model.tokenizer)[0] is None:
        named = f"in {model.tokenizer}" if model.tokenizer else "beside it"
        problems.append(f"{where}: no tokenizer {named}, which {', '.join(texts)} needs; pass --tokenizer")


def _check_lengths(cells: Sequence[dict[str, Any]], where: str, config: dict[str, Any], notes: list[str]) -> None:
    limit = config.get("max_position_embeddings") or config.get("n_positions")
    over = dict.fromkeys(tokens for cell in cells for tokens in cell["lengths"] if limit and tokens > limit)
    if over:
        lengths = ", ".join(map(short_length, over))
        notes.append(f"{where}: takes at most {limit} tokens, so {lengths} is stored as a run that cannot be")
