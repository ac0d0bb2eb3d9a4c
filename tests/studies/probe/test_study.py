"""`repflow.probe` on real tiny models: what comes back, what is stored, what a seed redraws, what is refused."""

import functools
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import repflow
from repflow.core.errors import InputError
from repflow.core.readout import ReadOut
from repflow.models import load
from repflow.report.terminal.probe import view
from repflow.store import RunFolder, load_result, verify
from repflow.studies.diagnose.study import DiagnoseConfig
from repflow.studies.probe.fits import Problem, joined
from repflow.studies.probe.prompts import seed_prompts
from repflow.studies.probe.side import control_tasks
from repflow.studies.probe.study import ProbeConfig, check_request, run_name
from repflow.tasks import Prompts, id_prompts
from tests.models.tiny_configs import tiny_model
from tests.sample import sampled
from tests.studies.probe.inputs import KINDS, KVPR, PlantedModel, PlantedTask, planted_prompts, reader

SMALL = {"samples": 60, "seeds": 2, "lens": 0, "answers": 0, "controls": ["none"], "recipes": ["robust"]}


@functools.cache
def probed(kind):
    """A probe of kvpr that several tests read; shared, so never change it."""
    return repflow.probe(reader(kind), "kvpr", **KVPR)


@pytest.mark.parametrize("kind", sampled(KINDS))
def test_architectures_on_kvpr(kind):
    model, result = reader(kind), probed(kind)
    states, seeds = model.n_states, KVPR["seeds"]
    for name in ("probe_accuracy", "probe/paper/accuracy", "probe/robust/accuracy", "probe/paper/gradient"):
        assert result[name].shape == (states, seeds)
        assert result.axes[name] == ("state", "seed")
    assert result["lens_rank"].shape == result["lens_logprob"].shape == (states, KVPR["lens"])
    assert (result["lens_rank"] >= 1).all()
    assert (result["lens_logprob"] < 0).all()
    assert result["answer_correct"].shape == (KVPR["answers"],)
    assert result["final_norm/probe_accuracy"].shape == (1, seeds)
    about = result.provenance["probe"]
    assert (about["classes"], about["class_names"]) == (3, ["0", "1", "2"])
    assert about["split_sizes"] == [[27, 9, 9]] * 2
    assert len(result.provenance["lengths"]) == 1  # seeds split one set of prompts anew
    assert max(result.provenance["lengths"][0]) <= KVPR["length"]
    assert [s["leaks"] for s in result.provenance["sentinels"]] == [False] * 3
    assert result.provenance["answers"][0]["right"]
    assert result.config["task"] == "kvpr"
    json.dumps(result.to_json(), allow_nan=False)


def test_peak_and_recipe_come_from_validation():
    result = probed("gpt_neo")
    best = {r: result[f"probe/{r}/valid_accuracy"].mean(1) for r in ("paper", "robust")}
    about = result.provenance["probe"]
    assert best[about["recipe"]].max() == max(values.max() for values in best.values())
    assert about["peak"] == int(best[about["recipe"]].argmax())
    np.testing.assert_array_equal(result["probe_accuracy"], result[f"probe/{about['recipe']}/accuracy"])


def test_accuracy_is_that_of_a_plain_fit_on_the_states():
    """The features, labels and splits that reach the probes are the prompts' own: one state by hand."""
    from repflow.probes import ArrayFeatures, fit_probes, three_way_split

    model, prompts = PlantedModel(), planted_prompts(120)
    result = repflow.probe(model, prompts, **{**SMALL, "seeds": 2})
    rows = []
    for prompt in prompts:
        states = repflow.states(model, [list(prompt.ids)]).hidden
        rows.append(states[:, 0, -1])
    features = np.stack([np.stack([row[s].numpy() for row in rows]) for s in range(5)])
    labels = np.array([p.label for p in prompts])
    groups = [p.group for p in prompts]
    splits = [three_way_split(labels, groups, seed=seed) for seed in (0, 1)]
    fit = fit_probes(ArrayFeatures(features), labels, splits, n_classes=4, recipe="robust", seeds=[0, 1])
    np.testing.assert_allclose(result["probe_accuracy"], fit.accuracy_test, atol=1e-12)


