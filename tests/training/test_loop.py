"""The loop: what a step does, callbacks that disturb nothing, logs, graphs, and losses that are not finite."""

import dataclasses
import json
import random

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from repflow.core.errors import DivergedError, InputError
from repflow.models.stack.replicas import ReplicaStack
from repflow.tasks.recall import RecallSetting
from repflow.training import Batch, Callback, CrossEntropy, DrawnBatches, HeldOut, OptimiserConfig, train
from repflow.training.recall import RecallBatches
from repflow.training.replicas import ReplicaBatches, ReplicaLoss
from repflow.training.step import Stepper
from tests.training.tiny_training import (
    VOCABULARY,
    assert_equal_bits,
    classifier,
    config,
    copies,
    network,
    source,
    weights,
    without_clock,
)

CPU = torch.device("cpu")


def dropout_model():
    torch.manual_seed(0)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 13, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.3, attn_pdrop=0.3, embd_pdrop=0.3))


def test_a_chunk_that_no_row_is_longer_than_is_refused():
    """Rows have 6 tokens."""
    for chunk in (6, 40):
        sorting = network(reorder={"chunk": chunk})
        for model, batches in ((sorting, source()), (ReplicaStack([sorting]), ReplicaBatches([source()]))):
            with pytest.raises(InputError, match=f"chunk of reorder below the 6 tokens of a sequence; got {chunk}"):
                train(model, batches, config(steps=1), loss=ReplicaLoss() if model is not sorting else None)
        assert sorting(torch.zeros(1, 3, dtype=torch.long)).logits.isfinite().all()  # a short prompt is read
    longer = [RecallSetting(length=length, pairs=1, vocabulary=12) for length in (4, 8)]
    train(network(reorder={"chunk": 5}), RecallBatches(longer, rows=2), config(steps=2))
    train(network(reorder={"chunk": 5}), source(), config(steps=1))


class Teacher:
    """A loss that is not finite from one step on."""

    def __init__(self, bad):
        self.bad, self.calls = bad, 0

    def __call__(self, model, batch):
        loss, metrics = CrossEntropy()(model, batch)
        self.calls += 1
        return (loss * float("nan") if self.calls > self.bad else loss), metrics

    def weight(self, batch):
        return CrossEntropy().weight(batch)


