"""How far is `policy="auto"` from the best possible plan? For programs of up to seven tasks the best one can be found.

A depth-first search places one task after another, in every topological order, on every lane in use or one more, and cuts off what cannot
get below the best makespan so far: a bound that counts what is certain (launches, lane switches, waits, handovers, the longest path of what
is left) and leaves out what is not known yet. What is left is planned to the end and timed by the same simulator that `auto` uses. So the
optimum is over all assignments and all issue orders, under the machine model, and exact.

    python benchmarks/optimum.py --graphs 2000 --tasks 7
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import statistics
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from streamgraph.builder import Graph
from streamgraph.cost import TaskCost, task_costs
from streamgraph.hazards import build_dag, find_hazards
from streamgraph.machine import Machine, as_machine
from streamgraph.model import Program
from streamgraph.passes.assign import settle
from streamgraph.passes.work import Placement, Work, work_of
from streamgraph.plan import draft_schedule, plan
from streamgraph.simulate import simulate
from streamgraph.storages import trace

MOST_LANES = 8


def random_dag(seed: int, tasks: int, short: float = 5.0, long: float = 200.0) -> Program:
    """Tasks with costs between `short` and `long` microseconds (uniform in the logarithm) and random `after` edges."""
    draw = random.Random(seed)
    graph = Graph(f"dag{seed}")
    density = draw.choice((0.15, 0.3, 0.5))
    for number in range(tasks):
        after = [f"t{earlier}" for earlier in range(number) if draw.random() < density]
        graph.task(f"t{number}", "f", after=after, cost=round(short * (long / short) ** draw.random(), 1))
    return graph.program()


def values_dag(seed: int, tasks: int) -> tuple[Program, dict[str, TaskCost]]:
    """Tasks that make values, the last of them outputs, and that slow each other down: each fills a tenth to seven tenths of the device."""
    draw = random.Random(seed)
    graph = Graph(f"values{seed}")
    costs = {}
    density = draw.choice((0.15, 0.3, 0.5))
    used = set()
    for number in range(tasks):
        reads = [f"v{earlier}" for earlier in range(number) if draw.random() < density]
        used |= set(reads)
        graph.task(f"t{number}", "f", reads=reads, writes=f"v{number}")
        costs[f"t{number}"] = TaskCost(round(5.0 * 40.0 ** draw.random(), 1), draw.uniform(0.1, 0.7))
    for number in range(tasks):
        if f"v{number}" not in used:
            graph.output(f"v{number}")
    return graph.program(), costs


@dataclass
class Optimum:
    """The search for one program. `best` is the shortest makespan so far, `leaves` how many schedules were simulated."""

    program: Program
    machine: Machine
    best: float
    issue: Literal["declared", "auto"] = "auto"
    costs: dict[str, TaskCost] | None = None
    leaves: int = 0
    nodes: int = 0
    placement: Placement | None = None
    work: Work = field(init=False)

    def __post_init__(self) -> None:
        program = self.program
        accesses = trace(program)[0]
        dag = build_dag(program, find_hazards(program, accesses))
        self.times = task_costs(program, accesses, self.costs, self.machine)
        self.work = work_of(program, dag, accesses, self.times.microseconds, "auto")
        self.draft = partial(draft_schedule, program, dag, accesses, "default", ())
        self.count = len(program.tasks)
        self.order: list[int] = []
        self.lane = [-1] * self.count
        self.finish = [0.0] * self.count
        self.knows = [0] * self.count  # tasks done when this one is, itself included, as bits

    def search(self) -> float:
        """The shortest makespan of all assignments and issue orders."""
        self._place(0.0, [0.0], [0], 0, 0)
        return self.best

    def _place(self, host: float, free: list[float], known: list[int], current: int, awaited: int) -> None:
        """`host`: when the host is done so far. Per lane: when it is free, and which tasks it knows to be done. `current`: lane of the last
        launch. `awaited`: tasks with an event, as bits; bit `count` is entry's."""
        self.nodes += 1
        work, on = self.work, self.machine
        if len(self.order) == self.count:
            self._leaf()
            return
        done = [lane >= 0 for lane in self.lane]
        rest = sorted((work.bottom[task] for task in range(self.count) if not done[task]), reverse=True)
        if self.order and max(host + on.launch * (place + 1) + level for place, level in enumerate(rest)) >= self.best - 1e-6:
            return
        ready = [task for task in range(self.count) if not done[task] and all(done[p] for p in work.earlier[task])]
        if self.issue == "declared":
            ready = [work.declared[len(self.order)]]
        for task in sorted(ready, key=lambda task: -work.bottom[task]):
            for lane in range(min(len(free) + 1, MOST_LANES)):
                fresh = lane == len(free)
                mask = 0 if fresh else known[lane]
                newest: dict[int, int] = {}
                for p in self.order:
                    if p in work.earlier[task] and self.lane[p] != lane and not mask >> p & 1:
                        newest[self.lane[p]] = p
                chosen = [p for p in newest.values() if not any(q != p and self.knows[q] >> p & 1 for q in newest.values())]
                time, events = host, awaited
                for p in chosen:
                    mask |= self.knows[p]
                    time += on.wait + (0.0 if events >> p & 1 else on.record)
                    events |= 1 << p
                if fresh and not chosen:  # its first wait is for entry, unless it waits for something later
                    time += on.wait + (0.0 if events >> self.count & 1 else on.record)
                    events |= 1 << self.count
                time += on.launch + (on.switch if self.order and lane != current else 0.0)
                start = max(time, 0.0 if fresh else free[lane])
                for p in work.earlier[task]:
                    start = max(start, self.finish[p] + (on.handover if self.lane[p] != lane else 0.0))
                if start + work.bottom[task] + (on.handover if lane and not work.later[task] else 0.0) >= self.best - 1e-6:
                    continue
                self.order.append(task)
                self.lane[task], self.finish[task] = lane, start + work.costs[task]
                mask |= 1 << task
                self.knows[task] = mask
                more = [*free, 0.0] if fresh else free[:]
                also = [*known, 0] if fresh else known[:]
                more[lane], also[lane] = self.finish[task], mask
                self._place(time, more, also, lane, events)
                self.order.pop()
                self.lane[task] = -1

    def _leaf(self) -> None:
        self.leaves += 1
        placement = Placement(tuple(self.order), tuple(self.lane))
        makespan = simulate(self.draft(settle(self.work, placement)), self.times, machine=self.machine).makespan
        if makespan < self.best - 1e-6:
            self.best, self.placement = makespan, placement


