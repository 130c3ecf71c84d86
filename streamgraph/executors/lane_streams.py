"""The streams of a runner whose lanes are issued by threads of their own, its events, and how all of it comes to rest.

Everything here is called by the thread that calls the runner, while no lane is issuing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from streamgraph.executors.device import Device, Event, Stream
from streamgraph.executors.left_over import drop_pending, inputs_free, last_records
from streamgraph.model import HOST, MAIN
from streamgraph.schedule import HostWait, Record, Schedule


class LaneStreams:
    """Stream by lane and event by name. Side lanes and events are made in the first run, and never again.

    The values that a run leaves to the next one, by storage number, are in `pending`. `first`: no run came before this one.
    """

    def __init__(self, schedule: Schedule, device: Device) -> None:
        self.schedule, self.device = schedule, device
        self.streams: dict[str, Stream] = {}  # MAIN is the stream of the latest run
        self.pending: dict[int, torch.Tensor] = {}
        # The events as this run records them, and as the run before did. Where the host waits for the run before, there are two objects
        # that take turns: the lane that records the event may be far ahead of the host.
        self.events: dict[str, Event] = {}
        self.previous: dict[str, Event] = {}
        self.first = True
        self._twice = tuple(dict.fromkeys(s.event for s in schedule.steps if isinstance(s, HostWait) and s.previous))
        self._inputs_read = last_records(schedule)
        self._spare: dict[str, Event] = {}
        self._made_on: Stream | None = None  # where the buffers were made, and where they go back to

    def enter(self, main: Stream) -> None:
        """Begin a run: `main` is lane 0, ordered after the last run; in the first run the side lanes get their streams."""
        last = self.streams.get(MAIN)
        if last is not None and last.cuda_stream != main.cuda_stream:
            self._follow(main, last)
        for lane in self.schedule.lanes[1:]:
            stream = self.streams.get(lane.name)
            if lane.is_host or (stream is not None and stream.cuda_stream != main.cuda_stream):
                continue
            if stream is not None and last is not None:
                # The caller came on the very stream of this lane. What the lane has left to drop was allocated there: end that first.
                self._drop_pending(last, only=lane.name)
            taken = {main.cuda_stream, *(other.cuda_stream for other in self.streams.values())}
            self.streams[lane.name] = self.device.new_stream(lane.priority, taken)
        self.streams[MAIN] = self.streams[HOST] = main
        if self._made_on is None:
            self._made_on = main
            on_device = (s.event for s in self.schedule.steps if isinstance(s, Record) and s.lane != HOST)
            self.events = {event: self.device.new_event() for event in on_device}
            self.previous = {event: self.device.new_event() for event in self._twice}
        else:
            self.first = False
            for event in self._twice:
                self.events[event], self.previous[event] = self.previous[event], self.events[event]

    def come_to_rest(self, lanes: Iterable[str]) -> None:
        """After a failure: lane 0 follows these lanes, the host follows lane 0, and what runs left over is dropped."""
        main = self.streams[MAIN]
        self.device.set_stream(main)
        for lane in lanes:
            if self.streams[lane].cuda_stream != main.cuda_stream:
                self.device.record(self._spare_event(lane), self.streams[lane])
                self.device.wait(self._spare_event(lane), main)
        last = self._spare_event(MAIN)
        self.device.record(last, main)
        last.synchronize()
        self.pending.clear()

    def inputs_free(self) -> Callable[[], None]:
        """A call that blocks the host until no device task of this run reads a bound host input any more. It outlives the executor."""
        names, on_main = self._inputs_read
        return inputs_free(self.device, self.streams[MAIN], tuple(self.events[name] for name in names), on_main)

    def close(self, at_rest: bool, has_host_buffers: bool) -> None:
        """Drop what is left over once the lanes that allocated it follow lane 0. Not `at_rest`: the device has failed for good."""
        last = self.streams.get(MAIN)
        if last is not None and at_rest:
            self._drop_pending(last)
            assert self._made_on is not None
            if self._made_on.cuda_stream != last.cuda_stream:
                self._follow(self._made_on, last)
            if has_host_buffers:
                # The allocator of pinned memory knows of copies, not of kernels that read it.
                event = self._spare_event(MAIN)
                self.device.record(event, last)
                event.synchronize()
        self.pending.clear()
        for held in (self.events, self.previous, self._spare, self.streams):
            held.clear()

    def _drop_pending(self, last: Stream, only: str | None = None) -> None:
        drop_pending(self.schedule, self.device, self.streams, self.pending, last, self._spare_event(MAIN), only)

    def _follow(self, later: Stream, earlier: Stream) -> None:
        """Let `later` wait for all that `earlier` holds now."""
        event = self._spare_event(MAIN)
        self.device.record(event, earlier)
        self.device.wait(event, later)

    def _spare_event(self, lane: str) -> Event:
        if lane not in self._spare:
            self._spare[lane] = self.device.new_event()
        return self._spare[lane]
