"""Loop streams: the streams and events of a loop's lanes, made in its first run and never again, and how all of them come to rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from streamgraph.executors.device import Device, Event, Stream, same
from streamgraph.executors.places import Caller, Places
from streamgraph.executors.slots import Slots
from streamgraph.loop import Loop
from streamgraph.model import ENTRY, HOST, MAIN


class LoopStreams(Places):
    """Stream by lane; events by task and iteration, `slots.length` of them for a task: as many as iterations that may be waited for while a
    later one is recorded. Lane `main`, and those of the caller's on further devices, are the streams that are current when the loop begins.

    `calls` are the streams of the executor whose memory the loop uses: a loop on another stream than the last call follows that call.
    """

    def __init__(self, loop: Loop, device: Device, slots: Slots, calls: Mapping[str, Stream] | None = None) -> None:
        lane_of = {issue.task: issue.lane for issue in loop.steady}
        super().__init__(device, loop.program, slots.memory.accesses, loop.device_of, lane_of)
        self.loop, self.length = loop, slots.length
        self._calls = calls if calls is not None else {}
        self._events: dict[str, list[Event]] = {}

    def enter(self, caller: Caller) -> None:
        """Begin a loop on the caller's streams. A stream of a side lane is drawn anew where the caller came on that very one."""
        callers = {lane for _, lane in self.loop.callers} | {MAIN}
        own = [((lane.name, self.home[lane.name]), lane.priority) for lane in self.loop.lanes if lane.name in self.home.keys() - callers]
        for place, priority in (*own, *((place, "normal") for place in self.receiving)):
            stream = self.at.get(place)
            if stream is None or same(stream, caller.streams[place[1]]):
                taken = {other.cuda_stream for other in (*caller.streams.values(), *self.at.values())}
                self.at[place] = self.devices[place[1]].new_stream(priority, taken)
        self.at.update({(MAIN, name): stream for name, stream in caller.streams.items()})
        self.streams.update({place[0]: self.at[place] for place, _ in own})
        self.streams.update({lane: caller.streams[name] for name, lane in self.loop.callers})
        self.streams |= dict.fromkeys((MAIN, HOST, self.loop.caller), caller.main)
        self.caller = caller

    def begin(self) -> None:
        """What the lanes wait for first: the executor's last call, and all that the caller's streams hold now."""
        main, last = self.streams[MAIN], self._calls.get(MAIN)
        if last is not None and not same(last, main):
            self.follow(main, last)
        self.fork()
        self.device.record(self.event(ENTRY, 0), main)

    @contextmanager
    def current(self) -> Iterator[None]:
        """The streams on which the loop began are current; afterwards the streams and the device that were."""
        before = self.now()
        try:
            assert self.caller is not None
            self.restore(self.caller)
            yield
        finally:
            self.restore(before, before.index)

    def event(self, name: str, iteration: int) -> Event:
        """The event of a task's iteration."""
        ring = self._events.get(name)
        if ring is None:
            ring = self._events[name] = [self.device.new_event() for _ in range(self.length)]
        return ring[iteration % len(ring)]

    def prepare(self) -> None:
        """Make all events, so that no thread makes one."""
        for issue in (*(issue for block in self.loop.prologue for issue in block), *self.loop.steady):
            if issue.record and issue.lane not in self.loop.host_lanes:
                self.event(issue.task, 0)

    def come_to_rest(self) -> None:
        """Join every lane to main, on whichever device, and let the host wait for it."""
        main = self.streams[MAIN]
        streams = (*self.streams.values(), *self.at.values())
        for stream in {(stream.device_index, stream.cuda_stream): stream for stream in streams}.values():
            if not same(stream, main):
                self.follow(main, stream)
        last = self._spare_event(main)
        self.device.record(last, main)
        last.synchronize()

    def close(self) -> None:
        """Drop streams and events."""
        self._events.clear()
        self.clear()
