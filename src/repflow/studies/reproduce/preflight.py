"""What can be said of a recipe before it starts: what will run, whether models, tokenizers, lengths and disk do."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError
from repflow.core.tasks import DRAWN
from repflow.papers.values import short_length
from repflow.studies.reproduce.cost import ReproduceCost, estimate
from repflow.studies.reproduce.models import TINY, TINY_NAMES, StandIn
from repflow.studies.reproduce.plan import ReproduceCell, ReproducePlan

SHOWN = ("task", "length", "states")


@dataclass(frozen=True)
class Preflight:
    """What was found; nothing was loaded, downloaded or written.

    Attributes:
        cells: every run: its name, study, model, task, tokens, states, init, and whether it is finished.
        needed: bytes that the unfinished runs and the checkpoints still take.
        free: bytes free where the runs go.
        problems: what makes runs fail: a model or tokenizer that is not there.
        notes: what is left out or not known: a length over a model's limit, a model that must be downloaded.
    """

    cells: tuple[dict[str, Any], ...]
    needed: int
    free: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def room(self) -> bool:
        """Whether the disk holds what is needed."""
        return self.needed <= self.free

    def lines(self) -> list[str]:
        """What will run, one line per model, study and init."""
        order = dict.fromkeys((cell["model"], cell["study"], cell["init"]) for cell in self.cells)
        return [self._line(*key) for key in order]

    def _line(self, model: str, study: str, init: str) -> str:
        keys = {"model": model, "study": study, "init": init}
        mine = [cell for cell in self.cells if all(cell[key] == value for key, value in keys.items())]
        tasks, lengths, states = (list(dict.fromkeys(cell[key] for cell in mine)) for key in SHOWN)
        done = Counter(cell["finished"] for cell in mine)[True]
        kind = f"{', '.join(states)} states" + (f", {init} weights" if init != "trained" else "")
        what = f"{', '.join(tasks)} at {', '.join(short_length(n) for n in lengths)} tokens, {kind}"
        count = f"{len(mine)} run{'s' * (len(mine) > 1)}" + (f", {done} finished" if done else "")
        return f"{study} {model}: {what}: {count}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {name: list(getattr(self, name)) for name in ("cells", "problems", "notes")}


def preflight(plan: ReproducePlan, cost: ReproduceCost) -> Preflight:
    """Look at everything that a plan needs."""
    from dataclasses import replace

    cells = tuple(_about(plan, cell) for cell in plan.cells)
    left = tuple(cell for cell, about in zip(plan.cells, cells, strict=True) if not about["finished"])
    rest = estimate(replace(plan, cells=left)) if len(left) < len(cells) else cost
    problems: list[str] = []
    notes: list[str] = []
    for model in plan.models.values():
        _check_model(plan, model, problems, notes)
    place = next(folder for folder in (plan.folder.absolute(), *plan.folder.absolute().parents) if folder.is_dir())
    needed = rest.run_bytes + rest.feature_bytes + (rest.download_bytes if left else 0)
    return Preflight(cells, needed, shutil.disk_usage(place).free, tuple(problems), tuple(notes))


def _about(plan: ReproducePlan, cell: ReproduceCell) -> dict[str, Any]:
    from repflow.store import list_runs

    path = plan.folder / cell.name
    stored = list_runs(path) if path.is_dir() else []
    return {
        "run": cell.name,
        "study": "probe" if cell.probes else "measure",
        "model": cell.key.model,
        "task": cell.key.task,
        "length": cell.config.length,
        "states": cell.key.kind,
        "init": cell.key.init,
        "finished": bool(stored and stored[0].finished and not stored[0].damaged),
    }


def _check_model(plan: ReproducePlan, model: StandIn, problems: list[str], notes: list[str]) -> None:
    """Configuration, tokenizer and lengths of one model."""
    from repflow.models.load import hub_reachable, read_config
    from repflow.models.spec_tokenizer import spec_tokenizer
    from repflow.studies.engine.size import local_source

    where = f"{model.role} ({model.spec})"
    if _made_later(model):
        _check_lengths(plan, where, TINY[model.role], notes)
        return
    try:
        source = local_source(model.spec)
        config = None if source is None else read_config(source, False)
    except (InputError, OSError) as error:
        problems.append(f"{where}: {error}")
        return
    if config is None:
        reachable = hub_reachable()
        remedy = f"download it first, or name a folder: --model {model.role}=FOLDER"
        found = "looked at once it is downloaded" if reachable else f"not here, and the hub cannot be reached; {remedy}"
        (notes if reachable else problems).append(f"{where}: {found}")
    else:
        _check_lengths(plan, where, config.to_dict(), notes)
    asked = [task for task in plan.tasks if task not in DRAWN]
    known = config is not None or (model.tokenizer is not None and Path(model.tokenizer).exists())
    if asked and known and spec_tokenizer(model.spec, model.tokenizer)[0] is None:
        named = f"in {model.tokenizer}" if model.tokenizer else "beside it"
        problems.append(f"{where}: no tokenizer {named}, which {', '.join(asked)} needs; pass --tokenizer")


def missing_models(specs: Mapping[str, str]) -> list[str]:
    """What cannot be had of the models that stand for some roles, as sentences; those made by the run itself can."""
    from repflow.models.load import hub_reachable, read_config
    from repflow.studies.engine.size import local_source

    found = []
    for role, spec in specs.items():
        if Path(spec).name in TINY_NAMES.values() and not Path(spec).exists():
            continue
        remedy = f"download it first, or name a folder: --model {role}=FOLDER"
        try:
            source = local_source(spec)
            if source is not None:
                read_config(source, False)
            elif not spec.endswith(".gguf") and not hub_reachable():
                found.append(f"{role} ({spec}): not here, and the hub cannot be reached; {remedy}")
        except (InputError, OSError) as error:
            found.append(f"{role} ({spec}): {error}")
    return found


def _made_later(model: StandIn) -> bool:
    """Whether it is a tiny model that the run itself makes."""
    return not model.own and Path(model.spec).name == TINY_NAMES[model.role] and not Path(model.spec).exists()


def _check_lengths(plan: ReproducePlan, where: str, config: dict[str, Any], notes: list[str]) -> None:
    limit = config.get("max_position_embeddings") or config.get("n_positions")
    over = [tokens for tokens in plan.lengths.values() if limit and tokens > limit]
    if over:
        shown = ", ".join(short_length(tokens) for tokens in over)
        notes.append(f"{where}: takes at most {limit} tokens, so {shown} is stored as a run that cannot be")
