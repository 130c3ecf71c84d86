"""Capture part: a part's tasks, issued to their lanes while CUDA records them into one graph.

The captured stream forks to each lane before its first task there, and follows every lane in the end. What is waited for, or shown,
outside of the part is a node of its own (an external event in CUDA's words).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from streamgraph.executors.capture import during_capture
from streamgraph.executors.device import Event, Stream
from streamgraph.executors.launch import failure, launch
from streamgraph.executors.memory import Cells
from streamgraph.executors.parts import Member, Piece
from streamgraph.loop import Back

if TYPE_CHECKING:
    from streamgraph.executors.phases import Phases


class Capturing:
    """One part being captured: `stream` is the current one, and is being captured."""

    def __init__(self, phases: Phases, piece: Piece, iteration: int, cells: Cells, stream: Stream) -> None:
        self.phases, self.piece, self.iteration, self.cells = phases, piece, iteration, cells
        self.device = phases.device
        self.stream, self.lanes = stream, phases.lanes
        self.forked: dict[str, None] = {}
        self.events: dict[str, Event] = {}
        self.fork = self.device.new_event()

    def run(self) -> None:
        self.device.record(self.fork, self.stream)
        launching: Member | None = None
        try:
            for launching in self.piece.members:
                self.member(launching)
            launching = None
            self.joined()
        except BaseException as error:
            raised = error
            if launching is not None:
                operator = self.phases.operators[launching.issue.task]
                raised = failure(error, operator, self.cells, launching.issue.lane)
            with suppress(RuntimeError):  # the error may have ended the capture
                self.joined()
            raised = during_capture(raised)
            if raised is error:
                raise
            raise raised from error
        finally:
            self.device.set_stream(self.stream)

    def member(self, member: Member) -> None:
        issue, phases, device = member.issue, self.phases, self.device
        stream = self.lanes[issue.lane]
        if issue.lane not in self.forked:
            self.forked[issue.lane] = None
            device.wait(self.fork, stream)
        device.set_stream(stream)
        for name in member.inside:
            device.wait(self.events[name], stream)
        for back in member.outside:
            device.wait(phases.event(back.name, self.iteration - back.by), stream)
        self.drop(issue.releases_before)
        with phases.captures.high_priority(stream) if issue.urgent else nullcontext():
            launch(phases.operators[issue.task], self.cells, device.location, issue.lane, check=False)
        if issue.task in phases.cut.inner:
            self.events[issue.task] = device.new_event()
            device.record(self.events[issue.task], stream)
        if phases.shows(issue.task):
            device.record(phases.event(issue.task, self.iteration), stream)
        self.drop(issue.releases_after)

    def drop(self, values: Sequence[Back]) -> None:
        """Let later tasks of this phase have the memory of what is not needed any more in this iteration."""
        for back in values:
            number = self.phases.number[back.name]
            if back.by == 0 and number not in self.phases.kept:
                self.cells[number] = None

    def joined(self) -> None:
        """Let the captured stream follow every lane that has joined the capture."""
        self.device.set_stream(self.stream)
        lanes, self.forked = tuple(self.forked), {}
        for lane in lanes:
            end = self.device.new_event()
            self.device.record(end, self.lanes[lane])
            self.device.wait(end, self.stream)