# ---------------------------------------------------------------- steps
def test_a_training_is_the_plain_loop():
    ours, plain = network().double(), network().double()
    asked = config(optimiser=OptimiserConfig(rate=1e-2, betas=(0.8, 0.97), eps=1e-3))  # none is torch's own
    run = train(ours, source(), asked, loss=CrossEntropy(accuracy=True))
    decayed = [p for name, p in plain.named_parameters() if p.ndim >= 2 and "A_log" not in name]
    chosen = {id(p) for p in decayed}
    rest = [p for p in plain.parameters() if id(p) not in chosen]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.97), eps=1e-3)
    for step in range(12):
        ids = source().batch(step).inputs
        for group in optimiser.param_groups:
            group["lr"] = asked.rate(step)
        each = torch.nn.functional.cross_entropy(
            plain(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        optimiser.zero_grad()
        loss = each.sum() / each.numel()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimiser.step()
        assert run.history["loss"][step] == pytest.approx(loss.item(), rel=1e-6)
        assert run.history["gradient_norm"][step] == pytest.approx(norm.item(), rel=1e-6)
    for name, value in weights(plain).items():
        torch.testing.assert_close(weights(ours)[name], value, rtol=1e-9, atol=1e-12)
    assert list(run.history) == ["loss", "accuracy", "gradient_norm"]


def test_training_learns_to_copy():
    run = train(network(), source(), config(steps=150, evaluate=0), loss=CrossEntropy(accuracy=True))
    assert run.history["loss"][-10:].mean() < run.history["loss"][:10].mean() - 0.3
    assert run.stopped is None
    assert run.tokens == 150 * 4 * 6


def test_a_classifier_learns():
    def draw(draws):
        labels = torch.randint(0, 4, (8,), generator=draws)
        return Batch(torch.randn(8, 5, 3, generator=draws) * 0.1 + labels[:, None, None] - 1.5, labels)

    run = train(classifier(), DrawnBatches(draw), config(steps=80, evaluate=0), loss=CrossEntropy(accuracy=True))
    assert run.history["accuracy"][-10:].mean() > run.history["accuracy"][:10].mean() + 0.2


def test_accumulated_parts_make_the_step_of_the_whole_batch():
    def draw(draws):  # rows whose weights differ much
        batch = copies(draws)
        return Batch(batch.inputs, weights=torch.rand(4, 6, generator=draws) * torch.tensor([[1], [9], [0], [3]]))

    whole, parts = (network().double() for _ in range(2))
    curves = []
    for model, accumulate in ((whole, 1), (parts, 4)):
        run = train(model, DrawnBatches(draw), config(accumulate=accumulate), loss=CrossEntropy(accuracy=True))
        curves.append(run.history)
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(parts)[name], value, rtol=1e-6, atol=1e-8)  # shares are kept in float32
    np.testing.assert_allclose(curves[0]["loss"], curves[1]["loss"], rtol=1e-5)
    np.testing.assert_allclose(curves[0]["gradient_norm"], curves[1]["gradient_norm"], rtol=1e-5)


def test_without_clipping_the_norm_is_still_reported():
    run, bounded = (train(network(), source(), config(clip=clip)) for clip in (None, 1e-3))
    assert np.isfinite(run.history["gradient_norm"]).all()
    assert run.history["gradient_norm"][0] == bounded.history["gradient_norm"][0]
    assert run.history["loss"][-1] != bounded.history["loss"][-1]


def test_batches_drawn_ahead_change_nothing():
    one, other = network(), network()
    train(one, source(), config())
    train(other, source(), config(ahead=3))
    assert_equal_bits(weights(one), weights(other))


def test_the_callers_generators_and_modes_are_left_alone():
    model = dropout_model().eval()
    np.random.seed(1), torch.manual_seed(1)
    expected = np.random.rand(), float(torch.rand(1))
    np.random.seed(1), torch.manual_seed(1)
    train(model, source(), config(steps=2, deterministic=True))  # python's own: beartype draws from it in tests
    assert (np.random.rand(), float(torch.rand(1))) == expected
    assert not any(module.training for module in model.modules())
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_seed_decides_dropout():
    ends = []
    for seed in (0, 0, 1):
        model = dropout_model()
        train(model, source(), config(seed=seed))
        ends.append(weights(model))
    assert_equal_bits(ends[0], ends[1])
    assert not torch.equal(ends[0]["transformer.wte.weight"], ends[2]["transformer.wte.weight"])


# ---------------------------------------------------------------- graphs
class Again:
    """Records on the CPU: a replay runs the step again, as a graph runs its launches again."""

    def __init__(self, fails=False):
        self.fails, self.warmed, self.records = fails, 0, 0

    def warm(self, run):
        self.warmed += 1
        run()

    def record(self, run):
        self.records += 1
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return type("Graph", (), {"replay": lambda _: run()})()


def two_shapes(draws):
    batch = copies(draws)
    return batch if int(batch.inputs[0, 0]) % 2 else Batch(batch.inputs[:, :4])


@pytest.mark.parametrize("fails", [False, True])
def test_recorded_steps_of_every_shape_give_the_plain_steps(fails):
    plain, other = network().train(), network().train()
    recorder = Again(fails)
    steppers = [Stepper(plain, CrossEntropy(), config(steps=30), CPU)]
    steppers.append(Stepper(other, CrossEntropy(), config(steps=30), CPU, recorder=recorder))
    batches = [DrawnBatches(two_shapes).batch(step) for step in range(30)]
    assert len({batch.inputs.shape for batch in batches}) == 2
    for step, batch in enumerate(batches):
        one, two = (stepper.step(step, batch).clone() for stepper in steppers)
        assert torch.equal(one, two)
    assert_equal_bits(weights(plain), weights(other))
    assert (recorder.warmed, recorder.records) == (6, 2)
    assert steppers[1].recorded is not fails
    words = ["no CUDA graph: RuntimeError: operation not permitted when stream is capturing"]
    assert steppers[1].notes == (words if fails else [])


class Silent(Again):
    """Replays nothing, so that nothing in the model asks."""

    def record(self, run):
        super().record(run)
        return type("Graph", (), {"replay": lambda _: None})()


class Inside(torch.nn.Module):
    """A module around a model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask=None):
        return self.model(input_ids, attention_mask=attention_mask)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_replayed_step_of_a_stack_asks_for_padding_on_the_right(wrapped):
    from repflow.models.stack.config import StackConfig
    from repflow.models.stack.network import StackForSequenceClassification

    model = StackForSequenceClassification(StackConfig(vocab_size=9, hidden_size=8, mixers=["mamba"], num_labels=2))
    model = Inside(model) if wrapped else model
    stepper = Stepper(model.train(), CrossEntropy(), config(steps=30), CPU, recorder=Silent())
    inputs, mask = torch.ones(2, 4, dtype=torch.long), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    good = Batch(inputs, targets=torch.tensor([0, 1]), mask=mask)
    for step in range(5):
        stepper.step(step, good)
    assert stepper.recorded
    with pytest.raises(InputError, match="expected padding on the right"):
        stepper.step(5, dataclasses.replace(good, mask=mask.flip(1)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_gives_the_plain_steps():
    ends = []
    for graph in (False, True):
        model = network()
        run = train(model, source(), config(device="cuda", graph=graph, precision="float32"))
        assert run.graph is graph
        ends.append(weights(model))
    # sums of gradients by atomic additions are in any order; AdamW's first steps are as large for small gradients
    torch.testing.assert_close(*ends, atol=2e-4, rtol=1e-3)
    assert not train(network(), source(), config(device="cuda", graph=True, deterministic=True)).graph


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_of_many_shapes_share_their_memory_and_give_the_plain_steps():
    from repflow.models.stack.config import StackConfig
    from repflow.models.stack.network import StackForCausalLM

    device = torch.device("cuda")
    draw = torch.Generator().manual_seed(0)
    kinds = [Batch(torch.randint(0, 64, (64 - k, 256), generator=draw).to(device)) for k in range(6)]
    order = [*(k for k in range(6) for _ in range(4)), 5, 0, 3, 0, 1, 4, 2, 5, 0]  # all recorded, then in any order
    ends, taken = {}, {}
    for name, shapes, graph in (("plain", 6, False), ("graphs", 6, True), ("one shape", 1, True)):
        torch.manual_seed(0)
        model = StackForCausalLM(StackConfig(vocab_size=64, hidden_size=64, mixers="ssd", num_hidden_layers=2))
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        how = config(steps=60, device="cuda", graph=graph, precision="float32")
        stepper = Stepper(model.to(device).train(), CrossEntropy(), how, device)
        losses = [stepper.step(step, kinds[k % shapes]).tolist()[0] for step, k in enumerate(order)]
        torch.cuda.empty_cache()
        assert stepper.recorded is graph, stepper.notes
        ends[name], taken[name] = losses, torch.cuda.memory_reserved() - before
        del stepper, model
    assert ends["graphs"] == pytest.approx(ends["plain"], rel=1e-3)
    assert taken["graphs"] < 1.5 * taken["one shape"]


# ---------------------------------------------------------------- callbacks and the log
class Meddler(Callback):
    """Draws random numbers, changes modes, runs the model with and without gradients."""

    def __init__(self):
        self.seen = []

    def _look(self, moment, kind):
        self.seen.append((kind, moment.step, moment.last))
        random.random(), np.random.rand(), torch.rand(3)
        moment.network.eval()
        torch.set_grad_enabled(False)
        moment.network(torch.zeros(1, 3, dtype=torch.long))
        return {f"seen_{kind}": moment.step}

    def on_step(self, moment):
        return self._look(moment, "step") if moment.step % 5 == 0 else None

    def on_evaluate(self, moment):
        return self._look(moment, "evaluate")

    def on_end(self, moment):
        return self._look(moment, "end")


def test_a_callback_changes_no_bit_and_is_logged():
    alone, watched = dropout_model(), dropout_model()
    run = train(alone, source(), config())
    meddler = Meddler()
    seen = train(watched, source(), config(), callbacks=[meddler])
    assert_equal_bits(weights(alone), weights(watched))
    assert run.history["loss"].tolist() == seen.history["loss"].tolist()
    asked = [("evaluate", 0, False), ("step", 5, False), ("evaluate", 6, False), ("step", 10, False)]
    assert meddler.seen == [*asked, ("evaluate", 12, True), ("end", 12, True)]
    assert [(line["kind"], line["step"]) for line in seen.log] == [
        *(("evaluate", 0), ("step", 4), ("callback", 5), ("evaluate", 6), ("step", 8), ("callback", 10), ("step", 12)),
        *(("evaluate", 12), ("end_metrics", 12), ("end", 12)),
    ]
    steps, values = seen.logged("seen_evaluate")
    assert steps.tolist() == values.tolist() == [0, 6, 12]
    with pytest.raises(
        InputError, match="expected the name of a number that was logged; got 'seen_step_'; did you mean"
    ):
        seen.logged("seen_step_")


def test_log_lines_are_means_over_their_steps(tmp_path):
    run = train(network(), source(), config(steps=10), folder=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == run.log
    steps = [line for line in lines if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [4, 8, 10]
    for line, (start, stop) in zip(steps, [(0, 4), (4, 8), (8, 10)], strict=True):
        assert line["loss"] == pytest.approx(run.history["loss"][start:stop].mean(dtype=np.float64))
        assert line["rate"] == config(steps=10).rate(stop - 1)
        assert line["tokens_per_second"] > 0
    at, curve = run.curve(points=5)
    assert at.tolist() == [2, 4, 6, 8, 10]
    assert curve[1] == pytest.approx(run.history["loss"][2:4].mean())
    result = run.result()
    assert result.axes["loss"] == ("step",)
    assert result.config["loss"] == {"name": "CrossEntropy", "accuracy": False}


def uneven(draws):
    """Rows (2, 3), (2, 6) or (2, 9)."""
    return Batch(torch.randint(0, VOCABULARY, (2, 3 * int(torch.randint(1, 4, (), generator=draws))), generator=draws))


def test_held_out_batches_are_evaluated_by_their_weights():
    """A token counts alike wherever it stands: the mean of the batches' means would be another number."""
    model = dropout_model()
    run = train(model, source(), config(), callbacks=[HeldOut(source(seed=7, draw=uneven), 3)])
    model.eval()
    batches = [source(seed=7, draw=uneven).batch(number).inputs for number in range(3)]
    assert len({ids.shape[1] for ids in batches}) > 1
    with torch.no_grad():
        logits = torch.cat([model(ids).logits[:, :-1].flatten(0, 1) for ids in batches])
    targets = torch.cat([ids[:, 1:].flatten() for ids in batches])
    _, values = run.logged("held_out_loss")
    assert len(values) == 3
    assert values[-1] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, targets)), rel=1e-5)
    right = float((logits.argmax(-1) == targets).float().mean())
    assert run.logged("held_out_accuracy")[1][-1] == pytest.approx(right, rel=1e-6)


