"""Running a plan: out-of-memory is met with halved batches, which are recorded and found again on resume."""

import threading

import numpy as np
import pytest
import torch

from repflow.capture import MemorySink, OutOfMemoryError, Plan, gather, make_plan, run, run_plan
from repflow.capture.run import Writer, batch_name, pad
from repflow.core.errors import RepflowError, out_of_memory
from repflow.metrics.flow import FlowMeter
from repflow.metrics.meter import HeldMeter
from repflow.metrics.streaming_cka import RowPooledCka
from repflow.models import Model
from repflow.store import RunFolder
from repflow.studies.engine.sink import RunSink
from repflow.tasks import Prompts
from tests.capture.inputs import LENGTHS, model, prompts


class Small(Model):
    """A model whose device holds batches up to a size; everything else is the real one's."""

    def __init__(self, inner, most, error=torch.OutOfMemoryError):
        self.__dict__ |= inner.__dict__
        self._most, self._error, self.sizes = most, error, []

    def stream(self, ids, mask=None, **options):
        self.sizes.append(len(ids))
        seen = options["on_state"]

        def on_state(state, hidden):
            if len(ids) > self._most and state == 2:
                raise self._error(
                    "CUDA out of memory" if self._error is torch.OutOfMemoryError else "CUDA: device-side assert"
                )
            seen(state, hidden)

        super().stream(ids, mask, **options | {"on_state": on_state})


class Notes(MemorySink):
    """A sink that remembers the cuts."""

    def __init__(self):
        super().__init__()
        self.splits = []

    def split(self, batch, size):
        self.splits.append((batch, size))


def meters():
    return [FlowMeter(5, max(LENGTHS), keep=frozenset({0}))]


def table(plan, sink):
    all_meters = meters()
    for batch in plan.batches:
        gather(all_meters, sink.read(batch_name(batch)))
    return all_meters[0].compute()


def plan_of(size):
    return make_plan(LENGTHS, width=32, itemsize=4, batch_size=size)


def assert_same(got, want):
    assert got.keys() == want.keys()
    for name, (axes, value) in want.items():
        assert got[name][0] == axes
        np.testing.assert_allclose(got[name][1], value, rtol=1e-5, atol=2e-6, err_msg=name)


