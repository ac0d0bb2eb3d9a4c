"""Measure prompts: plan, run, and turn the meters' records into a Result."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from repflow.capture.findings import precision, table_findings
from repflow.capture.plan import Plan, make_plan
from repflow.capture.precision import SAMPLES, PrecisionCheck, beginnings
from repflow.capture.repeat import RepeatCheck
from repflow.capture.run import MemorySink, Progress, Sink, batch_name, gather, run_plan
from repflow.core.catalogue import ALIASES, DEFAULT_METRICS, METRICS, metric_of
from repflow.core.errors import InputError, RepflowError, UnsupportedModelError, nearest, teach
from repflow.core.results import Result
from repflow.core.trust import METRIC_FILE, file_digest
from repflow.metrics.ahead import Batch, compile_ahead
from repflow.metrics.centre import CentredSimilarity, MeanState
from repflow.metrics.custom import CUSTOM, register_metric
from repflow.metrics.depth import check_printed
from repflow.metrics.drop import DEFAULT_DROP
from repflow.metrics.factory import check_computed, given, make_meters
from repflow.metrics.meter import Meter, MeterSetting, Table, position_bins
from repflow.metrics.streaming_cka import RowPooledCka, row_pool_bytes
from repflow.models import Model
from repflow.models.anatomy import text_config
from repflow.models.weights.digest import kernels_of_digest
from repflow.spec.request import parse_drop
from repflow.tasks import Prompts, check_fit


@dataclass(frozen=True)
class MeasureOptions:
    """How to measure; `repflow.studies.measure.MeasureConfig` explains each field."""

    metrics: tuple[str, ...] = DEFAULT_METRICS
    kind: str = "residual"
    drop: str = DEFAULT_DROP
    keep_samples: int = 4
    grid: int | None = None
    batch_size: int | None = None
    meter_memory: int | None = None
    cka_form: str = "unbiased"
    cka_pool: str = "mean"
    cka_memory: int = 2 << 30
    calibration: Prompts | None = None
    allow_float16: bool = False
    check_precision: bool = True
    code: Mapping[str, str] = field(default_factory=dict)
    """Digests that files of own metrics must have, by their path; a file that is not in it may have any."""


def measure_prompts(
    model: Model,
    prompts: Prompts,
    options: MeasureOptions,
    *,
    sink: Sink | None = None,
    progress: Progress | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Result:
    """Run the model once over the prompts and compute the requested metrics.

    Args:
        model: to run.
        prompts: to read.
        options: how to measure.
        sink: keeps the records of finished batches; in memory by default.
        progress: called after each batch.
        meanwhile: other work for the host, done while a GPU still computes the last batch.

    Returns:
        A Result without config and provenance, which the study adds.
    """
    options = check_options(options, model, prompts)
    sink = MemorySink() if sink is None else sink
    plan = sink.plan(lambda: measure_plan(model, prompts, options))
    center = None if options.calibration is None else _center(model, options.calibration, options, sink)
    factory = meter_factory(model, prompts, options, plan.group, center)
    check = None
    if _needs_precision_check(model, options):
        check = PrecisionCheck(model, prompts, factory, sink, options.kind)
    repeat = RepeatCheck(model, prompts, options.kind)
    shapes = _batches(model, prompts, plan, check is not None)
    compile_ahead(factory, shapes, model.width, model.device, also=kernels_of_digest)

    meters, taken = factory(), set[str]()

    def at_last() -> None:
        repeat.start()
        if check is not None:
            check.start()
        _take_in(meters, plan, sink, taken)
        if meanwhile is not None:
            meanwhile()  # last, as it waits for the GPU: a digest's sums queue behind the batch

    plan = run_plan(model, prompts, plan, factory, sink, kind=options.kind, progress=progress, at_last=at_last)
    _take_in(meters, plan, sink, taken)
    table: Table = {}
    for meter in meters:
        table |= meter.compute()
    if check is not None:
        table |= check.changes()
    if "cka_matrix" in options.metrics and options.cka_pool == "rows":
        table |= _row_pooled(model, prompts, plan, options)
    _check_table(table, options)
    result = _result(table, model, prompts, options, check)
    result.findings += repeat.findings()
    return result


def measure_share(
    model: Model, prompts: Prompts, options: MeasureOptions, *, sink: Sink, progress: Progress | None = None
) -> None:
    """Run the batches that the sink does not hold and keep their records; `measure_prompts` puts them together."""
    options = check_options(options, model, prompts)
    plan = sink.plan(lambda: measure_plan(model, prompts, options))
    center = None if options.calibration is None else _center(model, options.calibration, options, sink)
    factory = meter_factory(model, prompts, options, plan.group, center)
    run_plan(model, prompts, plan, factory, sink, kind=options.kind, progress=progress)


def _take_in(meters: Sequence[Meter], plan: Plan, sink: Sink, taken: set[str]) -> None:
    """Hand the meters the batches that are there and were not taken.

    In the plan's order whenever they come: sums over prompts then have the same bits.
    """
    for name in map(batch_name, plan.batches):
        if name in taken:
            continue
        if not sink.has(name):
            return
        gather(meters, sink.read(name))
        for meter in meters:
            meter.absorb()
        taken.add(name)


def _state_itemsize(model: Model) -> int:
    """Bytes of one entry of a state: Mamba's stream is float32 whatever its weights are (`residual_in_fp32`)."""
    wide = bool(getattr(text_config(model.network.config), "residual_in_fp32", False))
    return max(4, model.dtype.itemsize) if wide else model.dtype.itemsize


