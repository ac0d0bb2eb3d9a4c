"""Measurements of several trainings of the zoo's models, so that the demo can distinguish a finding from a lucky seed.

seeds.json holds no weights, only what `repflow.papers.findings` reads: flow of trained and random weights, and probes,
at the demo's settings and at twice its length.

    {"format": 1, "task": "kvpr", "lengths": [256, 512], "probe_samples": 1000, "readings": [...]}

A reading is `repflow.papers.reading.Reading.to_json`. One model and training (seed and steps) is in the file once;
measuring it again replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, teach
from repflow.papers.reading import Reading, Training, read_results, training_of
from repflow.spec.zoo import SEEDS_FORMAT, record_in
from repflow.store.disk import make_folder, write_atomic
from repflow.studies.demo import BRANCHED, INIT, LABELS, LENGTH, TASK, Job, flow_job, probe_job, run_job
from repflow.studies.probe.config import ProbeConfig

LENGTHS = (LENGTH, 2 * LENGTH)


def measure_seeds(
    folders: Sequence[str],
    out: str | Path,
    *,
    samples: int = 1000,
    device: str | None = None,
    say: Callable[[str], None] = print,
) -> list[Reading]:
    """Measure trained models and write, or add to, a file of readings.

    Args:
        folders: trained models with their tokenizers and training.json.
        out: file to write.
        samples: prompts of a probe.
        device: cpu or cuda; None takes the GPU where there is one.
        say: receives what was measured.
    """
    path = Path(out)
    known = stored_readings(path, samples)
    for folder in folders:
        reading = measure_training(folder, samples=samples, device=device)
        known[reading.model, reading.training] = reading
        say(f"{reading.model}, {reading.training}: measured")
        write_readings(path, list(known.values()), samples=samples)
    return list(known.values())


def write_readings(path: Path, readings: Sequence[Reading], *, samples: int) -> None:
    """Write a file of readings whose probes read `samples` prompts, in the order of trainings and models."""
    ordered = sorted(readings, key=lambda reading: (reading.steps or 0, reading.seed or 0, reading.model))
    content = {**_settings(samples), "readings": [reading.to_json() for reading in ordered]}
    make_folder(path.parent)
    write_atomic(path, (json.dumps(content, indent=None, separators=(",", ":")) + "\n").encode())


def measure_training(folder: str, *, samples: int = 1000, device: str | None = None) -> Reading:
    """Reading of one trained model, with the settings of the demo."""
    record = record_in(Path(folder))
    if not record:
        raise InputError(teach(f"training.json in {folder}", "none", "name a folder that `tools.zoo.make train` wrote"))
    training = training_of(record)
    branch = record["name"] in BRANCHED
    jobs = seed_jobs(folder, samples, device, init_seed=training.seed, branch=branch)
    results = [run_job(job, None) for job in jobs]
    (reading,) = read_results(results, training=training)
    return replace(reading, model=str(record["name"]))


def check_prompts(folder: str, samples: int) -> None:
    """Refuse prompts that a probe of any model with this tokenizer would refuse, such as too few to be divided.

    Args:
        folder: any model with the tokenizer, trained or not.
        samples: prompts of a probe.
    """
    from repflow.studies.engine.loading import load_model
    from repflow.studies.engine.study import ONE
    from repflow.studies.probe.study import STUDY

    configs = [job.config for job in seed_jobs(folder, samples, "cpu") if isinstance(job.config, ProbeConfig)]
    model = load_model(configs[0])
    for config in configs:
        try:
            steps = STUDY.prepare(config, {ONE: model}, None, None).steps
            assert steps is not None
            _ = steps.splits  # divided into those that fit, choose and test
        except InputError as error:
            got = f"{samples}, which the probe for the {config.label} at {config.length} tokens refuses ({error})"
            raise InputError(teach("--prompts that the probes can read", got, "pass more, or 0 for none")) from error


def seed_jobs(
    folder: str, samples: int, device: str | None = None, *, init_seed: int | None = None, branch: bool = False
) -> list[Job]:
    """Runs of one trained model; its random twin is drawn from the training's seed, so that twins differ as it does.

    Args:
        folder: of the model.
        samples: prompts of a probe.
        device: cpu or cuda.
        init_seed: of the random twin.
        branch: read what each block adds as well.
    """
    jobs = []
    for length in LENGTHS:
        size: dict[str, Any] = {"length": length, "device": device}
        for kind in ({}, {"states": "branch"}) if branch else ({},):
            jobs.append(flow_job(folder, "trained", **size, **kind))
            jobs.append(flow_job(folder, INIT, init_seed=init_seed, **size, **kind))
        jobs += [probe_job(folder, label, samples=samples, **size) for label in LABELS]
    return jobs


def _settings(samples: int) -> dict[str, Any]:
    return {"format": SEEDS_FORMAT, "task": TASK, "lengths": list(LENGTHS), "probe_samples": samples}


def stored_readings(path: Path, samples: int) -> dict[tuple[str, Training], Reading]:
    """Readings that the file holds already, if they were made in the same way."""
    settings = _settings(samples)
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        same = {name: content.get(name) for name in settings}
        readings = [Reading.from_json(entry) for entry in content.get("readings", ())]
    except (ValueError, AttributeError, KeyError, TypeError):
        raise InputError(teach("a file of readings", f"{path}, which is none", "write to another file")) from None
    if same != settings:
        raise InputError(teach(f"a file of readings with {settings}", f"{same}", "write to another file"))
    return {(reading.model, reading.training): reading for reading in readings}
