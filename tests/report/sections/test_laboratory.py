"""Lines of laboratories: every one differs from the others without its colour."""

import numpy as np

from repflow.core.results import Result
from repflow.report.data.laboratory import Line
from repflow.report.sections.laboratory.curve import line_trace


def test_lines_differ_in_dash_or_marker_as_the_guide_says():
    line = Line(shared={}, cells=(0,), result=Result({}, {}), words="mamba, 2 layers")
    traces = [line_trace(line, place, [0, 1], np.zeros(2)) for place in range(16)]
    looks = {(trace["line"]["color"], trace["line"]["dash"], trace["marker"]["symbol"]) for trace in traces}
    assert len(looks) == 16
    assert len({(dash, marker) for _, dash, marker in looks}) >= 8
