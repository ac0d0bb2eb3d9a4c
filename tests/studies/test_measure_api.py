"""`repflow.measure` from Python: every form of model and input, stored and in memory, and what it refuses."""

import json
from typing import ClassVar

import numpy as np
import pytest
import torch

import repflow
from repflow.capture import collect_states
from repflow.core.catalogue import DEFAULT_METRICS
from repflow.core.errors import ConfigChangedError, InputError, RepflowError
from repflow.metrics import token_similarity
from repflow.metrics.custom import CUSTOM
from repflow.store import load_result
from repflow.studies.measure import MeasureConfig, run, run_name
from repflow.tasks import Encoder, text_prompts
from tests.studies.compare.inputs import TEXTS, bytes_tokenizer, model, network, save, words_tokenizer

SMALL = {"length": 12, "samples": 3}


def same(a, b, exact=True):
    assert list(a) == list(b)
    for name in a:
        if exact:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)
        assert a[name].dtype == b[name].dtype
        assert a.axes[name] == b.axes[name]
    assert a.bands.keys() == b.bands.keys()
    for name, band in a.bands.items():
        for side in ("mean", "low", "high"):
            np.testing.assert_array_equal(getattr(band, side), getattr(b.bands[name], side), err_msg=name)
    assert a.findings == b.findings


def test_a_text_texts_ids_and_tensors_are_the_same_prompts():
    loaded = model("gpt2", words_tokenizer)
    text = TEXTS[0]
    ids = list(text_prompts([text], Encoder(loaded.tokenizer))[0].ids)
    want = repflow.measure(loaded, [text])
    for inputs in (text, (text,), [ids], (tuple(ids),), torch.tensor([ids]), np.array([ids]), [torch.tensor(ids)]):
        got = repflow.measure(loaded, inputs)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name], err_msg=f"{name} of {type(inputs)}")
        assert got.provenance["digests"]["prompts"] == want.provenance["digests"]["prompts"]
    assert want.config["task"] == "text"
    assert repflow.measure(loaded, [ids]).config["task"] == "ids"
    assert want.provenance["kept"][0]["text"] == text
    assert want.provenance["kept"][0]["tokens"] == text.split()


def test_values_are_those_of_the_states():
    loaded = model("mamba", words_tokenizer)
    result = repflow.measure(loaded, TEXTS)
    hidden, mask, _ = collect_states(loaded, text_prompts(TEXTS, Encoder(loaded.tokenizer)))
    want = token_similarity(hidden, mask=mask)
    np.testing.assert_allclose(result["token_similarity"], want, rtol=1e-5, atol=1e-6)
    assert result.provenance["lengths"] == mask.sum(1).tolist()


def test_a_spec_a_live_model_and_a_loaded_one_measure_alike(tmp_path):
    folder = save("gpt2", tmp_path / "m", tokenizer=words_tokenizer)
    by_spec = repflow.measure(str(folder), TEXTS)
    by_path = repflow.measure(folder, TEXTS)
    live = repflow.measure(network("gpt2"), TEXTS, tokenizer=words_tokenizer())
    loaded = repflow.measure(repflow.load(folder), TEXTS)
    for other in (by_path, live, loaded):
        for name in by_spec:
            np.testing.assert_array_equal(other[name], by_spec[name], err_msg=name)
    assert by_spec.config["model"] == by_path.config["model"] == str(folder)
    assert (live.config["model"], live.config["tokenizer"]) == ("live:gpt2", type(words_tokenizer()).__name__)
    other = repflow.measure(folder, TEXTS, tokenizer=bytes_tokenizer())
    assert other.provenance["digests"]["prompts"] != by_spec.provenance["digests"]["prompts"]
    assert loaded.provenance["digests"] == by_spec.provenance["digests"] == live.provenance["digests"]


