"""What a probed Result says of the state to read from and of the loss from there to the last state.

One statement, from one statistic: the terminal, findings, diagnosis, page and JSON all take theirs from here. Never
imports torch.

The loss is the accuracy at the state that validation chose minus that at the last state, on the same test prompts, an
accuracy below chance counted as chance. It is claimed where `intermediate_beats_final` is stored: the interval
covers refitting and lies above 0, and the loss survives probes fitted on half the training prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from repflow.core.intervals import Band
from repflow.core.results import Result

POINTS = 100.0
VARIED = {
    "split": "splits of the same prompts",
    "all": "sets of prompts",
    "init": "initialisations on one split",
    "": "seeds",
}
"""What seeds differ in, by what is stored; older runs have nothing."""


class Number(NamedTuple):
    """A value and its 95 % interval; NaN ends where there is none."""

    value: float
    low: float = float("nan")
    high: float = float("nan")

    @classmethod
    def of(cls, band: Band, place: int | tuple[()] = ()) -> Number:
        """One entry of a band."""
        return cls(*(float(np.asarray(part)[place]) for part in (band.mean, band.low, band.high)))

    def text(self, form: str = ".1f", scale: float = POINTS) -> str:
        """The value, followed by its interval where there is one."""
        if not np.isfinite([self.low, self.high]).all():
            return f"{scale * self.value:{form}} (no interval)"
        return f"{scale * self.value:{form}} [{scale * self.low:{form}}, {scale * self.high:{form}}]"

    def over(self, scale: float) -> Number:
        """The same divided by a number."""
        return Number(self.value / scale, self.low / scale, self.high / scale)


@dataclass(frozen=True)
class Counts:
    """Prompts behind a claim, of one seed (mean), and what the seeds vary.

    Attributes:
        train: prompts that the probes are fitted on.
        valid: prompts that choose penalty, recipe and state.
        test: prompts that are reported.
        seeds: repetitions.
        vary: `split`, `all` or `init`; "" where it is not stored.
        covers_refits: whether intervals hold for probes fitted on other prompts.
    """

    train: int
    valid: int
    test: int
    seeds: int = 1
    vary: str = ""
    covers_refits: bool = False

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Counts:
        """From the provenance of a probe."""
        sizes = np.asarray(about["split_sizes"], dtype=float)
        train, valid, test = (round(float(part)) for part in sizes.mean(0))
        vary = str(about.get("seeds_vary", ""))
        return cls(train, valid, test, len(sizes), vary, bool(about.get("covers_refits", False)))

    def __str__(self) -> str:
        text = f"fitted on {self.train}, tested on {self.test} prompts"
        return text if self.seeds == 1 else f"{text}, {self.seeds} {VARIED[self.vary]}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


@dataclass(frozen=True)
class ReadOut:
    """The best state to read from and the loss from there to the last state.

    Attributes:
        label: what was probed for.
        classes: classes of the label.
        chance: accuracy of guessing.
        peak: state that validation chose.
        peaks: each seed's own choice.
        last: the last state.
        tied: states that cannot be distinguished from the peak, the peak among them.
        accuracy: test accuracy at the seeds' own choices; NaN where no state could be probed.
        last_accuracy: test accuracy at the last state; NaN where it could not be probed.
        loss: accuracy minus last_accuracy, below chance counted as chance.
        shown: whether an earlier state may be said to beat the last one.
        counts: prompts behind it; None where they are not stored.
        half: the loss with probes fitted on half the training prompts, where that was requested.
        blocks: block (from 1) of each entry, where states are branches; empty where entry n is state n.
    """

    label: str
    classes: int
    chance: float
    peak: int
    peaks: tuple[int, ...]
    last: int
    tied: tuple[int, ...]
    accuracy: Number
    last_accuracy: float
    loss: Number
    shown: bool
    counts: Counts | None = None
    half: Number | None = None
    blocks: tuple[int, ...] = ()

    @classmethod
    def of(cls, result: Result) -> ReadOut:
        """From a probed Result."""
        about = result.provenance["probe"]
        peak, chance = int(about["peak"]), float(about["chance"])
        top = about["peak_accuracy"]
        accuracy = Number(float("nan") if top is None else float(top))
        if "probe_peak_accuracy" in result.bands:
            accuracy = Number.of(result.bands["probe_peak_accuracy"])
        end = about["last_accuracy"]
        last = float("nan") if end is None else float(end)
        half = Number.of(result.bands["half/probe_drop"]) if "half/probe_drop" in result.bands else None
        return cls(
            str(about["label"]),
            int(about["classes"]),
            chance,
            peak,
            tuple(about["peaks"]),
            int(about["last"]),
            tuple(about["tied"]),
            accuracy,
            last,
            capped(Number.of(result.bands["probe_drop"]), accuracy.value, last, chance),
            bool(about["intermediate_beats_final"]),
            Counts.of(about) if about.get("split_sizes") else None,
            half if half is not None and np.isfinite(half.value) else None,
            branch_blocks(result),
        )

    @property
    def probed(self) -> bool:
        """Whether any state could be probed."""
        return bool(np.isfinite(self.accuracy.value))

    @property
    def last_probed(self) -> bool:
        """Whether the last state could be probed; it cannot where it is not finite."""
        return bool(np.isfinite(self.last_accuracy))

    @property
    def decodable(self) -> bool:
        """Whether the interval of the accuracy at the peak lies above chance."""
        return bool(self.accuracy.low > self.chance)

    @property
    def corrected(self) -> Number:
        """The loss over 1 - chance: 1 where everything above chance is lost."""
        return self.loss.over(1 - self.chance) if self.chance < 1 else Number(float("nan"))

    @property
    def holds(self) -> bool | None:
        """True where a loss is shown, False where its interval lies at or below 0, else None."""
        if self.shown:
            return True
        compared = self.peak != self.last and self.counts is not None and self.counts.covers_refits
        return False if compared and self.loss.high <= 0 else None

    def place(self, entry: int, *, capital: bool = False) -> str:
        """An entry in words: its state, or the block whose branch it is, counted from 1."""
        text = f"block {self.blocks[entry]}" if self.blocks else f"state {entry}"
        return text.capitalize() if capital else text

    def number(self, entry: int) -> int:
        """Number of an entry as it is shown: of its state, or of its block counted from 1."""
        return self.blocks[entry] if self.blocks else entry

    @property
    def chosen(self) -> str:
        """The state that validation chose, and each seed's where these differ from it."""
        return f"{self.place(self.peak)}{self.by_seed}"

    @property
    def by_seed(self) -> str:
        """Each seed's choice, "" where all agree."""
        others = set(self.peaks) - {self.peak}
        return f" (by seed: {', '.join(str(self.number(peak)) for peak in self.peaks)})" if others else ""

    @property
    def beside(self) -> str:
        """Prompts behind a claim, to print after its number; "" where they are not stored."""
        return "" if self.counts is None else f"; {self.counts}"

    @property
    def statement(self) -> str:
        """The loss in words, without the prompts behind it; one sentence without its full stop."""
        name = "block" if self.blocks else "state"
        if not self.probed:
            return "no state is finite, so nothing could be probed"
        if not self.last_probed:
            return f"the last {name} is not finite, so there is nothing to compare it with"
        floor = "" if self.last_accuracy >= self.chance else " (below chance counts as chance)"
        size = f"{self.loss.text()} points of accuracy{floor}"
        if self.shown:
            share = f"{POINTS * self.corrected.value:.1f} chance-corrected"
            half = "" if self.half is None else f"; {self.half.text()} with half the training prompts"
            return f"{self.place(self.peak)} beats the last one by {size}, {share}{half}"
        if self.peak == self.last:
            start = f"validation chose the last {name}, {self.number(self.peak)}{self.by_seed}"
            return f"{start}; no earlier one is shown to beat it: peak minus last {size}"
        if self.holds is False:
            return f"{self.place(self.peak)}, the best earlier one on validation, does not beat the last one: {size}"
        return f"no earlier {name} is shown to beat the last one: peak minus last {size}{self._why_not()}"

    def _why_not(self) -> str:
        """Why an interval above 0 is not called a loss; "" where it is not above 0."""
        if not self.loss.low > 0:
            return ""
        if self.counts is None or not self.counts.covers_refits:
            return ", over test prompts alone: no interval covers refitting"
        if self.half is None:
            return ""
        return f", but {self.half.text()} with half the training prompts"

    def to_json(self) -> dict[str, Any]:
        """Plain values, null for what is not finite."""
        numbers = {name: _plain(getattr(self, name)) for name in ("accuracy", "loss", "corrected", "half")}
        return {
            "label": self.label,
            "statement": self.statement,
            "holds": self.holds,
            "peak": self.number(self.peak),
            "last": self.number(self.last),
            "chance": self.chance,
            "last_accuracy": self.last_accuracy if self.last_probed else None,
            **numbers,
            "prompts": None if self.counts is None else self.counts.to_json(),
        }


def capped(loss: Number, peak: float, last: float, chance: float) -> Number:
    """The loss with accuracies below chance counted as chance, as runs from before this rule need it.

    >>> capped(Number(0.75, 0.5, 1.0), 1.0, 0.25, 0.5)
    Number(value=0.5, low=0.25, high=0.5)
    """
    if not np.isfinite([loss.value, peak, last]).all():
        return loss
    moved = max(peak, chance) - max(last, chance) - loss.value
    most = 1 - chance
    value, low, high = (float(np.clip(part + moved, -most, most)) for part in loss)
    return Number(value, low, high)


def branch_blocks(result: Result) -> tuple[int, ...]:
    """Block, from 1, of each entry where states are branches; empty where entry n is state n."""
    if not str(result.config.get("states", "residual")).startswith("branch"):
        return ()
    own: Sequence[int] | None = result.provenance.get("branch_layers")
    count = len(result["probe_accuracy"]) if "probe_accuracy" in result else 0
    return tuple(block + 1 for block in (own if own is not None else range(count)))


def _plain(number: Number | None) -> dict[str, float | None] | None:
    if number is None:
        return None
    return {name: value if np.isfinite(value) else None for name, value in number._asdict().items()}
