"""Pipeline: one thread issues a Loop without host tasks, item after item, to the streams of its lanes; results come out while later items
are under way.

Between two results nothing waits for the device but what the loop says. The thread is the caller's: it pulls an item when the loop has
waited for whatever may still read that item's memory, issues one iteration, and gives back the result that is then due. The first
iterations are issued step by step, and what their tasks return is checked once; those that repeat by a generated function (`loop_code`).
At the end, after an error, and when the caller stops early, every lane is joined and the host waits for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from streamgraph.executors.device import Device, Stream
from streamgraph.executors.loop_code import LoopCode
from streamgraph.executors.loop_streams import LoopStreams
from streamgraph.executors.memory import Memory
from streamgraph.executors.modes import task_mode
from streamgraph.executors.slots import Slots
from streamgraph.executors.stepwise import Stepwise
from streamgraph.loop import Loop
from streamgraph.operators import Operator

Items = Iterator[Mapping[str, torch.Tensor]]
Outputs = dict[str, torch.Tensor]


class Pipeline:
    """Runs a loop on a device's streams, one loop at a time. Streams and events are made in the first loop, and never again."""

    def __init__(
        self, loop: Loop, operators: Sequence[Operator], device: Device, memory: Memory, calls: Mapping[str, Stream] | None = None
    ) -> None:
        """`calls` as for `LoopStreams`."""
        self.loop, self.device = loop, device
        self.slots = Slots(loop, memory)
        self.streams = LoopStreams(loop, device, self.slots, calls)
        self.code = LoopCode(self.slots, operators, device, self.streams, [lane.name for lane in loop.lanes])
        self._operators = {operator.call.task: operator for operator in operators}
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
            self.slots.clear(range(0))

    @property
    def source(self) -> str:
        """The text of the functions that issue the iterations which repeat."""
        return self.code.source

    def close(self) -> None:
        """Drop functions, streams and events. No loop may be under way."""
        self.code.close()
        self.streams.close()
        self.slots.close()


class _Run:
    """One loop under way."""

    def __init__(self, pipeline: Pipeline, bound: Mapping[str, torch.Tensor]) -> None:
        self.pipeline, self.bound = pipeline, bound
        self.device = pipeline.device
        self.streams = pipeline.streams
        self.caller = self.streams.now()
        self.streams.enter(self.caller)
        self.slots = pipeline.slots
        self.steps = Stepwise(self.slots, pipeline._operators, self.device, self.streams, [lane.name for lane in pipeline.loop.lanes])
        self.ended = False
        self.begun = 0  # iterations issued, or being issued
        self.taken = 0  # results given to the caller

    def results(self, items: Items) -> Iterator[Outputs]:
        pipeline, loop = self.pipeline, self.pipeline.loop
        with self._issuing():
            self.slots.prepare()
            self.slots.enter(self.bound)
            self.streams.begin()
            pipeline.code.enter()
            self.key = pipeline.code.direct.current()
        while pipeline._first or self.begun < len(loop.prologue):
            self.steps.source_waits(self.begun)
            item = next(items, None)
            if item is None:
                break
            with self._issuing():
                self.slots.forget(min(self.taken - 1, self.begun - loop.inflight))
                self.slots.begin(self.begun, item)
                self.steps.issue(self.begun, check=pipeline._first)
                pipeline._first = False
            self.begun += 1
            if self.begun >= loop.inflight:
                yield self._take(self.begun - loop.inflight)
        else:
            yield from self._repeated(items)
        self.end()
        for rest in range(self.taken, self.begun):
            self.steps.hand_over(rest)
            yield self._take(rest)

    def _repeated(self, items: Items) -> Iterator[Outputs]:
        """The same, from the first iteration on that is issued by generated functions."""
        code, inflight = self.pipeline.code, self.pipeline.loop.inflight
        names = tuple(name for name, _ in self.slots.memory.accesses.outputs)
        while True:
            phase = code.phase(self.begun)
            if phase.source is not None:
                phase.source()
            item = next(items, None)
            if item is None:
                return
            results = self._issue(phase.parts, item)
            self.begun += 1
            if self.begun >= inflight:
                self.taken += 1
                yield dict(zip(names, results, strict=True))

    def _issue(self, parts: Sequence[Callable[..., Any]], item: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Issue one iteration by its functions; what `_issuing` does, in the fewest calls. The outputs that are due."""
        code, streams = self.pipeline.code, self.streams
        direct, before = code.direct, None
        if direct.current() != self.key or not direct.device_is_current():
            before = streams.now()
            streams.restore(self.caller)
        gradients, cached = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
        torch._C._set_grad_enabled(False)
        torch.set_autocast_cache_enabled(False)
        try:
            for part in parts:
                results: tuple[torch.Tensor, ...] = part(item)
        except BaseException as error:
            before = before or replace(self.caller, index=self.caller.main.device_index)
            raised, _ = code.failed(error, self.begun)
            self.end()
            if raised is error:
                raise
            raise raised from raised.__cause__
        finally:
            torch.set_autocast_cache_enabled(cached)
            torch._C._set_grad_enabled(gradients)
            if before is not None:
                streams.restore(before, before.index)
        return results

    def _take(self, iteration: int) -> Outputs:
        self.taken = iteration + 1
        return self.slots.take(iteration)

    @contextmanager
    def _issuing(self) -> Iterator[None]:
        """Issue work; the caller's streams and device are current again afterwards, and after an error every lane is at rest."""
        with self.streams.current():
            try:
                with task_mode():
                    yield
            except BaseException:
                self.end()
                raise

    def end(self) -> None:
        """Join every lane to main, let the host wait for it, and drop what is left inside."""
        if self.ended:
            return
        self.ended = True
        self.streams.come_to_rest()
        self.slots.clear(range(self.taken, self.begun))
