"""Prompts of a study: measure, compare, probe and diagnose make them in one way, from the fields that they share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from repflow.core.errors import InputError, nearest, teach
from repflow.core.seconds import timed
from repflow.core.tasks import DRAWN, MADE, NAMES, OPTIONS, OWN, part_of, takers, task_row
from repflow.spec.request import Typed
from repflow.spec.tokenizer import lacks_tokenizer
from repflow.studies.engine.loading import check_files

if TYPE_CHECKING:
    from repflow.models import Model
    from repflow.tasks import Encoder, Prompts, Task, TaskOptions

C = TypeVar("C")


@runtime_checkable
class PromptConfig(Protocol):
    """Fields that a config needs for its prompts; the options of single tasks may be missing."""

    @property
    def task(self) -> str:
        """Name of the task."""

    @property
    def text(self) -> Sequence[str]:
        """Files of the task text."""

    @property
    def length(self) -> int:
        """Most tokens per prompt."""

    @property
    def samples(self) -> int:
        """Number of prompts."""

    @property
    def seed(self) -> int:
        """Seed of the prompts."""

    @property
    def bos(self) -> str:
        """Policy for the first token."""


def task_options(config: Any) -> TaskOptions:
    """Options of the task; a field that the config lacks has its default."""
    from repflow.tasks import TaskOptions

    return TaskOptions(**{f.name: getattr(config, f.name) for f in fields(TaskOptions) if hasattr(config, f.name)})


def check_task(config: PromptConfig) -> None:
    """Refuse an unknown task, or one whose files or options do not fit it."""
    from repflow.tasks.lines import is_jsonl
    from repflow.tasks.retrieval import MATCHES

    if config.task not in NAMES and not is_jsonl(config.task):
        raise InputError(f"unknown task {config.task!r}; {nearest(config.task, [*NAMES, OWN])}")
    if config.bos not in ("model", "always", "never"):
        raise InputError(teach("--bos model, always or never", repr(config.bos), "see repflow measure --help"))
    if config.text and config.task != "text":
        raise InputError(
            teach("--task text with --text", f"--task {config.task}", "pass --task text or leave --text out")
        )
    match = getattr(config, "match", "text")
    if match not in MATCHES:
        raise InputError(teach(f"--match {', '.join(MATCHES)}", repr(match), nearest(match, MATCHES)))
    task_options(config).check()
    for name in _given(config):
        if (kind := _kind(config.task)) not in takers(name):
            option = f"--{name.replace('_', '-')}"
            expected = f"--task {' or '.join(takers(name))} with {option}"
            raise InputError(teach(expected, f"--task {kind}", f"leave {option} out"))


def check_prompting(config: Any) -> None:
    """Refuse wrong sizes, tasks and files: all that a config says of prompts, by its words alone."""
    from repflow.tasks.make import check_size

    check_size(config.length, config.samples)
    check_task(config)
    check_files(*config.text, *own_file(config.task))


def only_fitting(config: C) -> C:
    """The config without the options that mean nothing to its task, for a grid over several tasks."""
    from repflow.tasks import TaskOptions

    request: Any = config
    if not hasattr(request, "task"):
        return config
    task, plain = str(request.task), TaskOptions()
    away = {name: getattr(plain, name) for name in _given(config) if _kind(task) not in takers(name)}
    if task != "text" and request.text:
        away["text"] = []
    fitting: C = replace(request, **away)
    return fitting


def _kind(task: str) -> str:
    return task if task in NAMES else OWN


def _given(config: Any) -> list[str]:
    """Options of single tasks that are not at their defaults."""
    from repflow.tasks import TaskOptions

    plain = TaskOptions()
    return [name for name in OPTIONS if getattr(config, name, getattr(plain, name)) != getattr(plain, name)]


@timed("prompts")
def make_prompts(config: PromptConfig, model: Model, task: Task | None = None) -> Prompts:
    """Make the prompts the config names, for this model's tokenizer.

    Args:
        config: what to make; `match` and `match_with` name the other models whose tokenizers the prompts must fit.
        model: the model that will read them.
        task: a Task object, instead of `config.task`.
    """
    from repflow.tasks import Encoder, english_prompts, file_prompts, make_task
    from repflow.tasks.prompt import note_unknown

    if task is None:
        check_task(config)
        if config.task in DRAWN:
            return drawn_prompts(config, [model])
        if built_in(config) and model.tokenizer is None:
            return drawn_prompts(readable(config, model), [model])
    encoder = Encoder(model.tokenizer, config.bos, model.bos_token_id, limit=model.max_length)
    if task is None and built_in(config):
        prompts = english_prompts(encoder, length=config.length, samples=config.samples, seed=config.seed)
    elif task is None and config.task == "text":
        prompts = file_prompts(config.text, encoder, length=config.length, samples=config.samples)
    else:
        chosen = make_task(config.task, task_options(config)) if task is None else task
        prompts = task_prompts(chosen, encoder, config)
    return note_unknown(prompts, model.tokenizer)


def built_in(config: Any) -> bool:
    """Whether the built-in text is asked for: the task text without files."""
    return bool(config.task == "text" and not config.text)


def readable(config: C, *models: Model) -> C:
    """The config, with random ids for the built-in text where a model has no tokenizer to read it.

    Args:
        config: of a study; one without prompts stays as it is.
        models: loaded; without them the names of files decide (`lacks_tokenizer`).

    Raises:
        InputError: the built-in text was asked for by name (`Typed`).
    """
    request: Any = config
    if not hasattr(request, "task") or not hasattr(request, "text") or not built_in(request):
        return config
    if models:
        lacking = any(model.tokenizer is None for model in models)
    else:
        lacking = lacks_tokenizer(spec_of(request), getattr(request, "tokenizer", None))
    if lacking and isinstance(request.task, Typed):
        names = " and ".join(model.name for model in models if model.tokenizer is None) or spec_of(request)
        remedy = "pass --tokenizer FOLDER, or --task random"
        raise InputError(teach("a tokenizer to read --task text with", f"{names}, which has none", remedy))
    changed: C = replace(request, task="random") if lacking else config
    return changed


def spec_of(request: Any) -> str:
    """The model that a request names, the first of two."""
    return str(getattr(request, "model", "") or getattr(request, "model_a", ""))


def drawn_prompts(config: PromptConfig, models: Sequence[Model], vocabulary: int | None = None) -> Prompts:
    """Prompts of a task that draws token ids, the same for all models."""
    from repflow.tasks.english import note_random

    row, first, options = task_row(config.task), models[0], task_options(config)
    assert row is not None
    own = {name: getattr(options, name) for name in row.options}
    mark, behind = first.class_token, _recalled_behind(models) if config.task == "recall" else 0
    prompts: Prompts = part_of(row.drawer)(
        (first.vocab_size if vocabulary is None else vocabulary) - behind,
        length=config.length - (mark is not None),
        samples=config.samples,
        seed=config.seed,
        tokenizer=first.tokenizer,
        bos="never" if behind else config.bos,  # nothing stood before such rows in training
        bos_id=first.bos_token_id,
        without=[number - behind for number in padding_ids(*models) if number >= behind],
        **own,
    )
    if behind:
        prompts = _moved(prompts, behind)
    if mark is not None:
        prompts = _with_class_token(prompts, *mark)
    return note_random(prompts, _misled(models)) if config.task == "random" else prompts


def _recalled_behind(models: Sequence[Model]) -> int:
    """First id of keys and values: models that were trained on texts too have them behind those of the text."""
    firsts = {model.name: model.recall_first for model in models}
    if len(set(firsts.values())) > 1:
        got = ", ".join(f"{first} of {name}" for name, first in firsts.items())
        remedy = "read them one by one, or choose models of one laboratory"
        raise InputError(teach("models whose ids for recall begin at the same number", got, remedy))
    return next(iter(firsts.values()))


def _moved(prompts: Prompts, first: int) -> Prompts:
    """Prompts whose ids are counted from another first one; a text's tokens are not among them."""
    samples = []
    for prompt in prompts:
        ids = tuple(number + first for number in prompt.ids)
        key = None if prompt.key is None else str(int(prompt.key) + first)
        samples.append(replace(prompt, ids=ids, tokens=tuple(map(str, ids)), key=key))
    return replace(prompts, samples=tuple(samples))


