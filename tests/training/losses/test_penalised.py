"""Penalties beside a loss: in `train`, with weights that move, and in transformers' Trainer."""

import json
import math

import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from repflow.core.errors import ConfigChangedError, InputError
from repflow.training import Batch, Callback, CrossEntropy, OptimiserConfig, train
from repflow.training.losses import HoldAt, Penalised, PenalisedTrainer, StabilityPenalty, TokenDiversity
from repflow.training.losses.cross_entropy import read_pass
from repflow.training.losses.states import pass_of
from tests.training.tiny_training import assert_equal_bits, config, copies, network, source, weights

LAYERS = {"mixers": ["s6", "softmax_attention", "s6"]}
STEADY = {"optimiser": OptimiserConfig(rate=1e-2, decay=0.0)}


def diversity(model):
    batch = source().batch(99)
    return float(TokenDiversity(1.0)(pass_of(model, batch, read_pass(model, batch, states=True)[1])).detach())


def test_the_loss_is_the_sum_of_its_parts():
    model, batch = network(**LAYERS), source().batch(0)
    loss, parts = Penalised([TokenDiversity(0.5), StabilityPenalty(2.0)])(model, batch)
    plain = CrossEntropy()(model, batch)[0]
    assert float(parts["task_loss"]) == pytest.approx(float(plain.detach()), rel=1e-6)
    expected = plain + 0.5 * parts["penalty/token_diversity"] + 2 * parts["penalty/stability"]
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_logits_at_positions_share_the_pass_with_the_states():
    model = network(**LAYERS)
    positions, targets = torch.tensor([[1, 4]] * 4), torch.tensor([[1, 2]] * 4)
    batch = Batch(source().batch(0).inputs, targets, positions=positions)
    parts = Penalised([TokenDiversity(0.5)])(model, batch)[1]
    assert float(parts["task_loss"]) == pytest.approx(float(CrossEntropy()(model, batch)[0].detach()), rel=1e-6)


def test_a_weight_of_0_trains_the_same_model_and_a_large_one_pushes_tokens_apart():
    runs = {}
    for weight in (None, 0.0, 3.0):
        model = network(**LAYERS)
        loss = None if weight is None else Penalised([TokenDiversity(weight)])
        train(model, source(), config(steps=40, **STEADY), loss=loss)
        runs[weight] = model
    assert_equal_bits(weights(runs[None]), weights(runs[0.0]))
    assert diversity(runs[3.0]) < 0.9 * diversity(runs[0.0])


@pytest.mark.parametrize("target", [0.1, 0.6])
def test_a_moving_weight_brings_a_value_that_it_lowers_to_the_target(target):
    rule, weight = HoldAt(target, rate=0.2), torch.tensor(0.01, dtype=torch.float64)
    for _ in range(300):
        rule.move(weight, 1 / (1 + weight))
    assert float(1 / (1 + weight)) == pytest.approx(target, rel=1e-3)


def test_in_a_training_the_weight_grows_while_its_penalty_is_above_the_target():
    run = train(network(**LAYERS), source(), config(), loss=Penalised([TokenDiversity(HoldAt(0.1, rate=0.1))]))
    value, weight = run.history["penalty/token_diversity"].astype(float), run.history["weight/token_diversity"]
    assert weight[1:] / weight[:-1] == pytest.approx([math.exp(0.1 * (v - 0.1) / 0.1) for v in value[:-1]], rel=1e-4)
    assert weight[0] == pytest.approx(0.01)


def test_a_moving_weight_follows_its_rule_and_ignores_what_is_not_finite():
    rule, weight = HoldAt(target=2.0, rate=0.5, start=1.0, most=1.5), torch.tensor(1.0, dtype=torch.float64)
    rule.move(weight, torch.tensor(1.0))
    assert float(weight) == pytest.approx(math.exp(-0.25))
    for broken in (math.nan, math.inf, -math.inf):
        rule.move(weight, torch.tensor(broken))
        assert float(weight) == pytest.approx(math.exp(-0.25))
    rule.move(weight, torch.tensor(1e9))
    assert float(weight) == 1.5


class Killed(Exception):
    pass


class Stop(Callback):
    def on_step(self, moment):
        if moment.step == 8:
            raise Killed


def test_a_training_resumes_with_its_moving_weights_to_the_same_bits(tmp_path):
    def loss():
        return Penalised([TokenDiversity(HoldAt(0.1, rate=0.2))])

    whole = network(**LAYERS)
    expected = train(whole, source(), config(), loss=loss())
    with pytest.raises(Killed):
        train(network(**LAYERS), source(), config(), loss=loss(), folder=tmp_path / "run", callbacks=[Stop()])
    model = network(**LAYERS)
    run = train(model, source(), config(), loss=loss(), folder=tmp_path / "run")
    assert run.resumed_from == 5
    assert_equal_bits(weights(whole), weights(model))
    for name, values in expected.history.items():
        assert (run.history[name] == values).all(), name
    with pytest.raises(ConfigChangedError, match="target"):
        train(
            network(**LAYERS),
            source(),
            config(),
            loss=Penalised([TokenDiversity(HoldAt(0.2, rate=0.2))]),
            folder=tmp_path / "run",
        )


