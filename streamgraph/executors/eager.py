"""Eager: one thread issues the steps of a schedule to the streams of its lanes, in the order in which they stand.

Nothing here waits for the device except a `hostwait`, the clean-up after a failure, and `close` where host memory is dropped. Between runs
two things stay: the buffers, and the values that the schedule leaves to the next run (`release ... previous`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from typing_extensions import assert_never

from streamgraph.errors import Problem, RunnerError, TaskError
from streamgraph.executors import Finished
from streamgraph.executors.capture import host_task, host_wait, issue, lanes_for, results
from streamgraph.executors.device import Device, Event, Stream
from streamgraph.executors.launch import failure, launch
from streamgraph.executors.left_over import drop_pending, inputs_free, last_records
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
        self.events: dict[str, Event] = {}
        self.streams: dict[str, Stream] = {}  # by lane; MAIN is the stream of the latest run
        self.pending: dict[int, torch.Tensor] = {}  # values of the run before, by storage
        self._operators = {operator.call.task: operator for operator in operators}
        self.number = {storage.label: number for number, storage in enumerate(schedule.accesses.storages)}
        # A record on the host lane, and a wait for it, order issuing threads. There is one here, and it is past the task by then.
        self._host_events = frozenset(s.event for s in schedule.steps if isinstance(s, Record) and s.lane == HOST)
        self._inputs_read = last_records(schedule)
        self._spare: dict[str, Event] = {}
        self._made_on: Stream | None = None  # where the buffers were made, and where they go back to
        self.first = True
        self.broken: TaskError | None = None

    def run(self, inputs: Mapping[str, torch.Tensor]) -> Finished:
        """Issue every step. See `Executor.run`."""
        if self.broken is not None:
            message = f"the device did not come to rest after an error in task '{self.broken.task}'; this runner cannot run again"
            raise RunnerError(Problem("SG604", message, None, "mend the task; after an error of CUDA itself, start a new process"))
        main, device_before = self.device.current_stream(), self.device.current_device()
        capturing = self.device.is_capturing()
        if capturing:
            self._check_capture()
        try:
            with task_mode():
                if capturing:
                    return self._run_captured(main, inputs)
                self.enter(main)
                return self._run(main, inputs)
        finally:
            self.device.set_stream(main)
            if device_before != self.device.current_device():
                self.device.set_device(device_before)

    def _check_capture(self) -> None:
        """Refuse a run inside the caller's own capture that cannot join it, before its first step."""
        problem = host_task(self.schedule) or host_wait(self.schedule)
        if problem is None and self.first:
            message = "the current stream is being captured into a CUDA graph, and this runner has not run before"
            remedy = "call it once outside `torch.cuda.graph(...)`: it makes its buffers and checks its tasks"
            problem = Problem("SG609", message, None, remedy)
        if problem is not None:
            raise RunnerError(problem)

    def _run_captured(self, main: Stream, inputs: Mapping[str, torch.Tensor]) -> Finished:
        """Issue every step into the graph that the caller is capturing. The buffers are the runner's, so it must outlive the graph."""
        cells = self.memory.begin(inputs)
        streams = lanes_for(self.schedule, self.streams, self.device, main)
        issue(self.schedule, self._operators, self.device, streams, cells, self.number)
        return Finished(results(self.schedule, cells), _nothing)

    def enter(self, main: Stream) -> None:
        """Make `main` lane 0, ordered after the last run; draw the streams of the side lanes in the first run."""
        last = self.streams.get(MAIN)
        if last is not None and last.cuda_stream != main.cuda_stream:
            self.follow(main, last)
        for lane in self.schedule.lanes[1:]:
            stream = self.streams.get(lane.name)
            if lane.is_host or (stream is not None and stream.cuda_stream != main.cuda_stream):
                continue
            if stream is not None and last is not None:
                # The caller came on the very stream of this lane. What the lane has left to drop was allocated there: end that first.
                self._drop_pending(last, only=lane.name)
            taken = {main.cuda_stream, *(other.cuda_stream for other in self.streams.values())}
            self.streams[lane.name] = self.device.new_stream(lane.priority, taken)
        self.streams[MAIN] = self.streams[HOST] = main
        if self._made_on is None:
            self._made_on = main

    def follow(self, later: Stream, earlier: Stream) -> None:
        """Let `later` wait for all that `earlier` holds now."""
        event = self._spare_event(MAIN)
        self.device.record(event, earlier)
        self.device.wait(event, later)

    def _run(self, main: Stream, inputs: Mapping[str, torch.Tensor]) -> Finished:
        issued: dict[str, None] = {MAIN: None}
        cells: Cells = []
        launching: Operator | None = None
        lane = MAIN
        device, streams, events, number = self.device, self.streams, self.events, self.number
        device.set_stream(main)
        current = MAIN
        try:
            cells = self.memory.begin(inputs)
            for step in self.schedule.steps:
                match step:
                    case Launch(task, lane):
                        if lane != current:
                            device.set_stream(streams[lane])
                            current = lane
                        issued[lane] = None
                        launching = self._operators[task]
                        launch(launching, cells, device.location, lane, check=self.first)
                        if self.first:
                            self._check_stream(launching, lane)
                        launching = None
                    case Record(event, lane):
                        if lane != HOST:
                            if event not in events:
                                events[event] = device.new_event()
                            device.record(events[event], streams[lane])
                    case Wait(event, lane):
                        if event not in self._host_events:
                            device.wait(events[event], streams[lane])
                    case HostWait(event, previous):
                        if not previous or event in events:  # in a first run there is none before it
                            events[event].synchronize()
                    case Release(storage, _, previous):
                        if previous:
                            self.pending.pop(number[storage], None)
                        else:
                            cells[number[storage]] = None
                    case RecordStream(storage, lane):
                        tensor = cells[number[storage]]
                        assert tensor is not None, f"bug in streamgraph: record_stream of '{storage}' after its release"
                        device.record_stream(tensor, streams[lane])
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
        self.pending.update(self.memory.left_over(cells))
        self.first = False
        return Finished(self.memory.outputs(cells), self.inputs_free(main))

    def _check_stream(self, operator: Operator, lane: str) -> None:
        """SG607 if the task left another stream or device current than it found."""
        found, index = self.device.current_stream(), self.device.current_device()
        if found.cuda_stream != self.streams[lane].cuda_stream or index != (self.device.location.index or 0):
            message = f"task '{operator.call.task}' @{lane} left another stream or device current than it found"
            remedy = "use `with torch.cuda.stream(...)`, which puts the old one back"
            raise TaskError(Problem("SG607", message, operator.call.location, remedy), operator.call.task, lane)

    def come_to_rest(self, issued: Sequence[str], error: BaseException) -> None:
        """After a failure: lane 0 follows every lane with work of this run, the host follows lane 0, and what is left is dropped."""
        main = self.streams[MAIN]
        try:
            self.device.set_stream(main)
            for lane in issued:
                if self.streams[lane].cuda_stream != main.cuda_stream:
                    self.device.record(self._spare_event(lane), self.streams[lane])
                    self.device.wait(self._spare_event(lane), main)
            last = self._spare_event(MAIN)
            self.device.record(last, main)
            last.synchronize()
        except BaseException as second:
            # A device that reports errors for good, or a second Ctrl-C: nothing is known to be idle, so nothing may be dropped.
            self.broken = error if isinstance(error, TaskError) else TaskError(Problem("SG601", str(error)))
            raise error from second
        self.pending.clear()

    def _spare_event(self, lane: str) -> Event:
        if lane not in self._spare:
            self._spare[lane] = self.device.new_event()
        return self._spare[lane]

    def inputs_free(self, main: Stream) -> Callable[[], None]:
        """A call that blocks the host until no device task of this run reads a bound host input any more. It outlives the executor."""
        names, on_main = self._inputs_read
        return inputs_free(self.device, main, tuple(self.events[name] for name in names), on_main)

    def _drop_pending(self, last: Stream, only: str | None = None) -> None:
        """Drop left-over values once the lanes that allocated them follow lane 0, and with it everything that used them."""
        drop_pending(self.schedule, self.device, self.streams, self.pending, last, self._spare_event(MAIN), only)

    def drop_left_over(self) -> None:
        """Drop what the latest run left over, now instead of in the next run."""
        last = self.streams.get(MAIN)
        if last is not None:
            self._drop_pending(last)

    def runs_on(self, thread: int) -> bool:
        """Never: tasks run on the caller's thread. See `Executor.runs_on`."""
        return False

    def close(self) -> None:
        """Drop everything. See `Executor.close`."""
        last = self.streams.get(MAIN)
        if last is not None and self.broken is None:
            self.drop_left_over()
            assert self._made_on is not None
            if self._made_on.cuda_stream != last.cuda_stream:
                self.follow(self._made_on, last)
            if self.memory.has_host_buffers:
                # The allocator of pinned memory knows of copies, not of kernels that read it.
                event = self._spare_event(MAIN)
                self.device.record(event, last)
                event.synchronize()
        self.pending.clear()
        self.memory.close()
        self.events.clear()
        self._spare.clear()
        self.streams.clear()


def _nothing() -> None:
    """A captured run has read nothing yet."""
