"""Measure: how do representations flow through this model on these prompts?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.catalogue import DEFAULT_METRICS
from repflow.core.errors import InputError, nearest, teach
from repflow.core.trust import METRIC_FILE, code_files, file_digest
from repflow.spec.request import typed_options
from repflow.studies.engine.loading import check_files, check_measuring, identity
from repflow.studies.engine.opening import open_run
from repflow.studies.engine.phase import STORED, tell
from repflow.studies.engine.prompts import check_task, given_task, make_prompts, own_file, prompt_facts, task_name

if TYPE_CHECKING:
    from repflow.capture.measure import MeasureOptions
    from repflow.capture.run import Progress
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.tasks import Prompts


__all__ = ["MeasureConfig", "check_request", "check_task", "load_model", "make_prompts", "measure", "run", "run_name"]


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


def length_option(default: int, help: str) -> Any:
    """A length in tokens, which the command line also takes as 1K, 2K or 4K."""
    from repflow.spec.length import parse_length

    return field(default=default, metadata={"help": help, "parser": parse_length})


@dataclass
class MeasureConfig:
    """What to measure; the fields are the command line's options and the `config` of the Result."""

    model: str = _option("", "model: zoo:NAME, folder, hub id[@revision], config:FILE.json or FILE.gguf")
    task: str = _option("random", "what the model reads: text (with --text), random, kvpr, mdqa, or FILE.jsonl")
    text: list[str] = field(
        default_factory=list, metadata={"help": "text file for the task text; may be given several times"}
    )
    length: int = length_option(512, "tokens per prompt, at most; 1K is 1000")
    samples: int = _option(8, "number of prompts")
    seed: int = _option(0, "seed of random prompts and random weights")
    format: str = _option("liu2024", "template of kvpr: liu2024 (valid JSON), or paper (as printed in its appendix B)")
    index: int | None = _option(None, "index of the gold pair or document from 0; swept and balanced unless given")
    classes: int | None = _option(None, "bins of the gold item's relative position; default one class per index")
    items: int | None = _option(None, "pairs or documents per prompt; default as many as fit into --length")
    documents: str | None = _option(None, "JSONL of questions and passages for mdqa; default made-up facts")
    distractors: str = _option("bm25", "other documents of mdqa: bm25 (most like the question), or random")
    chat_template: bool = _option(False, "put each prompt into the tokenizer's chat template")
    match: str = _option("text", "several models get the same text, items (same number of them), or tokens")
    match_with: list[str] = field(
        default_factory=list,
        metadata={"help": "another model whose tokenizer the prompts must fit too; set where several are measured"},
    )
    init: str = _option(
        "trained",
        "weights: trained, or random: default, gaussian[:std], xavier[:gain], he[:gain], then +residual ...",
    )
    init_seed: int | None = _option(None, "seed of random weights, where it is not that of the prompts")
    ablate: list[str] = field(
        default_factory=list,
        metadata={
            "help": "parts taken out, repeated or comma separated: norm-affine, norm, positions, attention-window:W, "
            "attention-uniform, block:N, branch:N.KIND, branch:KIND"
        },
    )
    states: str = _option(
        "residual", "kind of state: residual, branch, branch:attention|mlp|ssm|recurrent|conv, hf-tuple"
    )
    metrics: list[str] = field(
        default_factory=lambda: list(DEFAULT_METRICS),
        metadata={
            "help": "metrics to compute, repeated or comma separated: default, cka_matrix, effective_rank, "
            "FILE.py:FUNCTION ..."
        },
    )
    drop: str = _option("norm>10", "tokens left out of the second set of values: norm>k, first, bos")
    keep_samples: int = _option(4, "prompts whose per-token values are kept unpooled")
    grid: int | None = _option(None, "steps of the common relative-depth grid (granularity matched)")
    bos: str = _option("model", "first token: as the model's tokenizer has it (model), always, never")
    tokenizer: str | None = _option(None, "folder or file of a tokenizer, where the model has none")
    dtype: str | None = _option(None, "float32 (default), bfloat16, float16, float64")
    device: str | None = _option(None, "cpu, cuda, cuda:1 ...; default: the first GPU, else the CPU")
    device_map: str | None = _option(None, "auto spreads the model over devices (extra: accelerate)")
    scan: str = _option(
        "auto", "scan of state-space layers: auto (the fastest that can run), fast (repflow's), reference"
    )
    batch_size: int | None = _option(None, "prompts per forward pass; default by length")
    meter_memory: int | None = _option(
        None, "MiB the meters may use; default six states of one batch at twice their precision"
    )
    cka_form: str = _option("unbiased", "CKA estimator: unbiased, or paper (biased)")
    cka_pool: str = _option("mean", "CKA over prompts: mean of per-prompt HSIC, or rows (exact, more memory)")
    cka_memory: int = _option(2048, "MiB that --cka-pool rows may use")
    calibration: list[str] = field(
        default_factory=list,
        metadata={"help": "text file whose mean state is taken off for centered/token_similarity"},
    )
    allow_float16: bool = _option(False, "measure in float16 although its range is small")
    trust_remote_code: bool = _option(False, "run Python code that comes with the model")

    def __post_init__(self) -> None:
        """Put the default metrics in place of the word `default`, and ablations in their fixed order."""
        words = [m for name in self.metrics for m in (DEFAULT_METRICS if name == "default" else [name])]
        self.metrics = list(dict.fromkeys(words))
        self.ablate = ablation_names(self.ablate)

    def help(self, name: str) -> str:
        """Help text of one field."""
        return next(f.metadata["help"] for f in fields(self) if f.name == name)


