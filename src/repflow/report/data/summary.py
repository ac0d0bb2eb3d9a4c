"""What is said first of every model, on a page and in the demo: alike tokens, reach, read-out, answers; in sentences.

Every number comes from a stored run, and every sentence is said only where the runs say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repflow.core.intervals import proportion_interval, share_interval
from repflow.core.readout import ReadOut
from repflow.core.results import Result
from repflow.papers.reading import training_of
from repflow.report.data.comparable import MIXED, basis, group_runs
from repflow.report.data.context import Context, is_twin, measured_runs
from repflow.report.data.interval import Interval, at
from repflow.report.data.labels import Labels, page_models
from repflow.report.data.model import PageModel
from repflow.report.data.probed import answering, probe_runs, probed_label
from repflow.report.data.runs import StoredRun, study_of
from repflow.spec import zoo

SIMILARITY, REACH, ANSWERS = "token_similarity", "half_reach", "answer_correct"
EQUAL = 0.01
"""Relative difference of parameters up to which two models count as equally large."""


def percent(share: float) -> str:
    """A share in words.

    >>> percent(0.2)
    '20 %'
    """
    return f"{100 * share:.0f} %"


def place_words(state: int, last: int, *, branches: bool = False) -> str:
    """A state as a reader new to repflow would say it; branches are numbered by their block.

    >>> place_words(0, 8), place_words(2, 8), place_words(8, 8), place_words(3, 8, branches=True)
    ('at the embedding', 'after block 2 of 8', 'after the last block', 'in block 3 of 8')
    """
    if branches:
        return f"in block {state} of {last}"
    if state == 0:
        return "at the embedding"
    return "after the last block" if state == last else f"after block {state} of {last}"


@dataclass(frozen=True)
class Answers:
    """Share of prompts that a model answers rightly by itself.

    Attributes:
        share: with its interval.
        count: prompts.
        basis: which.
    """

    share: Interval
    count: int
    basis: str


@dataclass(frozen=True)
class Summary:
    """One model with the run that each of its first numbers comes from.

    Attributes:
        model: of the page.
        flow: how alike tokens are.
        probe: what can be read at each depth.
        reach: how far back tokens reach.
        answered: what the model answers itself.
        twin: the flow of random weights on the same prompts.
    """

    model: PageModel
    flow: StoredRun | None = None
    probe: StoredRun | None = None
    reach: StoredRun | None = None
    answered: StoredRun | None = None
    twin: StoredRun | None = None

    @property
    def label(self) -> str:
        """The model's name."""
        return self.model.label

    @property
    def parameters(self) -> int:
        """Number of parameters, 0 where it is not stored."""
        run = self.flow or self.probe or self.reach
        return int(run.facts.get("parameters", 0)) if run else 0

    @property
    def curve(self) -> np.ndarray:
        """Token similarity by state, the mean over prompts; empty where it was not measured or is not finite."""
        return _curve(self.flow)

    def place(self, state: int) -> str:
        """A state of the curve in words."""
        last = len(self.curve) - 1
        own = self.flow.result.provenance.get("branch_layers") if self.flow else None
        if own is not None and len(own) == last + 1:
            return place_words(int(own[state]) + 1, int(own[-1]) + 1, branches=True)
        return place_words(state, last)

    def similarity(self, state: int) -> Interval:
        """Token similarity of one state with its interval over prompts."""
        assert self.flow is not None
        return at(self.flow.result.band(SIMILARITY), state)

    @property
    def peak(self) -> int:
        """State where tokens are most alike."""
        return int(np.nanargmax(self.curve))

    @property
    def low(self) -> int:
        """State where tokens are least alike."""
        return int(np.nanargmin(self.curve))

    @property
    def tokens_back(self) -> Interval | None:
        """Least number of last tokens that hold half of all influence on the last output; None where not measured."""
        if self.reach is None or REACH not in self.reach.result:
            return None
        value = at(self.reach.result.band(REACH))
        return value if np.isfinite(value.value) else None

    @property
    def read(self) -> ReadOut | None:
        """What a probe reads, None where no state could be probed."""
        read_out = ReadOut.of(self.probe.result) if self.probe else None
        return read_out if read_out is not None and read_out.probed else None

    @property
    def answers(self) -> Answers | None:
        """What the model itself answers: in a run, or, of a built-in model, what its card says of the same task."""
        if self.answered is None:
            return _card_answers(self.flow or self.reach)
        values = self.answered.result[ANSWERS]
        known = values[np.isfinite(values)]
        return Answers(at(share_interval(known)), len(known), basis([self.answered], states=False))


