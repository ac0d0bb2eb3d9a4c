"""Tasks with something to find: kvpr, mdqa, and prompts of a user's own; one prompt list per model, matched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from repflow.core.errors import InputError, nearest, teach
from repflow.core.results import Finding
from repflow.core.tasks import MADE, part_of, task_row
from repflow.tasks.chat import ChatEncoder
from repflow.tasks.fit import Draft, Drafts, Fitted, Fitting
from repflow.tasks.gold import Gold
from repflow.tasks.key_value import FORMATS, HEXADECIMAL, KeyValueDrafts
from repflow.tasks.lines import is_jsonl
from repflow.tasks.make import check_size
from repflow.tasks.own import OwnTask
from repflow.tasks.prompt import Encoder, Prompt, Prompts

RETRIEVAL = MADE
DISTRACTORS = ("bm25", "random")
LABELS = ("index", "answer")
MATCHES = ("text", "items", "tokens")


@dataclass(frozen=True)
class TaskOptions:
    """Options of a task.

    Attributes:
        format: template of kvpr, `liu2024` (valid JSON) or `paper`.
        index: index of the gold item from 0; None sweeps it, balanced.
        classes: bins of the gold item's relative position; None makes every index a class.
        items: pairs or documents per prompt; None takes as many as fit.
        documents: JSONL file of questions and passages for mdqa; None takes made-up facts.
        distractors: `bm25` (passages most like the question) or `random`.
        chat_template: put each prompt into the tokenizer's chat template.
        label: what a probe reads, the gold item's `index` or the first symbol of the `answer`.
    """

    format: str = "liu2024"
    index: int | None = None
    classes: int | None = None
    items: int | None = None
    documents: str | None = None
    distractors: str = "bm25"
    chat_template: bool = False
    label: str = "index"

    def check(self) -> None:
        """Refuse words that mean nothing."""
        words = (("format", FORMATS), ("distractors", DISTRACTORS), ("label", LABELS))
        for name, known in words:
            if (value := getattr(self, name)) not in known:
                raise InputError(teach(f"--{name} {' or '.join(known)}", repr(value), nearest(str(value), known)))
        if self.index is not None and self.index < 0:
            raise InputError(teach("an index of 0 or more", str(self.index), "indices count from 0"))
        if self.classes is not None and self.classes < 2:
            raise InputError(teach("--classes of at least 2", str(self.classes), "leave it out for one per index"))
        if self.documents is not None and not Path(self.documents).is_file():
            raise InputError(f"cannot read {self.documents}: no such file; check the path")


@runtime_checkable
class Task(Protocol):
    """What makes prompts; anything with these two will do.

    Prompts must depend on the arguments alone, so that a run can be resumed and repeated.
    """

    @property
    def name(self) -> str:
        """Name that results show."""

    def prompts(self, encoder: Encoder, *, length: int, samples: int, seed: int) -> Prompts:
        """Make the prompts of a run for one tokenizer."""


@dataclass(frozen=True)
class RetrievalTask:
    """kvpr or mdqa.

    Attributes:
        name: which of them.
        options: how.
    """

    name: str
    options: TaskOptions

    def prompts(self, encoder: Encoder, *, length: int, samples: int, seed: int) -> Prompts:
        """Prompts of at most `length` tokens, as many items in each as fit into all of them."""
        return self.matched([encoder], length=length, samples=samples, seed=seed)[0]

    def matched(self, encoders: Sequence[Encoder], *, length: int, samples: int, seed: int) -> list[Prompts]:
        """Prompts with the same text for several tokenizers, within `length` tokens of each."""
        check_size(length, samples)
        if seed < 0:
            raise InputError(teach("a seed of 0 or more", f"{seed}", "pass --seed 0"))
        self.options.check()
        used = [ChatEncoder(encoder) if self.options.chat_template else encoder for encoder in encoders]
        gold = Gold(seed, self.options.index, self.options.classes)
        drafts = self._drafts(seed, gold)
        fitted = Fitting(drafts, used, length).run(samples, self.options.items)
        gold.check(fitted.items, drafts.unit, length)
        return [self._finish(fitted, gold, number, encoder) for number, encoder in enumerate(used)]

    def _drafts(self, seed: int, gold: Gold) -> Drafts:
        if self.name == "kvpr":
            return KeyValueDrafts(seed, gold, self.options.format)
        from repflow.tasks.multi_document import MultiDocumentDrafts, open_library

        return MultiDocumentDrafts(seed, gold, open_library(self.options.documents, seed, self.options.distractors))

    def _finish(self, fitted: Fitted, gold: Gold, number: int, encoder: Encoder) -> Prompts:
        classes = gold.names(fitted.items) if self.options.label == "index" else self._symbols(fitted.drafts)
        prompts = []
        for draft, ids in zip(fitted.drafts, fitted.ids[number], strict=True):
            if self.options.label == "index":
                label = gold.label(draft.index, fitted.items)
            else:
                label = classes.index(first_symbol(draft.answers[0]))
            bare = encoder.prompt(ids.tolist(), encoder.render(draft.text))
            prompts.append(_labelled(bare, draft, label, fitted.items))
        return Prompts(self.name, tuple(prompts), classes, _untold(fitted.drafts))

    def _symbols(self, drafts: Sequence[Draft]) -> tuple[str, ...]:
        if self.name == "kvpr":
            return HEXADECIMAL
        return tuple(sorted({first_symbol(draft.answers[0]) for draft in drafts}))


def _untold(drafts: Sequence[Draft]) -> tuple[Finding, ...]:
    """Prompts that no reader could answer: a probe still reads the index, but the model's own answers say nothing."""
    count = sum(not draft.answerable for draft in drafts)
    if not count:
        return ()
    text = f"in {count} of {len(drafts)} prompts the gold document contains none of the answers"
    return (Finding("answer_not_in_document", None, f"{text}: they cannot be answered from what they show"),)


