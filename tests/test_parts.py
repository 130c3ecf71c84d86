"""Parts: every task stands in one piece, and the pieces order exactly what the plan orders."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.executors.parts import Cut, cut, issues_of, moving
from streamgraph.iterations import PSEUDO, SOURCE
from streamgraph.model import HOST
from streamgraph.plan import plan
from streamgraph.schedule import HostWait, Launch, Schedule, Wait
from tests.programs import seeded
from tests.support import graph
from tests.test_graph_pipeline import planned
from tests.test_pipeline import items_of


def cut_of(schedule: Schedule, bound: frozenset[str] = frozenset()) -> Cut:
    return cut(issues_of(schedule), moving(schedule.program, schedule.accesses, bound), 1)


def ordered(schedule: Schedule) -> set[tuple[str, str]]:
    """The pairs of tasks that lanes, waits and host waits order, the host's own order included."""
    dag: nx.DiGraph[str] = nx.DiGraph()
    last: dict[str, str] = {}
    waits: dict[str, list[str]] = {}
    tasks = {task.name for task in schedule.program.tasks}
    for step in schedule.steps:
        if isinstance(step, Wait | HostWait) and not (isinstance(step, HostWait) and step.previous):
            waits.setdefault(HOST if isinstance(step, HostWait) else step.lane, []).append(schedule.event_task[step.event])
        elif isinstance(step, Launch):
            dag.add_node(step.task)
            dag.add_edges_from((earlier, step.task) for earlier in waits.pop(step.lane, ()) if earlier in tasks)
            if step.lane in last:
                dag.add_edge(last[step.lane], step.task)
            last[step.lane] = step.task
    return set(nx.transitive_closure_dag(dag).edges)


def issued(schedule: Schedule, made: Cut) -> set[tuple[str, str]]:
    """The pairs that the pieces order: edges and lanes inside of a part, events between pieces, streams, and the issuing thread."""
    dag: nx.DiGraph[str] = nx.DiGraph()
    lane_of = schedule.lane_of
    eager_on: dict[str, str] = {}  # by lane: the eager launch that is on its stream last
    hosted: list[str] = []
    for piece in made.pieces:
        in_part: dict[str, str] = {}
        for member in piece.members:
            task, lane = member.issue.task, member.issue.lane
            dag.add_node(task)
            dag.add_edges_from((name, task) for name in member.inside)
            dag.add_edges_from((back.name, task) for back in member.outside if back.by == 0)
            dag.add_edges_from((name, task) for name in hosted[-1:])  # the thread that issues it is past that
            if piece.kind == "host":
                hosted.append(task)
            elif piece.kind == "eager":
                if lane in eager_on:
                    dag.add_edge(eager_on[lane], task)
                eager_on[lane] = task
            else:
                if lane in in_part:
                    dag.add_edge(in_part[lane], task)
                in_part[lane] = task
            assert lane_of[task] == lane
    assert nx.is_directed_acyclic_graph(dag)
    return set(nx.transitive_closure_dag(dag).edges)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(1, 4), bound=st.booleans())
def test_the_pieces_of_a_schedule_order_what_the_plan_orders_and_nothing_else(seed: int, streams: int, bound: bool) -> None:
    schedule = plan(seeded(seed, tasks=14), streams=streams)
    made = cut_of(schedule, frozenset({"hx"} if bound else ()))
    names = [member.issue.task for piece in made.pieces for member in piece.members]
    assert sorted(names) == sorted(task.name for task in schedule.program.tasks)
    assert issued(schedule, made) == ordered(schedule)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), inflight=st.integers(1, 3))
def test_every_event_of_an_iteration_has_been_issued_before_it_is_waited_for(seed: int, inflight: int) -> None:
    of = seeded(seed, tasks=12)
    loop = planned(of, items_of(of, seed), inflight)
    period = max(loop.reach, inflight)
    eager = frozenset(task.name for task in of.tasks if any(name == "hx" for entry in task.reads for name in entry.tensors))
    made = cut(loop.steady, eager, period)
    issued: set[str] = set()
    on_host = {issue.task for issue in loop.steady if issue.lane == HOST}
    for piece in made.pieces:
        here = {member.issue.task for member in piece.members}
        for member in piece.members:
            assert set(member.inside) <= here
            assert all(back.by > 0 or back.name in issued for back in member.outside)
            assert all(back.by < period for back in member.outside)
            assert {back.name for back in member.outside} <= made.shown
            assert not {back.name for back in member.outside} & on_host
        issued |= here
    tasks = {issue.task for issue in loop.steady if issue.task not in PSEUDO}
    assert tasks <= issued
    waited = {back.name for issue in loop.steady if issue.lane == HOST and issue.task != SOURCE for back in issue.waits} - on_host
    assert waited <= made.shown


@pytest.mark.parametrize(
    ("text", "bound", "pieces"),
    [
        # Nothing on the host: one part, whatever the lanes.
        ("a: x -> y @one | b: x -> z @two | c: y z -> v @main", "", "part a b c"),
        # `b` does not wait for the host task, and is not held back by it; `d` and `e` are ready together.
        ("a: x -> h @one | p: h -> k ! | b: x -> y @two | d: k y -> v @two | e: v -> w @main", "", "part a b; host p; part d e"),
        # A host task that follows another one's part.
        ("p: h -> k ! | a: k -> y @one | b: y -> h @one | q: h -> k ! | c: k -> v @two", "", "host p; part a b; host q; part c"),
        # What the caller brings on the host is read where it lies, by launches of their own; parts are as few as these allow.
        ("a: hx -> y @one | b: hx -> z @two | c: y z -> v @main", "", "eager a; eager b; part c"),
        ("a: x -> y @one | b: hx y -> z @two | c: y z -> v @main", "", "part a; eager b; part c"),
        ("a: hx -> y @one | b: hx -> z @two | c: y z -> v @main", "hx", "part a b c"),
        # One such launch after another holds nothing up: `t` is not launched in between, by a graph of its own.
        ("a: hx -> y @one | t: x -> u @two | b: hx y -> z @three | c: y z u -> v @main", "", "eager a; eager b; part t c"),
    ],
)
def test_what_becomes_a_part(text: str, bound: str, pieces: str) -> None:
    made = graph(text, "x", hosts="h k")
    made.input("hx", "i64[8]", device="cpu", pinned=True)
    found = cut_of(plan(made.program()), frozenset(bound.split()))
    assert "; ".join(f"{piece.kind} {' '.join(m.issue.task for m in piece.members)}" for piece in found.pieces) == pieces
