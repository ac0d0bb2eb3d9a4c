"""Training several stacks as one model: each ends with the weights that it has when trained alone."""

import math

import numpy as np
import pytest
import torch

from repflow.core.errors import InputError
from repflow.models.stack.replicas import ReplicaStack
from repflow.tasks import RecallSetting
from repflow.training import Batch, OptimiserConfig, Schedule, train
from repflow.training.recall import RecallBatches
from repflow.training.replicas import ReplicaAdamW, ReplicaBatches, ReplicaLoss
from tests.training.tiny_training import assert_equal_bits, config, network, weights, without_clock

SETTINGS = [RecallSetting(length=16, pairs=3, vocabulary=20), RecallSetting(length=12, pairs=2, vocabulary=20)]
POLES = ({}, {"polarize": "both"}, {"polarize": "both", "placebo": True})


def rows(seed):
    return RecallBatches(SETTINGS, rows=4, seed=seed)


def stacks(count=3):
    made = []
    for seed in range(count):
        mixer = {"name": "s6", "state": 5, **POLES[seed % 3]}
        made.append(network(seed, mixers=mixer, num_hidden_layers=2, vocab_size=20).double())
    return made


def trained(factors=(1.0, 2.0, 4.0), networks=None, **more):
    networks = networks or stacks(len(factors))
    whole = ReplicaStack(networks, factors=factors)
    folder = more.pop("folder", None)
    source = ReplicaBatches([rows(10 + seed) for seed in range(len(factors))])
    run = train(whole, source, config(**more), loss=ReplicaLoss(), folder=folder)
    return run, whole, whole.put_back()


@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_replica_ends_as_it_does_alone(clip):
    """To the last digits of float64, with three rates, three rows of data, and clipping of each one's own gradient."""
    run, _, together = trained(clip=clip)
    norms = []
    for number, alone in enumerate(stacks()):
        rate = OptimiserConfig(rate=1e-2 * (1, 2, 4)[number])
        one = train(alone, rows(10 + number), config(clip=clip, optimiser=rate))
        assert run.history[f"loss {number}"] == pytest.approx(one.history["loss"], rel=1e-6)
        norms.append(one.history["gradient_norm"])
        for name, value in alone.named_parameters():
            assert torch.allclose(together[number].get_parameter(name), value, rtol=1e-9, atol=1e-12), name
    assert run.history["gradient_norm"] == pytest.approx(np.mean(norms, axis=0), rel=1e-6)


def test_a_replica_ends_as_in_a_plain_loop_of_torch():
    """Schedule, clipping, decay and rates against torch's own AdamW; every weight to 1e-12 after 40 steps."""
    steps, factors = 40, (1.0, 2.0, 4.0)
    moments = {"betas": (0.8, 0.97), "eps": 1e-3}  # none is torch's own
    how = {"steps": steps, "schedule": Schedule("cosine", warmup=4), "clip": 0.5}
    _, _, together = trained(factors, optimiser=OptimiserConfig(rate=1e-2, **moments), **how)
    for number, alone in enumerate(stacks()):
        kinds = {True: [], False: []}
        for name, parameter in alone.named_parameters():
            kinds[parameter.ndim > 1 and not name.endswith("A_log")].append(parameter)
        groups = [{"params": kinds[decays], "weight_decay": 0.1 * decays} for decays in (True, False)]
        optimiser = torch.optim.AdamW(groups, **moments)
        for step in range(steps):
            share = (step + 1) / 4 if step < 4 else 0.5 * (1 + math.cos(math.pi * (step - 4) / (steps - 4)))
            for group in optimiser.param_groups:
                group["lr"] = 1e-2 * factors[number] * share
            batch = rows(10 + number).batch(step)
            logits = alone(batch.inputs).logits[torch.arange(4)[:, None], batch.positions]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
            optimiser.step()
        for name, value in alone.named_parameters():
            assert torch.allclose(together[number].get_parameter(name), value, rtol=0, atol=1e-12), name


