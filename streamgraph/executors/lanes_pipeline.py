"""Lanes pipeline: several host threads run a Loop. On the CPU one per lane; on a GPU one for host tasks and one that issues to all streams,
or one per lane there too.

The caller's thread pulls an item as soon as the loop has waited for whatever may still read that item's memory, and gives back the result
that is then due; meanwhile each thread goes through its lanes' part of every iteration that has begun. A thread waits for another one only
where the loop has a wait between their lanes, and then until that event of that iteration has been recorded: so no wait is issued for an
event that nobody has recorded yet. The threads live as long as the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

import torch

from streamgraph.errors import Problem, RunnerError
from streamgraph.executors.device import Device, HostDevice, Stream
from streamgraph.executors.lanes import Delay
from streamgraph.executors.launch import check_stream, failure, in_item, launch
from streamgraph.executors.loop_board import AT_ONCE, LoopBoard
from streamgraph.executors.loop_streams import LoopStreams
from streamgraph.executors.memory import Memory
from streamgraph.executors.modes import CallerState
from streamgraph.executors.pipeline import Items, Outputs
from streamgraph.executors.slots import Slots
from streamgraph.iterations import PSEUDO
from streamgraph.loop import Back, Issue, Loop
from streamgraph.model import ENTRY, HOST, MAIN
from streamgraph.operators import Operator


def threads_of(loop: Loop, one_issuer: bool) -> tuple[tuple[str, ...], ...]:
    """The lanes of each thread, the caller's first. `one_issuer`: one thread issues to all streams but the caller's."""
    callers = (loop.caller,) if loop.main == MAIN else (MAIN, loop.caller)
    others = [lane.name for lane in loop.lanes if lane.name not in callers]
    if not one_issuer:
        return (callers, *((lane,) for lane in others))
    streams = tuple(lane for lane in others if lane != HOST)
    return (callers, streams, (HOST,)) if HOST in others else (callers, streams)


class LanesPipeline:
    """Runs a loop, one at a time. On a GPU its caller must be apart (`plan_loop.py`). `delay` is a hook for tests as in `LanesExecutor`."""

    def __init__(
        self,
        loop: Loop,
        operators: Sequence[Operator],
        memory: Memory,
        delay: Delay | None = None,
        device: Device | None = None,
        calls: Mapping[str, Stream] | None = None,
        one_issuer: bool = False,
    ) -> None:
        self.loop, self.delay, self.device = loop, delay, device or HostDevice()
        self.slots = Slots(loop, memory)
        self.streams = LoopStreams(loop, self.device, self.slots.length, calls)
        self.operators = {operator.call.task: operator for operator in operators}
        self.threads = threads_of(loop, one_issuer)
        self.host_lanes, self.host_events = loop.host_lanes, loop.host_events
        of_lane = {lane: number for number, lanes in enumerate(self.threads) for lane in lanes}
        of_task = {issue.task: of_lane[issue.lane] for issue in loop.steady}
        blocks = (*loop.prologue, loop.steady)
        # Events that some other thread waits for: the others need no word of it.
        self.told = frozenset(
            back.name
            for block in blocks for issue in block for back in issue.waits
            if back.name != ENTRY and of_task[back.name] != of_lane[issue.lane]
        )  # fmt: skip
        self.first = True
        self.broken: str | None = None
        self.under_way: _Run | None = None
        assert loop.main != MAIN or isinstance(self.device, HostDevice), "the caller's stream must be a lane of its own"

    def run(self, items: Items, bound: Mapping[str, torch.Tensor]) -> Iterator[Outputs]:
        """The outputs of each item, in order; see `Pipeline.run`.

        Raises:
            RunnerError: SG604, an earlier loop was given up while a task was still running.
        """
        if self.broken is not None:
            raise RunnerError(Problem("SG604", f"{self.broken}; this runner cannot run again", None, "make a new runner"))
        run = self.under_way = _Run(self, bound)
        try:
            yield from run.results(items)
        except GeneratorExit:  # who closes early wants what has begun to be finished
            raise
        except BaseException as error:
            run.board.fail(AT_ONCE, error)
            raise
        finally:
            run.end()

    def runs_on(self, thread: int) -> bool:
        """Whether that thread, by its ident, is one of the loop under way."""
        return self.under_way is not None and any(own.ident == thread for own in self.under_way.threads)

    def close(self) -> None:
        """Drop the streams and events. No loop may be under way."""
        self.streams.close()
        self.slots.close()


class _Run:
    """One loop under way."""

    def __init__(self, pipeline: LanesPipeline, bound: Mapping[str, torch.Tensor]) -> None:
        self.pipeline, self.bound, self.slots = pipeline, bound, pipeline.slots
        self.device, self.streams = pipeline.device, pipeline.streams
        self.ended = False
        self.begun = self.taken = 0
        self.state = CallerState.take()
        self.main = self.device.current_stream()
        self.streams.enter(self.main)
        self.callers, *others = pipeline.threads
        self.board = LoopBoard(len(others))
        name = f"streamgraph loop {pipeline.loop.program.name}"
        self.threads = [
            threading.Thread(target=self._serve, args=(number, lanes), name=f"{name} @{' @'.join(lanes)}", daemon=True)
            for number, lanes in enumerate(others)
        ]

    def results(self, items: Items) -> Iterator[Outputs]:
        loop = self.pipeline.loop
        with self._on_main():
            self.slots.prepare()
            self.slots.enter(self.bound)
            self.streams.prepare()
            self.streams.begin()
        for thread in self.threads:
            thread.start()
        iteration = 0
        while True:
            block = loop.block(iteration)
            if not self._waits(block[0], iteration, 0) or self.board.error is not None:
                break
            try:
                item = next(items)
            except StopIteration:
                break
            except Exception as error:  # what has begun is finished first: an error in there comes earlier
                self.board.fail((iteration, 0), error)
                break
            self.slots.forget(min(self.taken, *self.board.done, iteration - loop.inflight + 1) - 1)
            self.slots.begin(iteration, item)
            self.begun = iteration + 1
            self.board.begin(iteration)
            self._record(block[0], iteration)
            with self._on_main(), self.state.applied():
                self._issue(frozenset(self.callers), iteration, block[1:], 1)
            iteration += 1
            if iteration >= loop.inflight:
                if not self.board.wait_for_all(iteration - loop.inflight):
                    break
                self.pipeline.first = False
                yield self._take(iteration - loop.inflight)
        self.end()
        if self.board.error is not None:
            raise self.board.error
        for rest in range(self.taken, iteration):
            yield self._take(rest)

    def _take(self, iteration: int) -> Outputs:
        self.taken = iteration + 1
        return self.slots.take(iteration)

    @contextmanager
    def _on_main(self) -> Iterator[None]:
        """The loop's main is current, then the caller's own stream and device again."""
        stream, index = self.device.current_stream(), self.device.current_device()
        try:
            self.device.set_stream(self.main)
            yield
        finally:
            self.device.set_stream(stream)
            if index != self.device.current_device():
                self.device.set_device(index)

    def _serve(self, number: int, lanes: tuple[str, ...]) -> None:
        mine, loop = frozenset(lanes), self.pipeline.loop
        try:
            self.device.set_stream(self.streams.by_lane[lanes[0]])
            with self.state.applied():
                for iteration in count():
                    if not self.board.wait_for_item(iteration) or not self._issue(mine, iteration, loop.block(iteration), 0):
                        return
                    self.board.through(number, iteration)
        except BaseException as error:
            self.board.fail(AT_ONCE, error)

    def _issue(self, lanes: frozenset[str], iteration: int, block: tuple[Issue, ...], offset: int) -> bool:
        """Issue these lanes' part of an iteration. False: an error stands before some of it."""
        for place, issue in enumerate(block, offset):
            if issue.lane not in lanes:
                continue
            at = (iteration, place)
            if not self._waits(issue, iteration, place) or at >= self.board.limit:
                return False
            self.slots.drop(issue.releases_before, iteration)
            if issue.task not in PSEUDO:
                try:
                    self._launch(issue, iteration, len(lanes) > 1)
                except BaseException as error:
                    self.board.fail(at if isinstance(error, Exception) else AT_ONCE, error)
                    return False
            self._record(issue, iteration)
            self.slots.drop(issue.releases_after, iteration)
            if issue.record_streams and MAIN in self.callers:  # on a CPU that is not so, and nothing to tell an allocator
                self._record_streams(issue, iteration)
        return True

    def _launch(self, issue: Issue, iteration: int, several: bool) -> None:
        operator, cells = self.pipeline.operators[issue.task], self.slots.of(iteration)
        stream = self.streams.by_lane[issue.lane]
        if several and not self.device.is_current(stream):
            self.device.set_stream(stream)
        try:
            if self.pipeline.delay is not None:
                self.pipeline.delay(issue.task, "before")
            launch(operator, cells, self.device.location, issue.lane, check=self.pipeline.first)
            check_stream(self.device, stream, operator, issue.lane)
            if self.pipeline.delay is not None:
                self.pipeline.delay(issue.task, "after")
        except BaseException as error:
            raised = in_item(failure(error, operator, cells, issue.lane), iteration)
            if raised is error:
                raise
            raise raised from error

    def _waits(self, issue: Issue, iteration: int, place: int) -> bool:
        return all(self._wait(back, issue.lane, iteration, place) for back in issue.waits)

    def _wait(self, back: Back, lane: str, iteration: int, place: int) -> bool:
        """Let a lane wait for an event. False: an error stands before this place."""
        of = 0 if back.name == ENTRY else iteration - back.by
        if back.name in self.pipeline.told and not self.board.wait(back.name, of, (iteration, place)):
            return False
        if back.name in self.pipeline.host_events:
            return True  # the host is past the task
        event = self.streams.event(back.name, of)
        if lane in self.pipeline.host_lanes:
            event.synchronize()
        else:
            self.device.wait(event, self.streams.by_lane[lane])
        return True

    def _record(self, issue: Issue, iteration: int) -> None:
        if not issue.record:
            return
        own = self.pipeline.loop.own(issue.task, iteration)
        if issue.lane not in self.pipeline.host_lanes:
            self.device.record(self.streams.event(issue.task, own), self.streams.by_lane[issue.lane])
        if issue.task in self.pipeline.told:
            self.board.record(issue.task, own)

    def _record_streams(self, issue: Issue, iteration: int) -> None:
        cells = self.slots.of(self.pipeline.loop.own(issue.task, iteration))
        for name in issue.record_streams:
            tensor = cells[self.slots.number[name]]
            assert tensor is not None, f"bug in streamgraph: output '{name}' was released"
            self.device.record_stream(tensor, self.main)

    def end(self) -> None:
        """Let the threads finish the items that have begun, or stop at the error; bring all lanes to rest, and drop what is left."""
        if self.ended:
            return
        self.ended = True
        own = threading.current_thread() in self.threads  # a generator that nobody holds is closed wherever the collector runs
        self.pipeline.broken = "an earlier loop was given up while a task was still running"
        self.board.end()
        if own:
            self.board.fail(AT_ONCE, RuntimeError("a loop cannot be ended by one of its own threads"))
            return
        interrupted: BaseException | None = None
        try:
            self._join()
        except BaseException as interrupt:
            # Each thread ends with the task that it is in. A second interrupt in that time gives up on it.
            interrupted = interrupt
            self.board.fail(AT_ONCE, interrupt)
            self._join()
        with self._on_main():
            self.streams.come_to_rest()
        self.slots.clear(range(self.taken, self.begun))
        self.pipeline.broken, self.pipeline.under_way = None, None
        if interrupted is not None:
            raise interrupted

    def _join(self) -> None:
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()
