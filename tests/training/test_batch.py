"""Batches: addressable by step, split into equal parts, drawn ahead by a thread."""

import threading

import pytest
import torch

from repflow.core.errors import InputError
from repflow.training import Batch, BatchSource, DrawnBatches, RowBatches, ahead
from tests.training.tiny_training import copies, source


def test_a_drawn_batch_depends_on_seed_and_step_alone():
    forward = [source().batch(step).inputs for step in range(4)]
    backward = [source().batch(step).inputs for step in reversed(range(4))]
    assert all(torch.equal(one, other) for one, other in zip(forward, reversed(backward), strict=True))
    assert len({tuple(ids.flatten().tolist()) for ids in [*forward, source(seed=1).batch(0).inputs]}) == 5


def test_rows_come_once_an_epoch_in_orders_of_their_own():
    rows = Batch(torch.arange(10)[:, None], targets=torch.arange(10))
    batches = RowBatches(rows, 3, seed=4)
    epochs = [[batches.batch(3 * epoch + place) for place in range(3)] for epoch in range(2)]
    for epoch in epochs:
        seen = torch.cat([batch.inputs[:, 0] for batch in epoch])
        assert len(seen.unique()) == 9  # the tenth does not fill a batch
        assert torch.equal(seen, torch.cat([batch.targets for batch in epoch]))
    assert not torch.equal(epochs[0][0].inputs, epochs[1][0].inputs)
    assert torch.equal(batches.batch(1).inputs, epochs[0][1].inputs)


def test_sources_say_what_their_batches_depend_on():
    rows = Batch(torch.arange(6)[:, None])
    facts = [RowBatches(rows, 2).facts(), RowBatches(rows, 2, seed=1).facts(), RowBatches(rows, 3).facts()]
    facts.append(RowBatches(rows.each(lambda value: value + 1), 2).facts())
    facts += [DrawnBatches(copies).facts(), DrawnBatches(copies, facts={"pairs": 4}).facts()]
    assert len({str(entry) for entry in facts}) == 6
    assert isinstance(RowBatches(rows, 2), BatchSource)
    assert isinstance(DrawnBatches(copies), BatchSource)


def test_a_batch_that_does_not_split_is_refused():
    with pytest.raises(InputError, match="expected rows of a batch that split into 3 equal parts; got 4 rows; choose"):
        source().batch(0).split(3)
    with pytest.raises(InputError, match="expected size of at most 4, the number of rows; got 5; choose a smaller"):
        RowBatches(source().batch(0), 5)


def test_what_is_drawn_ahead_comes_in_order_from_one_thread():
    threads = set()

    def draw(number):
        threads.add(threading.get_ident())
        return number

    assert list(ahead(draw, range(20), 3)) == list(range(20))
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    threads.clear()
    assert list(ahead(draw, range(3), 0)) == [0, 1, 2]
    assert threads == {threading.get_ident()}


def test_what_fails_ahead_is_raised_where_it_is_taken():
    made = ahead(lambda number: 6 // (3 - number), range(9), 4)
    assert [next(made), next(made), next(made)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(made)


def test_a_thread_whose_values_nobody_wants_ends():
    before = threading.active_count()
    made = ahead(lambda number: number, range(10**6), 2)
    assert next(made) == 0
    made.close()
    assert threading.active_count() == before