def gaps(seeds: range, tasks: int, order: Literal["declared", "auto"], shared: bool = False) -> list[float]:
    """Per random program, how much longer `auto` takes than the optimum, relative. `shared`: tasks slow each other down."""
    on = as_machine("gpu")
    found = []
    for seed in seeds:
        program, costs = values_dag(seed, tasks) if shared else (random_dag(seed, tasks), None)
        made = simulate(plan(program, order=order, costs=costs, machine=on), costs, machine=on).makespan
        found.append(made / Optimum(program, on, made, order, costs).search() - 1)
    return found


def main() -> None:
    """Print a table of gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=500, help="random programs per number of tasks")
    parser.add_argument("--tasks", type=int, nargs="+", default=[3, 4, 5, 6, 7])
    parser.add_argument("--shared", action="store_true", help="tasks that make values and slow each other down, instead of `after` alone")
    arguments = parser.parse_args()
    what = "values, and tasks that share the device" if arguments.shared else "`after` edges, and tasks that do not disturb each other"
    print(f"Python {platform.python_version()}; simulated on the shipped profile `gpu`; costs from 5 to 200 us; {what}\n")
    print("| issue order | tasks | programs | mean gap | 99 % of them below | worst gap | optimal |\n|---|---|---|---|---|---|---|")
    orders: tuple[Literal["declared", "auto"], ...] = ("auto", "declared")
    for order, tasks in itertools.product(orders, arguments.tasks):
        found = sorted(gaps(range(arguments.graphs), tasks, order, arguments.shared))
        optimal = sum(gap < 1e-3 for gap in found) / len(found)
        most = found[int(0.99 * (len(found) - 1))]
        mean = statistics.mean(found)
        print(f"| {order} | {tasks} | {len(found)} | {mean:.3%} | {most:.2%} | {found[-1]:.2%} | {optimal:.1%} |", flush=True)


if __name__ == "__main__":
    main()
