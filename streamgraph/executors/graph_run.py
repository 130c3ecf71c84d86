"""Graph run: one loop of graphs under way. Items are pulled, iterations issued, results copied out.

    the first iteration     launch by launch, on the streams that will be captured (`first_iterations`)
    one for each phase      parts are captured where the iteration comes to them, and launched at once (`phases`)
    from then on            graphs are launched; uploads of what items bring in host memory, and host tasks, are issued in between

In a loop whose plan has the caller's thread apart, iterations are issued and host tasks called on threads of their own (`graph_threads`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from streamgraph.executors.device import Event, Stream
from streamgraph.executors.first_iterations import FirstIterations
from streamgraph.executors.graph_items import GraphItems
from streamgraph.executors.graph_threads import AT_ONCE, GraphThreads, HostTasks, Stopped
from streamgraph.executors.launch import in_item
from streamgraph.executors.memory import Cells
from streamgraph.executors.modes import CallerState, on_stream, task_mode
from streamgraph.executors.pipeline import Items, Outputs
from streamgraph.iterations import DELIVER, RESULT
from streamgraph.loop import Issue
from streamgraph.model import ENTRY, HOST, MAIN

if TYPE_CHECKING:
    from streamgraph.executors.graph_pipeline import GraphPipeline


class GraphRun:
    """One loop under way."""

    def __init__(self, pipeline: GraphPipeline, bound: Mapping[str, torch.Tensor]) -> None:
        self.pipeline, self.bound, self.loop, self.device = pipeline, bound, pipeline.loop, pipeline.device
        self.main = self.device.current_stream()
        self.ended = False
        self.taken = 0  # results given to the caller
        self.eager: dict[int, Cells] = {}  # of iterations that are issued launch by launch
        self.items: dict[int, Mapping[str, torch.Tensor]] = {}
        self.behind: dict[int, list[Event]] = {}  # by place in the period: behind these the latest iteration there has ended
        self.launched = 0  # iterations that were graphs
        self.given = GraphItems(pipeline, self.main)
        apart = self.loop.caller != HOST
        self.threads = GraphThreads(self.loop.program.name, CallerState.take()) if apart else None
        self.hosts: HostTasks = self.threads or AT_ONCE

    def results(self, items: Items) -> Iterator[Outputs]:
        iteration = 0
        with self._issuing():
            self._begin()
        try:
            while True:
                self._wait(self.loop.block(iteration)[0], iteration)
                item = next(items, None)
                if item is None:
                    break
                self._start(iteration, item)
                iteration += 1
                if iteration >= self.loop.inflight:
                    yield self._taken(iteration - 1)
        except Stopped:
            pass
        self._finish()
        for rest in range(self.taken, iteration):
            with self._issuing():
                due = self._copied_out(rest)
            yield due

    def _finish(self) -> None:
        self.end()
        if self.threads is not None and self.threads.error is not None:
            raise self.threads.error

    def _start(self, iteration: int, item: Mapping[str, torch.Tensor]) -> None:
        """Issue an iteration, on the thread that does so. The caller's goes on at once, unless something is to be captured (while the
        caller may use the device as it likes) or to be copied from what the caller may change next."""
        if self.threads is None:
            with self._issuing():
                self._issue(iteration, item)
            return
        phases = self.pipeline.phases
        together = phases is None or not phases.whole or bool(self.pipeline.on_device)
        self.threads.issue(iteration, partial(self._issue_apart, iteration, item))
        if together:
            self.threads.wait_issued(iteration)

    def _issue_apart(self, iteration: int, item: Mapping[str, torch.Tensor]) -> None:
        assert self.threads is not None
        # Host tasks of the iteration that had this memory have returned, and those that wait for an event which is recorded anew.
        self.threads.forget(iteration - self.pipeline.period + self.pipeline.host_reach)
        with on_stream(self.device, self.main):
            self._issue(iteration, item)

    def _issue(self, iteration: int, item: Mapping[str, torch.Tensor]) -> None:
        pipeline = self.pipeline
        self.items[iteration] = item
        if iteration < pipeline.prologue or not pipeline.warm:
            self._launches(self.loop.block(iteration), iteration, item)
            pipeline.warm = True
        else:
            self._graphs(iteration, item)

    def _taken(self, iteration: int) -> Outputs:
        """The outputs that are due once an iteration has begun."""
        due = iteration - self.loop.inflight + 1
        if self.threads is not None:
            self.threads.wait_issued(due)
        for issue in self.loop.block(iteration):
            if issue.task in (RESULT, DELIVER):
                self._wait(issue, iteration, for_device=False)
        phases = self.pipeline.phases
        assert phases is not None
        with self._issuing():
            if due not in self.eager:
                phase = phases.phase(due)
                assert phase is not None
                self.given.get_memory(phase)
            phases.wait_last(iteration)
            return self._copied_out(due)

    def _wait(self, issue: Issue, iteration: int, for_device: bool = True) -> None:
        """Let the caller wait for what a pseudo-task of its own waits for, until it is issued or called; and for the device if asked to."""
        for back in issue.waits:
            if back.name == ENTRY:
                continue
            on_host = back.name in self.pipeline.on_host
            if self.threads is not None:
                self.threads.wait_issued(iteration - back.by)
                if on_host:
                    self.threads.wait(back.name, iteration - back.by)
            if for_device and not on_host:
                self._first.event(back.name, iteration - back.by).synchronize()

    def _begin(self) -> None:
        """Everything follows what the caller has issued, and the executor's last call."""
        pipeline, device = self.pipeline, self.device
        last = pipeline.calls.get(MAIN)
        if last is not None and last.cuda_stream != self.main.cuda_stream:
            device.record(pipeline.event("call"), last)
            device.wait(pipeline.event("call"), self.main)
        pipeline.slots.prepare()
        phases = pipeline.ready(self.main)
        self._first = FirstIterations(pipeline, phases, self.main)
        device.record(pipeline.event(ENTRY), self.main)
        for stream in (*pipeline.lanes.values(), *phases.launchers()):
            device.wait(pipeline.event(ENTRY), stream)

    def _launches(self, block: tuple[Issue, ...], iteration: int, item: Mapping[str, torch.Tensor]) -> None:
        """One iteration launch by launch. All lanes are behind the one a period before it, whose tensors go."""
        self._follow(iteration, (*self.pipeline.lanes.values(), self.main))
        self._forget(iteration)
        self.eager[iteration] = self._first.issue(block, iteration, {**self.bound, **item}, self.hosts)
        self.behind[iteration % self.pipeline.period] = self._first.ends(iteration)

    def _forget(self, iteration: int) -> None:
        """Let go of iterations whose results have been taken and behind which everything is that comes now."""
        for old in [number for number in self.items if number <= iteration - self.pipeline.period and number < self.taken]:
            if old in self.eager and self.pipeline.holds_host_values:
                # Streams are behind it now, but freed host memory may be the host's next.
                for event in self.behind[old % self.pipeline.period]:
                    event.synchronize()
            self.eager.pop(old, None)
            self.items.pop(old)

    def _follow(self, iteration: int, streams: Sequence[Stream]) -> None:
        for event in self.behind.get(iteration % self.pipeline.period, ()):
            for stream in streams:
                self.device.wait(event, stream)

    # --- graphs ---

    def _graphs(self, iteration: int, item: Mapping[str, torch.Tensor]) -> None:
        pipeline, phases = self.pipeline, self.pipeline.phases
        assert phases is not None
        place = iteration % pipeline.period
        behind = self.behind.get(place, [])
        if iteration - pipeline.period in self.eager:
            # Its tensors go now, and the streams that they were made on are behind all their uses.
            self._follow(iteration, (*pipeline.lanes.values(), self.main))
        self._forget(iteration)
        self.given.check(phases.phase(iteration), item, iteration)
        phases.wait_first(iteration)
        after = [*behind, pipeline.event(ENTRY)] if self.launched < pipeline.period else behind
        self.launched += 1

        def cells() -> Cells:
            return pipeline.slots.cells(iteration, {**self.bound, **item, **self.given.places(item)})

        bring, copy_in = partial(self.given.bring, item=item), partial(self.given.copy_in, item=item)
        phase = phases.issue(iteration, after, cells, bring, (self.main, copy_in) if pipeline.on_device else None, self.hosts)
        self.behind[place] = list(phase.ended)

    def _copied_out(self, iteration: int) -> Outputs:
        """The outputs of an iteration, copied on the caller's stream: what they lie in is written again."""
        pipeline, device, phases = self.pipeline, self.device, self.pipeline.phases
        assert phases is not None
        cells, phase = self.eager.get(iteration), phases.phase(iteration)
        if not self.ended:
            for task in pipeline.makers:
                device.wait(phases.event(task, iteration), self.main)
        device.set_stream(self.main)
        if cells is not None:
            outputs = self.given.copy_out(cells)
        else:
            assert phase is not None
            outputs = self.given.copy_out(phase.cells)
            self.given.copy_back(phase.cells, self.items[iteration])
        if not self.ended:
            # The next iteration in this memory follows the copies.
            event = pipeline.event(f"taken {iteration % pipeline.period}")
            device.record(event, self.main)
            self.behind.setdefault(iteration % pipeline.period, []).append(event)
        self.taken = iteration + 1
        return outputs

    @contextmanager
    def _issuing(self) -> Iterator[None]:
        """Issue work; the caller's stream and device are current again afterwards, and after an error every lane is at rest."""
        with on_stream(self.device, self.main):
            try:
                with task_mode():
                    yield
            except BaseException as error:
                self.stop()
                self.end()
                raised = in_item(error, max(self.items, default=0))
                if raised is error:
                    raise
                raise raised from raised.__cause__

    def stop(self) -> None:
        """Begin nothing new."""
        if self.threads is not None:
            self.threads.stop()

    def end(self) -> None:
        """Let what has begun be finished; join every stream to the caller's, let the host wait for it, and drop what is left inside."""
        if self.ended:
            return
        self.ended = True
        interrupted: BaseException | None = None
        if self.threads is not None:
            self.pipeline.broken = "an earlier loop was given up while a task was still running"
            if self.threads.runs_on(threading.get_ident()):  # a generator that nobody holds is closed wherever the collector runs
                self.threads.stop()
                return
            interrupted = self.threads.end()
            self.pipeline.broken = self.pipeline.under_way = None
        self._come_to_rest()
        if interrupted is not None:
            raise interrupted

    def _come_to_rest(self) -> None:
        phases = self.pipeline.phases
        if phases is None:
            return
        phases.join(self.main)
        last = self.pipeline.event(MAIN)
        self.device.record(last, self.main)
        last.synchronize()
        self.eager = {number: cells for number, cells in self.eager.items() if number >= self.taken}
        self.items = {number: item for number, item in self.items.items() if number >= self.taken}


