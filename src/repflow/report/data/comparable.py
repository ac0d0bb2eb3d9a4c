"""Which runs may stand in one chart: equal task, length, kind of state, prompts and number format.

Models of different tokenizers read different token ids of the same text; that counts as the same prompts where the runs
were asked for together (`--match text`) and the texts that they kept are equal. Whatever else differs is drawn apart,
with a menu to choose between the sets, and named in the page's warnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from repflow.report.data.runs import StoredRun

REQUEST = (
    *("task", "text", "length", "samples", "seed", "format", "index", "classes", "items", "documents", "distractors"),
    *("chat_template", "match", "match_with", "seeds", "seeds_vary", "label", "position"),
)
"""Fields of a request that decide what is read."""
MIXED = "mixed"
ONE_SET = "the same for all"
NAMED = 3
"""Models that a set's name lists; more are counted."""


@dataclass(frozen=True)
class Group:
    """Runs that may be drawn together, one per model.

    Attributes:
        task: what they read.
        length: tokens per prompt.
        states: kind of state, `mixed` for several.
        part: name of the set of prompts where a task, length and kind has several, else "".
        runs: by order of the page.
        note: what differs between them, where that was allowed.
    """

    task: str
    length: str
    states: str
    part: str = ""
    runs: list[StoredRun] = field(default_factory=list)
    note: str = ""

    @property
    def when(self) -> dict[str, str]:
        """Controls of the group."""
        controls = {"task": self.task, "length": self.length, "states": self.states}
        return controls | ({"prompts": self.part} if self.part else {})


def difference(one: StoredRun, other: StoredRun) -> str:
    """Why two runs of a task, length and kind of state do not compare directly, "" where they do."""
    if one.dtype != other.dtype:
        return f"ran in {one.dtype or 'an unknown format'} and {other.dtype or 'an unknown format'}"
    digests = [run.result.provenance.get("digests", {}).get("prompts") for run in (one, other)]
    if digests[0] == digests[1] and digests[0] is not None:
        return ""
    return "" if _same_text(one, other) else "read different prompts"


def _same_text(one: StoredRun, other: StoredRun) -> bool:
    """Whether the token sequences differ by the tokenizer alone."""
    configs = [run.result.config for run in (one, other)]
    if any(configs[0].get(name) != configs[1].get(name) for name in REQUEST):
        return False
    together = configs[0].get("match") == "text" and {run.facts.get("spec") for run in (one, other)} <= set(
        configs[0].get("match_with") or []
    )
    texts = [[entry.get("text") for entry in run.result.provenance.get("kept", [])] for run in (one, other)]
    if texts[0] and texts[1]:
        return together and texts[0] == texts[1] and None not in texts[0]
    return together


def group_runs(runs: Iterable[StoredRun], *, allow_mixed: bool = False) -> list[Group]:
    """Runs in sets that may be drawn together: residual states first, then most models, then long prompts.

    The first set is what every figure opens with, and what the page's first sentence and cards speak of.

    Args:
        runs: of one study.
        allow_mixed: also draw together what differs in prompts or number format, and kinds of state of models that
            have none in common.
    """
    conditions: dict[tuple[str, str, str], list[StoredRun]] = {}
    for run in runs:
        conditions.setdefault((task_name(run), run.length, run.states), []).append(run)
    groups = []
    for (task, length, states), mine in conditions.items():
        sets = [mine] if allow_mixed else _sets(mine)
        for place, members in enumerate(sets, 1):
            part = _set_name(place, members) if len(sets) > 1 else ""
            note = _mixed_note(members) if allow_mixed else ""
            groups.append(Group(task, length, states, part, _one_per_model(members), note))
    if allow_mixed:
        groups += _mixed_kinds(conditions)
    if any(group.part for group in groups):  # a menu that only some variants know would show what does not hold
        groups = [group if group.part else replace(group, part=ONE_SET) for group in groups]
    return sorted(groups, key=_rank)


def _rank(group: Group) -> tuple[bool, int, int]:
    return group.states != "residual", -len(group.runs), -int(group.length) if group.length.isdigit() else 0


def basis(runs: Iterable[StoredRun], *, states: bool = True) -> str:
    """What the numbers of some runs rest on: tasks, lengths, prompts and, where asked, kinds of state."""
    own = list(runs)
    tasks = [name for name in dict.fromkeys(map(task_name, own)) if name]
    lengths = sorted({int(run.length) for run in own if run.length.isdigit()})
    counts = sorted({int(run.result.config["samples"]) for run in own if run.result.config.get("samples")})
    parts = [" and ".join(tasks)] if tasks else []
    parts += [f"{_span(lengths)} token{'' if lengths == [1] else 's'}"] if lengths else []
    parts += [f"{_span(counts)} prompt{'' if counts == [1] else 's'}"] if counts else []
    if states and tasks:
        parts.append(" and ".join(dict.fromkeys(run.states for run in own)) + " states")
    return ", ".join(parts)


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"


