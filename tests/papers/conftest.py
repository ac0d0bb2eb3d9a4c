"""The stored texts of the papers, where they lie beside the checkout."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def texts():
    """Lines of paper 1 and its two summaries, by the names that `repflow.papers.values` gives them."""
    from repflow.papers.values import FLOW, SUMMARY_1, SUMMARY_2

    root = Path(os.environ.get("REPFLOW_SHARED", Path(__file__).parents[2].parent / "shared")) / "seeds"
    by_name = {
        name: sorted(root.glob(f"{number}_*"))
        for name, number in ((FLOW, "000"), (SUMMARY_1, "001"), (SUMMARY_2, "002"))
    }
    if not all(by_name.values()):
        pytest.skip(f"no texts of the papers at {root}")
    return {name: files[0].read_text(encoding="utf-8").split("\n") for name, files in by_name.items()}
