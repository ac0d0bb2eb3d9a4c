"""Paper 3's Figures 3 to 6: simulated from the printed parameters, measured limits beside the theorems' rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.verdict import DOES_NOT, HOLDS
from repflow.dynamics.figures import EIGENVALUES, FIGURES, Panel
from repflow.studies.reproduce.config import ReproduceConfig
from repflow.studies.reproduce.recipe import Recipe, ReproduceCell, ReproducePlan, Said

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.dynamics import Trajectory
    from repflow.studies.engine.cells import Outcome
    from repflow.studies.reproduce.models import StandIn

POINTS = 300


@dataclass(frozen=True)
class Line:
    """One line of the comparison.

    Attributes:
        quantity: what is compared.
        stated: what the paper states or prints.
        theory: what follows exactly, NaN where nothing does.
        measured: what the simulation gives.
        verdict: one of `repflow.core.verdict.WORDS`, and why; a rate that holds is sharp or loose.
        digits: of the numbers, where they are printed.
    """

    quantity: str
    stated: str
    theory: float
    measured: float
    verdict: str
    digits: int = 6

    def to_json(self) -> dict[str, Any]:
        """Fields, with None for a number that is not there or infinite."""
        fields = asdict(self)
        return fields | {name: fields[name] if math.isfinite(fields[name]) else None for name in ("theory", "measured")}


class Simulation(Recipe):
    """A figure of paper 3, simulated from its printed parameters; it needs no model."""

    takes = ("recipe",)
    stored_as = "dynamics-figure"
    work = "1 simulation on the CPU, below a minute; no model"

    def __init__(self, name: str, judged: Callable[[], list[Line]]) -> None:
        self.name = name
        self.judged = judged

    def cells(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> tuple[ReproduceCell, ...]:
        """None: the simulation is part of the comparison."""
        return ()

    def printed(self, config: ReproduceConfig, models: Mapping[str, StandIn]) -> list[Said]:
        """The systems whose parameters the figure prints."""
        return [Said(panel.name, f"paper 3, {panel.source}") for panel in FIGURES[self.name]]

    def compare(self, plan: ReproducePlan, outcomes: Sequence[Outcome]) -> Result:
        """PANEL/t, PANEL/tokens, PANEL/attention ...; the comparison under `provenance["lines"]`."""
        from repflow.core.results import Finding, Result
        from repflow.studies.dynamics.paths import follow, path_arrays, path_facts

        arrays: dict[str, np.ndarray] = {}
        axes: dict[str, tuple[str, ...]] = {}
        panels: dict[str, Any] = {}
        findings: list[Finding] = []
        for panel, printed_sign in _drawn(self.name):
            path = follow(panel.parameters(printed_sign=printed_sign), panel.until, POINTS, paper_sign=printed_sign)
            panel_arrays, named = path_arrays(path, f"{panel.name}/")
            arrays |= panel_arrays
            axes |= named
            panels[panel.name] = {**asdict(panel), **path_facts(path), "source": panel.source}
            findings += [Finding(e.kind.replace("-", "_"), None, f"{panel.name}: {e.message}") for e in path.events]
        facts = {"panels": panels, "lines": [line.to_json() for line in self.judged()]}
        return Result(arrays, axes, {}, facts, findings)

    def made_with(self, results: Sequence[Result]) -> dict[str, Any]:
        """NumPy's work, without torch."""
        from repflow.studies.dynamics.simulate import numpy_machine

        return numpy_machine()


def run(recipe: str, *, out: str | Path | None = None, name: str | None = None) -> Result:
    """Reproduce one figure; as `repflow.studies.reproduce.study.run`.

    Args:
        recipe: `dynamics-fig3` to `dynamics-fig6`.
        out: folder of runs; None keeps the result in memory only.
        name: name of the run in `out`, by default the recipe's.
    """
    from repflow.studies.reproduce import study

    return study.run(ReproduceConfig(recipe=recipe), out=out, name=name)


