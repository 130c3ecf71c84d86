"""Tune: several plans of one program, run in turn on the device; the fastest, if it beats one stream.

Simulation ranks plans within a per cent or two, and among the best it cannot tell which is best. So it only narrows down here: the plans
that are simulated to be fastest, the one that `auto` chooses, and one stream take turns on the device, and the clock decides. The fastest
then meet once more, since the best of many measurements is partly luck.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streamgraph.bench import WARM, Running, beats, turns
from streamgraph.binding import Given, bind, made_up, written_in_place
from streamgraph.calls import gpus
from streamgraph.compare import delta
from streamgraph.cost import Measured
from streamgraph.errors import Problem, SpecError
from streamgraph.machine import AnyMachine
from streamgraph.passes.policies import POLICIES
from streamgraph.plan import Order, Release, Spec, Streams, as_program, issue_of, plan
from streamgraph.portfolio import LANES, Policy
from streamgraph.runner import ExecutorName, Runner
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate

if TYPE_CHECKING:
    import torch

    from streamgraph.operators import Operators

FINALISTS = 3  # beside one stream and `auto`
SHARE = 4  # the first round has one in so many of the repeats, and at least LEAST
LEAST = 5
PLANNED = 20_000  # tasks times numbers of lanes that every policy is tried with: planning should take no longer than measuring


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan: who made it with how many lanes, its simulated microseconds, and those of its runs, the last round's if it was in it."""

    policy: Policy
    streams: Streams
    schedule: Schedule
    predicted: float
    times: tuple[float, ...] = ()
    final: bool = False
    equal: bool = True

    @property
    def median(self) -> float:
        """Microseconds of a run."""
        return statistics.median(self.times)


@dataclass(frozen=True)
class Tuning:
    """What was measured: one stream first, then `auto`, then the others, the simulated fastest first."""

    device: str
    executor: str
    repeats: int
    rows: tuple[Candidate, ...]
    made_up: tuple[str, ...]

    @property
    def best(self) -> Candidate:
        """The fastest of the last round with right results; one stream, if that does not beat it by more than 2 %."""
        alone = self.rows[0]
        fastest = min((row for row in self.rows if row.final and row.equal), key=lambda row: row.median, default=alone)
        return fastest if beats(fastest.times, alone.times) else alone


def tune(
    spec: Spec, inputs: Given | None = None, *, params: Mapping[str, Any] | None = None, ops: Operators | None = None,
    device: str = "auto", executor: ExecutorName = "auto", streams: Streams = "auto", order: Order = "declared",
    release: Release = "default", costs: Measured | None = None, machine: AnyMachine = None, plans: int = 8, repeats: int = 20,
    seed: int = 0, progress: Callable[[int, int], None] | None = None,
) -> Tuning:  # fmt: skip
    """Time the most promising plans of a program. Inputs that are not given but declare `init` are made up; those given stay as they are.

    Every plan has a runner, with its own buffers, while this goes on; every task is called several hundred times.

    Args:
        executor: what the plans are for: "graph" plans for a captured graph; "auto" is the device's default.
        plans: how many beside one stream and `auto`.
        repeats: timed runs of each plan in the last round.
        progress: called with how many rounds are done, and of how many.

    Raises:
        SpecError, BindingError, OperatorError, TaskError, DeviceError: as `plan` and `run`; SG105 also for `repeats` below 1.
    """
    import torch

    from streamgraph.executors.device import find
    from streamgraph.executors.watched import copied

    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise SpecError(Problem("SG105", f"repeats is {repeats!r}", None, "repeats must be a whole number from 1"))
    program = as_program(spec, params)
    location = find(device, program).location
    issue = issue_of(executor)

    def candidate(policy: Policy, count: Streams) -> Candidate:
        made = plan(program, streams=count, order=order, release=release, policy=policy, costs=costs, machine=machine, issue=issue)
        return Candidate(policy, count, made, simulate(made, costs, machine=machine, issue=issue).makespan)

    chosen = _promising(candidate, streams, plans, len(program.tasks))
    schedule = chosen[0].schedule
    invented = made_up(program, inputs or {}, location, seed)
    written = written_in_place(schedule.program, schedule.accesses)
    tensors = bind(program, {**invented, **(inputs or {})}, location, written=written)
    on_gpu = location.type == "cuda"
    with torch.random.fork_rng(devices=gpus(schedule.program, location)), ExitStack() as stack:

        def prepared(row: Candidate) -> Running:
            own = {name: copied(value) if name in written else value for name, value in tensors.items()}
            torch.manual_seed(seed)
            runner = stack.enter_context(Runner(row.schedule, own, ops=ops, device=device, executor=executor, seed=seed))
            return Running(runner, {name: own[name] for name in written}, location if on_gpu else None)

        running: list[Running] = []
        found: list[list[dict[str, torch.Tensor]]] = []
        for row in chosen:
            running.append(prepared(row))
            found.append([running[-1].results() for _ in range(WARM)])  # at once: random tasks draw the same under every plan
        right = [_equal(results, found[0]) for results in found]
        first = max(LEAST, repeats // SHARE)
        rough = _in_turns(running, first, progress, 0, first + repeats)
        ranked = sorted(range(2, len(chosen)), key=lambda number: statistics.median(rough[number]))
        last = [*range(min(2, len(chosen))), *ranked[:FINALISTS]]
        final = dict(zip(last, _in_turns([running[n] for n in last], repeats, progress, first, first + repeats), strict=True))
    rows = tuple(
        replace(row, times=tuple(final.get(number, rough[number])), final=number in final, equal=right[number])
        for number, row in enumerate(chosen)
    )
    return Tuning(str(location), executor, repeats, rows, tuple(invented))


def _promising(candidate: Callable[[Policy, Streams], Candidate], streams: Streams, plans: int, tasks: int) -> list[Candidate]:
    """One stream, what `auto` chooses, and the plans with the shortest simulated makespans; equal plans once."""
    counts = [count for count in LANES if streams == "auto" or count <= streams] or [1]
    counts = counts[: max(1, PLANNED // max(tasks, 1))]
    fixed = [candidate("single", 1), candidate("auto", streams)]
    others = [candidate(policy, count) for policy in POLICIES if policy != "single" for count in counts]
    distinct: dict[object, Candidate] = {}
    for row in [*fixed, *sorted(others, key=lambda row: row.predicted)]:
        distinct.setdefault((row.schedule.steps, row.schedule.lanes), row)
    return list(distinct.values())[: len(fixed) + plans]


def _in_turns(
    running: list[Running], repeats: int, progress: Callable[[int, int], None] | None, done: int, total: int
) -> list[list[float]]:
    """Microseconds until the results of each are there, one run of each after another."""
    times: list[list[float]] = [[] for _ in running]
    for repeat, order in enumerate(turns(len(running), repeats)):
        for number in order:
            times[number].append(running[number].timed()[1])
        if progress is not None:
            progress(done + repeat + 1, total)
    return times


def _equal(runs: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> bool:
    return not any(delta(value, run[name]) for run, wanted in zip(runs, expected, strict=True) for name, value in wanted.items())
