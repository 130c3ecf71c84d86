"""Lanes: one host thread per lane runs that lane's steps; host events order them. The CPU's default.

A wait is released only by the record of its own run: each run notes its records on a board of its own, so a stale event cannot pass for
a fresh one. Every wait's record stands before it in issue order, so some lane can always go on; no thread waits with a lock held.

After an error at some step no lane issues a step that stands later in the schedule, but those before it are still run: so the error that is
raised is the first one in issue order, whatever the threads' timing. An interrupt stops every lane at its next step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue

import torch
from typing_extensions import assert_never

from streamgraph.errors import Problem, RunnerError
from streamgraph.executors import Finished
from streamgraph.executors.launch import failure, launch
from streamgraph.executors.memory import Cells, Memory
from streamgraph.executors.modes import CallerState
from streamgraph.model import HOST
from streamgraph.operators import Operator
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Step, Wait

Delay = Callable[[str, str], None]
"""A hook for tests, called as `delay(task, "before")` and `delay(task, "after")` on the lane's thread."""

_AT_ONCE = -1  # before the first step


class _Board:
    """One run: which events it has recorded, which lanes have begun and ended, and the earliest error."""

    def __init__(self, steps: int, cells: Cells, state: CallerState) -> None:
        self.cells, self.state = cells, state
        self.changed = threading.Condition()
        self.recorded: set[str] = set()
        self.begun: set[str] = set()
        self.ended: set[str] = set()
        self.limit = steps  # no step from this one on is run
        self.error: BaseException | None = None

    def record(self, event: str) -> None:
        with self.changed:
            self.recorded.add(event)
            self.changed.notify_all()

    def wait(self, event: str, step: int) -> bool:
        """Wait for this run's record of the event. False: an error stands before `step`, which is not to be run."""
        if event in self.recorded:
            return True
        with self.changed:
            while event not in self.recorded and step < self.limit:
                self.changed.wait()
        return step < self.limit

    def fail(self, step: int, error: BaseException) -> None:
        """Note an error; the earliest one wins."""
        with self.changed:
            if step < self.limit:
                self.limit, self.error = step, error
            self.changed.notify_all()

    def begin(self, lane: str) -> bool:
        """False if the lane has begun this run already."""
        with self.changed:
            fresh = lane not in self.begun
            self.begun.add(lane)
            return fresh

    def end(self, lane: str) -> None:
        with self.changed:
            self.ended.add(lane)
            self.changed.notify_all()

    def join(self, lanes: Sequence[str]) -> None:
        """Wait until these lanes have ended."""
        with self.changed:
            while not self.ended.issuperset(lanes):
                self.changed.wait()


