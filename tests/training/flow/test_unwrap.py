"""The module inside what torch.compile, DistributedDataParallel, accelerate and PEFT make; and two processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import repflow
from repflow.core.errors import InputError, UnsupportedModelError
from repflow.training import FlowMeter
from repflow.training.flow.unwrap import reading_copy, unwrapped
from tests.training.flow.tiny_loop import PROMPTS, tiny_gpt2, train

ROOT = Path(__file__).parents[3]


class Holder(nn.Module):
    """As a LightningModule: the model is a part of it."""

    def __init__(self, model):
        super().__init__()
        self.model, self.head = model, nn.Linear(2, 2)


@pytest.mark.parametrize(
    "wrap",
    [lambda model: model, torch.compile, nn.DataParallel, Holder, lambda model: torch.compile(nn.DataParallel(model))],
    ids=["bare", "compiled", "parallel", "held", "compiled parallel"],
)
def test_what_trainings_wrap_around_a_model(wrap):
    model = tiny_gpt2()
    assert unwrapped(wrap(model)) is model


@pytest.fixture
def fresh_accelerate():
    """Its state is the process's, and other tests have trained."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


@pytest.mark.usefixtures("fresh_accelerate")
def test_accelerate():
    from accelerate import Accelerator

    model = tiny_gpt2()
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")  # its forward casts; that of the copy does not
    prepared = accelerator.prepare(model)
    assert unwrapped(prepared) is model
    assert "forward" in vars(model)
    copied = reading_copy(model).network
    assert "forward" not in vars(copied)
    meter = FlowMeter(prepared, PROMPTS, out=None, on_error="raise")
    meter.measure(0)
    expected = repflow.measure(tiny_gpt2(), PROMPTS, metrics=["token_similarity"])
    np.testing.assert_allclose(meter.result()["token_similarity"][0], expected["token_similarity"], rtol=1e-6)


def test_adapters_of_peft_are_read_with_the_model():
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(tiny_gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"]))
    meter = FlowMeter(adapted, PROMPTS, every=1, out=None, on_error="raise")
    before = meter.measure(0)
    train(adapted, steps=2, rate=0.1)
    assert meter.measure(2)["flow/token_similarity"] != before["flow/token_similarity"]
    merged = adapted.merge_and_unload()
    expected = repflow.measure(merged, PROMPTS, metrics=["token_similarity"])
    np.testing.assert_allclose(meter.result()["token_similarity"][1], expected["token_similarity"], rtol=1e-4)


def test_prompt_tuning_is_refused():
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(InputError, match="an adapter inside the model's layers; got PromptTuningConfig"):
        unwrapped(peft.get_peft_model(tiny_gpt2(), config))


def test_blocks_that_are_compiled_one_by_one_are_read_as_plain_modules():
    model = tiny_gpt2()
    expected = repflow.measure(model, PROMPTS, metrics=["token_similarity"])
    for number, block in enumerate(model.transformer.h):
        model.transformer.h[number] = torch.compile(block, backend="aot_eager")
    meter = FlowMeter(model, PROMPTS, out=None, on_error="raise")
    meter.measure(0)
    names = {type(module).__name__ for module in meter._reading.model.network.modules()}
    assert "OptimizedModule" not in names
    np.testing.assert_allclose(meter.result()["token_similarity"][0], expected["token_similarity"], rtol=1e-6)


def test_shards_are_refused():
    model = tiny_gpt2()
    next(model.parameters()).ds_status = "not available"  # as ZeRO-3 marks a parameter that is elsewhere
    with pytest.raises(UnsupportedModelError, match=r"whole in this process; got transformer\.wte\.weight in shards"):
        unwrapped(model)

    class FullyShardedDataParallel(Holder):
        pass

    with pytest.raises(UnsupportedModelError, match="got FullyShardedDataParallel"):
        unwrapped(FullyShardedDataParallel(tiny_gpt2()))


TWO = """
import os, pathlib, sys, time, torch, torch.distributed as distributed, torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel
from repflow.training import FlowMeter
from tests.training.flow.tiny_loop import PROMPTS, tiny_gpt2, train, weights

def work(rank, folder):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    ends = []
    for watched in (False, True):
        model = tiny_gpt2()
        wrapped = DistributedDataParallel(model)
        meter = FlowMeter(wrapped, PROMPTS, every=2, metrics=["default", "influence_half_life"], out=None,
                          on_error="raise") if watched else None
        read = []
        losses = train(model, call=wrapped, after=None if meter is None else lambda step: read.append(meter.step(step)))
        ends.append((losses, weights(model)))
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(ends[0][1][name], ends[1][1][name]) for name in ends[0][1])
    assert [bool(numbers) for numbers in read] == ([False, True] * 3 if rank == 0 else [False] * 6)
    print(f"rank {rank} is bit-equal", flush=True)
    # the one that is done first stays: when it took the group down, the other could wait for its last exchange forever
    pathlib.Path(folder, f"done-{rank}").touch()
    while not all(pathlib.Path(folder, f"done-{each}").exists() for each in range(2)):
        time.sleep(0.01)
    os._exit(0)

if __name__ == "__main__":
    # forked: each would spend seconds on imports that this one has made
    processes.start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")
"""


def test_two_processes_are_bit_equal_and_the_first_reads(tmp_path):
    import os

    script = tmp_path / "two.py"
    script.write_text(TWO)
    known = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(tmp_path)]
    run = subprocess.run(command, env=known, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "rank 0 is bit-equal" in run.stdout
    assert "rank 1 is bit-equal" in run.stdout
