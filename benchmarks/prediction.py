"""Does the simulator predict what a GPU does? Six programs, planned on one, two and four streams, profiled, predicted, and measured.

Per program each task is profiled alone (`streamgraph profile` does the same). Then every plan is simulated with these costs on the
machine's profile, run by the eager executor, and replayed as one CUDA graph of its steps. A ratio of 1 is a perfect prediction.

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
from networks import SHAPES, inputs_of

import streamgraph as sg
from streamgraph.calibration import measure_machine
from streamgraph.calls import evaluate
from streamgraph.cost import TaskCost
from streamgraph.executors.measure import capture, replay_times
from streamgraph.executors.memory import Memory
from streamgraph.executors.profile import profile_tasks
from streamgraph.machine import Machine, as_machine
from streamgraph.model import HOST
from streamgraph.operators import Operator, resolve
from streamgraph.returned import run_copy
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Wait
from streamgraph.simulate import simulate

STREAMS = (1, 2, 4)
GOAL = 0.10


def eager_times(schedules: Sequence[Schedule], inputs: dict[str, torch.Tensor], device: str, repeats: int) -> list[float]:
    """Median microseconds of a call, from an idle device to an idle device. The schedules take turns, as the host's speed drifts."""
    walls: list[list[float]] = [[] for _ in schedules]
    with ExitStack() as stack:
        runners = [stack.enter_context(sg.compile(schedule, inputs, device=device, executor="eager")) for schedule in schedules]
        for repeat in range(repeats + 4):
            for runner, found in zip(runners, walls, strict=True):
                _synchronize(device)
                begun = time.perf_counter()
                result = runner()
                _synchronize(device)
                if repeat >= 4:
                    found.append((time.perf_counter() - begun) * 1e6)
                del result
    return [statistics.median(found) for found in walls]


