"""Prompts that must not part, classes too small to split, and the token that the control task maps."""

import json
from dataclasses import replace

import numpy as np
import pytest

import repflow
from repflow.core.errors import InputError
from repflow.probes import three_way_split
from repflow.studies.probe.classes import rare_classes
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.probe.groups import Groups
from repflow.studies.probe.part import key_tokens
from repflow.studies.probe.prompts import given_seed_prompts
from repflow.studies.probe.side import make_splits
from repflow.tasks import Prompt, Prompts
from tests.studies.probe.inputs import PlantedModel, planted_prompts, reader

SMALL = {"seeds": 2, "lens": 0, "answers": 0, "controls": ["none"], "recipes": ["robust"]}


def twice(prompts, **change):
    """Every prompt two times, the second one behind all others."""
    both = [replace(p, **change) for p in prompts] * 2
    return Prompts("twice", tuple(both), prompts.classes)


def assert_together(splits, key):
    for split in splits:
        parts = [{key(row) for row in rows} for rows in (split.train, split.valid, split.test)]
        assert sum(map(len, parts)) == len(set.union(*parts))


@pytest.mark.parametrize("group", [None, "own"])
def test_equal_prompts_never_part(group):
    changed_copy = twice(planted_prompts(60), group=None, key=None)
    if group == "own":  # each line a group of its own, as a running number gives
        changed_copy = replace(
            changed_copy, samples=tuple(replace(p, group=str(i)) for i, p in enumerate(changed_copy))
        )
    splits = make_splits(ProbeConfig(seeds=3), given_seed_prompts(changed_copy, 3), PlantedModel())
    assert splits.repeated == 60
    assert_together(splits.splits, lambda row: changed_copy[int(row)].ids)
    assert splits.groups == [*range(60), *range(60)]


def test_repeated_prompts_of_a_file_are_counted(tmp_path):
    rng = np.random.default_rng(0)
    lines = [{"prompt": f"Key: {rng.integers(10**6)} data {i}", "label": "ab"[i % 2]} for i in range(40)]
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines + lines[:8]))
    result = repflow.probe(reader("mamba2"), file, **SMALL, length=60, samples=48, allow_leak=True)
    (finding,) = [f for f in result.findings if f.code == "repeated_prompts"]
    assert finding.message.startswith("8 of 48 prompts repeat another one")
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = repflow.probe(reader("mamba2"), file, **SMALL, length=60, samples=40, allow_leak=True)
    assert "repeated_prompts" not in [f.code for f in result.findings]


def test_keys_stand_in_for_groups_that_are_not_given():
    prompts = [Prompt((i, 1), key=f"k{i % 30}", label=i % 2) for i in range(60)]
    splits = make_splits(ProbeConfig(), given_seed_prompts(Prompts("t", tuple(prompts)), 5), PlantedModel())
    assert_together(splits.splits, lambda row: prompts[int(row)].key)
    grouped = Groups()
    grouped.add(Prompts("t", (Prompt((1,), key="k", group="a"), Prompt((2,), key="k", group="b"))))
    assert grouped.parts() == [[0, 1]]


def test_groups_are_joined_through_equal_prompts_and_over_parts():
    """a - b by one prompt, b - c by another one: one group, which the next part's prompts belong to as well."""
    groups = Groups()
    rows = [((1,), "a"), ((1,), "b"), ((2,), "b"), ((2,), "c"), ((3,), "d")]
    groups.add(Prompts("t", tuple(Prompt(ids, group=name) for ids, name in rows)))
    groups.add(Prompts("t", (Prompt((9,), group="c"), Prompt((3,), group=None), Prompt((8,)))))
    assert groups.parts() == [[0, 0, 0, 0, 1], [0, 1, 2]]
    assert groups.repeated == 2


def answer_classes(counts):
    """Prompts of classes a, b, ... as often as said."""
    names = tuple("abcdefgh"[: len(counts)])
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    return Prompts("t", tuple(Prompt((i, 7), label=label) for i, label in enumerate(labels)), names)


def test_classes_too_small_to_split_are_one_class():
    classes = answer_classes([20, 20, 2, 1, 1])
    with pytest.raises(InputError, match="in at least 3 groups"):
        three_way_split([p.label for p in classes], seed=0)
    prompts = given_seed_prompts(classes, 2, join=True)
    assert prompts.classes == ("a", "b", "other")
    assert np.bincount([p.label for p in prompts.part(0)]).tolist() == [20, 20, 4]
    assert [f.message for f in prompts.findings] == [
        "4 prompts of 3 classes in fewer than 3 groups are one class 'other': c, d, e"
    ]
    three_way_split([p.label for p in prompts.part(0)], seed=0)
    assert given_seed_prompts(classes, 2).classes == classes.classes  # only where it was asked for


def test_classes_too_small_even_together_are_left_out():
    prompts = given_seed_prompts(answer_classes([20, 1, 20]), 2, join=True)
    assert prompts.classes == ("a", "c")
    assert prompts.samples == [40] == [len(prompts.part(0))]
    assert np.bincount([p.label for p in prompts.part(0)]).tolist() == [20, 20]
    assert [f.message for f in prompts.findings] == ["1 prompts of 1 classes in fewer than 3 groups were left out: b"]


def test_a_class_that_is_small_for_one_seed_is_joined_for_all():
    assert rare_classes([["a"] * 9 + ["b"] * 9, ["a"] * 9 + ["b"] * 2], [range(18), range(11)]) == {"b": None}
    assert rare_classes([["a"] * 4 + ["b"] * 4], [[0, 1, 2, 3, 4, 4, 5, 5]]) == {"b": None}  # groups count, not prompts


def test_answer_label_of_questions_runs():
    result = repflow.probe(
        reader("mamba2"), "mdqa", **SMALL, samples=30, length=1400, items=2, label="answer", allow_leak=True
    )
    assert "rare_classes" in [f.code for f in result.findings]
    assert result.provenance["probe"]["label"] == "first symbol of the answer"


def test_control_maps_the_first_content_word():
    keys = ["who was the king of spain", "Who is the queen of spain", "which king", "king", "the of"]
    prompts = Prompts("t", tuple(Prompt((i,), key=key) for i, key in enumerate(keys)))
    king, queen, *others, whole = key_tokens(prompts, reader("mamba2"))
    assert others == [king, king]
    assert len({king, queen, whole}) == 3
