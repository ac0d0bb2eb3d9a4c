"""`repflow --timings COMMAND`: where the time went, on stderr, after any end of the command."""

import re

import pytest

from repflow.core.seconds import PHASES


@pytest.mark.parametrize("line", [("zoo", "list"), ("list", "nowhere"), ("measure", "zoo:nothing")])
def test_seconds_by_phase_sum_to_the_whole(process, line):
    said = process("--timings", *line).err
    last = said.strip().splitlines()[-1]
    assert last.startswith("seconds: ")
    parts = dict(re.findall(r"(\w+) ([\d.]+)[,;]", last))
    assert set(parts) <= set(PHASES)
    whole = float(re.search(r"([\d.]+) in all", last)[1])
    assert abs(sum(map(float, parts.values())) - whole) <= 0.01 * len(PHASES)


def test_nothing_is_said_unless_asked(process):
    assert "seconds:" not in process("zoo", "list").err