def _labelled(prompt: Prompt, draft: Draft, label: int, items: int) -> Prompt:
    return replace(
        prompt,
        label=label,
        answers=draft.answers,
        group=draft.group,
        position=draft.index / (items - 1),
        key=draft.key,
        items=items,
    )


def first_symbol(answer: str) -> str:
    """First letter or digit of an answer, in lower case.

    >>> first_symbol("“Röntgen”"), first_symbol("7f666c61")
    ('r', '7')
    """
    return next((sign for sign in answer.casefold() if sign.isalnum()), answer[:1])


def kvpr(options: TaskOptions) -> RetrievalTask:
    """Pairs of keys and values."""
    return RetrievalTask("kvpr", options)


def mdqa(options: TaskOptions) -> RetrievalTask:
    """A question and documents."""
    return RetrievalTask("mdqa", options)


def make_task(name_or_file: str | Path, options: TaskOptions | None = None) -> Task:
    """Task of a name of the table (`repflow.core.tasks`), or of `FILE.jsonl`.

    >>> make_task("kvpr").name
    'kvpr'
    """
    options = options or TaskOptions()
    options.check()
    name = str(name_or_file)
    row = task_row(name)
    if row is not None and row.maker:
        task: Task = part_of(row.maker)(options)
        return task
    if is_jsonl(name):
        return OwnTask(name, options.chat_template)
    raise InputError(f"unknown task {name!r}; {nearest(name, [*RETRIEVAL, 'FILE.jsonl'])}")


def matched_prompts(
    task: Task, encoders: Sequence[Encoder], *, length: int, samples: int, seed: int, match: str = "text"
) -> list[Prompts]:
    """Prompts of one task for several tokenizers.

    Args:
        task: the task.
        encoders: one per model.
        length: most tokens per prompt, for each tokenizer.
        samples: number of prompts.
        seed: seed of the run.
        match: `text`, the same strings for all (and so the same classes); `items`, the same number of items, each
            prompt cut for its own tokenizer; `tokens`, as many items as each tokenizer allows.

    Returns:
        Prompts per encoder. With a chat template the strings are the same inside it.
    """
    if match not in MATCHES:
        raise InputError(teach(f"--match {', '.join(MATCHES)}", repr(match), nearest(match, MATCHES)))
    size = {"length": length, "samples": samples, "seed": seed}
    different, places = _distinct(encoders)
    if isinstance(task, RetrievalTask) and match != "tokens":
        sets = task.matched(different, **size)
        if match == "items":
            fixed = replace(task, options=replace(task.options, items=sets[0][0].items))
            sets = [fixed.prompts(encoder, **size) for encoder in different]
    else:
        sets = [task.prompts(encoder, **size) for encoder in different]
        if match == "text":
            _check_same_text(task, sets)
    return [sets[place] for place in places]


def _check_same_text(task: Task, sets: Sequence[Prompts]) -> None:
    texts = [[prompt.text for prompt in prompts] for prompts in sets]
    if any(other != texts[0] for other in texts[1:]):
        got = f"texts of the task {task.name} that depend on the tokenizer"
        raise InputError(teach("the same text for all models", got, "pass --match tokens"))


def _distinct(encoders: Sequence[Encoder]) -> tuple[list[Encoder], list[int]]:
    """Encoders that differ, and for each given one its place among them: models of a family share a tokenizer."""
    distinct: list[Encoder] = []
    prints: list[tuple[object, ...]] = []
    places = []
    for encoder in encoders:
        mark = encoder.fingerprint()
        if mark not in prints:
            prints.append(mark)
            distinct.append(encoder)
        places.append(prints.index(mark))
    return distinct, places
