"""The edges of a captured graph: a path for every hazard, and none between tasks that the plan leaves without an order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
import torch

from streamgraph.executors.device import CudaDevice
from streamgraph.executors.graph import GraphExecutor
from streamgraph.model import ENTRY, MAIN, Task
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.schedule import Launch, Record, Schedule, Wait
from tests.cuda.support import inputs_on_gpu
from tests.programs import mix_for, seeded
from tests.running import hurried, inputs_of

pytestmark = pytest.mark.cuda


class Keeping(CudaDevice):
    """Graphs that can be looked into."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[torch.cuda.CUDAGraph] = []

    def new_graph(self) -> torch.cuda.CUDAGraph:
        self.graphs.append(torch.cuda.CUDAGraph(keep_graph=True))
        return self.graphs[-1]


def nodes_of(graph: Any) -> list[int]:
    from cuda.bindings import driver

    *_, count = driver.cuGraphGetNodes(graph)
    return [int(node) for node in driver.cuGraphGetNodes(graph, count)[1]] if count else []


def edges_of(graph: Any) -> list[tuple[int, int]]:
    from cuda.bindings import driver

    *_, count = driver.cuGraphGetEdges(graph)
    if not count:
        return []
    found = driver.cuGraphGetEdges(graph, count)
    return [(int(earlier), int(later)) for earlier, later in zip(found[1], found[2], strict=True)]


def priorities_of(nodes: list[int]) -> set[int]:
    """The priorities of those nodes that are kernels."""
    from cuda.bindings import driver

    kernels = [node for node in map(driver.CUgraphNode, nodes) if driver.cuGraphNodeGetType(node)[1].name.endswith("_KERNEL")]
    priority = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY
    return {driver.cuGraphKernelNodeGetAttribute(node, priority)[1].priority for node in kernels}


def captured_order(schedule: Schedule, priorities: dict[str, set[int]] | None = None) -> set[tuple[str, str]]:
    """The pairs of tasks with a path from all nodes of the one to all nodes of the other. `priorities` gets each kernel's."""
    from cuda.bindings import driver

    device, of = Keeping(), schedule.program
    mix, made = mix_for(of, "cuda"), dict[str, list[int]]()

    def so_far() -> list[int]:
        return nodes_of(driver.cuStreamGetCaptureInfo(torch.cuda.current_stream().cuda_stream)[3])

    def noting(task: Task) -> Callable[..., Any]:
        healthy = mix(task)

        def call(*positional: Any, **keywords: Any) -> Any:
            if not torch.cuda.is_current_stream_capturing():
                return healthy(*positional, **keywords)
            before = set(so_far())
            result = healthy(*positional, **keywords)
            made[task.name] = [node for node in so_far() if node not in before]
            return result

        return call

    executor = GraphExecutor(schedule, resolve(of, noting, str(device.location), schedule.accesses), device, 0, {})
    for _ in range(2):
        executor.run(inputs_on_gpu(of, inputs_of(of, 0)))
    (graph,) = device.graphs
    torch.cuda.synchronize()
    raw = driver.CUgraph(graph.raw_cuda_graph())
    dag = nx.DiGraph(edges_of(raw))
    dag.add_nodes_from(nodes_of(raw))
    if priorities is not None:
        priorities.update((task, priorities_of(nodes)) for task, nodes in made.items())
    executor.close()
    assert all(made[task.name] for task in of.tasks if not task.is_copy), "a task left no node"
    reached = {node: nx.descendants(dag, node) for nodes in made.values() for node in nodes}
    return {
        (first, second)
        for first in made
        for second in made
        if first != second and all(later in reached[earlier] for earlier in made[first] for later in made[second])
    }


def planned_order(schedule: Schedule) -> set[tuple[str, str]]:
    """The pairs that lanes and waits order."""
    dag: nx.DiGraph[str] = nx.DiGraph()
    last: dict[str, str] = {}
    waits: dict[str, list[str]] = {}
    for step in schedule.steps:
        if isinstance(step, Wait):
            waits.setdefault(step.lane, []).append(schedule.event_task[step.event])
        elif isinstance(step, Launch):
            dag.add_node(step.task)
            dag.add_edges_from((earlier, step.task) for earlier in waits.pop(step.lane, ()))
            if step.lane in last:
                dag.add_edge(last[step.lane], step.task)
            last[step.lane] = step.task
    return set(nx.transitive_closure_dag(dag).edges)


def hazards(schedule: Schedule) -> set[tuple[str, str]]:
    tasks = schedule.program.tasks
    return {(tasks[earlier].name, tasks[later].name) for earlier, later in schedule.graph.edges}


def holdable(seed: int, tasks: int) -> Schedule:
    """The plan of a random program without host tasks, and whose copies are the operators' own."""
    while True:
        schedule = plan(seeded(seed, tasks=tasks, hosts=False), streams=3)
        if not any(task.host for task in schedule.program.tasks):
            return schedule
        seed += 10**6


@pytest.mark.parametrize("seed", range(48))
def test_every_hazard_is_a_path_of_the_graph_and_no_other_order_is(seed: int) -> None:
    schedule = holdable(seed, 12)
    noted = {task.name for task in schedule.program.tasks if not task.is_copy}
    captured = captured_order(schedule)
    planned = {pair for pair in planned_order(schedule) if noted.issuperset(pair)}
    assert {pair for pair in hazards(schedule) if noted.issuperset(pair)} <= captured
    assert captured == planned


@pytest.mark.parametrize("seed", range(24))
def test_urgent_launches_are_kernels_of_high_priority_and_add_no_order(seed: int) -> None:
    schedule = hurried(holdable(seed, 12), seed)
    noted = {task.name for task in schedule.program.tasks if not task.is_copy}
    found: dict[str, set[int]] = {}
    assert captured_order(schedule, found) == {pair for pair in planned_order(schedule) if noted.issuperset(pair)}
    high = {lane.name for lane in schedule.lanes if lane.priority == "high"}
    assert found.keys() == noted
    for task, priorities in found.items():
        assert priorities <= {-1 if task in schedule.urgent or schedule.lane_of[task] in high else 0}, task
    assert any(found.values())


@pytest.mark.parametrize("seed", range(6))
def test_a_missing_wait_is_a_missing_path(seed: int) -> None:
    schedule = holdable(seed, 12)
    while not any(step.task == ENTRY for step in schedule.steps if isinstance(step, Record)):
        seed += 1000  # one lane
        schedule = holdable(seed, 12)
    noted = {task.name for task in schedule.program.tasks if not task.is_copy}
    needed = [s for s in schedule.steps if isinstance(s, Wait) and s.reasons[0].kind in ("RAW", "WAR", "WAW")]
    for dropped in needed[:2]:
        # The lane still joins the capture, and is joined by it in the end.
        entry = replace(dropped, event=next(s.event for s in schedule.steps if isinstance(s, Record) and s.task == ENTRY))
        steps = [entry if step is dropped else step for step in schedule.steps]
        mutant = replace(schedule, steps=(*steps, Wait(dropped.event, MAIN)))
        captured = captured_order(mutant)
        assert captured < {pair for pair in planned_order(schedule) if noted.issuperset(pair)}
