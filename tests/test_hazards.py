"""Hazards: which pairs may not be reordered, and which may."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.errors import SpecError
from streamgraph.hazards import build_dag, build_graph, ensure_acyclic, find_hazards, task_graph
from streamgraph.model import Program
from streamgraph.plan import plan
from streamgraph.storages import Mode, meets, trace
from tests.programs import random_program
from tests.support import hazards, program


def test_a_value_read_after_its_write_is_the_only_hazard_of_a_value() -> None:
    assert hazards(program("a: -> x | b: x -> y | c: -> x | d: x -> z")) == ["RAW x: a -> b", "RAW x: c -> d"]


def test_a_buffer_has_all_three_hazards() -> None:
    assert hazards(program("a: -> w | b: w -> y | c: -> w", buffers="w")) == ["RAW w: a -> b", "WAR w: b -> c"]
    assert hazards(program("a: -> w | b: -> w", buffers="w")) == ["WAW w: a -> b"]


def test_an_update_of_a_value_keeps_the_version_and_waits_for_its_readers() -> None:
    assert hazards(program("a: -> h | b: h -> y | c: -> +h")) == ["RAW h: a -> b", "RAW h: a -> c", "WAR h: b -> c"]


def test_declared_in_the_other_order_the_reader_sees_the_updated_value() -> None:
    assert hazards(program("a: -> h | c: -> +h | b: h -> y")) == ["RAW h: a -> c", "RAW h: c -> b"]


def test_writing_the_name_of_an_input_rebinds_it_and_orders_nothing_with_readers_of_the_callers_tensor() -> None:
    assert hazards(program("a: x -> y | b: -> x | c: x -> z", inputs="x")) == ["RAW x: b -> c"]


def test_views_conflict_where_their_boxes_meet_and_nothing_between_has_replaced_that_part() -> None:
    graph = Graph("boxes")
    graph.buffer("b", "f32[8, 8]")
    for name, items in {"top": (slice(0, 4),), "low": (slice(4, 8),), "left": (slice(None), slice(0, 4)), "one": (5, 3)}.items():
        graph.view(name, "b", items)
    for name in ("top", "low", "left", "one"):
        graph.task(f"write_{name}", "mix", writes=name)
    found = {(pair.split(": ")[1]) for pair in hazards(graph.program())}
    assert found == {"write_top -> write_left", "write_low -> write_left", "write_left -> write_one"}


def test_a_later_write_covers_only_the_part_it_writes() -> None:
    graph = Graph("parts")
    graph.buffer("b", "f32[8]")
    graph.view("low", "b", (slice(0, 4),))
    graph.task("all", "mix", writes="b")
    graph.task("half", "mix", writes="low")
    graph.task("read", "mix", reads="b", writes="y")
    assert hazards(graph.program()) == ["WAW low: all -> half", "RAW b: all -> read", "RAW b: half -> read"]


def test_a_zero_size_tensor_has_no_hazards() -> None:
    graph = Graph("empty")
    graph.buffer("b", "f32[0, 4]")
    graph.task("a", "mix", writes="b")
    graph.task("b", "mix", reads="b")
    assert hazards(graph.program()) == []


def test_a_resource_orders_like_a_buffer() -> None:
    graph = Graph("communicator")
    graph.resource("comm")
    graph.task("a", "mix", updates="comm")
    graph.task("b", "mix", updates="comm")
    assert hazards(graph.program()) == ["RAW comm: a -> b"]


def test_after_orders_without_memory() -> None:
    graph = Graph("after")
    graph.task("a", "mix")
    graph.task("b", "mix", after="a")
    assert hazards(graph.program()) == ["after: a -> b"]


def test_host_tasks_keep_their_declared_order() -> None:
    assert hazards(program("a: -> ! | b: -> | c: -> !")) == ["host order: a -> c"]


def test_a_partial_writer_is_not_skipped_because_of_a_reader_that_came_before_it() -> None:
    """Found by the verifier: the reader of all of `b` precedes `low`, so it implies nothing about `low`."""
    graph = Graph("parts")
    graph.buffer("b", "f32[8]")
    graph.view("low", "b", (slice(0, 4),))
    graph.view("middle", "b", (slice(2, 6),))
    graph.task("read", "mix", reads="b")
    graph.task("half", "mix", writes="low")
    graph.task("centre", "mix", writes="middle")
    assert "WAW middle: half -> centre" in hazards(graph.program())


def ring(flat: bool, layers: int = 4, slots: int = 2) -> Graph:
    graph = Graph("ring")
    graph.input("x", "f32[4, 4]")
    host = graph.input("host", "f32[4, 4]", each={"layer": layers}, device="cpu", pinned=True)
    w = graph.buffer("w", "f32[4, 4]", each={"layer": layers}, slots=slots, over="layer")
    h = "x"
    if flat:
        for i in range(layers):
            graph.copy(f"load@{i}", host[i], w[i])
    for i in range(layers):
        if not flat:
            graph.copy(f"load@{i}", host[i], w[i])
        graph.task(f"mm@{i}", "mm", reads=[h, f"w@{i}"], writes="h")
        h = "h"
    return graph


def test_flat_and_grouped_forms_of_a_ring_have_the_same_hazards() -> None:
    """The reuse of slots needs two passes: in the flat form the next occupant's writer stands before the last occupant's reader."""
    flat, grouped = (hazards(ring(form).program()) for form in (True, False))
    assert sorted(flat) == sorted(grouped)
    assert "WAR w[slot 0]: mm@0 -> load@2" in flat


def test_the_flat_form_of_a_ring_is_issued_in_an_order_that_its_slots_allow() -> None:
    schedule = plan(ring(flat=True), streams=1)
    order = list(schedule.lane_of)
    assert order.index("mm@0") < order.index("load@2")
    assert order.index("mm@1") < order.index("load@3")


def test_a_ring_with_too_few_slots_names_the_tasks_and_the_smallest_ring_that_works() -> None:
    graph = Graph("ring")
    w = graph.buffer("w", "f32[4]", each={"layer": 4}, slots=2, over="layer")
    for i in range(4):
        graph.task(f"load@{i}", "mix", writes=w[i])
    graph.task("sum", "mix", reads=[[w[0], w[1], w[2]]], writes="y")
    graph.task("last", "mix", reads=w[3], writes="z")
    with pytest.raises(SpecError) as caught:
        plan(graph)
    (problem,) = caught.value.problems
    assert problem.code == "SG303"
    assert "slots: 3" in str(problem.help)
    assert "sum" in problem.message


@pytest.mark.parametrize("kind", ["reads", "updates"])
def test_one_task_cannot_use_two_occupants_of_one_slot(kind: str) -> None:
    graph = Graph("ring")
    w = graph.buffer("w", "f32[4]", each={"layer": 2}, slots=1, over="layer")
    graph.task("first", "mix", writes=w[0])
    graph.task("both", "mix", **{kind: w[0]}, writes=w[1])
    with pytest.raises(SpecError, match="'both' uses two that share a slot") as caught:
        plan(graph)
    assert "slots: 2" in str(caught.value.problems[0].help)


def brute_force(of: Program) -> nx.DiGraph:
    """Every conflicting pair, whatever lies between, by comparing all pairs of accesses."""
    accesses = trace(of)[0]
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(of.tasks)))
    every = [(task, access) for task, touched in enumerate(accesses.of_task) for access in touched]
    for (first, mine), (second, theirs) in itertools.combinations(every, 2):
        if (first, mine.turn) == (second, theirs.turn) or mine.storage != theirs.storage or not meets(mine.box, theirs.box):
            continue
        if mine.mode is Mode.READ and theirs.mode is Mode.READ:
            continue
        earlier, later = (first, second) if (mine.turn, first) < (theirs.turn, second) else (second, first)
        graph.add_edge(earlier, later)
    for later, task in enumerate(of.tasks):
        graph.add_edges_from((of.index_of_task[name], later) for name in task.after)
    graph.add_edges_from(itertools.pairwise(index for index, task in enumerate(of.tasks) if task.host))
    return graph


@settings(max_examples=1000)
@given(data=st.data())
def test_the_frontier_orders_exactly_the_conflicting_pairs(data: st.DataObject) -> None:
    of = random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=12)
    every, found = brute_force(of), task_graph(of)
    assert set(found.edges) <= set(every.edges)
    assert set(nx.transitive_closure(found).edges) == set(nx.transitive_closure(every).edges)


def test_hazards_of_one_pair_are_all_kept_on_its_edge() -> None:
    of = program("a: w -> x | b: x -> w", buffers="w")
    dag = build_dag(of, find_hazards(of, trace(of)[0]))
    assert [hazard.kind for hazard in dag.between(0, 1)] == ["WAR", "RAW"]
    assert task_graph(of).edges[0, 1]["hazards"] == dag.between(0, 1)
    ensure_acyclic(of, dag)


@given(data=st.data())
def test_the_planners_dag_is_the_users_graph(data: st.DataObject) -> None:
    of = random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=12)
    hazards = find_hazards(of, trace(of)[0])
    dag, graph = build_dag(of, hazards), build_graph(of, hazards)
    assert {(a, b): dag.between(a, b) for b, group in enumerate(dag.earlier) for a in group} == {
        edge: graph.edges[edge]["hazards"] for edge in graph.edges
    }
    assert [sorted(graph.successors(task)) for task in graph] == [list(group) for group in dag.later]
    assert dag.is_in_order == all(a < b for a, b in graph.edges)


def test_many_readers_then_a_writer_stay_linear_in_accesses() -> None:
    graph = Graph("fan")
    graph.buffer("b", "f32[4]")
    graph.task("write", "mix", writes="b")
    for index in range(1000):
        graph.task(f"read@{index}", "mix", reads="b")
    graph.task("again", "mix", writes="b")
    of = graph.program()
    assert len(find_hazards(of, trace(of)[0])) == 2000


@st.composite
def programs_of_parts(draw: st.DrawFn) -> Program:
    """Tasks that use boxes of one buffer in two dimensions, more of them than are looked through one by one."""
    graph = Graph("parts")
    graph.buffer("b", "f32[6, 5]")
    spans = st.tuples(st.integers(0, 5), st.integers(1, 6)).filter(lambda pair: pair[0] < pair[1])
    names = ["b"]
    for number in range(draw(st.integers(1, 12))):
        rows, columns = draw(spans), draw(spans.filter(lambda pair: pair[1] <= 5))
        graph.view(f"b.{number}", "b", (slice(*rows), slice(*columns)))
        names.append(f"b.{number}")
    for number in range(draw(st.integers(1, 16))):
        role = draw(st.sampled_from(["reads", "writes", "updates"]))
        graph.task(f"t{number}", "mix", **{role: draw(st.sampled_from(names))})
    return graph.program()


@settings(max_examples=250, deadline=None)
@given(of=programs_of_parts())
def test_parts_in_two_dimensions_are_ordered_exactly_where_they_conflict(of: Program) -> None:
    every, found = brute_force(of), task_graph(of)
    assert set(found.edges) <= set(every.edges)
    assert set(nx.transitive_closure(found).edges) == set(nx.transitive_closure(every).edges)
    for earlier, later in found.edges:  # what is kept names a real conflict
        kinds = {hazard.kind for hazard in found.edges[earlier, later]["hazards"]}
        roles = [("reads" if of.tasks[task].reads else "writes" if of.tasks[task].writes else "updates") for task in (earlier, later)]
        assert kinds == {"WAR" if roles[0] == "reads" else "WAW" if roles[1] == "writes" else "RAW"}


@settings(max_examples=200, deadline=None)
@given(of=programs_of_parts(), streams=st.integers(1, 4))
def test_plans_of_parts_are_safe(of: Program, streams: int) -> None:
    plan(of, streams=streams, policy="critical_path")  # which verifies
