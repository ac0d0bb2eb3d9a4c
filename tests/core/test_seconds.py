"""Seconds by phase: each counted once, whatever nests, fails or runs beside."""

import threading

import pytest

from repflow.core.seconds import Clock


class Hand:
    """A clock that moves on command."""

    def __init__(self):
        self.at = 0.0

    def __call__(self):
        return self.at


@pytest.fixture
def hand():
    return Hand()


def test_an_inner_phase_is_taken_out_of_the_outer_one(hand):
    clock = Clock(hand)
    with clock.phase("forward"):
        hand.at += 2
        with clock.phase("meters"):
            hand.at += 5
        hand.at += 1
    hand.at += 4
    assert clock.seconds() == {"forward": 3, "meters": 5, "other": 4}


def test_a_phase_that_fails_is_counted_and_left(hand):
    clock = Clock(hand)
    with pytest.raises(KeyError), clock.phase("load"):
        hand.at += 2
        raise KeyError
    hand.at += 3
    assert clock.seconds() == {"load": 2, "other": 3}


def test_the_parts_sum_to_the_whole_at_any_time(hand):
    clock = Clock(hand)
    for name in ("load", "fits", "load"):
        with clock.phase(name):
            hand.at += 1.5
            assert sum(clock.seconds().values()) == hand.at


def test_other_threads_do_not_disturb_the_count(hand):
    clock = Clock(hand)

    def work():
        with clock.phase("fits"):
            hand.at += 7

    with clock.phase("forward"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert clock.seconds() == {"forward": 7, "other": 0}


def test_an_unknown_phase_is_our_own_mistake(hand):
    with pytest.raises(AssertionError), Clock(hand).phase("thinking"):
        pass
