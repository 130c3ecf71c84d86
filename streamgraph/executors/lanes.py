"""Lanes: one host thread per lane issues that lane's steps. The CPU's default; on a GPU for tasks that block the host.

On a GPU each thread has its lane's stream as its current stream for its whole life. A wait is issued only after its record has been issued
in this run (see `board`), so what holds for one issuing thread holds here: every wait finds its event, and when a lane drops a value, each
use that its clock covers has been issued. A release that rests on `record_stream` has no such wait; there the lane first lets the threads
of the recorded lanes come to the same place in issue order.

On the CPU a step is done when it has been issued. Streams and events are then names only, and the board alone orders the lanes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue

import torch
from typing_extensions import assert_never

from streamgraph.errors import Problem, RunnerError, TaskError
from streamgraph.executors import Finished
from streamgraph.executors.board import AT_ONCE, Board
from streamgraph.executors.device import Device, HostDevice, Stream
from streamgraph.executors.lane_steps import LaneStep, Passed, RecordedRelease, Waits, by_lane
from streamgraph.executors.lane_streams import LaneStreams
from streamgraph.executors.launch import check_stream, failure, launch
from streamgraph.executors.memory import Memory
from streamgraph.executors.modes import CallerState
from streamgraph.model import HOST
from streamgraph.operators import Operator
from streamgraph.schedule import HostWait, Launch, Record, Release, Schedule

Delay = Callable[[str, str], None]
"""A hook for tests, called as `delay(task, "before")` and `delay(task, "after")` on the lane's thread."""


