"""The streams of a runner's lanes, its events, what a run leaves to the next one, and how all of it comes to rest.

One for each executor that issues to streams, with one issuing thread or several: everything here is called by the thread that calls the
runner, while no lane is issuing anything. Each lane belongs to a device, and so do its stream, its events and its memory; the caller has a
current stream on each device of the program, the first of which is lane `main`. Around the schedule, `fork` lets `main` follow the caller's
streams of the other devices, and `join` lets them follow `main`, which has all of the run behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from streamgraph.executors.device import Device, Event, Stream, same
from streamgraph.executors.left_over import drop_pending, inputs_free, last_records
from streamgraph.executors.places import Caller, Places
from streamgraph.model import HOST, MAIN
from streamgraph.schedule import HostWait, Record, Schedule
from streamgraph.switches import Switches, switches, user


class LaneStreams(Places):
    """Stream by lane and event by name. Side lanes and events are made in the first run, and never again.

    The values that a run leaves to the next one, by storage number, are in `pending`. `first`: no run came before this one. With `threads`,
    events that the host waits for one run later have two objects that take turns: the lane that records the event may be far ahead of it.
    """

    def __init__(self, schedule: Schedule, device: Device, *, threads: bool = False) -> None:
        super().__init__(device, schedule.program, schedule.accesses, schedule.device_of, schedule.lane_of)
        self.schedule = schedule
        self.switches: Switches = switches(schedule)
        self.pending: dict[int, torch.Tensor] = {}
        self.events: dict[str, Event] = {}
        self.previous: dict[str, Event] = {}
        self.first = True
        self._twice = tuple(dict.fromkeys(s.event for s in schedule.steps if isinstance(s, HostWait) and s.previous)) * threads
        self._inputs_read = last_records(schedule)
        self._made_on: dict[str, Stream] = {}  # where the buffers were made, and where they go back to, by device

    def enter(self, caller: Caller) -> None:
        """Begin a run: lane 0 is ordered after the last run; in the first run the side lanes get their streams."""
        main, last = caller.main, self.streams.get(MAIN)
        if last is not None and not same(last, main):
            self.follow(main, last)
        own = [((lane.name, self.schedule.device_of[lane.name]), lane.priority) for lane in self.schedule.lanes[1:] if not lane.is_host]
        for place, priority in (*own, *((place, "normal") for place in self.receiving)):
            stream = self.at.get(place)
            if stream is not None and not same(stream, caller.streams[place[1]]):
                continue
            if stream is not None and last is not None:
                # The caller came on the very stream of this lane. What the lane has left to drop was allocated there: end that first.
                self._drop_pending(last, only=place[0])
            taken = {other.cuda_stream for other in (*caller.streams.values(), *self.at.values())}
            self.at[place] = self.devices[place[1]].new_stream(priority, taken)
        self.at.update({(MAIN, name): stream for name, stream in caller.streams.items()})
        self.streams.update({place[0]: self.at[place] for place, _ in own})
        self.streams[MAIN] = self.streams[HOST] = main
        if self.caller is None:
            self._made_on = dict(caller.streams)
            on_device = (s.event for s in self.schedule.steps if isinstance(s, Record) and s.lane != HOST)
            self.events = {event: self.device.new_event() for event in on_device}
            self.previous = {event: self.device.new_event() for event in self._twice}
        else:
            self.first = False
            for event in self._twice:
                self.events[event], self.previous[event] = self.previous[event], self.events[event]
        self.caller = caller

    def recorded(self, number: int, lane: str) -> Stream:
        """The stream that a `record_stream` of this storage for `lane` means."""
        return self.at[user(self.schedule, number, lane)]

    def come_to_rest(self, lanes: Iterable[str]) -> None:
        """After a failure: lane 0 follows these lanes, the host follows lane 0, and what runs left over is dropped."""
        main = self.streams[MAIN]
        self.device.set_stream(main)
        for lane in lanes:
            for place, stream in self.at.items():
                if place[0] == lane and not same(stream, main):
                    self.follow(main, stream)
        last = self._spare_event(main)
        self.device.record(last, main)
        last.synchronize()
        self.pending.clear()

    def inputs_free(self) -> Callable[[], None]:
        """A call that blocks the host until no device task of this run reads a bound host input any more. It outlives the executor."""
        names, on_main = self._inputs_read
        return inputs_free(self.device, self.streams[MAIN], tuple(self.events[name] for name in names), on_main)

    def drop_left_over(self) -> None:
        """Drop what the latest run left over, now instead of in the next run."""
        last = self.streams.get(MAIN)
        if last is not None:
            self._drop_pending(last)

    def close(self, at_rest: bool, has_host_buffers: bool) -> None:
        """Drop what is left over once the lanes that allocated it follow lane 0. Not `at_rest`: the device has failed for good."""
        last = self.streams.get(MAIN)
        if last is not None and at_rest:
            self._drop_pending(last)
            for stream in self._made_on.values():
                if not same(stream, last):
                    self.follow(stream, last)
            if has_host_buffers:
                # The allocator of pinned memory knows of copies, not of kernels that read it.
                event = self._spare_event(last)
                self.device.record(event, last)
                event.synchronize()
        self.pending.clear()
        self.events.clear()
        self.previous.clear()
        self.clear()

    def _drop_pending(self, last: Stream, only: str | None = None) -> None:
        drop_pending(self.schedule, self.device, self._owners, self.pending, last, self._spare_event(last), only)

    def _owners(self, number: int, lane: str) -> tuple[Stream, ...]:
        """The stream of the lane that made a value, and of the memory that it lies in."""
        place = self.received.get(number)
        return (self.streams[lane], self.at[place]) if place is not None else (self.streams[lane],)
