"""FlowMeter: what it reads is what `repflow.measure` reads, and the training is bit-equal with and without it."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import repflow
from repflow.core.errors import InputError
from repflow.store import list_runs
from repflow.training import FlowMeter
from tests.training.flow.tiny_loop import PROMPTS, assert_equal_bits, tiny_gpt2, train, weights

LABELLED = [[i % 29, 7 * i % 29, 3, 4, 3 * i % 29, 5] for i in range(20)]
EVERYTHING = {"metrics": ["default", "influence_half_life", "probe_accuracy"], "labels": [i % 2 for i in range(20)]}


def meter_of(model, prompts=PROMPTS, **options):
    return FlowMeter(model, prompts, **{"every": 2, "out": None, "on_error": "raise", **options})


def checkpointed(model):
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def compiled(model):
    return torch.compile(model, backend="aot_eager")


WAYS = {
    "plain": {},
    "accumulated": {"accumulate": 2},
    "checkpointed": {"wrap": checkpointed},
    "compiled": {"wrap": compiled},
}


def trained(way, **options):
    """Losses and weights of a training, with a meter where options of one are given."""
    wrap = way.get("wrap", lambda model: model)
    model = tiny_gpt2()
    call = wrap(model)
    meter = meter_of(call, **options) if options else None
    losses = train(model, call=call, accumulate=way.get("accumulate", 1), after=None if meter is None else meter.step)
    return losses, weights(model), meter


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_losses_and_weights_are_bit_equal_and_no_graph_is_compiled_again(way):
    outcomes, graphs = [], []
    for options in ({}, {"prompts": LABELLED, **EVERYTHING}):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        outcomes.append(trained(way, **options))
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    (losses, end, _), (watched, watched_end, meter) = outcomes
    assert watched == losses
    assert_equal_bits(watched_end, end)
    assert meter.history.steps == [2, 4, 6]
    assert graphs[0] == graphs[1]
    assert (graphs[0] > 0) == (way is WAYS["compiled"])


def test_a_meter_that_disturbs_would_be_seen():
    losses, end, _ = trained({})
    model = tiny_gpt2()
    drawn = train(model, after=lambda step: torch.rand(1))  # dropout then draws other numbers
    assert drawn != losses
    with pytest.raises(AssertionError):
        assert_equal_bits(weights(model), end)


def test_it_reads_what_measure_reads():
    model = tiny_gpt2()
    meter = meter_of(model, metrics=["token_similarity", "layer_cosine", "smoothness"])
    meter.measure(0)
    train(model, steps=2)
    numbers = meter.measure(2)
    expected = repflow.measure(model, PROMPTS, metrics=["token_similarity", "layer_cosine", "smoothness"])
    result = meter.result()
    np.testing.assert_allclose(result["token_similarity"][1], expected["token_similarity"], rtol=1e-6)
    np.testing.assert_allclose(result["layer_cosine"][1], expected.token_mean("layer_cosine"), rtol=1e-6)
    assert numbers["flow/token_similarity_last"] == pytest.approx(float(expected.mean("token_similarity")[-1]))
    assert not np.array_equal(result["token_similarity"][0], result["token_similarity"][1])
    assert result.axes["token_similarity"] == ("step", "state", "sample")
    assert result.provenance["steps"] == [0, 2]


def test_everything_of_the_training_is_as_before():
    model = tiny_gpt2()
    model.transformer.h[0].eval()  # a frozen part of a training in eval mode
    model.config.use_cache = True
    model.transformer.wte.weight.requires_grad_(False)
    modes = [module.training for module in model.modules()]
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # gradients that are being accumulated
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    meter = meter_of(model, LABELLED, **{**EVERYTHING, "metrics": [*EVERYTHING["metrics"], drawing]})
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(False):
        meter.measure(1)
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert torch.is_autocast_cache_enabled()
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    assert all(bool((parameter.grad == 1).all()) for parameter in model.parameters())
    assert model.config.use_cache
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    before = random.getstate()
    with meter._undisturbed():  # Python's by itself: under pytest the checks of types draw from it too
        random.random()
        inside = random.getstate()
    assert before == random.getstate() != inside


def drawing(hidden):
    """A metric that draws from every generator."""
    return hidden.mean((1, 2)) + torch.rand(len(hidden)) + np.random.rand() + random.random()


def test_inside_autocast_it_reads_in_the_weights_precision():
    model = tiny_gpt2()
    inside, outside = meter_of(model), meter_of(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        numbers = inside.measure(1)
    assert numbers == outside.measure(1)


def test_it_reads_every_so_many_steps_and_each_step_once():
    meter = meter_of(tiny_gpt2(), every=3)
    assert [bool(meter.step()) for _ in range(6)] == [False, False, True, False, False, True]
    assert meter.step(6) == {}
    assert meter.history.steps == [3, 6]
    meter.close(7)
    assert meter.history.steps == [3, 6, 7]
    assert meter.step(9) == {}


def test_an_embedding_that_was_resized_is_read():
    model = tiny_gpt2()
    meter = meter_of(model)
    meter.measure(1)
    model.resize_token_embeddings(40)
    train(model, steps=1)
    meter.measure(2)
    expected = repflow.measure(model, PROMPTS, metrics=["token_similarity"])
    np.testing.assert_allclose(meter.result()["token_similarity"][1], expected["token_similarity"], rtol=1e-6)


@pytest.mark.parametrize(("task", "tokens"), [("random", 12), ("recall", 11)])  # recall ends with its query
def test_a_task_is_named(task, tokens):
    meter = meter_of(tiny_gpt2(), task, length=12, samples=3)
    meter.measure(0)
    result = meter.result()
    assert (result.config["task"], result.config["length"], result.config["prompts"]) == (task, tokens, 3)
    assert np.isfinite(result["token_similarity"]).all()


def test_influence_is_that_of_recency():
    model = tiny_gpt2()
    meter = meter_of(model, metrics=["influence_half_life"])
    meter.measure(0)
    expected = repflow.influence(model, PROMPTS)
    np.testing.assert_allclose(meter.result()["influence_half_reach"][0], expected["half_reach"], rtol=1e-5)
    assert np.isnan(meter.result()["influence_half_life"]).all()  # six tokens make no exponential here
    assert all(parameter.grad is None for parameter in model.parameters())


# ---------------------------------------------------------------- what goes wrong
def gradient_of(hidden):
    return torch.autograd.grad(hidden.sum(), hidden)[0].mean((1, 2))


BAD = {
    "an id beyond the vocabulary": ({"prompts": [[1, 99]]}, "token ids from 0 to 31"),
    "too long a prompt": ({"prompts": [[1] * 17]}, "at most 16 tokens"),
    "texts without a tokenizer": ({"prompts": ["a few words"]}, "tokenizer"),
    "an unknown task": ({"prompts": "randum"}, "did you mean random"),
    "no transformers model": ({"model": nn.Linear(2, 2)}, "one transformers model inside; got Linear"),
    "no module": ({"model": "gpt2"}, "a torch module to watch; got builtins.str"),
    "two models": ({"model": nn.ModuleList([tiny_gpt2(), tiny_gpt2()])}, "with 2 of them: GPT2LMHeadModel"),
    "no labels": ({"metrics": ["probe_accuracy"]}, "a label for every prompt"),
    "a metric that needs gradients": ({"metrics": [gradient_of]}, "metrics that need no gradient"),
}


@pytest.mark.parametrize(("options", "said"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_reported_once_and_the_training_goes_on(options, said, caplog):
    losses, end, _ = trained({})
    options = {"on_error": "report", **options}
    model = tiny_gpt2()
    meter = meter_of(options.pop("model", model), **options)
    watched = train(model, after=meter.step)
    assert watched == losses
    assert_equal_bits(weights(model), end)
    (finding,) = meter.findings
    assert finding.code == "meter_failed"
    assert said in finding.message
    assert "the training goes on" in finding.message
    assert len(caplog.records) == 1
    with pytest.raises(InputError, match="a meter that has read something"):
        meter.result()


def test_a_wrong_call_is_refused_at_once():
    model = tiny_gpt2()
    with pytest.raises(InputError, match="every"):
        FlowMeter(model, PROMPTS, every=0)
    with pytest.raises(InputError, match="unknown metric 'token_similarty'; did you mean token_similarity"):
        FlowMeter(model, PROMPTS, metrics=["token_similarty"])
    with pytest.raises(InputError, match="run name"):
        FlowMeter(model, PROMPTS, name="../elsewhere")


def test_nan_in_training_is_a_finding_with_its_step(caplog):
    model = tiny_gpt2()
    meter = meter_of(model, on_error="report")

    def after(step):
        if step == 4:
            with torch.no_grad():
                model.transformer.h[1].mlp.c_fc.weight[0, 0] = torch.nan
        meter.step(step)

    train(model, after=after)
    (finding,) = meter.findings
    assert finding.code == "nonfinite_state"
    assert finding.layer == 2
    assert finding.message.startswith("step 4: state 2 is not finite, as transformer.h.1")
    assert meter.history.steps == [2, 4, 6]
    assert np.isnan(meter.last["flow/token_norm_last"])
    assert len(caplog.records) == 1


def test_a_model_that_changes_itself_when_it_is_read_is_left_alone():
    class Counting(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block = block
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, *args, **kwargs):
            self.passes += 1
            return self.block(*args, **kwargs)

    model = tiny_gpt2()
    model.transformer.h[0] = Counting(model.transformer.h[0])
    meter = meter_of(model, on_error="report")
    assert meter.step(2) == {}
    assert "one that changes its transformer.h.0.passes" in meter.findings[0].message
    assert model.transformer.h[0].passes == 0


def test_a_reading_that_fails_is_tried_again_and_then_left(monkeypatch, caplog):
    meter = meter_of(tiny_gpt2(), on_error="report", every=1)
    table, calls = meter._reading.table, []

    def failing():
        calls.append(1)
        if len(calls) != 2:
            raise RuntimeError("no memory for this")
        return table()

    monkeypatch.setattr(meter._reading, "table", failing)
    assert [bool(meter.step()) for _ in range(7)] == [False, True, False, False, False, False, False]
    assert len(calls) == 5  # once it failed, once it did not, then three times in a row
    assert len(caplog.records) == 1


# ---------------------------------------------------------------- stored
def test_a_full_disk_leaves_the_readings_in_memory(tmp_path, monkeypatch, caplog):
    from repflow.store import RunFolder

    write = RunFolder.write_shard

    def full(run, name, *args, **kwargs):
        if name != "step-000000002":
            raise OSError(28, "No space left on device")
        write(run, name, *args, **kwargs)

    monkeypatch.setattr(RunFolder, "write_shard", full)
    meter = meter_of(tiny_gpt2(), out=tmp_path, on_error="report")
    assert [bool(meter.step(step)) for step in (2, 4, 6)] == [True, True, True]
    meter.close()
    assert meter.history.steps == [2, 4, 6]
    (finding,) = meter.findings
    assert "the history cannot be stored and stays in memory" in finding.message
    assert "No space left" in finding.message
    assert len(caplog.records) == 1


def test_a_history_is_one_run(tmp_path):
    model = tiny_gpt2()
    meter = meter_of(model, out=tmp_path)
    train(model, after=meter.step)
    stored = meter.path
    assert repflow.load_result(stored).provenance["steps"] == [2, 4, 6]  # readable while the training goes on
    (summary,) = list_runs(tmp_path)
    assert (summary.name, summary.study, summary.finished, summary.done) == ("gpt2-training-ids", "training", False, 3)
    expected = meter.result()
    meter.close()
    (summary,) = list_runs(tmp_path)
    assert summary.finished
    result = repflow.load_result(stored)
    np.testing.assert_array_equal(result["token_similarity"], expected["token_similarity"])
    assert result.axes == expected.axes


def test_a_resumed_training_goes_on_with_its_history(tmp_path):
    model = tiny_gpt2()
    first = meter_of(model, out=tmp_path)
    train(model, after=first.step)
    del first  # as at the end of a process
    again = meter_of(model, out=tmp_path)
    again.measure(4)  # from the checkpoint of step 3
    again.measure(8)
    again.close()
    assert [run.name for run in list_runs(tmp_path)] == ["gpt2-training-ids"]
    result = repflow.load_result(tmp_path / "gpt2-training-ids")
    assert result.provenance["steps"] == [2, 4, 8]
    np.testing.assert_array_equal(result["token_similarity"][1], again.result()["token_similarity"][1])


def test_another_training_gets_a_folder_of_its_own(tmp_path):
    for _ in range(2):
        model = tiny_gpt2()
        meter = meter_of(model, out=tmp_path)
        meter.measure(0)
        meter.close()
    other = meter_of(model, [[1, 2, 3]], out=tmp_path)
    other.measure(5)
    other.close()
    names = [run.name for run in list_runs(tmp_path)]
    assert names == ["gpt2-training-ids", "gpt2-training-ids-2", "gpt2-training-ids-3"]


def test_a_reading_inside_the_autocast_region_of_a_training():
    """Between two steps of one autocast region: the training goes on, with weights that it casts itself."""
    from repflow.models import probe_dtype

    if probe_dtype(torch.bfloat16) is not None:
        pytest.skip("this CPU does not run bfloat16")
    model = tiny_gpt2()
    meter = meter_of(model, autocast="bfloat16")
    ids = torch.arange(8)[None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert meter.measure(1)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def gram_mean(hidden):
    """A metric with a matrix product, which autocast would cast."""
    return (hidden @ hidden.mT).mean((1, 2))


def test_under_autocast_the_model_is_cast_and_the_meters_are_not():
    from repflow.models import load, probe_dtype

    if probe_dtype(torch.bfloat16) is not None:
        pytest.skip("this CPU does not run bfloat16")
    model = tiny_gpt2()
    meter = meter_of(model, autocast="bfloat16", metrics=[gram_mean])
    meter.measure(1)
    states = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        load(model).stream(torch.tensor(PROMPTS), on_state=lambda _, hidden: states.append(hidden))
    hidden = torch.stack([state.double() for state in states])
    expected = torch.stack([gram_mean(sample) for sample in hidden.transpose(0, 1)], 1)
    np.testing.assert_allclose(meter.result()["gram_mean"][0], expected, rtol=1e-4)
    plain = repflow.measure(model, PROMPTS, metrics=["gram_mean"])["gram_mean"]
    assert not np.allclose(meter.result()["gram_mean"][0], plain, rtol=1e-4)