def test_accumulation_averages_a_penalty_over_the_parts():
    model, batch = network(**LAYERS), source().batch(0)
    each = [Penalised([TokenDiversity(1.0)])(model, part)[1]["penalty/token_diversity"] for part in batch.split(2)]
    run = train(model, source(), config(steps=1, accumulate=2), loss=Penalised([TokenDiversity(1.0)]))
    assert run.history["penalty/token_diversity"][0] == pytest.approx(float(sum(each)) / 2, rel=1e-5)


def test_two_penalties_of_one_name_and_no_penalty_are_refused():
    with pytest.raises(InputError, match="penalties of different names; got 'token_diversity' twice"):
        Penalised([TokenDiversity(1.0), TokenDiversity(1.0, states="all")])
    with pytest.raises(InputError, match="at least one penalty"):
        Penalised([])


# ---------------------------------------------------------------- transformers' Trainer
class Rows(Dataset):
    def __init__(self, count=8):
        self.ids = torch.cat([copies(torch.Generator().manual_seed(step)).inputs for step in range(-(-count // 4))])

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, at):
        row = self.ids[at]
        padded = at % 2 == 0
        labels, mask = row.clone(), torch.ones_like(row)
        if padded:
            mask[-2:], labels[-2:] = 0, -100
        return {"input_ids": row, "labels": labels, "attention_mask": mask}


def arguments(folder, **options):
    chosen = {"max_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 2, "learning_rate": 1e-2, **options}
    return TrainingArguments(
        str(folder), report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True, max_grad_norm=0.0, **chosen
    )


def trained(folder, penalties=None, *, resume=None, **options):
    model = network(**LAYERS)
    kind = Trainer if penalties is None else PenalisedTrainer
    more = {} if penalties is None else {"penalties": penalties}
    trainer = kind(model, arguments(folder, **options), train_dataset=Rows(), eval_dataset=Rows(4), **more)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_a_trainer_with_weight_0_trains_the_same_bits_and_evaluates_the_models_own_loss(tmp_path):
    plain, with_zero = trained(tmp_path / "a"), trained(tmp_path / "b", [TokenDiversity(0.0)])
    assert_equal_bits(weights(plain.model), weights(with_zero.model))
    assert plain.evaluate()["eval_loss"] == with_zero.evaluate()["eval_loss"]
    logged = [entry for entry in with_zero.state.log_history if "loss" in entry]
    assert all(0 < entry["penalty/token_diversity"] < 1 for entry in logged)
    assert len(logged) == 2


def test_a_trainers_step_is_that_of_the_sum(tmp_path):
    """One step by hand, on rows with padding."""
    rows = Rows(4)
    batch = {key: torch.stack([rows[at][key] for at in range(4)]) for key in rows[0]}
    model = network(**LAYERS)
    output = model(**batch, output_hidden_states=True)
    seen = pass_of(model, Batch(batch["input_ids"], mask=batch["attention_mask"]), output)
    (output.loss + 0.7 * TokenDiversity(1.0)(seen)).backward()
    trainer = PenalisedTrainer(
        network(**LAYERS), arguments(tmp_path), train_dataset=rows, penalties=[TokenDiversity(0.7)]
    )
    trainer.model.train()
    trainer.compute_loss(trainer.model, batch).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("penalties", [None, [StabilityPenalty(0.5)]])
def test_accumulated_gradients_of_a_stack_are_those_of_the_whole_batch(tmp_path, penalties):
    """Trainer passes the number of items where a forward pass takes any keyword: the stack has to divide by it."""

    class Equal(Rows):
        def __getitem__(self, at):
            row = self.ids[at]
            return {"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)}

    results = []
    for size, parts in ((4, 1), (2, 2)):
        options = {"max_steps": 2, "per_device_train_batch_size": size, "gradient_accumulation_steps": parts}
        chosen = arguments(tmp_path / str(size), **options, optim="sgd")
        model = network(**LAYERS)
        if penalties is None:
            trainer = Trainer(model, chosen, train_dataset=Equal(4))
        else:
            trainer = PenalisedTrainer(model, chosen, train_dataset=Equal(4), penalties=penalties)
        trainer.get_train_dataloader()
        trainer.train()
        results.append(weights(model))
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-4, atol=1e-6)


def test_a_trainers_moving_weight_is_in_its_checkpoint(tmp_path):
    hold = [TokenDiversity(HoldAt(0.1, rate=0.5))]
    saving = {"save_steps": 2, "save_strategy": "steps"}
    model = network(**LAYERS)
    chosen = TrainingArguments(
        str(tmp_path),
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        max_steps=4,
        per_device_train_batch_size=4,
        **saving,
    )
    trainer = PenalisedTrainer(model, chosen, train_dataset=Rows(), penalties=hold)
    trainer.train()
    stored = json.loads((tmp_path / "checkpoint-2" / "repflow_penalties.json").read_text())
    assert set(stored) == {"token_diversity"}
    again = PenalisedTrainer(network(**LAYERS), chosen, train_dataset=Rows(), penalties=hold)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.penalty_weights.state() == trainer.penalty_weights.state()
