"""Recipes of paper 1's figures and tables: which models, tasks, lengths and inits each needs, and what it prints.

Each model, task, length, init and kind of state is a run of its own in `OUT/flow-SCALE`, shared between recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, nearest, teach
from repflow.core.results import Finding, Result
from repflow.papers import values as papers
from repflow.studies.engine.loading import identity
from repflow.studies.measure import MeasureConfig
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.reproduce.comparison import curve, judge, ours, score, verdicts
from repflow.studies.reproduce.config import KINDS, ReproduceConfig
from repflow.studies.reproduce.models import stand_in_labels
from repflow.studies.reproduce.recipe import FLOW_TAKEN, Recipe, ReproduceCell, ReproducePlan, short_hash
from repflow.studies.reproduce.row import PRINTED, PROBED, Key, Row, rows
from repflow.studies.reproduce.statement import Ours

if TYPE_CHECKING:
    from repflow.studies.engine.cells import Outcome
    from repflow.studies.reproduce.models import StandIn

LARGE = tuple(model for model in papers.MODELS if model != "Mamba2-130M")
PAIR = ("GPT-Neo-2.7B", "Mamba2-2.7B")
BOTH_TASKS = tuple(papers.TASKS)
TWINS = ("gaussian", "xavier", "he")
"""Random schemes of section 3.2."""
SAMPLES = {"tiny": 4, "zoo": 16, "paper": 100}
"""Prompts per measured cell; the paper does not say how many it used."""
PROBE_TESTS = 2000
"""Test prompts of a probe at scale paper, which does not say how many it took."""
PROBE_PROMPTS = {"tiny": 80, "zoo": 500, "paper": papers.PROBE_TRAINING + PROBE_TESTS}
"""Prompts per probed cell: six of ten train, so that the paper's 20,000 do."""
PROBE_SEEDS = {"tiny": 2, "zoo": 2, "paper": papers.PROBE_SEEDS}
LENGTHS = {
    "tiny": dict(zip(papers.LENGTHS, (240, 360, 440, 560), strict=True)),
    "zoo": dict(zip(papers.LENGTHS, (256, 340, 448, 512), strict=True)),
}
"""Tokens that stand for the paper's; those of the zoo go up to what the built-in models were trained on."""
TINY_BATCH = 80
"""All prompts at once: transformers' own scan walks token by token, so that a batch costs what a prompt does."""