def contents(run):
    files = [*sorted((run / "shards").iterdir()), run / "result.json", run / "result.safetensors"]
    return {file.name: file.read_bytes() for file in files}


class Stopped(Exception):
    pass


def test_stopped_at_any_shard_the_run_resumes_bit_identical(tmp_path, monkeypatch):
    """Features, fits, controls, twin, sweep, lens and answers, each cut off once."""
    prompts = planted_prompts(30)
    prompts = Prompts("cut", tuple(replace(p, answers=("7f",)) for p in prompts), prompts.classes)
    asked = {
        "seeds": 2,
        "batch_size": 8,
        "twin": "default",
        "sweep": ["0.5"],
        "answers": 4,
        "answer_tokens": 3,
        "lens": 4,
    }
    asked |= {"allow_leak": True, "epochs": 5}
    model = reader("mamba2")
    reference = repflow.probe(model, prompts, **asked, out=tmp_path, name="whole")
    expected = contents(tmp_path / "whole")
    own = RunFolder.write_shard
    for at in (0, 6, len(expected) - 5):
        left = [at]

        def write(self, *args, left=left):
            if left[0] == 0:
                raise Stopped
            left[0] -= 1
            own(self, *args)

        monkeypatch.setattr(RunFolder, "write_shard", write)
        with pytest.raises(Stopped):
            repflow.probe(model, prompts, **asked, out=tmp_path, name=f"cut{at}")
        monkeypatch.setattr(RunFolder, "write_shard", own)
        again = repflow.probe(model, prompts, **asked, out=tmp_path, name=f"cut{at}")
        assert contents(tmp_path / f"cut{at}") == expected
        assert set(again) == set(reference)
    assert verify(tmp_path / "whole") == []


def test_finished_run_is_read_not_computed_again(tmp_path, monkeypatch):
    prompts = planted_prompts(60)
    first = repflow.probe(PlantedModel(), prompts, **SMALL, out=tmp_path, name="n")
    monkeypatch.setattr(PlantedModel, "stream", lambda *_, **__: pytest.fail("ran again"))
    second = repflow.probe(PlantedModel(), prompts, **SMALL, out=tmp_path, name="n")
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert load_result(tmp_path / "n").bands["probe_drop"].low == first.bands["probe_drop"].low


def test_in_memory_stored_and_spilled_results_are_equal(tmp_path, monkeypatch):
    import repflow.studies.probe.study as study

    prompts = planted_prompts(60)
    result = repflow.probe(PlantedModel(), prompts, **SMALL)
    stored = repflow.probe(PlantedModel(), prompts, **SMALL, out=tmp_path)
    monkeypatch.setattr(study, "IN_MEMORY", 0)
    spilled = repflow.probe(PlantedModel(), prompts, **SMALL)
    for name in result:
        np.testing.assert_array_equal(result[name], stored[name])
        np.testing.assert_array_equal(result[name], spilled[name])


def test_what_a_seed_redraws():
    config = ProbeConfig(**{**KVPR, "samples": 12, "seeds": 3, "seeds_vary": "all"})
    model = reader("mamba2")
    every = seed_prompts(config, model)
    assert every.parts == [0, 1, 2]
    assert len(set(every.digests)) == 3
    assert every.part(0).digest() != every.part(1).digest()
    paper = seed_prompts(ProbeConfig(**{**KVPR, "samples": 12, "seeds": 3, "seeds_vary": "init"}), model)
    assert paper.parts == [0, 0, 0]
    assert paper.part(0).digest() == every.part(0).digest()
    resplit = seed_prompts(ProbeConfig(**{**KVPR, "samples": 12, "seeds": 3}), model)
    assert resplit.parts == [0, 0, 0]  # one forward pass for all seeds
    assert resplit.digests == paper.digests


