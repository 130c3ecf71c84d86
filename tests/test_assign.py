"""Lanes and issue order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.cost import task_costs
from streamgraph.hazards import build_dag, find_hazards
from streamgraph.model import HOST
from streamgraph.passes.assign import Assignment, assign
from streamgraph.plan import plan
from streamgraph.storages import trace
from tests.programs import random_program
from tests.support import graph, program


def lanes(text: str, streams: int | str = "auto", order: str = "declared", cost: float = 100.0, **declared: str) -> dict[str, str]:
    return plan(graph(text, cost=cost, **declared), streams=streams, order=order).lane_of


def test_a_chain_stays_on_the_callers_lane() -> None:
    assert set(lanes("a: -> x | b: x -> y | c: y -> z").values()) == {"main"}


def test_independent_tasks_get_lanes_of_their_own() -> None:
    assert len(set(lanes("a: -> x | b: -> y | c: -> z | d: x y z -> o").values())) == 3


def test_tasks_too_short_to_pay_for_a_handover_stay_together() -> None:
    assert set(lanes("a: -> x | b: -> y | c: x y -> z", cost=0.5).values()) == {"main"}


def test_streams_bounds_the_lanes_of_free_tasks() -> None:
    assert len(set(lanes("a: -> x | b: -> y | c: -> z | d: -> o", streams=2).values())) == 2
    assert set(lanes("a: -> x | b: -> y | c: -> z | d: -> o", streams=1).values()) == {"main"}


def test_pinned_tasks_keep_their_lane_and_free_tasks_stay_off_it() -> None:
    found = lanes("up: -> x @copy | a: -> y | b: x y -> z")
    assert found["up"] == "copy"
    assert "copy" not in (found["a"], found["b"])


def test_names_of_free_lanes_avoid_pinned_ones() -> None:
    found = lanes("p: -> w @s1 | a: -> x | b: -> y | c: w x y -> z")
    assert set(found.values()) == {"s1", "main", "s2"}


def test_host_tasks_run_on_the_host() -> None:
    assert lanes("h: -> p ! | a: p -> x", hosts="p")["h"] == HOST


def test_an_output_is_made_on_the_callers_lane_where_that_costs_nothing() -> None:
    schedule = plan(graph("a: -> x | b: -> y", outputs="y", cost=100.0))
    assert len(schedule.lanes) == 2
    assert schedule.counts.record_streams == 0
    late = plan(graph("a: -> x @side | b: x -> y", outputs="y", cost=100.0))
    assert late.lane_of["b"] == "main"


def test_auto_order_issues_the_critical_path_first() -> None:
    text = "short: -> s | long1: -> a | long2: a -> b | long3: b -> c | join: s c -> o"
    assert next(iter(lanes(text, order="declared"))) == "short"
    assert next(iter(lanes(text, order="auto"))) == "long1"


def test_a_declared_priority_reaches_the_lane() -> None:
    made = graph("a: -> x @copy | b: x -> y")
    made.stream("copy", priority="high")
    assert [(lane.name, lane.priority) for lane in plan(made).lanes] == [("main", "normal"), ("copy", "high")]


@settings(max_examples=200)
@given(data=st.data(), order=st.sampled_from(["declared", "auto"]), streams=st.integers(1, 5))
def test_issue_order_is_topological_and_estimates_respect_it(data: st.DataObject, order: str, streams: int) -> None:
    of = random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=10)
    accesses = trace(of)[0]
    dag = build_dag(of, find_hazards(of, accesses))
    edges = [(earlier, later) for later, group in enumerate(dag.earlier) for earlier in group]
    made: Assignment = assign(of, dag, accesses, task_costs(of, accesses).microseconds, streams, order)  # type: ignore[arg-type]
    place = {task: index for index, task in enumerate(made.order)}
    assert sorted(place) == list(range(len(of.tasks)))
    for earlier, later in edges:
        assert place[earlier] < place[later]
        assert made.finish[earlier] <= made.start[later]


@settings(max_examples=200)
@given(data=st.data())
def test_declared_order_is_kept_where_no_ring_forbids_it(data: st.DataObject) -> None:
    of = random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=10, rings=False)
    assert list(plan(of).lane_of) == [task.name for task in of.tasks]


def test_an_empty_program_has_an_empty_plan() -> None:
    assert plan(program("a: ->")).counts.tasks == 1
    from streamgraph.builder import Graph

    assert plan(Graph("nothing")).steps == ()
