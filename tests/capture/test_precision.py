"""Half precision: refused unless asked, and checked against float32 on one batch. float16 stands for bfloat16 here."""

import copy

import numpy as np
import pytest
import torch

from repflow.capture import MemorySink
from repflow.capture import precision as precision_module
from repflow.capture.measure import MeasureOptions, measure_prompts, meter_factory
from repflow.capture.precision import FULL, HALF, PrecisionCheck, in_float32
from repflow.capture.run import start_batch
from repflow.core.errors import InputError
from repflow.models import load
from repflow.models.devices import probe_dtype
from repflow.tasks import id_prompts
from tests.capture.inputs import prompts
from tests.models.tiny_configs import tiny_model

LENGTHS = (9, 12, 6)


@pytest.fixture(autouse=True, scope="module")
def _float16():
    """Asked here and not when tests are collected: a process of its own tries it."""
    if probe_dtype(torch.float16) is not None:
        pytest.skip("this CPU cannot run float16")


@pytest.fixture
def half():
    return load(tiny_model("gpt_neox"), dtype="float16")


@pytest.fixture
def wide():
    """float32 model with the very weights of `half`."""
    return load(load(tiny_model("gpt_neox"), dtype="float16").network.float())


def test_float16_is_refused_unless_asked(half):
    with pytest.raises(InputError, match=r"float32 or bfloat16 for measuring; got float16, whose range ends at 65,504"):
        measure_prompts(half, prompts(LENGTHS), MeasureOptions())
    assert "token_similarity" in measure_prompts(half, prompts(LENGTHS), MeasureOptions(allow_float16=True))


def test_widened_weights_come_back_bit_for_bit(half):
    before = copy.deepcopy(half.network.state_dict())
    digest = half.digest()
    with pytest.raises(KeyError), in_float32(half):
        assert half.dtype == torch.float32
        assert {p.dtype for p in half.network.parameters()} == {torch.float32}
        raise KeyError
    assert half.dtype == torch.float16
    assert half.digest() == digest
    for name, tensor in half.network.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name]), name


def test_changes_are_those_between_two_runs(half, wide):
    inputs = prompts(LENGTHS)
    result = measure_prompts(half, inputs, MeasureOptions(allow_float16=True, batch_size=2))
    plan = ((0, 1), (2,))
    own = measure_prompts(half, inputs, MeasureOptions(allow_float16=True, batch_size=2, check_precision=False))
    full = measure_prompts(wide, inputs, MeasureOptions(batch_size=2))
    assert not any(name.startswith("float32_change/") for name in own)
    names = [name.removeprefix("float32_change/") for name in result if name.startswith("float32_change/")]
    assert {"token_similarity", "stability", "final_norm/token_similarity", "norm>10/smoothness"} <= set(names)
    assert not any("token_norm" in name or "top_tokens" in name or name.startswith("kept/") for name in names)
    for name in names:
        if name.endswith(("excess", "_error")):
            continue  # over the batch alone, and nothing but zeros
        first, reference = own[name][..., list(plan[0])], full[name][..., list(plan[0])]
        want = np.abs(first - reference).mean(-1) / np.abs(reference).mean(-1)
        got = result[f"float32_change/{name}"]
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-7, err_msg=name)
        assert result.axes[f"float32_change/{name}"] == tuple(a for a in result.axes[name] if a != "sample")
    assert 0 < np.max(result["float32_change/token_similarity"]) < 0.05
    assert not [f for f in result.findings if f.code == "precision"]


def test_float32_is_not_checked(wide):
    result = measure_prompts(wide, prompts(LENGTHS), MeasureOptions())
    assert not any(name.startswith("float32_change/") for name in result)


def changes(model, sink, lengths=LENGTHS):
    inputs = prompts(lengths)
    check = PrecisionCheck(model, inputs, meter_factory(model, inputs, MeasureOptions(), 1), sink, "residual")
    check.start()
    return check.changes()


def test_the_check_is_kept_like_a_batch(half, monkeypatch):
    sink = MemorySink()
    first = changes(half, sink)
    assert sorted(sink.read(HALF)) == sorted(sink.read(FULL)) == [0, 1]
    monkeypatch.setattr(precision_module, "start_batch", lambda *_, **__: pytest.fail("it is stored"))
    again = changes(half, sink)
    for name, (_, value) in first.items():
        np.testing.assert_array_equal(again[name][1], value)


def test_long_prompts_are_rerun_from_their_beginning(half, wide, monkeypatch):
    """As if the two prompts had been measured cut, in both precisions."""
    monkeypatch.setattr(precision_module, "LEAST_TOKENS", 12)
    lengths = (40, 20, 30)
    got = changes(half, MemorySink(), lengths)
    cut = id_prompts([list(p.ids[:12]) for p in prompts(lengths)[:2]], half.vocab_size)
    own = measure_prompts(half, cut, MeasureOptions(allow_float16=True, check_precision=False))
    full = measure_prompts(wide, cut, MeasureOptions())
    for name in ("token_similarity", "stability", "final_norm/token_similarity"):
        want = np.abs(own[name] - full[name]).mean(-1) / np.abs(full[name]).mean(-1)
        np.testing.assert_allclose(got[f"float32_change/{name}"][1], want, rtol=1e-3, atol=1e-7, err_msg=name)


def test_without_room_for_two_prompts_the_first_does(half, monkeypatch):
    sizes = []

    def tight(model, given, batch, meters, **options):
        sizes.append(len(batch))
        if len(batch) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return start_batch(model, given, batch, meters, **options)

    monkeypatch.setattr(precision_module, "start_batch", tight)
    sink = MemorySink()
    got = changes(half, sink)
    assert sizes == [2, 1, 1]
    assert sorted(sink.read(FULL)) == [0]
    assert np.isfinite(got["float32_change/token_similarity"][1]).all()
    assert half.dtype == torch.float16


def test_a_value_that_moves_is_a_finding(half, monkeypatch):
    """A float32 rerun that differs by half: planted, since a tiny model is not that sensitive."""

    def other(model, given, batch, meters, **options):
        running = start_batch(model, given, batch, meters, **options)
        if model.dtype == torch.float32:
            running.finish()
            for record in running.meters[0].records.values():
                record["token_similarity"] = record["token_similarity"] * [1, 1, 1.5, 1, 1]
        return running

    monkeypatch.setattr(precision_module, "start_batch", other)
    result = measure_prompts(half, prompts(LENGTHS), MeasureOptions(allow_float16=True))
    moved = [f for f in result.findings if f.code == "precision"]
    assert "token_similarity moves by up to" in moved[0].message
    assert "when the first 12 tokens of 2 prompts are rerun in float32" in moved[0].message
    assert moved[0].layer == 2