def test_training_and_test_prompts_may_be_counted_out():
    """20,000 and 2,000 take 22,000 prompts, where shares of 60, 20 and 20 % would draw 33,334."""
    config = ProbeConfig(train=20_000, test=2000)
    assert config.samples == 22_000
    assert [round(config.samples * share) for share in config.fractions] == [18_000, 2000, 2000]
    assert ProbeConfig(samples=500).fractions == ProbeConfig().fractions == (0.6, 0.2, 0.2)
    assert ProbeConfig(samples=1000, train=800).fractions == pytest.approx((0.6, 0.2, 0.2))
    assert ProbeConfig(samples=1000, test=50).fractions == pytest.approx((0.9, 0.05, 0.05))
    assert DiagnoseConfig(train=90, test=30).probe() == ProbeConfig(train=90, test=30)
    asked = {name: value for name, value in SMALL.items() if name != "samples"}
    result = repflow.probe(PlantedModel(), PlantedTask(), **asked, train=100, test=20)
    sizes = np.array(result.provenance["probe"]["split_sizes"])
    np.testing.assert_allclose(sizes, [[80, 20, 20]] * 2, atol=4)  # to within one prompt per class
    assert result.config["samples"] == sizes.sum(1)[0] == 120
    assert (result.config["train"], result.config["test"]) == (100, 20)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"samples": 1000, "train": 900, "test": 200}, r"samples equal to train \+ test; got samples=1000"),
        ({"train": 900}, "train together with test or samples; got train=900 alone"),
        ({"samples": 100, "test": 100}, "test below samples; got test=100 of samples=100"),
        ({"train": 0, "test": 10}, "train of at least 1; got 0"),
    ],
)
def test_numbers_of_prompts_that_contradict_are_refused(asked, message):
    for kind in (ProbeConfig, DiagnoseConfig):
        with pytest.raises(InputError, match=message):
            kind(**asked)


def test_prompts_at_hand_must_be_as_many_as_asked_for():
    with pytest.raises(InputError, match="samples equal to train"):
        repflow.probe(PlantedModel(), planted_prompts(60), seeds=1, train=100, test=20)


def test_branches_are_counted_as_blocks_from_1():
    """A branch belongs to a block; entry 0 is block 1, as in every other table."""
    model = reader("gpt_neox")
    asked = {**KVPR, "answers": 0, "lens": 0, "seeds": 1, "recipes": ["robust"], "controls": ["none"]}
    result = repflow.probe(model, "kvpr", **asked, states="branch")
    read_out = ReadOut.of(result)
    blocks = len(result["probe_accuracy"])
    assert read_out.blocks == tuple(range(1, blocks + 1))
    assert result.provenance["probe"]["read_out"]["last"] == blocks
    page = io.StringIO()
    console = Console(width=200, file=page)
    for part in view(result):
        console.print(part)
    text = page.getvalue()
    first = re.findall(r"^ +(\d+)[*=]? +\d\.\d{3}", text, re.MULTILINE)
    assert first == [str(block) for block in range(1, blocks + 1)]
    assert "block " in text
    assert "state 0" not in text


def test_seeds_that_vary_the_initialisation_share_prompts_and_split():
    prompts = planted_prompts(120)
    asked = {**SMALL, "recipes": ["robust", "paper"]}
    result = repflow.probe(PlantedModel(strength=1.0), prompts, **asked, seeds_vary="init")
    robust = result["probe/robust/accuracy"]
    np.testing.assert_array_equal(robust[:, 0], robust[:, 1])  # convex and the same rows: the seed changes nothing
    assert (result["probe/paper/loss"][:, 0] != result["probe/paper/loss"][:, 1]).any()
    free = repflow.probe(PlantedModel(strength=1.0), prompts, **asked)
    assert (free["probe/robust/accuracy"][:, 0] != free["probe/robust/accuracy"][:, 1]).any()


