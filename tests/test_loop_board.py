"""The board of a loop: waits are let through by their own iteration, the earliest error in issue order wins, and nobody sleeps for ever."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.executors.loop_board import AT_ONCE, LoopBoard


def on_thread(action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(action()), daemon=True)
    thread.start()
    return thread, found


def ended(thread: threading.Thread) -> None:
    thread.join(20)
    assert not thread.is_alive(), "a thread sleeps for ever"


def test_a_wait_is_let_through_by_its_own_iteration_and_by_none_before() -> None:
    board = LoopBoard(1)
    board.record("e", 1)
    assert board.wait("e", 1, (1, 0))
    thread, found = on_thread(lambda: board.wait("e", 2, (2, 0)))
    board.record("other", 2)
    time.sleep(0.01)
    assert not found
    board.record("e", 2)
    ended(thread)
    assert found == [True]


def test_an_error_wakes_who_stands_behind_it_and_lets_those_before_it_go_on() -> None:
    board = LoopBoard(1)
    behind, said = on_thread(lambda: board.wait("e", 0, (3, 1)))
    before, done = on_thread(lambda: board.wait("e", 0, (2, 9)))
    board.fail((3, 0), ValueError())
    ended(behind)
    assert said == [False]
    time.sleep(0.01)
    assert not done
    board.record("e", 0)
    ended(before)
    assert done == [True]


def test_threads_are_told_of_items_and_of_the_end() -> None:
    board = LoopBoard(2)
    board.begin(0)
    assert board.wait_for_item(0)
    thread, found = on_thread(lambda: board.wait_for_item(1))
    board.end()
    ended(thread)
    assert found == [False]
    assert board.wait_for_item(0)  # what has begun is finished


def test_the_caller_waits_until_the_slowest_thread_is_through() -> None:
    board = LoopBoard(2)
    board.through(0, 4)
    thread, found = on_thread(lambda: board.wait_for_all(0))
    time.sleep(0.01)
    assert not found
    board.through(1, 0)
    ended(thread)
    assert found == [True]
    board.fail(AT_ONCE, KeyboardInterrupt())
    assert not board.wait_for_all(0)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_earliest_error_wins_whatever_the_order_in_which_they_come(seed: int) -> None:
    draws = random.Random(seed)
    errors = {(draws.randrange(5), draws.randrange(5)): ValueError() for _ in range(6)}
    places = list(errors)
    draws.shuffle(places)
    board = LoopBoard(1)
    threads = [threading.Thread(target=board.fail, args=(place, errors[place])) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        ended(thread)
    assert (board.limit, board.error) == (min(places), errors[min(places)])


@pytest.mark.parametrize("event", ["a", "b"])
def test_an_interrupt_stands_before_everything(event: str) -> None:
    board = LoopBoard(1)
    board.fail((0, 0), ValueError())
    stop = KeyboardInterrupt()
    board.fail(AT_ONCE, stop)
    assert board.error is stop
    assert not board.wait(event, 0, (0, 0))
