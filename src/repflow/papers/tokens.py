"""Paper 3's printed numbers on trained models, and how rows of trained language models are compared: seed by seed.

Perplexities are of WikiText-103. Models of one seed read the same batches, so a difference of two rows is taken within
each seed, of losses in nats, with Student's 95 % interval over seeds; below three seeds there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repflow.core.intervals import LEVEL, bracketed, student_interval

TABLE2 = {"negative": 17.26, "mixed": 16.84, "positive": 16.71}
TABLE9 = {"negative": (17.28, 0.02), "mixed": (16.82, 0.02), "positive": (16.66, 0.05)}
"""Mean and standard deviation over three seeds."""
UNCONSTRAINED = 16.46
"""Tables 6 and 10: lower than every constrained one."""
TABLE6 = {"mamba": (16.46, 14.97), "h3": (21.61, 20.72), "transformer": (16.98, 13.44)}
"""Without and with reordering."""
TABLE10 = {"mamba": (16.46, 14.97), "mamba+shared": (20.51, 17.77), "mamba-norm": (19.31, 17.82)}
TABLE10 |= {"mamba-conv": (23.38, 21.81)}
TABLE7 = {"IMDB": (88.46, 88.66), "AGNews": (92.08, 92.37)}
"""Accuracy (%) without and with reordering."""
TABLE3 = {"top-1": (81.90, 82.02), "top-5": (95.86, 95.87)}
"""Accuracy (%) on ImageNet without and with reordering, one run each."""
TABLE8 = {"seconds an epoch": (308.0, 322.0), "MB a GPU": (7232.0, 7334.0)}
"""Cost on images, without and with reordering."""
NAMES = {"mamba": "Mamba", "h3": "H3", "transformer": "Transformer", "mamba+shared": "Mamba with shared weights"}
NAMES |= {"mamba-norm": "Mamba without norms", "mamba-conv": "Mamba without convolution"}
NO_SEED = "no seed of both is trained to the end"
"""What a difference says that has none."""
CAUSAL, IDENTITY, RANDOM, LEAKY = "+chunks", "+chunks+identity", "+chunks+random", "+leaky"


@dataclass(frozen=True)
class Difference:
    """One row less another, in nats.

    Attributes:
        mean: over seeds.
        low: bound of the 95 % interval, NaN below three seeds.
        high: likewise.
        seeds: that both have.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def below(self) -> bool | None:
        """True where the first row's loss is shown to be lower, False where it is higher, None where neither."""
        return True if self.high < 0 else False if self.low > 0 else None

    @property
    def above(self) -> bool | None:
        """The other way round."""
        return None if self.below is None else not self.below

    def words(self) -> str:
        """As a change of perplexity.

        >>> Difference(-0.1, -0.12, -0.08, 3).words()
        'perplexity -9.5 % [-11.3, -7.7], 3 seeds'
        >>> Difference(float("nan"), float("nan"), float("nan"), 0).words()
        'no seed of both is trained to the end'
        """
        if not self.seeds:
            return NO_SEED
        mean, low, high = (100 * float(np.expm1(value)) for value in (self.mean, self.low, self.high))
        return f"perplexity {mean:+.1f} %{bracketed(low, high, '+.1f')}{self._seeds()}"

    def nats(self) -> str:
        """As a difference of losses."""
        if not self.seeds:
            return NO_SEED
        return f"{self.mean:+.3f}{bracketed(self.low, self.high, '+.3f')} nats{self._seeds()}"

    def _seeds(self) -> str:
        few = ", too few for an interval" if self.seeds < 3 else ""
        return f", {self.seeds} seed{'' if self.seeds == 1 else 's'}{few}"


@dataclass(frozen=True)
class RowValues:
    """One number per row and seed, such as a loss in nats.

    Attributes:
        values: by row and seed; models that diverged are left out.
    """

    values: Mapping[str, Mapping[int, float]]

    @classmethod
    def of(cls, rows: Sequence[str], seeds: Sequence[int], values: Sequence[float] | np.ndarray) -> RowValues:
        """From one entry per model."""
        table: dict[str, dict[int, float]] = {}
        for row, seed, value in zip(rows, seeds, values, strict=True):
            own = table.setdefault(row, {})
            if value is not None and np.isfinite(value):
                own[int(seed)] = float(value)
        return cls(table)

    def less(self, row: str, other: str, base: RowValues | None = None, *, tests: int = 1) -> Difference:
        """One row less another on the seeds that both have.

        Args:
            row: its values are taken here.
            other: the row to subtract.
            base: where those of the other row are, if not here.
            tests: of which this is one, each at an equal part of the level.

        >>> rows = RowValues({"a": {0: 1.0, 1: 1.1, 2: 1.2}, "b": {0: 2.0, 1: 2.1, 2: 2.2}})
        >>> round(rows.less("a", "b").mean, 3), rows.less("a", "b").below, rows.less("a", "c").below
        (-1.0, True, None)
        >>> near = RowValues({"a": {0: 1.0, 1: 1.1, 2: 1.3}, "b": {0: 1.4, 1: 1.6, 2: 1.6}})
        >>> near.less("a", "b").below, near.less("a", "b", tests=10).below
        (True, None)
        """
        mine, theirs = self.values.get(row, {}), (self if base is None else base).values.get(other, {})
        seeds = sorted(mine.keys() & theirs.keys())
        if not seeds:
            return Difference(np.nan, np.nan, np.nan, 0)
        band = student_interval([mine[seed] - theirs[seed] for seed in seeds], level=1 - (1 - LEVEL) / tests)
        return Difference(float(band.mean), float(band.low), float(band.high), len(seeds))

    def perplexity(self, row: str) -> str:
        """Of a typical training, with its interval."""
        known = list(self.values.get(row, {}).values())
        if not known:
            return "diverged"
        band = student_interval(known)
        low, high = (float(np.exp(side)) for side in (band.low, band.high))
        return f"{float(np.exp(band.mean)):.2f}{bracketed(low, high, '.2f')}"
