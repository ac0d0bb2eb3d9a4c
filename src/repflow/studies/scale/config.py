"""Options by which a study is spread over workers; the same for every command that has them."""

from __future__ import annotations

from dataclasses import dataclass

from repflow.core.errors import InputError, nearest, teach
from repflow.spec.request import check_least
from repflow.studies.engine.parts import listed, option

ENGINES = ("local", "ray", "slurm")


@dataclass
class ScaleConfig:
    """How many workers there are, and who starts them."""

    workers: int | None = option(None, "processes that share the cells; with GPUs by default one per GPU")
    per_gpu: int = option(1, "workers on each GPU")
    split: int = option(1, "shares into which prompts of each measure or probe, replacements of corrupt are divided")
    threads: int | None = option(None, "CPU threads of each worker; default: all divided by the workers")
    engine: str = option("local", "who starts workers: local (processes here), ray, slurm")
    address: str | None = option(None, "Ray cluster to join, such as HOST:6379; default: one started here")
    slurm: list[str] = listed("of Slurm jobs: KEY=VALUE, such as partition=gpu, repeated or comma separated")
    store: str | None = option(None, "object store where workers meet, such as s3://BUCKET/RUNS; results come to --out")
    retry_failed: bool = option(False, "try cells again that failed before")
    worker: bool = option(False, "be one worker beside others: work until nothing is left, print no table")

    @property
    def many(self) -> bool:
        """Whether workers are to be started."""
        return self.workers is not None or self.engine != "local" or self.per_gpu != 1


def check_scale(config: ScaleConfig) -> None:
    """Refuse options that do not go together, before anything is read; imports neither torch nor an engine."""
    numbers = {"--workers": config.workers, "--per-gpu": config.per_gpu, "--threads": config.threads}
    check_least([(name, count, 1) for name, count in {**numbers, "--split": config.split}.items()])
    if config.engine not in ENGINES:
        raise InputError(teach(f"--engine {', '.join(ENGINES)}", repr(config.engine), nearest(config.engine, ENGINES)))
    if config.worker and config.many:
        got = "--worker with --workers, --per-gpu or --engine"
        raise InputError(teach("either one worker here or many to be started", got, "leave one out"))
    for name, value, engine in (("--address", config.address, "ray"), ("--slurm", config.slurm, "slurm")):
        if value and config.engine != engine:
            raise InputError(teach(f"{name} with --engine {engine}", f"--engine {config.engine}", f"leave {name} out"))