def test_provenance_says_with_what_it_was_made():
    loaded = model("gpt2", words_tokenizer)
    result = repflow.measure(loaded, "random", **SMALL, states="branch:mlp", bos="never")
    said = result.provenance
    assert said["model"] == {
        "name": "gpt2",
        "spec": loaded.spec,
        "type": "gpt2",
        "init": "trained",
        "drawn_on": None,
        "ablate": [],
        "layers": 4,
        "layer_kinds": ["attention"] * 4,
        "width": 32,
        "parameters": sum(p.numel() for p in loaded.network.parameters()),
        "revision": None,
        "scan": {"asked": "auto"},
        "training": None,
    }
    assert said["digests"]["weights"] == loaded.digest()
    assert (said["dtype"], said["init"], said["states"]) == ("float32", "trained", "branch:mlp")
    assert said["branch_layers"] == [0, 1, 2, 3]
    assert said["lengths"] == [12, 12, 12]
    assert {"torch", "transformers", "numpy"} <= said["packages"].keys()
    assert said["threads"] == torch.get_num_threads()
    assert result.config == {**result.config, "samples": 3, "length": 12, "bos": "never", "task": "random"}
    json.dumps(result.to_json(), allow_nan=False)


def test_config_tells_what_was_given_and_loaded():
    result = repflow.measure(model("gpt2"), [[1, 2, 3], [4, 5, 6, 7]])
    assert (result.config["task"], result.config["length"], result.config["samples"]) == ("ids", 4, 2)
    twin = repflow.load(network("gpt2"), init="gaussian:0.1")
    assert repflow.measure(twin, "random", **SMALL).config["init"] == "gaussian:0.1"


def test_options_for_loading_reach_a_live_model_and_are_refused_for_a_loaded_one():
    result = repflow.measure(
        network("gpt2"), "random", **SMALL, dtype=torch.float64, device=torch.device("cpu"), init="xavier"
    )
    assert (result.config["dtype"], result.config["device"]) == ("float64", "cpu")
    assert (result.provenance["dtype"], result.provenance["init"]) == ("float64", "xavier")
    assert result["token_similarity"].dtype == np.float64
    for name, value in (("dtype", "float64"), ("init", "xavier"), ("tokenizer", "x"), ("device", "cpu")):
        with pytest.raises(InputError, match=f"{name} with a loaded Model; pass it to repflow.load"):
            repflow.measure(model("gpt2"), "random", **SMALL, **{name: value})


@pytest.mark.parametrize(
    ("task", "hint"),
    [("randon", "did you mean random"), ("texts", "did you mean text"), ("zzz", "known:"), ("", "known:")],
)
def test_a_lone_word_is_a_misspelt_task(task, hint):
    with pytest.raises(InputError, match=f"unknown task {task!r}; {hint}.*pass a list"):
        repflow.measure("no/such/model", task)


def test_a_lone_word_in_a_list_is_a_text():
    assert repflow.measure(model("gpt2", bytes_tokenizer), ["grain"]).provenance["kept"][0]["text"] == "grain"


def test_unknown_options_name_the_nearest():
    with pytest.raises(InputError, match="unknown option 'sample'; did you mean samples"):
        repflow.measure("no/such/model", "random", sample=3)
    with pytest.raises(InputError, match="unknown metric 'smothness'; did you mean smoothness"):
        repflow.measure(model("gpt2"), "random", **SMALL, metrics=["smothness"])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "texts, or token ids"),
        ([1, 2, 3], "token ids of shape .batch, token.; got a flat list; pass .ids. for one prompt"),
        (["one two", [1, 2]], "texts, or token ids"),
        ([[1, 2], "one two"], "texts, or token ids"),
        ([[1]], "at least 2 tokens; got 1 in sample 0"),
        ([[1, 999]], "token ids from 0 to 399; got 1 to 999 in sample 0"),
        ([[1, 2.5]], "whole numbers"),
        (torch.zeros(2, 3), "whole numbers"),
        (torch.zeros(2, 3, 4, dtype=torch.long), "whole numbers"),
        ({"ids": [[1, 2]]}, "token ids under 'input_ids'; got a mapping with ids"),
        (7, "texts, or token ids"),
        (None, "texts, or token ids"),
    ],
)
def test_inputs_that_are_neither_texts_nor_ids(given, text):
    with pytest.raises(InputError, match=text):
        repflow.measure(model("gpt2", words_tokenizer), given)


