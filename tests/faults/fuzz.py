"""Fuzzer over every file format that repflow reads.

    python -m tests.faults.fuzz --cases 2000                 what CI runs
    python -m tests.faults.fuzz --seed 7 --case 1234         one case again, with its traceback

A case is one damaged file. It may be read or refused with an error of repflow; anything else fails: another exception,
ten seconds of computing, and whatever `guard` forbids. Cases depend on the seed and their number alone.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gguf
import numpy as np
import PIL.PngImagePlugin  # noqa: F401  before files are watched
import torch
import transformers

from repflow.core.errors import RepflowError
from repflow.core.results import Result
from repflow.models.load import find_source, read_config, runnable
from repflow.models.tokenizer import gguf_tokenizer, local_tokenizer
from repflow.models.weights.checkpoint import read_weights, stored_weights, weight_files
from repflow.models.weights.initialise import count_weights
from repflow.store import RunFolder, heal, list_runs, load_result, read_record, verify
from repflow.store.canonical import seal
from repflow.store.claims.attempt import OWN, Attempts
from repflow.store.claims.board import Board, Hold, Policy
from repflow.store.claims.ledger import Entry, Kind, attempt_name, key_of
from repflow.store.claims.liveness import Worker
from repflow.store.claims.place import FolderPlace
from repflow.store.disk import digest
from repflow.studies.engine.grid import read_study
from repflow.tasks.own import read_own
from repflow.tasks.pixels import load_images
from repflow.training import Batch, Callback, Moment, RowBatches, TrainingConfig, train
from repflow.training.text import labelled_texts, text_data
from tests.faults.damaged_checkpoints import KINDS, whole_folder
from tests.faults.guard import ForbiddenError, Guard
from tests.faults.mutation import mutate_bytes, mutate_value, to_json
from tests.tasks.pixels.image_files import FORMATS as IMAGES
from tests.tasks.pixels.image_files import PIXELS, archive, png

SECONDS = 10
MEMORY = 12 << 30
BUILT = 0.3
"""Of the configurations that can be read, also built, on torch's meta device."""
STUDY = """[study]
kind = "measure"
models = ["zoo:mamba", "zoo:gpt-neox"]
tasks = ["random"]
lengths = [64, "2K"]
inits = ["trained", "default"]
seeds = [0, 1]
samples = 4
metrics = ["token_similarity"]
"""
PROMPTS = [
    {"prompt": "a b c", "label": "x", "group": "g", "position": 0.5, "answers": ["a"], "key": "k"},
    {"prompt": "d e f", "label": "y", "group": "h", "position": 1, "answers": "b", "key": 3},
]


class HangError(BaseException):
    """A case computes for too long; not an Exception, so that no handler swallows it."""


