"""Kernels compiled ahead: those that the meter will launch, and no launch waits for another's."""

import threading

import pytest
import torch

from repflow.metrics import ahead, fused
from repflow.metrics.ahead import Ahead, Batch, Launch, launches
from repflow.metrics.flow import FlowMeter
from repflow.metrics.meter import BatchInfo

pytest.importorskip("triton")
HALF, FULL = torch.bfloat16, torch.float32


def every_key(meter, batch, width):
    """Keys of all launches of the whole meter."""
    seen = set()
    with fused.noting(lambda *launch: seen.add(Launch(*launch).key)):
        meter.begin(BatchInfo(tuple(range(batch.samples)), (batch.tokens,) * batch.samples))
        for state in range(meter.n_states):
            dtype = batch.stream if state else batch.embedding
            meter.update(state, torch.empty(batch.samples, batch.tokens, width, dtype=dtype, device="meta"))
        meter.final_norm(torch.empty(batch.samples, batch.tokens, width, dtype=batch.normed, device="meta"))
    return seen


@pytest.mark.parametrize(("states", "group"), [(33, 6), (65, 8), (25, 6), (7, 3), (3, 8), (13, 2), (13, 1)])
@pytest.mark.parametrize("kinds", [(HALF, HALF, HALF), (HALF, FULL, HALF), (FULL, FULL, FULL)])
def test_a_shorter_meter_launches_the_same_kernels(states, group, kinds):
    batch = Batch(2, 48, *kinds)
    launched = launches(FlowMeter(states, 48, group=group), batch, 64)
    assert {launch.key for launch in launched} == every_key(FlowMeter(states, 48, group=group), batch, 64)
    assert len(launched) == len({launch.key for launch in launched})


def test_a_first_call_on_a_bfloat16_model_needs_ten_kernels():
    """Main batches of 8 x 2048, then the check of 2 x 128 in both precisions: the half pass adds none."""
    meter = FlowMeter(33, 2048, group=6)
    batches = [Batch(8, 2048, HALF, HALF, HALF), Batch(2, 128, HALF, HALF, HALF), Batch(2, 128, FULL, FULL, FULL)]
    sizes = [len({x.key for batch in batches[:n] for x in launches(meter, batch, 2560)}) for n in (1, 2, 3)]
    assert sizes == [5, 5, 10]


def test_the_number_of_prompts_makes_no_other_kernel():
    meter = FlowMeter(9, 2048, group=3)
    keys = [{x.key for x in launches(meter, Batch(size, 64, HALF, HALF, HALF), 64)} for size in (1, 3, 16)]
    assert keys[0] == keys[1] == keys[2]


class Kernel:
    """Compiles when it is allowed to."""

    def __init__(self):
        self.go, self.compiled, self.launched = threading.Event(), 0, 0

    def run(self, *args, grid, warmup, **options):
        assert warmup
        assert self.go.wait(30)
        self.compiled += 1

    def __getitem__(self, grid):
        def launch(*args, **options):
            self.launched += 1

        return launch


def test_a_launch_waits_for_its_own_kernel_only(monkeypatch):
    monkeypatch.setattr(fused, "_wait", None)
    slow, quick, other = Kernel(), Kernel(), Kernel()
    quick.go.set()
    held = Ahead(torch.device("cpu"))
    held.start(lambda: [Launch(kernel, (1,), (3, 2.0), {"A": 1}) for kernel in (slow, quick)])
    fused.before_launch(held.wait)
    fused._launch(quick, (1,), 3, 2.0, A=1)
    fused._launch(other, (1,), 3, 2.0, A=1)  # nobody compiles it ahead
    assert (quick.compiled, quick.launched, other.launched) == (1, 1, 1)
    assert fused._wait is not None, "one is still being compiled"
    threading.Timer(0.05, slow.go.set).start()
    fused._launch(slow, (1,), 3, 2.0, A=1)
    assert (slow.compiled, slow.launched) == (1, 1)
    assert fused._wait is None, "later launches pay nothing"


def test_a_kernel_that_does_not_compile_says_so_in_its_launch(monkeypatch):
    monkeypatch.setattr(fused, "_wait", None)

    class Broken(Kernel):
        def run(self, *args, **options):
            raise RuntimeError("no such type")

    broken = Broken()
    held = Ahead(torch.device("cpu"))
    held.start(lambda: [Launch(broken, (1,), (), {})])
    fused.before_launch(held.wait)
    fused._launch(broken, (1,))
    assert broken.launched == 1


def test_a_cpu_compiles_nothing(monkeypatch):
    begun = []
    monkeypatch.setattr(ahead, "Ahead", begun.append)
    monkeypatch.setattr(ahead, "_begun", set())
    monkeypatch.setattr(fused, "_wait", None)
    meter = FlowMeter(9, 64, group=3)
    ahead.compile_ahead(lambda: [meter], [Batch(2, 64, HALF, HALF, HALF)], 64, torch.device("cpu"))
    assert not begun
    assert not ahead._begun
    assert fused._wait is None, "no launch waits"


def test_what_was_begun_is_not_listed_again(monkeypatch):
    begun = []

    class Noted(Ahead):
        def start(self, listing):
            begun.append({launch.key for launch in listing()})
            self._listed.set()

    monkeypatch.setattr(ahead, "Ahead", Noted)
    monkeypatch.setattr(ahead, "_begun", set())
    monkeypatch.setattr(fused, "_wait", None)
    for tokens in (64, 128, 2048, 70):
        meter = FlowMeter(9, tokens, group=3, keep=frozenset({0}))
        ahead.compile_ahead(lambda m=meter: [m], [Batch(2, tokens, HALF, HALF, HALF)], 64, torch.device("cuda"))
    assert len(begun) == 2
    assert all(begun)
