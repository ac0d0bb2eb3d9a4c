"""Verify: every closed form of `repflow.theory` beside a simulation, and paper 1's theorems beside its own Table 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, teach
from repflow.studies.engine.naming import Names
from repflow.studies.engine.parts import Sampling, defaults, option
from repflow.studies.engine.phase import steps_of
from repflow.studies.engine.study import Job, Study

if TYPE_CHECKING:
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Finding, Result
    from repflow.models import Model
    from repflow.theory.check import Check

QUICK = 20_000
LEAST = 1_000
NAME = "theory-verify"


@dataclass
@defaults(
    {
        "samples": "draws of a simulation; costly ones take a share of it, cheap ones more",
        "seed": "seed of weights and draws",
    },
    samples=100_000,
)
class VerifyConfig(Sampling):
    """How long to simulate; the fields are the command line's options."""

    quick: bool = option(False, "20,000 draws: a look in seconds, whose noise may exceed 1 %")

    def draws(self) -> int:
        """Draws that the options mean."""
        return min(self.samples, QUICK) if self.quick else self.samples


def groups() -> dict[str, Callable[[Any], list[Check]]]:
    """Checks by the part of the papers they belong to."""
    from repflow.theory.statements import groups as known

    return known()


class TheoryVerify(Study[VerifyConfig, Job[VerifyConfig]]):
    """Every closed form beside a simulation."""

    name = "theory-verify"
    config = VerifyConfig
    one_model = False

    def check(self, config: VerifyConfig) -> None:
        """Refuse too few draws."""
        if config.draws() < LEAST:
            raise InputError(teach(f"--samples of at least {LEAST}", f"{config.samples}", "20,000 take some seconds"))

    def load(self, config: VerifyConfig) -> dict[str, Model]:
        """No model."""
        return {}

    def prepare(
        self, config: VerifyConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> Job[VerifyConfig]:
        """Nothing to prepare."""
        return Job(config, models, None)

    def compute(self, job: Job[VerifyConfig], sink: Sink, progress: Progress | None) -> Result:
        """Run every check; an interrupted run resumes with the next group."""
        by_group = {}
        for group in groups():
            if not sink.has(group):
                _write(sink, group, _checks(group, job.config, progress))
            by_group[group] = _read(sink, group)
        return _result(by_group)

    def names(self, config: VerifyConfig) -> Names:
        """Other draws make another run."""
        parts = [NAME] + [str(config.draws())] * (config.draws() != VerifyConfig().samples)
        name = "-".join(parts + [f"seed{config.seed}"] * bool(config.seed))
        return Names(name, name, name)


STUDY = TheoryVerify()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name


def _checks(group: str, config: VerifyConfig, progress: Progress | None) -> list[Check]:
    from repflow.theory.check import Session

    return groups()[group](Session(config.draws(), config.seed, steps_of(progress, group)))


def _write(sink: Sink, group: str, checks: list[Check]) -> None:
    import numpy as np

    simulated = np.array([check.simulation for check in checks])
    sink.keep(group, {"simulation": simulated}, {"checks": [asdict(check) for check in checks]})


def _read(sink: Sink, group: str) -> list[Check]:
    from repflow.theory.check import Check

    return [Check(**entry) for entry in sink.meta(group)["checks"]]


def _result(by_group: dict[str, list[Check]]) -> Result:
    import numpy as np

    from repflow.core.results import Result

    checks = [check for part in by_group.values() for check in part]
    columns = ("printed", "corrected", "simulation", "error", "gap")
    arrays = {
        column: np.array([np.nan if (v := getattr(check, column)) is None else v for check in checks])
        for column in columns
    }
    rows = [asdict(check) | {"gap": check.gap, "group": group} for group, part in by_group.items() for check in part]
    return Result(arrays, dict.fromkeys(arrays, ("row",)), {}, {"checks": rows}, list(_findings(checks)))


def _findings(checks: list[Check]) -> list[Finding]:
    from repflow.core.results import Finding

    failed = [check for check in checks if check.kind != "data" and not check.passes]
    findings = [Finding("closed_form", None, f"{c.statement}, {c.setting}: {c.verdict}") for c in failed]
    apart = [check for check in checks if check.kind == "data" and not check.passes]
    if apart:
        pairs = "; ".join(f"{check.setting}: {check.verdict}" for check in apart)
        message = (
            f"Theorems 5 and 6 say that a Transformer has the larger St; paper 1's own Table 1 disagrees for {pairs}. "
            "The theorems are about St_L² of residual states without norms, Table 1 about St (Eq. 4) of trained models"
        )
        findings.append(Finding("theory_against_data", None, message))
    return findings
