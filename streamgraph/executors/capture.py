"""Capture: the steps of a schedule, issued while CUDA records them into a graph instead of running them.

The same plan with entry as the fork and exit as the join, and these differences (what CUDA and PyTorch ask of a capture):

    events          made for this capture; none is shared with eager runs
    lanes           each waits for a captured event before its first task, so it allocates in the graph's own pool; every one is joined
    host waits      left out: nothing is computed yet (whoever replays waits)
    record_stream   left out: PyTorch would hold such memory until the capture ends; what a release needs it for is held that long here
    previous        nothing is left over from a run before, and what this one leaves is dropped when the capture ends
    urgent          the kernels of such a launch are nodes of high priority, on their lane's stream all the same
"""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from typing_extensions import assert_never

from streamgraph.errors import Problem, RunnerError, TaskError
from streamgraph.executors.device import Device, Event, Stream
from streamgraph.executors.launch import failure, launch
from streamgraph.executors.memory import Cells
from streamgraph.model import HOST, MAIN
from streamgraph.operators import Operator
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Wait


class Graph(Protocol):
    """A captured graph: `torch.cuda.CUDAGraph` as it is."""

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """From here on, work of the current stream is recorded; memory comes from `pool`, that of another graph, or from a new one."""
        ...

    def capture_end(self) -> None:
        """End the capture; every stream that joined it must have been waited for."""
        ...

    def replay(self) -> None:
        """Run all that was recorded, on the current stream."""
        ...

    def pool(self) -> Any:
        """The graph's memory, for `capture_begin` of another one."""
        ...

    def reset(self) -> None:
        """Give the graph and its memory back."""
        ...


@runtime_checkable
class Captures(Protocol):
    """A device that can capture."""

    def new_graph(self) -> Graph:
        """An empty graph."""
        ...

    def captures_memory(self) -> bool:
        """Whether a captured graph has memory of its own: other allocators make nodes of the graph out of what is freed."""
        ...

    def new_shared_event(self) -> Event:
        """An event that a captured graph records, or waits for, in a node of its own, so that others can wait for it, or record it."""
        ...

    def high_priority(self, stream: Stream) -> AbstractContextManager[None]:
        """What the stream is given inside, while it is captured, has high priority in the graph. It is ordered as before."""
        ...

    def random_offset(self) -> Hashable:
        """How far the device's random numbers have come; a replay that draws some moves it."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy between two tensors of the device, on the current stream."""
        ...

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of the device, made on the current stream."""
        ...


def host_task(schedule: Schedule) -> Problem | None:
    """SG611 if the schedule has a host task: CUDA records what streams do, and no Python function."""
    for step in schedule.steps:
        if isinstance(step, Launch) and step.lane == HOST:
            task = schedule.program.tasks[schedule.program.index_of_task[step.task]]
            message = f"task '{task.name}' runs on the host, and a CUDA graph records only what streams do"
            remedy = "call the runner outside `torch.cuda.graph(...)`; executor='graph' captures what stands between host tasks"
            return Problem("SG611", message, task.location, remedy)
    return None


def host_wait(schedule: Schedule) -> Problem | None:
    """SG609 if the schedule lets the host wait, which nobody can while the caller captures."""
    for step in schedule.steps:
        if isinstance(step, HostWait):
            task = schedule.event_task[step.event]
            message = f"the host waits for task '{task}', whose result lies in host memory, and cannot wait inside a capture"
            return Problem("SG609", message, None, "leave the host output out, or call the runner outside `torch.cuda.graph(...)`")
    return None


@contextmanager
def capturing(graph: Graph, name: str, pool: Any = None) -> Iterator[None]:
    """Record into `graph` what is issued inside, on the current stream and those that join it. After an error nothing is captured any more.

    Raises:
        RunnerError: SG614, CUDA refused.
    """
    collects = gc.isenabled()
    gc.disable()  # a collection may destroy what somebody else has on the device, which a capture does not allow
    try:
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
            graph.capture_end()
        except BaseException as error:
            with suppress(RuntimeError):
                graph.capture_end()
            with suppress(RuntimeError):
                graph.reset()
            if isinstance(error, RuntimeError):
                message = f"the CUDA graph of '{name}' could not be captured: {str(error).splitlines()[0]}"
                raise RunnerError(Problem("SG614", message, None, "use executor='eager'")) from error
            raise
    finally:
        if collects:
            gc.enable()


def issue(
    schedule: Schedule,
    operators: Mapping[str, Operator],
    device: Device,
    streams: Mapping[str, Stream],
    cells: Cells,
    number: Mapping[str, int],
) -> None:
    """Issue all steps to streams of which `streams[MAIN]`, the current one, is being captured. `cells` are filled with what lasts.

    Raises:
        TaskError: a task raised. All lanes are joined then, so that the capture can be ended.
    """
    assert isinstance(device, Captures)
    events: dict[str, Event] = {}
    forked: dict[str, None] = {}
    held = {step.storage for step in schedule.steps if isinstance(step, RecordStream)}
    launching: Operator | None = None
    current = lane = MAIN
    try:
        for step in schedule.steps:
            match step:
                case Launch(task, lane, urgent):
                    assert lane != HOST, f"bug in streamgraph: host task '{task}' in a graph"
                    if lane != current:
                        device.set_stream(streams[lane])
                        current = lane
                    launching = operators[task]
                    with device.high_priority(streams[lane]) if urgent else nullcontext():
                        launch(launching, cells, device.location, lane, check=False)
                    launching = None
                case Record(event, lane):
                    events[event] = device.new_event()
                    device.record(events[event], streams[lane])
                case Wait(event, lane):
                    device.wait(events[event], streams[lane])
                    forked[lane] = None
                case Release(storage, _, False):
                    if storage not in held:
                        cells[number[storage]] = None
                case HostWait() | RecordStream() | Release():
                    pass
                case _:
                    assert_never(step)
        join(device, streams, _open(schedule))
    except BaseException as error:
        raised = failure(error, launching, cells, lane) if launching is not None else error
        cells.clear()
        with suppress(RuntimeError):  # the error may have ended the capture
            join(device, streams, tuple(forked))
        raised = during_capture(raised)
        if raised is error:
            raise
        raise raised from error
    finally:
        device.set_stream(streams[MAIN])


def _open(schedule: Schedule) -> tuple[str, ...]:
    """The side lanes that end with a wait: the schedule's exit has no reason to follow it, but a capture wants every lane back."""
    last: dict[str, bool] = {}
    for step in schedule.steps:
        if isinstance(step, Wait | Launch):
            last[step.lane] = isinstance(step, Wait)
    return tuple(lane for lane, is_open in last.items() if is_open and lane not in (MAIN, HOST))


