"""Two models on the same text: CKA and shared nearest neighbours of every state of A with every state of B.

The matched rows of all states of both models are held together for the prompts of one batch: memory grows with depth,
width and the tokens of a batch, never with the number of prompts. Each prompt is a shard, so a killed run resumes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, nearest, teach
from repflow.core.tasks import DRAWN, MADE, NAMES, OWN
from repflow.studies import measure
from repflow.studies.compare.config import (
    CompareConfig,
    as_measure,
    batches,
    check_words,
    equal_weights,
    in_batches,
    kept_shard,
    load_pair,
    names,
    stored_config,
)
from repflow.studies.engine.matching import (
    PairedPrompts,
    check_paired,
    check_vocabularies,
    file_pieces,
    pair_prompts,
    same_prompts,
    text_pieces,
)
from repflow.studies.engine.naming import Names
from repflow.studies.engine.study import Job, Study

if TYPE_CHECKING:
    from torch import Tensor

    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Result
    from repflow.metrics.meter import Record, Table
    from repflow.models import Model
    from repflow.tasks import Encoder, Prompts, Task

STATE_BYTES = 4
BANDS = ("cka_cross", "neighbours_cross", "kept_share")


class Pair(Study[CompareConfig, Job[CompareConfig]]):
    """Two models on the same text."""

    name = "compare"
    config = CompareConfig
    one_model = False

    def check(self, config: CompareConfig) -> None:
        """Refuse wrong options, tasks and files."""
        check_words(config)

    def load(self, config: CompareConfig) -> dict[str, Model]:
        """Both models."""
        a, b = load_pair(config)
        return {"a": a, "b": b}

    def prepare(
        self, config: CompareConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> Job[CompareConfig]:
        """The same text for both; `given` are prompts that are paired already."""
        a, b = models["a"], models["b"]
        paired = make_prompts(config, a, b) if given is None else given
        check(config, a, b, paired)
        return Job(config, models, paired, len(paired))

    def stored(self, job: Job[CompareConfig]) -> dict[str, Any]:
        """With the name that lists show."""
        return stored_config(job.config, job.prompts.a.task, len(job.prompts))

    def digests(self, job: Job[CompareConfig]) -> dict[str, Any]:
        """Prompts of both models."""
        return {"prompts_a": job.prompts.a.digest(), "prompts_b": job.prompts.b.digest()}

    def machine(self, job: Job[CompareConfig]) -> dict[str, Any]:
        """What both ran with."""
        from repflow.capture.provenance import machine, model_facts

        a = job.models["a"]
        return {
            **machine(str(a.device)),
            "dtype": str(a.dtype).removeprefix("torch."),
            "models": {label: model_facts(model) for label, model in job.models.items()},
            "matched_by": sorted(set(job.prompts.by)),
        }

    def compute(self, job: Job[CompareConfig], sink: Sink, progress: Progress | None) -> Result:
        """Read every prompt with both, and compare all states."""
        a, b, paired = job.models["a"], job.models["b"], job.prompts
        records = _records(job.config, a, b, paired, sink, progress)
        job.take_digests()
        return _finish(job.config, a, b, paired, records, job.provenance["digests"])

    def names(self, config: CompareConfig) -> Names:
        """Models, task and length."""
        return names(config)


def run(
    config: CompareConfig,
    a: Model,
    b: Model,
    paired: PairedPrompts,
    *,
    out: str | Path | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Compare two loaded models over paired prompts."""
    return Pair().run(config, models={"a": a, "b": b}, given=paired, out=out, name=name, progress=progress)


def check(config: CompareConfig, a: Model, b: Model, paired: PairedPrompts) -> None:
    """Refuse what cannot be compared, before anything is written."""
    from repflow.metrics.cka import MIN_TOKENS

    for model in (a, b):
        check_dtype(model, config)
        if not model.state_count(config.states):
            raise InputError(teach(f"states of kind {config.states!r}", f"none in {model.name}", "use residual"))
    check_paired(paired, a, b, least=max(MIN_TOKENS, config.neighbours + 1))


def check_dtype(model: Model, config: CompareConfig) -> None:
    """Refuse float16 unless it is also allowed."""
    if str(model.dtype) == "torch.float16" and not config.allow_float16:
        raise InputError(
            teach("float32 or bfloat16 for measuring", "float16", "pass --dtype float32, or --allow-float16")
        )


def _records(
    config: CompareConfig,
    a: Model,
    b: Model,
    paired: PairedPrompts,
    sink: Sink,
    progress: Progress | None,
) -> list[Record]:
    """Records of all prompts; a batch runs whole, so that a resumed run repeats its numbers to the last bit."""
    records: dict[int, Record] = {}
    tokens = 0
    for batch in pair_batches(config, a, b, paired):
        names = {sample: f"sample-{sample:06d}" for sample in batch}
        fresh: dict[int, Record] = {}
        if not all(map(sink.has, names.values())):
            work = partial(pair_records, config, a, b, paired)
            fresh = dict(zip(batch, in_batches(batch, work), strict=True))
        for sample in batch:
            make = partial(fresh.__getitem__, sample)
            records[sample] = kept_shard(sink, names[sample], make, {"samples": [sample]})
        tokens += sum(paired.a.lengths[sample] + paired.b.lengths[sample] for sample in batch)
        if progress is not None:
            progress(len(records), len(paired), tokens)
    return [records[sample] for sample in range(len(paired))]


