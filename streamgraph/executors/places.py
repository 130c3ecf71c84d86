"""Places: the streams that lanes have on the devices of a program, the caller's among them, and what orders those of one lane.

What single runs (`lane_streams`) and loops (`loop_streams`) share. A lane belongs to a device and has a stream there; on each device that
it copies to it has another one, where no task runs (see `switches`). Lane `main` has the caller's current stream on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from streamgraph.devices import first_device
from streamgraph.executors.device import Device, Event, Stream, same
from streamgraph.model import MAIN, Program
from streamgraph.storages import Accesses
from streamgraph.switches import Place, received_by, targets_of


@dataclass(frozen=True, slots=True)
class Caller:
    """What the thread that calls a runner has current: a stream on each device, by its name, the first one's first; and a device."""

    streams: Mapping[str, Stream]
    index: int

    @property
    def main(self) -> Stream:
        """Lane 0."""
        return next(iter(self.streams.values()))


class Places:
    """Streams by lane, and by lane and device (`at`). `home` is the name of each lane's device, `lane_of` the lane of each task."""

    def __init__(
        self, device: Device, program: Program, accesses: Accesses, home: Mapping[str, str], lane_of: Mapping[str, str]
    ) -> None:
        first = first_device(program)
        self.device, self.home = device, home
        self.devices = {first: device} | {name: device.sibling(name) for name in program.devices if name != first}
        self.streams: dict[str, Stream] = {}  # MAIN is the caller's
        self.at: dict[Place, Stream] = {}
        self.caller: Caller | None = None  # of the latest run
        self.targets = {task: target for task, target in targets_of(program).items() if task in lane_of}
        self.received = received_by(program, accesses, lane_of) if self.targets else {}
        self.receiving = tuple(dict.fromkeys((lane_of[task], to) for task, to in self.targets.items() if lane_of[task] != MAIN))
        self._in_steps = {
            task: (lane_of[task], target) for task, target in self.targets.items()
            if not self.devices[home[lane_of[task]]].reaches(self.devices[target])
        }  # fmt: skip
        self._spare: dict[int, Event] = {}  # by device
        self._between: dict[tuple[str, Place], Event] = {}  # of a lane and its stream on another device: for the lane's thread alone

    def now(self) -> Caller:
        """What the calling thread has current."""
        return Caller({name: device.current_stream() for name, device in self.devices.items()}, self.device.current_device())

    def restore(self, caller: Caller, index: int | None = None) -> None:
        """Make the caller's streams current again, the first device's last, and then the device of that index."""
        for name, stream in reversed(tuple(caller.streams.items())):
            self.devices[name].set_stream(stream)
        if index is not None and index != self.device.current_device():
            self.device.set_device(index)

    def device_of(self, lane: str) -> Device:
        """The device that the lane belongs to; the host runs with lane 0's stream."""
        return self.devices[self.home[lane]] if lane in self.home else self.device

    def of_lane(self, lane: str) -> tuple[Stream, ...]:
        """The streams that a thread of this lane's own has current, on its own device last."""
        return (*(self.at[place] for place in self.receiving if place[0] == lane), self.streams[lane])

    def fork(self) -> None:
        """Lane 0 follows what the caller's streams of the other devices hold."""
        for stream in self._others():
            self.follow(self.streams[MAIN], stream)

    def join(self) -> None:
        """The caller's streams of the other devices follow lane 0."""
        for stream in self._others():
            self.follow(stream, self.streams[MAIN])

    def _others(self) -> list[Stream]:
        assert self.caller is not None
        return [stream for stream in self.caller.streams.values() if not same(stream, self.caller.main)]

    def make_current(self, task: str, lane: str) -> None:
        """Make current what a launch of the task on its lane is to find, where this thread has something else."""
        target = self.targets.get(task)
        if target is not None and not same(self.devices[target].current_stream(), self.at[lane, target]):
            self.device.set_stream(self.at[lane, target])
        if not self.device_of(lane).is_current(self.streams[lane]):
            self.device.set_stream(self.streams[lane])

    def arrived(self, task: str) -> None:
        """After a copy to a device that it reaches in two steps: its lane follows the second one too."""
        place = self._in_steps.get(task)
        if place is not None:
            self._hand_over("arrived", place, self.at[place], self.streams[place[0]])

    def give_back(self, number: int) -> None:
        """Before a value is dropped: the stream that its memory goes back to follows the lane, if that is another one."""
        place = self.received.get(number)
        if place is not None:
            self._hand_over("given back", place, self.streams[place[0]], self.at[place])

    def _hand_over(self, why: str, place: Place, earlier: Stream, later: Stream) -> None:
        if (why, place) not in self._between:
            self._between[why, place] = self.device.new_event()
        event = self._between[why, place]
        self.device.record(event, earlier)
        self.device.wait(event, later)

    def arriving(self, task: str, copy: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """The copy, with `arrived` after it where that does something."""
        if task not in self._in_steps:
            return copy

        def in_steps(*source: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
            result = copy(*source, **named)
            self.arrived(task)
            return result

        return in_steps

    def follow(self, later: Stream, earlier: Stream) -> None:
        """Let `later` wait for all that `earlier` holds now."""
        event = self._spare_event(earlier)
        self.device.record(event, earlier)
        self.device.wait(event, later)

    def _spare_event(self, stream: Stream) -> Event:
        """An event that nobody else waits for, of the device of that stream: waits mean the recording that came before them."""
        if stream.device_index not in self._spare:
            self._spare[stream.device_index] = self.device.new_event()
        return self._spare[stream.device_index]

    def clear(self) -> None:
        """Drop streams and events."""
        for held in (self.streams, self.at, self._spare, self._between):
            held.clear()
        self.caller = None
