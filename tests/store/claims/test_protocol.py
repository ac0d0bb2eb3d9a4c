"""The protocol of claims, in every order of operations of three workers and more: `explorer.py` has the model."""

from dataclasses import replace

import pytest

from repflow.store.claims.ledger import Kind
from repflow.store.claims.protocol import Phase
from tests.store.claims.explorer import Budget, ModelWorld, explore

NO_SUSPICION = {
    "three workers": (3, Budget()),
    "two crash and one starts again": (3, Budget(crashes=2, restarts=1)),
    "one fails, one gives up": (3, Budget(crashes=1, failures=1, releases=1)),
    "the result is deleted": (3, Budget(crashes=1, deletions=1)),
    "four workers": (4, Budget(crashes=1)),
}
SUSPICION = {
    "delays": (3, Budget(suspicions=2)),
    "delays and crashes": (3, Budget(suspicions=1, crashes=2)),
    "delays, a crash, a restart": (3, Budget(suspicions=1, crashes=1, restarts=1)),
    "delays and a deletion": (3, Budget(suspicions=1, crashes=1, deletions=1)),
}


def check_step(before, what, after):
    """What must hold whatever happens."""
    old, new = before.shared, after.shared
    assert new.entries[: len(old.entries)] == old.entries, "entries are never changed"
    assert len(new.entries) <= 12, "the ledger grows without end"
    done = [entry for entry in new.entries if entry.kind is Kind.DONE]
    for entry in new.entries:
        if entry.kind in (Kind.DONE, Kind.RELEASED):
            held = new.entries[entry.number - 2]
            assert (held.kind, held.token) == (Kind.CLAIM, entry.token), "only the holder says how its work ended"
    if old.result and what != "delete":
        assert new.result == old.result, "a result is never written over"
    if new.result:
        assert new.result in {entry.attempt for entry in done}, "a result is what a worker has committed"
    holding = [state.number for _, state in after.workers if state.phase is Phase.HOLD]
    assert len(set(holding)) == len(holding), "nobody holds what another holds"


def check_once(states):
    """Deletions aside, one commit and one result in every history."""
    for whole in states:
        commits = sum(entry.kind is Kind.DONE for entry in whole.shared.entries)
        assert commits <= 1


def check_ends(states):
    """From every state on, the living workers can end, and then the result is at its place or the failure is known."""
    ends = set()
    back = {whole: [] for whole in states}
    for whole, following in states.items():
        for other in following:
            back[other].append(whole)
        phases = [state.phase for _, state in whole.workers]
        if phases and all(phase in (Phase.FINISHED, Phase.FAILED) for phase in phases):
            last = whole.shared.entries[-1]
            if last.kind is Kind.FAILED or whole.shared.result:
                ends.add(whole)
    reached, waiting = set(ends), list(ends)
    while waiting:
        for whole in back[waiting.pop()]:
            if whole not in reached:
                reached.add(whole)
                waiting.append(whole)
    stuck = [whole for whole in states if whole not in reached and any(whole.workers)]
    assert not [whole for whole in stuck if not whole.left.deletions and not _deleted(whole)]


def _deleted(whole):
    """A user took the result away after everyone had ended."""
    return not whole.shared.result and all(state.phase is Phase.FINISHED for _, state in whole.workers)


@pytest.mark.parametrize("case", NO_SUSPICION)
def test_without_wrong_suspicions_no_work_is_done_twice(case):
    workers, budget = NO_SUSPICION[case]

    def check(before, what, after):
        check_step(before, what, after)
        holding = [state for _, state in after.workers if state.phase is Phase.HOLD]
        assert len(holding) <= 1

    states = explore(workers, budget, check)
    assert len(states) > 150
    if not budget.deletions:
        check_once(states)
    check_ends(states)


@pytest.mark.parametrize("case", SUSPICION)
def test_a_worker_that_was_taken_for_dead_cannot_publish(case):
    workers, budget = SUSPICION[case]
    states = explore(workers, budget, check_step)
    assert len(states) > 150
    if not budget.deletions:
        check_once(states)
    check_ends(states)
    phases = {state.phase for whole in states for _, state in whole.workers}
    assert phases == set(Phase) - {Phase.FAILED, Phase.RELEASED}


def test_a_cell_over_which_workers_are_lost_ends_as_a_failure():
    states = explore(3, Budget(crashes=2), check_step, limit=2)
    ends = [whole for whole, following in states.items() if not following]
    lost = {whole.shared.entries[-1].kind for whole in ends if whole.workers}
    assert lost == {Kind.DONE, Kind.FAILED}


def losing(self, done):
    """Takes finished work away and has its worker die before it arrives, as a move in two steps may."""
    self.shared = replace(self.shared, finished_work=self.shared.finished_work - {done.attempt})
    return False


def unguarded(self, number, kind, before, add=ModelWorld.add):
    """Writes `done` behind whatever the ledger has, as if a late worker did not look."""
    return add(self, number if kind is Kind.CLAIM else len(self.shared.entries) + 1, kind, before)


def shared_claims(self, number, kind, before, add=ModelWorld.add):
    """Says yes to everyone who claims, as a file system does that does not create exclusively."""
    return add(self, number, kind, before) or kind is Kind.CLAIM


def never_moved(self, done):
    """Leaves finished work where it is if its worker died before moving it."""
    return False if self.name not in done.attempt else place(self, done)


place = ModelWorld.place


@pytest.mark.parametrize(
    ("operation", "broken"),
    [("place", losing), ("add", unguarded), ("add", shared_claims), ("place", never_moved)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_store_that_breaks_its_word_is_found_out(monkeypatch, operation, broken):
    """The walk can fail: with each promise of a store broken, one of the conditions is violated."""
    monkeypatch.setattr(ModelWorld, operation, broken)

    def walk():
        states = explore(3, Budget(suspicions=1, crashes=1), check_step)
        check_once(states)
        check_ends(states)

    with pytest.raises(AssertionError):
        walk()
