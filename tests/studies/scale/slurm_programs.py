"""Slurm's programs, played by one machine: sbatch starts jobs as processes, scontrol queues them again.

submitit, its batch file, its signals and its checkpoints are the real ones. What a scheduler decides (whom to preempt,
when a job runs again, on which node) is not shown by these.
"""

import sys
from pathlib import Path

SBATCH = """
import os, re, subprocess
text = open(sys.argv[1]).read()
number = 4000 + len(list(STATE.glob("*.batch")))
(STATE / f"{number}.batch").write_text(text)
array = re.search(r"--array=0-(\\d+)", text)
for task in range(int(array[1]) + 1) if array else [None]:
    name = str(number) if task is None else f"{number}_{task}"
    own = {"NTASKS": 1, "PROCID": 0, "LOCALID": 0, "NODEID": 0, "JOB_NUM_NODES": 1}
    own |= {"JOB_ID": number + 100 * (task or 0)}
    own |= {} if task is None else {"ARRAY_JOB_ID": number, "ARRAY_TASK_ID": task}
    env = os.environ | {f"SLURM_{key}": str(value) for key, value in own.items()} | {"JOB": name}
    subprocess.Popen([str(PROGRAMS / "node"), name, sys.argv[1]], env=env, start_new_session=True,
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(f"Submitted batch job {number}")
"""
NODE = """
import subprocess
name, file = sys.argv[1:]
state, queued = STATE / f"{name}.state", STATE / f"{name}.requeue"
while True:
    state.write_text("RUNNING")
    code = subprocess.call(["bash", file])
    if not queued.exists():
        break
    queued.rename(STATE / f"{name}.requeued")
state.write_text("FAILED" if code else "COMPLETED")
"""
SRUN = """
import os
words, streams, job = sys.argv[1:], {}, os.environ["JOB"]
while words[0].startswith("--"):
    option = words.pop(0)
    if option in ("--output", "--error"):
        streams[option] = words.pop(0).replace("%A_%a", job).replace("%j", job).replace("%t", "0")
(STATE / f"{job}.pid").write_text(str(os.getpid()))
for number, option in ((1, "--output"), (2, "--error")):
    os.dup2(os.open(streams[option], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
os.execvp(words[0], words)
"""
SACCT = """
print("JobID|State|NodeList")
for file in STATE.glob("*.state"):
    print(f"{file.stem}|{file.read_text()}|here")
"""
SCONTROL = """
assert sys.argv[1] == "requeue"
(STATE / f"{sys.argv[2]}.requeue").touch()
"""
SCANCEL = """
import os, signal
wanted = [word for word in sys.argv[1:] if not word.startswith("--")]
given = [word for word in sys.argv[1:] if word.startswith("--signal=")]
for name in wanted:
    try:
        os.kill(int((STATE / f"{name}.pid").read_text()), getattr(signal, "SIG" + given[0][9:] if given else "SIGKILL"))
    except (FileNotFoundError, ProcessLookupError):
        pass
"""
ALL = {"sbatch": SBATCH, "node": NODE, "srun": SRUN, "sacct": SACCT, "scontrol": SCONTROL, "scancel": SCANCEL}


def write_programs(folder: Path) -> Path:
    """Write them; returns the folder in which they note what they do."""
    programs, state = folder / "programs", folder / "state"
    for place in (programs, state):
        place.mkdir()
    head = f"#!{sys.executable} -S\nimport sys\nfrom pathlib import Path\n"
    head += f"STATE, PROGRAMS = Path({str(state)!r}), Path({str(programs)!r})"
    for name, code in ALL.items():
        (programs / name).write_text(head + code)
        (programs / name).chmod(0o755)
    return state
