"""Two models on the same text: against slow oracles, stored, resumed and refused."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from repflow import compare as compare_of_facade
from repflow.capture import collect_states
from repflow.cli.main import app
from repflow.core.errors import ConfigChangedError, InputError
from repflow.metrics import cka_matrix, linear_cka
from repflow.metrics.cka import hsic_factor, hsic_matrix, permutation_null
from repflow.models import load
from repflow.report.terminal.compare import above_chance, best_match
from repflow.studies.compare import pair as compare_pair
from repflow.studies.compare.study import CompareConfig, compare
from repflow.studies.engine.prompts import padding_ids
from repflow.tasks import Encoder, Prompts, random_prompts, text_prompts
from tests.studies.compare.inputs import TEXTS, bytes_tokenizer, model, network, save, words_tokenizer

SMALL = {"length": 40, "samples": 3}


def states(loaded, prompts, sample):
    """(state, token, width) of one sample, by the plain way."""
    return collect_states(loaded, Prompts("one", (prompts[sample],)))[0][:, 0]


def rows_of_pair(sample):
    """Matched states of the byte-level GPT-2 and the word-level Mamba, matched here by hand: words end at spaces."""
    a, b = model("gpt2", bytes_tokenizer), model("mamba", words_tokenizer)
    text = TEXTS[sample]
    prompts_a, prompts_b = (text_prompts([text], Encoder(m.tokenizer)) for m in (a, b))
    ids = prompts_a[0].ids
    texts = [a.tokenizer.decode(ids[: i + 1]) for i in range(len(ids))]
    words = text.split()
    rows = [texts.index(" ".join(words[: i + 1])) for i in range(len(words))]
    return states(a, prompts_a, 0)[:, rows], states(b, prompts_b, 0)


def test_against_a_loop_over_pairs():
    result = compare(model("gpt2", bytes_tokenizer), model("mamba", words_tokenizer), [TEXTS[0], TEXTS[2]])
    assert result.axes["cka_cross"] == ("state", "state", "sample")
    hsic = []
    for at, sample in enumerate((0, 2)):
        own, other = rows_of_pair(sample)
        for i, x in enumerate(own):
            for j, y in enumerate(other):
                assert result["cka_cross"][i, j, at] == pytest.approx(float(linear_cka(x, y)), abs=1e-6)
        assert result["neighbours_cross"][0, 0, at] == pytest.approx(_shared(own[0], other[0], 10))
        assert result["neighbours_cross"][-1, -1, at] == pytest.approx(_shared(own[-1], other[-1], 10))
        count = own.shape[1]
        hsic.append(hsic_matrix([*own, *other]) * hsic_factor(count, True))
        np.testing.assert_allclose(result["cka_cross_null_sd"][..., at], permutation_null([*own, *other]).sd[:5, 5:])
        assert result["matched_tokens"][at] == count
        assert result["neighbours_chance"][at] == pytest.approx(10 / (count - 1))
        assert result["cka_rows_per_width"][at] == pytest.approx(count / 32)
    mean = torch.stack(hsic).mean(0)
    pooled = (mean / (mean.diagonal()[:, None] * mean.diagonal()).sqrt()).numpy()
    np.testing.assert_allclose(result["cka_cross_pooled"], pooled[:5, 5:], atol=1e-6)
    np.testing.assert_allclose(result["cka_a_pooled"], pooled[:5, :5], atol=1e-6)
    np.testing.assert_allclose(result["cka_b_pooled"], pooled[5:, 5:], atol=1e-6)


def _shared(x, y, k):
    """Share of k nearest neighbours by cosine, token by token."""
    total = 0
    for t in range(len(x)):
        sets = []
        for rows in (x, y):
            cosine = torch.nn.functional.cosine_similarity(rows, rows[t][None])
            cosine[t] = -2
            sets.append(set(cosine.topk(k).indices.tolist()))
        total += len(sets[0] & sets[1])
    return total / (len(x) * k)


def test_itself_is_the_matrix_of_measure():
    own = model("llama")
    result = compare(own, own, "random", **SMALL)
    prompts = random_prompts(own.vocab_size, **SMALL, without=padding_ids(own))
    hidden, mask, _ = collect_states(own, prompts)
    np.testing.assert_allclose(result["cka_cross"], cka_matrix(hidden, mask=mask).numpy(), atol=1e-6)
    np.testing.assert_allclose(np.diagonal(result["cka_cross"]), 1, atol=1e-6)
    np.testing.assert_allclose(np.diagonal(result["neighbours_cross"]), 1)  # no padding id, which embeds as zero
    assert [finding.code for finding in result.findings] == ["equal_weights", "random_ids"]


def test_paper_form_and_its_null():
    a, b = model("llama"), model("mamba")
    with pytest.warns(UserWarning, match="n < 4 d"):
        result = compare(a, b, "random", cka_form="paper", **SMALL)
    prompts = random_prompts(a.vocab_size, **SMALL, without=padding_ids(a, b))
    own, other = states(a, prompts, 1), states(b, prompts, 1)
    with pytest.warns(UserWarning, match="n < 4 d"):
        expected = float(linear_cka(own[2], other[3], unbiased=False))
    null = permutation_null([own[2], other[3]], unbiased=False)
    assert result["cka_cross"][2, 3, 1] == pytest.approx(expected, abs=1e-6)
    assert result["cka_cross_null_mean"][2, 3, 1] == pytest.approx(float(null.mean[0, 1]), abs=1e-5)
    assert result["cka_cross_null_sd"][2, 3, 1] == pytest.approx(float(null.sd[0, 1]), rel=1e-3)


def test_samples_do_not_depend_on_each_other():
    a, b = model("gpt2", bytes_tokenizer), model("mamba", words_tokenizer)
    whole = compare(a, b, [TEXTS[0], TEXTS[2]], batch_size=1)  # to the bit; in one pass to rounding, see below
    alone = compare(a, b, [TEXTS[2]])
    np.testing.assert_array_equal(whole["cka_cross"][..., 1], alone["cka_cross"][..., 0])


def test_models_of_other_depth_and_width():
    result = compare(model("llama"), model("xlstm"), "random", **SMALL)
    assert result["cka_cross"].shape == (5, 5, 3)
    result = compare(model("recurrent_gemma"), model("llama"), "random", **SMALL)
    assert result["cka_cross"].shape == (7, 5, 3)
    assert result["cka_a_pooled"].shape == (7, 7)
    assert result.to_xarray()["cka_cross"].shape == (7, 5, 3)


def test_random_twin():
    own = model("llama", bytes_tokenizer, 3)
    result = compare(own, "twin", TEXTS)
    other = load(own.network, init="default", tokenizer=own.tokenizer, seed=0)
    np.testing.assert_array_equal(result["cka_cross"], compare(own, other, TEXTS)["cka_cross"])
    assert (result["kept_share"] == 1).all()
    assert result.findings == []
    assert result["cka_cross_pooled"][-1, -1] < 0.99
    gaussian = compare(own, "twin", TEXTS, init_b="gaussian:0.1")
    assert gaussian.provenance["models"]["b"]["init"] == "gaussian:0.1"
    assert not np.array_equal(gaussian["cka_cross"], result["cka_cross"])


def test_twin_of_a_random_model_has_other_weights(tmp_path):
    folder = save("llama", tmp_path / "m")
    result = compare(str(folder), "twin", "random", init="default", **SMALL)
    assert result.findings == []
    assert result.config["model"] == f"{folder} | twin"


def test_nonfinite_weights_are_null_from_there_on():
    broken = network("llama")
    with torch.no_grad():
        broken.model.layers[2].mlp.down_proj.weight[0, 0] = torch.nan
    result = compare(model("llama"), load(broken), "random", **SMALL)
    assert np.isfinite(result["cka_cross"][:, :3]).all()
    assert np.isnan(result["cka_cross"][:, 3:]).all()
    assert np.isnan(result["neighbours_cross"][:, 3:]).all()
    assert np.isfinite(result["cka_cross_pooled"][:, :3]).all()
    assert any(f.code == "nonfinite_weight" and f.message.startswith("B: ") for f in result.findings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neighbours": 40}, "at least 41 matched tokens"),
        ({"neighbours": 0}, "at least 1"),
        ({"cka_form": "fair"}, "unbiased or paper"),
        ({"length": 300}, "at most 256 tokens"),
        ({"name": "../x"}, "safe path component"),
        ({"lenght": 3}, "did you mean length"),
    ],
)
def test_wrong_requests_write_nothing(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        compare(model("llama"), model("mamba"), "random", out=tmp_path / "runs", **{**SMALL, **options})
    assert list(tmp_path.iterdir()) == []


def test_one_model_alone_is_refused():
    with pytest.raises(InputError, match="a second model"):
        compare(model("llama"))


def test_facade_names_it():
    assert compare_of_facade is compare


class Stopped(Exception):
    pass


def test_resumes_where_it_was(tmp_path, monkeypatch):
    a, b = model("gpt2", bytes_tokenizer), model("mamba", words_tokenizer)
    done = []
    original = compare_pair.pair_records

    def counting(config, a, b, paired, batch):
        if len(done) == 1:
            raise Stopped
        done.append(batch)
        return original(config, a, b, paired, batch)

    monkeypatch.setattr(compare_pair, "pair_records", counting)
    two = {"out": tmp_path, "batch_size": 2}  # the longest text and the next run together
    with pytest.raises(Stopped):
        compare(a, b, TEXTS, name="run", **two)
    seen = []
    monkeypatch.setattr(compare_pair, "pair_records", lambda *args: (seen.append(args[-1]), original(*args))[1])
    resumed = compare(a, b, TEXTS, name="run", **two)
    assert (len(done[0]), len(seen), len(seen[0])) == (2, 1, 1)
    again = compare(a, b, TEXTS, name="run", **two)
    assert len(seen) == 1  # a finished run is read, not made
    compare(a, b, TEXTS, name="whole", **two)
    for file in ("result.json", "result.safetensors"):
        assert (tmp_path / "run" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    for name in resumed:
        np.testing.assert_array_equal(resumed[name], again[name])
    with pytest.raises(ConfigChangedError, match="neighbours"):
        compare(a, b, TEXTS, name="run", neighbours=5, **two)
    with pytest.raises(ConfigChangedError, match="batch_size"):
        compare(a, b, TEXTS, out=tmp_path, name="run")
    with pytest.raises(ConfigChangedError):
        compare(b, a, TEXTS, name="run", **two)


def double(kind, tokenizer):
    return load(network(kind), tokenizer=tokenizer(), dtype="float64")


@pytest.mark.parametrize("states", ["residual", "branch"])
def test_results_do_not_depend_on_the_batch_size(states):
    a, b = double("gpt2", bytes_tokenizer), double("llama", words_tokenizer)
    alone = compare(a, b, TEXTS, batch_size=1, states=states)
    for size in (2, 3, 8, None):
        other = compare(a, b, TEXTS, batch_size=size, states=states)
        assert list(other) == list(alone)
        for name in alone:
            np.testing.assert_allclose(other[name], alone[name], rtol=1e-9, atol=1e-10, err_msg=f"{name}, {size}")


def test_a_batch_that_does_not_fit_is_halved(monkeypatch):
    a, b = double("gpt2", bytes_tokenizer), double("llama", words_tokenizer)
    whole, original, sizes = compare(a, b, TEXTS, batch_size=1), compare_pair.pair_records, []

    def small(config, a, b, paired, batch):
        sizes.append(len(batch))
        if len(batch) > 1:
            raise torch.OutOfMemoryError("no memory")
        return original(config, a, b, paired, batch)

    monkeypatch.setattr(compare_pair, "pair_records", small)
    halved = compare(a, b, TEXTS, batch_size=3)
    assert sizes == [3, 1, 2, 1, 1]
    np.testing.assert_array_equal(halved["cka_cross"], whole["cka_cross"])


def test_a_run_stored_before_batches_were_an_option_is_read(tmp_path):
    a, b = model("gpt2", bytes_tokenizer), model("mamba", words_tokenizer)
    result = compare(a, b, TEXTS, out=tmp_path, name="run")
    assert "batch_size" not in result.config
    with pytest.raises(InputError, match="batch_size of at least 1"):
        compare(a, b, TEXTS, batch_size=0)


def run(*args):
    done = CliRunner().invoke(app, ["compare", *map(str, args)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("gpt2", tmp_path / "a", tokenizer=bytes_tokenizer)
    save("mamba", tmp_path / "b", tokenizer=words_tokenizer)
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps({"prompt": text}) for text in TEXTS), encoding="utf-8")
    done = run("a", "b", "--task", "t.jsonl", "--length", 200)
    assert done.exit_code == 0, done.stderr
    assert "A = a, B = b on task t.jsonl" in done.stdout
    assert "matched by character" in done.stdout
    assert "within 3 null sd of chance" in done.stdout
    assert "wrote runs/a-vs-b-t-200" in done.stdout
    shown = run("a", "b", "--task", "t.jsonl", "--length", 200, "--json")
    lines = shown.stdout.splitlines()
    assert len(lines) == 1
    data = json.loads(lines[0])
    assert data["run"] == "runs/a-vs-b-t-200"
    assert data["metrics"]["cka_cross"]["axes"] == ["state", "state", "sample"]
    expected = compare("a", "b", TEXTS)["kept_share"]
    np.testing.assert_allclose(data["metrics"]["kept_share"]["values"], expected)


def test_command_refuses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("gpt2", tmp_path / "a", tokenizer=bytes_tokenizer)
    save("mamba", tmp_path / "b", tokenizer=words_tokenizer)
    for args, message in (
        (("a", "b", "--task", "random"), "same vocabulary"),
        (("a",), "a second model"),
        (("a", "nowhere/x/y"), "does not exist"),
    ):
        done = run(*args, "--length", 20)
        assert done.exit_code == 2, args
        assert message in done.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "b"]


def test_table_marks_what_chance_would_give():
    """Independent random states: no CKA stands out, so each is marked; a model against itself has none marked."""
    a, b = model("llama", None, 1), model("mamba", None, 2)
    ids = [list(range(i, i + 40)) for i in (1, 50, 100)]  # no token twice, so that embeddings share nothing
    result = compare(a, b, ids)
    above = above_chance(result, "cka_cross_pooled")
    assert not above[0, 0]
    result["cka_cross_pooled"][1, 2] = 10 * result["cka_cross_pooled_null_sd"][1, 2]
    assert above_chance(result, "cka_cross_pooled")[1, 2]
    assert best_match(result["cka_cross_pooled"][1]) == 2
    assert np.diagonal(above_chance(compare(a, a, ids), "cka_cross_pooled")).all()
    assert best_match(np.array([np.nan, np.nan])) is None


def test_every_field_has_help():
    from dataclasses import fields

    assert all(field.metadata["help"] for field in fields(CompareConfig))
