"""Work: a Program, its DAG and its costs become what a policy needs to know, in plain tuples by declaration index.

Made once and handed to every policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal

from streamgraph.devices import of_tasks
from streamgraph.hazards import Dag
from streamgraph.model import CPU, DEVICE, HOST, MAIN, OUTPUT_PREFIX, Program
from streamgraph.schedule import Lane
from streamgraph.storages import Accesses

HANDOVER = 2.0  # microseconds that policies count for a record and a wait: the host's, as a device hands over in less than 0.1
SLACK = 0.02  # of the longest path: a task that has less than that is urgent
FREE, ON_HOST = -2, -1


@dataclass(frozen=True, slots=True)
class Work:
    """Tasks in declaration order: `costs` in microseconds, their direct predecessors and successors, and where each must run.

    `home` is the index of a pinned task's lane in `lanes`, ON_HOST, or FREE. `lanes` are `main` and those that tasks are pinned to.
    `bottom` is the longest path of costs from a task's start to the end of the program. `declared` is the topological order nearest to
    declaration order. `order` is the issue order that policies start from: `declared`, or the one in which the longest remaining path goes
    first; only then may a policy choose another. `results` are the tasks that make device outputs, `declared_results` those that were not
    generated. `device` is the number of each task's device, 0 being that of `main`, and -1 for the host. `urgent` are the tasks that
    could not be later by SLACK of the longest path without making it longer (the critical path method of Kelley and Walker, 1959).
    `captured`: the tasks will be kernels of a CUDA graph, where lanes and waits are edges, and each launch has a priority of its own.
    """

    costs: tuple[float, ...]
    earlier: tuple[tuple[int, ...], ...]
    later: tuple[tuple[int, ...], ...]
    home: tuple[int, ...]
    lanes: tuple[Lane, ...]
    bottom: tuple[float, ...]
    declared: tuple[int, ...]
    order: tuple[int, ...]
    may_reorder: bool
    results: frozenset[int]
    declared_results: frozenset[int]
    device: tuple[int, ...]
    urgent: tuple[int, ...]
    captured: bool = False

    @property
    def has_devices(self) -> bool:
        """Whether tasks run on several devices."""
        return max(self.device, default=0) > 0

    @property
    def free(self) -> tuple[int, ...]:
        """The tasks that a policy may place, in declaration order."""
        return tuple(task for task, home in enumerate(self.home) if home == FREE)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a policy decides: an issue order, and for each free task the number of its stream, 0 being `main`; others have -1.

    A policy that knows no bound may number more streams than there may be: `assign.fold` puts them together. `high` are the streams, but
    for `main`, whose kernels shall go first; without any, the lane of most of the critical path is (or each urgent task: `assign.settle`).
    """

    order: tuple[int, ...]
    stream: tuple[int, ...]
    high: tuple[int, ...] = ()


def work_of(
    program: Program, dag: Dag, accesses: Accesses, costs: Sequence[float], order: Literal["declared", "auto"], *, captured: bool = False
) -> Work:
    """The work that a program's DAG is."""
    count = len(program.tasks)
    earlier, later = dag.earlier, dag.later
    lanes = _declared_lanes(program)
    index_of = {lane.name: index for index, lane in enumerate(lanes)}
    home = tuple(ON_HOST if t.host else FREE if t.stream is None else index_of[t.stream] for t in program.tasks)
    declared = tuple(range(count)) if dag.is_in_order else topological(earlier, later, range(count))
    bottom = list(costs)
    for task in reversed(declared):
        if later[task]:
            bottom[task] += max(bottom[other] for other in later[task])
    results = [accesses.storages[s].producer for s in sorted(accesses.output_storages) if not accesses.storages[s].host]
    made = frozenset(task for task in results if task is not None)
    own = frozenset(task for task in made if not program.tasks[task].name.startswith(OUTPUT_PREFIX))
    number = {CPU: -1, DEVICE: 0} | {name: place for place, name in enumerate(program.devices)}
    device = tuple(number[name] for name in of_tasks(program))
    issue = declared if order == "declared" else topological(earlier, later, [-level for level in bottom])
    urgent = _without_slack(costs, later, bottom, declared)
    return Work(
        tuple(costs), earlier, later, home, lanes, tuple(bottom), declared, issue, order == "auto", made, own, device, urgent, captured
    )


def _without_slack(
    costs: Sequence[float], later: Sequence[Sequence[int]], bottom: Sequence[float], declared: Sequence[int]
) -> tuple[int, ...]:
    """The tasks that could not be later by SLACK of the longest path without making it longer, in declaration order."""
    longest = max(bottom, default=0.0)
    top = [0.0] * len(costs)
    for task in declared:
        end = top[task] + costs[task]
        for other in later[task]:
            if end > top[other]:
                top[other] = end
    return tuple(task for task, rest in enumerate(bottom) if longest - top[task] - rest < SLACK * longest)


def topological(
    earlier: Sequence[Sequence[int]], later: Sequence[Sequence[int]], key: Sequence[float]
) -> tuple[int, ...]:
    """The topological order in which, of all tasks that could come next, the one with the least key does; ties by declaration."""
    missing = [len(group) for group in earlier]
    ready = [(key[task], task) for task, count in enumerate(missing) if count == 0]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, task = heappop(ready)
        order.append(task)
        for other in later[task]:
            missing[other] -= 1
            if missing[other] == 0:
                heappush(ready, (key[other], other))
    return tuple(order)


def _declared_lanes(program: Program) -> tuple[Lane, ...]:
    """`main`, then the lanes that tasks are pinned to: declared streams first, the others as they appear."""
    priority = {stream.name: stream.priority for stream in program.streams}
    pinned = dict.fromkeys(task.stream for task in program.tasks if task.stream is not None and not task.host)
    names = [MAIN, *(name for name in priority if name in pinned and name != MAIN)]
    names += [name for name in pinned if name not in names and name not in (MAIN, HOST)]
    return tuple(Lane(name, priority.get(name, "normal")) for name in names)
