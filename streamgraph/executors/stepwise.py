"""Stepwise: one thread's part of a loop's iterations, step by step as the Loop says it: the first iterations, which are checked, and all
of them on host threads. What repeats on streams is issued by generated functions (`loop_code`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from streamgraph.executors.device import Device
from streamgraph.executors.lanes import Delay
from streamgraph.executors.launch import check_stream, failure, in_item, launch
from streamgraph.executors.loop_board import LoopBoard
from streamgraph.executors.loop_streams import LoopStreams
from streamgraph.executors.slots import Slots
from streamgraph.iterations import PSEUDO, kind_of
from streamgraph.loop import Back, Issue
from streamgraph.model import ENTRY
from streamgraph.operators import Operator


class Stepwise:
    """Issues to `lanes`. Where several threads issue, they tell each other of the events `told` by the `board`."""

    def __init__(
        self,
        slots: Slots,
        operators: Mapping[str, Operator],
        device: Device,
        streams: LoopStreams,
        lanes: Collection[str],
        told: frozenset[str] = frozenset(),
        board: LoopBoard | None = None,
        delay: Delay | None = None,
    ) -> None:
        self.slots, self.operators, self.device, self.streams = slots, operators, device, streams
        self.lanes, self.told, self.board, self.delay = frozenset(lanes), told, board, delay
        self.loop = slots.loop
        self.host_lanes, self.host_events = self.loop.host_lanes, self.loop.host_events
        self.place = 0  # in its iteration, of what is being issued

    def issue(self, iteration: int, *, check: bool) -> bool:
        """Issue these lanes' part of an iteration, but for what its source waits for. False: an error stands before some of it.

        Raises:
            TaskError: a task raised, or with `check` returned what it may not.
        """
        for place, issue in enumerate(self.loop.block(iteration)):
            self.place = place
            if issue.lane not in self.lanes:
                continue
            if (self.place and not self.waits(issue, iteration)) or self._is_over(iteration):
                return False
            self._drop(issue.releases_before, iteration)
            if kind_of(issue.task) not in PSEUDO:
                self._launch(issue, iteration, check)
            self._record(issue, iteration)
            self._drop(issue.releases_after, iteration)
            if issue.record_streams:
                self._record_streams(issue, self.loop.own(issue.task, iteration))
        return True

    def hand_over(self, iteration: int) -> None:
        """Tell the allocator of an iteration's outputs that no issue has handed over, since the loop ended before."""
        for issue in self.loop.steady:
            if issue.record_streams:
                self._record_streams(issue, iteration)

    def waits(self, issue: Issue, iteration: int) -> bool:
        """What an issue waits for. False: an error stands before it."""
        return all(self._wait(back, issue.lane, iteration) for back in issue.waits)

    def source_waits(self, iteration: int) -> bool:
        """What the host waits for before an item is pulled, which may refill memory."""
        self.place = 0
        return self.waits(self.loop.block(iteration)[0], iteration)

    def _is_over(self, iteration: int) -> bool:
        return self.board is not None and (iteration, self.place) >= self.board.limit

    def _wait(self, back: Back, lane: str, iteration: int) -> bool:
        of = 0 if back.name == ENTRY else iteration - back.by
        if self.board is not None and back.name in self.told and not self.board.wait(back.name, of, (iteration, self.place)):
            return False
        if back.name in self.host_events:
            return True  # the host is past the task
        event = self.streams.event(back.name, of)
        if lane in self.host_lanes:
            event.synchronize()
        else:
            self.device.wait(event, self.streams.streams[lane])
        return True

    def _launch(self, issue: Issue, iteration: int, check: bool) -> None:
        operator, cells = self.operators[issue.task], self.slots.of(iteration)
        self.streams.make_current(issue.task, issue.lane)
        try:
            if self.delay is not None:
                self.delay(issue.task, "before")
            launch(operator, cells, self.device.location, issue.lane, check=check)
            check_stream(self.streams.device_of(issue.lane), self.streams.streams[issue.lane], operator, issue.lane)
            self.streams.arrived(issue.task)
            if self.delay is not None:
                self.delay(issue.task, "after")
        except BaseException as error:
            raised = in_item(failure(error, operator, cells, issue.lane), iteration)
            if raised is error:
                raise
            raise raised from error

    def _record(self, issue: Issue, iteration: int) -> None:
        if not issue.record:
            return
        own = self.loop.own(issue.task, iteration)
        if issue.lane not in self.host_lanes:
            self.device.record(self.streams.event(issue.task, own), self.streams.streams[issue.lane])
        if self.board is not None and issue.task in self.told:
            self.board.record(issue.task, own)

    def _drop(self, values: tuple[Back, ...], iteration: int) -> None:
        for value in values:
            self.streams.give_back(self.slots.number[value.name])
        self.slots.drop(values, iteration)

    def _record_streams(self, issue: Issue, iteration: int) -> None:
        cells = self.slots.of(iteration)
        for name in issue.record_streams:
            tensor = cells[self.slots.number[name]]
            if tensor is not None:  # on host threads the caller may have it already
                self.device.record_stream(tensor, self.streams.streams[issue.lane])
