"""The cheapest calls that do what a `Device` does: which function a compiled step calls, with which arguments.

A call is a tuple of symbols, the function first. The generator gives each symbol a name in the text; `value` says what stands behind it.
On CUDA these are the functions beneath `torch.cuda`, without its Python layer: `torch._C._cuda_setStream` with ready integers takes 0.75 us
where `torch.cuda.set_stream` takes 1.4, `_cuda_getCurrentStream` makes no object (`torch.cuda.current_stream` takes 4.3), measured on an
H200 with torch 2.11.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol, TypeAlias

import torch

from streamgraph.executors.device import CudaDevice, Device, Event, Stream

Symbol: TypeAlias = tuple[str, ...]


class Direct(Protocol):
    """How compiled steps reach the device."""

    def switch(self, lane: str) -> tuple[Symbol, ...]:
        """Make the lane's stream current."""
        ...

    def record(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """Record the event on the lane."""
        ...

    def wait(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """Let the lane wait for the event."""
        ...

    def record_stream(self, lane: str) -> tuple[Symbol, ...]:
        """Tell the allocator; the tensor is the first argument, and not among these."""
        ...

    def value(self, symbol: Symbol, streams: Mapping[str, Stream], events: Mapping[str, Event]) -> object:
        """What a symbol stands for."""
        ...

    def current(self) -> Hashable:
        """A key of the stream that is current on the run's device, for this thread."""
        ...

    def device_is_current(self) -> bool:
        """Whether the run's device is this thread's current one."""
        ...

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""
        ...


def direct(device: Device) -> Direct:
    """The direct calls of a device."""
    return CudaDirect(device) if isinstance(device, CudaDevice) else PlainDirect(device)


class PlainDirect:
    """The device's own methods, for devices that have nothing beneath them."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def switch(self, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.switch`."""
        return ("set_stream",), ("stream", lane)

    def record(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.record`."""
        return ("record",), ("event", event), ("stream", lane)

    def wait(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.wait`."""
        return ("wait",), ("event", event), ("stream", lane)

    def record_stream(self, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.record_stream`."""
        return ("record_stream",), ("stream", lane)

    def value(self, symbol: Symbol, streams: Mapping[str, Stream], events: Mapping[str, Event]) -> object:
        """See `Direct.value`."""
        match symbol:
            case ("stream", lane):
                return streams[lane]
            case ("event", event):
                return events[event]
            case ("synchronize", event):
                return events[event].synchronize
            case _:
                return getattr(self.device, symbol[0])

    def current(self) -> Hashable:
        """See `Direct.current`."""
        return self.device.current_stream().cuda_stream

    def device_is_current(self) -> bool:
        """See `Direct.device_is_current`."""
        return self.device.current_device() == (self.device.location.index or 0)

    def is_capturing(self) -> bool:
        """See `Direct.is_capturing`."""
        return self.device.is_capturing()


class CudaDirect:
    """The functions of `torch._C` that the methods of `torch.cuda` call."""

    def __init__(self, device: CudaDevice) -> None:
        self.index = device.index

    def switch(self, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.switch`."""
        return ("set_stream",), ("id", lane), ("device",), ("type",)

    def record(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.record`."""
        return ("record", event), ("stream", lane)

    def wait(self, event: str, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.wait`."""
        return ("wait", event), ("stream", lane)

    def record_stream(self, lane: str) -> tuple[Symbol, ...]:
        """See `Direct.record_stream`."""
        return ("record_stream",), ("stream", lane)

    def value(self, symbol: Symbol, streams: Mapping[str, Stream], events: Mapping[str, Event]) -> object:
        """See `Direct.value`."""
        match symbol:
            case ("set_stream",):
                return torch._C._cuda_setStream
            case ("id", lane):
                return streams[lane].stream_id  # type: ignore[attr-defined]
            case ("device",):
                return self.index
            case ("type",):
                return next(iter(streams.values())).device_type  # type: ignore[attr-defined]
            case ("stream", lane):
                return streams[lane]
            case ("record_stream",):
                return torch.Tensor.record_stream
            case (name, event):
                # The method of the class beneath torch.cuda.Event, which takes no default stream and so needs no `if`.
                return getattr(super(torch.cuda.Event, events[event]), name)
            case _:
                raise AssertionError(f"bug in streamgraph: no call is named {symbol}")

    def current(self) -> Hashable:
        """See `Direct.current`."""
        key: tuple[int, int, int] = torch._C._cuda_getCurrentStream(self.index)
        return key

    def device_is_current(self) -> bool:
        """See `Direct.device_is_current`."""
        return torch._C._cuda_getDevice() == self.index

    def is_capturing(self) -> bool:
        """See `Direct.is_capturing`."""
        return torch._C._cuda_isCurrentStreamCapturing()