def test_texts_need_a_tokenizer():
    with pytest.raises(InputError, match="a model with a tokenizer for text"):
        repflow.measure(model("gpt2"), TEXTS)


def test_tasks_by_name(tmp_path):
    loaded = model("gpt2", words_tokenizer)
    file = tmp_path / "t.txt"
    file.write_text(" ".join(TEXTS))
    for text in (str(file), file, [str(file)], [file]):  # a lone name is not a list of letters
        result = repflow.measure(loaded, "text", text=text, **SMALL)
        assert result.provenance["lengths"] == [12, 12, 12]
        assert result.config["text"] == [str(file)]
    own = tmp_path / "own.jsonl"
    own.write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS))
    for task in (str(own), own):
        assert repflow.measure(loaded, task, length=10).provenance["lengths"] == [10, 10, 10]
    assert repflow.measure(loaded, "text", length=10, samples=2).provenance["lengths"] == [10, 10]  # the built-in one
    with pytest.raises(InputError, match="cannot read"):
        repflow.measure(loaded, tmp_path / "none.jsonl")


def test_one_metric_may_be_a_lone_name():
    result = repflow.measure(model("gpt2"), "random", **SMALL, metrics="token_similarity")
    assert {name.rsplit("/", 1)[-1] for name in result} == {"token_similarity"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"metrics": ["token_similarity", "cka_matrix", "effective_rank"], "batch_size": 2},
        {"metrics": ["cka_matrix"], "cka_pool": "rows"},
        {"states": "branch", "drop": "first", "grid": 2, "keep_samples": 1},
    ],
)
def test_a_stored_run_is_the_run_in_memory_bit_for_bit(tmp_path, options):
    loaded = model("gpt2", words_tokenizer)
    memory = repflow.measure(loaded, TEXTS, **options)
    stored = repflow.measure(loaded, TEXTS, out=tmp_path, name="r", **options)
    same(stored, memory)
    result = load_result(tmp_path / "r")
    same(result, memory)
    assert result.config == memory.config
    assert result.provenance == stored.provenance
    same(repflow.measure(loaded, TEXTS, out=tmp_path, name="r", **options), memory)  # finished: read, not run


def test_a_run_goes_on_after_any_batch(tmp_path, monkeypatch):
    """Cut off after 1, 2, ... shards: the same command ends bit-identical, running only what is missing."""
    from repflow.studies.engine.sink import RunSink

    loaded, options = (
        model("mamba"),
        {"length": 9, "samples": 5, "batch_size": 2, "metrics": ["smoothness", "cka_matrix"]},
    )
    whole = repflow.measure(loaded, "random", **options)
    write = RunSink.write
    for most in (0, 1, 2):
        written = []

        def cut(self, name, records, written=written, most=most):
            if len(written) == most:
                raise KeyboardInterrupt
            written.append(name)
            write(self, name, records)

        with monkeypatch.context() as patch:
            patch.setattr(RunSink, "write", cut)
            with pytest.raises(KeyboardInterrupt):
                repflow.measure(loaded, "random", out=tmp_path, name=f"cut{most}", **options)
        again = []
        with monkeypatch.context() as patch:
            patch.setattr(RunSink, "write", lambda s, n, r, again=again: (again.append(n), write(s, n, r))[1])
            same(repflow.measure(loaded, "random", out=tmp_path, name=f"cut{most}", **options), whole)
        assert len(written) + len(again) == 3
        assert not set(written) & set(again)


def test_another_request_under_the_same_name_is_refused(tmp_path):
    loaded = model("gpt2")
    repflow.measure(loaded, "random", **SMALL, out=tmp_path, name="r")
    with pytest.raises(ConfigChangedError, match="seed"):
        repflow.measure(loaded, "random", **SMALL, seed=1, out=tmp_path, name="r")
    with pytest.raises(ConfigChangedError):
        repflow.measure(loaded, [[1, 2, 3]], out=tmp_path, name="r")
    repflow.measure(loaded, [[1, 2, 3]], out=tmp_path, name="ids")
    with pytest.raises(ConfigChangedError, match="prompts"):
        repflow.measure(loaded, [[1, 2, 4]], out=tmp_path, name="ids")


