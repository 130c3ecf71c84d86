"""First iterations: a loop of graphs before there are any, launch by launch, on the streams that will be captured.

They load kernels and workspaces, and what their tasks return is checked once. Their events are those that graphs wait for later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from streamgraph.executors.device import Event, Stream
from streamgraph.executors.graph_threads import AT_ONCE, HostTasks
from streamgraph.executors.launch import failure, launch
from streamgraph.executors.memory import Cells
from streamgraph.iterations import ITEM, PSEUDO, RESULT
from streamgraph.loop import Back, Issue, Loop
from streamgraph.model import ENTRY, HOST, MAIN

if TYPE_CHECKING:
    from streamgraph.executors.graph_pipeline import GraphPipeline
    from streamgraph.executors.phases import Phases


def begins_steadily(loop: Loop) -> bool:
    """Whether the first iterations wait for what the one that repeats waits for, as far as there is something to wait for.

    Then that one will do from the start, once everything is behind the caller's work before the loop.
    """
    for number, block in enumerate(loop.prologue):
        there = {issue.task: issue for issue in block}
        if any(issue.task not in there for issue in loop.steady if loop.own(issue.task, number) >= 0):
            return False
        for issue in loop.steady:
            if issue.task in there:
                wanted = {back for back in issue.waits if loop.own(back.name, number - back.by) >= 0}
                if {back for back in there[issue.task].waits if back.name != ENTRY} - wanted or issue.lane != there[issue.task].lane:
                    return False
    return True


class FirstIterations:
    """Issues iterations of a loop of graphs launch by launch. `main` is the caller's stream."""

    def __init__(self, pipeline: GraphPipeline, phases: Phases, main: Stream) -> None:
        self.pipeline, self.phases, self.main, self.loop, self.device = pipeline, phases, main, pipeline.loop, pipeline.device

    def issue(
        self, block: tuple[Issue, ...], iteration: int, tensors: Mapping[str, torch.Tensor], hosts: HostTasks = AT_ONCE
    ) -> Cells:
        """Issue one iteration, whose inputs are `tensors`; what it made. Everything waits for host tasks.

        Raises:
            TaskError: a task raised, or returned what it may not.
        """
        pipeline, device, phases = self.pipeline, self.device, self.phases
        phases.wait_first(iteration)
        cells = pipeline.slots.cells(iteration, tensors)
        for issue in block[1:]:
            stream = self.main if issue.task == ITEM else pipeline.lanes[issue.lane]
            for back in issue.waits:
                self._wait(back, issue, iteration, stream)
            self._drop(issue.releases_before, cells)
            if issue.task == ITEM:
                # The caller's tensors, behind its own work and behind what lane main has been given; main goes on behind them.
                self._cross(pipeline.lanes[MAIN], self.main)
                self._cross(self.main, pipeline.lanes[MAIN])
            elif issue.task not in PSEUDO and issue.lane == HOST:
                hosts.call(issue.task, iteration, partial(self._launch, issue, cells))
                hosts.wait(issue.task, iteration)
            elif issue.task not in PSEUDO:
                self._launch(issue, cells)
            if issue.lane not in self.loop.host_lanes and issue.task != RESULT and (issue.record or phases.shows(issue.task)):
                device.record(self.event(issue.task, iteration), stream)
            self._drop(issue.releases_after, cells)
        return cells

    def ends(self, iteration: int) -> list[Event]:
        """Behind these, all lanes have done what they have been given so far."""
        pipeline = self.pipeline
        found: list[Event] = []
        for lane, stream in pipeline.lanes.items():
            if lane not in self.loop.host_lanes:
                found.append(pipeline.event(f"{lane} {iteration % pipeline.period}"))
                self.device.record(found[-1], stream)
        return found

    def event(self, task: str, iteration: int) -> Event:
        """The event of a task's iteration: the one that graphs wait for as well, or one for iterations like this."""
        if self.phases.shows(task):
            return self.phases.event(task, iteration)
        return self.pipeline.event(f"{task} {iteration % (self.loop.reach + 1)}")

    def _wait(self, back: Back, issue: Issue, iteration: int, stream: Stream) -> None:
        if back.name == ENTRY or back.name in self.pipeline.on_host:
            return  # this thread is past the task, and every stream is behind entry
        if issue.lane in self.loop.host_lanes:
            self.event(back.name, iteration - back.by).synchronize()
        elif back.by < self.pipeline.period:  # else that iteration has ended
            self.device.wait(self.event(back.name, iteration - back.by), stream)

    def _cross(self, earlier: Stream, later: Stream) -> None:
        event = self.pipeline.event("item")
        self.device.record(event, earlier)
        self.device.wait(event, later)

    def _launch(self, issue: Issue, cells: Cells) -> None:
        operator = self.pipeline.operators[issue.task]
        self.device.set_stream(self.pipeline.lanes[issue.lane])
        try:
            launch(operator, cells, self.device.location, issue.lane, check=not self.pipeline.warm)
        except BaseException as error:
            raised = failure(error, operator, cells, issue.lane)
            if raised is error:
                raise
            raise raised from error

    def _drop(self, values: Sequence[Back], cells: Cells) -> None:
        """Drop what the iteration itself releases; the rest goes with its cells, a period later."""
        for back in values:
            if back.by == 0:
                cells[self.pipeline.slots.number[back.name]] = None
