"""Simulate: the token dynamics of paper 3 for parameters of your own, its scenario, and what the theory says of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.studies.engine.naming import Names
from repflow.studies.engine.parts import option
from repflow.studies.engine.study import Job, Study

if TYPE_CHECKING:
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Result
    from repflow.models import Model


@dataclass
class SimulateConfig:
    """What to simulate; the fields are the command line's options."""

    x0: str = option("", "tokens at t = 0: comma-separated numbers; vectors as rows separated by ; as in 1,2;3,4")
    mu: str = option("", "input-output product S_C'S_B: a number, or a matrix with rows separated by ;")
    s_delta: str = option("", "step-size weight: a number, or a matrix whose row d belongs to channel d")
    a: str = option("1", "decay of A = -a I, positive: a number, or one per channel")
    until: float = option(100.0, "last time")
    points: int = option(200, "times that are kept")
    paper_sign: bool = option(False, "take a negative a as Figures 3 and 4 print it")


def parse_numbers(text: str, option: str) -> np.ndarray:
    """Numbers, or rows of numbers separated by ;.

    >>> parse_numbers("1,2;3,4", "--x0").tolist(), parse_numbers("-1.5", "--mu").tolist()
    ([[1.0, 2.0], [3.0, 4.0]], [-1.5])
    """
    rows = [row.replace(",", " ").split() for row in text.split(";") if row.strip()]
    try:
        numbers = [[float(word) for word in row] for row in rows]
    except ValueError:
        raise InputError(teach(f"numbers in {option}", repr(text), "write 0.5,1.5 or 1,2;3,4")) from None
    if not numbers:
        raise InputError(teach(f"{option}", "nothing", "write 0.5,1.5 or 1,2;3,4"))
    if len({len(row) for row in numbers}) > 1:
        raise InputError(teach(f"{option} with rows of one length", repr(text), "write 0.5,1.5 or 1,2;3,4"))
    return np.array(numbers[0] if len(numbers) == 1 and ";" not in text else numbers)


def parameters(config: SimulateConfig) -> dict[str, Any]:
    """Arguments of `simulate` or `simulate_nd` that the options mean."""
    values = {name: parse_numbers(getattr(config, name), f"--{name.replace('_', '-')}") for name in NAMES}
    vectors = values["mu"].size > 1 or values["x0"].ndim == 2
    x0 = values["x0"].reshape(1, -1) if vectors and values["x0"].ndim == 1 else values["x0"]
    io = {"io_matrix": values["mu"]} if vectors else {"mu": values["mu"]}
    return {"x0": x0, **io, "s_delta": values["s_delta"], "a": values["a"]}


NAMES = ("x0", "mu", "s_delta", "a")


class Simulate(Study[SimulateConfig, Job[SimulateConfig]]):
    """The token dynamics of paper 3 for parameters of your own."""

    name = "dynamics-simulate"
    config = SimulateConfig
    one_model = False

    def check(self, config: SimulateConfig) -> None:
        """Refuse wrong requests, with the library's own checks."""
        from repflow.dynamics import simulate, simulate_nd

        if config.points < 2:
            raise InputError(teach("--points of at least 2", f"{config.points}", "200 draw a smooth line"))
        if not 0 < config.until < float("inf"):
            raise InputError(teach("--until as a positive time", f"{config.until:g}", "such as 100 or 1e12"))
        values = parameters(config)
        run = simulate if "mu" in values else simulate_nd
        run(**values, t=[0.0], paper_sign=config.paper_sign)

    def load(self, config: SimulateConfig) -> dict[str, Model]:
        """No model."""
        return {}

    def prepare(
        self, config: SimulateConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> Job[SimulateConfig]:
        """Nothing to prepare."""
        return Job(config, models, None)

    def machine(self, job: Job[SimulateConfig]) -> dict[str, Any]:
        """NumPy's work, without torch."""
        return numpy_machine()

    def compute(self, job: Job[SimulateConfig], sink: Sink, progress: Progress | None) -> Result:
        """Simulate and classify: t, tokens, log_norms, attention at four moments; scenario and events as facts."""
        from repflow.core.results import Finding, Result
        from repflow.studies.dynamics.paths import follow, path_arrays, path_facts

        config, values = job.config, parameters(job.config)
        path = follow(values, config.until, config.points, paper_sign=config.paper_sign)
        arrays, axes = path_arrays(path)
        facts = {**path_facts(path), "classification": _classified(values, config)}
        findings = [Finding(event.kind.replace("-", "_"), None, event.message) for event in path.events]
        return Result(arrays, axes, {}, facts, findings)

    def names(self, config: SimulateConfig) -> Names:
        """The request's hash, since its numbers do not make a name."""
        name = f"dynamics-{hashlib.sha256(json.dumps(asdict(config), sort_keys=True).encode()).hexdigest()[:8]}"
        return Names(name, name, name)


STUDY = Simulate()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name


def _classified(values: dict[str, Any], config: SimulateConfig) -> dict[str, Any]:
    from repflow.dynamics import classify, classify_nd

    if config.paper_sign and (values["a"] <= 0).any():
        return {"scenario": "unknown", "theorem": "none: they all assume a > 0", "evidence": {}}
    if "mu" in values:
        return asdict(classify(**values))
    outcome = classify_nd(
        values["io_matrix"], values["x0"], s_delta=values["s_delta"], a=values["a"], until=config.until
    )
    return {
        "scenario": outcome.verdict,
        "theorem": "appendix C's conjecture, heuristic",
        "evidence": {
            **outcome.evidence,
            "eigenvalues": outcome.eigenvalues.tolist(),
            "signs": outcome.signs.tolist(),
            "outcomes": list(outcome.outcomes),
        },
    }


def numpy_machine() -> dict[str, Any]:
    """Versions of NumPy and SciPy."""
    from importlib import metadata

    from repflow.version import __version__

    packages = {package: metadata.version(package) for package in ("numpy", "scipy")}
    return {"repflow": __version__, "packages": packages, "device": "cpu"}
