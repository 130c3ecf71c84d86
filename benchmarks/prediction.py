"""Does the simulator predict what a GPU does? Six programs, planned on one, two and four streams, profiled, predicted, and measured.

Per program each task is profiled alone (`streamgraph profile` does the same). Then every plan is simulated with these costs on the
machine's profile, run by the eager executor, and replayed as one CUDA graph of its steps. A ratio of 1 is a perfect prediction.

The host's speed is no property of a program, and on a shared machine it changes within minutes. So eager runs are predicted twice: with the
issue times of the profile as they are, and scaled to the time of a plain loop of the same calls that took turns with the runs.

    python benchmarks/prediction.py                      on a GPU; measures the machine first
    python benchmarks/prediction.py --machine h200       with a shipped profile
    python benchmarks/prediction.py --small              small sizes, on the CPU as well, to see whether it runs
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import Paper, environment, markdown, parser
from networks import captured_runner
from programs import SHAPES
from subjects import SUBJECTS, Subject, subject

import streamgraph as sg
from streamgraph.calibration import measure_machine
from streamgraph.cost import TaskCost
from streamgraph.executors.measure import replay_times
from streamgraph.executors.profile import plain_loop
from streamgraph.machine import Machine, as_machine
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate

STREAMS = (1, 2, 4)
PROFILED = "eager, at the profile's speed of the host"
GOAL = 0.10


def eager_times(case: Subject, schedules: Sequence[Schedule], repeats: int) -> tuple[list[float], float]:
    """Median microseconds of a call, from an idle device to an idle device; and the host's speed meanwhile, over that of the profile.

    The schedules take turns, and a plain loop of the calls of all tasks takes turns with them. A shared host is up to 1.8 times as fast in
    one minute as in another: issue times are measured in the runs' own minute, on nothing but the bare calls.
    """
    walls: list[list[float]] = [[] for _ in schedules]
    loop_times: list[float] = []
    with ExitStack() as stack:
        runners = [stack.enter_context(case.runner(schedule, "eager")) for schedule in schedules]
        first = sg.plan(case.program, streams=1, policy="single")
        loop = plain_loop(first, case.operators(first), case.inputs, case.location)
        for repeat in range(repeats + 4):
            _synchronize(case.location)
            begun = time.perf_counter()
            loop()
            issued = (time.perf_counter() - begun) * 1e6
            if repeat >= 4:
                loop_times.append(issued)
            for runner, found in zip(runners, walls, strict=True):
                _synchronize(case.location)
                begun = time.perf_counter()
                result = runner()
                _synchronize(case.location)
                if repeat >= 4:
                    found.append((time.perf_counter() - begun) * 1e6)
                del result
    profiled = sum(cost.issue or 0.0 for cost in case.costs.values())
    speed = statistics.median(loop_times) / profiled if profiled else 1.0
    return [statistics.median(found) for found in walls], speed


def captured_times(case: Subject, schedules: Sequence[Schedule], repeats: int) -> list[float]:
    """Median microseconds of a replay of the graph that a runner has captured, in turns."""
    with ExitStack() as stack:
        runners = [captured_runner(case, schedule, stack) for schedule in schedules]
        return replay_times([runner._executor._graph for runner in runners], repeats)  # type: ignore[union-attr]


def _synchronize(location: torch.device) -> None:
    if location.type == "cuda":
        torch.cuda.synchronize(location)


def predict(case: Subject, schedule: Schedule, machine: Machine, issue: str, host_speed: float = 1.0) -> float:
    """Simulated microseconds. `host_speed`: how long the calls of the tasks take the host now, over what was profiled."""
    costs = {
        task: TaskCost(cost.us, cost.fill, None if cost.issue is None else cost.issue * host_speed) for task, cost in case.costs.items()
    }
    return simulate(schedule, costs, machine=machine, issue=issue).makespan  # type: ignore[arg-type]


def attempt(paper: Paper, measure: Callable[[], Any]) -> Any:
    """The measurement, or None and a word about why there is none."""
    try:
        return measure()
    except Exception as error:
        paper.say(f"- not measured: {type(error).__name__}: {str(error)[:300]}")
        return None


def main() -> None:
    options = parser(__doc__, 30)
    options.add_argument("--machine", help="a shipped profile or a file; without it, the machine is measured")
    options.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SUBJECTS))
    options.add_argument("--raw", type=Path, help="a folder for everything that was measured, as JSON")
    given = options.parse_args()
    paper = Paper(given.output)
    if given.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    machine: Machine = as_machine(given.machine) if given.machine else measure_machine(given.device)
    paper.say(f"## Prediction\n\n{environment(given.repeats)}\n")
    if not given.machine:
        paper.say(f"```json\n{machine.to_json()}```\n")
    if given.raw:
        given.raw.mkdir(parents=True, exist_ok=True)
        (given.raw / "machine.json").write_text(machine.to_json())
    location = torch.device("cuda", torch.cuda.current_device()) if given.device == "cuda" else torch.device("cpu")
    rows: list[list[str]] = []
    errors: dict[str, list[float]] = {"captured": [], "eager": [], PROFILED: []}
    for name in given.shapes:
        case = subject(name, location, given.small)
        costs = case.costs
        schedules = [
            sg.plan(case.program, streams=streams, policy="critical_path" if streams > 1 else "single", costs=costs, machine=machine)
            for streams in STREAMS
        ]
        eager, host_speed = attempt(paper, partial(eager_times, case, schedules, given.repeats)) or (None, 1.0)
        replays = attempt(paper, partial(captured_times, case, schedules, given.repeats)) if given.device == "cuda" else None
        raw = case.raw() | {"host_speed": host_speed}
        for number, schedule in enumerate(schedules):
            raw[str(STREAMS[number])] = {
                "schedule": schedule.to_json(), "eager": eager and eager[number], "captured": replays and replays[number]
            }  # fmt: skip
            lanes = sum(not lane.is_host for lane in schedule.lanes)
            row = [name, str(len(schedule.program.tasks)), str(lanes), str(schedule.counts.waits)]
            for issue, found, speeds in (("captured", replays, (1.0,)), ("eager", eager, (1.0, host_speed))):
                times = [predict(case, schedule, machine, issue, speed) for speed in speeds]
                row += [f"{times[-1] / 1e3:.3f}", f"{found[number] / 1e3:.3f}" if found else ""]
                for kind, predicted in zip((issue, PROFILED), reversed(times), strict=False):
                    row.append(f"{predicted / found[number]:.2f}" if found else "")
                    errors[kind] += [abs(predicted / found[number] - 1)] if found else []
            free = {task: TaskCost(cost.us, 0.0, cost.issue) for task, cost in costs.items()}
            rows.append([*row, f"{simulate(schedule, free, machine=machine, issue='captured').makespan / 1e3:.3f}"])
        if given.raw:
            (given.raw / f"{name}.json").write_text(json.dumps(raw))
        print(f"{case}; host at {host_speed:.2f} times the profile's issue times", flush=True)
        del case
        if given.device == "cuda":
            torch.cuda.empty_cache()
    head = ["program", "tasks", "lanes", "waits", "captured, predicted ms", "measured", "ratio", "eager, predicted ms", "measured", "ratio",
            "ratio at the profile's speed of the host"]  # fmt: skip
    paper.say(markdown([*head, "captured, if nobody slowed anybody"], rows) + "\n")
    for issue, missed in errors.items():
        if missed:
            within = sum(error <= GOAL for error in missed)
            mean, largest = statistics.mean(missed), max(missed)
            paper.say(f"- {issue}: mean error {mean:.1%}, largest {largest:.1%}, {within} of {len(missed)} within 10 %")


if __name__ == "__main__":
    main()
