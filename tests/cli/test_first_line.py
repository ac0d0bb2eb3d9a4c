"""First sign of life: whatever imports torch, which takes seconds, has said something before; no clock is asked."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from repflow.cli.main import app

CONFIG = {
    "model_type": "gpt_neox",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 50,
}
SCRIPT = """
import json, os, sys, tempfile
import numpy, rich.table, typer.main  # once for all: what comes before torch is asked of repflow
try:
    from pydantic import TypeAdapter  # typer imports it where it is installed
except ImportError:
    pass
from repflow.cli.main import app
app = typer.main.get_command(app)  # and forty options a command once
assert "torch" not in sys.modules

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.stderr.flush()
            os._exit(10 if os.fstat(2).st_size else 11)  # the import itself is not needed

def run(words):
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            for stream, number in ((said.fileno(), 2), (os.open(os.devnull, os.O_WRONLY), 1)):
                os.dup2(stream, number)
            sys.meta_path.insert(0, Watch())
            try:
                app(words)
            except SystemExit as stop:
                sys.stderr.flush()
                os._exit(stop.code or 0)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return code, said.read().decode()[-300:]

print(json.dumps({line: run(line.split()) for line in json.load(sys.stdin)}))
"""
SPOKE, SILENT = 10, 11
MODEL, OTHER = "config:tiny.json", "config:other.json"
SMALL = "--init default --length 8 --samples 2"
LINES = {
    "measure": [
        f"measure {MODEL} {SMALL}",
        f"measure {MODEL} {OTHER} {SMALL}",
        "measure",
        f"measure {MODEL} {SMALL} --json",
    ],
    "compare": [f"compare {MODEL} {OTHER} {SMALL}", "compare", f"compare {MODEL} twin --length 8"],
    "probe": ["probe zoo:gpt-neox zoo:mamba2 --samples 40", "probe"],
    "recency": [f"recency {MODEL} {OTHER} {SMALL}", "recency"],
    "needle": ["needle zoo:gpt-neox zoo:mamba2", "needle"],
    "corrupt": ["corrupt", f"corrupt {MODEL}"],
    "attack": ["attack", f"attack {MODEL}"],
    "architecture": ["architecture", "architecture --dry-run", "architecture --json"],
    "classify": ["classify", "classify --dry-run"],
    "recall": ["recall", "recall --dry-run", "recall --json"],
    "pixels": ["pixels --images drawn:8 --regions paper", "pixels --images drawn:8 --regions paper --dry-run"],
    "memory": [f"memory {MODEL} {OTHER} {SMALL}", "memory"],
    "diagnose": ["diagnose zoo:hybrid", "diagnose"],
    "twins": [f"twins {MODEL} --lengths 8"],
    "run": ["run study.toml", "run study.toml --dry-run", "run study.toml --part 1/2 --json"],
    "reproduce": [
        "reproduce flow-fig1 --scale tiny",
        "reproduce recency-fig1 --scale tiny",
        "reproduce recency-fig1 --dry-run",
        "reproduce flow-check",
        "reproduce dynamics-fig3",
        "reproduce flow-fig1 --dry-run",
    ],
    "demo": ["demo"],
    "zoo list": ["zoo list"],
    "zoo card": ["zoo card mamba2"],
    "zoo path": ["zoo path mamba2"],
    "report": ["report runs"],
    "figures": ["figures runs"],
    "theory verify": ["theory verify", "theory verify --quick"],
    "theory apply": [f"theory apply {MODEL} {SMALL}"],
    "dynamics simulate": ["dynamics simulate --x0 0.5,1.5 --mu 1 --s-delta 1 --a 1", "dynamics simulate"],
    "dynamics apply": [f"dynamics apply {MODEL} --length 8"],
    "list": ["list runs"],
    "verify": ["verify runs/one", "verify runs/one --repair"],
    "export": ["export runs/one --to npz"],
    "doctor": ["doctor"],
}
"""Lines that lead every command as far as it goes; those that never import torch end by themselves."""


def leaves(group, before=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*before, name))
        else:
            yield " ".join([*before, name])


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    """How each line ended: SPOKE or SILENT at the import of torch, else its exit code."""
    place = tmp_path_factory.mktemp("first")
    for name in ("tiny.json", "other.json"):
        (place / name).write_text(json.dumps(CONFIG))
    asked = f'kind = "measure"\nmodels = ["{MODEL}"]\ninits = ["default"]\nlengths = [8]\nsamples = 2'
    (place / "study.toml").write_text(f"[study]\n{asked}\n")
    words = ["measure", f"config:{place}/tiny.json", *SMALL.split(), "--out", str(place / "runs"), "--name", "one"]
    assert CliRunner().invoke(app, words).exit_code == 0
    next((place / "runs/one/shards").iterdir()).unlink()
    asked = json.dumps([line for lines in LINES.values() for line in lines])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=asked, cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_command_is_asked():
    assert set(leaves(typer.main.get_command(app))) == LINES.keys()


@pytest.mark.parametrize("command", LINES)
def test_a_line_comes_before_torch(command, codes):
    assert {line: codes[line] for line in LINES[command] if codes[line][0] == SILENT} == {}


def test_most_commands_come_to_torch(codes):
    """The lines above are sound requests, so that what they show is the command's own way."""
    assert len([line for line, (code, _) in codes.items() if code == SPOKE]) > 20


def test_silence_would_be_seen(tmp_path):
    quiet = SCRIPT.replace("app(words)", "__import__('torch')")
    done = subprocess.run(
        [sys.executable, "-c", quiet], input='["x"]', cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {"x": [SILENT, ""]}