def _batches(model: Model, prompts: Prompts, plan: Plan, checked: bool) -> list[Batch]:
    """Shapes that the meters will meet: the longest batch, one whose length is not a multiple of 16, the check's."""
    stream = torch.float32 if _state_itemsize(model) == 4 else model.dtype
    shapes = [(len(batch), max(prompts.lengths[sample] for sample in batch)) for batch in plan.batches]
    chosen = sorted({tokens % 16 == 0: (size, tokens) for size, tokens in sorted(shapes)}.values(), reverse=True)
    batches = [Batch(size, tokens, model.dtype, stream, model.dtype) for size, tokens in chosen]
    if checked:
        first = beginnings(prompts).lengths[:SAMPLES]
        batches.append(Batch(len(first), max(first), model.dtype, stream, model.dtype))
        batches.append(Batch(len(first), max(first), torch.float32, torch.float32, torch.float32))
    return batches


def measure_plan(model: Model, prompts: Prompts, options: MeasureOptions) -> Plan:
    """Batches that fit the meters' memory, and how many states are reduced together."""
    return make_plan(
        prompts.lengths,
        width=model.width,
        itemsize=_state_itemsize(model),
        batch_size=options.batch_size,
        meter_memory=options.meter_memory,
        direction=_directions(options),
        grid=options.grid is not None,
        printed=_printed(options) and _embedded(options),
        grouped=model.device.type == "cuda",
    )


CALIBRATION = "calibration"


def _center(model: Model, prompts: Prompts, options: MeasureOptions, sink: Sink) -> torch.Tensor:
    """Mean state (state, width) of the calibration prompts, kept by the sink like a batch."""
    if not sink.has(CALIBRATION):
        memory = MemorySink()
        plan = run_plan(
            model, prompts, measure_plan(model, prompts, options), lambda: [MeanState()], memory, kind=options.kind
        )
        meter = MeanState()
        for batch in plan.batches:
            gather([meter], memory.read(batch_name(batch)))
        sink.write(CALIBRATION, {0: [{"mean_state": meter.compute()["mean_state"][1]}]})
    return torch.from_numpy(sink.read(CALIBRATION)[0][0]["mean_state"])


def _check_calibration(prompts: Prompts, calibration: Prompts) -> None:
    """A mean that contains the measured prompts would subtract part of what is measured."""
    shared = {prompt.ids for prompt in prompts} & {prompt.ids for prompt in calibration}
    if shared:
        raise InputError(
            teach("calibration prompts other than the measured ones", f"{len(shared)} in both", "pass other text files")
        )


def _directions(options: MeasureOptions) -> bool:
    return any(name.startswith("direction_") for name in options.metrics)


def _printed(options: MeasureOptions) -> bool:
    return bool({"paper_smoothness", "paper_stability"} & set(options.metrics))


def _embedded(options: MeasureOptions) -> bool:
    """Whether the first state is the embedding, or stands in its place in transformers' tuple."""
    return not options.kind.startswith("branch")


