"""What is looked at while a model of the zoo trains: losses, speed, retrieval, and the flow of representations."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tools.zoo.data import ZooData
from tools.zoo.evaluate import exact_match

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tools.zoo.train import TrainConfig

POINTS = 200
"""Points of a loss curve at most."""
PROMPTS = 8
"""Fixed prompts of each kind that the flow is measured on."""
CHECK = 50
"""Steps between looks at the clock."""


class Watch:
    """Keeps the record of one training."""

    def __init__(
        self,
        config: TrainConfig,
        data: ZooData,
        network: Any,
        device: torch.device,
        record: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        import torch

        from tools.zoo.train import LOOKS, MEASURED, PARTS

        self.config, self.data, self.network, self.device = config, data, network, device
        self.record, self.say, self._names = record, say, PARTS
        self._flow_at = {round(part * config.steps) for part in MEASURED} if config.measure else set()
        looks = {round(config.steps * (look + 1) / LOOKS) for look in range(LOOKS)}
        self._stops = sorted((self._flow_at | looks | {config.steps}) - {0})
        self._kept = torch.zeros(config.steps, len(PARTS), device=device)
        self._began = self._since = time.perf_counter()

    def next_stop(self, done: int) -> int:
        """Step before which the next look is taken."""
        return next(stop for stop in self._stops if stop > done)

    def keep(self, number: int, parts: Tensor) -> None:
        """Keep the numbers of a step, without waiting for the device."""
        self._kept[number].copy_(parts)

    def late(self, number: int) -> bool:
        """Whether the time is up; the device is waited for now and then, as steps are only queued."""
        if self.config.seconds is None or (number + 1) % CHECK:
            return False
        self._wait()
        return time.perf_counter() - self._began > self.config.seconds

    def _wait(self) -> None:
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def report(self, start: int, stop: int) -> None:
        """Print losses and speed of the steps since the last look, and add them to the curve."""
        self._wait()
        seconds = time.perf_counter() - self._since
        every = max(1, self.config.steps // POINTS)
        rows = self._kept[start:stop].cpu().numpy()
        for first in range(0, len(rows), every):
            mean = rows[first : first + every].mean(0)
            entry: dict[str, Any] = {"step": start + min(first + every, len(rows))}
            entry |= {name: float(value) for name, value in zip(self._names, mean, strict=True)}
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

    def look(self, done: int, *, last: bool = False) -> None:
        """Look at retrieval, and at the flow where it is due."""
        if name := self._longest():
            right = self._right(name)
            self.record["retrieval"].append({"step": done, "set": name, "exact": int(right.sum()), "of": len(right)})
            self.say(f"step {done}: {int(right.sum())} of {len(right)} whole values right on {name}")
        if done in self._flow_at or (last and self.config.measure):
            self.record["flow"].append({"step": done, **flow(self.network, self.data, self.config.name, self.device)})
        self.network.train()
        self._since = time.perf_counter()

    def _right(self, name: str) -> np.ndarray:
        """Answers that are right, by the forward pass that trains."""
        import torch

        from tools.zoo.fast import fast_forward

        half = torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.device.type == "cuda")
        with fast_forward(self.network), half:
            return exact_match(self.network, self.data.held_out[name], self.device)

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
        held = data.held_out[min(names, key=lambda entry: int(entry.rpartition("-")[2]))]
        sets["kvpr"] = [row[:size] for row, size in zip(held.ids[:PROMPTS], held.prompt, strict=False)]
    made = {}
    for kind, rows in sets.items():
        prompts = id_prompts([np.asarray(row).tolist() for row in rows], data.vocabulary)
        result = measure_prompts(model, prompts, MeasureOptions(keep_samples=0))
        made[kind] = {name: _by_depth(*_tokens_once(result, name)) for name in sorted(result)}
    network.train()
    return made


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