def _card_answers(run: StoredRun | None) -> Answers | None:
    """Retrieval of held-out prompts of a run's task and length, as it was measured when a built-in model was made."""
    spec = str(run.facts.get("spec", "")) if run else ""
    if run is None or not zoo.is_zoo(spec) or spec.removeprefix(zoo.PREFIX) not in zoo.available():
        return None
    name = spec.removeprefix(zoo.PREFIX)
    same = run.trained and run.facts.get("training") == training_of(zoo.record(name))._asdict()
    entry = (zoo.record(name, "evaluation").get("retrieval") or {}).get(f"{run.task}-{run.length}")
    if not entry or not same:  # a zoo of one's own, and the run is of another
        return None
    share = at(proportion_interval(entry["exact"], entry["of"]))
    return Answers(share, int(entry["of"]), f"{run.task}, {run.length} tokens, held out (from the models' cards)")


def _curve(run: StoredRun | None) -> np.ndarray:
    if run is None or SIMILARITY not in run.result:
        return np.zeros(0)
    curve = np.asarray(run.result.mean(SIMILARITY), dtype=np.float64)
    return curve if np.isfinite(curve).any() else np.zeros(0)


def summaries(runs: Sequence[StoredRun], context: Context) -> list[Summary]:
    """Every model of the page that has at least one of the numbers."""
    probed = answering(probe_runs(runs))
    flows, probes = _main(measured_runs(runs), context), _first_label(probed, context)
    reaches = _main([run for run in runs if run.study == "recency" and REACH in run.result], context)
    answered = _main([run for run in probed if _has_answers(run)], context)
    entries = [
        Summary(
            model,
            flows.get(model.label),
            probes.get(model.label),
            reaches.get(model.label),
            answered.get(model.label),
            _twin(flows.get(model.label), runs),
        )
        for model in context.models
    ]
    return [entry for entry in entries if entry.flow or entry.probe or entry.reach]


def summaries_of(results: Sequence[Result]) -> list[Summary]:
    """The same of results at hand, such as those of the demo."""
    labels = Labels(results)
    runs = [StoredRun(str(place), labels.of(one)[0], study_of(one), one) for place, one in enumerate(results)]
    own = [run for run in runs if not is_twin(run, runs)]
    return summaries(runs, Context(page_models([(run.label, run.facts) for run in own])))


def _has_answers(run: StoredRun) -> bool:
    return ANSWERS in run.result and bool(np.isfinite(run.result[ANSWERS]).any())


def _first_label(probed: Sequence[StoredRun], context: Context) -> dict[str, StoredRun]:
    """Probes for one label, fixed in advance: the answer, or what was probed for first where none asks for it."""
    labels = dict.fromkeys(probed_label(run) for run in probed)
    return _main([run for run in probed if probed_label(run) == next(iter(labels))], context) if labels else {}


def _main(runs: Sequence[StoredRun], context: Context) -> dict[str, StoredRun]:
    """The run of every model in the set that has most models; residual states and long prompts before others."""
    groups = [group for group in group_runs(runs, allow_mixed=context.allow_mixed) if group.states != MIXED]
    chosen: dict[str, StoredRun] = {}
    for group in groups:
        for run in group.runs:
            chosen.setdefault(run.label, run)
    return chosen


def _twin(flow: StoredRun | None, runs: Sequence[StoredRun]) -> StoredRun | None:
    """The first run of random weights of the same architecture on the same prompts."""
    if flow is None or SIMILARITY not in flow.result:
        return None

    def where(run: StoredRun) -> tuple[object, ...]:
        return run.facts.get("spec"), run.result.provenance.get("digests", {}).get("prompts"), run.states

    alike = (run for run in runs if run.study == "measure" and is_twin(run, runs) and where(run) == where(flow))
    return next((run for run in alike if len(_curve(run))), None)