def test_given_prompts_do_not_take_the_name_of_a_task(tmp_path):
    loaded = model("gpt2", words_tokenizer)
    for inputs, options in (("random", {"length": 4, "samples": 2}), ([[1, 2, 3, 4]], {}), (["the old mill and"], {})):
        repflow.measure(loaded, inputs, out=tmp_path, **options)
    assert sorted(path.name[: -len("-12345678")] for path in tmp_path.iterdir()) == [
        "live-gpt2-ids-4",
        "live-gpt2-random-4",
        "live-gpt2-text-4",
    ]
    assert run_name(MeasureConfig(model="a/b", init="he", states="branch", grid=3)) == "a-b-he-text-512-branch-grid3"


@pytest.mark.parametrize(
    "options",
    [
        {"states": "branch:ssm"},
        {"metrics": ["smothness"]},
        {"grid": 99},
        {"drop": "last"},
        {"length": 999},
        {"samples": 0},
        {"bos": "sometimes"},
        {"metrics": ["nowhere.py:f"]},
        {"meter_memory": 0},
    ],
)
def test_a_request_that_cannot_be_met_leaves_nothing_behind(tmp_path, options):
    with pytest.raises(InputError):
        repflow.measure(model("gpt2", words_tokenizer), "random", **{**SMALL, **options}, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_metric_file_is_read_once_and_part_of_the_run(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        f"open({str(tmp_path / 'log')!r}, 'a').write('x')\ndef size_of(hidden):\n    return hidden.abs().mean((1, 2))\n"
    )
    loaded, options = model("gpt2"), {**SMALL, "metrics": [f"{file}:size_of"], "out": tmp_path / "runs", "name": "r"}
    try:
        result = repflow.measure(loaded, "random", **options)
        assert (tmp_path / "log").read_text() == "x"
        assert set(result) == {"size_of"}
        assert str(file) in result.provenance["digests"]
        file.write_text("def size_of(hidden):\n    return 2 * hidden.abs().mean((1, 2))\n")
        with pytest.raises(ConfigChangedError):
            repflow.measure(loaded, "random", **options)
        file.write_text("def size_of(hidden):\n    return hidden.nothing\n")
        with pytest.raises(RepflowError, match="metric 'size_of' failed on sample 0"):
            repflow.measure(loaded, "random", **{**options, "name": "other"})
    finally:
        CUSTOM.pop("size_of", None)


def test_progress_is_told():
    ticks = []
    run(
        MeasureConfig(samples=5, length=6, batch_size=2), model=model("gpt2"), progress=lambda *tick: ticks.append(tick)
    )
    assert ticks == [(0, 5, 0), (2, 5, 12), (4, 5, 24), (5, 5, 30)]


def test_the_word_default_stands_for_the_default_metrics():
    config = MeasureConfig(metrics=["cka_matrix", "default", "token_norm"])
    assert config.metrics == ["cka_matrix", *DEFAULT_METRICS]


def test_digests_are_the_same_with_and_without_a_run_folder(tmp_path):
    from repflow.models import load
    from tests.models.tiny_configs import tiny_model

    network = tiny_model("gpt_neox")
    ids = [[3, 4, 5, 6, 7], [8, 9, 10, 11]]
    result, stored = repflow.measure(network, ids), repflow.measure(network, ids, out=tmp_path)
    assert result.provenance["digests"] == stored.provenance["digests"]
    assert list(result.provenance["digests"]) == ["weights", "prompts"]
    assert result.provenance["digests"]["weights"] == load(network).digest()


def test_a_token_that_repeats_is_decoded_once_in_a_prompt():
    from repflow.tasks.prompt import token_strings

    class Tokenizer:
        asked: ClassVar = []

        def decode(self, ids):
            self.asked += ids
            return f"<{ids[0]}>"

    assert token_strings(Tokenizer(), (5, 3, 5, 5)) == ["<5>", "<3>", "<5>", "<5>"]
    assert Tokenizer.asked == [5, 3]