def _drawn(recipe: str) -> list[tuple[Panel, bool]]:
    """Panels with |a|, then those whose printed a is negative as printed."""
    panels = FIGURES[recipe]
    printed = [(replace(panel, name=f"{panel.name} as printed"), True) for panel in panels if panel.a < 0]
    return [*((panel, False) for panel in panels), *printed]


def _simulate(recipe: str, t: list[float], *, printed_sign: bool = False) -> Trajectory:
    from repflow.dynamics import simulate

    panel = FIGURES[recipe][0]
    return simulate(**panel.parameters(printed_sign=printed_sign), t=t, paper_sign=printed_sign)


def _fig3() -> list[Line]:
    from repflow.dynamics.limits import convergence_limits, printed_sign_slopes

    panel = FIGURES["dynamics-fig3"][0]
    path = _simulate("dynamics-fig3", [1e12])
    limits = convergence_limits(10, mu=panel.io, a=abs(panel.a))
    scaled = 1e6 * np.abs(path.tokens[0])
    scores = 1e12 * np.diag(path.attention_at(0))
    lines = []
    for token in (0, 1, 9):
        theory, measured = float(limits.scaled_tokens[token]), float(scaled[token])
        lines.append(Line(f"√t |x_{token + 1}|, t = 1e12", "O(1)", theory, measured, "holds, sharp: limit not 0"))
    for token in (0, 9):
        theory, measured = float(limits.scaled_diagonal[token]), float(scores[token])
        row = f"{token + 1}"
        lines.append(Line(f"t P_{row},{row}, t = 1e12", "O(1)", theory, measured, "holds, sharp: limit not 0"))
    printed = _simulate("dynamics-fig3", [1e50, 1e100], printed_sign=True)
    slopes = np.diff(printed.log_norms, axis=0)[0] / math.log(1e50)
    for token in (0, 1, 3):
        theory = float(printed_sign_slopes(10, a=panel.a)[token])
        verdict = "holds, sharp" if token == 0 else "holds, loose: printed sign of a"
        lines.append(Line(f"slope of x_{token + 1}, a = -1.08", "-0.5", theory, float(slopes[token]), verdict))
    return lines


def _fig4() -> list[Line]:
    from repflow.dynamics.limits import first_token_estimate, first_token_log_rate
    from repflow.dynamics.step_size import monotone_from

    panel = FIGURES["dynamics-fig4"][0]
    mu, s_delta = float(panel.io), float(panel.s_delta)  # type: ignore[arg-type]
    path = _simulate("dynamics-fig4", [1.0, 100.0, 1e6, 1e12, 1e48, 1e200])
    first = float(np.max(s_delta * np.array(panel.x0)))
    lines = [Line("max S_Δ x_l(0)", "≤ -2.12 (12)", -monotone_from(), first, "open: (12) not met, no Theorem 4.3")]
    for i, power in ((3, "1e12"), (5, "1e200")):
        log = math.log(path.t[i])
        theory = first_token_estimate(path.t[i], mu=mu, s_delta=s_delta) / log
        lines.append(Line(f"x_1 / ln t, t = {power}", "O(1)", theory, float(path.tokens[i, 0]) / log, "holds, sharp"))
    limit = first_token_log_rate(s_delta=s_delta)
    lines.append(
        Line("its limit 1/|S_Δ|", "O(1)", limit, float(path.tokens[5, 0]) / math.log(1e200), "holds, sharp, slowly")
    )
    for token in (1, 9):
        ratios = path.tokens[:, token] / path.tokens[:, 0]
        stated = f"O((ln t)^{token})"
        verdict = "holds, loose: x_l is Θ(ln t)"
        lines.append(Line(f"x_{token + 1} / x_1, t = 1e200", stated, math.nan, float(ratios[5]), verdict))
    for i, time in ((0, "1"), (1, "100"), (2, "1e6")):
        lines.append(Line(f"max P, t = {time}", "→ 0", math.nan, float(path.attention_at(i).max()), "holds"))
    rest = float(path.attention_at(5)[0, 0] * 1e200 * math.log(1e200))
    lines.append(Line("t ln t P_1,1, t = 1e200", "→ 0 for P", 1.0, rest, "holds, sharp, slowly"))
    return lines


