"""Many workers' ways through many cells, stepped in turn on a real folder with clocks of the test's own."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest

from repflow.store.claims.ledger import CLAIMS, Entry, Kind, key_of
from repflow.store.claims.place import FolderPlace
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.cells import Outcome
from repflow.studies.scale.way import ENDED, FINISHED, MARKS, TAKEN, Marks, Way, block_name, next_move, sweep_marks
from repflow.studies.scale.worker import Post


@pytest.fixture(scope="module")
def scale():
    """benchmarks/scale.py, which is not part of the package."""
    path = Path(__file__).parents[3] / "benchmarks" / "scale.py"
    spec = importlib.util.spec_from_file_location("scale_benchmark", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Crowd:
    """Simulated workers, each with a clock that is `apart` seconds from the last one's."""

    def __init__(self, scale, folder, workers, cells, apart=0.0, before=0):
        self.scale, self.now = scale, [0.0]
        self.place, self.names = scale.Counted(folder / ".repflow"), [f"cell-{n:04d}" for n in range(cells)]
        scale.finish(self.place, folder, self.names, before)
        self.place.asked = 0
        listed = [Cell(name, None) for name in self.names]
        rng = random.Random(0)
        self.workers = [
            scale.Simulated(
                self.place, folder, Post(number, workers, "5e55"), listed, self.clock(apart * number), 1 + rng.random()
            )
            for number in range(workers)
        ]

    def clock(self, ahead):
        return lambda: self.now[0] + ahead

    def run(self, **options):
        def sleep(seconds):
            self.now[0] += seconds

        self.scale.simulate(self.workers, self.clock(0.0), sleep, **options)

    def kinds(self):
        """Kinds of the entries of every cell."""
        for name in self.names:
            numbers = map(int, self.place.names(f"{CLAIMS}/{name}"))
            yield [Entry.from_bytes(number, name, self.place.read(key_of(name, number))).kind for number in numbers]


def test_every_cell_once_and_who_has_no_work_left_does_not_search_cell_by_cell(scale, tmp_path):
    crowd, asked = Crowd(scale, tmp_path, 60, 600), []
    crowd.run(done=lambda: asked.append(crowd.place.asked))
    after = crowd.place.asked - asked[-1]
    assert len(asked) == 600
    assert all(kinds == [Kind.CLAIM, Kind.DONE] for kinds in crowd.kinds())
    tenths = [(asked[at + 59] - asked[at]) / 59 for at in range(0, 600, 60)]
    assert max(tenths[1:8]) < 9, tenths
    assert max(tenths) < 3.5 * tenths[0], tenths  # the last are waited for; if that were a search cell by cell: 10
    assert after / 60 < 10, "who looks at what is left marks it for the others"


def test_a_claim_costs_the_same_where_most_cells_are_finished(scale, tmp_path):
    costs = []
    for before in (0, 900):
        crowd, asked = Crowd(scale, tmp_path / str(before), 10, 100 + before, before=before), []
        crowd.run(done=lambda crowd=crowd, asked=asked: asked.append(crowd.place.asked))
        assert len(asked) == 100
        costs.append(asked[-1] / 100)
    assert costs[1] < 1.25 * costs[0], costs


def test_what_dead_workers_held_is_taken_over_once_though_clocks_are_an_hour_apart(scale, tmp_path):
    """Half of the clocks are days ahead; five die with a cell in hand, and their heartbeats go silent."""
    crowd, dead = Crowd(scale, tmp_path, 30, 200, apart=3600.0), []

    def lost(worker):
        if worker.holds and len(dead) < 5 and len(worker.finished) == 2:
            dead.append(worker)
            return True
        return False

    crowd.run(lost=lost)
    assert len(dead) == 5
    kinds = list(crowd.kinds())
    assert all(one.count(Kind.DONE) == 1 for one in kinds)
    assert sum(one.count(Kind.CLAIM) for one in kinds) == 205  # nobody who lives was taken for dead
    assert all((tmp_path / name).exists() for name in crowd.names)
    assert 60 < crowd.now[0] < 240


def way_through(place, cells, session, answers, retry=False):
    """All cells that a way asks for; `answers` says what came of each."""
    blocks = [[Cell(name, None) for name in cells]]
    moves = Way(blocks, place, session, retry=retry).moves()
    asked, outcome = [], None
    while (move := next_move(moves, outcome)) is not None:
        outcome = None
        if isinstance(move, Cell):
            asked.append(move.name)
            outcome = Outcome(move, Path(), answers[move.name])
    return asked


def test_marks_of_others_count_if_they_came_later(tmp_path):
    place = FolderPlace(tmp_path)
    early = Marks(place, "aa")
    retrying = Marks(place, "bb", retry=True)
    Marks(place, "cc").set("f0", FINISHED)
    Marks(place, "cc").set("e0", ENDED)
    Marks(place, "cc").set("d0", TAKEN)
    early.expire(), retrying.expire()
    late = Marks(place, "dd")
    assert [early.has(block, FINISHED, ENDED) for block in ("f0", "e0")] == [True, True]
    assert [retrying.has(block, FINISHED, ENDED) for block in ("f0", "e0")] == [True, False]
    assert [late.has(block, FINISHED, ENDED) for block in ("f0", "e0")] == [False, False]  # deleted since?
    assert late.has("d0", TAKEN)  # claimed once, claimed for ever
    assert Marks(place, "cc").has("e0", ENDED)


def test_a_result_that_was_deleted_is_looked_for_by_a_later_worker(tmp_path):
    place, done = FolderPlace(tmp_path), dict.fromkeys("ab", "finished")
    assert way_through(place, "ab", "aa", done) == ["a", "b"]
    assert way_through(place, "ab", "bb", done) == ["a", "b"]
    assert len(place.names(MARKS)) == 2  # one that somebody has gone to every cell is enough
    sweep_marks(place, "aa")
    assert {name.rpartition("-")[2] for name in place.names(MARKS)} == {"bb"}
    place.write("workers/x", b"")
    sweep_marks(place)
    assert place.names(MARKS)
    place.delete("workers/x")
    sweep_marks(place)
    assert not place.names(MARKS)


def test_a_cell_that_a_killed_worker_had_only_gone_to_is_found(tmp_path):
    place = FolderPlace(tmp_path)
    Marks(place, "aa").go_to(block_name([Cell(name, None) for name in "ab"]), "a")
    assert way_through(place, "ab", "bb", dict.fromkeys("ab", "finished")) == ["b", "a"]


def test_a_block_is_known_by_its_cells():
    cells = [Cell(name, None) for name in "abc"]
    assert block_name(cells) == block_name(cells[1:] + cells[:1]) != block_name(cells[:2])