def test_callbacks_that_return_one_name_twice_are_refused():
    with pytest.raises(InputError, match="expected callbacks that return different names; got 'seen_evaluate' from"):
        train(network(), source(), config(), callbacks=[Meddler(), Meddler()])


class Failing(Callback):
    def __init__(self, at):
        self.at = at

    def on_step(self, moment):
        if moment.step == self.at:
            raise ZeroDivisionError("mine")


def test_an_exception_in_a_callback_keeps_the_checkpoint(tmp_path):
    whole, model = dropout_model(), dropout_model()
    expected = train(whole, source(), config(), folder=tmp_path / "whole")
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        train(model, source(), config(), folder=tmp_path / "run", callbacks=[Failing(8)])
    (note,) = caught.value.__notes__
    assert note == ("training ended at step 8, in on_step of the callback Failing; the checkpoint of step 5 is kept")
    model = dropout_model()
    run = train(model, source(), config(), folder=tmp_path / "run")
    assert run.resumed_from == 5
    assert_equal_bits(weights(model), weights(whole))
    assert without_clock(run.log) == without_clock(expected.log)


class Stopper(Callback):
    def on_step(self, moment):
        if moment.losses["loss"] < 100 and moment.step == 7:
            moment.stop("good enough")


def test_a_callback_may_end_the_training(tmp_path):
    model, again = network(), network()
    run = train(model, source(), config(), folder=tmp_path, callbacks=[Stopper(), Meddler()])
    assert (run.steps, run.stopped) == (7, "good enough")
    assert run.logged("seen_evaluate")[0].tolist() == [0, 6, 7]
    read = train(again, source(), config(), folder=tmp_path, callbacks=[Stopper()])
    assert (read.steps, read.stopped, read.log) == (7, "good enough", run.log)
    assert_equal_bits(weights(model), weights(again))


