"""Features: the rows that the states hold, whatever the batch, from memory or mapped from a run folder."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from repflow.capture import MemorySink, collect_states, make_plan, run_plan
from repflow.capture.features import (
    FeatureMeter,
    FeatureShard,
    StoredFeatures,
    token_index,
    widened,
)
from repflow.capture.run import batch_name
from repflow.core.errors import InputError
from repflow.metrics.meter import BatchInfo
from repflow.spec.request import check_readings
from tests.capture.inputs import LENGTHS, model, prompts
from tests.models.rounding import tolerance

KINDS = ("gpt_neo", "gpt_neox", "mamba", "mamba2", "bamba")
READINGS = ("last", "mean", "0", "0.5", "1")


def extract(loaded, made, size, readings=READINGS, kind="residual"):
    plan = make_plan(made.lengths, width=loaded.width, itemsize=4, batch_size=size)
    sink = MemorySink()
    plan = run_plan(loaded, made, plan, lambda: [FeatureMeter(readings)], sink, kind=kind)
    records = [sink.read(batch_name(batch)) for batch in plan.batches]
    return [FeatureShard.from_records({s: r for s, (r,) in batch.items()}) for batch in records]


def near(got, expected, relative):
    """Equal up to a share of the largest entry."""
    return float((got - expected).abs().max()) <= relative * float(expected.abs().max())


@pytest.mark.numeric
@pytest.mark.parametrize("kind", KINDS)
def test_features_are_rows_of_the_whole_states(kind):
    """Bit by bit: both come from passes over the same batches, so nothing rounds differently."""
    loaded, inputs = model(kind), prompts()
    shards = extract(loaded, inputs, 4)
    whole = {}
    for batch in make_plan(inputs.lengths, width=loaded.width, itemsize=4, batch_size=4).batches:
        hidden, _, final = collect_states(loaded, replace(inputs, samples=tuple(inputs.samples[s] for s in batch)))
        for row, sample in enumerate(batch):
            whole[sample] = torch.cat([hidden[:, row, : LENGTHS[sample]], final[None, row, : LENGTHS[sample]]])
    for reading in READINGS:
        features = StoredFeatures(shards, [reading, f"final_norm/{reading}"])
        assert (features.n_states, features.n_samples, features.width) == (
            loaded.n_states + 1,
            len(LENGTHS),
            loaded.width,
        )
        for sample, length in enumerate(LENGTHS):
            states = whole[sample]
            expected = states.double().mean(1) if reading == "mean" else states[:, token_index(reading, length)]
            for state in range(features.n_states):
                got = features.state(state)[sample]
                assert got.dtype == torch.float32
                assert near(got, expected[state].float(), 1e-6 if reading == "mean" else 0)


@pytest.mark.numeric
@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_order_do_not_matter(kind):
    loaded, inputs = model(kind), prompts()
    one, many = (StoredFeatures(extract(loaded, inputs, size), ["last"]) for size in (1, 9))
    for state in range(one.n_states):
        assert near(one.state(state), many.state(state), tolerance(kind))


def test_mean_never_touches_padding():
    meter = FeatureMeter(("mean", "last"))
    hidden = torch.arange(12.0).reshape(2, 3, 2)
    hidden[1, 2:] = torch.nan
    meter.begin(BatchInfo((4, 7), (3, 2)))
    meter.update(0, hidden)
    meter.close()
    meter.end()
    assert meter.records[4]["mean"].tolist() == [[2.0, 3.0]]
    assert meter.records[7]["mean"].tolist() == [[7.0, 8.0]]
    assert meter.records[7]["last"].tolist() == [[8.0, 9.0]]
    axes, whole = meter.compute()["last"]
    assert axes == ("state", "sample", "width")
    assert whole.shape == (1, 2, 2)


def test_bfloat16_is_kept_bit_by_bit():
    values = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    meter = FeatureMeter()
    meter.begin(BatchInfo((0, 1, 2), (5, 4, 2)))
    meter.update(0, values)
    meter.close()
    meter.end()
    assert meter.records[0]["last:bfloat16"].dtype == np.uint16
    features = StoredFeatures([FeatureShard.from_records(meter.records)], ["last"])
    expected = torch.stack([values[0, 4], values[1, 3], values[2, 1]]).float()
    assert torch.equal(features.state(0), expected)


def test_half_precision_is_widened_and_double_is_kept():
    assert widened("last", np.array([0.5], np.float16)).dtype == np.float32
    assert widened("last", np.array([0.5], np.float64)).dtype == np.float64


def test_kinds_of_state():
    loaded, inputs = model("bamba"), prompts()
    features = StoredFeatures(extract(loaded, inputs, 4, ("last",), "branch:attention"), ["last"])
    assert features.n_states == 2


def test_shards_in_any_order_give_samples_in_order():
    values = np.arange(8, dtype=np.float32).reshape(1, 4, 2)
    shards = [FeatureShard((2, 3), {"last": values[:, 2:]}), FeatureShard((0, 1), {"last": values[:, :2]})]
    assert StoredFeatures(shards, ["last"]).array(0).tolist() == values[0].tolist()
    with pytest.raises(AssertionError):
        StoredFeatures(shards[:1], ["last"])


def test_only_the_state_asked_for_is_in_memory(tmp_path):
    """20 shards of 21 states in files; reading one state must not bring in the others."""
    from repflow.store import RunFolder

    rng = np.random.default_rng(0)
    with RunFolder.open(tmp_path, "r", config={}, provenance={}) as run:
        shards = []
        for shard in range(4):
            values = rng.standard_normal((5, 3, 8)).astype(np.float32)
            run.write_shard(f"s{shard}", {"last": values}, {"samples": [3 * shard, 3 * shard + 1, 3 * shard + 2]})
            mapped = run.map_shard(f"s{shard}")
            assert isinstance(mapped["last"].base, np.memmap) or isinstance(mapped["last"], np.memmap)
            assert np.array_equal(mapped["last"], values)
            with pytest.raises(ValueError, match="read-only"):
                mapped["last"][0, 0, 0] = 1
            shards.append(FeatureShard(tuple(range(3 * shard, 3 * shard + 3)), mapped))
        features = StoredFeatures(shards, ["last"])
        assert np.array_equal(features.array(2)[3:6], shards[1].arrays["last"][2])


def test_a_flipped_bit_is_found_before_mapping(tmp_path):
    from repflow.core.errors import DamagedRunError
    from repflow.store import RunFolder

    with RunFolder.open(tmp_path, "r", config={}, provenance={}) as run:
        run.write_shard("s", {"last": np.ones((2, 3), np.float32)})
        file = tmp_path / "r" / "shards" / "s.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(bytes(data))
        with pytest.raises(DamagedRunError, match="sha256"):
            run.map_shard("s")


@pytest.mark.parametrize("wrong", ["first", "1.5", "-0.1", "nan", ""])
def test_unknown_reading_is_refused(wrong):
    with pytest.raises(InputError, match=r"expected last, mean or a relative position from 0 to 1; got .*; pass"):
        check_readings([wrong])


def test_readings_come_once():
    assert check_readings(["last", "0.50", "0.5", "1.0"]) == ("last", "0.5", "1")
    with pytest.raises(InputError, match="at least one reading"):
        check_readings([])
