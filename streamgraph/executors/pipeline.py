"""Pipeline: one thread issues a Loop, item after item, to the streams of its lanes; results come out while later items are under way.

Between two results nothing waits for the device but what the loop says. The thread is the caller's: it pulls an item when the loop has
waited for whatever may still read that item's memory, issues one iteration, and gives back the result that is then due. At the end, after
an error, and when the caller stops early, every lane is joined and the host waits for all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from streamgraph.errors import Problem, TaskError
from streamgraph.executors.device import Device, Event, Stream
from streamgraph.executors.launch import failure, launch
from streamgraph.executors.memory import Memory
from streamgraph.executors.modes import task_mode
from streamgraph.executors.slots import Slots
from streamgraph.iterations import DELIVER, ITEM, RESULT, SOURCE
from streamgraph.loop import Back, Issue, Loop
from streamgraph.model import ENTRY, HOST, MAIN
from streamgraph.operators import Operator

Items = Iterator[Mapping[str, torch.Tensor]]
Outputs = dict[str, torch.Tensor]


class Pipeline:
    """Runs a loop on a device's streams, one loop at a time. Streams and events are made in the first loop, and never again."""

    def __init__(
        self, loop: Loop, operators: Sequence[Operator], device: Device, memory: Memory, calls: Mapping[str, Stream] | None = None
    ) -> None:
        """`calls` are the streams of the executor whose memory this is: a loop on another stream than its last call follows that call."""
        self.loop, self.device = loop, device
        self._calls = calls if calls is not None else {}
        self.slots = Slots(loop, memory)
        self._operators = {operator.call.task: operator for operator in operators}
        self._streams: dict[str, Stream] = {}
        self._events: dict[str, list[Event]] = {}
        self._spare: dict[str, Event] = {}
        self._first = True

    def run(self, items: Items, bound: Mapping[str, torch.Tensor]) -> Iterator[Outputs]:
        """The outputs of each item, in order.

        Raises:
            TaskError: a task raised, or returned what it may not; the message says for which item. Nothing is running any more.
        """
        run = _Run(self, bound)
        try:
            yield from run.results(items)
        finally:
            run.end()

    def streams(self, main: Stream) -> dict[str, Stream]:
        """The stream of each lane; side lanes are drawn once, and again where the caller came on the very stream of one."""
        for lane in self.loop.lanes[1:]:
            stream = self._streams.get(lane.name)
            if not lane.is_host and (stream is None or stream.cuda_stream == main.cuda_stream):
                taken = {main.cuda_stream, *(other.cuda_stream for other in self._streams.values())}
                self._streams[lane.name] = self.device.new_stream(lane.priority, taken)
        self._streams[MAIN] = self._streams[HOST] = main
        return dict(self._streams)

    def follow_calls(self, main: Stream) -> None:
        """Let the loop's stream wait for the executor's last call, if that was on another one."""
        last = self._calls.get(MAIN)
        if last is not None and last.cuda_stream != main.cuda_stream:
            self.device.record(self.spare(MAIN), last)
            self.device.wait(self.spare(MAIN), main)

    def event(self, name: str, iteration: int) -> Event:
        """The event of a task's iteration. There are as many as iterations that a wait may look back to, and one."""
        ring = self._events.get(name)
        if ring is None:
            ring = self._events[name] = [self.device.new_event() for _ in range(self.loop.reach + 1)]
        return ring[iteration % len(ring)]

    def spare(self, lane: str) -> Event:
        """An event for the end of a lane."""
        if lane not in self._spare:
            self._spare[lane] = self.device.new_event()
        return self._spare[lane]

    def close(self) -> None:
        """Drop the rings, streams and events. No loop may be under way."""
        self.slots.close()
        self._streams.clear()
        self._events.clear()
        self._spare.clear()


