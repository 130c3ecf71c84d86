"""Loop streams: the streams and events of a loop's lanes, made in its first run and never again, and how all of them come to rest."""

from __future__ import annotations

from collections.abc import Mapping

from streamgraph.executors.device import Device, Event, Stream
from streamgraph.loop import Loop
from streamgraph.model import ENTRY, HOST, MAIN


class LoopStreams:
    """Stream by lane; events by task and iteration, `length` of them for a task: as many as iterations that may be waited for while a
    later one is recorded.

    `calls` are the streams of the executor whose memory the loop uses: a loop on another stream than the last call follows that call.
    """

    def __init__(self, loop: Loop, device: Device, length: int, calls: Mapping[str, Stream] | None = None) -> None:
        self.loop, self.device, self.length = loop, device, length
        self.by_lane: dict[str, Stream] = {}
        self._calls = calls if calls is not None else {}
        self._events: dict[str, list[Event]] = {}
        self._spare: dict[str, Event] = {}

    def enter(self, main: Stream) -> None:
        """Begin a loop on the caller's stream `main`. A side lane is drawn anew where the caller came on the very stream of it."""
        host_lanes = self.loop.host_lanes
        for lane in self.loop.lanes[1:]:
            stream = self.by_lane.get(lane.name)
            if lane.name not in host_lanes and (stream is None or stream.cuda_stream == main.cuda_stream):
                taken = {main.cuda_stream, *(other.cuda_stream for other in self.by_lane.values())}
                self.by_lane[lane.name] = self.device.new_stream(lane.priority, taken)
        self.by_lane |= dict.fromkeys((MAIN, HOST, self.loop.caller), main)

    def begin(self) -> None:
        """What the lanes wait for first: the executor's last call, and all that the caller's stream holds now."""
        main, last = self.by_lane[MAIN], self._calls.get(MAIN)
        if last is not None and last.cuda_stream != main.cuda_stream:
            self.device.record(self._spare_event(MAIN), last)
            self.device.wait(self._spare_event(MAIN), main)
        self.device.record(self.event(ENTRY, 0), main)

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
        """Join every lane to main, and let the host wait for it."""
        main = self.by_lane[MAIN]
        for lane, stream in self.by_lane.items():
            if stream.cuda_stream != main.cuda_stream:
                self.device.record(self._spare_event(lane), stream)
                self.device.wait(self._spare_event(lane), main)
        last = self._spare_event(MAIN)
        self.device.record(last, main)
        last.synchronize()

    def close(self) -> None:
        """Drop streams and events."""
        self.by_lane.clear()
        self._events.clear()
        self._spare.clear()

    def _spare_event(self, lane: str) -> Event:
        if lane not in self._spare:
            self._spare[lane] = self.device.new_event()
        return self._spare[lane]