def captured(schedule: Schedule, operators: Sequence[Operator], inputs: dict[str, torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, object]:
    """The schedule's steps as one CUDA graph, and what must live as long as it."""
    location = torch.device("cuda", torch.cuda.current_device())
    memory = Memory(schedule.program, schedule.accesses, location, 0)
    named = {operator.call.task: operator for operator in operators}
    number_of = {storage.label: number for number, storage in enumerate(schedule.accesses.storages)}
    lanes = [lane.name for lane in schedule.lanes if lane.name != HOST]
    memory.begin(inputs)  # the buffers must be there before the capture
    kept: list[Any] = []
    pinned: dict[int, torch.Tensor] = {}  # values in host memory, made by the warm run: a capture must not make any

    def steps(streams: Sequence[torch.cuda.Stream]) -> None:
        stream_of = dict(zip(lanes, streams, strict=True))
        events: dict[str, torch.cuda.Event] = {}
        cells = memory.begin(inputs)
        for step in schedule.steps:
            match step:
                case Launch(task, lane):
                    call, function = named[task].call, named[task].function
                    with torch.cuda.stream(stream_of[lane]):
                        if call.is_copy and call.returns and call.returns[0].storage in pinned:
                            target = pinned[call.returns[0].storage]
                            target.copy_(evaluate(call.positional[0], cells), non_blocking=True)
                            returned: Any = (target,)
                        elif call.is_copy:
                            returned = run_copy(call, cells, location)
                        else:
                            positional, keywords = call.arguments(cells)
                            result = function(*positional, **keywords)
                            returned = result if call.returns_sequence else (result,)
                    for place, tensor in zip(call.returns, returned, strict=False):
                        cells[place.storage] = tensor
                        if not tensor.is_cuda:
                            pinned[place.storage] = tensor
                case Record(event, lane, _) if lane != HOST:
                    events[event] = torch.cuda.Event()
                    events[event].record(stream_of[lane])
                case Wait(event, lane, _) if event in events:
                    stream_of[lane].wait_event(events[event])
                case Release(storage, _, previous) if not previous:
                    cells[number_of[storage]] = None
                case Wait() | HostWait() | Release() | RecordStream() | Record():
                    pass
        kept.append(memory.outputs(cells))

    with torch.no_grad():
        steps([torch.cuda.current_stream()] * len(lanes))
        torch.cuda.synchronize()
        return capture(steps, len(lanes), location), (memory, kept, pinned)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class Measured:
    """One program: its inputs, and what its tasks cost."""

    def __init__(self, name: str, small: bool, device: str) -> None:
        begun = time.perf_counter()
        self.name, self.device = name, device
        self.location = torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device("cpu")
        self.program = SHAPES[name](small).program()
        self.inputs = inputs_of(self.program, self.location)
        first = sg.plan(self.program, streams=1, policy="single")
        self.profile = profile_tasks(first, self.operators(first), self.inputs, self.location)
        self.timings, self.costs = self.profile.timings, self.profile.costs
        self.seconds = time.perf_counter() - begun

    def operators(self, schedule: Schedule) -> tuple[Operator, ...]:
        return resolve(schedule.program, None, str(self.location), schedule.accesses)

    def plan(self, streams: int, machine: Machine) -> Schedule:
        return sg.plan(
            self.program, streams=streams, policy="critical_path" if streams > 1 else "single", costs=self.costs, machine=machine
        )

    def run(self, schedules: Sequence[Schedule], issue: str, repeats: int) -> list[float]:
        if issue == "eager":
            return eager_times(schedules, self.inputs, self.device, repeats)
        graphs = [captured(schedule, self.operators(schedule), self.inputs) for schedule in schedules]
        return replay_times([graph for graph, _ in graphs], repeats)

    def without_contention(self) -> dict[str, TaskCost]:
        return {task: TaskCost(cost.us, 0.0, cost.issue) for task, cost in self.costs.items()}

    def raw(self) -> dict[str, Any]:
        costs = {task: [t.cost.us, t.cost.fill, t.cost.issue, t.how, t.together] for task, t in self.timings.items()}
        return {"costs": costs, "alone": self.profile.alone, "in_place": self.profile.in_place}

    def __str__(self) -> str:
        timed = sum(not timing.reused for timing in self.timings.values())
        ways = sorted({timing.how for timing in self.timings.values()})
        return f"{self.name}: {len(self.timings)} tasks, {timed} of them timed ({', '.join(ways)}), in {self.seconds:.1f} s"


def attempt(paper: Paper, measure: Callable[[], list[float]]) -> list[float] | None:
    """The measurement, or None and a word about why there is none."""
    try:
        return measure()
    except Exception as error:
        paper.say(f"- not measured: {type(error).__name__}: {str(error)[:300]}")
        return None


def main() -> None:
    options = parser(__doc__, 30)
    options.add_argument("--machine", help="a shipped profile or a file; without it, the machine is measured")
    options.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=list(SHAPES))
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
    rows: list[list[str]] = []
    errors: dict[str, list[float]] = {"eager": [], "captured": []}
    for name in given.shapes:
        shape = Measured(name, given.small, given.device)
        raw = shape.raw()
        schedules = [shape.plan(streams, machine) for streams in STREAMS]
        measured = {"eager": attempt(paper, partial(shape.run, schedules, "eager", given.repeats))}
        if given.device == "cuda":
            measured["captured"] = attempt(paper, partial(shape.run, schedules, "captured", given.repeats))
        for number, schedule in enumerate(schedules):
            lanes = sum(not lane.is_host for lane in schedule.lanes)
            row = [name, str(len(schedule.program.tasks)), str(lanes), str(schedule.counts.waits)]
            raw[str(STREAMS[number])] = {
                "schedule": schedule.to_json(), **{issue: times[number] if times else None for issue, times in measured.items()}
            }  # fmt: skip
            for issue in ("eager", "captured"):
                predicted = simulate(schedule, shape.costs, machine=machine, issue=issue).makespan  # type: ignore[arg-type]
                found = measured.get(issue)
                ratio = ["", ""] if found is None else [f"{found[number] / 1e3:.3f}", f"{predicted / found[number]:.2f}"]
                row += [f"{predicted / 1e3:.3f}", *ratio]
                errors[issue] += [] if found is None else [abs(predicted / found[number] - 1)]
            free = simulate(schedule, shape.without_contention(), machine=machine, issue="captured")
            rows.append([*row, f"{free.makespan / 1e3:.3f}"])
        if given.raw:
            (given.raw / f"{name}.json").write_text(json.dumps(raw))
        print(shape, flush=True)
        del shape
        if given.device == "cuda":
            torch.cuda.empty_cache()
    head = ["program", "tasks", "lanes", "waits", "eager, predicted ms", "measured", "ratio", "captured, predicted ms", "measured", "ratio"]
    paper.say(markdown([*head, "captured, if nobody slowed anybody"], rows) + "\n")
    for issue, missed in errors.items():
        if missed:
            within = sum(error <= GOAL for error in missed)
            mean, largest = statistics.mean(missed), max(missed)
            paper.say(f"- {issue}: mean error {mean:.1%}, largest {largest:.1%}, {within} of {len(missed)} within 10 %")


if __name__ == "__main__":
    main()
