"""Lanes pipeline: several host threads run a Loop. On the CPU one per lane; on a GPU one for host tasks and one that issues to all streams,
or one per lane there too.

The caller's thread pulls an item as soon as the loop has waited for whatever may still read that item's memory, and gives back the result
that is then due; meanwhile each thread goes through its lanes' part of every iteration that has begun. A thread waits for another one only
where the loop has a wait between their lanes, and then until that event of that iteration has been recorded: so no wait is issued for an
event that nobody has recorded yet. The threads live as long as the loop. On a GPU each of them issues the iterations that repeat by a
generated function (`loop_code`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch

from streamgraph.errors import Problem, RunnerError
from streamgraph.executors.device import Device, HostDevice, Stream
from streamgraph.executors.lanes import Delay
from streamgraph.executors.loop_board import AT_ONCE, LoopBoard
from streamgraph.executors.loop_code import LoopCode
from streamgraph.executors.loop_streams import LoopStreams
from streamgraph.executors.memory import Memory
from streamgraph.executors.modes import CallerState
from streamgraph.executors.pipeline import Items, Outputs
from streamgraph.executors.slots import Slots
from streamgraph.executors.stepwise import Stepwise
from streamgraph.loop import Loop
from streamgraph.model import ENTRY, HOST, MAIN
from streamgraph.operators import Operator


def threads_of(loop: Loop, one_issuer: bool) -> tuple[tuple[str, ...], ...]:
    """The lanes of each thread, the caller's first. `one_issuer`: one thread issues to all streams but the caller's."""
    callers = (loop.caller,) if loop.main == MAIN else (MAIN, *(lane for _, lane in loop.callers), loop.caller)
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
        self.streams = LoopStreams(loop, self.device, self.slots, calls)
        self.operators = {operator.call.task: operator for operator in operators}
        self.threads = threads_of(loop, one_issuer)
        of_lane = {lane: number for number, lanes in enumerate(self.threads) for lane in lanes}
        of_task = {issue.task: of_lane[issue.lane] for issue in loop.steady}
        blocks = (*loop.prologue, loop.steady)
        # Events that some other thread waits for: the others need no word of it.
        self.told = frozenset(
            back.name
            for block in blocks for issue in block for back in issue.waits
            if back.name != ENTRY and of_task[back.name] != of_lane[issue.lane]
        )  # fmt: skip
        wrap = None if delay is None else partial(_delayed, delay)
        on_gpu = not isinstance(self.device, HostDevice)
        self.codes = tuple(
            LoopCode(self.slots, operators, self.device, self.streams, lanes, self.told, wrap) for lanes in self.threads if on_gpu
        )
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
            if self.under_way is None:
                self.slots.clear(range(0))

    def runs_on(self, thread: int) -> bool:
        """Whether that thread, by its ident, is one of the loop under way."""
        return self.under_way is not None and any(own.ident == thread for own in self.under_way.threads)

    @property
    def source(self) -> str:
        """The text of the functions that issue the iterations which repeat, thread after thread, the caller's first."""
        return "\n".join(f"# @{' @'.join(code.lanes)}\n{code.source}" for code in self.codes)

    def close(self) -> None:
        """Drop functions, streams and events. No loop may be under way."""
        for code in self.codes:
            code.close()
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
        self.streams.enter(self.streams.now())
        _, *others = pipeline.threads
        # The first iteration is issued step by step, so that what its tasks return can be checked.
        self.repeats = max(1, len(pipeline.loop.prologue)) if pipeline.codes else None
        self.board = LoopBoard(len(others))
        self.steps = [
            Stepwise(self.slots, pipeline.operators, self.device, self.streams, lanes, pipeline.told, self.board, pipeline.delay)
            for lanes in pipeline.threads
        ]
        name = f"streamgraph loop {pipeline.loop.program.name}"
        self.threads = [
            threading.Thread(target=self._serve, args=(number, lanes), name=f"{name} @{' @'.join(lanes)}", daemon=True)
            for number, lanes in enumerate(others, 1)
        ]

    def results(self, items: Items) -> Iterator[Outputs]:
        loop = self.pipeline.loop
        with self.streams.current():
            self.slots.prepare()
            self.slots.enter(self.bound)
            self.streams.prepare()
            self.streams.begin()
            for code in self.pipeline.codes:
                code.enter()
        for thread in self.threads:
            thread.start()
        iteration = 0
        while True:
            flat = self._is_flat(iteration)
            if not (self._source(iteration) if flat else self.steps[0].source_waits(iteration)) or self.board.error is not None:
                break
            item = next(items, None)
            if item is None:
                break
            self.slots.forget(min(self.taken, *self.board.done, iteration - loop.inflight + 1) - 1)
            self.begun = iteration + 1
            (self.slots.bring if flat else self.slots.begin)(iteration, item)
            self.board.begin(iteration)
            if flat:
                self._issue(0, iteration)  # no task is among it: the caller is apart
            else:
                with self.streams.current(), self.state.applied():
                    self._issue(0, iteration)
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
            self.steps[0].hand_over(rest)
            yield self._take(rest)

    def _take(self, iteration: int) -> Outputs:
        self.taken = iteration + 1
        return self.slots.take(iteration)

    def _serve(self, number: int, lanes: tuple[str, ...]) -> None:
        try:
            for stream in self.streams.of_lane(lanes[0]):
                self.device.set_stream(stream)
            with self.state.applied():
                for iteration in count():
                    if not self.board.wait_for_item(iteration) or not self._issue(number, iteration):
                        return
                    self.board.through(number - 1, iteration)
        except BaseException as error:
            self.board.fail(AT_ONCE, error)

    def _issue(self, thread: int, iteration: int) -> bool:
        """Issue a thread's part of an iteration. False: an error stands before some of it."""
        if self._is_flat(iteration):
            code = self.pipeline.codes[thread]
            try:
                return all(part(iteration, self.board) for part in code.phase(iteration).parts)
            except BaseException as error:
                raised, place = code.failed(error, iteration)
        else:
            try:
                return self.steps[thread].issue(iteration, check=self.pipeline.first)
            except BaseException as error:
                raised, place = error, self.steps[thread].place
        self.board.fail((iteration, place) if place >= 0 and isinstance(raised, Exception) else AT_ONCE, raised)
        return False

    def _is_flat(self, iteration: int) -> bool:
        """Whether an iteration is issued by generated functions."""
        return self.repeats is not None and iteration >= self.repeats

    def _source(self, iteration: int) -> bool:
        """`_waits` of the source, by its function."""
        source = self.pipeline.codes[0].phase(iteration).source
        return source is None or source(iteration, self.board)

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
        with self.streams.current():
            self.streams.come_to_rest()
        self.slots.clear(range(self.taken, self.begun))
        self.pipeline.broken, self.pipeline.under_way = None, None
        if interrupted is not None:
            raise interrupted

    def _join(self) -> None:
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()


def _delayed(delay: Delay, task: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*positional: Any, **keywords: Any) -> Any:
        delay(task, "before")
        result = function(*positional, **keywords)
        delay(task, "after")
        return result

    return call
