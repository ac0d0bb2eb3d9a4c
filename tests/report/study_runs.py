"""Real stored runs of theory, dynamics, recency, needle, memory and hidden attention, of tiny models, made once."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import torch


@functools.cache
def network(kind):
    """Tiny random model with a tokenizer that can write needles."""
    from tests.studies.needle.inputs import needle_model

    torch.set_num_threads(1)
    return needle_model(kind)


def folder(prefix):
    made = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@functools.cache
def theory_runs():
    """Folder with a check of all closed forms and one of the layers of two models."""
    from repflow.studies.theory import apply as theory_apply
    from repflow.studies.theory import verify as theory_verify

    out = folder("theory")
    theory_verify.run(theory_verify.VerifyConfig(samples=1000), out=out, name="verify")
    for kind in ("gpt_neox", "mamba2"):
        config = theory_apply.ApplyConfig(model=kind, length=24, samples=2)
        theory_apply.run(config, model=network(kind), out=out, name=kind)
    return out


@functools.cache
def dynamics_runs():
    """Folder with a simulation, one of paper 3's figures and a real checkpoint."""
    from repflow.studies.dynamics import apply as dynamics_apply
    from repflow.studies.dynamics import simulate as dynamics_simulate
    from repflow.studies.reproduce import dynamics as dynamics_figures

    out = folder("dynamics")
    config = dynamics_simulate.SimulateConfig(x0="0.5,1.5", mu="1", s_delta="1", a="1")
    dynamics_simulate.run(config, out=out, name="blow-up")
    flat = {"mu": "-1,0;0,-2", "s_delta": "0.1,0;0,0.1", "until": 4.0, "points": 12}
    plane = dynamics_simulate.SimulateConfig(x0="1,0.5;0.5,-1", a="1", **flat)
    dynamics_simulate.run(plane, out=out, name="plane")
    dynamics_figures.run("dynamics-fig5", out=out)
    asked = dynamics_apply.ApplyConfig(model="mamba", length=24, samples=3)
    dynamics_apply.run(asked, model=network("mamba"), out=out, name="mamba")
    return out


@functools.cache
def recency_runs():
    """Folder with influence of two models and a hybrid, a ratio, needles, memory and hidden attention."""
    from repflow.studies.memory import study as memory
    from repflow.studies.needle import study as needle
    from repflow.studies.recency import study as recency
    from repflow.studies.recency.ratio import influence_ratio

    out = folder("recency")
    found = {}
    for kind in ("gpt_neox", "mamba2", "bamba"):
        config = recency.RecencyConfig(model=kind, length=24, samples=3, twin="default" if kind == "mamba2" else None)
        found[kind] = recency.run(config, model=network(kind), out=out, name=f"influence-{kind}")
        asked = memory.MemoryConfig(model=kind, length=20, samples=3, attention=True, units=2, maps=[1])
        memory.run(asked, model=network(kind), out=out, name=f"memory-{kind}")
    influence_ratio(found["gpt_neox"], found["mamba2"], nearest=128, out=out)
    for kind in ("gpt_neox", "mamba2"):
        wanted = {"lengths": ["150", "200"], "positions": ["0", "0.5", "1"], "samples": 3, "candidates": 3}
        needle.run(needle.NeedleConfig(model=kind, **wanted), model=network(kind), out=out, name=f"needle-{kind}")
    return out


def read(path):
    from repflow.report.data.runs import read_runs

    runs, warnings = read_runs([path])
    assert warnings == []
    return runs


def one(runs, name):
    return next(run for run in runs if run.name == name)


def block(section, id):
    return next(block for block in section.blocks if block.id == id)


def chosen(figure, **when):
    """The variant with these values."""
    return next(
        v for v in figure.variants if all(v.when.get(key.replace("_", " ")) == value for key, value in when.items())
    )


def line(variant, name):
    """The trace of that name."""
    return next(trace for trace in variant.traces if trace.get("name") == name)