def _with_class_token(prompts: Prompts, token: int, place_among: Callable[[int], int]) -> Prompts:
    """Prompts with the token from whose state a classifier reads the class, where it was trained to have it."""
    samples = []
    for prompt in prompts:
        at = place_among(len(prompt.ids))
        ids = (*prompt.ids[:at], token, *prompt.ids[at:])
        samples.append(replace(prompt, ids=ids, tokens=(*prompt.tokens[:at], "class", *prompt.tokens[at:])))
    return replace(prompts, samples=tuple(samples))


def _misled(models: Sequence[Model]) -> list[str]:
    """Models to which random ids are noise, and that could not have read anything else."""
    return [model.name for model in models if model.tokenizer is None and model.init == "trained"]


def padding_ids(*models: Model) -> list[int]:
    """Ids that random prompts leave out."""
    marks = {model.class_token[0] for model in models if model.class_token is not None}
    return sorted({model.padding_id for model in models if model.padding_id is not None} | marks)


@timed("prompts")
def given_task(task: Any, config: PromptConfig, model: Model, options: Collection[str] = ()) -> Prompts:
    """Prompts from what is given as a task in Python: a Task, ready Prompts, texts or token ids.

    Args:
        task: one of these.
        config: of the study.
        model: the model that will read them.
        options: names of the options in the call. `length` and `samples` cut texts and ids only where they were given:
            by default all of them are read, whole.
    """
    from repflow.capture.given import given_prompts
    from repflow.tasks import Prompts, Task

    if options_set := _given(config):
        expected = f"the name of a task with {options_set[0]}"
        remedy = f"pass {', '.join(map(repr, MADE))} or a file, or leave it out"
        raise InputError(teach(expected, type(task).__name__, remedy))
    sizes = [name for name in ("length", "samples") if name in options]
    if isinstance(task, Prompts):
        have = {"length": max(task.lengths, default=0), "samples": len(task)}
        if against := [name for name in sizes if getattr(config, name) != have[name]]:
            expected = f"a task, texts or token ids with {against[0]} {getattr(config, against[0])}"
            got = f"ready Prompts with {have[against[0]]}"
            raise InputError(teach(expected, got, f"leave {against[0]} out, or make the prompts with it"))
        return task
    if isinstance(task, Task):
        return make_prompts(config, model, task)
    return given_prompts(model, task, bos=config.bos, **{name: getattr(config, name) for name in sizes})


