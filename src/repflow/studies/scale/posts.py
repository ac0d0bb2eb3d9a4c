"""Posts of workers on this machine: GPUs in turn, or the CPU's threads divided."""

from __future__ import annotations

import os

from repflow.core.errors import InputError, teach
from repflow.store.claims.board import Policy
from repflow.studies.scale.config import ScaleConfig
from repflow.studies.scale.gpu import visible_gpus
from repflow.studies.scale.order import Order
from repflow.studies.scale.worker import Post


def policy_of(config: ScaleConfig) -> Policy:
    """How workers behave towards others."""
    return Policy(retry=config.retry_failed)


def local_posts(config: ScaleConfig, order: Order) -> list[Post]:
    """Posts on this machine: GPUs in turn, or the CPU's threads divided.

    Raises:
        InputError: more workers than the GPUs are to have.
    """
    devices = {str(getattr(cell.config, "device", None) or "cuda") for cell in order.cells}
    gpus = visible_gpus() if any(device.startswith("cuda") for device in devices) else []
    if not gpus and config.per_gpu != 1:
        raise InputError(teach("a GPU for --per-gpu", "none here", "leave it out, or set CUDA_VISIBLE_DEVICES"))
    count = config.workers if config.workers is not None else max(1, len(gpus) * config.per_gpu)
    if gpus and count > len(gpus) * config.per_gpu:
        got = f"--workers {count} on {len(gpus)} GPU{'s' * (len(gpus) > 1)}"
        remedy = f"pass --per-gpu {-(-count // len(gpus))} if that many models fit into each GPU"
        raise InputError(teach(f"at most {len(gpus) * config.per_gpu} workers", got, remedy))
    threads = thread_share(config.threads, count)
    dealt = [gpus[number % len(gpus)] if gpus else None for number in range(count)]
    return [
        Post(number, count, threads=threads, gpus=gpu, policy=policy_of(config)) for number, gpu in enumerate(dealt)
    ]


def far_posts(config: ScaleConfig, count: int) -> list[Post]:
    """Posts on machines whose GPUs and cores an engine deals out."""
    return [Post(number, count, threads=config.threads, policy=policy_of(config)) for number in range(count)]


def thread_share(threads: int | None, workers: int) -> int:
    """CPU threads of each of some workers: as asked, as OMP_NUM_THREADS says, or an equal share.

    >>> thread_share(3, 8)
    3
    """
    if threads is not None:
        return threads
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdecimal() and int(said):
        return int(said)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // workers)
