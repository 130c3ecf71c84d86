"""The board: marks let threads through, once and for all of them; errors stop only what stands behind them."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Sequence

import pytest

from streamgraph.executors.board import AT_ONCE, Board
from streamgraph.executors.lane_steps import Passed, RecordedRelease, Waits, by_lane
from streamgraph.executors.modes import CallerState
from streamgraph.plan import plan
from streamgraph.schedule import Launch, RecordStream, Release, Schedule
from tests.programs import seeded
from tests.support import graph


def board(steps: int = 100) -> Board:
    return Board(steps, [], CallerState.take())


class Waiting:
    """A thread in `wait`."""

    def __init__(self, on: Board, all_of: Sequence[Hashable], step: int) -> None:
        self.results: list[bool] = []
        self.thread = threading.Thread(target=lambda: self.results.append(on.wait(all_of, step)), daemon=True)
        self.thread.start()
        until = time.monotonic() + 10
        while not on._asleep and self.thread.is_alive():  # until it sleeps, or is through already
            assert time.monotonic() < until
            time.sleep(0.0005)

    def result(self) -> bool:
        self.thread.join(10)
        (answer,) = self.results
        return answer


def test_a_mark_lets_through_who_comes_before_it_and_who_comes_after_it() -> None:
    on = board()
    early = Waiting(on, ["e0"], 5)
    on.mark("e0")
    assert early.result() is True
    assert on.wait(["e0"], 5) is True


def test_a_wait_for_several_marks_ends_with_the_last_of_them() -> None:
    on = board()
    waiting = Waiting(on, ["e0", "e1", "e2"], 5)
    on.mark("e2")
    on.mark("e0")
    assert waiting.thread.is_alive()
    assert len(on._asleep) == 1
    on.mark("e1")
    assert waiting.result() is True
    assert on._asleep == {}


@pytest.mark.parametrize("all_of", [["e0"], ["e0", "e1"]])
def test_an_error_wakes_who_stands_behind_it_and_nobody_before_it(all_of: list[str]) -> None:
    on = board()
    behind, before = Waiting(on, all_of, 20), Waiting(on, all_of, 5)
    on.fail(10, ValueError("at ten"))
    assert behind.result() is False
    assert before.thread.is_alive()
    for what in all_of:
        on.mark(what)
    assert before.result() is True


def test_the_earliest_error_wins_whatever_comes_first() -> None:
    on = board()
    first, second = ValueError("first"), ValueError("second")
    on.fail(10, second)
    on.fail(3, first)
    on.fail(7, ValueError("third"))
    assert (on.limit, on.error) == (3, first)
    on.fail(AT_ONCE, interrupt := KeyboardInterrupt())
    assert (on.limit, on.error) == (AT_ONCE, interrupt)


def test_joining_waits_for_every_lane_whatever_errors_there_are() -> None:
    on = board()
    on.fail(AT_ONCE, KeyboardInterrupt())
    on.end("one")
    joining = threading.Thread(target=on.join, args=(["one", "two"],), daemon=True)
    joining.start()
    time.sleep(0.01)
    on.fail(AT_ONCE, KeyboardInterrupt())
    assert joining.is_alive()
    on.end("two")
    joining.join(10)
    assert not joining.is_alive()


def test_a_lane_begins_a_run_once() -> None:
    on = board()
    assert (on.begin("one"), on.begin("two"), on.begin("one")) == (True, True, False)


# --- lane steps --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_every_step_goes_to_its_lane_in_issue_order(seed: int) -> None:
    schedule = plan(seeded(seed), streams=3, release="early" if seed % 2 else "default")
    lanes, _ = by_lane(schedule)
    for lane, steps in lanes.items():
        numbers = [number for number, _ in steps]
        assert numbers == sorted(numbers)
        tasks = [what.task for _, what in steps if isinstance(what, Launch)]
        assert tasks == [step.task for step in schedule.steps if isinstance(step, Launch) and step.lane == lane]
    waits = [event for steps in lanes.values() for _, what in steps if isinstance(what, Waits) for event in what.events]
    assert sorted(waits) == sorted(step.event for step in schedule.steps if type(step).__name__ == "Wait")
    assert next(iter(lanes)) == "main"


def test_a_release_that_rests_on_record_stream_waits_for_the_lanes_that_it_names() -> None:
    schedule = plan(graph("a: x -> h @one | use: h x -> y @two", "x", outputs="y"))
    steps = [step for step in schedule.steps if not isinstance(step, RecordStream | Release)]
    at = steps.index(Launch("use", "two")) + 1
    given: Schedule = type(schedule)(
        schedule.program, schedule.lanes, (*steps[:at], RecordStream("h.1", "two"), Release("h.1", "one"), *steps[at:])
    )
    lanes, kept = by_lane(given)
    number = next(number for number, what in lanes["one"] if isinstance(what, RecordedRelease))
    assert (number, RecordedRelease(number, "h.1", ("two",))) in lanes["one"]
    assert (number, Passed(number, "two")) in lanes["two"]
    assert kept == ()
    unreleased, kept = by_lane(plan(graph("a: x -> h @one", "x", outputs="h")))
    assert [lane for _, lane in kept] == ["main"]
    assert not any(isinstance(what, RecordedRelease) for steps in unreleased.values() for _, what in steps)
