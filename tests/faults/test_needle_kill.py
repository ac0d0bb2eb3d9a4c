"""kill -9 in the middle of a needle test: batches that are stored count, the resumed run ends bit-identical."""

import json
import os
import subprocess
import sys
from pathlib import Path

KILLS = 40 if os.environ.get("REPFLOW_FAULTS") == "full" else 4


def test_killed_needle_tests_resume_bit_identical(tmp_path):
    script = Path(__file__).with_name("needle_kills.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(KILLS)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["kills"] >= KILLS
    assert content["midway"] >= KILLS // 3
    assert content["different"] == []
