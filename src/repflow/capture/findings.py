"""What a reader should not miss in a result: sinks, non-finite states, values that depend on precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repflow.core.results import Finding, Result, sample_mean
from repflow.core.spans import spans
from repflow.metrics.meter import Table, position_bins
from repflow.metrics.sinks import TOP

SHARE_LIMIT = 0.5
PRECISION_LIMIT = 0.05
SAME = 1e-5
"""Rounding of a cosine."""


def table_findings(table: Table, lengths: Sequence[int], width: int) -> list[Finding]:
    """Findings about the states themselves, from everything that was measured of them.

    Args:
        table: name → (axes, array).
        lengths: tokens of each sample.
        width: channels of a state.
    """
    return [
        *_nonfinite(table, lengths),
        *_zero_vectors(table, lengths),
        *_idle_blocks(table, lengths),
        *_sinks(table, lengths, width),
    ]


def _nonfinite(table: Table, lengths: Sequence[int]) -> list[Finding]:
    """The first state at which a real token lost its number."""
    if "token_norm" not in table:
        return []
    nonfinite = _lost(table, lengths)
    if not nonfinite.any():
        return []
    state = int(np.flatnonzero(nonfinite.any((1, 2)))[0])
    samples = np.flatnonzero(nonfinite[state].any(-1)).tolist()
    text = f"state {state} is not finite in samples {_few(samples)}; it and what depends on it are null"
    return [Finding("nonfinite_state", state, text)]


def _lost(table: Table, lengths: Sequence[int]) -> np.ndarray:
    """Real tokens whose norm is not finite (state, sample, position)."""
    real = position_bins(max(lengths)) < np.asarray(lengths)[:, None]
    return real & ~np.isfinite(table["token_norm"][1])


def _zero_vectors(table: Table, lengths: Sequence[int]) -> list[Finding]:
    """States whose similarity is undefined although their norms are finite: some token vector is zero."""
    if "token_norm" not in table or "token_similarity" not in table:
        return []
    sound = ~_lost(table, lengths).any(-1)  # a state lost to NaN has a finding of its own
    undefined = np.isnan(table["token_similarity"][1]) & sound & (np.asarray(lengths) > 1)
    if not undefined.any():
        return []
    states, samples = np.flatnonzero(undefined.any(-1)), np.flatnonzero(undefined.any(0)).tolist()
    text = (
        f"at {spans(states)} a token vector is zero in samples {_few(samples)}: cosines with it are undefined, so the"
        " similarity is null; a padding token in a prompt has this effect"
    )
    return [Finding("zero_vector", int(states[0]), text)]


def _idle_blocks(table: Table, lengths: Sequence[int]) -> list[Finding]:
    """Blocks that pass on their input unchanged: every norm stays, bit for bit, and every direction."""
    if "token_norm" not in table or "layer_cosine" not in table:
        return []
    norms, cosines = table["token_norm"][1], table["layer_cosine"][1]
    if len(norms) != len(cosines) + 1:  # branches: their entries do not follow each other
        return []
    real = position_bins(max(lengths)) < np.asarray(lengths)[:, None]
    same = (norms[1:] == norms[:-1]) & (np.abs(cosines - 1) < SAME)
    idle = np.flatnonzero((same | ~real).all((1, 2)))
    if not len(idle):
        return []
    whose = f"all {len(cosines)} blocks change" if len(idle) == len(cosines) else f"{spans(idle + 1, 'block')} change"
    whose = f"block {idle[0] + 1} changes" if len(idle) == 1 else whose
    text = (
        f"{whose} nothing: the state after equals the state before, for every token; was this trained, or switched off?"
    )
    return [Finding("idle_blocks", int(idle[0]), text)]


def _sinks(table: Table, lengths: Sequence[int], width: int) -> list[Finding]:
    # what the largest of n equal entries carry: rows and columns of K, or channels
    even_tokens = np.mean([_limit(1 - max(0.0, 1 - TOP / n) ** 2) for n in lengths])
    findings = []
    for name, code, limit, what, where, advice in (
        (
            "gram_share",
            "sink_tokens",
            even_tokens,
            f"of the centred Gram matrix involves the {TOP} largest tokens",
            "top_tokens",
            "compare the values stored without such tokens",
        ),
        (
            "channel_share",
            "massive_channels",
            _limit(min(1.0, TOP / width)),
            f"of the energy is in the {TOP} largest channels",
            "top_channels",
            "cosines mostly compare these",
        ),
    ):
        if name not in table:
            continue
        share, margin = _mean(table, name), 0.0
        if f"{name}_error" in table:
            margin = 2 * np.nan_to_num(_mean(table, f"{name}_error"))
        over = np.flatnonzero(share - margin > limit)
        if len(over):
            first = int(over[0])
            places = np.unique(table[where][1][first, :, 0]).astype(int).tolist()
            text = (
                f"at {spans(over)} over half {what} (up to {np.nanmax(share[over]):.0%}); at state {first} the largest"
                f" is {where.removeprefix('top_').removesuffix('s')} {_few(places)}; {advice}"
            )
            findings.append(Finding(code, first, text))
    return findings


def _limit(even: float) -> float:
    """Share from which on it is a finding: one half, or with so few entries that equal ones reach it, halfway to 1."""
    return SHARE_LIMIT if even <= SHARE_LIMIT else (1 + even) / 2


def _mean(table: Table, name: str) -> np.ndarray:
    axes, array = table[name]
    return sample_mean(array, axes)


def precision(result: Result) -> list[Finding]:
    """Metrics that float32 would give another value."""
    findings = []
    for name in result:
        if not name.startswith("float32_change/"):
            continue
        change = np.atleast_1d(result[name])
        over = np.flatnonzero((change > PRECISION_LIMIT).any(tuple(range(1, change.ndim))))
        if len(over):
            axis = (*result.axes[name], "")[0]
            where = {"state": spans(over), "layer": spans(over + 1, "block")}.get(axis)
            text = (
                f"{name.removeprefix('float32_change/')} moves by up to {np.nanmax(change):.1%} when {_rerun(result)}"
                f" in float32{f' (at {where})' if where else ''}"
            )
            findings.append(Finding("precision", int(over[0]) if where else None, text))
    return findings


def _rerun(result: Result) -> str:
    """Which part of the run was repeated; older runs repeated their whole first batch."""
    tokens = result.provenance.get("precision_check", {}).get("tokens", [])
    if not tokens:
        return "the first batch is rerun"
    beginnings = f"the first {max(tokens)} tokens of {len(tokens)} prompt{'s' if len(tokens) > 1 else ''}"
    return f"{beginnings} {'are' if max(tokens) > 1 else 'is'} rerun"


def _few(places: list[int]) -> str:
    return ", ".join(map(str, places[:6])) + (", ..." if len(places) > 6 else "")
