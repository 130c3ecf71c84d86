"""Explain: each hazard either has a wait or a reason why not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.errors import SpecError
from streamgraph.explain import explain
from streamgraph.plan import plan
from streamgraph.schedule import Schedule
from tests.large import SHAPES
from tests.programs import random_program
from tests.support import graph


def diamond() -> Schedule:
    return plan(graph("a: -> x @s1 | b: x -> y @s2 | c: x y -> z @main | d: -> q @s3"))


def test_a_task_lists_its_waits_and_what_implies_the_others() -> None:
    text = str(diamond().explain("c"))
    assert "c runs on main (pinned there)" in text
    assert "b (RAW y): wait e1 @main" in text
    assert "a (RAW x): no wait, implied by" in text
    assert "a -> b: wait e0 @s2" in text


def test_two_tasks_with_a_wait_say_which_hazard_asks_for_it() -> None:
    text = str(diamond().explain("a", "b"))
    assert text.startswith("b waits for a: wait e0 @s2\nbecause of:\n  RAW x: a -> b")


def test_two_tasks_without_a_wait_show_the_chain_that_implies_it() -> None:
    found = diamond().explain("a", "c")
    assert found.relations[0].verdict == "implied"
    assert [link.later for link in found.relations[0].path] == ["b", "c"]


def test_unordered_tasks_may_overlap() -> None:
    assert "may overlap" in str(diamond().explain("c", "d"))


def test_the_order_of_the_names_does_not_matter() -> None:
    assert str(diamond().explain("b", "a")) == str(diamond().explain("a", "b"))


def test_reuse_of_memory_comes_with_a_remedy() -> None:
    schedule = plan(graph("a: -> w @s1 | b: w -> y @s2 | c: -> w @s1", buffers="w"))
    assert "with another buffer (or one more slot) for 'w' they could overlap" in str(schedule.explain("b", "c"))


def test_entry_and_exit_can_be_asked_about() -> None:
    assert "wait e1" in str(diamond().explain("exit")) or "exit:" in str(diamond().explain("exit"))
    assert diamond().explain("entry", "c").relations[0].verdict == "same lane"


def test_an_unknown_task_gets_the_near_name() -> None:
    with pytest.raises(SpecError, match="there is no task 'stak'"):
        explain(plan(graph("stack: -> x")), "stak")


@settings(max_examples=150)
@given(data=st.data())
def test_every_hazard_is_explained_by_a_path_of_links_that_the_schedule_has(data: st.DataObject) -> None:
    schedule = plan(random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=10))
    tasks = schedule.program.tasks
    for a, b in schedule.graph.edges:
        (relation,) = schedule.explain(tasks[a].name, tasks[b].name).relations
        assert relation.verdict != "may overlap"
        assert relation.path[0].earlier == relation.earlier
        assert relation.path[-1].later == relation.later
        assert all(one.later == two.earlier for one, two in zip(relation.path, relation.path[1:], strict=False))
        for link in relation.path:
            assert link.event is None or schedule.event_task[link.event] == link.earlier
    for task in tasks:
        assert "NOT ORDERED" not in str(schedule.explain(task.name))


def test_a_path_takes_as_few_waits_as_it_can_and_counts_a_lane_as_one_link() -> None:
    text = "a: -> x @main | b: x -> +r @s1 | c: -> +r @main | d: -> @main | e: x -> @main"
    schedule = plan(graph(text, buffers="r"))
    (relation,) = schedule.explain("a", "e").relations
    assert (relation.verdict, len(relation.path)) == ("same lane", 1)
    assert "both are on main" in str(schedule.explain("e"))


def test_a_conflict_that_the_tasks_between_keep_is_named() -> None:
    schedule = plan(graph("a: -> w @s1 | b: w -> y @s2 | c: -> w @main", buffers="w"))
    assert schedule.graph.get_edge_data(0, 2) is None
    text = str(schedule.explain("a", "c"))
    assert "which the hazards of the tasks between them keep as well:\n  WAW w: a -> c" in text


def test_lanes_can_order_tasks_that_share_nothing() -> None:
    schedule = plan(graph("a: -> x @s1 | b: -> y @s1"))
    assert "nothing that they touch asks for this order" in str(schedule.explain("a", "b"))


def test_memory_that_a_task_is_the_last_to_use_stands_under_its_own_heading() -> None:
    text = str(plan(graph("a: -> x | b: x -> y")).explain("b"))
    assert "\nis the last to use:\n  release x.1 @main" in text


def test_many_relations_are_shortened_in_text_and_complete_as_data() -> None:
    schedule = plan(graph("make: -> x | " + " | ".join(f"use{number}: x ->" for number in range(60))), streams=1)
    answer = schedule.explain("make")
    assert len(answer.relations) == 60
    assert "  ... and 20 more (--json lists all)" in answer.lines


def test_a_path_has_no_more_links_than_two_for_each_lane_however_long_the_lanes_are() -> None:
    """Walking each lane link by link once made `explain` of a task with many successors take the square of their number."""
    schedule = plan(SHAPES["mixed"](600))
    tasks = list(schedule.lane_of)
    for relation in schedule.explain("upload.0").relations + schedule.explain(tasks[-1]).relations:
        assert len(relation.path) <= 2 * len(schedule.lanes)
    (relation,) = schedule.explain(tasks[0], tasks[-1]).relations
    assert 0 < len(relation.path) <= 2 * len(schedule.lanes)


def test_a_name_that_is_no_task_is_answered_by_what_it_is() -> None:
    made = Graph("names")
    made.input("x", "f32[4]")
    for number in range(3):
        made.task(f"work@{number}", "f", reads="x", writes=f"y@{number}")
    schedule = plan(made)
    for name, says in (
        ("work", "'work' stands for 3 tasks: name one, work@0 to work@2"), ("x", "'x' is a tensor, which these tasks use: work@0, work@1"),
        ("y", "'y' is a tensor"), ("wrok@1", "did you mean 'work@1'"), ("q", "`plan` lists the tasks"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=says):
            schedule.explain(name)


def test_a_pseudo_task_that_waits_for_nothing_says_so() -> None:
    schedule = plan(graph("a: -> x | b: x -> y", outputs="y"), streams=1)
    assert "every lane is done when main is" in str(schedule.explain("exit"))
    assert "no result is in host memory" in str(schedule.explain("host"))
    assert "main follows the caller's work anyway" in str(schedule.explain("entry"))