def check_options(options: MeasureOptions, model: Model, prompts: Prompts) -> MeasureOptions:
    """Refuse what cannot be measured before anything runs; resolve metric names and files."""
    check_fit(prompts, model.max_length, model.vocab_size)
    parse_drop(options.drop)
    if options.cka_form not in ("unbiased", "paper") or options.cka_pool not in ("mean", "rows"):
        raise InputError(
            teach(
                "CKA form unbiased or paper, pool mean or rows", f"{options.cka_form}, {options.cka_pool}", "see --help"
            )
        )
    if model.dtype == torch.float16 and not options.allow_float16:
        raise InputError(
            teach(
                "float32 or bfloat16 for measuring",
                "float16, whose range ends at 65,504, below the massive activations of many models",
                "pass --dtype float32 or bfloat16, or --allow-float16 if you mean it",
            )
        )
    states = _check_kind(model, options.kind)
    if options.grid is not None and not 1 <= options.grid <= states - 1:
        raise InputError(
            teach(f"--grid between 1 and {states - 1}", f"{options.grid}", "use the shallowest model's blocks")
        )
    names = _resolve_metrics(options.metrics, options.code)
    if "paper_smoothness" in names:
        check_printed(states - _embedded(options))
    if options.keep_samples < 0 or not names:
        got = f"--keep-samples {options.keep_samples}, {len(names)} metrics"
        raise InputError(teach("--keep-samples of 0 or more and at least one metric", got, "see --help"))
    _check_metrics(names, states, len(prompts), options)
    if options.calibration is not None:
        check_fit(options.calibration, model.max_length, model.vocab_size)
        _check_calibration(prompts, options.calibration)
    _check_row_pool(states, model.width, options)
    measure_plan(model, prompts, options)  # says so when the meters' memory does not do
    return MeasureOptions(**{**options.__dict__, "metrics": names})


def _check_kind(model: Model, kind: str) -> int:
    """Number of states of this kind; a kind the model does not have is refused."""
    states = model.state_count(kind)
    if kind.startswith("branch:") and model.reading.sublayer_problem is not None:
        raise UnsupportedModelError(model.reading.sublayer_problem)
    if not states:
        raise InputError(teach(f"states of kind {kind!r}", f"none in {model.name}", "ask for residual or branch"))
    return states


def _check_row_pool(states: int, width: int, options: MeasureOptions) -> None:
    need = row_pool_bytes(states, width)
    if "cka_matrix" in options.metrics and options.cka_pool == "rows" and need > options.cka_memory:
        expected = f"--cka-pool rows within --cka-memory {options.cka_memory >> 20} MiB"
        got = f"{states} states of width {width}, which need {need / 2**20:.0f} MiB"
        raise InputError(teach(expected, got, "raise --cka-memory or use --cka-pool mean"))


def _resolve_metrics(names: Sequence[str], code: Mapping[str, str]) -> tuple[str, ...]:
    sources: dict[str, str] = {}
    for word in names:
        name = resolve_metric(word, code)
        before = sources.setdefault(name, word)
        if before != word and METRIC_FILE in before and METRIC_FILE in word:
            raise InputError(teach(f"one function called {name!r}", f"{before} and {word}", "rename one of them"))
    return tuple(sources)


def resolve_metric(name: str, code: Mapping[str, str] | None = None) -> str:
    """Known metric, alias, or `FILE.py:FUNCTION` of the user's own, which is imported and registered."""
    name = ALIASES.get(name, name)
    if METRIC_FILE in name:
        return _metric_from_file(name, code or {})
    if name not in METRICS and name not in CUSTOM:
        raise InputError(f"unknown metric {name!r}; {nearest(name, [*METRICS, *CUSTOM])}")
    if name in METRICS and METRICS[name].inputs > 1:
        raise InputError(teach("a metric of one model", f"{name}, which compares two", "use repflow compare"))
    return name