class LanesExecutor:
    """Runs a schedule. Lane `main` is the calling thread; each other lane has a thread that lives until `close`."""

    def __init__(
        self, schedule: Schedule, operators: Sequence[Operator], seed: int = 0, delay: Delay | None = None, device: Device | None = None
    ) -> None:
        self.schedule, self.delay, self.device = schedule, delay, device or HostDevice()
        self.memory = Memory(schedule.program, schedule.accesses, self.device.location, seed)
        self.lanes = LaneStreams(schedule, self.device, threads=True)
        self._on_cpu = isinstance(self.device, HostDevice)
        self._operators = {operator.call.task: operator for operator in operators}
        self._number = {storage.label: number for number, storage in enumerate(schedule.accesses.storages)}
        self._host_events = frozenset(s.event for s in schedule.steps if isinstance(s, Record) and s.lane == HOST)
        self._steps, self._at_the_end = by_lane(schedule)
        self._main, *others = self._steps
        self._first = True
        self._broken: str | None = None
        self._current: dict[str, tuple[int, ...]] = {}  # the handles of the streams that a lane's thread has as its own
        self._queues: dict[str, SimpleQueue[Callable[[], None] | None]] = {}
        self._threads: list[threading.Thread] = []
        # A runner that is dropped without `close` must not leave its threads waiting.
        self._end_threads = weakref.finalize(self, _end_threads, self._queues)
        self._end_threads.atexit = False
        for lane in others:
            queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
            # A daemon: between runs a thread waits in `get`, and must not keep the interpreter from ending when nobody called `close`.
            thread = threading.Thread(target=_serve, args=(queue,), name=f"streamgraph {schedule.program.name} @{lane}", daemon=True)
            thread.start()
            self._queues[lane] = queue
            self._threads.append(thread)

    def run(self, inputs: Mapping[str, torch.Tensor]) -> Finished:
        """Issue every step. See `Executor.run`."""
        if self._broken is not None:
            raise RunnerError(Problem("SG604", f"{self._broken}; this runner cannot run again", None, "make a new runner"))
        if self.device.is_capturing():
            message = "the current stream is being captured into a CUDA graph, and threads cannot issue into a capture"
            raise RunnerError(Problem("SG609", message, None, "call the runner outside `torch.cuda.graph(...)`"))
        caller = self.lanes.now()
        try:
            self.lanes.enter(caller)
            self.device.set_stream(caller.main)
            return self._run(inputs)
        finally:
            self.lanes.restore(caller, caller.index)

    def _run(self, inputs: Mapping[str, torch.Tensor]) -> Finished:
        board = Board(len(self.schedule.steps), self.memory.begin(inputs), CallerState.take())
        self.lanes.fork()
        self._broken = "an earlier run was abandoned while a task was still running"
        try:
            self._hand_out(board)
            self._lane(board, self._main)
        except BaseException as interrupt:  # between two steps; the errors of steps are on the board already
            board.fail(AT_ONCE, interrupt)
            self._hand_out(board)  # a lane that has its job already does not begin again
        self._join(board)
        self._broken = None
        cells = board.cells
        if board.error is not None:
            self._come_to_rest(board)
            cells.clear()
            try:
                raise board.error
            finally:
                del board  # the error's traceback leads here, and the board to the error
        for number, lane in self._at_the_end:
            tensor = cells[number]
            assert tensor is not None, "bug in streamgraph: record_stream of a value after its release"
            self.device.record_stream(tensor, self.lanes.recorded(number, lane))
        self.lanes.join()
        if not self._on_cpu:  # where everything is done by now, and nothing needs to be kept
            self.lanes.pending.update(self.memory.left_over(cells))
        self._first = False
        outputs = self.memory.outputs(cells)
        cells.clear()  # a thread that has ended its lane may hold the board a moment longer
        return Finished(outputs, self.lanes.inputs_free())

    def _hand_out(self, board: Board) -> None:
        for lane, queue in self._queues.items():
            queue.put(partial(self._lane, board, lane))

    def _join(self, board: Board) -> None:
        lanes = list(self._queues)
        try:
            board.join(lanes)
        except BaseException as interrupt:
            # Every lane ends with the task that it is in. A second interrupt in that time gives up on it.
            board.fail(AT_ONCE, interrupt)
            board.join(lanes)

    def _come_to_rest(self, board: Board) -> None:
        assert board.error is not None
        try:
            self.lanes.come_to_rest(board.launched)
        except BaseException as second:
            # A device that reports errors for good, or a second Ctrl-C: nothing is known to be idle, so nothing may be dropped.
            task = f" in task '{board.error.task}'" if isinstance(board.error, TaskError) else ""
            self._broken = f"the device did not come to rest after an error{task}"
            raise board.error from second

    def _lane(self, board: Board, lane: str) -> None:
        """Issue one lane's steps of one run, on the thread that calls this."""
        if not board.begin(lane):
            return
        step = AT_ONCE
        try:
            stream, own = self.lanes.streams[lane], self.lanes.of_lane(lane)
            if lane != self._main and self._current.get(lane) != tuple(other.cuda_stream for other in own):
                for other in own:
                    self.device.set_stream(other)
                self._current[lane] = tuple(other.cuda_stream for other in own)
            with board.state.applied():
                for step, what in self._steps[lane]:
                    if step >= board.limit or not self._step(board, step, what, stream):
                        break
        except BaseException as error:
            self._current.pop(lane, None)  # a task that failed may have left any stream current
            board.fail(step if isinstance(error, Exception) else AT_ONCE, error)
        finally:
            board.end(lane)

    def _step(self, board: Board, step: int, what: LaneStep, stream: Stream) -> bool:
        """Issue one step. False: an error that stands before it came up while it waited."""
        match what:
            case Launch(task, lane):
                board.launched[lane] = None
                self._launch(self._operators[task], board, lane, stream)
            case Record(event, lane):
                if lane != HOST:
                    self.device.record(self.lanes.events[event], stream)
                board.mark(event)
            case Waits(events):
                if not board.wait(events, step):
                    return False
                for event in events:
                    if event not in self._host_events:  # else the host is past the task by now
                        self.device.wait(self.lanes.events[event], stream)
            case HostWait(event, True):
                if not self.lanes.first:
                    self.lanes.previous[event].synchronize()
            case HostWait(event, _):
                if not board.wait((event,), step):
                    return False
                self.lanes.events[event].synchronize()
            case Release(storage, _, True):
                self.lanes.give_back(self._number[storage])
                self.lanes.pending.pop(self._number[storage], None)
            case Release(storage, _, _):
                self.lanes.give_back(self._number[storage])
                board.cells[self._number[storage]] = None
            case Passed():
                board.mark(what)
            case RecordedRelease(number, storage, lanes):
                if not board.wait([Passed(number, lane) for lane in lanes], step):
                    return False
                self._release_recorded(board, self._number[storage], lanes)
            case _:
                assert_never(what)
        return True

    def _launch(self, operator: Operator, board: Board, lane: str, stream: Stream) -> None:
        try:
            if self.delay is not None:
                self.delay(operator.call.task, "before")
            launch(operator, board.cells, self.device.location, lane, check=self._first)
            check_stream(self.lanes.device_of(lane), stream, operator, lane)
            self.lanes.arrived(operator.call.task)
            if self.delay is not None:
                self.delay(operator.call.task, "after")
        except BaseException as error:
            raised = failure(error, operator, board.cells, lane)
            if raised is error:
                raise
            raise raised from error

    def _release_recorded(self, board: Board, number: int, lanes: tuple[str, ...]) -> None:
        tensor = board.cells[number]
        assert tensor is not None, "bug in streamgraph: record_stream of a value after its release"
        for lane in lanes:
            self.device.record_stream(tensor, self.lanes.recorded(number, lane))
        self.lanes.give_back(number)
        board.cells[number] = None

    def runs_on(self, thread: int) -> bool:
        """See `Executor.runs_on`."""
        return any(own.ident == thread for own in self._threads)

    def close(self) -> None:
        """Drop everything and end the threads. See `Executor.close`."""
        self._end_threads()
        for thread in self._threads:
            # A finalizer may run on any thread, one of these among them; an abandoned task must not hold up who closes.
            if thread is not threading.current_thread() and self._broken is None:
                thread.join()
        self._threads.clear()
        self.lanes.close(self._broken is None, self.memory.has_host_buffers)
        self.memory.close()


def _serve(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    """A lane's thread: one job per run. It holds no reference to the executor while it waits."""
    while (job := queue.get()) is not None:
        job()
        del job


def _end_threads(queues: Mapping[str, SimpleQueue[Callable[[], None] | None]]) -> None:
    for queue in queues.values():
        queue.put(None)
