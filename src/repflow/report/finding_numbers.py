"""Our number and its interval beside each of the paper's findings, model by model, straight from the runs.

The verdicts are `repflow.paper_findings`; this is what a reader checks them against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from repflow.report.page_interval import Interval, at, over_samples
from repflow.report.page_runs import StoredRun
from repflow.report.section_lines import nan_mean
from repflow.results import Result

SHARE = 3
"""The first and the last third of the blocks are early and late."""
Numbers = Mapping[str, Callable[[Result], Interval | None]]


def _ends(values: np.ndarray, skip: int) -> np.ndarray | None:
    """Late minus early of (state, sample) values."""
    rows = np.asarray(values, dtype=np.float64)[skip:]
    count = max(len(rows) // SHARE, 1)
    return None if len(rows) < 2 else nan_mean(rows[-count:], 0) - nan_mean(rows[:count], 0)


def final_shift(result: Result) -> Interval | None:
    """Cosine at the last block minus the median of the blocks before it, over prompts."""
    if "layer_cosine" not in result or len(result["layer_cosine"]) < 2:
        return None
    by_block = nan_mean(result["layer_cosine"], 2)
    before = [
        np.median(column[np.isfinite(column)]) if np.isfinite(column).any() else np.nan for column in by_block[:-1].T
    ]
    return over_samples(by_block[-1] - np.array(before))


def late_minus_early(result: Result) -> Interval | None:
    """Raw token similarity of the last third of the blocks minus that of the first third, over prompts."""
    if "token_similarity" not in result:
        return None
    ends = _ends(result["token_similarity"], 1)
    return None if ends is None else over_samples(ends)


def neighbour_gain(result: Result) -> Interval | None:
    """CKA between neighbouring states in the last third of the depth minus that in the first, over prompts."""
    if "cka_matrix" not in result:
        return None
    beside = np.stack([result["cka_matrix"][i, i + 1] for i in range(len(result["cka_matrix"]) - 1)])
    ends = _ends(beside, 0)
    return None if ends is None else over_samples(ends)


def _scalar(name: str) -> Callable[[Result], Interval | None]:
    return lambda result: at(result.band(name)) if name in result else None


def _probed(name: str, last: bool = False) -> Callable[[Result], Interval | None]:
    def read(result: Result) -> Interval | None:
        return at(result.bands[name], -1 if last else ()) if name in result.bands else None

    return read


MEASURED: dict[str, Numbers] = {
    "F 3.2.1": {"cosine at the last block minus the median before": final_shift},
    "F 3.2.2": {"similarity, late minus early third": late_minus_early},
    "F 3.2.3": {"similarity, late minus early third": late_minus_early},
    "F 3.3.1": {"CKA of neighbours, late minus early third": neighbour_gain},
    "F 3.3.2": {
        "Sm": _scalar("smoothness"),
        "St": _scalar("stability"),
        "matched Sm": _scalar("matched/smoothness"),
        "matched St": _scalar("matched/stability"),
    },
    "F 3.4.2": {"Sm": _scalar("smoothness"), "St": _scalar("stability")},
}
PROBED: dict[str, Numbers] = {
    "F 3.4.1": {"peak minus last accuracy": _probed("probe_drop")},
    "F 3.4.2": {"accuracy of the last state": _probed("probe_accuracy", last=True)},
    "F 3.4.3": {
        "accuracy of the last state": _probed("probe_accuracy", last=True),
        "peak minus last accuracy": _probed("probe_drop"),
    },
}
BY_LENGTH = ("F 3.4.2",)
"""Findings about length: every run is a row, not one per model."""
RANDOM = ("F 3.2.3",)
"""Findings about random weights."""


def finding_rows(
    code: str, flows: Sequence[StoredRun], probes: Sequence[StoredRun]
) -> list[tuple[StoredRun, str, Interval]]:
    """Run, quantity and value for every number that a finding rests on."""
    rows = []
    for runs, table in ((flows, MEASURED), (probes, PROBED)):
        for run in runs:
            for words, read in table.get(code, {}).items():
                value = read(run.result)
                if value is not None and np.isfinite(value.value):
                    rows.append((run, words, value))
    return rows