def _fig5() -> list[Line]:
    from repflow.dynamics import blow_up_time, simulate

    parameters = FIGURES["dynamics-fig5"][0].parameters()
    end = blow_up_time(**parameters)
    alone = blow_up_time(**parameters | {"x0": parameters["x0"][:1]})
    near = simulate(**parameters, t=[end.time * (1 - 1e-12)])
    scores = near.attention_at(0)
    token = int(end.token or 0)
    last = len(scores) - 1
    return [
        Line("blow-up time T", "finite", math.nan, end.time, f"holds: token {token + 1} first", 12),
        Line("bound from the proof", f"T ≤ {end.upper_bound:.6f}", end.upper_bound, end.time, "holds, loose"),
        Line("T of token 1 alone", "finite", math.nan, alone.time, "holds", 12),
        Line(f"x_{token + 1} close to T", "→ ∞", math.nan, float(near.tokens[0, token]), "holds"),
        Line(
            f"P_{token + 1},{token} close to T",
            "→ ∞",
            0.0,
            float(scores[token, token - 1]),
            "does not hold: → 0 for j < l0",
        ),
        Line(f"P_{token + 1},{token + 1} close to T", "→ ∞", math.inf, float(scores[token, token]), "holds"),
        Line(f"P_{last + 1},{token + 1} close to T", "→ ∞", math.inf, float(scores[last, token]), "holds"),
        Line(
            f"x_{token + 2} close to T",
            "finite",
            math.inf,
            float(near.tokens[0, token + 1]),
            "does not hold: like ln ln",
        ),
    ]


def _fig6() -> list[Line]:
    from repflow.dynamics import classify_nd, symmetric_eigenvalues

    lines = []
    for panel in FIGURES["dynamics-fig6"]:
        values, _ = symmetric_eigenvalues(np.array(panel.io))
        for value, printed in zip(values, EIGENVALUES[panel.name], strict=True):
            verdict = HOLDS if abs(value - printed) < 5.1e-6 * max(1, abs(printed)) else DOES_NOT
            lines.append(Line(f"{panel.name}: eigenvalue", f"{printed:g}", math.nan, float(value), verdict))
        parameters = panel.parameters()
        guess = classify_nd(
            parameters["io_matrix"], parameters["x0"], s_delta=parameters["s_delta"], a=parameters["a"], until=1e6
        )
        wanted = "→ 0" if guess.verdict == "convergence" else "→ ∞"
        for token, outcome in enumerate(guess.outcomes):
            seen = guess.evidence["times"][token], guess.evidence["norms"][token]
            lines.append(_fate(f"{panel.name}: ", token + 1, outcome, wanted, *seen))
    return lines


def _fate(panel: str, token: int, outcome: str, wanted: str, time: float | None, norm: float | None) -> Line:
    """What becomes of one token; those before one that ends the solution are followed without the later ones."""
    if outcome == "unknown":
        return Line(f"{panel}x_{token}", wanted, math.nan, math.nan, "open: ends with a token before it")
    ends = {"to zero": "→ 0", "grows": "→ ∞", "blows up": "→ ∞", "settles": "finite"}
    verdict = f"{HOLDS if ends[outcome] == wanted else DOES_NOT}: {outcome}"
    if time is None:
        return Line(f"{panel}‖x_{token}‖, t = 1e6", wanted, math.nan, math.nan if norm is None else norm, verdict)
    what = "blow-up of" if outcome == "blows up" else "norm 1000 of"
    return Line(f"{panel}{what} x_{token}, t", wanted, math.nan, time, verdict)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Simulation("dynamics-fig3", _fig3),
        Simulation("dynamics-fig4", _fig4),
        Simulation("dynamics-fig5", _fig5),
        Simulation("dynamics-fig6", _fig6),
    )
}
