"""Every order of operations of a few workers on one cell: the real transitions of the protocol over a model of a store.

A state is what is shared (ledger, finished work, result at its place), where each worker is, and what may still go
wrong. Workers may crash between any two operations, be delayed for as long as anything else takes, be suspected while
they live, fail, give up, and start again under a new name; the result may be deleted by a user.
"""

from dataclasses import dataclass, replace

from repflow.store.claims.ledger import Entry, Kind
from repflow.store.claims.protocol import Phase, State, step, still_held

AGAIN = frozenset([Phase.BUSY, Phase.LOST, Phase.RELEASED])
"""A worker looks again some time later."""


@dataclass(frozen=True)
class Budget:
    """What may still go wrong; all orders of these are tried."""

    crashes: int = 0
    restarts: int = 0
    suspicions: int = 0  # of workers that live
    failures: int = 0
    releases: int = 0
    deletions: int = 0


@dataclass(frozen=True)
class Shared:
    """What workers share."""

    entries: tuple[Entry, ...] = ()
    finished_work: frozenset[str] = frozenset()
    result: str = ""
    replaced: bool = False  # a result was written over: must never be


@dataclass(frozen=True)
class Whole:
    """A state of the whole: workers are sorted, since which of two alike is which makes no difference.

    A worker has no name until it writes its first entry, and a crashed one is no longer there.
    """

    shared: Shared
    workers: tuple[tuple[str, State], ...]
    left: Budget


class ModelWorld:
    """One worker's view of the model; `suspects` answers whether it takes a claim's worker for gone."""

    def __init__(self, shared, name, suspects=False, limit=99, again=False):
        self.shared, self.name, self.suspects, self.limit, self.retries = shared, name, suspects, limit, again

    def placed(self):
        return bool(self.shared.result)

    def last(self):
        return self.shared.entries[-1] if self.shared.entries else None

    def add(self, number, kind, before):
        if number <= len(self.shared.entries):
            return False
        assert number == len(self.shared.entries) + 1, "entries have no gaps"
        held = number - (kind is not Kind.CLAIM)
        tries = 1 if before is None or before.kind is not Kind.CLAIM else before.tries + 1
        self.name = self.name or f"worker {len({entry.token for entry in self.shared.entries}) + 1}"
        entry = Entry(number, kind, self.name, attempt=f"{held}-{self.name}", tries=tries)
        self.shared = replace(self.shared, entries=(*self.shared.entries, entry))
        return True

    def place(self, done):
        if done.attempt not in self.shared.finished_work:
            return False
        if self.shared.result:  # a folder is never renamed onto another
            return True
        left = self.shared.finished_work - {done.attempt}
        self.shared = replace(self.shared, finished_work=left, result=done.attempt)
        return True

    def stale(self, claim):
        return self.suspects

    def hopeless(self, claim):
        return claim.tries >= self.limit

    def again(self, failure):
        return self.retries


def after(whole, place, world, state, **spent):
    """The whole once a worker has moved; `state` is None where it crashed."""
    others = [worker for number, worker in enumerate(whole.workers) if number != place]
    workers = others if state is None else [*others, (world.name, state)]
    left = replace(whole.left, **{name: getattr(whole.left, name) - count for name, count in spent.items()})
    return Whole(world.shared, tuple(sorted(workers, key=_order)), left)


def _order(worker):
    name, state = worker
    return name, state.phase, state.number, state.ending, 0 if state.entry is None else state.entry.number


def moves(whole, limit=99):
    """Every next state, with a name of what happened."""
    for place, (name, state) in enumerate(whole.workers):
        if place and whole.workers[place - 1] == (name, state):
            continue  # a worker just like this one has moved
        yield from worker_moves(whole, place, name, state, limit)
    left = whole.left
    if left.deletions and whole.shared.result:
        shared = replace(whole.shared, result="")
        yield "delete", replace(whole, shared=shared, left=replace(left, deletions=left.deletions - 1))


def worker_moves(whole, place, name, state, limit):
    left = whole.left
    world = ModelWorld(whole.shared, name, limit=limit)
    if state.phase in (Phase.FINISHED, Phase.FAILED):
        return
    if left.crashes:
        yield "crash", after(whole, place, world, None, crashes=1)
        if left.restarts:  # at once or later: a worker at its start may wait for as long as it likes
            fresh = ModelWorld(whole.shared, "")
            yield "crash and restart", after(whole, place, fresh, State(), crashes=1, restarts=1)
    if state.phase in AGAIN:
        yield "look again", after(whole, place, world, State())
    elif state.phase is Phase.HOLD:
        yield from holding_moves(whole, place, name, state, world)
    elif state.phase is Phase.WATCH:
        lives = any(other == state.entry.token for other, _ in whole.workers)
        yield "wait", after(whole, place, world, step(state, world))
        if not lives or left.suspicions:
            world = ModelWorld(whole.shared, name, suspects=True, limit=limit)
            yield "take over", after(whole, place, world, step(state, world), suspicions=int(lives))
    else:
        following = step(state, world)
        yield state.phase.value, after(whole, place, world, following)


def holding_moves(whole, place, name, state, world):
    left = whole.left
    if not still_held(state, world):
        yield "notice", after(whole, place, world, State())
    work = whole.shared.finished_work | {f"{state.number}-{name}"}
    finished = ModelWorld(replace(whole.shared, finished_work=work), name)
    yield "work", after(whole, place, finished, state.ended(Kind.DONE))
    if left.failures:
        yield "fail", after(whole, place, world, state.ended(Kind.FAILED), failures=1)
    if left.releases:
        yield "release", after(whole, place, world, state.ended(Kind.RELEASED), releases=1)


def explore(workers, budget, check, limit=99):
    """Walk through every reachable state; returns states and the moves between them."""
    first = Whole(Shared(), (("", State()),) * workers, budget)
    seen, waiting = {first: []}, [first]
    while waiting:
        whole = waiting.pop()
        for what, following in moves(whole, limit):
            check(whole, what, following)
            seen[whole].append(following)
            if following not in seen:
                seen[following] = []
                waiting.append(following)
    return seen
