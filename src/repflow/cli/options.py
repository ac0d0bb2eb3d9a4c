"""Options from a study's Config: a field is an option, its metadata the help text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from rich.markup import escape

from repflow.cli.console import note
from repflow.cli.help import complete_task
from repflow.core.errors import InputError, command_line, teach
from repflow.spec.request import Typed
from repflow.spec.zoo import PREFIX, available, check_zoo_name, is_zoo

C = TypeVar("C")
MODEL_HELP = "zoo:NAME, folder, hub id with optional @revision, config:FILE.json, FILE.gguf"
"""What a model may be, for the help; see `or_zoo` for the default."""

AS_JSON = Annotated[bool, typer.Option("--json", help="print one JSON object, nothing else")]
"""The option of commands that print one object."""

ALLOW_CODE = Annotated[bool, typer.Option("--allow-code", help="run Python files that the request names as metrics")]
TRUST_REMOTE_CODE = Annotated[
    bool, typer.Option("--trust-remote-code", help="run Python that comes with a model, where the request asks for it")
]
"""Options of commands whose request is read from a file, which cannot grant these itself (`repflow.core.trust`)."""


def or_zoo(specs: str | Sequence[str] | None, *names: str) -> list[str]:
    """The models as given; without any, these of the zoo, with a note on stderr.

    Args:
        specs: what was typed: a list of specs, a lone one, "" or None.
        names: in the zoo.

    Raises:
        InputError: a `zoo:NAME` that the zoo does not have.

    >>> or_zoo("gpt2", "mamba"), or_zoo(["zoo:mamba2"], "mamba")
    (['gpt2'], ['zoo:mamba2'])
    """
    models = [specs] if isinstance(specs, str) and specs else list(specs or [])
    for model in models:
        if is_zoo(model):
            check_zoo_name(model)
    if not models and not names:
        raise InputError(teach("a MODEL", "none", "name one: no built-in model can be asked this"))
    if not models:
        here = available()
        models = [f"{PREFIX}{name}" for name in names if name in here] or [f"{PREFIX}{name}" for name in names]
        note(f"no MODEL given: {' '.join(models)} of the built-in zoo (repflow zoo list)")
    return models


def with_options(config: type, *, skip: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command every field of a config dataclass as an option; it receives them as keywords.

    Args:
        config: The dataclass; each field's `metadata["help"]` is the help text.
        skip: Fields that the command takes in a way of its own.
    """
    hints = get_type_hints(config)
    parameters = [
        _parameter(field, hints[field.name]) for field in sorted(fields(config), key=_rank) if field.name not in skip
    ]

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        whole = signature.replace(parameters=[*own, *parameters])
        command.__signature__ = whole  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in whole.parameters.values()}
        return command

    return add