class Files:
    """Whole files to damage, made once."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.folders = {kind: whole_folder(kind, base / "whole" / kind) for kind in KINDS}
        self.gguf = _gguf(base / "whole" / "tiny.gguf").read_bytes()
        self.run = _run(base / "whole" / "runs")
        self.training = base / "whole" / "training"
        with contextlib.suppress(InterruptedError):
            _train(self.training, Halt())
        self.text = text_data("english", share=0.2).save(base / "whole" / "text")


def _gguf(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_vocab_size(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "c", "d"])
    writer.add_token_merges(["a b"])
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


def _run(parent: Path) -> Path:
    with RunFolder.open(parent, "r", config={"model": "m", "task": "t", "samples": 2}, provenance={"seed": 0}) as run:
        run.write_shard("a", {"x": np.ones(3)}, meta={"samples": [0, 1]})
        run.finish(Result({"x": np.ones(2)}, {"x": ("sample",)}, {"model": "m"}, {"seed": 0}))
        return run.path


class Halt(Callback):
    """Ends a training after its first checkpoint."""

    def on_step(self, moment: Moment) -> None:
        if moment.step == 3:
            raise InterruptedError


def _train(folder: Path, callback: Callback) -> None:
    torch.manual_seed(0)
    rows = Batch(torch.arange(12.0).reshape(6, 2), torch.arange(6) % 3)
    config = TrainingConfig(steps=5, checkpoint_every=2, log_every=1, device="cpu")
    train(torch.nn.Linear(2, 3), RowBatches(rows, 2), config, folder=folder, callbacks=[callback])


def fuzz_config(files: Files, folder: Path, rng: Random) -> None:
    """config.json."""
    raw = (files.folders[rng.choice(KINDS)] / "config.json").read_bytes()
    (folder / "config.json").write_bytes(_json_or_bytes(raw, rng))
    config = read_config(find_source(folder), trust_remote_code=False)
    if rng.random() < BUILT:
        with runnable("m"):
            count_weights(config)


def fuzz_index(files: Files, folder: Path, rng: Random) -> None:
    """model.safetensors.index.json."""
    names = {f"model.layers.{i}.weight": "a.safetensors" for i in range(4)}
    raw = to_json({"metadata": {"total_size": 12}, "weight_map": names})
    (folder / "model.safetensors.index.json").write_bytes(_json_or_bytes(raw, rng))
    (folder / "a.safetensors").write_bytes((files.folders["gpt2"] / "model.safetensors").read_bytes()[:200])
    weight_files(folder)
    read_weights(folder)


def fuzz_safetensors(files: Files, folder: Path, rng: Random) -> None:
    """The header of model.safetensors, and its bytes."""
    raw = (files.folders["mamba"] / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    if rng.random() < 0.6:
        head = to_json(mutate_value(json.loads(raw[8 : 8 + size]), rng))
        length = len(head) if rng.random() < 0.9 else rng.choice((0, 2**63, len(head) + 8))
        raw = struct.pack("<Q", length) + head + raw[8 + size :]
    else:
        raw = mutate_bytes(raw[: 8 + size], rng) + raw[8 + size :]
    (folder / "model.safetensors").write_bytes(raw)
    stored_weights(folder)
    read_weights(folder)


def fuzz_tokenizer(files: Files, folder: Path, rng: Random) -> None:
    """tokenizer.json and tokenizer_config.json."""
    names = ("tokenizer.json", "tokenizer_config.json")
    damaged = rng.choice(names)
    for name in names:
        raw = (files.folders["llama"] / name).read_bytes()
        (folder / name).write_bytes(_json_or_bytes(raw, rng) if name == damaged else raw)
    if damaged == names[0] and rng.random() < 0.7:
        local_tokenizer(folder / names[0])
    else:
        local_tokenizer(folder)


def fuzz_gguf(files: Files, folder: Path, rng: Random) -> None:
    """The header of a .gguf file."""
    path = folder / "tiny.gguf"
    path.write_bytes(mutate_bytes(files.gguf, rng))
    read_config(find_source(path), trust_remote_code=False)
    gguf_tokenizer(path)


def fuzz_jsonl(files: Files, folder: Path, rng: Random) -> None:
    """Prompts of a user's own."""
    path = folder / "own.jsonl"
    lines = [mutate_value(entry, rng) if rng.random() < 0.6 else entry for entry in PROMPTS]
    raw = b"\n".join(map(to_json, lines))
    path.write_bytes(mutate_bytes(raw, rng) if rng.random() < 0.4 else raw)
    read_own(path)


def fuzz_toml(files: Files, folder: Path, rng: Random) -> None:
    """A study."""
    path = folder / "study.toml"
    lines = STUDY.splitlines()
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(lines))
        value = mutate_value([rng.choice((1, "x", [1]))], rng)
        shown = json.dumps(value[0] if isinstance(value, list) and value else value)
        lines[at] = lines[at].partition("=")[0] + f"= {shown}"
    raw = "\n".join(lines).encode("utf-8", "surrogatepass")
    path.write_bytes(mutate_bytes(raw, rng) if rng.random() < 0.6 else raw)
    read_study(path)


def fuzz_run(files: Files, folder: Path, rng: Random) -> None:
    """run.json, manifest.jsonl and result.json, half of them with a checksum that fits the damage."""
    path = folder / "r"
    shutil.copytree(files.run, path)
    name = rng.choice(("run.json", "manifest.jsonl", "manifest.jsonl", "result.json"))
    raw = (path / name).read_bytes()
    (path / name).write_bytes(_resealed(raw, name, rng) if rng.random() < 0.7 else mutate_bytes(raw, rng))
    for reader in (list_runs, verify, read_record, load_result):
        _tried(reader, folder if reader is list_runs else path)
    _tried(heal, path)
    _tried(load_result, path)


