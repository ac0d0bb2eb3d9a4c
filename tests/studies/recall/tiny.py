"""A grid of stacks that trains in a second on a CPU."""

from repflow.studies.recall.config import RecallConfig

TINY = {
    "rows": ["none/4", "both/4"],
    "layers": ["1"],
    "widths": ["8"],
    "rates": ["0.01"],
    "lengths": ["8", "16"],
    "shares": ["0.25", "0.5"],
    "vocabulary": 32,
    "steps": 6,
    "batch": 4,
    "test_rows": 10,
    "flow_samples": 0,
    "device": "cpu",
}


def tiny(**more):
    return RecallConfig(**{**TINY, **more})
