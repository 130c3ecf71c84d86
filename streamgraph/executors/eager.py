"""Eager: one thread issues the steps of a schedule to the streams of its lanes, in the order in which they stand.

Nothing here waits for the device except a `hostwait`, the clean-up after a failure, and `close` where host memory is dropped. Between runs
two things stay: the buffers, and the values that the schedule leaves to the next run (`release ... previous`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from typing_extensions import assert_never

from streamgraph.devices import not_captured
from streamgraph.errors import Problem, RunnerError, TaskError
from streamgraph.executors import Finished
from streamgraph.executors.capture import host_task, host_wait, issue, lanes_for, results
from streamgraph.executors.device import Device, Event, Stream
from streamgraph.executors.lane_streams import LaneStreams
from streamgraph.executors.launch import check_stream, failure, launch
from streamgraph.executors.memory import Cells, Memory
from streamgraph.executors.modes import task_mode
from streamgraph.model import HOST, MAIN
from streamgraph.operators import Operator
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Wait


class EagerExecutor:
    """Runs a schedule on a device's streams. The side lanes and the events are made in the first run, and never again."""

    def __init__(self, schedule: Schedule, operators: Sequence[Operator], device: Device, seed: int = 0) -> None:
        self.schedule, self.device = schedule, device
        self.memory = Memory(schedule.program, schedule.accesses, device.location, seed)
        self.lanes = LaneStreams(schedule, device)
        self._operators = {operator.call.task: operator for operator in operators}
        self.number = {storage.label: number for number, storage in enumerate(schedule.accesses.storages)}
        # A record on the host lane, and a wait for it, order issuing threads. There is one here, and it is past the task by then.
        self._host_events = frozenset(s.event for s in schedule.steps if isinstance(s, Record) and s.lane == HOST)
        self.first = True
        self.broken: TaskError | None = None

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The stream of each lane, of the latest run."""
        return self.lanes.streams

    @property
    def events(self) -> Mapping[str, Event]:
        """The events by name."""
        return self.lanes.events

    @property
    def pending(self) -> Mapping[int, torch.Tensor]:
        """The values that the latest run left to the next one, by storage number."""
        return self.lanes.pending

    def run(self, inputs: Mapping[str, torch.Tensor]) -> Finished:
        """Issue every step. See `Executor.run`."""
        if self.broken is not None:
            message = f"the device did not come to rest after an error in task '{self.broken.task}'; this runner cannot run again"
            raise RunnerError(Problem("SG604", message, None, "mend the task; after an error of CUDA itself, start a new process"))
        caller = self.lanes.now()
        capturing = self.device.is_capturing()
        if capturing:
            self._check_capture()
        try:
            with task_mode():
                if capturing:
                    return self._run_captured(caller.main, inputs)
                self.lanes.enter(caller)
                return self._run(inputs)
        finally:
            self.lanes.restore(caller, caller.index)

    def _check_capture(self) -> None:
        """Refuse a run inside the caller's own capture that cannot join it, before its first step."""
        problem = not_captured(self.schedule.program) or host_task(self.schedule) or host_wait(self.schedule)
        if problem is None and self.first:
            message = "the current stream is being captured into a CUDA graph, and this runner has not run before"
            remedy = "call it once outside `torch.cuda.graph(...)`: it makes its buffers and checks its tasks"
            problem = Problem("SG609", message, None, remedy)
        if problem is not None:
            raise RunnerError(problem)

    def _run_captured(self, main: Stream, inputs: Mapping[str, torch.Tensor]) -> Finished:
        """Issue every step into the graph that the caller is capturing. The buffers are the runner's, so it must outlive the graph."""
        cells = self.memory.begin(inputs)
        streams = lanes_for(self.schedule, self.lanes.streams, self.device, main)
        issue(self.schedule, self._operators, self.device, streams, cells, self.number)
        return Finished(results(self.schedule, cells), _nothing)

    def follow(self, later: Stream, earlier: Stream) -> None:
        """Let `later` wait for all that `earlier` holds now."""
        self.lanes.follow(later, earlier)

    def _run(self, inputs: Mapping[str, torch.Tensor]) -> Finished:
        issued: dict[str, None] = {MAIN: None}
        cells: Cells = []
        launching: Operator | None = None
        lane = MAIN
        device, lanes, number = self.device, self.lanes, self.number
        streams, events, before = lanes.streams, lanes.events, lanes.switches.before
        device.set_stream(streams[MAIN])
        try:
            cells = self.memory.begin(inputs)
            lanes.fork()
            for place, step in enumerate(self.schedule.steps):
                match step:
                    case Launch(task, lane):
                        for at in before.get(place, ()):
                            device.set_stream(lanes.at[at])
                        issued[lane] = None
                        launching = self._operators[task]
                        launch(launching, cells, device.location, lane, check=self.first)
                        if self.first:
                            check_stream(lanes.device_of(lane), streams[lane], launching, lane)
                        launching = None
                        lanes.arrived(task)
                    case Record(event, lane):
                        if lane != HOST:
                            device.record(events[event], streams[lane])
                    case Wait(event, lane):
                        if event not in self._host_events:
                            device.wait(events[event], streams[lane])
                    case HostWait(event, previous):
                        if not previous or not lanes.first:
                            events[event].synchronize()
                    case Release(storage, _, previous):
                        lanes.give_back(number[storage])
                        if previous:
                            lanes.pending.pop(number[storage], None)
                        else:
                            cells[number[storage]] = None
                    case RecordStream(storage, lane):
                        tensor = cells[number[storage]]
                        assert tensor is not None, f"bug in streamgraph: record_stream of '{storage}' after its release"
                        device.record_stream(tensor, lanes.recorded(number[storage], lane))
                        del tensor
                    case _:
                        assert_never(step)
        except BaseException as error:
            raised = failure(error, launching, cells, lane) if launching is not None else error
            self.come_to_rest(tuple(issued), raised)
            cells.clear()
            if raised is error:
                raise
            raise raised from error
        lanes.join()
        lanes.pending.update(self.memory.left_over(cells))
        self.first = False
        return Finished(self.memory.outputs(cells), lanes.inputs_free())

    def come_to_rest(self, issued: Sequence[str], error: BaseException) -> None:
        """After a failure: nothing is running any more, or the runner is of no use any more."""
        try:
            self.lanes.come_to_rest(issued)
        except BaseException as second:
            # A device that reports errors for good, or a second Ctrl-C: nothing is known to be idle, so nothing may be dropped.
            self.broken = error if isinstance(error, TaskError) else TaskError(Problem("SG601", str(error)))
            raise error from second

    def drop_left_over(self) -> None:
        """Drop what the latest run left over, now instead of in the next run."""
        self.lanes.drop_left_over()

    def runs_on(self, thread: int) -> bool:
        """Never: tasks run on the caller's thread. See `Executor.runs_on`."""
        return False

    def close(self) -> None:
        """Drop everything. See `Executor.close`."""
        self.lanes.close(self.broken is None, self.memory.has_host_buffers)
        self.memory.close()


def _nothing() -> None:
    """A captured run has read nothing yet."""
