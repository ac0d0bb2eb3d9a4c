"""Prompts of a user's own: a JSONL file with one object per line.

    {"prompt": "... Answer:", "label": "Paris", "group": "q17", "position": 0.25, "answers": ["Paris"]}

Only `prompt` is needed to measure. A probe needs a `label` too, a string or a whole number. `group` keeps prompts
together in a split, as equal prompts are anyway, and those with the same `key` where no group is given. `position` is
that of the gold item from 0 to 1, `answers` (a string or a list) is what a right answer contains, `key` what was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, teach
from repflow.tasks.chat import ChatEncoder
from repflow.tasks.lines import json_lines, string_of, strings_of
from repflow.tasks.make import check_size
from repflow.tasks.prompt import Encoder, Prompts


@dataclass(frozen=True)
class Line:
    """One prompt of the file.

    Attributes:
        where: file and number of the line.
        prompt: text.
        label: class, as written.
        known: the other fields of `Prompt`.
    """

    where: str
    prompt: str
    label: str | int | None
    known: dict[str, Any]


@dataclass(frozen=True)
class OwnTask:
    """Prompts of a file.

    Attributes:
        file: the file.
        chat_template: put each prompt into the tokenizer's chat template.
    """

    file: str
    chat_template: bool = False

    @property
    def name(self) -> str:
        """Name of the file."""
        return Path(self.file).name

    def prompts(self, encoder: Encoder, *, length: int, samples: int, seed: int) -> Prompts:
        """The first prompts of the file, whatever the seed."""
        return jsonl_prompts(self.file, encoder, length=length, samples=samples, chat_template=self.chat_template)


def jsonl_prompts(
    file: str | Path, encoder: Encoder, *, length: int | None, samples: int | None, chat_template: bool = False
) -> Prompts:
    """Prompts of a user's own: one JSON object per line with a `prompt`.

    A prompt without a label is cut to `length` tokens. One with a label must fit: cut, it would lose its question.
    """
    check_size(2 if length is None else length, 1 if samples is None else samples)
    lines = read_own(file)
    lines = lines if samples is None else lines[:samples]
    classes = _classes(lines)
    used = ChatEncoder(encoder) if chat_template else encoder
    prompts = []
    for line in lines:
        ids = used.ids(line.prompt)
        if length is not None and len(ids) > (room := length - len(used.prefix)):
            if line.label is not None:
                need = len(ids) + len(used.prefix)
                expected = f"at most {length} tokens in a prompt with a label"
                raise InputError(teach(expected, f"{need} in {line.where}", f"pass --length {need} or shorten it"))
            ids = ids[:room]
        label = None if line.label is None else classes.index(line.label)
        prompts.append(replace(used.prompt(ids, used.render(line.prompt)), label=label, **line.known))
    return Prompts(Path(file).name, tuple(prompts), tuple(map(str, classes)))


def read_own(file: str | Path) -> list[Line]:
    """Read and check every line of a file."""
    lines = [_line(where, entry) for where, entry in json_lines(file)]
    without = [line for line in lines if line.label is None]
    if without and len(without) < len(lines):
        expected = "a 'label' on every line or on none"
        raise InputError(teach(expected, f"none on {without[0].where}", "add it, or drop the line"))
    kinds = {type(line.label) for line in lines}
    if len(kinds) > 1:
        odd = next(line for line in lines if type(line.label) is not type(lines[0].label))
        expected = "labels of one kind, all strings or all whole numbers"
        raise InputError(teach(expected, f"{odd.label!r} on {odd.where}", "write them all in one kind"))
    return lines


def _line(where: str, entry: dict[str, Any]) -> Line:
    known: dict[str, Any] = {}
    for name in ("group", "key"):
        if entry.get(name) is not None:
            if isinstance(entry[name], bool) or not isinstance(entry[name], (str, int)):
                raise InputError(f"{where}: expected a string {name!r}; got {entry[name]!r:.80}; correct the line")
            known[name] = str(entry[name])
    for name in ("answers", "answer"):
        if entry.get(name) is not None:
            known["answers"] = strings_of(entry, name, where)
            break
    if (position := entry.get("position")) is not None:
        if isinstance(position, bool) or not isinstance(position, (int, float)) or not 0 <= position <= 1:
            raise InputError(f"{where}: expected a 'position' from 0 to 1; got {position!r:.80}; correct the line")
        known["position"] = float(position)
    label = entry.get("label")
    if label is not None and (isinstance(label, bool) or not isinstance(label, (str, int))):
        raise InputError(f"{where}: expected a string or whole number 'label'; got {label!r:.80}; correct the line")
    return Line(where, string_of(entry, "prompt", where), label, known)


def _classes(lines: Sequence[Line]) -> list[Any]:
    """Labels that occur, in order."""
    return sorted({line.label for line in lines if line.label is not None})