def _tried(read: Callable[[Path], Any], path: Path) -> None:
    try:
        read(path)
    except RepflowError:
        return


def _resealed(raw: bytes, name: str, rng: Random) -> bytes:
    if name == "result.json":
        return to_json(mutate_value(json.loads(raw), rng))
    indent = {"run.json": 2, "training.json": 1}.get(name)
    lines = [json.loads(line) for line in ([raw] if indent else raw.splitlines())]
    at = rng.randrange(len(lines))
    changed = mutate_value({key: value for key, value in lines[at].items() if key != "sum"}, rng)
    sealed = [seal({k: v for k, v in line.items() if k != "sum"}, indent=indent) for line in lines]
    try:
        sealed[at] = seal(changed, indent=indent)
    except (ValueError, TypeError, AttributeError):  # NaN, or no object: nobody can seal that
        sealed[at] = to_json(changed) + b"\n"
    return b"".join(sealed)


def _json_or_bytes(raw: bytes, rng: Random) -> bytes:
    return to_json(mutate_value(json.loads(raw), rng)) if rng.random() < 0.75 else mutate_bytes(raw, rng)


def fuzz_training(files: Files, folder: Path, rng: Random) -> None:
    """training.json (half of the time with a checksum that fits), log and checkpoint of a half-done training."""
    path = folder / "t"
    shutil.copytree(files.training, path)
    name = rng.choice(("training.json", "training.json", "log.jsonl", "checkpoint-000000002.safetensors"))
    raw = (path / name).read_bytes()
    changed = mutate_bytes(raw, rng)
    if name == "training.json":
        (path / name).write_bytes(_resealed(raw, name, rng) if rng.random() < 0.7 else changed)
    else:
        (path / name).write_bytes(changed)
        if rng.random() < 0.7:  # a digest that fits the damage
            record = json.loads((path / "training.json").read_bytes())
            entry = record["log" if name == "log.jsonl" else "checkpoint"]
            entry |= {"bytes": len(changed), "sha256": digest(changed)}
            record.pop("sum")
            (path / "training.json").write_bytes(seal(record, indent=1))
    _train(path, Callback())


def fuzz_claim(files: Files, folder: Path, rng: Random) -> None:
    """The last entry of a cell's ledger (half of the time with a checksum that fits) and a worker's heartbeat."""
    place = FolderPlace(folder / OWN)
    worker = Worker(machine="another")
    kinds = [Kind.CLAIM, rng.choice(list(Kind)[1:])][: rng.randrange(1, 3)]
    for number, kind in enumerate(kinds, start=1):
        attempt = attempt_name("r", 1, worker.token) if rng.random() < 0.8 else ""
        raw = Entry(number, kind, cell="r", attempt=attempt, **worker.facts()).to_bytes()
        damaged = _resealed(raw, "claim", rng) if rng.random() < 0.7 else mutate_bytes(raw, rng)
        place.create(key_of("r", number), damaged if number == len(kinds) else raw)
    place.write(f"workers/{worker.token}", _json_or_bytes(json.dumps(worker.facts()).encode(), rng))
    with Board(place, Attempts(folder), Worker(), Policy(stale=0.0)) as board:
        taken = board.take("r", "")
        if isinstance(taken, Hold):
            shutil.copytree(files.run, taken.begin(fresh=rng.random() < 0.5) / "r", dirs_exist_ok=True)
            taken.finish()


def fuzz_images(files: Files, folder: Path, rng: Random) -> None:
    """Files of CIFAR-10 alone and in an archive, PNG files by class, and arrays."""
    kind = rng.choice((*IMAGES, "archive", "classes", "arrays"))
    place = folder / "images"
    place.mkdir()
    if kind in IMAGES:
        whole = IMAGES[kind]()
        damaged = rng.choice(sorted(whole))
        for name, data in whole.items():
            (place / name).write_bytes(mutate_bytes(data, rng) if name == damaged else data)
    elif kind == "archive":
        place = archive(folder / "a.tgz", IMAGES["binary"]())
        place.write_bytes(mutate_bytes(place.read_bytes(), rng))
    elif kind == "classes":
        for name in ("a", "b"):
            (place / name).mkdir()
            for number in range(3):
                (place / name / f"{number}.png").write_bytes(png(PIXELS[number]))
        (place / "a" / "1.png").write_bytes(mutate_bytes(png(PIXELS[1]), rng))
    else:
        place = folder / "a.npz"
        np.savez(place, images=PIXELS[:6], labels=np.arange(6) % 2)
        place.write_bytes(mutate_bytes(place.read_bytes(), rng))
    load_images(str(place))


