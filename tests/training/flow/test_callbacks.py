"""FlowCallback and LightningFlowCallback in real trainers with real loggers, without any effect on the training."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import repflow
from repflow.core.errors import InputError, MissingExtraError
from repflow.training import FlowCallback
from tests import warm
from tests.training.flow.tiny_loop import PROMPTS, VOCABULARY, assert_equal_bits, batches, tiny_gpt2, weights

ROWS = [{"input_ids": row, "labels": row} for ids in batches(4) for row in ids]


def fit(folder, *callbacks, report_to="none", model=None, **options):
    """Train a tiny model by a Trainer; gives the model and the trainer's log."""
    model = tiny_gpt2() if model is None else model
    settings = {"max_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 1, "save_strategy": "no"}
    settings |= {"use_cpu": True, "disable_tqdm": True, "report_to": report_to, "seed": 3, **options}
    args = TrainingArguments(str(folder), **settings)
    trainer = Trainer(model, args, train_dataset=ROWS, callbacks=list(callbacks))
    trainer.train()
    return model, trainer.state.log_history


def losses(log):
    return [line["loss"] for line in log if "loss" in line]


def read_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {"scalars": {}, "images": {}}
    for file in folder.rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file), size_guidance={"images": 0, "scalars": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found["scalars"].setdefault(tag, []).extend((event.step, event.value) for event in events.Scalars(tag))
        for tag in events.Tags()["images"]:
            found["images"].setdefault(tag, []).extend((event.step, event.width) for event in events.Images(tag))
    return found


def test_the_flow_is_beside_the_loss_in_tensorboard(tmp_path):
    callback = FlowCallback(PROMPTS, every=2)
    model, log = fit(tmp_path / "watched", callback, report_to="tensorboard", gradient_accumulation_steps=2)
    plain, plain_log = fit(tmp_path / "plain", gradient_accumulation_steps=2)
    assert losses(log) == losses(plain_log)
    assert_equal_bits(weights(model), weights(plain))
    events = read_events(tmp_path / "watched")
    assert [step for step, _ in events["scalars"]["train/loss"]] == [1, 2, 3, 4]
    similarity = events["scalars"]["train/flow/token_similarity_last"]
    assert [step for step, _ in similarity] == [0, 2, 4]
    (stored,) = (tmp_path / "watched" / "flow").iterdir()
    result = repflow.load_result(stored)
    assert result.provenance["steps"] == [0, 2, 4]
    np.testing.assert_allclose([value for _, value in similarity], result.mean("token_similarity")[:, -1], rtol=1e-6)
    assert [step for step, _ in events["images"]["flow/token_similarity_map"]] == [2, 4]
    assert [line["step"] for line in log if "flow/token_norm" in line] == [0, 2, 4]


def test_the_flow_is_in_trackio_offline(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    code = f"""
from repflow.training import FlowCallback
from tests.training.flow.test_callbacks import PROMPTS, fit
import trackio
trackio.show = lambda *args, **kwargs: None
fit({str(tmp_path / "out")!r}, FlowCallback(PROMPTS, every=2), report_to="trackio", project="flow", run_name="tiny",
    trackio_static_space_id=False)
from trackio.sqlite_storage import SQLiteStorage
logs = SQLiteStorage.get_logs("flow", "tiny")
similar = [line["train/global_step"] for line in logs if "train/flow/token_similarity" in line]
images = [line["train/global_step"] for line in logs if "flow/token_similarity_map" in line]
print("SEEN", similar, images)
"""
    assert "SEEN [0, 2, 4] [2, 4]" in run_python(code, tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"))


def test_the_flow_is_in_wandb_offline(tmp_path):
    pytest.importorskip("wandb")
    code = f"""
from repflow.training import FlowCallback
from tests.training.flow.test_callbacks import PROMPTS, fit
import wandb
seen = []
log = wandb.sdk.wandb_run.Run.log
def spy(run, data, *args, **kwargs):
    seen.extend(data)
    return log(run, data, *args, **kwargs)
wandb.sdk.wandb_run.Run.log = spy
fit({str(tmp_path / "out")!r}, FlowCallback(PROMPTS, every=2), report_to="wandb", run_name="tiny")
print("SEEN", seen.count("train/flow/token_similarity"), seen.count("flow/token_similarity_map"))
"""
    folder = str(tmp_path / "wandb-files")
    assert "SEEN 3 2" in run_python(code, tmp_path, WANDB_MODE="offline", WANDB_DIR=folder, WANDB_SILENT="true")
    assert list((tmp_path / "wandb-files").rglob("*.wandb"))


def run_python(code, folder, **environment):
    """Loggers keep threads and servers of their own: in a process of its own; gives what it printed."""
    for name in environment:
        if name.endswith("_DIR"):
            Path(environment[name]).mkdir(parents=True, exist_ok=True)
    process = warm.Process(warm.script, code, cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1", **environment})
    out, err = process.communicate()
    assert process.returncode == 0, err[-2000:]
    return out


class Broken(TrainerCallback):
    """A logger that takes a loss and nothing else."""

    def __init__(self):
        self.calls = 0

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.calls += "flow/token_norm" in logs
        logs["loss" if state.global_step < state.max_steps and "train_runtime" not in logs else "epoch"]


def test_a_logger_that_fails_is_reported_once_and_the_training_goes_on(tmp_path, caplog):
    broken = Broken()
    _, log = fit(tmp_path, broken, FlowCallback(PROMPTS, every=1))
    assert len(losses(log)) == 4
    assert broken.calls == 1
    assert sum("Broken takes no more of the flow" in record.message for record in caplog.records) == 1


def test_a_meter_that_cannot_read_does_not_stop_the_trainer(tmp_path, caplog):
    callback = FlowCallback([[VOCABULARY + 1]], every=1)
    _, log = fit(tmp_path, callback)
    assert len(losses(log)) == 4
    assert len(callback.meter.findings) == 1
    assert sum(record.name == "repflow.training" for record in caplog.records) == 1
    assert not (tmp_path / "flow").exists()


def test_a_wrong_call_is_refused_before_the_training():
    with pytest.raises(InputError, match="unknown option 'metric'; did you mean metrics"):
        FlowCallback(PROMPTS, metric=["token_norm"])
    with pytest.raises(InputError, match="unknown metric"):
        FlowCallback(PROMPTS, metrics=["token_nom"])
    with pytest.raises(InputError, match="every"):
        FlowCallback(PROMPTS, every=0)


def test_texts_are_encoded_by_the_trainers_tokenizer(tmp_path):
    from transformers import AutoTokenizer

    from repflow.spec.zoo import checked_folder

    model = repflow.load("zoo:gpt-neox").network.train()
    tokenizer = AutoTokenizer.from_pretrained(checked_folder("zoo:gpt-neox"))
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)  # the trainer pads its rows by it
    args = TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, disable_tqdm=True, report_to="none")
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
    callback = FlowCallback(["The moon and the sea.", "A second text, a little longer."], every=1)
    Trainer(model, args, train_dataset=rows, processing_class=tokenizer, callbacks=[callback]).train()
    assert callback.meter.history.steps == [0, 1]
    assert callback.meter.result().config["task"] == "text"


def test_lightning_shows_the_flow_in_tensorboard(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from repflow.training import LightningFlowCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = tiny_gpt2()
            self.seen = []

        def training_step(self, ids, batch_index):
            loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss
            self.seen.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def run(name, callbacks):
        module = Module()
        torch.manual_seed(5)
        logger = lightning.loggers.TensorBoardLogger(tmp_path, name=name)
        trainer = lightning.Trainer(
            max_steps=4, accelerator="cpu", logger=logger, callbacks=callbacks, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path, accumulate_grad_batches=2,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(batches(8), batch_size=None))
        return module

    callback = LightningFlowCallback(PROMPTS, every=2)
    watched, plain = run("watched", [callback]), run("plain", [])
    assert watched.seen == plain.seen
    assert_equal_bits(weights(watched), weights(plain))
    events = read_events(tmp_path / "watched")
    assert [step for step, _ in events["scalars"]["flow/token_similarity"]] == [0, 2, 4]
    assert events["images"]["flow/token_similarity_map"]
    assert callback.meter.history.steps == [0, 2, 4]
    assert list((tmp_path / "watched").rglob("flow/gpt2-training-ids"))


def test_without_lightning_the_extra_is_named(monkeypatch):
    import importlib

    import repflow.training.flow as flow

    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    monkeypatch.delitem(sys.modules, f"{flow.__name__}.lightning", raising=False)
    with pytest.raises(MissingExtraError, match=r"repflow\[lightning\]"):
        importlib.import_module(f"{flow.__name__}.lightning")