def task_prompts(task: Task, encoder: Encoder, config: PromptConfig) -> Prompts:
    """Prompts of a task for one encoder, matched with the tokenizers of the models in `match_with`."""
    from repflow.tasks import Prompts, matched_prompts

    match = getattr(config, "match", "text")
    others = getattr(config, "match_with", []) if match != "tokens" else []
    encoders = [encoder, *other_encoders(others, config)]
    size = {"length": config.length, "samples": config.samples, "seed": config.seed}
    if len(encoders) > 1:
        prompts = matched_prompts(task, encoders, **size, match=match)[0]
    else:
        prompts = task.prompts(encoder, **size)
    if not isinstance(prompts, Prompts):
        expected = f"Prompts from the task {task.name}"
        raise InputError(teach(expected, type(prompts).__name__, "return repflow.tasks.Prompts"))
    return prompts


def matched_models(models: Sequence[str], config: Any) -> list[str]:
    """What `match_with` is when these models are measured together: all of them, unless each fills its own tokens."""
    if config.task not in MADE or config.match == "tokens":
        return list(config.match_with)
    return sorted({*models, *config.match_with})


def other_encoders(models: Sequence[str], config: Any) -> list[Encoder]:
    """Encoders of models by their specs, without weights; one that has none is left out, loading it will say why."""
    from repflow.models.spec_tokenizer import spec_tokenizer
    from repflow.tasks import Encoder

    encoders = []
    for spec in models:
        tokenizer, bos_id = spec_tokenizer(
            spec,
            getattr(config, "tokenizer", None),
            trust_remote_code=getattr(config, "trust_remote_code", False),
        )
        if tokenizer is not None:
            encoders.append(Encoder(tokenizer, config.bos, bos_id))
    return encoders


def prompt_facts(prompts: Prompts) -> dict[str, Any] | None:
    """What a Result says of the task: items, classes, and per prompt its label and the gold item's position."""
    if all(prompt.label is None and prompt.items is None for prompt in prompts):
        return None
    return {
        "items": prompts[0].items,
        "classes": list(prompts.classes),
        "labels": [prompt.label for prompt in prompts],
        "gold_positions": [prompt.position for prompt in prompts],
    }


def own_file(task: str) -> list[str]:
    """File that a task's name is, if it is one."""
    from repflow.tasks.lines import is_jsonl

    return [str(Path(task))] if is_jsonl(task) else []