def ablation_names(ablate: Sequence[str]) -> list[str]:
    """Names of ablations in their fixed order, so that the same set makes the same run; unknown ones are refused."""
    if not ablate:
        return []
    from repflow.spec.ablation import parse_ablations

    return [str(ablation) for ablation in parse_ablations(_listed(ablate))]


def check_request(config: MeasureConfig, name: str | None = None) -> None:
    """Refuse what can be seen to be wrong before a model is loaded, which may take minutes."""
    from repflow.core.catalogue import ALIASES, METRICS
    from repflow.store.name import check_name

    if name is not None:
        check_name(name)
    check_measuring(config)
    check_task(config)
    check_files(*config.text, *config.calibration, *own_file(config.task))
    for metric in config.metrics:
        if METRIC_FILE not in metric and metric not in METRICS and metric not in ALIASES:
            raise InputError(f"unknown metric {metric!r}; {nearest(metric, METRICS)}")


def run(
    config: MeasureConfig,
    *,
    model: Model | None = None,
    prompts: Prompts | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Measure one model.

    Args:
        config: what to do.
        model: a loaded model, instead of `config.model`.
        prompts: ready prompts, instead of `config.task`.
        out: folder of runs; None keeps the result in memory only.
        name: name of the run in `out`; by default from model, init and task.
        progress: called after each batch.
    """
    from repflow.capture.measure import measure_prompts
    from repflow.store import load_result

    check_measuring(config)
    loaded = load_model(config) if model is None else model
    made = make_prompts(config, loaded) if prompts is None else prompts
    if prompts is not None:  # what was given is what the config says
        config = replace(config, task=prompts.task, length=max(prompts.lengths, default=0), samples=len(prompts))
    stored, provenance = describe(config, loaded, made, digests=out is not None)
    loaded.scans.forget()
    options = measure_options(config, loaded)
    if options.calibration is not None:
        provenance["digests"]["calibration"] = options.calibration.digest()
    if out is None:
        _begin(progress, len(made))

        def digests() -> None:  # nothing is resumed, so they need not be known before the first batch
            provenance["digests"] |= {"weights": loaded.digest(), "prompts": made.digest()}

        result = measure_prompts(loaded, made, options, progress=progress, meanwhile=digests)
    else:
        from repflow.capture.measure import check_options as check_with_model
        from repflow.store.record import check_digests
        from repflow.studies.engine.sink import RunSink

        # code is imported below: a changed file is refused before it can run
        check_digests(Path(out) / (name or run_name(config)), options.code)
        options = check_with_model(options, loaded, made)  # a request that cannot be met leaves nothing behind
        with open_run(
            out, name or run_name(config), config=stored, provenance=provenance, models={"model": loaded}
        ) as folder:
            if folder.finished:
                tell(progress, STORED)
                return load_result(folder.path)
            _begin(progress, len(made))
            result = measure_prompts(loaded, made, options, sink=RunSink(folder), progress=progress)
            _describe_result(result, config, loaded, made, stored, provenance)
            folder.finish(result)
        return result
    return _describe_result(result, config, loaded, made, stored, provenance)


def _begin(progress: Progress | None, total: int) -> None:
    """The model is loaded, the work begins."""
    if progress is not None:
        progress(0, total, 0)


def load_model(config: MeasureConfig, tokenizer: Any = None) -> Model:
    """Load the model the config names; a live tokenizer may stand for the one it names."""
    from repflow.interventions import ablate
    from repflow.models import load

    extra = {"dtype": config.dtype} if config.dtype else {}
    loaded = load(
        config.model,
        init=config.init,
        tokenizer=config.tokenizer if tokenizer is None else tokenizer,
        device=config.device,
        device_map=config.device_map,
        scan=config.scan,
        trust_remote_code=config.trust_remote_code,
        seed=config.seed if config.init_seed is None else config.init_seed,
        **extra,
    )
    return ablate(loaded, config.ablate)


def measure_options(config: MeasureConfig, model: Model) -> MeasureOptions:
    """The part of the config that concerns the meters."""
    from repflow.capture.measure import MeasureOptions
    from repflow.tasks import Encoder, file_prompts

    calibration = None
    if config.calibration:
        encoder = Encoder(model.tokenizer, config.bos, model.bos_token_id)
        calibration = file_prompts(config.calibration, encoder, length=config.length, samples=config.samples)

    return MeasureOptions(
        metrics=tuple(config.metrics),
        kind=config.states,
        drop=config.drop,
        keep_samples=config.keep_samples,
        grid=config.grid,
        batch_size=config.batch_size,
        meter_memory=None if config.meter_memory is None else config.meter_memory << 20,
        cka_form=config.cka_form,
        cka_pool=config.cka_pool,
        cka_memory=config.cka_memory << 20,
        calibration=calibration,
        allow_float16=config.allow_float16,
        code=_metric_digests(config),
    )


def describe(
    config: MeasureConfig, model: Model, prompts: Prompts, *, digests: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Config and provenance as stored: what was asked, and with what it was done; its digests may come later."""
    from repflow.studies.engine.provenance import machine

    stored = identity(config) | {"model": config.model or model.spec, "ablate": list(model.ablations)}
    provenance = {
        **machine(str(model.device)),
        "dtype": str(model.dtype).removeprefix("torch."),
        "init": model.init,
        "ablate": list(model.ablations),
        "scan": model.scans.setting,
        "digests": {
            "weights": model.digest() if digests else "",
            "prompts": prompts.digest() if digests else "",
            **_metric_digests(config),
        },
    }
    return stored, provenance


def _metric_digests(config: MeasureConfig) -> dict[str, str]:
    """A user's own metrics are part of what a run is: with another file its shards must not be mixed."""
    files = sorted(code_files({"metrics": config.metrics}))
    return {file: file_digest(Path(file).read_bytes()) for file in files if Path(file).is_file()}


def _describe_result(
    result: Result,
    config: MeasureConfig,
    model: Model,
    prompts: Prompts,
    stored: dict[str, Any],
    provenance: dict[str, Any],
) -> Result:
    from repflow.studies.engine.provenance import model_facts

    result.config = stored
    result.provenance = {
        **provenance,
        "model": model_facts(model),
        "task": prompt_facts(prompts),
        "states": config.states,
        "branch_layers": model.sublayers(config.states) if config.states.startswith("branch") else None,
        **result.provenance,
    }
    result.findings += [found for found in model.scans.findings() if found not in result.findings]
    return result


def run_name(config: MeasureConfig) -> str:
    """Folder name of a run: model, init, ablations, task and length, as one safe path component."""
    from repflow.store import safe_name

    parts = [Path(config.model.removeprefix("config:")).stem if config.model.startswith("config:") else config.model]
    parts += [config.init] if config.init != "trained" else []
    parts += [f"init{config.init_seed}"] if config.init_seed is not None else []
    parts += ["ablated", *config.ablate] if config.ablate else []
    parts += [Path(config.task).stem, str(config.length)]
    parts += [config.states] if config.states != "residual" else []
    parts += [f"grid{config.grid}"] if config.grid is not None else []
    return safe_name("-".join(parts))


def measure(
    model: Any,
    task: str | Sequence[str] | Any = "random",
    *,
    metrics: Sequence[str | Callable[..., Any]] | Callable[..., Any] = DEFAULT_METRICS,
    out: str | Path | None = None,
    name: str | None = None,
    **options: Any,
) -> Result:
    """Measure a model on a task, texts or token ids.

    Args:
        model: a loaded Model, a spec, or a live transformers model.
        task: `random`, `text`, `kvpr`, `mdqa`, `FILE.jsonl`; a `Task` object or ready `Prompts`; a text of several
            words or a list of texts; token ids (batch, token), nested or as a tensor; or what the tokenizer returned
            for texts (`input_ids` and `attention_mask`).
        metrics: names from the catalogue, registered metrics, `FILE.py:FUNCTION`, or functions of hidden (state, token,
            width), registered under their own names with axes that follow from the shape of what they return.
        out: folder of runs to store the result in.
        name: name of the stored run.
        **options: any field of `MeasureConfig`. With texts or ids, `length` cuts each of them to its first so many
            tokens (a shorter one stays whole) and `samples` takes the first so many; all are read, whole, without.

    Returns:
        Result: a mapping from metric name to array.
    """
    known = {f.name for f in fields(MeasureConfig)} - {"model", "task", "metrics"}
    if unknown := sorted(options.keys() - known):
        raise InputError(f"unknown option {unknown[0]!r}; {nearest(unknown[0], known)}")
    options = typed_options(MeasureConfig, options)
    config = MeasureConfig(**_plain(options), metrics=_listed(_named(metrics)))
    named = task_name(task)
    if named is not None:
        config.task = named
        check_task(config)
    loaded = _loaded(model, config, options)
    prompts = given_task(task, config, loaded, options) if named is None else None
    return run(config, model=loaded, prompts=prompts, out=out, name=name)


def _listed(value: Any) -> list[str]:
    """Strings of a list, or of a lone one, which Python would take for a list of letters."""
    return [str(entry) for entry in ([value] if isinstance(value, (str, Path)) else value)]


def _named(metrics: Any) -> Any:
    """Names of metrics; functions among them are registered."""
    if not callable(metrics) and (isinstance(metrics, str) or not any(map(callable, metrics))):
        return metrics
    from repflow.metrics.custom import function_name

    return [function_name(m) if callable(m) else m for m in ([metrics] if callable(metrics) else metrics)]


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options as a config stores them: paths, dtypes, devices and a live tokenizer by their names."""
    from repflow.tasks import parse_length

    lists = ("text", "calibration", "ablate", "match_with")
    plain: dict[str, Any] = {name: _listed(value) if name in lists else value for name, value in options.items()}
    if "length" in plain:
        plain["length"] = parse_length(plain["length"])
    for name in ("dtype", "device"):
        if plain.get(name) is not None:
            plain[name] = str(plain[name]).removeprefix("torch.")
    tokenizer = plain.get("tokenizer")
    if tokenizer is not None and not isinstance(tokenizer, (str, Path)):
        named = getattr(tokenizer, "name_or_path", None) or getattr(tokenizer, "__name__", None)
        plain["tokenizer"] = named or type(tokenizer).__name__
    return plain | ({"tokenizer": str(plain["tokenizer"])} if tokenizer is not None else {})


LOADING = ("init", "init_seed", "tokenizer", "dtype", "device", "device_map", "scan", "trust_remote_code")


def _loaded(model: Any, config: MeasureConfig, options: dict[str, Any]) -> Model:
    """Load what is not loaded yet; the config then says what was measured."""
    from repflow.interventions import ablate
    from repflow.models import Model, load

    if isinstance(model, (str, Path)):
        config.model = str(model)
        loaded = load_model(config, options.get("tokenizer"))
    elif isinstance(model, Model):
        if given := [name for name in LOADING if name in options]:
            expected = "a spec or live model with options for loading"
            raise InputError(teach(expected, f"{given[0]} with a loaded Model", "pass it to repflow.load"))
        loaded = model
    else:
        extra: dict[str, Any] = {"dtype": config.dtype} if config.dtype else {}
        extra |= {"tokenizer": options.get("tokenizer"), "device": config.device, "scan": config.scan}
        seed = config.seed if config.init_seed is None else config.init_seed
        loaded = load(model, init=config.init, seed=seed, **extra)
    if not isinstance(model, (str, Path)):
        loaded = ablate(loaded, config.ablate)
    config.model, config.init = config.model or loaded.spec, loaded.init
    config.ablate = list(loaded.ablations)
    return loaded