# ---------------------------------------------------------------- not finite
def test_a_loss_that_is_not_finite_stops_at_its_step(tmp_path):
    said = []
    run = train(network(), source(), config(), loss=Teacher(7), folder=tmp_path, say=said.append)
    assert (run.steps, run.stopped) == (8, "nonfinite")
    (finding,) = run.findings
    assert finding.code == "nonfinite_loss"
    assert finding.message.startswith(
        "the loss of step 8 is not finite; the checkpoint of step 5 is kept; lower the rate"
    )
    assert finding.message in said
    assert {"kind": "nonfinite", "step": 8, "what": "loss"} in run.log
    assert json.loads((tmp_path / "training.json").read_text())["step"] == 5
    good = network()
    again = train(good, source(), config(), loss=Teacher(99), folder=tmp_path)
    assert again.stopped is None
    assert all(torch.isfinite(value).all() for value in weights(good).values())


class Overflow(Teacher):
    """A loss behind which importance scores are not finite from one step on."""

    def __call__(self, model, batch):
        if self.calls == self.bad:
            with torch.no_grad():
                model.model.blocks[0].mixer.order.K.fill_(torch.nan)
        return super().__call__(model, batch)


def test_scores_that_are_not_finite_are_a_loss_that_is_not():
    """On a CPU a sort refuses them; within a training they are what it came to, as on a GPU."""
    sorting = network(reorder={"chunk": 2})
    run = train(sorting, source(), config(), loss=Overflow(3))
    assert (run.steps, run.stopped) == (4, "nonfinite")
    assert run.findings[0].message.startswith("the loss of step 4 is not finite; lower the rate")
    with pytest.raises(InputError, match="finite importance scores; got nan at token 0"):
        train(sorting, source(), config())


