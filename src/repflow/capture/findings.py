"""What a reader should not miss in a result: sinks, non-finite states, values that depend on precision."""

from __future__ import annotations

import numpy as np

from repflow.results import Finding, Result, sample_mean

SHARE_LIMIT = 0.5
PRECISION_LIMIT = 0.05


def result_findings(result: Result) -> list[Finding]:
    """All findings that the numbers themselves give."""
    return [*_nonfinite(result), *_sinks(result), *_precision(result)]


def _nonfinite(result: Result) -> list[Finding]:
    """The first state at which every token of some sample lost its number."""
    if "token_norm" not in result:
        return []
    norm = result["token_norm"]
    reference = ~np.isnan(norm[0]) if norm.shape[0] else np.zeros(norm.shape[1:], bool)
    for state in range(norm.shape[0]):
        lost = reference & ~np.isfinite(norm[state])
        if state == 0:
            lost = np.isinf(norm[0]) | (np.isnan(norm[0]).all(-1, keepdims=True) & np.ones_like(reference))
        if lost.any():
            samples = np.flatnonzero(lost.any(-1)).tolist()
            text = f"state {state} is not finite in samples {samples[:8]}; it and what depends on it are null"
            return [Finding("nonfinite_state", state, text)]
    return []


def _sinks(result: Result) -> list[Finding]:
    found = []
    for name, code, what, where in (
        ("gram_share", "sink_tokens", "of the centred Gram matrix lies with the 4 largest tokens", "top_tokens"),
        ("channel_share", "massive_channels", "of the energy lies in the 4 largest channels", "top_channels"),
    ):
        if name not in result:
            continue
        share = sample_mean(result[name], result.axes[name])
        margin = 0.0
        if f"{name}_error" in result:
            margin = 2 * np.nan_to_num(sample_mean(result[f"{name}_error"], result.axes[f"{name}_error"]))
        over = np.flatnonzero(share - margin > SHARE_LIMIT)
        if len(over):
            first = int(over[0])
            places = np.unique(result[where][first, :, 0]).astype(int).tolist()
            text = (
                f"at {_spans(over)} over half {what} (up to {np.nanmax(share[over]):.0%}); at state {first} the largest"
                f" sits at {_few(places)}; compare the values stored without such tokens"
            )
            found.append(Finding(code, first, text))
    return found


def _precision(result: Result) -> list[Finding]:
    found = []
    for name in result:
        if not name.startswith("float32_change/"):
            continue
        change = np.atleast_1d(result[name])
        over = np.flatnonzero(change > PRECISION_LIMIT)
        if len(over):
            state = int(over[0]) if "state" in result.axes[name] or "layer" in result.axes[name] else None
            text = (
                f"{name.removeprefix('float32_change/')} moves by up to {np.nanmax(change):.1%} when the first batch is"
                f" rerun in float32{f' (at {_spans(over)})' if state is not None else ''}"
            )
            found.append(Finding("precision", state, text))
    return found


def _spans(states: np.ndarray) -> str:
    """Name runs of consecutive states.

    >>> _spans(np.array([1, 2, 3, 7]))
    'states 1-3, 7'
    """
    runs = np.split(states, np.flatnonzero(np.diff(states) > 1) + 1)
    return "states " + ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)


def _few(places: list[int]) -> str:
    return ", ".join(map(str, places[:6])) + (", ..." if len(places) > 6 else "")