def fuzz_text(files: Files, folder: Path, rng: Random) -> None:
    """A prepared text: its record, and token ids with a digest that does not fit; a text with documents and labels."""
    if rng.random() < 0.5:
        path = folder / "t"
        shutil.copytree(files.text, path)
        name = rng.choice(("text.json", "text.json", "train.npz", "held_out.npz"))
        raw = (path / name).read_bytes()
        (path / name).write_bytes(_json_or_bytes(raw, rng) if name == "text.json" else mutate_bytes(raw, rng))
        text_data(path)
        return
    lines = [{"text": "a b <|endoftext|>", "label": label} for label in ("x", 3, "x", 3)]
    raw = b"\n".join(to_json(mutate_value(line, rng) if rng.random() < 0.3 else line) for line in lines)
    (folder / "a.jsonl").write_bytes(mutate_bytes(raw, rng) if rng.random() < 0.3 else raw)
    labelled_texts(folder / "a.jsonl", length=4, folds=2)


FORMATS: dict[str, Callable[[Files, Path, Random], None]] = {
    "config": fuzz_config,
    "index": fuzz_index,
    "safetensors": fuzz_safetensors,
    "tokenizer": fuzz_tokenizer,
    "gguf": fuzz_gguf,
    "jsonl": fuzz_jsonl,
    "toml": fuzz_toml,
    "run": fuzz_run,
    "training": fuzz_training,
    "claim": fuzz_claim,
    "images": fuzz_images,
    "text": fuzz_text,
}


def run_case(files: Files, guard: Guard, seed: int, number: int) -> BaseException | None:
    """Run one case; what it raised if that is a failure."""
    names = list(FORMATS)
    folder = files.base / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    rng = Random(f"{seed}:{number}")
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with guard.watching(folder):
            FORMATS[names[number % len(names)]](files, folder, rng)
    except RepflowError:
        pass
    except (Exception, ForbiddenError, HangError) as error:  # noqa: BLE001  the point of it
        return error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return error
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ForbiddenError(guard.seen[0]) if guard.seen else None


def _hang(*_: object) -> None:
    raise HangError(f"{SECONDS} s of computing")


def main() -> int:
    """Run cases, print the failing ones with the command that repeats each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="this one alone, with its traceback")
    args = parser.parse_args()
    sys.dont_write_bytecode = True  # a module that a case imports writes nothing; the process is this program's own
    transformers.logging.set_verbosity(50)
    transformers.logging.disable_progress_bar()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _hang)
    numbers = range(args.cases) if args.case is None else [args.case]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="repflow-fuzz-") as base:
        files, guard = Files(Path(base)), Guard()
        for number in numbers:
            # a hang inside compiled code, where no signal handler of Python runs
            faulthandler.dump_traceback_later(20 * SECONDS, exit=True)
            error = run_case(files, guard, args.seed, number)
            if error is not None:
                failed += 1
                _report(error, args.seed, number, whole=args.case is not None)
        faulthandler.cancel_dump_traceback_later()
    print(f"{len(numbers)} cases with seed {args.seed}: {failed} failed")
    return 1 if failed else 0


def _report(error: BaseException, seed: int, number: int, *, whole: bool) -> None:
    name = list(FORMATS)[number % len(FORMATS)]
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" at {frame[0].filename}:{frame[0].lineno}" if frame else ""
    print(f"FAILED {name}: {type(error).__name__}: {str(error)[:300]!r}{where}")
    print(f"  again: python -m tests.faults.fuzz --seed {seed} --case {number}")
    if whole:
        traceback.print_exception(error)


if __name__ == "__main__":
    sys.exit(main())