class LanesExecutor:
    """Runs a schedule on the CPU. Lane `main` is the calling thread; each other lane has a thread that lives until `close`."""

    def __init__(self, schedule: Schedule, operators: Sequence[Operator], seed: int = 0, delay: Delay | None = None) -> None:
        self.schedule, self.delay = schedule, delay
        self.location = torch.device("cpu")
        self.memory = Memory(schedule.program, schedule.accesses, self.location, seed)
        self._operators = {operator.call.task: operator for operator in operators}
        self._number = {storage.label: number for number, storage in enumerate(schedule.accesses.storages)}
        self._steps = _by_lane(schedule)
        self._main, *others = self._steps
        self._first = True
        self._broken = False
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
        """Run every step. See `Executor.run`."""
        if self._broken:
            raise RunnerError(
                Problem("SG604", "an earlier run was abandoned while a task was still running; this runner cannot run again", None,
                        "make a new runner")
            )  # fmt: skip
        board = _Board(len(self.schedule.steps), self.memory.begin(inputs), CallerState.take())
        joined = False
        try:
            try:
                self._hand_out(board)
                self._lane(board, self._main)
            except BaseException as interrupt:  # between two steps; the errors of steps are on the board already
                board.fail(_AT_ONCE, interrupt)
                self._hand_out(board)  # a lane that has its job already does not begin again
            self._join(board)
            joined = True
        finally:
            self._broken = not joined
        cells = board.cells
        if board.error is not None:
            cells.clear()
            try:
                raise board.error
            finally:
                del board  # the error's traceback leads here, and the board to the error
        self._first = False
        return Finished(self.memory.outputs(cells), _nothing)

    def _hand_out(self, board: _Board) -> None:
        for lane, queue in self._queues.items():
            queue.put(partial(self._lane, board, lane))

    def _join(self, board: _Board) -> None:
        lanes = list(self._queues)
        try:
            board.join(lanes)
        except BaseException as interrupt:
            # Every lane ends with the task that it is in. A second interrupt in that time gives up on it.
            board.fail(_AT_ONCE, interrupt)
            board.join(lanes)

    def _lane(self, board: _Board, lane: str) -> None:
        """Run one lane's steps of one run, on the thread that calls this."""
        if not board.begin(lane):
            return
        step = _AT_ONCE
        try:
            with board.state.applied():
                for step, what in self._steps[lane]:
                    if step >= board.limit or not self._step(board, step, what):
                        break
        except BaseException as error:
            board.fail(step if isinstance(error, Exception) else _AT_ONCE, error)
        finally:
            board.end(lane)

    def _step(self, board: _Board, step: int, what: Step) -> bool:
        """Run one step. False: an error that stands before it came up while it waited."""
        cells = board.cells
        match what:
            case Launch(task, lane):
                self._launch(self._operators[task], cells, lane)
            case Record(event, _):
                board.record(event)
            case Wait(event, _):
                return board.wait(event, step)
            case HostWait(event, previous):
                # The run before has ended, on every lane, before this one began.
                return previous or board.wait(event, step)
            case Release(storage, _, previous):
                if not previous:  # nothing is left over between two runs
                    cells[self._number[storage]] = None
            case RecordStream():
                pass  # a matter between an allocator and streams
            case _:
                assert_never(what)
        return True

    def _launch(self, operator: Operator, cells: Cells, lane: str) -> None:
        try:
            if self.delay is not None:
                self.delay(operator.call.task, "before")
            launch(operator, cells, self.location, lane, check=self._first)
            if self.delay is not None:
                self.delay(operator.call.task, "after")
        except BaseException as error:
            raised = failure(error, operator, cells, lane)
            if raised is error:
                raise
            raise raised from error

    def runs_on(self, thread: int) -> bool:
        """See `Executor.runs_on`."""
        return any(own.ident == thread for own in self._threads)

    def close(self) -> None:
        """Drop the buffers and end the threads. See `Executor.close`."""
        self._end_threads()
        for thread in self._threads:
            # A finalizer may run on any thread, one of these among them; an abandoned task must not hold up who closes.
            if thread is not threading.current_thread() and not self._broken:
                thread.join()
        self._threads.clear()
        self.memory.close()


def _by_lane(schedule: Schedule) -> dict[str, tuple[tuple[int, Step], ...]]:
    """Each lane's steps with their place in issue order; `main` first, lanes without a step left out. Host waits belong to lane `host`.

    A release that rests on `record_stream` is left out too: it is safe for an allocator that waits for the recorded lane, but here the
    owner's thread would drop the reference before that lane has even begun. The value goes with the run instead.
    """
    recorded = {step.storage for step in schedule.steps if isinstance(step, RecordStream)}
    found: dict[str, list[tuple[int, Step]]] = {schedule.lanes[0].name: []}
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Release) and step.storage in recorded:
            continue
        lane = HOST if isinstance(step, HostWait) else step.lane
        found.setdefault(lane, []).append((number, step))
    return {lane: tuple(steps) for lane, steps in found.items()}


def _serve(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    """A lane's thread: one job per run. It holds no reference to the executor while it waits."""
    while (job := queue.get()) is not None:
        job()
        del job


def _end_threads(queues: Mapping[str, SimpleQueue[Callable[[], None] | None]]) -> None:
    for queue in queues.values():
        queue.put(None)


def _nothing() -> None:
    """Host inputs are free at once: every task has ended."""
