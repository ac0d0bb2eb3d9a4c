"""What a grid costs before it starts: tokens, time, memory and disk; nothing is trained or written.

Models are counted at their initialisation. Time is a rule of thumb: tokens × layers × width / 64, at the rates below;
at least the time that scans of a row take, token after token, which bounds deep models and long rows. The rates were
measured with Mamba stacks of 2 layers, width 64 and 16 states on rows of 64 to 256 tokens; other mixers, wide heads and
slower machines take longer. On a GPU each training takes seconds to begin. What is read of trained models comes on top.
While a grid trains, the time left is that of the steps just done.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from repflow.studies.laboratory.size import FLOAT, KEPT, StepWork, byte_words, model_cost, step_work, two_digits

if TYPE_CHECKING:
    from repflow.studies.laboratory.cell import Cell
    from repflow.studies.laboratory.config import LaboratoryConfig
    from repflow.studies.laboratory.method import Method

T = TypeVar("T")
RATES = {"side by side": 47e6, "alone": 20e6, "cpu": 2e4}
"""Layers × tokens a second at width 64: 9 models side by side on an H200 (23.6 million tokens/s of 2 layers, rows drawn
and losses logged), one stack there as a CUDA graph (10.3 million), one core of a server CPU (10,000)."""


WALK = 2.2e-6
"""Seconds of a token of a row in a layer of S6, forward and back, where few rows leave most of an H200 idle: 1.65 µs of
the scan (2 models of 16 rows of 1,024 tokens, width 80) and 0.5 of all else (8 of 70 ms a step of 16 such layers). Both
were measured there, their sum was not."""
START = 3.0
"""Seconds on an H200 until a training's steps are replayed: kernels loaded, first steps, graph recorded (2 to 4)."""

LARGE, LARGE_RATE = 30_000_000, 54e12
"""Parameters from which arithmetic, not launches, bounds a training, and its FLOP a second on an H200: a Mamba of 24
layers of width 768 read 131,072 tokens a step in 1.3 s, its start included."""


@dataclass(frozen=True)
class GridCost:
    """What a grid takes.

    Attributes:
        models: cells.
        groups: trainings, each of models side by side or of one.
        tokens: of all models together.
        parameters: of the smallest and the largest model.
        gpu_seconds: on one H200.
        cpu_seconds: on one CPU core.
        memory_bytes: of the largest group, an estimate from above.
        checkpoint_bytes: of the largest group.
    """

    models: int
    groups: int
    tokens: float
    parameters: tuple[int, int]
    gpu_seconds: float
    cpu_seconds: float
    memory_bytes: float
    checkpoint_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"parameters": list(self.parameters)}

    def lines(self, seconds: float | None = None) -> list[str]:
        """For a reader.

        Args:
            seconds: of one call, where calls are bounded.
        """
        low, high = self.parameters
        size = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        how = "all side by side" if self.groups == 1 else f"side by side in {self.groups} groups"
        if self.groups == self.models:
            how = "alone" if self.models == 1 else "one after another"
        calls = ""
        if seconds and self.gpu_seconds > seconds:
            calls = f"; about {-(-self.gpu_seconds // seconds):.0f} calls of {seconds:g} s there"
        return [
            f"trained {how}; {size} parameters each",
            f"time: about {_span(self.gpu_seconds)} on one H200, {_span(self.cpu_seconds)} on one CPU core{calls}",
            f"memory: at most about {byte_words(self.memory_bytes)} at once; half-trained models on disk "
            f"{byte_words(float(self.checkpoint_bytes))}",
        ]


def _span(seconds: float) -> str:
    """A time with its unit.

    >>> _span(42), _span(5400), _span(5e7)
    ('42 s', '1.5 h', '580 days')
    """
    for unit, size in (("days", 172_800), ("h", 3600), ("min", 90)):
        if seconds >= size:
            return f"{two_digits(seconds / {'days': 86_400, 'h': 3600, 'min': 60}[unit])} {unit}"
    return f"{two_digits(seconds)} s"


