"""kill -9 in the middle of a training: it goes on from its checkpoint and ends with the same bits and the same log."""

import json
import os
import subprocess
import sys
from pathlib import Path

KILLS = 90 if os.environ.get("REPFLOW_FAULTS") == "full" else 9


def test_killed_trainings_resume_bit_identical(tmp_path):
    script = Path(__file__).with_name("training_kills.py")
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
    assert content["midway"] >= KILLS // 2
    assert content["different"] == []
    assert len(set(content["steps"])) >= 3
