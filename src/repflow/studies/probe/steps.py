"""ProbeStudy: sentinels, features, fits and controls of one model, in the order in which they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError
from repflow.core.readout import ReadOut
from repflow.core.results import Finding, Result
from repflow.studies.engine.phase import tell
from repflow.studies.probe.answers import answer_table, lens_table
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.probe.part import counts_of, embedding_rows, readings
from repflow.studies.probe.prompts import KEPT_TOKENS, SeedPrompts
from repflow.studies.probe.result import ProbeTable, loss_findings
from repflow.studies.probe.side import Side, Splits, make_splits, twin_config

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.models import Model
    from repflow.probes import Sentinel
    from repflow.studies.engine.feature_sink import Keeper


MANY_PROMPTS = 5_000
"""From here on sentinels are fitted where the model is; fewer are done on a CPU before a GPU's kernels are launched."""


class LeakError(InputError):
    """The label can be read from the prompts alone: a probe's accuracy would say nothing about the states."""


@dataclass
class ProbeStudy:
    """One model and the prompts of every seed.

    Attributes:
        config: what was requested.
        model: the model.
        prompts: of every seed.
        progress: called after each batch.
    """

    config: ProbeConfig
    model: Model
    prompts: SeedPrompts
    progress: Progress | None = None
    _splits: Splits | None = field(default=None, init=False, repr=False)
    _sentinels: list[Sentinel] | None = field(default=None, init=False, repr=False)
    _same_twin: bool = field(default=False, init=False, repr=False)

    @property
    def total(self) -> int:
        """Prompts that run through a model, the twin's included."""
        return sum(self.prompts.samples) * (1 if self.config.twin is None else 2)

    @property
    def feature_bytes(self) -> int:
        """Bytes of all features."""
        states = self.model.state_count(self.config.states) + 1
        rows = sum(self.prompts.samples) * len(readings(self.config))
        return rows * states * self.model.width * 4

    def warn_of_memory(self) -> None:
        """Warn if the fits take more memory than is free; the features themselves are mapped from files."""
        from repflow.capture.forecast import say_short
        from repflow.models.room import free_bytes
        from repflow.probes.budget import SHARE

        device = self.model.device
        free = free_bytes(device)
        need = int(self.feature_bytes * SHARE)
        if free is not None and need > free:
            what = f"fits on {sum(self.prompts.samples):,} prompts"
            say_short(what, need, free, str(device), "pass fewer --samples or --seeds")

    @property
    def splits(self) -> Splits:
        """Splits of every seed."""
        if self._splits is None:
            self._splits = make_splits(self.config, self.prompts, self.model)
        return self._splits

    def sentinels(self) -> list[Sentinel]:
        """What the label can be read from without the model having read anything.

        On all seeds' prompts together, as long as they are few enough to be held at once; else on the first set.
        """
        if self._sentinels is not None:
            return self._sentinels
        from repflow.probes import Split, sentinels

        first = self.prompts.part(0)
        fits = sum(first.lengths) * self.prompts.n_parts <= KEPT_TOKENS
        parts = list(range(self.prompts.n_parts if fits else 1))
        seeds = [seed for seed, part in enumerate(self.prompts.parts) if part in parts]
        sets = [self.prompts.part(number) for number in parts]
        start = np.concatenate([[0], np.cumsum([len(part) for part in sets])])
        moved = []
        for seed in seeds:
            split, shift = self.splits.splits[seed], int(start[parts.index(self.prompts.parts[seed])])
            moved.append(Split(split.train + shift, split.valid + shift, split.test + shift))
        rows = np.concatenate([embedding_rows(self.model, part) for part in sets])
        groups = self.splits.groups
        self._sentinels = sentinels(
            rows if np.isfinite(rows).all() else None,  # a finding of the model's, no reason to stop
            [length for part in sets for length in part.lengths],
            [count for part in sets for count in counts_of(part)],
            [np.asarray(prompt.ids) for part in sets for prompt in part],
            np.concatenate([self.splits.labels[number] for number in parts]),
            moved,
            n_classes=len(self.prompts.classes),
            groups=None if groups is None else groups[: int(start[-1])],
            device=self.model.device if len(rows) >= MANY_PROMPTS else "cpu",
        )
        return self._sentinels

    def check_leaks(self) -> None:
        """Stop where a sentinel reads the label, unless that was allowed."""
        tell(self.progress, "checking for leaks")
        leaks = [sentinel for sentinel in self.sentinels() if sentinel.leaks]
        if leaks and not self.config.allow_leak:
            raise LeakError(
                f"expected prompts whose label only a model can find; got a leak: {', and '.join(map(_leak, leaks))}; "
                "fix the prompts, or pass --allow-leak and read every accuracy against it"
            )

    def result(self, keeper: Keeper) -> Result:
        """Do what is not done yet and put it together."""
        table = ProbeTable(self.config, self.splits)
        side = Side("model", self.config, self.model, self.prompts, keeper, self._shifted(0))
        fits = side.fits(self.splits, self.config.recipes)
        table.add_main(side, fits)
        if states := table.states_to_refit:
            table.add_half(side.half_fit(self.splits, table.recipe, states))
        self._add_controls(table, side)
        for reading in readings(self.config)[1:]:
            problems = side.problems(self.splits, reading)
            table.add_position(reading, side.fitter.fit(f"model-at-{reading}", problems, table.recipe))
        first = self.prompts.part(0)
        if self.config.lens:
            tell(self.progress, "logit lens")
        lens, lens_findings = lens_table(self.model, first, side.features(0), self.config, keeper)
        answers, examples, answer_findings = answer_table(self.model, first, self.config, keeper, self.progress)
        for name, (axes, array) in {**lens, **answers}.items():
            table.add(name, axes, array)
        if self.config.twin is not None:
            self._add_twin(table, keeper)
        tell(self.progress, "intervals")
        result = table.result()
        result.config = asdict(self.config)  # the engine stores its own; what is read below needs the kind of state
        result.provenance = self._about() | {"probe": table.about(self.prompts), "answers": examples}
        read_out = ReadOut.of(result)
        result.provenance["probe"]["read_out"] = read_out.to_json()
        result.findings = [*self.model.findings, *self._leak_findings(), *loss_findings(result, read_out)]
        result.findings += [*table.findings(read_out), *self._control_findings()]
        result.findings += [*self._prompt_findings(), *lens_findings, *answer_findings]
        if self._same_twin:
            text = "the model and its random twin have the same weights: the twin is not a control"
            result.findings.append(Finding("equal_weights", None, text))
        return result

    def read(self, keeper: Keeper) -> None:
        """Read the states that the keeper asks for, without fitting anything to them."""
        tell(self.progress, "reading states")
        Side("model", self.config, self.model, self.prompts, keeper, self._shifted(0)).read()
        if self.config.twin is not None:
            config = twin_config(self.config)
            twin = _load_twin(config, self.model)
            Side("twin", config, twin, self.prompts, keeper, self._shifted(sum(self.prompts.samples))).read()

    def _add_controls(self, table: ProbeTable, side: Side) -> None:
        if "task" in self.config.controls and self.splits.control:
            fit = side.fitter.fit("model-control", side.problems(self.splits, keys=True), table.recipe)
            table.add_control(side.states_of(fit))
        if "capacity" in self.config.controls:
            table.add("probe_capacity", ("state",), side.capacity(self.splits, table.recipe))

    def _add_twin(self, table: ProbeTable, keeper: Keeper) -> None:
        tell(self.progress, "loading the twin")
        config = twin_config(self.config)
        twin = _load_twin(config, self.model)
        self._same_twin = twin.digest() == self.model.digest()
        side = Side("twin", config, twin, self.prompts, keeper, self._shifted(sum(self.prompts.samples)))
        table.add_twin([side.states_of(fit) for fit in side.fits(self.splits, config.recipes)])

    def _shifted(self, start: int) -> Callable[[int, int, int], None] | None:
        """Progress over all parts as one."""
        if self.progress is None:
            return None
        report, total = self.progress, self.total
        before = {"prompts": start, "tokens": 0, "last": 0}

        def call(done: int, count: int, tokens: int) -> None:
            report(before["prompts"] + done, total, before["tokens"] + tokens)
            if done == count:
                before["prompts"] += count
                before["tokens"] += tokens

        call.phase = lambda *words: tell(report, *words)  # type: ignore[attr-defined]
        return call

    def _about(self) -> dict[str, Any]:
        from repflow.studies.engine.prompts import prompt_facts

        first = self.prompts.part(0)
        return {
            "states": self.config.states,
            "branch_layers": self.model.sublayers(self.config.states) if self._branches else None,
            "task": prompt_facts(first),
            "lengths": [list(self.prompts.part(number).lengths) for number in range(self.prompts.n_parts)],
            "sentinels": [asdict(sentinel) for sentinel in self.sentinels()],
        }

    @property
    def _branches(self) -> bool:
        return self.config.states.startswith("branch")

    def _control_findings(self) -> list[Finding]:
        if "task" not in self.config.controls or self.splits.control:
            return []
        text = "no control task, and so no selectivity: the prompts have no keys, or all keys begin alike"
        return [Finding("no_control", None, text)]

    def _prompt_findings(self) -> list[Finding]:
        findings = list(self.prompts.findings)
        if not self.splits.repeated:
            return findings
        text = f"{self.splits.repeated} of {sum(self.prompts.samples)} prompts repeat another one; equal prompts never"
        return [*findings, Finding("repeated_prompts", None, f"{text} part between training, validation and test")]

    def _leak_findings(self) -> list[Finding]:
        findings = [Finding("leak", None, f"leak allowed: {_leak(f)}") for f in self.sentinels() if f.leaks]
        if any(sentinel.blind for sentinel in self.sentinels()):
            text = (
                "too few test prompts to see a leak: not even a sentinel that is always right could be distinguished "
                "from chance"
            )
            findings.append(Finding("leak_check_blind", None, text))
        return findings


def _load_twin(config: ProbeConfig, model: Model) -> Model:
    """The same architecture with random weights, and the same parts taken out."""
    from repflow.interventions import ablate
    from repflow.models import twin

    seed = config.seed if config.init_seed is None else config.init_seed
    return ablate(twin(model, config.init, seed=seed), list(model.ablations))


def _leak(sentinel: Sentinel) -> str:
    return (
        f"{sentinel.name} reads the label with accuracy {sentinel.accuracy:.3f}, over chance {sentinel.chance:.3f} plus"
        f" three standard errors of {sentinel.error:.3f}"
    )
