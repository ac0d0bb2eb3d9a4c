"""Influence over many prompts: batches that fit, records to a sink, out-of-memory handled by smaller batches."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from repflow.capture.decay import largest_decays
from repflow.capture.influence.jacobian import FINAL, influence_squares
from repflow.capture.plan import Plan
from repflow.capture.run import Progress, Records, Sink, batch_name, pad
from repflow.core.errors import InputError, OutOfMemoryError, out_of_memory, teach, words_of
from repflow.core.seconds import timed
from repflow.metrics.meter import Record
from repflow.models import Model
from repflow.models.anatomy import text_config
from repflow.tasks import Prompts

EXACT_WIDTH = 64
"""Width up to which Jacobian rows are taken one by one unless probes are requested."""
PROBES = 8
"""Probes of wider models."""
ACTIVATIONS = 40
"""Entries that a block keeps for its backward pass, per token and channel; an estimate."""
WEIGHTS = 3
"""float32 tables of all pairs of tokens that an attention layer without a fused kernel keeps."""
MEMORY = {"cpu": 2 << 30, "cuda": 40 << 30}
"""Bytes of kept activations that a batch may take before out-of-memory has been seen."""
LONE = {"cpu": 8 << 30, "cuda": 40 << 30}
"""Bytes of kept activations from which even a single prompt has its blocks recomputed."""


@dataclass(frozen=True)
class InfluenceOptions:
    """How influence is measured; `repflow.studies.recency.config.RecencyConfig` explains each field.

    Attributes:
        at: token t, from the end where negative.
        targets: states, or FINAL for the final norm's output.
        probes: ±1 probes; None for exact rows.
        seed: of the probes.
        batch_size: prompts per pass; None chooses.
        checkpointing: compute blocks again instead of keeping what they need.
        decays: also read A_max of the layers.
    """

    at: int = -1
    targets: tuple[int, ...] = (FINAL,)
    probes: int | None = PROBES
    seed: int = 0
    batch_size: int | None = None
    checkpointing: bool = False
    decays: bool = True


def default_probes(width: int) -> int | None:
    """Default number of probes: exact rows for narrow models.

    >>> default_probes(32), default_probes(768)
    (None, 8)
    """
    return None if width <= EXACT_WIDTH else PROBES


def token_at(at: int, length: int) -> int:
    """Token t of a prompt, counted from the end where negative.

    >>> token_at(-1, 5), token_at(3, 5)
    (4, 3)
    """
    place = at + length if at < 0 else at
    if not 0 <= place < length:
        expected = f"a token t from {-length} to {length - 1}, as the prompt has {length} tokens"
        raise InputError(teach(expected, f"{at}", "pass --at -1 for the last token, or longer prompts"))
    return place


def make_influence_plan(model: Model, prompts: Prompts, options: InfluenceOptions) -> Plan:
    """Group prompts of like length into batches whose kept activations fit."""
    lengths = prompts.lengths
    size = options.batch_size
    if size is None:
        longest = max(lengths)
        size = max(1, min(len(lengths), MEMORY.get(model.device.type, MEMORY["cpu"]) // kept_bytes(model, longest)))
    order = sorted(range(len(lengths)), key=lambda sample: (-lengths[sample], sample))
    return Plan(tuple(tuple(sorted(order[i : i + size])) for i in range(0, len(order), size)))


def kept_bytes(model: Model, tokens: int) -> int:
    """Bytes that one prompt keeps for its backward pass, about: blocks, and attention weights where they are whole."""
    config = text_config(model.network.config)
    entries = ACTIVATIONS * tokens * model.width * model.n_layers
    whole = 0
    if getattr(config, "_attn_implementation", "eager") == "eager":
        heads = int(getattr(config, "num_attention_heads", 0) or 0)
        whole = WEIGHTS * heads * tokens**2 * sum("attention" in kind for kind in model.layer_kinds)
    return entries * model.dtype.itemsize + 4 * whole


def needs_checkpointing(model: Model, tokens: int) -> bool:
    """Whether a single prompt of this length would keep too much."""
    return kept_bytes(model, tokens) > LONE.get(model.device.type, LONE["cpu"])


def run_influence(
    model: Model,
    prompts: Prompts,
    options: InfluenceOptions,
    sink: Sink,
    *,
    prefix: str = "",
    progress: Progress | None = None,
) -> dict[int, Record]:
    """Run every batch that the sink does not hold yet; records by sample.

    A record has `mean` (target, source, distance): squared influence, from the embedding and each state;
    `variance` (target, distance) of that from the embedding; `future` (target,): the largest influence of a later
    token, by the largest of all, NaN where there is none; `decay_max` and `kappa` (layer,).

    Args:
        model: a loaded model.
        prompts: what it reads.
        options: how.
        sink: keeps the records.
        prefix: begins the names of what is kept.
        progress: called after each batch.
    """
    for length in prompts.lengths:
        token_at(options.at, length)
    plan = sink.plan(lambda: make_influence_plan(model, prompts, options))
    checkpointing, at = options.checkpointing or needs_checkpointing(model, max(prompts.lengths)), 0
    while at < len(plan.batches):
        batch = plan.batches[at]
        if not sink.has(prefix + batch_name(batch)):
            try:
                records = _run_batch(model, prompts, batch, options, checkpointing=checkpointing)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                plan, checkpointing = _smaller(plan, at, sink, error, checkpointing=checkpointing)
                continue
            sink.write(prefix + batch_name(batch), records)
        at += 1
        if progress is not None:
            done = [sample for b in plan.batches[:at] for sample in b]
            progress(len(done), len(prompts), sum(prompts.lengths[sample] for sample in done))
    by_sample = {sample: record for b in plan.batches for sample, record in sink.read(prefix + batch_name(b)).items()}
    return {sample: by_sample[sample][0] for sample in sorted(by_sample)}


def _smaller(plan: Plan, at: int, sink: Sink, error: Exception, *, checkpointing: bool) -> tuple[Plan, bool]:
    """Halve the batches; a single prompt is retried with its blocks recomputed."""
    size = len(plan.batches[at]) // 2
    if size == 0 and checkpointing:
        got, remedy = f"out of memory: {words_of(error)}", "use shorter prompts or --dtype bfloat16"
        raise OutOfMemoryError(teach("room for one prompt with its blocks recomputed", got, remedy)) from error
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if size == 0:
        return plan, True
    sink.split(at, size)
    return plan.split(at, size), checkpointing


@timed("forward")
def _run_batch(
    model: Model, prompts: Prompts, batch: Sequence[int], options: InfluenceOptions, *, checkpointing: bool
) -> Records:
    ids, mask = pad(prompts, batch)
    lengths = [prompts.lengths[sample] for sample in batch]
    at = [token_at(options.at, length) for length in lengths]
    squares = influence_squares(
        model,
        ids,
        mask,
        at=at,
        targets=options.targets,
        probes=options.probes,
        seed=options.seed,
        samples=batch,
        checkpointing=checkpointing,
    )
    records: Records = {}
    for row, (sample, place, length) in enumerate(zip(batch, at, lengths, strict=True)):
        mean = np.stack([squares[target].mean[:, row, : place + 1][:, ::-1] for target in options.targets])
        variance = np.stack([squares[target].variance[row, : place + 1][::-1] for target in options.targets])
        future = [_future(squares[target].mean[0, row], place, length) for target in options.targets]
        records[sample] = [{"mean": mean, "variance": variance, "future": np.array(future)}]
    if options.decays:
        decays = largest_decays(model, ids, mask, [place + 1 for place in at])
        for row, sample in enumerate(batch):
            records[sample][0] |= {"decay_max": decays.largest[:, row], "kappa": decays.kappa[:, row]}
    return records


def _future(squares: np.ndarray, at: int, length: int) -> float:
    later, largest = squares[at + 1 : length], float(squares[:length].max())
    return float(np.sqrt(later.max() / largest)) if len(later) and largest > 0 else float("nan")
