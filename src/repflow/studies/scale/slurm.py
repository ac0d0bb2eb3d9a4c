"""Workers as Slurm jobs, through submitit: one array, queued again when preempted or out of time. Needs `slurm`.

`--slurm cluster=local` runs the same jobs as processes here, to try it where there is no Slurm.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, MissingExtraError, teach, words_of
from repflow.store.disk import make_folder
from repflow.studies.engine.parts import words
from repflow.studies.scale.config import ScaleConfig
from repflow.studies.scale.engine import Ended, Engine
from repflow.studies.scale.order import Order
from repflow.studies.scale.posts import far_posts
from repflow.studies.scale.service import serve
from repflow.studies.scale.worker import Post

COMMON = frozenset(
    ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout")
)
"""Settings that submitit names for every kind of cluster; others get the prefix `slurm_`."""
USUAL: Mapping[str, Any] = {"timeout_min": 240, "name": "repflow"}
REQUEUED = 1000
"""Times that a job may run out of its time and be queued again."""
JOBS = "jobs"
POLL_SECONDS = 0.1
PATIENCE = 20.0
"""Seconds that a job has to give back its cell and end."""


class Service:
    """The work of a job; queued again with the same work where it was preempted."""

    def __call__(self, order: Order, post: Post) -> str:
        """Work until nothing is left.

        Slurm announces a preemption by SIGTERM, which submitit passes over: a job that ended there would not be queued
        again.
        """
        return serve(order, post, terminable=False)

    def checkpoint(self, order: Order, post: Post) -> Any:
        """What submitit queues again: cells are claimed, so that there is nothing to remember."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, order, post)


class SlurmEngine(Engine):
    """Jobs of Slurm.

    Args:
        config: how many, and settings of the jobs.
        folder: of the study, which all machines must see: jobs and their logs are kept in it.

    Raises:
        InputError: there is no Slurm here, or a setting is not one of its.
    """

    def __init__(self, config: ScaleConfig, folder: Path) -> None:
        check_slurm(config)
        import submitit

        self._submitit, self._config = submitit, config
        settings = parse_settings(config.slurm)
        self._cluster = cluster = settings.pop("cluster", "slurm")
        threads = {"cpus_per_task": config.threads} if config.threads else {}
        make_folder(folder / JOBS)
        self._executor = submitit.AutoExecutor(folder / JOBS, cluster=cluster, slurm_max_num_timeout=REQUEUED)
        try:
            self._executor.update_parameters(**{**USUAL, **threads, **settings})
        except (NameError, TypeError, ValueError, AssertionError) as error:
            remedy = "write such as partition=gpu,timeout_min=60"
            raise InputError(teach("settings of Slurm jobs in --slurm", words_of(error), remedy)) from error
        self._jobs: dict[Any, Post] = {}

    def posts(self) -> list[Post]:
        """As many as asked for."""
        return far_posts(self._config, self._config.workers or 1)

    def start(self, order: Order, posts: Sequence[Post]) -> None:
        """Submit all jobs as one array."""
        try:
            with self._executor.batch():
                jobs = [self._executor.submit(Service(), order, post) for post in posts]
        except self._submitit.core.utils.FailedJobError as error:
            raise InputError(teach("jobs that Slurm takes", words_of(error), "correct --slurm")) from error
        self._jobs |= dict(zip(jobs, posts, strict=True))

    def replace(self, order: Order, post: Post) -> None:
        """Submit one job."""
        self._jobs[self._executor.submit(Service(), order, post)] = post

    @property
    def names(self) -> list[str]:
        """Numbers of the jobs."""
        return [job.job_id for job in self._jobs]

    def ended(self) -> list[Ended]:
        """Jobs that have ended; one that was queued again has not."""
        return [self._read(job) for job in [job for job in self._jobs if job.done()]]

    def _read(self, job: Any) -> Ended:
        post = self._jobs.pop(job)
        if not job.paths.result_pickle.exists():  # killed, or its machine was lost
            return Ended(post, lost=True)
        try:
            return Ended(post, error=job.result())
        except self._submitit.core.utils.UncompletedJobError:
            return Ended(post, lost=True)
        except self._submitit.core.utils.FailedJobError as error:
            return Ended(post, error=words_of(error))

    def stop(self, patience: float) -> None:
        """Interrupt jobs that still run, so that they give their cells back, and cancel what is left."""
        self._wait(patience)
        if self._cluster == "slurm" and (running := [job.job_id for job in self._jobs if not job.done()]):
            subprocess.run(["scancel", "--signal=INT", *running], check=False, capture_output=True)
            self._wait(PATIENCE)
        for job in self._jobs:
            if not job.done():
                job.cancel(check=False)
        self._jobs = {}

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not all(job.done() for job in self._jobs):
            time.sleep(POLL_SECONDS)


def parse_settings(listed: Sequence[str]) -> dict[str, Any]:
    """Settings of jobs from KEY=VALUE, as submitit names them.

    >>> parse_settings(["partition=gpu,timeout_min=60", "cluster=local"])
    {'slurm_partition': 'gpu', 'timeout_min': 60, 'cluster': 'local'}
    """
    settings: dict[str, Any] = {}
    for word in words(list(listed)):
        key, equals, value = word.partition("=")
        if not equals or not key.strip() or not value:
            raise InputError(teach("--slurm KEY=VALUE", repr(word), "write partition=gpu,timeout_min=60"))
        plain = key.strip()
        name = plain if plain in COMMON or plain == "cluster" or plain.startswith("slurm_") else f"slurm_{plain}"
        settings[name] = int(value) if value.isdecimal() else value
    return settings


def check_slurm(config: ScaleConfig) -> None:
    """Refuse Slurm where there is none, settings that are not settings, and a missing package; imports nothing.

    Raises:
        InputError: says which.
    """
    settings = parse_settings(config.slurm)
    if importlib.util.find_spec("submitit") is None:
        got = "no package submitit"
        raise MissingExtraError(teach("submitit for --engine slurm", got, "`pip install 'repflow[slurm]'`"))
    if settings.get("cluster", "slurm") not in ("slurm", "local"):
        raise InputError(teach("cluster=slurm or cluster=local", repr(settings["cluster"]), "leave it out for Slurm"))
    if settings.get("cluster", "slurm") == "slurm" and shutil.which("sbatch") is None:
        remedy = "run it on a machine of the cluster, or try it here with --slurm cluster=local"
        raise InputError(teach("Slurm for --engine slurm", "no program sbatch here", remedy))
    if config.workers is None:
        raise InputError(teach("--workers N with --engine slurm", "none", "say how many jobs to start"))
