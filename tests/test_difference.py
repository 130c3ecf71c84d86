"""Difference: what changed between two plans, named as a reader would name it; nothing where nothing did."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph import diff, plan
from streamgraph.schedule import HostWait, Launch, Record, Schedule, Wait
from tests.programs import random_program
from tests.support import graph

LOADS = "load: -> b @copy | gemm: b -> y @main"


def test_a_plan_does_not_differ_from_itself() -> None:
    found = diff(graph(LOADS), graph(LOADS))
    assert found.is_empty
    assert str(found).startswith("test: the same plan")


def test_a_moved_task_takes_its_waits_and_events_with_it() -> None:
    found = diff(graph(LOADS, buffers="b"), graph("load: -> b @main | gemm: b -> y @main", buffers="b"))
    assert found.moved == (("load", "copy", "main"),)
    assert [str(order) for order in found.waits_removed] == [
        "entry -> load @copy (entry)", "load -> gemm @main (RAW b)",
    ]  # fmt: skip
    assert found.waits_added == ()
    assert found.events_removed == ("entry", "load")
    lanes = next(figure for figure in found.figures if figure.name == "lanes")
    assert (lanes.before, lanes.after, lanes.text) == (2, 1, ("2", "1", "-1"))


def test_a_launch_that_becomes_urgent_shows_and_nothing_else_does() -> None:
    before = plan(graph(LOADS))
    after = replace(before, steps=tuple(replace(s, urgent=s.task == "gemm") if isinstance(s, Launch) else s for s in before.steps))
    found = diff(before, after)
    assert found.moved == (("gemm", "main", "main urgent"),)
    assert str(found).count("->") == 1
    assert not found.is_empty


def test_tasks_that_come_and_go_are_named() -> None:
    found = diff(graph(LOADS), graph("load: -> b @copy | relu: b -> y @main"))
    assert (found.tasks_added, found.tasks_removed) == (("relu",), ("gemm",))
    assert "tasks:\n  - gemm\n  + relu" in str(found)


def test_a_new_hazard_shows_as_a_wait_with_its_reason() -> None:
    text = "load: -> w @copy | use: w -> y @main | again: -> {} @copy"
    found = diff(graph(text.format("v"), buffers="w v"), graph(text.format("w"), buffers="w v"))
    assert [str(order) for order in found.waits_added] == ["use -> again @copy (WAR w)"]


def test_an_output_that_moves_to_a_side_lane_costs_a_record_stream() -> None:
    before, after = (graph(f"a: -> x @main | b: x -> y @{lane}", outputs="y") for lane in ("main", "side"))
    assert diff(before, after).record_streams_added == ("y.1 @main",)
    assert diff(after, before).record_streams_removed == ("y.1 @main",)


def test_the_fewest_tasks_are_said_to_be_issued_earlier_or_later() -> None:
    before = graph("a: -> | b: -> | c: -> | d: ->")
    after = graph("d: -> | a: -> | b: -> | c: ->")
    assert diff(before, after).reordered == ("d",)


def test_time_and_memory_are_compared() -> None:
    found = diff(graph(LOADS, inputs="x", cost=10.0), graph(LOADS, inputs="x", cost=300.0))
    time = next(figure for figure in found.figures if figure.name == "time (simulated)")
    assert time.after - time.before > 500
    assert time.text[2].startswith("+")
    assert not found.is_empty


def test_options_are_shown_and_make_no_difference_by_themselves() -> None:
    found = diff(plan(graph(LOADS)), plan(graph(LOADS), order="auto"))
    assert found.is_empty
    assert found.options == (("order", "declared", "auto"),)


def test_many_changes_are_shortened_in_text_and_complete_as_data() -> None:
    wide = " | ".join(f"t{number}: ->" for number in range(60))
    found = diff(graph("t0: ->"), graph(wide))
    assert "... and 39 more (--json lists all)" in str(found)
    assert len(found.to_dict()["tasks"]["added"]) == 59


def test_markdown_shows_names_as_they_are() -> None:
    found = diff(graph("a_b_c: -> x @main"), graph("a_b_c: -> x @side"))
    text = found.to_markdown()
    assert "| waits | 0 | 2 | +2 |" in text
    assert "- a\\_b\\_c: main -\\> side" in text
    assert "- \\+ entry -\\> a\\_b\\_c @side" in text  # "- + " would be a list in a list
    assert all(line.count("|") == 5 for line in text.splitlines() if line.startswith("|") and "---" not in line)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_difference_turned_round_swaps_what_is_added_and_removed(data: st.DataObject) -> None:
    first, second = (plan(random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=7)) for _ in range(2))
    there, back = diff(first, second), diff(second, first)
    assert (there.tasks_added, there.waits_added, there.events_added) == (back.tasks_removed, back.waits_removed, back.events_removed)
    assert there.record_streams_added == back.record_streams_removed
    assert len(there.reordered) == len(back.reordered)
    assert there.is_empty == back.is_empty
    assert diff(first, first).is_empty


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_new_names_for_events_make_no_difference(data: st.DataObject) -> None:
    schedule = plan(random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=9))

    def renamed(step: object) -> object:
        return replace(step, event=f"x{step.event}") if isinstance(step, Record | Wait | HostWait) else step

    other = replace(schedule, steps=tuple(renamed(step) for step in schedule.steps))  # type: ignore[misc]
    assert diff(schedule, other).is_empty


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_plan_without_one_wait_differs_by_that_wait_alone(data: st.DataObject) -> None:
    schedule = plan(random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=9))
    places = [number for number, step in enumerate(schedule.steps) if isinstance(step, Wait | HostWait)]
    if not places:
        return
    gone = data.draw(st.sampled_from(places))
    without = Schedule(schedule.program, schedule.lanes, schedule.steps[:gone] + schedule.steps[gone + 1 :], schedule.options)
    found = diff(schedule, without)
    assert len(found.waits_removed) == 1
    assert found.waits_added == found.moved == found.reordered == found.tasks_removed == ()
    assert sum(isinstance(step, Launch) for step in without.steps) == len(schedule.program.tasks)