def order_sentence(entries: Sequence[Summary]) -> str:
    """Two models of the same blocks and size in another order whose answers differ most; "" if none is shown."""
    best: tuple[float, str] = (0.0, "")
    for one in entries:
        for other in entries:
            if one.answers is None or other.answers is None or not _reordered(one, other):
                continue
            good, bad = one.answers.share, other.answers.share
            if good.low > bad.high and good.value - bad.value > best[0]:
                numbers = dict.fromkeys(f"{entry.count}" for entry in (one.answers, other.answers))
                counts = f"{' and '.join(numbers)} prompts"
                text = (
                    f"Order decides: with the same blocks and {_millions(one.parameters)} parameters, {one.label} "
                    f"({_order(one.model.kinds)}) answers {percent(good.value)} of {counts} and {other.label} "
                    f"({_order(other.model.kinds)}) {percent(bad.value)}."
                )
                best = (good.value - bad.value, text)
    return best[1]


def _reordered(one: Summary, other: Summary) -> bool:
    """Whether two models have the same blocks in another order, and as many parameters."""
    kinds = [list(entry.model.kinds) for entry in (one, other)]
    sizes = [entry.parameters for entry in (one, other)]
    alike = max(sizes) > 0 and max(sizes) - min(sizes) <= EQUAL * max(sizes)
    return alike and kinds[0] != kinds[1] and sorted(kinds[0]) == sorted(kinds[1])


def _order(kinds: Sequence[str]) -> str:
    """Where a model's attention lies.

    >>> _order(["ssm", "attention"]), _order(["attention", "ssm"]), _order(["ssm", "attention", "ssm"])
    ('attention last', 'attention first', 'attention in block 2')
    """
    places = [place for place, kind in enumerate(kinds, 1) if "attention" in kind]
    ends = [place in places for place in (1, len(kinds))]
    if ends.count(True) == 1:
        return "attention last" if ends[1] else "attention first"
    return f"attention in block {', '.join(map(str, places))}" if places else "no attention"


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e5 else f"{count:,}"


def similar_entries(entries: Sequence[Summary]) -> list[Summary]:
    """Models whose similarity can be compared: those of the set of prompts that most of them share."""
    return _together([(entry, entry.flow) for entry in entries if entry.flow and len(entry.curve)])


def reaching_entries(entries: Sequence[Summary]) -> list[Summary]:
    """Models whose reach can be compared: prompts of another length bound it otherwise."""
    return _together([(entry, entry.reach) for entry in entries if entry.reach and entry.tokens_back])


def _together(pairs: Sequence[tuple[Summary, StoredRun]]) -> list[Summary]:
    groups = [group for group in group_runs([run for _, run in pairs]) if group.states != MIXED]
    shared = {id(run) for run in groups[0].runs} if groups else set()
    return [entry for entry, run in pairs if id(run) in shared]


def alike_sentence(entries: Sequence[Summary]) -> str:
    """Where tokens become most alike, and where they stay most distinct; of one model, by depth."""
    known = similar_entries(entries)
    if not known:
        return ""
    if len(known) == 1:
        return _alike_alone(known[0])
    most = max(known, key=lambda entry: entry.curve[entry.peak])
    least = min(known, key=lambda entry: entry.curve[entry.peak])
    return (
        f"Tokens become most alike in {most.label} ({most.curve[most.peak]:.2f} {most.place(most.peak)}). They stay "
        f"most distinct in {least.label} (never above {least.curve[least.peak]:.2f})."
    )


def _alike_alone(one: Summary) -> str:
    """One model by depth: first, highest and last."""
    first, last = 0, len(one.curve) - 1
    start, top, end = (f"{one.similarity(state).value:.2f}" for state in (first, one.peak, last))
    begin = f"In {one.label} the tokens of a prompt are {start} alike {one.place(first)}"
    if one.peak == last:
        return f"{begin} and {end} {one.place(last)}, where they are most alike."
    if one.peak == first:
        return f"{begin}, where they are most alike, and {end} {one.place(last)}."
    return f"{begin}, most alike {one.place(one.peak)} ({top}), and {end} alike {one.place(last)}."


