"""The cheapest calls that do what a `Device` does: which function a compiled step calls, with which arguments.

A call is a tuple of symbols, the function first. The generator gives each symbol a name in the text; `value` says what stands behind it.
On CUDA these are the functions beneath `torch.cuda`, without its Python layer: `torch._C._cuda_setStream` with ready integers takes 0.75 us
where `torch.cuda.set_stream` takes 1.4, `_cuda_getCurrentStream` makes no object (`torch.cuda.current_stream` takes 4.3), measured on an
H200 with torch 2.11.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import torch

from streamgraph.executors.device import CudaDevice, Device, Event, Stream, same
from streamgraph.executors.places import Places
from streamgraph.model import DEVICE, MAIN
from streamgraph.switches import Place

Symbol: TypeAlias = tuple[str, ...]


class Bindings(Protocol):
    """The streams and events that symbols name: those of a schedule's lanes, or of one iteration of a loop."""

    @property
    def streams(self) -> Mapping[str, Stream]:
        """By lane."""
        ...

    @property
    def at(self) -> Mapping[Place, Stream]:
        """By lane and device."""
        ...

    @property
    def events(self) -> Mapping[str, Event]:
        """By name."""
        ...

    @property
    def devices(self) -> Mapping[str, Device]:
        """By the name that the program has for them."""
        ...