class _Run:
    """One loop under way."""

    def __init__(self, pipeline: Pipeline, bound: Mapping[str, torch.Tensor]) -> None:
        self.pipeline, self.bound = pipeline, bound
        self.device = pipeline.device
        self.main = self.device.current_stream()
        self.streams = pipeline.streams(self.main)
        self.slots = pipeline.slots
        self.ended = False
        self.taken = 0  # results given to the caller

    def results(self, items: Items) -> Iterator[Outputs]:
        loop = self.pipeline.loop
        iteration = 0
        with self._issuing():
            self.pipeline.follow_calls(self.main)
            self.slots.prepare()
            self.device.record(self.pipeline.event(ENTRY, 0), self.main)
        while True:
            block = loop.block(iteration)
            with self._issuing():
                self._waits(block[0], iteration)  # the source: its waits come before the item is pulled, which may refill memory
            try:
                item = next(items)
            except StopIteration:
                break
            with self._issuing():
                self._block(block, iteration, item)
            iteration += 1
            if iteration >= loop.inflight:
                yield self._take(iteration - loop.inflight)
        self.end()
        for rest in range(self.taken, iteration):
            yield self._take(rest)

    def _block(self, block: tuple[Issue, ...], iteration: int, item: Mapping[str, torch.Tensor]) -> None:
        self.slots.forget(min(self.taken - 1, iteration - self.pipeline.loop.inflight))
        self.slots.begin(iteration, {**self.bound, **item})
        for number, issue in enumerate(block):
            if number:
                self._waits(issue, iteration)
            self.slots.drop(issue.releases_before, iteration)
            if issue.task not in (SOURCE, ITEM, RESULT, DELIVER):
                self._launch(issue, iteration)
            own = self.pipeline.loop.own(issue.task, iteration)
            if issue.record and issue.lane != HOST:
                self.device.record(self.pipeline.event(issue.task, own), self.streams[issue.lane])
            self.slots.drop(issue.releases_after, iteration)
            if issue.record_streams:
                self._record_streams(issue, own)
        self.pipeline._first = False

    def _waits(self, issue: Issue, iteration: int) -> None:
        for back in issue.waits:
            if self._on_host(back):
                continue  # this thread is past the task
            event = self.pipeline.event(back.name, 0 if back.name == ENTRY else iteration - back.by)
            if issue.lane == HOST:
                event.synchronize()
            else:
                self.device.wait(event, self.streams[issue.lane])

    def _on_host(self, back: Back) -> bool:
        program = self.pipeline.loop.program
        index = program.index_of_task.get(back.name)
        return back.name in (SOURCE, DELIVER) or (index is not None and program.tasks[index].host)

    def _launch(self, issue: Issue, iteration: int) -> None:
        operator = self.pipeline._operators[issue.task]
        cells = self.slots.of(iteration)
        self.device.set_stream(self.streams[issue.lane])
        try:
            launch(operator, cells, self.device.location, issue.lane, check=self.pipeline._first)
        except BaseException as error:
            raised = in_item(failure(error, operator, cells, issue.lane), iteration)
            if raised is error:
                raise
            raise raised from error

    def _record_streams(self, issue: Issue, own: int) -> None:
        for name in issue.record_streams:
            tensor = self.slots.of(own)[self.slots.number[name]]
            if tensor is not None:
                self.device.record_stream(tensor, self.main)

    def _take(self, iteration: int) -> Outputs:
        self.taken = iteration + 1
        return self.slots.take(iteration)

    @contextmanager
    def _issuing(self) -> Iterator[None]:
        """Issue work; the caller's stream and device are current again afterwards, and after an error every lane is at rest."""
        stream, index = self.device.current_stream(), self.device.current_device()
        try:
            self.device.set_stream(self.main)
            with task_mode():
                yield
        except BaseException:
            self.end()
            raise
        finally:
            self.device.set_stream(stream)
            if index != self.device.current_device():
                self.device.set_device(index)

    def end(self) -> None:
        """Join every lane to main, let the host wait for it, and drop what is left inside."""
        if self.ended:
            return
        self.ended = True
        for lane, stream in self.streams.items():
            if lane != HOST and stream.cuda_stream != self.main.cuda_stream:
                self.device.record(self.pipeline.spare(lane), stream)
                self.device.wait(self.pipeline.spare(lane), self.main)
        last = self.pipeline.spare(MAIN)
        self.device.record(last, self.main)
        last.synchronize()
        self.slots.clear(self.taken)


def in_item(error: BaseException, iteration: int) -> BaseException:
    """A task's error with the item that it happened in."""
    if not isinstance(error, TaskError):
        return error
    (problem, *_) = error.problems
    told = Problem(problem.code, f"item {iteration}: {problem.message}", problem.location, problem.help, problem.related)
    wrapped = TaskError(told, error.task, error.lane)
    wrapped.__cause__ = error.__cause__
    return wrapped