def _metric_from_file(name: str, code: Mapping[str, str]) -> str:
    file, _, function = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise InputError(teach(f"a Python file at {file}", "none", "pass --metrics FILE.py:FUNCTION"))
    source = path.read_bytes()
    if (now := file_digest(source)) != code.get(file, now):
        raise InputError(
            teach(f"{file} with sha256 {code[file][:12]}", f"{now[:12]}", "it changed meanwhile; run the command again")
        )
    spec = importlib.util.spec_from_file_location(f"repflow_user_{path.stem}", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    registered = CUSTOM.get(function)
    try:
        # these bytes and no others: the loader would take compiled code that lies in __pycache__ beside the file
        exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise InputError(f"{file} cannot be imported: {type(error).__name__}: {error}; fix it") from error
    if not hasattr(module, function):
        names = [n for n in vars(module) if not n.startswith("_")]
        raise InputError(f"{file} has no {function!r}; {nearest(function, names)}")
    if CUSTOM.get(function) is registered:  # a file may register its function itself, with axes of its own
        if not callable(getattr(module, function)):
            raise InputError(teach(f"a function {function!r} in {file}", "something else", "name a function"))
        register_metric(getattr(module, function), axes=("state",), name=function)
    return function


def meter_factory(
    model: Model, prompts: Prompts, options: MeasureOptions, group: int, center: torch.Tensor | None = None
) -> Callable[[], Sequence[Meter]]:
    """Meters for one batch, those that the catalogue names for the requested metrics."""
    setting = MeterSetting(
        options.metrics,
        states=model.state_count(options.kind),
        positions=max(prompts.lengths),
        keep=frozenset(range(min(options.keep_samples, len(prompts)))),
        group=group,
        drop=options.drop,
        grid=options.grid,
        embedding=_embedded(options),
        unbiased=options.cka_form == "unbiased",
    )

    def make() -> Sequence[Meter]:
        centred: list[Meter] = [] if center is None else [CentredSimilarity(center)]
        return [*make_meters(setting), *centred]

    return make


def _named(metrics: Sequence[str]) -> list[str]:
    """Metrics requested by name: all, or those besides the defaults where these are among them.

    A default metric that a short model or a single prompt does not have is left out of the default set without a word;
    one that was requested by name is computed or refused.
    """
    return [name for name in metrics if not set(DEFAULT_METRICS) <= set(metrics) or name not in DEFAULT_METRICS]


def _check_metrics(names: Sequence[str], states: int, samples: int, options: MeasureOptions) -> None:
    """Refuse a metric that this run cannot compute."""
    check_computed(names)
    for name in _named(names):
        facts = METRICS.get(name)
        if facts is None:
            continue
        needs = (
            ("states", facts.states, states - (name.startswith("paper_") and _embedded(options))),
            ("samples", facts.samples, samples),
            ("kept samples (--keep-samples)", int(facts.kept), options.keep_samples),
        )
        for what, least, here in needs:
            if here < least:
                got = f"{here}, so that it would be missing from the result"
                raise InputError(teach(f"at least {least} {what} for {name}", got, "measure more, or leave it out"))


def _check_table(table: Table, options: MeasureOptions) -> None:
    """Whatever was requested by name is present; a meter that leaves it out would do so silently."""
    missing = [name for name in _named(options.metrics) if not given(name, table)]
    if missing:
        got = f"a table without {', '.join(missing)}"
        raise RepflowError(
            teach("every requested metric", got, "check that its meter returns it: repflow.metrics.check_metric(NAME)")
        )


def _row_pooled(model: Model, prompts: Prompts, plan: Plan, options: MeasureOptions) -> Table:
    """Exact CKA over the rows of all samples. Its sums are too large to store per batch, so it is a pass of its own."""
    states = model.state_count(options.kind)
    pooled = RowPooledCka(states, unbiased=options.cka_form == "unbiased", budget_bytes=options.cka_memory)
    run_plan(model, prompts, plan, lambda: [pooled], MemorySink(), kind=options.kind)
    return pooled.compute()


def _needs_precision_check(model: Model, options: MeasureOptions) -> bool:
    return model.dtype in (torch.bfloat16, torch.float16) and options.check_precision


def _result(
    table: Table, model: Model, prompts: Prompts, options: MeasureOptions, check: PrecisionCheck | None = None
) -> Result:
    # by name: records come back from a run folder in no fixed order, and equal results must be equal bytes
    entries = {name: table[name] for name in sorted(table) if metric_of(name) in options.metrics}
    result = Result(
        {name: array for name, (_, array) in entries.items()}, {name: axes for name, (axes, _) in entries.items()}
    )
    for name, axes in result.axes.items():
        if "sample" in axes and "token" not in axes and "rank" not in axes and not name.startswith("kept/"):
            result.band(name)
    if check is not None:
        result.provenance["precision_check"] = {"tokens": check.tokens()}
    # sinks and non-finite states concern every metric, so they are looked for in all that was measured
    states = table_findings(table, prompts.lengths, model.width)
    result.findings = [*model.findings, *prompts.findings, *states, *precision(result)]
    samples = prompts.samples[: options.keep_samples]
    result.provenance["positions"] = position_bins(max(prompts.lengths)).tolist()
    result.provenance["lengths"] = list(prompts.lengths)
    result.provenance["kept"] = [{"ids": list(p.ids), "tokens": list(p.tokens), "text": p.text} for p in samples]
    return result