class Direct(Protocol):
    """How compiled steps reach the device."""

    def switch(self, place: Place) -> tuple[Symbol, ...]:
        """Make the stream that the lane has on that device current."""
        ...

    def record(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """Record the event on the lane."""
        ...

    def wait(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """Let the lane wait for the event."""
        ...

    def record_stream(self, place: Place) -> tuple[Symbol, ...]:
        """Tell the allocator; the tensor is the first argument, and not among these."""
        ...

    def elsewhere(self, place: Place, others: Sequence[Place], name: Callable[[Symbol], str]) -> str:
        """A condition, in the words that `name` has for symbols: another stream than the lane's is current, or another device, or on
        one of the other devices another stream than that of `others`."""
        ...

    def value(self, symbol: Symbol, lanes: Bindings) -> object:
        """What a symbol stands for."""
        ...

    def current(self) -> Hashable:
        """A key of the streams that are current on the run's devices, for this thread."""
        ...

    def device_is_current(self) -> bool:
        """Whether the run's device, the first one, is this thread's current one."""
        ...

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""
        ...


def direct(device: Device, lanes: Places | None = None) -> Direct:
    """The direct calls of a device, or of all devices of these lanes, of which it is the first."""
    return CudaDirect(device, lanes) if isinstance(device, CudaDevice) else PlainDirect(device, lanes)


class _Names:
    """How streams are called: by their lane, and where a lane has streams on several devices, by the device as well."""

    def __init__(self, device: Device, lanes: Places | None) -> None:
        self.device, self.devices = device, tuple(lanes.devices.values()) if lanes is not None else (device,)
        self._own = lanes.home if lanes is not None else {}

    def stream(self, kind: str, place: Place) -> Symbol:
        """The symbol of that kind for a lane's stream."""
        lane, device = place
        return (kind, lane) if self._own.get(lane, device) == device else (kind, lane, device)

    def found(self, lanes: Bindings, lane: str, *device: str) -> Stream:
        """The stream that a symbol names."""
        return lanes.at[lane, device[0]] if device else lanes.streams[lane]


class PlainDirect(_Names):
    """The device's own methods, for devices that have nothing beneath them."""

    def switch(self, place: Place) -> tuple[Symbol, ...]:
        """See `Direct.switch`."""
        return ("set_stream",), self.stream("stream", place)

    def record(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.record`."""
        return ("record",), ("event", event), ("stream", lane)

    def wait(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.wait`."""
        return ("wait",), ("event", event), ("stream", lane)

    def record_stream(self, place: Place) -> tuple[Symbol, ...]:
        """See `Direct.record_stream`."""
        return ("record_stream",), self.stream("stream", place)

    def elsewhere(self, place: Place, others: Sequence[Place], name: Callable[[Symbol], str]) -> str:
        """See `Direct.elsewhere`."""
        here = ("is_current", place[1]) if len(self.devices) > 1 else ("is_current",)
        found = [f"not {name(here)}({name(self.stream('stream', place))})"]
        found += [f"not {name(('holds', other[1]))}({name(self.stream('stream', other))})" for other in others]
        return " or ".join(found)

    def value(self, symbol: Symbol, lanes: Bindings) -> object:
        """See `Direct.value`."""
        match symbol:
            case ("stream", *where):
                return self.found(lanes, *where)
            case ("event", event):
                return lanes.events[event]
            case ("synchronize", event):
                return lanes.events[event].synchronize
            case ("is_current", device):
                return lanes.devices[device].is_current
            case ("holds", device):
                return partial(_holds, lanes.devices[device])
            case _:
                return getattr(self.device, symbol[0])

    def current(self) -> Hashable:
        """See `Direct.current`."""
        return tuple(device.current_stream().cuda_stream for device in self.devices)

    def device_is_current(self) -> bool:
        """See `Direct.device_is_current`."""
        return self.device.current_device() == (self.device.location.index or 0)

    def is_capturing(self) -> bool:
        """See `Direct.is_capturing`."""
        return self.device.is_capturing()


def _holds(device: Device, stream: Stream) -> bool:
    return same(device.current_stream(), stream)


class CudaDirect(_Names):
    """The functions of `torch._C` that the methods of `torch.cuda` call."""

    def __init__(self, device: CudaDevice, lanes: Places | None) -> None:
        super().__init__(device, lanes)
        self.index, *self._others = [device.location.index for device in self.devices]
        self._first = next(iter(lanes.devices)) if lanes is not None else DEVICE

    def switch(self, place: Place) -> tuple[Symbol, ...]:
        """See `Direct.switch`."""
        return ("set_stream",), self.stream("id", place), self._number(place), ("type",)

    def _number(self, place: Place) -> Symbol:
        return ("device",) if place[1] in (self._first, DEVICE) else ("device", place[1])

    def record(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.record`."""
        return ("record", event), ("stream", lane)

    def wait(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.wait`."""
        return ("wait", event), ("stream", lane)

    def record_stream(self, place: Place) -> tuple[Symbol, ...]:
        """See `Direct.record_stream`."""
        return ("record_stream",), self.stream("stream", place)

    def elsewhere(self, place: Place, others: Sequence[Place], name: Callable[[Symbol], str]) -> str:
        """See `Direct.elsewhere`."""
        current = name(("current",))
        streams = [f"{current}({name(self._number(at))})[0] != {name(self.stream('id', at))}" for at in (place, *others)]
        return " or ".join([streams[0], f"{name(('current_device',))}() != {name(self._number(place))}", *streams[1:]])

    def value(self, symbol: Symbol, lanes: Bindings) -> object:
        """See `Direct.value`."""
        match symbol:
            case ("set_stream",):
                return torch._C._cuda_setStream
            case ("id", *where):
                return self.found(lanes, *where).stream_id  # type: ignore[attr-defined]
            case ("current",):
                return torch._C._cuda_getCurrentStream
            case ("current_device",):
                return torch._C._cuda_getDevice
            case ("device",):
                return self.index
            case ("device", name):
                return lanes.devices[name].location.index
            case ("type",):
                return lanes.streams[MAIN].device_type  # type: ignore[attr-defined]
            case ("stream", *where):
                return self.found(lanes, *where)
            case ("record_stream",):
                return torch.Tensor.record_stream
            case (name, event):
                # The method of the class beneath torch.cuda.Event, which takes no default stream and so needs no `if`.
                return getattr(super(torch.cuda.Event, lanes.events[event]), name)
            case _:
                raise AssertionError(f"bug in streamgraph: no call is named {symbol}")

    def current(self) -> Hashable:
        """See `Direct.current`."""
        key: tuple[object, ...] = torch._C._cuda_getCurrentStream(self.index)
        return (key, *map(torch._C._cuda_getCurrentStream, self._others)) if self._others else key

    def device_is_current(self) -> bool:
        """See `Direct.device_is_current`."""
        return torch._C._cuda_getDevice() == self.index

    def is_capturing(self) -> bool:
        """See `Direct.is_capturing`."""
        return torch._C._cuda_isCurrentStreamCapturing()
