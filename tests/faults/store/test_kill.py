"""kill -9 at any moment: nothing acknowledged is lost, and the resumed run ends bit-identical."""

import subprocess
import sys

import pytest

from tests.faults.store.kills import KILLS


@pytest.mark.parametrize("how", ["call", "time", "every call"])
def test_kills_resume_bit_identical(tmp_path, how):
    """At a call or a time drawn at random, and at each call in turn."""
    command = [sys.executable, "-m", "tests.faults.store.kills", str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) >= KILLS