def task_name(run: StoredRun) -> str:
    """Task without the folder of a file."""
    return Path(run.task).name if run.task else ""


def _sets(runs: Sequence[StoredRun]) -> list[list[StoredRun]]:
    sets: list[list[StoredRun]] = []
    for run in runs:
        home = next((members for members in sets if not difference(members[0], run)), None)
        if home is None:
            sets.append([run])
        else:
            home.append(run)
    return sets


def largest_sets(runs: Iterable[StoredRun]) -> tuple[list[StoredRun], list[StoredRun]]:
    """Of every study, task, length, kind of state and label the runs that compare directly, and those left out.

    Where prompts or number formats differ, the set with most models is taken, the first one of equals.
    """
    conditions: dict[tuple[str, ...], list[StoredRun]] = {}
    for run in runs:
        label = str(run.result.config.get("label", ""))
        conditions.setdefault((run.study, task_name(run), run.length, run.states, label), []).append(run)
    chosen: list[StoredRun] = []
    left: list[StoredRun] = []
    for mine in conditions.values():
        sets = _sets(mine)
        best = max(sets, key=lambda members: len({run.label for run in members}))
        chosen += best
        left += [run for members in sets if members is not best for run in members]
    return chosen, left


def _one_per_model(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The run with most metrics of every model."""
    best: dict[str, StoredRun] = {}
    for run in runs:
        if run.label not in best or len(run.result) > len(best[run.label].result):
            best[run.label] = run
    return list(best.values())


def _set_name(place: int, runs: Sequence[StoredRun]) -> str:
    return f"set {place}: {models_of(runs)}"


def models_of(runs: Iterable[StoredRun]) -> str:
    """Labels of models in words; many are counted."""
    labels = list(dict.fromkeys(run.label for run in runs))
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    return ", ".join(labels[:NAMED]) + more


def _mixed_note(runs: Sequence[StoredRun]) -> str:
    reasons = dict.fromkeys(
        f"{run.label} and {runs[0].label} {reason}" for run in runs[1:] if (reason := difference(runs[0], run))
    )
    return "Drawn together as asked, although " + "; ".join(reasons) + "." if reasons else ""


def _mixed_kinds(conditions: dict[tuple[str, str, str], list[StoredRun]]) -> list[Group]:
    """One more set per task and length where two models have no kind of state in common."""
    groups = []
    for task, length in dict.fromkeys((task, length) for task, length, _ in conditions):
        kinds = _kinds_by_model(conditions, task, length)
        if not _apart(kinds):
            continue
        mine = [run for (t, n, _), runs in conditions.items() if (t, n) == (task, length) for run in runs]
        ordered = sorted(mine, key=lambda run: run.states != "residual")
        best = {run.label: run for run in reversed(ordered)}
        chosen = [best[label] for label in kinds]
        listed = "; ".join(f"{run.label}: {run.states}" for run in chosen)
        note = f"Drawn together as asked, although the kinds of state differ: {listed}."
        groups.append(Group(task, length, MIXED, "", chosen, note))
    return groups


def _kinds_by_model(
    conditions: dict[tuple[str, str, str], list[StoredRun]], task: str, length: str
) -> dict[str, set[str]]:
    kinds: dict[str, set[str]] = {}
    for (its_task, its_length, states), runs in conditions.items():
        if (its_task, its_length) == (task, length):
            for run in runs:
                kinds.setdefault(run.label, set()).add(states)
    return kinds


def _apart(kinds: dict[str, set[str]]) -> list[tuple[str, str]]:
    labels = list(kinds)
    return [(a, b) for i, a in enumerate(labels) for b in labels[i + 1 :] if not kinds[a] & kinds[b]]


def comparison_warnings(runs: Sequence[StoredRun], *, allow_mixed: bool = False) -> list[str]:
    """A sentence for every condition whose runs do not compare directly."""
    sentences = []
    conditions: dict[tuple[str, str, str], list[StoredRun]] = {}
    for run in runs:
        conditions.setdefault((task_name(run), run.length, run.states), []).append(run)
    end = "they are drawn together as asked" if allow_mixed else "they are not drawn together (--allow-mixed does)"
    for (task, length, states), mine in conditions.items():
        sets = _sets(mine)
        for members in sets[1:]:
            why = difference(sets[0][0], members[0])
            sentences.append(
                f"{task}, {length} tokens, {states} states: {models_of(sets[0])} ({sets[0][0].name}) and "
                f"{models_of(members)} ({members[0].name}) {why}; {end}"
            )
    for task, length in dict.fromkeys((task, length) for task, length, _ in conditions):
        kinds = _kinds_by_model(conditions, task, length)
        for a, b in _apart(kinds)[:NAMED]:
            sentences.append(
                f"{task}, {length} tokens: {a} has {', '.join(sorted(kinds[a]))} states and {b} "
                f"{', '.join(sorted(kinds[b]))} states; {end}"
            )
    return sentences
