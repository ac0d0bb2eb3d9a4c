"""Classifiers of images side by side: each form gives what the stacks give alone, and trainings end alike."""

import numpy as np
import pytest
import torch
from scipy import stats

from repflow.core.errors import InputError
from repflow.models import StackConfig, StackForSequenceClassification
from repflow.models.stack.replica_classifier import class_form, class_logits, class_obstacle
from repflow.models.stack.replicas import ReplicaStack, replica_obstacle
from repflow.tasks.pixels import Images, PixelLayout
from repflow.tasks.pixels.drawn import draw_images
from repflow.training import Batch, OptimiserConfig, train
from repflow.training.pixels import PixelBatches, PixelRows
from repflow.training.replicas import ReplicaBatches, ReplicaLoss
from tests.training.tiny_training import config

FRAMES = {
    "attention": {
        "mixers": {"name": "softmax_attention", "heads": 2, "rotary": 0.0}, "norm": "layer", "mlp": "gelu",
        "mlp_size": 8, "max_position_embeddings": 64,
    },
    "h3": {"mixers": {"name": "h3", "state": 4, "head_dim": 2}, "norm": "layer"},
    "s4d": {"mixers": {"name": "s4d", "state": 4}, "class_token": None},
    "both ways": {"mixers": {"name": "h3", "state": 4}, "bidirectional": True, "class_token": "middle"},
    "rwkv": {"mixers": "rwkv4"},
}  # fmt: skip


def stacks(count=2, **options):
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        shape = {"num_hidden_layers": 2, "hidden_size": 8, "input_channels": 3, "num_labels": 10, "class_token": "end"}
        made.append(StackForSequenceClassification(StackConfig(**{**shape, **options})).double())
    return made


