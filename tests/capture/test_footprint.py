"""The meters' memory does not grow with depth: counted in live tensors of the shape of a state."""

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from repflow.capture.measure import MeasureOptions, meter_factory
from repflow.capture.run import start_batch
from repflow.metrics.flow import FlowMeter, meter_bytes
from repflow.models import load
from tests.capture.inputs import prompts
from tests.models.tiny_configs import tiny_config

TOKENS, BATCH, WIDTH = 40, 4, 32
STATE = TOKENS * BATCH * WIDTH


class Large(TorchDispatchMode):
    """Sees every tensor that is made, and keeps weak references to those of the shape of a state."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.numel() == STATE and leaf.shape[-1] == WIDTH:
                self.made.append(weakref.ref(leaf))
        return out

    def live_bytes(self):
        tensors = [tensor for tensor in (ref() for ref in self.made) if tensor is not None]
        self.made = [weakref.ref(tensor) for tensor in tensors]
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def deep(layers):
    config = tiny_config("gpt2")
    config.n_layer = layers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return load(AutoModelForCausalLM.from_config(config))


def peak(layers, monkeypatch, *, group=1, **options):
    """Most bytes of states and running sums alive after any state."""
    loaded, inputs = deep(layers), prompts((TOKENS,) * BATCH)
    meters = meter_factory(loaded, inputs, MeasureOptions(**options), group)()
    seen, most = FlowMeter.update, []
    with monkeypatch.context() as patch, Large() as large:

        def watched(self, index, hidden):
            seen(self, index, hidden)
            most.append(large.live_bytes())

        patch.setattr(FlowMeter, "update", watched)
        running = start_batch(loaded, inputs, tuple(range(BATCH)), meters)
        gc.collect()
        assert len(most) == layers + 1
        if all(meter.deferrable for meter in meters):
            assert large.live_bytes() == 0, "nothing large waits while the next batch runs"
        running.finish()
        gc.collect()
        assert large.live_bytes() == 0, "nothing large outlives the batch"
    return max(most)


@pytest.mark.parametrize("group", [1, 4])
def test_four_times_the_depth_takes_no_more_memory(monkeypatch, group):
    shallow, steep = (peak(layers, monkeypatch, group=group) for layers in (12, 48))
    assert steep <= 1.1 * shallow
    # what the plan reckons with, and what the model itself holds of its stream
    assert 4 * 4 * STATE <= shallow <= meter_bytes(BATCH, TOKENS, WIDTH, 4, group) + 2 * 4 * STATE


def test_direction_and_grid_do_not_grow_either(monkeypatch):
    options = {"metrics": ("smoothness", "direction_smoothness"), "grid": 3}
    shallow, steep = (peak(layers, monkeypatch, **options) for layers in (12, 48))
    assert steep <= 1.1 * shallow


def test_metrics_that_hold_every_state_show_in_this_count(monkeypatch):
    """The count itself is right: an opt-in meter holds one state per layer."""
    assert peak(12, monkeypatch, metrics=("smoothness", "effective_rank")) >= 13 * 4 * STATE