def test_the_mean_norm_is_of_replicas_that_have_not_diverged():
    replicas = ReplicaStack(stacks())
    optimiser = ReplicaAdamW(replicas, OptimiserConfig())
    for group in optimiser.param_groups:
        for part in group["params"]:
            part.grad = torch.zeros_like(part)
    part.grad.flatten(1)[:, 0] = torch.arange(1.0, len(part.grad) + 1)
    part.grad.flatten(1)[1, 0] = torch.inf
    left = [number + 1.0 for number in range(len(part.grad)) if number != 1]
    assert float(optimiser.clip(None)) == pytest.approx(np.mean(left))
    part.grad[:] = torch.nan
    assert not torch.isfinite(optimiser.clip(1.0))


def test_a_checkpoint_is_gone_on_from(tmp_path, monkeypatch):
    """Killed behind its first checkpoint, at step 5 of 12."""
    whole, _, never_stopped = trained()
    own, calls = RecallBatches.batch, []

    def batch(self, step):
        calls.append(step)
        if step == 8 and len(calls) < 40:
            raise KeyboardInterrupt
        return own(self, step)

    monkeypatch.setattr(RecallBatches, "batch", batch)
    with pytest.raises(KeyboardInterrupt):
        trained(folder=tmp_path)
    monkeypatch.setattr(RecallBatches, "batch", own)
    again, _, resumed = trained(folder=tmp_path)
    assert again.resumed_from == 5
    assert without_clock(again.log) == without_clock(whole.log)
    for one, other in zip(resumed, never_stopped, strict=True):
        assert_equal_bits(weights(one), weights(other))


def test_another_rate_is_another_training(tmp_path):
    from repflow.core.errors import ConfigChangedError

    trained(folder=tmp_path)
    with pytest.raises(ConfigChangedError, match="first_weights"):
        trained(factors=(1.0, 2.0, 3.0), folder=tmp_path)


def test_one_that_diverges_does_not_disturb_the_others():
    networks = stacks()
    with torch.no_grad():
        networks[1].lm_head.weight.fill_(torch.nan)
    run, _, together = trained(networks=networks)
    assert run.stopped is None
    assert not run.findings
    assert not any(map(torch.isfinite, torch.as_tensor(run.history["loss 1"])))
    _, _, clean = trained()
    for number in (0, 2):
        assert_equal_bits(weights(together[number]), weights(clean[number]))


def test_where_all_diverge_the_training_stops_and_says_so():
    networks = stacks()
    with torch.no_grad():
        for one in networks:
            one.lm_head.weight.fill_(torch.nan)
    run, _, _ = trained(networks=networks)
    assert run.stopped == "nonfinite"
    assert "step 1 is not finite" in run.findings[0].message


def test_replicas_of_one_seed_share_a_draw():
    shared = rows(3)
    made = ReplicaBatches([shared, shared, rows(4)]).batch(0)
    assert torch.equal(made.inputs[:4], made.inputs[4:8])
    assert not torch.equal(made.inputs[:4], made.inputs[8:])


def test_settings_come_equally_often_in_an_order_of_their_own():
    source, other = rows(0), rows(1)
    order = [source.setting(step).length for step in range(40)]
    assert order == [other.setting(step).length for step in range(40)]
    assert all({order[step], order[step + 1]} == {12, 16} for step in range(0, 40, 2))
    assert order != [order[0], order[1]] * 20


def test_wrong_requests_are_refused():
    with pytest.raises(InputError, match="patterns of rates that names of parameters contain"):
        ReplicaAdamW(ReplicaStack(stacks(1)), OptimiserConfig(rates={"B_log": 0.1}))
    with pytest.raises(InputError, match="at least one setting of rows"):
        RecallBatches([], rows=2)
    with pytest.raises(InputError, match="expected targets beside tokens or positions, or token ids alone"):
        ReplicaLoss()(ReplicaStack(stacks(1)), Batch(torch.zeros(2, 4).long(), torch.zeros(2, 2).long()))