def pair_batches(config: CompareConfig, a: Model, b: Model, paired: PairedPrompts) -> list[tuple[int, ...]]:
    """Prompts that run together."""
    wide = sum(model.state_count(config.states) * model.width for model in (a, b))
    longer = [max(pair) for pair in zip(paired.a.lengths, paired.b.lengths, strict=True)]
    return batches(config, longer, [int(count) * wide * STATE_BYTES for count in paired.matched])


def pair_records(
    config: CompareConfig, a: Model, b: Model, paired: PairedPrompts, batch: Sequence[int]
) -> list[Record]:
    """What each prompt of a batch gives; every model reads them in one pass."""
    rows = [paired.rows[sample] for sample in batch]
    states_a = matched_states(a, paired.a, batch, [first for first, _ in rows], config.states)
    states_b = matched_states(b, paired.b, batch, [second for _, second in rows], config.states)
    return [pair_record(config, *states) for states in zip(batch, states_a, states_b, strict=True)]


def pair_record(config: CompareConfig, sample: int, states_a: list[Tensor], states_b: list[Tensor]) -> Record:
    """What one prompt gives: HSIC of all pairs of states of both models, its null, and the shared neighbours."""
    from repflow.metrics.meter import BatchInfo
    from repflow.metrics.neighbours import mutual_neighbours
    from repflow.metrics.streaming_cka import CkaMeter

    states_b = [rows.to(states_a[0].device) for rows in states_b]
    # One meter over the states of both: the blocks of its matrix are A with A, A with B and B with B
    meter = CkaMeter(unbiased=config.cka_form == "unbiased")
    meter.begin(BatchInfo((sample,), (len(states_a[0]),)))
    for state, rows in enumerate([*states_a, *states_b]):
        meter.update(state, rows[None])
    meter.end()
    shared = mutual_neighbours(states_a, states_b, k=config.neighbours)
    return {**meter.records[sample], "neighbours": shared.cpu().numpy()}


def matched_states(
    model: Model, prompts: Prompts, batch: Sequence[int], rows: Sequence[np.ndarray], kind: str
) -> list[list[Tensor]]:
    """States of each prompt of a batch at some positions, each (token, width), float32 or wider."""
    import torch

    from repflow.capture.run import pad

    index = [torch.from_numpy(chosen) for chosen in rows]
    states: list[list[Tensor]] = [[] for _ in batch]

    def keep(_: int, hidden: Tensor) -> None:
        for place, mine in enumerate(states):
            chosen = hidden[place].index_select(0, index[place].to(hidden.device))
            mine.append(chosen.to(torch.promote_types(chosen.dtype, torch.float32)))

    ids, mask = pad(prompts, batch)
    model.stream(ids, mask, kind=kind, on_state=keep)
    return [[state.to(mine[0].device) for state in mine] for mine in states]


def _finish(
    config: CompareConfig,
    a: Model,
    b: Model,
    paired: PairedPrompts,
    records: list[Record],
    digests: Mapping[str, str],
) -> Result:
    from dataclasses import replace

    from repflow.capture.provenance import model_facts
    from repflow.core.results import Result

    table = tabulate(config, records, a.state_count(config.states), paired)
    result = Result({key: array for key, (_, array) in table.items()}, {key: axes for key, (axes, _) in table.items()})
    for key in BANDS:
        result.band(key)
    result.provenance = {"models": {"a": model_facts(a), "b": model_facts(b)}}  # with what ran
    result.findings = [
        *(replace(finding, message=f"A: {finding.message}") for finding in a.findings),
        *(replace(finding, message=f"B: {finding.message}") for finding in b.findings),
        *equal_weights({"A": digests["weights_a"], "B": digests["weights_b"]}),
    ]
    return result


