"""Waits: stories of a few lines; that they are minimal in general is shown in test_minimal.py and test_properties.py."""

from __future__ import annotations

from streamgraph.builder import Graph
from streamgraph.plan import plan
from streamgraph.schedule import HostWait, Launch, Schedule
from tests.support import graph, recorded, waits


def planned(text: str, **declared: str) -> Schedule:
    return plan(graph(text, **declared))


def previous(schedule: Schedule) -> list[str]:
    task = schedule.event_task
    return [f"{task[s.event]} -> {s.reasons[0].later}" for s in schedule.steps if isinstance(s, HostWait) and s.previous]


def test_a_wait_implied_through_another_lane_is_not_emitted() -> None:
    schedule = planned("a: -> x @s1 | b: x -> y @s2 | c: x y -> z @main")
    assert waits(schedule) == ["a -> b", "b -> c", "entry -> a"]


def test_one_wait_serves_all_results_of_a_chain() -> None:
    schedule = planned("a: -> x @s1 | b: x -> y @s1 | c: y -> z @s1 | d: x y z -> o @main")
    assert waits(schedule) == ["c -> d", "entry -> a"]
    assert recorded(schedule) == ["c", "entry"]


def test_one_event_serves_two_waiters() -> None:
    schedule = planned("y: -> y @main | o1: y -> p @s1 | o2: y -> q @s2 | sum: p q -> z @main")
    assert recorded(schedule).count("y") == 1
    assert "y -> o1" in waits(schedule)
    assert "y -> o2" in waits(schedule)


def test_exit_joins_a_lane_that_nobody_else_waits_for() -> None:
    assert "b -> exit" in waits(planned("a: -> x @main | b: -> y @side"))


def test_ping_pong_keeps_distance_two() -> None:
    text = " | ".join(f"bw{i}: -> buf{i % 2} @main | red{i}: -> +buf{i % 2} @comm" for i in range(4))
    found = waits(planned(text, buffers="buf0 buf1"))
    assert "red0 -> bw2" in found
    assert "red1 -> bw3" in found
    assert not {"red0 -> bw1", "red1 -> bw2", "red2 -> bw3"} & set(found)


def test_the_host_waits_for_a_download_before_it_reads() -> None:
    schedule = planned("d2h: -> pin @copy | read: pin -> !", hosts="pin")
    assert [str(s).split("  ")[0] for s in schedule.steps if isinstance(s, HostWait)] == ["hostwait e0"]


def test_a_device_task_waits_for_the_host_task_that_fills_its_staging() -> None:
    schedule = planned("fill: -> pin ! | h2d: pin -> x @copy", hosts="pin")
    assert "fill -> h2d" in waits(schedule)
    assert schedule.counts.waits == 2  # entry and exit; the wait for the host is no CUDA call
    assert schedule.counts.host_events == 1


def test_the_host_does_not_refill_staging_that_the_run_before_may_still_read() -> None:
    schedule = planned("fill: -> pin ! | h2d: pin -> x @copy", hosts="pin")
    assert previous(schedule) == ["h2d -> fill"]
    names = [step.task if isinstance(step, Launch) else "" for step in schedule.steps]
    held = next(index for index, step in enumerate(schedule.steps) if isinstance(step, HostWait))
    assert held < names.index("fill")


def test_a_host_wait_of_this_run_covers_the_run_before() -> None:
    """The download follows entry, and entry follows all of the run before: nothing is left to wait for."""
    schedule = planned("d2h: -> out @copy | read: out -> ! | fill: -> pin ! | h2d: pin -> x @copy", hosts="pin out")
    assert previous(schedule) == []


def test_what_the_host_waited_for_at_the_end_of_a_run_it_knows_in_the_next() -> None:
    schedule = planned("fill: -> pin ! | h2d: pin -> v @copy | d2h: v -> out @copy", hosts="pin", inputs="")
    made = Graph("loop")
    made.buffer("pin", "i64[8]", device="cpu", pinned=True)
    made.value("out", "i64[8]", device="cpu", pinned=True)
    made.task("fill", "mix", writes="pin", host=True)
    made.copy("h2d", "pin", "v", stream="copy")
    made.copy("d2h", "v", "out", stream="copy")
    made.output("out")
    looped = plan(made)
    assert previous(schedule) == ["h2d -> fill"]
    assert previous(looped) == []
    assert "d2h -> host" in waits(looped)


def test_host_tasks_do_not_wait_for_entry() -> None:
    assert not any(isinstance(step, HostWait) for step in planned("h: -> pin !", hosts="pin").steps)
