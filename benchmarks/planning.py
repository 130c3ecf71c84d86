"""Which policy gives the shortest schedule, and which rule of synchronisation the fewest waits?

For shapes of real programs and for random ones, each policy plans the same program, and the simulator times the plan. Beside the makespan
stands its ratio to a lower bound that holds for any plan: the longest path, the work of each engine and of the device, and the host's
launches. Then, for the same assignments, how many waits between tasks each known rule of synchronisation would emit (entry and exit left
out):

- naive: one for each pair of tasks on two streams that a hazard orders (TensorRT-LLM, Opara, RAF, Nimble's emitted code, ONNX Runtime)
- latest: per task, only the newest of each other stream (apex; CUDASTF's `factorize`)
- reduced: those of the transitive reduction of the DAG, whatever the streams' own order implies (Paddle)
- remembered: latest, less what the same two streams have already waited for (CUDASTF)
- exact: what streamgraph emits

The rules are written from their descriptions; the systems were not run. Nothing here needs a GPU.

    python benchmarks/planning.py
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import networkx as nx

from benchmarks.shapes import RANDOM, SHAPES, Shape
from streamgraph.cost import D2H, H2D
from streamgraph.hazards import Dag, build_dag, find_hazards
from streamgraph.passes.assign import Assignment, assign_work
from streamgraph.passes.policies import POLICIES, PolicyName
from streamgraph.passes.policies.max_concurrency import minimum_equivalent_graph
from streamgraph.passes.sync import synchronize
from streamgraph.passes.work import Work, work_of
from streamgraph.plan import plan
from streamgraph.simulate import Timeline, simulate
from streamgraph.storages import trace

RULES = ("naive", "latest", "reduced", "remembered", "exact")
Issue = Literal["eager", "captured"]


def waits_by_rule(work: Work, assignment: Assignment, exact: int) -> dict[str, int]:
    """How many waits between device tasks each rule emits for the assignment. `exact` is counted elsewhere."""
    lane, host = assignment.lane_of, len(assignment.lanes) - 1
    place = {task: index for index, task in enumerate(assignment.order)}
    count = dict.fromkeys(RULES, 0)
    newest_awaited: dict[tuple[int, int], int] = {}
    for later in assignment.order:
        if lane[later] == host:
            continue
        newest: dict[int, int] = {}
        for earlier in work.earlier[later]:
            if lane[earlier] not in (lane[later], host):
                count["naive"] += 1
                newest[lane[earlier]] = max(newest.get(lane[earlier], -1), place[earlier])
        count["latest"] += len(newest)
        for other, position in newest.items():
            if newest_awaited.get((other, lane[later]), -1) < position:
                newest_awaited[other, lane[later]] = position
                count["remembered"] += 1
    kept, _ = minimum_equivalent_graph(work)
    count["reduced"] = sum(
        lane[earlier] != lane[later] and host not in (lane[earlier], lane[later]) for earlier, group in enumerate(kept) for later in group
    )
    count["exact"] = exact
    return count


def exact_waits(work: Work, assignment: Assignment, dag: Dag, accesses: Any) -> int:
    """The waits between device tasks that streamgraph emits."""
    sync = synchronize(assignment, dag, accesses)
    host = len(assignment.lanes) - 1
    return sum(
        earlier > 0 and sync.lane_of[earlier] != host
        for node in range(1, sync.exit)
        if sync.lane_of[node] != host
        for earlier in sync.waits[node]
    )


def ladder(shape: Shape, policy: PolicyName, limit: int) -> tuple[int, dict[str, int]]:
    """The lanes of an assignment, and its waits by rule."""
    program, costs = shape
    accesses = trace(program)[0]
    dag = build_dag(program, find_hazards(program, accesses))
    work = work_of(program, dag, accesses, [costs[task.name].us for task in program.tasks], "declared")
    assignment = assign_work(work, limit, policy)
    return len(assignment.lanes) - 1, waits_by_rule(work, assignment, exact_waits(work, assignment, dag, accesses))


def bound_of(timeline: Timeline, issue: Issue) -> float:
    """What no plan of the program can beat, however many lanes it has.

    A copy engine works on one copy at a time: before its first one stands the shortest way there, after its last one the shortest way to
    the end. The task that the host issues last is one that nothing follows.
    """
    graph, costs = timeline.schedule.graph, timeline.costs
    head, tail = [0.0] * len(costs.microseconds), list(costs.microseconds)
    order = list(nx.topological_sort(graph))
    for task in order:
        head[task] = max((head[p] + costs.microseconds[p] for p in graph.predecessors(task)), default=0.0)
    for task in reversed(order):
        tail[task] += max((tail[later] for later in graph.successors(task)), default=0.0)
    bounds = [timeline.bounds[name] for name in ("span", "device", "bandwidth")]
    for engine in (H2D, D2H):
        users = [task for task in order if costs.engine[task] == engine]
        if users:
            after = min(tail[task] - costs.microseconds[task] for task in users)
            bounds.append(min(head[task] for task in users) + sum(costs.microseconds[task] for task in users) + after)
    if issue == "eager":
        last = min(costs.microseconds[task] for task in order if not graph.out_degree(task))
        bounds.append(timeline.machine.launch * len(order) + last)
    return max(bounds)


def policies_table(shapes: Iterable[tuple[str, list[Shape]]], issue: Issue) -> None:
    """One row per shape and policy: time against the bound, lanes, waits, and how long planning took."""
    print("\n| shape | tasks | policy | time | ÷ bound | one stream ÷ time | lanes | waits | planned in |")
    print("|---" * 9 + "|")
    for name, group in shapes:
        for policy in ("auto", *POLICIES):
            rows = []
            for program, costs in group:
                begun = time.perf_counter()
                schedule = plan(program, order="auto", policy=policy, costs=costs, issue=issue)  # type: ignore[arg-type]
                took = time.perf_counter() - begun
                timeline = simulate(schedule, costs, issue=issue)
                alone = simulate(plan(program, order="auto", policy="single", costs=costs, issue=issue), costs, issue=issue)
                lanes = sum(not lane.is_host for lane in schedule.lanes)
                bound = bound_of(timeline, issue)
                rows.append(
                    (timeline.makespan, timeline.makespan / bound, alone.makespan / timeline.makespan, lanes, schedule.counts.waits, took)
                )
            makespan, ratio, gain, lanes_used, waits, took = (statistics.mean(column) for column in zip(*rows, strict=True))
            tasks = statistics.mean(len(program.tasks) for program, _ in group)
            print(
                f"| {name} | {tasks:.0f} | {policy} | {makespan:,.0f} us | {ratio:.3f} | {gain:.2f} | {lanes_used:.3g} | {waits:.4g} "
                f"| {1e3 * took:.0f} ms |", flush=True,
            )  # fmt: skip


def ladder_table(shapes: Iterable[tuple[str, list[Shape]]]) -> None:
    """One row per shape and assignment: waits between tasks by rule."""
    print(f"\n| shape | assignment | lanes | {' | '.join(RULES)} |\n|---|---|---|{'---|' * len(RULES)}")
    assignments: tuple[tuple[PolicyName, int, str], ...] = (
        ("critical_path", 4, "critical_path, 4"), ("earliest_free", 4, "earliest_free, 4"), ("levels", 4, "levels, 4"),
        ("longest_path", 8, "longest_path, 8"), ("opara", 10_000, "opara, no bound"),
        ("max_concurrency", 10_000, "max_concurrency, no bound"),
    )  # fmt: skip
    for name, group in shapes:
        for policy, limit, label in assignments:
            found = [ladder(shape, policy, limit) for shape in group]
            means = [statistics.mean(counts[rule] for _, counts in found) for rule in RULES]
            lanes = statistics.mean(lanes for lanes, _ in found)
            print(f"| {name} | {label} | {lanes:.3g} | {' | '.join(f'{mean:.4g}' for mean in means)} |", flush=True)


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=60, help="random programs of each kind")
    arguments = parser.parse_args()
    means = f"means over {arguments.random} random programs"
    print(f"Python {platform.python_version()}; simulated on the shipped profile `gpu`; order='auto'; {means}")
    real = [(name, [make()]) for name, make in SHAPES.items()]
    drawn = [(f"{name}, {arguments.random} programs", [make(seed) for seed in range(arguments.random)]) for name, make in RANDOM.items()]
    print("\n**Eager, one issuing thread**")
    policies_table([*real, *drawn], "eager")
    print("\n**Captured: the host issues nothing**")
    policies_table([*real, *drawn], "captured")
    print("\n**Waits between tasks by rule, same assignment, declared order**")
    ladder_table([*real, *drawn])


if __name__ == "__main__":
    main()
