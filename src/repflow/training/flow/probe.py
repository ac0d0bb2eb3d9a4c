"""A linear probe on every state that is fitted again and again while the model trains, each time from its last weights.

    mean cross-entropy + λ/2 ‖W‖², features z-scored by the training rows

The problem is convex, so that the start changes how many evaluations a fit takes and not where it ends: after a few
training steps the old weights are nearly right. λ is fixed, since a penalty chosen again at each step would move the
curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.metrics.meter import Table
from repflow.probes import Split, three_way_split
from repflow.probes.lbfgs import minimise
from repflow.probes.objective import Objective
from repflow.probes.product import RowMatrix
from repflow.probes.robust import TOLERANCE, SharedRows, masks, standardise
from repflow.probes.rows import plan_rows
from repflow.tasks import Prompts

PENALTY = 0.1
"""λ of the penalty."""
ROWS = 1024


@dataclass
class WarmProbe:
    """Probes of all states.

    Attributes:
        labels: class of each prompt (sample,).
        split: which prompts it is fitted on, and which it is scored on (validation and test together, as λ is fixed).
        warm: start from the weights of the last fit.
        rounds: evaluations of the last fit.
    """

    labels: np.ndarray
    split: Split
    warm: bool = True
    rounds: int = 0
    _point: Tensor | None = field(default=None, repr=False)

    @classmethod
    def of(cls, prompts: Prompts, labels: Sequence[int] | None, seed: int) -> WarmProbe:
        """A probe for the labels given, or the prompts' own."""
        own = [prompt.label for prompt in prompts] if labels is None else list(labels)
        if len(own) != len(prompts) or any(label is None for label in own):
            got = "none" if labels is None else f"{len(own)} for {len(prompts)} prompts"
            remedy = "pass labels=[...], or a task whose prompts have them, such as kvpr"
            raise InputError(teach("a label for every prompt, for probe_accuracy", got, remedy))
        classes = sorted(set(own))  # type: ignore[type-var]
        numbers = np.array([classes.index(label) for label in own])
        if len(classes) < 2:
            raise InputError(teach("labels of two classes at least", f"{len(classes)}", "vary what they stand for"))
        return cls(numbers, three_way_split(numbers, seed=seed))

    def read(self, features: np.ndarray) -> Table:
        """Accuracy of each state's probe on the prompts it was not fitted on; NaN for a state that is not finite.

        Args:
            features: (state, sample, width).
        """
        bad = ~np.isfinite(features).all((1, 2))
        usable = np.where(bad[:, None, None], 0.0, features).astype(np.float32)
        count = int(self.labels.max()) + 1
        plan = plan_rows(
            [self.split], self.labels[None], max_rows=ROWS, device=torch.device("cpu"), dtype=torch.float32
        )
        rows = torch.from_numpy(usable)[:, plan.order].contiguous()
        standardise(rows, plan.n_train_rows)
        targets = torch.from_numpy(self.labels[plan.order.numpy()])[:, None]
        probes = SharedRows(Objective(RowMatrix(rows, split=False), plan, count), targets)
        start = probes.start() if self._point is None or not self.warm else self._point
        every = torch.ones(start.shape[:-1], dtype=torch.bool)
        minimum = minimise(partial(probes.value, PENALTY), start, active=every, tolerance=TOLERANCE)
        self.rounds = minimum.rounds
        self._point = torch.where(torch.from_numpy(bad)[:, None, None], 0.0, minimum.point)
        unseen = masks(plan, [np.concatenate([self.split.valid, self.split.test]).tolist()])
        correct = probes.read(minimum.point).correct[..., 0][:, unseen[:, 0]].double().mean(1).numpy()
        return {"probe_accuracy": (("state",), np.where(bad, np.nan, correct))}