def tokens(count: float) -> str:
    """A mean number of tokens: a half counts where there are few.

    >>> tokens(2.5), tokens(2.0), tokens(21.5)
    ('2.5', '2', '22')
    """
    return f"{count:.1f}".removesuffix(".0") if count < 10 else f"{count:.0f}"


FORGETS = 2
"""A model forgets first where another reaches twice as far: less may be luck of a few prompts."""


def reach_sentence(entries: Sequence[Summary]) -> str:
    """Which model looks back least and which most."""
    known = [(value.value, entry) for entry in reaching_entries(entries) if (value := entry.tokens_back)]
    if not known:
        return ""
    (near, nearest), (far, farthest) = (choose(known, key=lambda pair: pair[0]) for choose in (min, max))
    if len(known) == 1:
        back = nearest.tokens_back
        assert back is not None
        between = f" (95 % interval {back.low:.0f} to {back.high:.0f})" if np.isfinite(back.low) else ""
        return f"Half of what moves the last output of {nearest.label} lies in the last {tokens(near)} tokens{between}."
    whose = (
        f"{nearest.label} forgets first: half of what moves its last output"
        if far >= FORGETS * near
        else f"Half of what moves the last output of {nearest.label}"
    )
    return f"{whose} lies in the last {tokens(near)} tokens. In {farthest.label} it lies in the last {tokens(far)}."


def twin_sentence(entries: Sequence[Summary]) -> str:
    """The model whose trained and random weights differ most at the end."""
    pairs = [(entry, _curve(entry.twin)) for entry in entries if len(entry.curve) and entry.twin is not None]
    pairs = [(entry, curve) for entry, curve in pairs if np.isfinite([entry.curve[-1], curve[-1]]).all()]
    if not pairs:
        return ""
    entry, curve = max(pairs, key=lambda pair: abs(pair[0].curve[-1] - pair[1][-1]))
    assert entry.twin is not None
    own, random, init = f"{entry.curve[-1]:.2f}", f"{curve[-1]:.2f}", entry.twin.facts.get("init")
    if own == random:
        return f"Training hardly changes how alike tokens end: {own} in {entry.label}, as with random weights."
    start = f"Training changes most in {entry.label}: its tokens" if len(pairs) > 1 else f"Tokens of {entry.label}"
    return f"{start} end {own} alike. With random weights ({init}) they end {random} alike."


def readout_sentence(entries: Sequence[Summary]) -> str:
    """Where what the task asks for is read best, and where not above chance."""
    known = [(entry, read_out) for entry in entries if (read_out := entry.read)]
    if not known:
        return ""
    best, read_out = max(known, key=lambda pair: (pair[1].decodable, pair[1].accuracy.value - pair[1].chance))
    level = f"accuracy {read_out.accuracy.value:.2f} {chosen_words(read_out)}, chance {read_out.chance:.2f}"
    if not read_out.decodable:
        return f"No probe reads the {read_out.label} above chance ({level})."
    text = f"A linear probe reads the {read_out.label} best in {best.label}: {level}."
    silent = [f"{entry.label} ({own.accuracy.value:.2f})" for entry, own in known if not own.decodable]
    return f"{text} Not above chance: {', '.join(silent)}." if silent else text


def chosen_words(read_out: ReadOut) -> str:
    """Where the reported accuracy was read: at the chosen state, or at each split's own."""
    if set(read_out.peaks) - {read_out.peak}:
        return f"over {len(read_out.peaks)} splits, each at the state that its validation prompts chose"
    return place_words(read_out.number(read_out.peak), read_out.number(read_out.last), branches=bool(read_out.blocks))


def sentences(entries: Sequence[Summary]) -> list[str]:
    """Everything that these runs say, what surprises most first."""
    tellers = (order_sentence, reach_sentence, alike_sentence, twin_sentence, readout_sentence)
    return [text for text in (teller(entries) for teller in tellers) if text]


def measured_on(run: StoredRun | None) -> str:
    """What a number of a run rests on."""
    return basis([run]) if run else ""
