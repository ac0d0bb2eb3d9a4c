"""Where the development data is."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def shared_data():
    """The development data, or a skip that says where it was looked for."""
    root = Path(os.environ.get("REPFLOW_SHARED", Path(__file__).parents[2].parent / "shared")) / "data"
    if not root.is_dir():
        pytest.skip(f"no development data at {root}")
    return root