def test_out_of_memory_halves_until_it_fits():
    small, sink, ticks = Small(model(), 2), Notes(), []
    hooks = [len(block._forward_hooks) for block in model().blocks]
    plan = run_plan(small, prompts(), plan_of(8), meters, sink, progress=lambda *tick: ticks.append(tick))
    assert sink.splits == [(0, 4), (0, 2)]
    assert small.sizes == [8, 4, 2, 2, 2, 2, 1]
    assert plan == plan_of(8).split(0, 4).split(0, 2)
    assert list(sink.kept) == [batch_name(batch) for batch in plan.batches]
    assert ticks[-1] == (9, 9, sum(LENGTHS))
    assert [tick[0] for tick in ticks] == [2, 4, 6, 8, 9]
    whole = MemorySink()
    assert_same(table(plan, sink), table(run_plan(model(), prompts(), plan_of(9), meters, whole), whole))
    assert hooks == [len(block._forward_hooks) for block in model().blocks], "removed after the error too"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
        MemoryError("Unable to allocate 9 GiB"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("could not create a primitive"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        RuntimeError("unable to mmap 400 bytes from file: Cannot allocate memory (12)"),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_what_counts_as_out_of_memory(error):
    assert out_of_memory(error)
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_the_cpu_allocators_own_words_are_known():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 55)
    assert out_of_memory(raised.value)


def test_other_errors_are_not_taken_for_out_of_memory():
    sink = Notes()
    with pytest.raises(RuntimeError, match="device-side assert"):
        run_plan(Small(model(), 2, RuntimeError), prompts(), plan_of(8), meters, sink)
    assert sink.splits == []


def test_one_sample_too_many_is_a_clear_error():
    sink = Notes()
    with pytest.raises(OutOfMemoryError, match=r"out of memory on a single sample: .*; use shorter prompts, dtype"):
        run_plan(Small(model(), 0), prompts(), plan_of(4), meters, sink)
    assert sink.splits == [(0, 2), (0, 1)]
    assert not sink.kept
    assert issubclass(OutOfMemoryError, RepflowError)


def test_out_of_memory_in_the_meters_own_work_halves_too():
    """Opt-in meters stack a sample's states when the batch ends."""
    calls = []

    def greedy(hidden):
        calls.append(len(calls))
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return hidden.abs().mean((1, 2))

    sink = Notes()
    factory = lambda: [HeldMeter({"greedy": (("state",), greedy)})]  # noqa: E731
    plan = run_plan(model(), prompts(), plan_of(4), factory, sink)
    assert sink.splits == [(0, 2)]
    assert sorted(s for name in sink.kept for s in sink.kept[name]) == list(range(9))
    assert plan == plan_of(4).split(0, 2)


def test_sums_that_cannot_be_taken_back_are_not_started_again(monkeypatch):
    pooled = RowPooledCka(5)
    add = RowPooledCka._take

    def short(self, states):
        if len(self.records) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return add(self, states)

    monkeypatch.setattr(RowPooledCka, "_take", short)
    with pytest.raises(OutOfMemoryError, match="a batch of 4: CUDA out of memory; pass a smaller batch_size"):
        run_plan(model(), prompts(), plan_of(4), lambda: [pooled], MemorySink())


def stored(tmp_path):
    return RunFolder.open(tmp_path, "r", config={"a": 1}, provenance={"digests": {}})


def test_cuts_are_found_again_on_resume(tmp_path):
    """Killed after two of the cut batches: the same plan, only what is missing runs, and the same numbers."""
    small = Small(model(), 2)
    with stored(tmp_path) as folder:
        sink = RunSink(folder)
        plan = sink.plan(lambda: plan_of(8))
        writes = []
        write = sink.write

        def killed(name, records):
            if len(writes) == 2:
                raise KeyboardInterrupt
            writes.append(name)
            write(name, records)

        sink.write = killed
        with pytest.raises(KeyboardInterrupt):
            run_plan(small, prompts(), plan, meters, sink)
    again = Small(model(), 99)
    with stored(tmp_path) as folder:
        sink = RunSink(folder)
        plan = sink.plan(lambda: pytest.fail("the plan is stored"))
        assert plan == plan_of(8).split(0, 4).split(0, 2)
        done = run_plan(again, prompts(), plan, meters, sink)
        assert done == plan, "no new cut, although there would be room"
        assert again.sizes == [2, 2, 1]
        resumed = table(plan, sink)
    whole = MemorySink()
    straight = table(run_plan(Small(model(), 2), prompts(), plan_of(8), meters, whole), whole)
    for name, (_, value) in straight.items():
        np.testing.assert_array_equal(resumed[name][1], value, err_msg=name)


def test_padding_repeats_the_last_id_and_full_batches_have_no_mask():
    ids, mask = pad(prompts(), (2, 0))
    assert ids.shape == mask.shape == (2, 7)
    assert mask.sum(1).tolist() == [2, 7]
    assert set(ids[0, 2:].tolist()) == {prompts()[2].ids[-1]}
    assert tuple(ids[1].tolist()) == prompts()[0].ids
    ids, mask = pad(prompts(), (1, 4))
    assert mask is None


def test_sink_protocol_and_names():
    sink = MemorySink()
    plan = Plan(((0,),))
    assert sink.plan(lambda: plan) is plan
    assert not sink.has("x")
    sink.write("x", {0: [{"a": np.ones(1)}]})
    assert sink.has("x")
    assert batch_name((12, 3)) == "batch-000012-2"


class Counted(Prompts):
    """Prompts that count how often one of their lengths is looked up."""

    @property
    def lengths(self):
        mine = self

        class Lengths(tuple):
            def __getitem__(self, at):
                mine.__dict__["looked"] = mine.__dict__.get("looked", 0) + 1
                return super().__getitem__(at)

        return Lengths(len(prompt.ids) for prompt in self.samples)


def test_the_progress_of_many_batches_looks_up_each_length_as_often_as_that_of_few():
    looked, calls = [], []
    for size in (1, 4):
        inputs = Counted("ids", prompts().samples)
        plan = make_plan(inputs.lengths, width=16, itemsize=4, batch_size=size)
        inputs.__dict__["looked"] = 0
        done = []
        run_plan(
            model("gpt_neox"), inputs, plan, meters, MemorySink(), progress=lambda *now, done=done: done.append(now)
        )
        looked.append(inputs.__dict__["looked"])
        calls.append(done[-1])
    assert looked[0] == looked[1]
    assert calls == [(len(LENGTHS), len(LENGTHS), sum(LENGTHS))] * 2


class Waiting:
    """A batch whose records wait for someone."""

    def __init__(self, number, go, error=None):
        self.batch, self.go, self.error = (number,), go, error

    def records(self):
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        return {self.batch[0]: [{}]}


def test_a_batch_is_written_behind_the_next_one_and_in_order():
    go, sink = threading.Event(), MemorySink()
    with Writer(sink, behind=True) as writer:
        writer.write(Waiting(0, go))
        assert not sink.kept, "the caller goes on while the records are awaited"
        go.set()
        writer.write(Waiting(1, go))
        writer.wait()
        assert list(sink.kept) == ["batch-000000-1", "batch-000001-1"]


def test_what_goes_wrong_behind_is_raised_by_the_next_call():
    go, sink = threading.Event(), MemorySink()
    go.set()
    with Writer(sink, behind=True) as writer:
        writer.write(Waiting(0, go, OSError("no room")))
        with pytest.raises(OSError, match="no room"):
            writer.write(Waiting(1, go))
        writer.wait()
    assert not sink.kept


def test_batches_written_behind_give_the_same_records(monkeypatch):
    tables = []
    for behind in (False, True):
        monkeypatch.setattr(run, "Writer", lambda sink, behind, asked=behind: Writer(sink, behind=asked))
        sink = MemorySink()
        plan = make_plan(LENGTHS, width=16, itemsize=4, batch_size=3)
        tables.append(table(run_plan(model("gpt_neox"), prompts(), plan, meters, sink), sink))
    for name, (axes, array) in tables[0].items():
        assert tables[1][name][0] == axes
        np.testing.assert_array_equal(tables[1][name][1], array)