@pytest.mark.parametrize("name", FRAMES)
def test_batched_and_alone_agree(name):
    """Logits and every gradient, in float64, also against the stacks themselves."""
    networks = stacks(**FRAMES[name])
    stack = ReplicaStack(networks)
    x = torch.rand(6, 16, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weight = torch.rand(2, 3, 10, dtype=torch.float64)
    slopes = {}
    for form in ("batched", "alone"):
        stack.zero_grad()
        logits = class_logits(stack, x, form=form)
        for number, network in enumerate(networks):
            assert torch.allclose(logits[number], network(x[3 * number : 3 * number + 3]).logits, atol=1e-13)
        (logits * weight).sum().backward()
        slopes[form] = {key: value.grad.clone() for key, value in stack.named_single()}
    for key, value in slopes["alone"].items():
        assert torch.allclose(slopes["batched"][key], value, atol=1e-12), key
    assert class_form(stack, x) == "alone"  # on a CPU by their own code
    assert replica_obstacle(networks[0]) is None


@pytest.mark.parametrize("whole", [False, True])
def test_each_replica_drops_channels_of_its_own(whole):
    stack = ReplicaStack(stacks(2, dropout=0.5, channel_dropout=whole, **FRAMES["h3"]))
    same = ReplicaStack([stack.networks[0], stack.networks[0]])
    x = torch.rand(3, 16, 3, dtype=torch.float64).repeat(2, 1, 1)
    torch.manual_seed(0)
    one, other = class_logits(same.train(), x, form="batched")
    assert not torch.allclose(one, other)
    one, other = class_logits(same.eval(), x, form="batched")
    assert torch.equal(one, other)


def rows(seed, grey=False):
    return PixelBatches(PixelRows(draw_images(20, side=8), PixelLayout(grey=grey)), 4, seed=seed)


@pytest.mark.parametrize("layout", [PixelLayout(), PixelLayout("snake", patch=2)])
def test_half_of_the_images_are_mirrored_and_others_in_every_epoch(layout):
    images = draw_images(40, side=8)
    plain = PixelBatches(PixelRows(images, layout), 20, seed=3)
    mirrored = PixelBatches(PixelRows(images, layout, mirror=True), 20, seed=3)
    turned = layout.sequence(np.ascontiguousarray(images.pixels[:, :, ::-1]))
    whole = layout.sequence(images.pixels)
    seen = []
    for step in range(4):
        usual, batch = plain.batch(step), mirrored.batch(step)
        assert torch.equal(usual.targets, batch.targets)  # the order is that without mirrors
        own = [next(i for i in range(40) if np.allclose(whole[i] / 255, row)) for row in usual.inputs.numpy()]
        as_they_are = [np.allclose(row, whole[i] / 255) for i, row in zip(own, batch.inputs.numpy(), strict=True)]
        in_mirrors = [np.allclose(row, turned[i] / 255) for i, row in zip(own, batch.inputs.numpy(), strict=True)]
        assert all(a or b for a, b in zip(as_they_are, in_mirrors, strict=True))
        seen += zip(own, in_mirrors, strict=True)
    first, second = dict(seen[:40]), dict(seen[40:])
    assert 5 < sum(first.values()) < 35
    assert first != second
    turns = [(plain.batch(step).inputs != mirrored.batch(step).inputs).flatten(1).any(1) for step in range(50)]
    low, high = stats.binom.interval(0.9999, 1000, 0.5)
    assert low <= int(torch.cat(turns).sum()) <= high
    assert mirrored.facts() == plain.facts() | {"mirror": True}
    assert torch.equal(mirrored.batch(0).inputs, PixelBatches(mirrored.rows, 20, seed=3).batch(0).inputs)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_a_classifier_ends_as_it_does_alone(clip):
    """With rates of their own and a smaller one for the recurrence's parameters."""
    options = {"mixers": {"name": "s6", "state": 4}}
    rates = {"A_log|dt_proj": 0.1}
    whole = ReplicaStack(stacks(**options), factors=(1.0, 2.0))
    how = config(clip=clip, optimiser=OptimiserConfig(rate=1e-2, rates=rates))
    run = train(whole, ReplicaBatches([rows(5), rows(6)]), how, loss=ReplicaLoss())
    for number, (alone, together) in enumerate(zip(stacks(**options), whole.put_back(), strict=True)):
        own = config(clip=clip, optimiser=OptimiserConfig(rate=1e-2 * (1, 2)[number], rates=rates))
        one = train(alone, rows(5 + number), own)
        assert run.history[f"loss {number}"] == pytest.approx(one.history["loss"], rel=1e-6)
        for name, value in alone.named_parameters():
            assert torch.allclose(together.get_parameter(name), value, rtol=1e-9, atol=1e-12), name


def test_images_of_an_epoch_come_once():
    images = Images.checked(np.arange(12 * 16).reshape(12, 4, 4) % 256, [0, 1] * 6)
    source = PixelBatches(PixelRows(images, PixelLayout("reversed")), 5, seed=1, bounds=(-1.0, 1.0))
    assert source.epoch_steps == 2  # two images are left out of each epoch
    first, second, third = (source.batch(step) for step in range(3))
    seen = torch.cat([first.inputs, second.inputs])
    assert len(torch.unique(seen, dim=0)) == 10
    assert not torch.equal(third.inputs, first.inputs)
    expected = images.pixels.reshape(12, 16)[:, ::-1] / 255 * 2 - 1
    for row, label in zip(first.inputs, first.targets, strict=True):
        at = int(np.abs(expected - row[:, 0].numpy()).sum(1).argmin())
        assert np.allclose(expected[at], row[:, 0], atol=1e-6)
        assert images.labels[at] == label
    assert torch.equal(source.batch(1).inputs, second.inputs)


def test_wrong_requests_are_refused():
    with pytest.raises(InputError, match="batches of at most 20"):
        PixelBatches(PixelRows(draw_images(20, side=8)), 21)
    stack = ReplicaStack(stacks(mixers={"name": "s6", "state": 4}))
    with pytest.raises(InputError, match="2 replicas share equally"):
        stack.class_losses(torch.rand(3, 16, 3), torch.zeros(3).long())
    with pytest.raises(InputError, match="a class for each row"):
        ReplicaLoss()(stack, Batch(torch.rand(2, 16, 3), torch.zeros(2, 2).long()))
    with pytest.raises(InputError, match="class_token"):
        ReplicaStack([*stacks(1, mixers="s6"), *stacks(1, mixers="s6", class_token="middle")])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mixers": "ssd"}, "mixers other than gated S6"),
        ({"mixers": "s6", "norm": "layer"}, "other norms than RMS"),
        ({"mixers": "s6", "mlp": "rwkv"}, "looks at the token before"),
        ({"mixers": "s6", "skip": 0.5}, "residual stream"),
        ({"mixers": "s6", "share": True}, "share weights"),
        ({"mixers": "s6", "bidirectional": True, "mlp": "gelu", "max_position_embeddings": 16}, None),
    ],
)
def test_what_the_kernels_take(options, said):
    reason = class_obstacle(stacks(1, **options)[0])
    assert reason is None if said is None else said in reason
