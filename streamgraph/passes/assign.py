"""Assign: the DAG and its costs become an issue order and a lane for every task.

List scheduling: tasks are placed one after another, each on the lane where it starts first. With `order="declared"` they are placed in
the topological
order nearest to declaration order; with `order="auto"` by longest remaining path, so that the critical path is issued first
(bottom-level list scheduling: Kwok and Ahmad, "Static scheduling algorithms for allocating directed task graphs to multiprocessors", ACM
Computing Surveys 31(4), 1999). Pinned tasks keep their lane; host tasks run on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Literal

from streamgraph.model import HOST, MAIN, OUTPUT_PREFIX, Program
from streamgraph.schedule import Lane
from streamgraph.storages import Accesses

if TYPE_CHECKING:
    import networkx as nx

MOST_LANES = 8  # graph replay gains up to eight streams on an H200 and hardly beyond (docs/gpu.md)
HANDOVER = 2.0  # microseconds that a record and a wait between two lanes add before the waiting kernel starts (docs/gpu.md)
WORTH = 0.99  # more lanes must shorten the estimate by at least one percent


@dataclass(frozen=True, slots=True)
class Assignment:
    """`order`: tasks in issue order. `lane_of`: index into `lanes`, by declaration index; the host, if used, is the last lane.

    `start` and `finish` are estimates in microseconds, by declaration index.
    """

    order: tuple[int, ...]
    lane_of: tuple[int, ...]
    lanes: tuple[Lane, ...]
    start: tuple[float, ...]
    finish: tuple[float, ...]

    @property
    def makespan(self) -> float:
        """The estimated end of the last task."""
        return max(self.finish, default=0.0)


def assign(
    program: Program,
    graph: nx.DiGraph[int],
    accesses: Accesses,
    costs: Sequence[float],
    streams: int | Literal["auto"],
    order: Literal["declared", "auto"],
) -> Assignment:
    """The lanes and the issue order. `streams` bounds the lanes that unpinned tasks may use, `main` included; pinned lanes come on top.

    "auto" tries 1, 2, 4 and 8 and keeps the shortest estimate, fewer lanes where more gain under one percent.
    """
    ranked = _bottom_levels(graph, costs) if order == "auto" else None
    free = any(task.stream is None and not task.host for task in program.tasks)
    limits = [streams] if streams != "auto" else [1, 2, 4, MOST_LANES] if free else [1]
    best = _place(program, graph, accesses, costs, limits[0], ranked)
    for limit in limits[1:]:
        trial = _place(program, graph, accesses, costs, limit, ranked)
        if trial.makespan < WORTH * best.makespan:
            best = trial
    return best


def _bottom_levels(graph: nx.DiGraph[int], costs: Sequence[float]) -> list[float]:
    """Per task, the longest path of costs from its start to the end of the program, in microseconds."""
    import networkx as nx

    level = list(costs)
    for task in reversed(list(nx.topological_sort(graph))):
        level[task] += max((level[later] for later in graph.successors(task)), default=0.0)
    return level


def _place(
    program: Program, graph: nx.DiGraph[int], accesses: Accesses, costs: Sequence[float], limit: int, ranked: list[float] | None
) -> Assignment:
    tasks = program.tasks
    lanes = _declared_lanes(program)
    index_of = {lane.name: index for index, lane in enumerate(lanes)}
    open_lanes = [0]  # lanes that unpinned tasks may use
    taken = set(index_of)
    available = [0.0] * len(lanes)
    host_free = 0.0
    to_caller = {accesses.storages[s].producer for s in accesses.output_storages if not accesses.storages[s].host}
    lane_of, start, finish = [0] * len(tasks), [0.0] * len(tasks), [0.0] * len(tasks)
    missing = [graph.in_degree(task) for task in range(len(tasks))]
    ready = [(_key(ranked, task), task) for task in range(len(tasks)) if missing[task] == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, task = heappop(ready)
        order.append(task)
        earlier = list(graph.predecessors(task))
        if tasks[task].host:
            lane_of[task] = -1
            start[task] = max([host_free, *(finish[p] for p in earlier)])
            host_free = finish[task] = start[task] + costs[task]
        else:
            pinned = tasks[task].stream
            candidates = [index_of[pinned]] if pinned is not None else list(open_lanes)
            if pinned is None and len(open_lanes) < limit:
                candidates.append(len(lanes))
            begin = {lane: _earliest(lane, earlier, lane_of, finish, available) for lane in candidates}
            if task in to_caller and 0 in begin:
                begin[0] = max(begin[0] - HANDOVER, 0.0)  # an output made on lane 0 needs no record_stream
            last = max(earlier, key=lambda p: (finish[p], -p), default=None)
            home = lane_of[last] if last is not None else 0
            preferred = 0 if task in to_caller else home
            lane = min(candidates, key=lambda c: (begin[c], c == len(lanes), c != preferred, c))
            if lane == len(lanes):
                lanes.append(Lane(_fresh(taken)))
                available.append(0.0)
                open_lanes.append(lane)
            lane_of[task] = lane
            start[task] = _earliest(lane, earlier, lane_of, finish, available)
            available[lane] = finish[task] = start[task] + costs[task]
        for later in graph.successors(task):
            missing[later] -= 1
            if missing[later] == 0:
                heappush(ready, (_key(ranked, later), later))
    _outputs_on_main(program, to_caller, open_lanes, lane_of)
    lanes.append(Lane(HOST))
    host = len(lanes) - 1
    return Assignment(tuple(order), tuple(host if lane < 0 else lane for lane in lane_of), tuple(lanes), tuple(start), tuple(finish))


def _outputs_on_main(program: Program, to_caller: set[int | None], open_lanes: list[int], lane_of: list[int]) -> None:
    """Let `main` and the free lane that makes the most outputs change places, in `lane_of`: each output made on main saves a
    record_stream."""
    if any(task.stream == MAIN for task in program.tasks):
        return
    declared = [task for task in to_caller if task is not None and not program.tasks[task].name.startswith(OUTPUT_PREFIX)]
    made = {lane: sum(lane_of[task] == lane for task in declared) for lane in open_lanes}
    best = max(open_lanes, key=lambda lane: (made[lane], -lane))
    swap = {0: best, best: 0}
    lane_of[:] = [swap.get(lane, lane) for lane in lane_of]


def _key(ranked: list[float] | None, task: int) -> float:
    """What is placed first: the longest remaining path, or the first declared."""
    return float(task) if ranked is None else -ranked[task]


def _earliest(lane: int, earlier: list[int], lane_of: list[int], finish: list[float], available: list[float]) -> float:
    """When a task could start on the lane; the handover from another lane takes time, and so does the entry event on a new one."""
    free = available[lane] if lane < len(available) else HANDOVER
    return max([free, *(finish[p] + (HANDOVER if lane_of[p] != lane else 0.0) for p in earlier)])


def _declared_lanes(program: Program) -> list[Lane]:
    """`main`, then the lanes that tasks are pinned to: declared streams first, the others as they appear."""
    priority = {stream.name: stream.priority for stream in program.streams}
    pinned = dict.fromkeys(task.stream for task in program.tasks if task.stream is not None)
    names = [MAIN, *(name for name in priority if name in pinned and name != MAIN)]
    names += [name for name in pinned if name not in names]
    return [Lane(name, priority.get(name, "normal")) for name in names]


def _fresh(taken: set[str]) -> str:
    """The next of s1, s2, ... that no task is pinned to."""
    number = 1
    while f"s{number}" in taken:
        number += 1
    taken.add(f"s{number}")
    return f"s{number}"