def estimate(lab: Method[Any], config: LaboratoryConfig) -> GridCost:
    """Add up the cells."""
    parts, costs = _trainings(lab, config, lambda cell, network: model_cost(lab, cell, config, network))
    gpu, cpu = _seconds(parts, {variant: cost.work for variant, cost in costs.items()}, config.steps)
    sizes = [cost.parameters for cost in costs.values()]
    return GridCost(
        models=sum(map(len, parts)),
        groups=len(parts),
        tokens=total_tokens(lab, config),
        parameters=(min(sizes), max(sizes)),
        gpu_seconds=gpu,
        cpu_seconds=cpu,
        memory_bytes=max(sum(costs[cell.variant].bytes for cell in part) for part in parts),
        checkpoint_bytes=max(KEPT * FLOAT * sum(costs[cell.variant].parameters for cell in part) for part in parts),
    )


def gpu_seconds(lab: Method[Any], config: LaboratoryConfig) -> float:
    """Of all trainings on one H200; without their memory, which takes a pass of every kind of model."""
    return _seconds(*_trainings(lab, config, partial(step_work, lab, config=config)), config.steps)[0]


def _trainings(
    lab: Method[Any], config: LaboratoryConfig, cost: Callable[..., T]
) -> tuple[list[list[Cell]], dict[Hashable, T]]:
    """Cells that are trained side by side, and a cost of each kind of model, which is built once for it."""
    from repflow.studies.laboratory.group import groups

    cells = config.grid()
    costs, keys = {}, {}
    for variant, cell in {cell.variant: cell for cell in cells}.items():
        network = lab.build(cell, config)
        keys[variant] = lab.shape(network, cell, config)
        costs[variant] = cost(cell, network=network)
    return [[cells[place] for place in group] for group in groups(lab, config, [keys[c.variant] for c in cells])], costs


def _seconds(parts: Sequence[Sequence[Cell]], works: Mapping[Hashable, StepWork], steps: int) -> tuple[float, float]:
    """Of all trainings on one H200 and on one core.

    >>> from types import SimpleNamespace
    >>> two = [[SimpleNamespace(variant="deep")] * 2]
    >>> [round(float(seconds), 1) for seconds in _seconds(two, {"deep": StepWork(4.7e5, 1000.0)}, 100)]
    [5.0, 4700.0]
    >>> round(_seconds(two, {"deep": StepWork(4.7e5, 1e5)}, 100)[0], 6)
    25.0
    """
    gpu = cpu = 0.0
    for part in parts:
        mine = [works[cell.variant] for cell in part]
        volume = sum(work.volume for work in mine)
        rate = RATES["alone" if len(part) == 1 else "side by side"]
        gpu += START + steps * max(volume / rate, WALK * max(work.walk for work in mine))
        cpu += steps * volume / RATES["cpu"]
    return gpu, cpu


def total_tokens(lab: Method[Any], config: LaboratoryConfig) -> float:
    """Tokens of all models together; needs no model."""
    return float(config.steps * sum(lab.step_tokens(cell, config) for cell in config.grid()))


def cost_words(lab: Method[Any], config: LaboratoryConfig) -> str:
    """Tokens of all models together."""
    count = len(config.grid())
    return f"{count} model{'' if count == 1 else 's'}, {token_words(total_tokens(lab, config))}"


def token_words(tokens: float) -> str:
    """A number of tokens as a reader says it.

    >>> token_words(768), token_words(30_600_000), token_words(3.5e10)
    ('768 tokens', '30.6 million tokens', '35 billion tokens')
    """
    scale, word = next((pair for pair in ((1e9, " billion"), (1e6, " million")) if tokens >= pair[0]), (1.0, ""))
    return f"{f'{tokens / scale:.3g}' if word else f'{tokens:,.0f}'}{word} tokens"
