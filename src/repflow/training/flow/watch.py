"""What the callbacks of both trainers share: the meter's options, when the heat map is drawn, and loggers that fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from repflow.core.errors import InputError, nearest, words_of
from repflow.spec.request import check_least
from repflow.training.flow.image import heat_map, mapped_metric
from repflow.training.flow.meter import LOG, PREFIX, FlowMeter
from repflow.training.flow.reading import known_metrics

RUNS = "flow"
"""Folder of histories inside the folder of a training, where `runs` is TensorBoard's."""
OPTIONS = frozenset(inspect.signature(FlowMeter).parameters) - {"model", "prompts", "every"}


class Watch:
    """A meter that is made once the model is known.

    Attributes:
        meter: None before the training, and in all processes but the first.
    """

    def __init__(self, prompts: Any, every: int, options: dict[str, Any]) -> None:
        check_least([("every", every, 1)])
        if unknown := sorted(options.keys() - OPTIONS):
            raise InputError(f"unknown option {unknown[0]!r}; {nearest(unknown[0], OPTIONS)}")
        known_metrics(options.get("metrics", "default"))
        self.meter: FlowMeter | None = None
        self._prompts, self._every, self._options = prompts, every, options
        self._shown = 0
        self._failed: set[int] = set()

    def begin(self, model: Any, step: int, **usual: Any) -> dict[str, float]:
        """Make the meter and read once; `usual` are options that the trainer knows, where the user gave none."""
        options = {name: value for name, value in self._options.items() if value is not None or name == "out"}
        self.meter = FlowMeter(model, self._prompts, self._every, **{**usual, **options})
        self._shown = 0
        return self.meter.measure(step)

    def hand(self, logger: Any, log: Callable[[], Any]) -> None:
        """Call a logger; one that fails is reported and not called again, and the training goes on."""
        if id(logger) in self._failed:
            return
        try:
            log()
        except Exception as error:  # noqa: BLE001  whatever a logger raises
            self._failed.add(id(logger))
            name = type(logger).__name__
            LOG.warning("repflow: %s takes no more of the flow: %s; the training goes on", name, words_of(error))

    def image(self, *, last: bool) -> tuple[str, np.ndarray] | None:
        """Name and image (row, column, colour) of the heat map, at the end and whenever the history has doubled."""
        history = None if self.meter is None else self.meter.history
        count = 0 if history is None else len(history.steps)
        if history is None or count < 2 or count < (self._shown + 1 if last else 2 * self._shown):
            return None
        result = history.result()
        name = mapped_metric(result)
        if name is None:
            return None
        self._shown = count
        return f"{PREFIX}{name}_map", heat_map(result, name)