@dataclass(frozen=True, kw_only=True)
class FlowRecipe(Recipe):
    """One figure or table of paper 1.

    Attributes:
        name: as the command line spells it.
        quantities: what is compared: layer_cosine, token_similarity, cka, peak_layer, or quantities of the tables.
        roles: the paper's models in it.
        tasks: tasks; their mean is compared where there are two, except in Table 2.
        lengths: the paper's context lengths.
        inits: weights.
        by_task: each task has values of its own.
        note: how it is read where the paper leaves that open.
    """

    name: str
    quantities: tuple[str, ...]
    roles: tuple[str, ...] = LARGE
    tasks: tuple[str, ...] = BOTH_TASKS
    lengths: tuple[int, ...] = (papers.FIGURE_LENGTH,)
    inits: tuple[str, ...] = ("trained",)
    by_task: bool = False
    note: str = ""
    takes = FLOW_TAKEN
    stored_as = ""

    @property
    def metrics(self) -> list[str]:
        """Metrics that its cells measure; those of most recipes are the same, so that they share cells."""
        return ["cka_matrix"] if "cka" in self.quantities else ["default", *PRINTED.values()]

    def has(self, model: str, length: int) -> bool:
        """Whether the paper measured a model at a length; Transformers stop at their 2048 positions."""
        positions = papers.CHECKPOINTS[model].positions
        return positions is None or length <= positions

    def settled(self, config: ReproduceConfig) -> ReproduceConfig:
        """Kinds of state in one order; ones that there are not, and more lengths than the recipe has, are refused."""
        if not config.states:
            raise InputError(teach(f"--states {', '.join(KINDS)}", "none", "name at least one"))
        for kind in config.states:
            if kind not in KINDS:
                raise InputError(teach(f"--states {', '.join(KINDS)}", repr(kind), nearest(kind, KINDS)))
        if len(config.lengths) > len(self.lengths):
            got, most = f"{len(config.lengths)} lengths", len(self.lengths)
            whole = ", ".join(map(papers.short_length, self.lengths))
            raise InputError(teach(f"at most {most} lengths for {self.name}", got, f"they stand for {whole}"))
        return replace(config, states=[kind for kind in KINDS if kind in config.states])

    def tasks_run(self, config: ReproduceConfig) -> tuple[str, ...]:
        """Tasks that are run."""
        return tuple(dict.fromkeys(config.tasks)) or self.tasks

    def lengths_run(self, config: ReproduceConfig) -> dict[int, int]:
        """The paper's length → tokens that are run for it."""
        known = LENGTHS.get(config.scale, {})
        tokens = config.lengths or [known.get(length, length) for length in self.lengths]
        return dict(zip(self.lengths, tokens, strict=False))

    def printed(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> list[Row]:
        """Printed values of the models, tasks and lengths that are run."""
        return rows(self, tuple(models), self.tasks_run(config), self.lengths_run(config))

    def cells(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> Iterator[ReproduceCell]:
        """Cells by model and init, so that a model is loaded once."""
        for role, model in models.items():
            for init in self.inits:
                for task in self.tasks_run(config):
                    for length, tokens in self.lengths_run(config).items():
                        if not self.has(role, length):
                            continue
                        for kind in config.states:
                            shared = _shared_options(config, model, task, tokens, init, kind)
                            if set(self.quantities) - {*PROBED}:
                                yield _named(Key(role, task, length, init, kind), _measure(config, self, shared))
                            if set(self.quantities) & {*PROBED}:
                                yield _named(Key(role, task, length, init, kind, probed=True), _probe(config, shared))

    def compare(self, plan: ReproducePlan, outcomes: Sequence[Outcome]) -> Result:
        """Ours (row, kind) beside the printed values, the curves behind them, and a verdict for each model.

        A row that needs an unfinished cell is NaN.
        """
        kinds, tasks = plan.config.states, self.tasks_run(plan.config)
        printed: Any = plan.printed
        results: dict[Key, Result] = {o.cell.key: o.result for o in outcomes if o.result is not None}  # type: ignore[attr-defined]
        values = [[ours(row, kind, results, tasks, self.inits) for kind in kinds] for row in printed]
        untrained = [role for role, model in plan.models.items() if not model.trained]
        arrays = _comparison(printed, values, untrained)
        axes: dict[str, tuple[str, ...]] = {name: ("row", "kind")[: array.ndim] for name, array in arrays.items()}
        _add_curves(arrays, axes, self.quantities, results)
        labels = stand_in_labels(plan.config, self.roles, plan.models, {key.model: r for key, r in results.items()})
        judged = verdicts(printed, values, kinds, labels, untrained)
        chances = [_chance(row, kinds, results, tasks) for row in printed]
        facts = {
            "note": self.note,
            "kinds": list(kinds),
            "rows": [asdict(row) | {"chance": chance} for row, chance in zip(printed, chances, strict=True)],
            "models": {role: asdict(model) for role, model in plan.models.items()},
            "lengths": {str(length): tokens for length, tokens in self.lengths_run(plan.config).items()},
            "verdicts": [asdict(verdict) | {"message": verdict.message} for verdict in judged],
            "labels": labels,
        }
        findings = [Finding("verdict", None, verdict.message) for verdict in judged]
        if "mdqa" in tasks and plan.config.documents is None:
            message = "mdqa with made-up documents; the paper took those of Liu et al. (2024): --documents FILE"
            findings.append(Finding("made_up_documents", None, message))
        return Result(arrays, axes, {}, facts, findings)

    def made_with(self, results: Sequence[Result]) -> dict[str, Any]:
        """Versions and device of the runs."""
        from repflow.capture.provenance import machine

        return machine(str(results[0].provenance["device"]))


def _shared_options(
    config: ReproduceConfig, model: StandIn, task: str, tokens: int, init: str, kind: str
) -> dict[str, Any]:
    """Options of both studies. Each model fills the length with its own tokens, as the paper's n is in tokens."""
    options: dict[str, Any] = {
        "model": model.spec, "tokenizer": model.tokenizer, "task": task, "length": tokens, "seed": config.seed,
        "init": init, "states": kind, "dtype": config.dtype, "device": config.device, "match": "tokens",
        "scan": config.scan,
        "batch_size": TINY_BATCH if model.made_here and config.batch_size is None else config.batch_size,
    }  # fmt: skip
    if task == "kvpr":
        options["format"] = config.format
    if task == "mdqa":
        options["documents"] = config.documents
    return options


def _measure(config: ReproduceConfig, chosen: FlowRecipe, shared: dict[str, Any]) -> MeasureConfig:
    samples = SAMPLES[config.scale] if config.samples is None else config.samples
    return MeasureConfig(**shared, samples=samples, metrics=chosen.metrics)


def _probe(config: ReproduceConfig, shared: dict[str, Any]) -> ProbeConfig:
    """The paper's probe: raw features, its rate and epochs, seeds that redraw the initialisation alone."""
    counted = config.scale == "paper" and config.probe_samples is None
    return ProbeConfig(
        **shared,
        train=papers.PROBE_TRAINING if counted else None,
        test=PROBE_TESTS if counted else None,
        samples=PROBE_PROMPTS[config.scale] if config.probe_samples is None else config.probe_samples,
        seeds=PROBE_SEEDS[config.scale] if config.probe_seeds is None else config.probe_seeds,
        seeds_vary="init",
        recipes=["paper"],
        epochs=papers.PROBE_EPOCHS,
        rate=papers.PROBE_RATE,
        controls=[],
        answers=0,
        lens=0,
        allow_leak=config.allow_leak,
    )


def _named(key: Key, config: MeasureConfig | ProbeConfig) -> ReproduceCell:
    """A cell with a readable name and a hash of its whole configuration, so that recipes share what is the same."""
    from repflow.store import safe_name

    study = "probe" if key.probed else "measure"
    request = identity(config)
    request.pop("allow_leak", None)  # says whether a run may go on, not what it is
    parts = [study, key.model, key.task, str(config.length), *([key.init] if key.init != "trained" else []), key.kind]
    return ReproduceCell(safe_name("-".join([*parts, short_hash([study, request])])), config, key=key, role=key.model)


def _comparison(
    printed: Sequence[Row], values: Sequence[Sequence[Ours]], untrained: Sequence[str]
) -> dict[str, np.ndarray]:
    """Ours with its interval, the printed interval, the distance, and whether ours is shown within the tolerance."""

    def table(entry: Callable[[Row, Ours], float | None]) -> np.ndarray:
        cells = [[entry(row, value) for value in line] for row, line in zip(printed, values, strict=True)]
        return np.array(cells, dtype=np.float64).reshape(len(printed), -1)  # None is NaN

    return {
        "ours": table(lambda _, value: value.value),
        "ours_low": table(lambda _, value: value.interval[0]),
        "ours_high": table(lambda _, value: value.interval[1]),
        "printed_low": np.array([row.low for row in printed]),
        "printed_high": np.array([row.high for row in printed]),
        "score": table(lambda row, value: score(row, value.value)),
        "within": table(lambda row, value: judge(row, value, untrained=untrained)[0]),
    }


def _chance(row: Row, kinds: Sequence[str], results: Mapping[Key, Result], tasks: Sequence[str]) -> float | None:
    """Chance level of an accuracy in percent, the mean over tasks."""
    if row.quantity != "accuracy":
        return None
    wanted = [task for task in tasks if row.task in ("mean", task)]
    keys = [Key(row.model, task, row.length, "trained", kinds[0], probed=True) for task in wanted]
    chances = [float(results[key]["probe_chance"]) for key in keys if key in results]
    return 100 * float(np.mean(chances)) if chances else None


SHOWN = {"cka": "cka_pooled", "layer_cosine": "layer_cosine", "token_similarity": "token_similarity"}
"""Quantity → curve of a measured run that its figure draws."""


def _add_curves(
    arrays: dict[str, np.ndarray],
    axes: dict[str, tuple[str, ...]],
    quantities: Sequence[str],
    results: Mapping[Key, Result],
) -> None:
    """What a figure draws, under MODEL/TASK/LENGTH/INIT/KIND/METRIC."""
    for quantity in [name for name in quantities if name in SHOWN]:
        for key, result in results.items():
            if not key.probed:
                name = _curve_name(key, SHOWN[quantity])
                arrays[name] = curve(result, quantity)
                axes[name] = ("layer",) if quantity == "layer_cosine" else ("state",) * arrays[name].ndim
    for key, result in results.items():
        if key.probed:
            name = _curve_name(key, "probe_accuracy")
            arrays[name], axes[name] = curve(result, "probe/paper/accuracy"), ("state",)


def _curve_name(key: Key, metric: str) -> str:
    return "/".join([key.model, key.task, papers.short_length(key.length), key.init, key.kind, metric])


RECIPES: dict[str, FlowRecipe] = {
    recipe.name: recipe
    for recipe in (
        FlowRecipe(name="flow-fig1", quantities=("layer_cosine",)),
        FlowRecipe(name="flow-fig2", quantities=("token_similarity",)),
        FlowRecipe(
            name="flow-fig3",
            quantities=("token_similarity",),
            roles=PAIR,
            inits=("trained", *TWINS),
            note="printed for random weights whatever the scheme; ours is the mean over gaussian, xavier and he",
        ),
        FlowRecipe(
            name="flow-fig4",
            quantities=("cka",),
            note="the paper does not say which CKA estimator it used: unbiased here",
        ),
        FlowRecipe(
            name="flow-fig5",
            quantities=("layer_cosine",),
            roles=PAIR,
            tasks=("kvpr",),
            note="Figure 5 has no printed value: compared with those of Figure 1, which averages both tasks",
        ),
        FlowRecipe(
            name="flow-fig6",
            quantities=("cka",),
            roles=PAIR,
            tasks=("kvpr",),
            note="Figure 6 has no printed value: compared with those of Figure 4, which averages both tasks",
        ),
        FlowRecipe(name="flow-fig7", quantities=("peak_layer", "accuracy", "drop"), tasks=("mdqa",), by_task=True),
        FlowRecipe(name="flow-table1", quantities=papers.QUANTITIES, roles=papers.MODELS, lengths=papers.LENGTHS),
        FlowRecipe(
            name="flow-table2", quantities=papers.QUANTITIES, roles=papers.MODELS, lengths=papers.LENGTHS, by_task=True
        ),
    )
}
