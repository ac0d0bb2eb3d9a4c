"""Matrices of similar cases: `make test` runs a named sample of them, `make test-all` every one.

A sample names its cases, so that what CI leaves out can be read here or beside the test, and a case that has gone is
an error. Where a matrix is that of architectures the sample is `ARCHITECTURES`.

| matrix | in CI | left out |
|---|---|---|
| guides and pages of docs (tests/docs) | all but those of long studies run | `LONG`: only read |
| decoders of transformers (tests/models) | rows with something of their own, a third and a sixth | the usual rows |
| architectures × checks | `ARCHITECTURES`, `SCANS`, attention's own | others of the same ways |
| interpreted kernels | every kernel, forward and backward | `REST`: more shapes; influence, the zoo's Bamba on them |
| journeys (tests/test_journeys.py) | every command with two of six models | the other pairs |
| recipes × scales (test_conformance.py) | plans of all; dry runs at tiny, zoo and paper | dry runs at lab |
| phases of laboratories (tests/tools) | the token laboratory's | recall, pixels and depth, by the same code |
| engines of workers (tests/studies/scale) | processes, Ray, batch files, local jobs by the guide | killed local jobs |
| pages at two widths in two themes (tests/report/page) | each width and each theme | the other pairs |
| kills (tests/faults) | few of commands and studies, all of the store | `make faults` |
| damaged files (tests/faults/test_fuzz.py) | 500 | `make fuzz` |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

ARCHITECTURES = ("gpt2", "gpt_neox", "mamba", "mamba2", "rwkv", "bamba", "zamba2", "nemotron_h", "qwen3_next")
"""Of those that repflow names: each way that a block mixes tokens or stands in the stream, once.

Learned positions, blocks in parallel, S6, SSD, a recurrence of its own, a hybrid, shared blocks beside SSMs, blocks
without a mixer, the delta rule. Left out: others of the same ways (llama, gpt_neo, falcon_mamba, jamba, falcon_h1,
granitemoehybrid, recurrent_gemma, lfm2, xlstm, qwen2, opt, phi, gemma2). tests/models/test_decoders.py loads, measures,
ablates and reads every one of them in CI, test_load.py writes and loads them.
"""
SCANS = ("mamba", "mamba2", "zamba", "zamba2")
"""Of the architectures with a scan: S6 and SSD, each bare and in heads or groups of a hybrid."""


def sampled(cases: Iterable[Any], ci: Collection[Any] = ARCHITECTURES) -> list[Any]:
    """Parameters of a test, of which all but those that are named in `ci` carry the mark `slow`.

    A case of several values is named by its first.

    >>> [len(case.marks) for case in sampled(["gpt2", "llama", ("mamba", 4)])]
    [0, 1, 0]
    """
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*row, marks=() if row[0] in ci else pytest.mark.slow) for row in rows]


def chosen(cases: Iterable[Any], ci: Collection[Any]) -> list[Any]:
    """As `sampled`, with a sample of this matrix alone, every case of which must be there."""
    rows = list(cases)
    missing = set(ci) - {row[0] if isinstance(row, tuple) else row for row in rows}
    assert not missing, f"a sample names cases that are not there: {sorted(map(str, missing))}"
    return sampled(rows, ci)