def tabulate(config: CompareConfig, records: list[Record], states_a: int, paired: PairedPrompts) -> Table:
    """Cut the meter's table over both models into A with B, A with A and B with B.

    Names and axes: `cka_cross` (state of A, state of B, sample) with its `_null_mean` and `_null_sd`; the same pooled
    over samples, as the mean of their HSIC before the ratio, in `cka_cross_pooled`, `cka_a_pooled`, `cka_b_pooled`;
    `neighbours_cross` with its chance level; `kept_share` and `matched_tokens` per sample.
    """
    from repflow.metrics.neighbours import neighbour_chance
    from repflow.metrics.streaming_cka import CkaMeter

    meter = CkaMeter(unbiased=config.cka_form == "unbiased")
    meter.records.update(enumerate(records))
    whole = meter.compute()
    first, second = slice(None, states_a), slice(states_a, None)
    table: Table = {}
    for new, old in (
        ("cka_cross", "cka_matrix"),
        ("cka_cross_null_mean", "cka_null_mean"),
        ("cka_cross_null_sd", "cka_null_sd"),
        ("cka_cross_pooled", "cka_pooled"),
        ("cka_cross_pooled_null_mean", "cka_pooled_null_mean"),
        ("cka_cross_pooled_null_sd", "cka_pooled_null_sd"),
    ):
        axes, array = whole[old]
        table[new] = (axes, np.ascontiguousarray(array[first, second]))
    axes, pooled = whole["cka_pooled"]
    table["cka_a_pooled"] = (axes, np.ascontiguousarray(pooled[first, first]))
    table["cka_b_pooled"] = (axes, np.ascontiguousarray(pooled[second, second]))
    table["cka_rows_per_width"] = whole["cka_rows_per_width"]
    shared = np.stack([record["neighbours"] for record in records], -1)
    chance = np.array([neighbour_chance(config.neighbours, int(n)) for n in paired.matched])
    table["neighbours_cross"] = (("state", "state", "sample"), shared)
    table["neighbours_chance"] = (("sample",), chance)
    table["kept_share"] = (("sample",), paired.kept_share)
    table["matched_tokens"] = (("sample",), paired.matched)
    return table


def make_prompts(config: CompareConfig, a: Model, b: Model) -> PairedPrompts:
    """Make the prompts the config names, for both models."""
    from repflow.studies.engine.prompts import built_in, drawn_prompts, readable, task_options
    from repflow.tasks import english_texts, jsonl_prompts, make_task
    from repflow.tasks.lines import is_jsonl

    whole: Any = config  # some options of tasks are not among its fields
    config = whole = readable(whole, a, b)
    if config.task in DRAWN:
        return same_prompts(drawn_prompts(whole, [a, b], check_vocabularies(a, b)))
    if a.tokenizer is b.tokenizer and a.tokenizer is not None:  # needs no character spans, so any tokenizer will do
        return same_prompts(measure.make_prompts(as_measure(config), a))
    encoder_a, encoder_b = _encoders(config, a, b)
    if built_in(whole):
        size = {"length": config.length, "samples": config.samples, "seed": config.seed}
        pieces = text_pieces(english_texts(encoder_a, **size), encoder_a, length=config.length)
        return pair_prompts(pieces, encoder_a, encoder_b, task="text")
    if config.task == "text":
        pieces = file_pieces(config.text, encoder_a, length=config.length, samples=config.samples)
        return pair_prompts(pieces, encoder_a, encoder_b, task="text")
    if config.task in MADE:
        return pair_task(make_task(config.task, task_options(config)), config, a, b)
    if is_jsonl(config.task):
        whole = jsonl_prompts(config.task, encoder_a, length=None, samples=config.samples)
        pieces = text_pieces([prompt.text or "" for prompt in whole], encoder_a, length=config.length)
        return pair_prompts(pieces, encoder_a, encoder_b, task=Path(config.task).name)
    raise InputError(f"unknown task {config.task!r}; {nearest(config.task, [*NAMES, OWN])}")


def pair_task(task: Task, config: CompareConfig, a: Model, b: Model) -> PairedPrompts:
    """Pair the prompts of a task, the same text for both models and within the length of each."""
    from repflow.tasks import matched_prompts

    encoders = _encoders(config, a, b)
    size = {"length": config.length, "samples": config.samples, "seed": config.seed}
    if a.tokenizer is b.tokenizer:
        return same_prompts(task.prompts(encoders[0], **size))
    prompts = matched_prompts(task, encoders, **size, match="text")[0]
    pieces = text_pieces([prompt.text or "" for prompt in prompts], encoders[0])
    return pair_prompts(pieces, *encoders, task=task.name)


def pair_given(texts: Any, config: CompareConfig, a: Model, b: Model, options: Collection[str] = ()) -> PairedPrompts:
    """Pair texts, a task's prompts, or token ids that mean the same to both models.

    `length` and `samples` cut texts and ids where they are among the options of the call.
    """
    from repflow.capture.given import given_prompts, plain_rows
    from repflow.tasks import Task

    if isinstance(texts, Task):
        return pair_task(texts, config, a, b)
    sizes: dict[str, Any] = {name: getattr(config, name) for name in ("length", "samples") if name in options}
    rows = plain_rows(texts)
    if len(rows) and isinstance(rows[0], str) and a.tokenizer is not b.tokenizer:
        encoders = _encoders(config, a, b)
        given_prompts(a, rows, bos=config.bos, **sizes)  # refuses what is too little
        chosen = list(rows)[: sizes.get("samples")]
        return pair_prompts(text_pieces(chosen, encoders[0], length=sizes.get("length")), *encoders, task="text")
    if not (len(rows) and isinstance(rows[0], str)):
        sizes["vocab_size"] = check_vocabularies(a, b)
    return same_prompts(given_prompts(a, rows, bos=config.bos, **sizes))


def _encoders(config: CompareConfig, a: Model, b: Model) -> tuple[Encoder, Encoder]:
    from repflow.tasks import Encoder

    bos: Any = config.bos
    first, second = (Encoder(m.tokenizer, bos, m.bos_token_id, limit=m.max_length) for m in (a, b))
    return first, second