def test_prompts_of_each_seed_may_be_given():
    result = repflow.probe(PlantedModel(), [planted_prompts(60, 0), planted_prompts(60, 1)], **SMALL)
    assert result.provenance["probe"]["prompt_sets"] == 2
    with pytest.raises(InputError, match="expected prompts for one or for 2 seeds; got 3"):
        repflow.probe(PlantedModel(), [planted_prompts(60, s) for s in range(3)], **SMALL)


def test_seeds_with_unlike_items_get_as_many_as_fit_all(monkeypatch):
    import repflow.studies.probe.prompts as module

    own, asked = module.make_prompts, []

    def make(config, model, task=None):
        asked.append(config.items)
        return own(config if config.items else replace(config, items=3 + config.seed), model, task)

    monkeypatch.setattr(module, "make_prompts", make)
    config = ProbeConfig(task="kvpr", length=400, samples=12, seeds=2, seeds_vary="all")
    prompts = seed_prompts(config, reader("mamba2"))
    assert asked[-1] == 3
    assert {prompts.part(n)[0].items for n in range(2)} == {3}
    assert prompts.classes == ("0", "1", "2")


def test_own_file_shares_its_prompts_over_seeds(tmp_path):
    rng = np.random.default_rng(0)
    lines = [
        {"prompt": f"Key: {rng.integers(10**6)} data {i}", "label": ["no", "yes"][i % 2], "group": str(i // 2)}
        for i in range(40)
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = repflow.probe(reader("mamba2"), file, **{**SMALL, "samples": 40}, length=60, allow_leak=True)
    about = result.provenance["probe"]
    assert about["class_names"] == ["no", "yes"]
    assert about["prompt_sets"] == 1
    codes = [
        f.code
        for f in repflow.probe(
            reader("mamba2"), file, length=60, samples=40, seeds=1, recipes=["robust"], allow_leak=True
        ).findings
    ]
    assert {"no_answers", "no_lens", "no_control"} <= set(codes)


def test_answer_label_and_kinds_of_state():
    asked = {**SMALL, "samples": 200, "seeds": 1}
    result = repflow.probe(
        reader("bamba"),
        "kvpr",
        **asked,
        length=260,
        items=2,
        label="answer",
        states="branch:attention",
        allow_leak=True,
    )
    assert result["probe_accuracy"].shape[0] == 2
    assert result.provenance["probe"]["classes"] == 16
    assert result.provenance["probe"]["label"] == "first symbol of the answer"
    assert "final_norm/probe_accuracy" not in result


def test_states_that_are_not_finite_are_left_out(tmp_path):
    import torch

    network = tiny_model("gpt_neox")
    with torch.no_grad():
        network.gpt_neox.layers[2].mlp.dense_4h_to_h.weight[0, 0] = torch.nan
    result = repflow.probe(load(network), planted_prompts(60), **SMALL, out=tmp_path, name="n")
    assert np.isfinite(result["probe_accuracy"]).all(1).tolist() == [True, True, True, False, False]
    assert result.provenance["probe"]["last"] == 4  # an earlier state is not the last one
    assert np.isnan(result["probe_drop"])
    said = {f.code: f.message for f in result.findings}
    assert said["nonfinite_weight"].startswith("block 3's ")
    assert said["nonfinite_state"].startswith(
        "2 of 5 states, the first of them state 3, are not finite and were not probed"
    )


def test_joined_fits_keep_seeds_in_order():
    from repflow.probes import ArrayFeatures, fit_probes, three_way_split

    rng = np.random.default_rng(0)
    problems, fits = [], []
    for part, seeds in ((0, (0, 2)), (1, (1,))):
        features = ArrayFeatures(rng.standard_normal((2, 30, 4)).astype(np.float32))
        labels = np.arange(30) % 2
        splits = tuple(three_way_split(labels, seed=s) for s in seeds)
        problems.append(Problem(part, seeds, features, labels, splits))
        fits.append(fit_probes(features, labels, list(splits), n_classes=2, recipe="robust", seeds=list(seeds)))
    whole = joined(fits, problems)
    assert whole.seeds == (0, 1, 2)
    np.testing.assert_array_equal(whole.accuracy_test[:, [0, 2]], fits[0].accuracy_test)
    np.testing.assert_array_equal(whole.accuracy_test[:, 1], fits[1].accuracy_test[:, 0])
    assert whole.splits[1].test.min() >= 30
    np.testing.assert_array_equal(whole.labels[1, whole.splits[1].test], labels[problems[1].splits[0].test])


def test_control_classes_are_balanced_and_fixed_by_token():
    rng = np.random.default_rng(0)
    keys = [rng.zipf(1.5, 300) % 40, rng.zipf(1.5, 300) % 40]
    first, second = control_tasks([k.tolist() for k in keys], 3, seed=1)
    share = np.bincount(np.concatenate([first, second])) / 600
    biggest = np.bincount(np.concatenate(keys)).max() / 600
    assert share.max() <= max(biggest, 1 / 3 + 0.05)
    meaning = {}
    for key, label in zip(np.concatenate(keys).tolist(), [*first, *second], strict=True):
        assert meaning.setdefault(key, label) == label


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"task": "random"}, "expected a task with labels: kvpr, mdqa, .*FILE.jsonl; got 'random'"),
        ({"task": "kvrp"}, "did you mean kvpr"),
        ({"task": "none.jsonl"}, "no such file"),
        ({"seeds": 0}, "expected seeds of at least 1; got 0"),
        ({"seeds_vary": "prompts"}, "expected seeds_vary='split', all or init"),
        ({"index": 1}, "a gold index that varies"),
        ({"rate": 0.0}, "rate above 0"),
        ({"answer_tokens": 0}, "answer_tokens of at least 1"),
        ({"samples": 3}, "samples of at least 10"),
    ],
)
def test_wrong_requests_are_refused_before_a_model_is_loaded(wrong, message):
    with pytest.raises(InputError, match=message):
        check_request(ProbeConfig(**wrong))


