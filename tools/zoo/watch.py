"""What is looked at while a model of the zoo trains: losses, speed, retrieval, and the flow of representations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.training.callback import Callback
from tools.zoo.config import TrainConfig
from tools.zoo.data import ZooData
from tools.zoo.evaluate import exact_match
from tools.zoo.fast import fast_forward

if TYPE_CHECKING:
    import torch

    from repflow.training import Moment
    from repflow.training.history import History

MEASURED = (0.0, 0.01, 0.1, 1.0)
"""Parts of the training after which the flow is measured."""
LOOKS = 10
"""Times that retrieval is looked at on the way."""
POINTS = 200
"""Points of a loss curve at most."""
PROMPTS = 8
"""Fixed prompts of each kind that the flow is measured on."""


def flow_steps(config: TrainConfig) -> set[int]:
    """Steps after which the flow is measured."""
    return {round(part * config.steps) for part in MEASURED} if config.measure else set()


def stops(config: TrainConfig) -> tuple[int, ...]:
    """Steps after which something is looked at; before the first step too."""
    looks = {round(config.steps * (look + 1) / LOOKS) for look in range(LOOKS)}
    return tuple(sorted(flow_steps(config) | looks | {0, config.steps}))


class Watch(Callback):
    """Keeps the record of one training."""

    def __init__(self, config: TrainConfig, data: ZooData, record: dict[str, Any], say: Callable[[str], None]) -> None:
        self.config, self.data, self.record, self.say = config, data, record, say
        self._reported = 0
        self._since = time.perf_counter()

    @contextmanager
    def fast(self, network: Any) -> Iterator[None]:
        """Steps run by the fastest parts of a model."""
        with fast_forward(network) as names:
            self.record["fast_modules"] = len(names)
            yield

    def on_evaluate(self, moment: Moment) -> None:
        """Report the steps since the last look; then look at retrieval, and at the flow where it is due."""
        if moment.step > self._reported:
            self._report(self._reported, moment.step, moment.history)
            self._reported = moment.step
        self._look(moment)
        self._since = time.perf_counter()

    def _report(self, start: int, stop: int, history: History) -> None:
        """Print losses and speed of the steps since the last look, and add them to the curve."""
        rows = history.rows(start, stop)
        seconds = time.perf_counter() - self._since
        every = max(1, self.config.steps // POINTS)
        for first in range(0, len(rows), every):
            mean = rows[first : first + every].mean(0)
            entry: dict[str, Any] = {"step": start + min(first + every, len(rows))}
            entry |= {name: float(value) for name, value in zip(history.names, mean, strict=True)}
            self.record["curve"].append(entry)
        tokens = (stop - start) * self.config.batches.batch * self.data.window
        speed = tokens / seconds
        left = (self.config.steps - stop) * seconds / (stop - start)
        self.record.setdefault("tokens_per_second", []).append(speed)
        last = self.record["curve"][-1]
        self.say(
            f"step {stop}: loss {last['loss']:.3f}, prose {last['prose_loss']:.3f}, answers {last['answer_loss']:.3f}; "
            f"{speed / 1e6:.2f} M tokens/s, {left:.0f} s left"
        )

    def _look(self, moment: Moment) -> None:
        step, network = moment.step, moment.network
        if name := self._longest():
            right = self._right(network, name, moment.device)
            self.record["retrieval"].append({"step": step, "set": name, "exact": int(right.sum()), "of": len(right)})
            self.say(f"step {step}: {int(right.sum())} of {len(right)} whole values right on {name}")
        if step in flow_steps(self.config) or (moment.last and self.config.measure):
            self.record["flow"].append({"step": step, **flow(network, self.data, self.config.name, moment.device)})

    def _right(self, network: Any, name: str, device: torch.device) -> np.ndarray:
        """Answers that are right, by the forward pass that trains."""
        import torch

        half = torch.autocast("cuda", dtype=torch.bfloat16, enabled=device.type == "cuda")
        with fast_forward(network), half:
            return exact_match(network, self.data.held_out[name], device)

    def _longest(self) -> str | None:
        names = [name for name in self.data.held_out if name.startswith("kvpr-")]
        return max(names, key=lambda name: int(name.rpartition("-")[2])) if names else None


def flow(network: Any, data: ZooData, name: str, device: torch.device) -> dict[str, Any]:
    """Flow metrics on fixed prompts: held-out prose and the shortest kvpr prompts; means over samples and tokens."""
    from repflow.capture.measure import MeasureOptions, measure_prompts
    from repflow.models import Model
    from repflow.tasks.make import id_prompts

    # on a GPU transformers' own scans: a few short prompts, and no further kernels to compile
    scan = "reference" if device.type == "cuda" else "auto"
    model = Model(network, spec=f"live:{name}", name=name, scan=scan)
    size = min(256, data.window, len(data.valid) // PROMPTS)
    prose = data.valid[: PROMPTS * size].reshape(PROMPTS, size)
    sets: dict[str, Any] = {"prose": prose}
    if names := [name for name in data.held_out if name.startswith("kvpr-")]:
        shortest = data.held_out[min(names, key=lambda entry: int(entry.rpartition("-")[2]))]
        sets["kvpr"] = [row[:size] for row, size in zip(shortest.ids[:PROMPTS], shortest.prompt, strict=False)]
    by_set = {}
    for kind, rows in sets.items():
        prompts = id_prompts([np.asarray(row).tolist() for row in rows], data.vocabulary)
        result = measure_prompts(model, prompts, MeasureOptions(keep_samples=0))
        by_set[kind] = {name: _by_depth(*_tokens_once(result, name)) for name in sorted(result)}
    return by_set


def _tokens_once(result: Any, name: str) -> tuple[Any, tuple[str, ...]]:
    """Values and axes; of a metric per token its mean over all of them, each counted once."""
    axes = result.axes[name]
    if "token" not in axes or not result[name].size:
        return result[name], axes
    return result.token_mean(name, pooled=True), tuple(axis for axis in axes if axis not in ("sample", "token"))


def _by_depth(values: Any, axes: tuple[str, ...]) -> Any:
    """Mean over all axes but depth, as plain numbers."""
    array = np.asarray(values, dtype=np.float64)
    away = tuple(place for place, axis in enumerate(axes) if axis not in ("state", "layer"))
    if not array.size:
        return None
    with np.errstate(invalid="ignore"):
        mean = np.nanmean(array, axis=away) if away else array
    return np.asarray(mean).tolist()