PANELS = {
    "What the model reads": (
        *(
            "task",
            "text",
            "length",
            "lengths",
            "samples",
            "train",
            "test",
            "flow_samples",
            "seed",
            "format",
            "index",
            "classes",
            "items",
        ),
        *("positions", "candidates", "needles", "haystack", "skip_told", "instruction", "documents"),
        *("distractors", "chat_template", "match", "match_with", "bos", "calibration"),
        *("held_out", "held_out_share", "test_texts", "labelled", "folds"),
    ),
    "Images": ("images", "order", "orders", "patch", "grey", "train_images", "test_images"),
    "What is replaced": ("regions", "replace", "targets", "attack_regions", "draws"),
    "What is trained": (
        *(
            "rows",
            "layers",
            "widths",
            "shares",
            "vocabulary",
            "match_row",
            "match_layers",
            "head_dim",
            "heads",
            "chunk",
        ),
        *("sort_temperature", "sort_power", "eigenvalue_shift", "eigenvalue_norm", "decay_limit"),
        *("recall_share", "recall_ids", "recall_pairs", "pooling"),
    ),
    "Weights": ("init", "inits", "init_b", "init_seed", "ablate", "ablate_b", "twin"),
    "What is measured": (
        *("states", "metrics", "drop", "keep_samples", "grid", "cka_form", "cka_pool", "neighbours", "share"),
        *("attention", "units", "maps", "influence"),
        *("flow_run", "probe_run", "scale", "seeds", "at", "to", "probes", "fit_first", "fit_last", "nearest"),
    ),
    "Probes": (
        *("seeds_vary", "label", "recipes", "epochs", "rate", "position", "sweep", "controls", "allow_leak"),
        *("answers", "answer_tokens", "lens", "probe_samples", "probe_seeds", "drop_features"),
    ),
    "Training": (
        *("rates", "cells", "steps", "seconds", "keep_models"),
        *("test_length", "test_rows", "power", "filler", "batch", "decay", "clip", "warmup", "untied", "together"),
        *("memory", "checkpoint", "last_rate", "second_beta", "dropout", "readings", "reading_tokens"),
        *("leak_positions", "recall_rows", "optimiser"),
    ),
    "Thresholds": ("early_similarity", "late_similarity", "loss_points", "early_depth", "late_depth"),
    "Many workers": (
        "workers",
        "per_gpu",
        "split",
        "threads",
        "engine",
        "address",
        "slurm",
        "store",
        "retry_failed",
        "worker",
    ),
    "Where and how it runs": (
        *(
            "tokenizer",
            "tokenizer_b",
            "dtype",
            "device",
            "device_map",
            "batch_size",
            "scan",
            "meter_memory",
            "checkpointing",
        ),
        *("cka_memory", "reference_memory", "allow_float16", "trust_remote_code"),
    ),
}
"""Groups of options in the help, the same for every command."""


def panel(name: str) -> str | None:
    """Group of an option; None for one that is listed among the command's own.

    >>> panel("task"), panel("out")
    ('What the model reads', None)
    """
    return next((title for title, names in PANELS.items() if name in names), None)


def _rank(field: Field[Any]) -> int:
    """Place of an option in the help: as in `PANELS`, a command's own first, whatever order its config's parts have."""
    names = [name for panel_names in PANELS.values() for name in panel_names]
    return names.index(field.name) if field.name in names else -1


def _parameter(field: Field[Any], kind: Any) -> inspect.Parameter:
    flag = field.metadata.get("flag", f"--{field.name.replace('_', '-')}")
    listed = field.default_factory is not MISSING
    default_shown: Any = field.metadata.get("shown", not listed)
    if listed and "shown" not in field.metadata and "default" not in field.metadata["help"]:
        factory: Any = field.default_factory
        default_shown = ", ".join(map(str, factory())) or False
    names = (flag, *field.metadata.get("aliases", ()))
    help = escape(field.metadata["help"])
    look: Any = {"show_default": default_shown, "rich_help_panel": panel(field.name)}
    option: Any = typer.Option(*names, help=help, hidden=field.metadata.get("hidden", False), **look)
    if field.name == "task":
        option.autocompletion = complete_task
        option.callback = _typed
    if "parser" in field.metadata:
        option.parser, option.metavar = _parsed(field.metadata["parser"]), "N"
    default = None if listed else field.default
    annotation: Any = Annotated[kind | None if listed else kind, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _typed(ctx: Any, param: Any, value: str) -> str:
    """The task, marked where it was typed and is not the default."""
    source = ctx.get_parameter_source(param.name or "")
    return Typed(value) if source is not None and source.name == "COMMANDLINE" else value


def _parsed(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A field's parser, whose errors are those of a wrong option; it is handed the field's default too."""

    def read(text: Any) -> Any:
        if text is None:  # left to the task
            return None
        try:
            return parse(text)
        except InputError as error:
            with command_line():  # options are read before the command begins
                raise typer.BadParameter(str(error)) from None

    return read


def make_config(config: type[C], values: dict[str, Any]) -> C:
    """Build the config from what was typed; what was not given is left to the config's own default."""
    unset = {field.name for field in fields(config) if field.default_factory is not MISSING or field.default is None}  # type: ignore[arg-type]
    return config(**{name: value for name, value in values.items() if not (name in unset and value is None)})
