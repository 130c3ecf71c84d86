"""The README's promise: the waits are exactly the cross-lane edges of networkx's transitive reduction, and events follow from them."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.hazards import task_graph
from streamgraph.model import HOST, Kind, Program
from streamgraph.plan import plan
from streamgraph.schedule import HostWait, Launch, Record, Schedule, Wait
from streamgraph.storages import Mode
from tests.programs import random_program
from tests.support import waited


def oracle(schedule: Schedule) -> set[tuple[str, str]]:
    """Cross-lane edges of the transitive reduction of hazards, lane FIFO, entry, exit and the caller's host reads."""
    program = schedule.program
    order = [step.task for step in schedule.steps if isinstance(step, Launch)]
    lane = {**schedule.lane_of, "entry": "main", "exit": "main", "host": HOST}
    graph = nx.DiGraph()
    graph.add_nodes_from(["entry", *order, "exit", "host"])
    for earlier, later in task_graph(program).edges:
        graph.add_edge(program.tasks[earlier].name, program.tasks[later].name)
    for name in order:
        if lane[name] != HOST:
            graph.add_edge("entry", name)
        graph.add_edge(name, "exit")
    for row in {lane[name] for name in order}:
        mine = [name for name in order if lane[name] == row]
        graph.add_edges_from(itertools.pairwise(mine))
    if "main" in lane.values():
        graph.add_edge("entry", "exit")
    on_host = [name for name in order if lane[name] == HOST]
    if on_host:
        graph.add_edge(on_host[-1], "host")
    for user in caller_uses(program, lane, schedule):
        graph.add_edge(user, "host")
    return {(a, b) for a, b in nx.transitive_reduction(graph).edges if lane[a] != lane[b]}


def caller_uses(program: Program, lane: dict[str, str], schedule: Schedule) -> set[str]:
    found = set()
    for task, touched in zip(program.tasks, schedule.accesses.of_task, strict=True):
        for access in touched:
            storage = schedule.accesses.storages[access.storage]
            changed = storage.kind is Kind.INPUT and access.mode is not Mode.READ
            if storage.host and (changed or access.storage in schedule.accesses.output_storages) and lane[task.name] != HOST:
                found.add(task.name)
    return found


@pytest.mark.parametrize("order", ["declared", "auto"])
@settings(max_examples=400)
@given(data=st.data())
def test_waits_are_the_cross_lane_edges_of_the_transitive_reduction(order: str, data: st.DataObject) -> None:
    program = random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=10)
    schedule = plan(program, order=order)
    assert waited(schedule) == oracle(schedule)


@settings(max_examples=200)
@given(data=st.data())
def test_an_event_is_recorded_once_for_each_task_that_is_waited_for_and_for_no_other(data: st.DataObject) -> None:
    schedule = plan(random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=10))
    recorded = [step.event for step in schedule.steps if isinstance(step, Record)]
    assert len(recorded) == len(set(recorded))
    assert set(recorded) == {step.event for step in schedule.steps if isinstance(step, Wait | HostWait)}
    tasks = [step.task for step in schedule.steps if isinstance(step, Record)]
    assert len(tasks) == len(set(tasks))


@settings(max_examples=100)
@given(data=st.data())
def test_one_lane_needs_no_event_at_all(data: st.DataObject) -> None:
    program = random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=10, lanes=0, hosts=False)
    counts = plan(program, streams=1).counts
    assert (counts.events, counts.waits, counts.host_waits, counts.record_streams) == (0, 0, 0, 0)