def join(device: Device, streams: Mapping[str, Stream], lanes: Sequence[str]) -> None:
    """Let lane 0 follow these lanes."""
    for lane in lanes:
        if streams[lane].cuda_stream != streams[MAIN].cuda_stream:
            event = device.new_event()
            device.record(event, streams[lane])
            device.wait(event, streams[MAIN])


def during_capture(error: BaseException) -> BaseException:
    """The error of a task that was being captured, with what may have been the matter; another error as it is."""
    if not isinstance(error, TaskError):
        return error
    (problem,) = error.problems
    help = "its CUDA graph was being captured: a task may not wait for the device then (no `.item()`, no copy to or from pageable memory)"
    worded = TaskError(replace(problem, help=help), error.task, error.lane)
    worded.__cause__ = error.__cause__
    return worded


def lanes_for(schedule: Schedule, streams: Mapping[str, Stream], device: Device, main: Stream) -> dict[str, Stream]:
    """The lanes' streams with `main`, which is being captured, as lane 0; a lane that has that very stream gets another."""
    found = {**streams, MAIN: main, HOST: main}
    for lane in schedule.lanes[1:]:
        if not lane.is_host and found[lane.name].cuda_stream == main.cuda_stream:
            found[lane.name] = device.new_stream(lane.priority, {stream.cuda_stream for stream in found.values()})
    return found


def results(schedule: Schedule, cells: Cells) -> dict[str, torch.Tensor]:
    """The outputs, by name: memory of the graph, which each replay overwrites."""
    found: dict[str, torch.Tensor] = {}
    for name, number in schedule.accesses.outputs:
        tensor = cells[number]
        assert tensor is not None, f"bug in streamgraph: output '{name}' was not captured"
        found[name] = tensor
    return found
