"""check_task: the tasks of the table pass it, and each broken promise is named."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from repflow.core import tasks as table
from repflow.core.errors import InputError
from repflow.core.tasks import MADE, TaskRow
from repflow.tasks import Prompts, check_task, make_task
from repflow.tasks.make import check_size

CHECKS = ("prompts", "length", "tokens", "labels", "facts", "repeated", "refusals")


class Count:
    """Prompts that count, and faults that can be asked for."""

    name = "count"

    def __init__(self, fault=""):
        self.fault = fault

    def prompts(self, encoder, *, length, samples, seed):
        if self.fault == "crashes" and length < 2:
            raise KeyError(length)
        if self.fault != "takes anything":
            check_size(length, samples)
        made = tuple(self.one(encoder, number, length, seed) for number in range(samples))
        if self.fault == "a list":
            return list(made)
        if self.fault == "too many":
            made = (*made, made[0])
        if self.fault == "some labels":
            made = (replace(made[0], label=None), *made[1:])
        classes = ("even", "even" if self.fault == "alike" else "odd")
        return Prompts("other" if self.fault == "another name" else self.name, made, classes)

    def one(self, encoder, number, length, seed):
        draws = {"global draws": random.randrange, "numpy's draws": np.random.randint}
        start = draws[self.fault](100) if self.fault in draws else seed
        text = " ".join(str(start + number + step) for step in range(4)) * (length if self.fault == "too long" else 1)
        prompt = encoder.prompt(encoder.ids(text[1:] if self.fault == "other ids" else text), text)
        changes = {
            "no such class": {"label": 2},
            "empty answer": {"answers": ("",)},
            "far position": {"position": 1.5},
        }
        return replace(prompt, **{"label": number % 2, "answers": ("yes",), **changes.get(self.fault, {})})


def test_a_sound_one_passes():
    report = check_task(Count())
    assert report.checks == CHECKS
    assert (report.labelled, report.seeded, report.same_text) == (True, True, True)
    assert str(report).startswith("count: 7 checks passed (prompts, ")


@pytest.mark.parametrize("name", MADE)
def test_tasks_of_the_table_pass(name):
    report = check_task(name)
    assert report.checks == (*CHECKS, "row")
    assert report.labelled
    assert report.seeded
    assert report.same_text


def test_a_file_passes_and_does_not_vary(tmp_path):
    lines = [json.dumps({"prompt": f"The {word} one. Colour:", "label": word}) for word in ("red", "blue", "green")]
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    report = check_task(make_task(tmp_path / "own.jsonl"))
    assert report.checks == CHECKS
    assert not report.seeded


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("a list", r"expected Prompts \(check 'prompts' of count\); got list"),
        ("another name", r"Prompts of its own name.*got 'other'"),
        ("too many", r"1 to 6 prompts where 6 are asked for.*got 7"),
        ("too long", r"2 to 2000 tokens in each prompt \(check 'length' of count\)"),
        ("other ids", r"the ids of the text \(check 'tokens' of count\); got others in sample 0"),
        ("some labels", r"a label on every prompt \(check 'labels' of count\); got 2 classes, and 1 of 6"),
        ("alike", r"classes with different names \(check 'labels'"),
        ("no such class", r"labels from 0 to 1 \(check 'labels' of count\); got 2 in sample 0"),
        ("empty answer", r"answers that are words \(check 'facts'"),
        ("far position", r"a position from 0 to 1 \(check 'facts' of count\); got 1.5"),
        ("global draws", r"the same prompts when called again \(check 'repeated'"),
        ("numpy's draws", r"the same prompts when called again \(check 'repeated'"),
        ("takes anything", r"an InputError for length=1 \(check 'refusals' of count\); got prompts"),
        ("crashes", r"an InputError for length=1 .*got KeyError"),
    ],
)
def test_faults_are_named(fault, message):
    with pytest.raises(InputError, match=message):
        check_task(Count(fault))


def test_one_prompt_is_too_few():
    with pytest.raises(InputError, match="at least 2 prompts to check a task; got 1"):
        check_task(Count(), samples=1)


def made(options):
    return Count()


MAKER = f"{__name__}:made"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            TaskRow("count", f"{__name__}:made"),
            r"check 'row' of count.*prompts with labels; write labelled=True",
        ),
        (
            TaskRow("count", f"{__name__}:made", options=("form",), labelled=True),
            r"options among format.*check 'row' of count.*got form",
        ),
    ],
)
def test_the_row_is_held(row, message, monkeypatch):
    monkeypatch.setattr(table, "TASKS", (*table.TASKS, row))
    with pytest.raises(InputError, match=message):
        check_task("count")


def test_random_state_is_left_alone():
    np.random.seed(3)  # numpy's alone: the test run's own type checks draw from Python's
    expected = np.random.random()
    np.random.seed(3)
    check_task(Count())
    assert np.random.random() == expected
