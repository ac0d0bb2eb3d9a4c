"""Checkpoints of one model along a step axis."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from repflow.capture import collect_states
from repflow.core.errors import InputError
from repflow.metrics import linear_cka
from repflow.models import load
from repflow.studies.compare import steps as compare_steps
from repflow.studies.compare.steps import find_checkpoints
from repflow.studies.compare.study import compare
from repflow.studies.engine.prompts import padding_ids
from repflow.studies.measure import measure
from repflow.tasks import random_prompts
from tests.studies.compare.inputs import network, save

SMALL = {"length": 24, "samples": 2}
SEEDS = {"checkpoint-50": 1, "checkpoint-1000": 2, "checkpoint-200": 2, "checkpoint-2000": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four checkpoints, two of them with equal weights, beside things that are none."""
    root = tmp_path_factory.mktemp("training")
    for name, seed in SEEDS.items():
        save("llama", root / name, seed=seed)
    (root / "runs").mkdir()
    (root / "trainer_state.json").write_text("{}")
    return root


@pytest.fixture(scope="module")
def result(folder):
    return compare(str(folder), None, "random", **SMALL)


def test_results_do_not_depend_on_the_batch_size(folder):
    alone, together = (
        compare(str(folder), None, "random", length=24, samples=3, dtype="float64", batch_size=size) for size in (1, 3)
    )
    assert list(alone) == list(together)
    for name in alone:
        np.testing.assert_allclose(together[name], alone[name], rtol=1e-8, atol=1e-9, err_msg=name)


def test_order_is_by_number(folder):
    labels = [step.label for step in find_checkpoints(str(folder))]
    assert labels == ["checkpoint-50", "checkpoint-200", "checkpoint-1000", "checkpoint-2000"]


def test_braces_keep_their_order():
    steps = find_checkpoints("org/model@{step10, step0,step2}")
    assert [step.spec for step in steps] == ["org/model@step10", "org/model@step0", "org/model@step2"]
    assert [step.number for step in steps] == [10, 0, 2]
    assert [step.spec for step in find_checkpoints("a/{x,y}/b")] == ["a/x/b", "a/y/b"]


@pytest.mark.parametrize("spec", ["m@{a}", "m@{}", "m@{a,,b}", "m@{a,a}"])
def test_bad_braces(spec):
    with pytest.raises(InputError, match="two or more different steps"):
        find_checkpoints(spec)


def test_flow_is_that_of_measure(folder, result):
    assert result.axes["token_similarity"] == ("step", "state", "sample")
    for at, name in ((0, "checkpoint-50"), (3, "checkpoint-2000")):
        alone = measure(str(folder / name), "random", **SMALL)
        for metric in ("token_similarity", "smoothness", "norm>10/common_share", "final_norm/token_similarity"):
            np.testing.assert_array_equal(result[metric][at], alone[metric])
    assert result["step_number"].tolist() == [50, 200, 1000, 2000]
    assert result.provenance["steps"][-1] == "checkpoint-2000"


def test_distance_to_the_last(folder, result):
    assert result["cka_to_last"].shape == (4, 5, 2)
    np.testing.assert_allclose(result["cka_to_last"][-1], 1, atol=1e-6)
    first, last = (load(folder / name) for name in ("checkpoint-50", "checkpoint-2000"))
    prompts = random_prompts(first.vocab_size, **SMALL, without=padding_ids(first))
    own, other = (collect_states(m, prompts)[0] for m in (first, last))
    for state in range(5):
        for sample in range(2):
            expected = float(linear_cka(own[state, sample], other[state, sample]))
            assert result["cka_to_last"][0, state, sample] == pytest.approx(expected, abs=1e-6)
    assert result.axes["cka_to_last_pooled"] == ("step", "state")
    assert result["cka_to_last_pooled_null_sd"].shape == (4, 5)


def test_equal_weights_are_a_finding(result):
    findings = [finding for finding in result.findings if finding.code == "equal_weights"]
    assert len(findings) == 1
    assert "checkpoint-200 and checkpoint-1000 have equal weights" in findings[0].message
    np.testing.assert_array_equal(result["token_similarity"][1], result["token_similarity"][2])


class Stopped(Exception):
    pass


def test_resumes_by_checkpoint(folder, tmp_path, monkeypatch):
    loads = []
    original = compare_steps.load_one

    def counting(config, spec, *rest):
        loads.append(spec.rpartition("/")[2])
        if len(loads) == 3:
            raise Stopped
        return original(config, spec, *rest)

    monkeypatch.setattr(compare_steps, "load_one", counting)
    with pytest.raises(Stopped):
        compare(str(folder), None, "random", out=tmp_path, name="run", **SMALL)
    assert loads == ["checkpoint-2000", "checkpoint-50", "checkpoint-200"]
    loads[:] = [*"...."]  # past the stop
    compare(str(folder), None, "random", out=tmp_path, name="run", **SMALL)
    assert loads[4:] == ["checkpoint-2000", "checkpoint-200", "checkpoint-1000"]
    whole = compare(str(folder), None, "random", out=tmp_path, name="whole", **SMALL)
    for file in ("result.json", "result.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    loads.clear()
    again = compare(str(folder), None, "random", out=tmp_path, name="run", **SMALL)
    assert loads == ["checkpoint-2000"]
    np.testing.assert_array_equal(again["cka_to_last"], whole["cka_to_last"])


def test_refusals_write_nothing(folder, tmp_path):
    out = tmp_path / "runs"
    with pytest.raises(InputError, match="reference_memory"):
        compare(str(folder), None, "random", out=out, reference_memory=0, **SMALL)
    with pytest.raises(InputError, match="does not exist"):
        compare(f"{folder}/{{checkpoint-51,checkpoint-50}}", None, "random", out=out, **SMALL)
    with pytest.raises(InputError, match="a folder with 0 checkpoint folders"):
        compare(str(folder / "checkpoint-50"), None, "random", out=out, **SMALL)
    assert not out.exists()


def test_another_architecture_among_them(folder, tmp_path):
    shutil.copytree(folder / "checkpoint-50", tmp_path / "c" / "step2")
    save("recurrent_gemma", tmp_path / "c" / "step1")
    with pytest.raises(InputError, match=r"one architecture \(5 states of width 32\); got step1 with 7"):
        compare(str(tmp_path / "c"), None, "random", **SMALL)


def test_revisions_of_a_hub_model(tmp_path):
    """From a cache as the hub's client keeps it, without a connection, through the command line."""
    repository = tmp_path / "cache" / "models--org--tiny"
    for step, seed in (("step0", 1), ("step10", 2)):
        commit = f"{seed:040d}"
        network("llama", seed=seed).save_pretrained(repository / "snapshots" / commit)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / step).write_text(commit)
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = ["compare", "org/tiny@{step0,step10}", "--length", "24", "--samples", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "repflow", *command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 checkpoints on task random" in done.stdout
    assert "wrote runs/org-tiny-step0-step10-steps-text-24" in done.stdout