def test_it_may_be_reported_or_raised_instead(tmp_path):
    run = train(network(), source(), config(nonfinite="report"), loss=Teacher(7), folder=tmp_path)
    assert (run.steps, run.stopped) == (12, None)
    assert [finding.code for finding in run.findings] == ["nonfinite_loss"]
    assert run.log[-1]["kind"] == "end"
    assert [line["loss"] for line in run.log if line["kind"] == "step"][1:] == [None, None]
    read = train(network(), source(), config(nonfinite="report"), loss=Teacher(7), folder=tmp_path)
    assert read.findings == run.findings
    with pytest.raises(DivergedError, match="the loss of step 8 is not finite; lower the rate"):
        train(network(), source(), config(nonfinite="raise"), loss=Teacher(7))


def test_a_gradient_that_is_not_finite_is_found_too():
    class Steep(Teacher):
        def __call__(self, model, batch):
            self.calls += 1
            loss, metrics = CrossEntropy()(model, batch)
            if self.calls > self.bad:
                extra = sum(p.sum() for p in model.parameters()) - sum(p.sum() for p in model.parameters()).detach()
                loss = loss + torch.sqrt(extra.clamp(min=0))  # 0 with an infinite slope
            return loss, metrics

    run = train(network(), source(), config(), loss=Steep(3))
    assert run.findings[0].message.startswith("the gradient norm of step 4 is not finite")
    assert np.isfinite(run.history["loss"]).all()


def test_optimiser_of_a_config_is_used():
    still = network()
    before = weights(still)
    train(still, source(), config(optimiser=OptimiserConfig(rates={".": 0.0})))
    assert_equal_bits(before, weights(still))
