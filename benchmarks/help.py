"""CPU seconds of `--version` and every `--help`, each a process of its own, beside an empty Python and `import torch`.

    python benchmarks/help.py [--runs 5] [--json FILE]

The smallest of several runs: what else the machine does only adds. Ratios to the empty Python compare between machines.
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

from repflow.cli.commands import ENTRIES

ROWS = {
    "python -c pass": ["-c", "pass"],
    "repflow --version": ["-m", "repflow", "--version"],
    "repflow --help": ["-m", "repflow", "--help"],
    **{f"repflow {entry.name} --help": ["-m", "repflow", entry.name, "--help"] for entry in ENTRIES},
    "import torch": ["-c", "import torch"],
}


def cpu_seconds(arguments):
    """Processor time of a child process, of its own and the system's for it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    best = {name: min(cpu_seconds(words) for _ in range(arguments.runs)) for name, words in ROWS.items()}
    empty = best["python -c pass"]
    for name, seconds in best.items():
        print(f"{name:26} {seconds:7.2f} CPU s {seconds / empty:7.1f} times an empty Python")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(best, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