def test_wrong_words_are_refused():
    with pytest.raises(InputError, match=r"expected recipes='paper' or robust; got 'robst'; did you mean robust"):
        ProbeConfig(recipes=["robst"])
    with pytest.raises(InputError, match="expected controls task or capacity"):
        ProbeConfig(controls=["twins"])
    with pytest.raises(InputError, match="unknown option 'sedes'; did you mean"):
        repflow.probe(PlantedModel(), planted_prompts(60), sedes=2)
    with pytest.raises(InputError, match="unknown option 'looss_points'"):
        repflow.diagnose(PlantedModel(), looss_points=2)


def test_prompts_without_labels_or_in_too_few_groups_are_refused(tmp_path):
    with pytest.raises(InputError, match="expected a label for every prompt; got none in sample 0"):
        repflow.probe(PlantedModel(), id_prompts([[5, 6, 7]] * 4, 128), **SMALL, out=tmp_path)
    with pytest.raises(InputError, match="in at least 3 groups"):
        repflow.probe(PlantedModel(), planted_prompts(60, per_group=40), **SMALL, out=tmp_path)
    with pytest.raises(InputError, match="last, mean or a relative position"):
        repflow.probe(PlantedModel(), planted_prompts(60), **SMALL, position="first", out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_run_names():
    assert run_name(ProbeConfig(model="a/b", length=1000)) == "a-b-probe-kvpr-1000-1000x5"
    named = run_name(ProbeConfig(model="m", init="he", position="mean", label="answer", states="branch"))
    assert named == "m-he-probe-kvpr-300-1000x5-branch-at-mean-answer"
