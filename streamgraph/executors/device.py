"""Streams and events of a GPU: what executors know of `torch.cuda`, beside the cheapest calls (`direct`) and further streams (`external`).

The eager executor is written against the protocols below, which `torch.cuda.Stream` and `torch.cuda.Event` fit as they are. So a test can
give it streams that hold their work back and run it in any order the events allow, on a machine without a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import torch

from streamgraph.errors import DeviceError, Problem, quoted
from streamgraph.executors.external import further_stream, more_streams
from streamgraph.executors.node_priority import node_priority
from streamgraph.model import Program

# PyTorch hands out 32 streams per priority and device in turn, then the same ones again (measured with torch 2.11: 70 calls, 32 streams).
POOL = 32
# A lower number is a higher priority; 0 is what the caller's stream has, and CUDA knows none below it.
PRIORITIES = {"high": -1, "normal": 0, "low": 0}


class Stream(Protocol):
    """A queue of device work. Two objects are the same stream exactly when `same` says so."""

    @property
    def cuda_stream(self) -> int:
        """The native handle."""
        ...

    @property
    def device_index(self) -> int:
        """The device whose stream it is. Each device has a stream with handle 0."""
        ...


def same(first: Stream, second: Stream) -> bool:
    """Whether two objects are one stream."""
    return first.cuda_stream == second.cuda_stream and first.device_index == second.device_index


class Event(Protocol):
    """A point in a stream's queue, as last recorded."""

    def synchronize(self) -> None:
        """Block the host until the point is reached."""
        ...


@runtime_checkable
class Device(Protocol):
    """What the eager executor needs of a device. `set_stream`, `record`, `wait` and `record_stream` take streams of any device."""

    @property
    def location(self) -> torch.device:
        """Where device tensors live."""
        ...

    def current_stream(self) -> Stream:
        """The stream that work goes to now, for this thread."""
        ...

    def current_device(self) -> int:
        """The index of the device that is current for this thread."""
        ...

    def set_stream(self, stream: Stream) -> None:
        """Send work to `stream` from here on; its device becomes current too."""
        ...

    def is_current(self, stream: Stream) -> bool:
        """Whether work of this thread goes to `stream`, and its device is current."""
        ...

    def set_device(self, index: int) -> None:
        """Make another device current again."""
        ...

    def new_stream(self, priority: str, taken: Collection[int]) -> Stream:
        """A stream whose handle is none of `taken`."""
        ...

    def new_event(self) -> Event:
        """An event without timing."""
        ...

    def record(self, event: Event, stream: Stream) -> None:
        """Record the event at the end of what the stream holds now."""
        ...

    def wait(self, event: Event, stream: Stream) -> None:
        """Hold back what the stream is given from here on until the event, as recorded now, is done."""
        ...

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Tell the allocator that the stream uses the tensor's memory too."""
        ...

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""
        ...

    def sibling(self, name: str) -> Device:
        """The device of that name ("cuda:1"); this one for "device", and on the CPU for all."""
        ...

    def reaches(self, other: Device) -> bool:
        """Whether a copy from here to that device is done on one stream of this one, whatever its ends look like."""
        ...


class _HostStream:
    """The CPU's one queue: the calling thread, which is always past what it was given."""

    cuda_stream = 0
    device_index = 0


class _HostEvent:
    def synchronize(self) -> None:
        """The host is here already."""


class HostDevice:
    """The CPU as a device: work is done when its call returns, so streams and events are names only."""

    location = torch.device("cpu")

    def __init__(self) -> None:
        self._stream = _HostStream()

    def current_stream(self) -> Stream:
        """The calling thread."""
        return self._stream

    def current_device(self) -> int:
        """There is one."""
        return 0

    def set_stream(self, stream: Stream) -> None:
        """Nothing: there is one."""

    def is_current(self, stream: Stream) -> bool:
        """Always: there is one."""
        return True

    def set_device(self, index: int) -> None:
        """Nothing: there is one."""

    def new_stream(self, priority: str, taken: Collection[int]) -> Stream:
        """The calling thread again: lanes that share it are in order by themselves."""
        return self._stream

    def new_event(self) -> Event:
        """An event that has always happened."""
        return _HostEvent()

    def record(self, event: Event, stream: Stream) -> None:
        """Nothing: the work before it is done."""

    def wait(self, event: Event, stream: Stream) -> None:
        """Nothing: the work before it is done."""

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Nothing: host memory has no streams."""

    def is_capturing(self) -> bool:
        """Never."""
        return False

    def sibling(self, name: str) -> Device:
        """This one."""
        return self

    def reaches(self, other: Device) -> bool:
        """Always."""
        return True


class CudaDevice:
    """The CUDA device of that index, or the current one."""

    def __init__(self, index: int | None = None) -> None:
        if not torch.cuda.is_available():
            raise DeviceError(_missing(f"cuda:{index}" if index is not None else "cuda", "this machine or this build of torch has no CUDA"))
        count = torch.cuda.device_count()
        if index is not None and index >= count:
            here = ", ".join(f"cuda:{number} ({torch.cuda.get_device_name(number)})" for number in range(count))
            raise DeviceError(_missing(f"cuda:{index}", f"this machine has {here}"))
        self.index = torch.cuda.current_device() if index is None else index
        self.location = torch.device("cuda", self.index)

    def current_stream(self) -> Stream:
        """The stream that work on this device goes to now, for this thread."""
        stream: Stream = torch.cuda.current_stream(self.index)
        return stream

    def current_device(self) -> int:
        """The index of the device that is current for this thread."""
        return torch.cuda.current_device()

    def set_stream(self, stream: Stream) -> None:
        """Send work to `stream` from here on; its device becomes current too."""
        assert isinstance(stream, torch.cuda.Stream)
        torch._C._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)  # beneath two functions of torch.cuda

    def is_current(self, stream: Stream) -> bool:
        """Whether work of this thread goes to `stream`, and its device is current."""
        # torch.cuda.current_stream makes an object; these two are asked after every task of a lane's thread.
        number, _, _ = torch._C._cuda_getCurrentStream(self.index)
        assert isinstance(stream, torch.cuda.Stream)
        return bool(number == stream.stream_id) and torch._C._cuda_getDevice() == self.index

    def set_device(self, index: int) -> None:
        """Make another device current again."""
        torch.cuda.set_device(index)

    def new_stream(self, priority: str, taken: Collection[int]) -> Stream:
        """A stream whose handle is none of `taken`: of PyTorch's pool, and where that is exhausted one made through `cuda.bindings`.

        Raises:
            DeviceError: SG606, every stream of that priority is taken, and `cuda.bindings` is not installed.
        """
        # Nothing is made here: the pool's next stream is handed out, and others (NCCL, captures, other runners) draw from it as well.
        for _ in range(2 * POOL):
            stream: Stream = torch.cuda.Stream(self.location, priority=PRIORITIES[priority])  # type: ignore[no-untyped-call]
            if stream.cuda_stream not in taken:
                return stream
        if not more_streams():
            raise DeviceError(_too_many(priority))
        return further_stream(self.location, PRIORITIES[priority], taken)

    def check_lanes(self, priorities: Sequence[str]) -> None:
        """Refuse side lanes of these priorities if there cannot be so many streams.

        Raises:
            DeviceError: SG606.
        """
        numbers = [PRIORITIES[priority] for priority in priorities]
        for priority, number in zip(priorities, numbers, strict=True):
            if numbers.count(number) > POOL and not more_streams():
                raise DeviceError(_too_many(priority))

    def new_event(self) -> Event:
        """An event without timing. CUDA's own event comes into being at the first record."""
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self, event: Event, stream: Stream) -> None:
        """Record the event at the end of what the stream holds now."""
        torch._C._CudaEventBase.record(event, stream)  # type: ignore[arg-type]  # beneath torch.cuda.Event: without a default stream

    def wait(self, event: Event, stream: Stream) -> None:
        """Hold back what the stream is given from here on until the event, as recorded now, is done."""
        torch._C._CudaEventBase.wait(event, stream)  # type: ignore[arg-type]

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Tell the allocator that the stream uses the tensor's memory too."""
        assert isinstance(stream, torch.cuda.Stream)
        tensor.record_stream(stream)

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""
        return torch.cuda.is_current_stream_capturing()

    def sibling(self, name: str) -> Device:
        """The device of that name."""
        _, _, index = name.partition(":")
        return CudaDevice(int(index)) if index and int(index) != self.index else self

    def reaches(self, other: Device) -> bool:
        """Whether the two have access to each other's memory. Else PyTorch may copy in two steps, the second one on the other device."""
        return other is self or torch.cuda.can_device_access_peer(self.index, other.location.index)

    def new_graph(self) -> torch.cuda.CUDAGraph:
        """An empty graph."""
        return torch.cuda.CUDAGraph()

    def new_shared_event(self) -> Event:
        """An event that a captured graph records, or waits for, in a node of its own."""
        return torch.cuda.Event(external=True)  # type: ignore[no-untyped-call]

    def high_priority(self, stream: Stream) -> AbstractContextManager[None]:
        """Kernels that the stream is given inside, while it is captured, become nodes of high priority, on that stream all the same."""
        return node_priority(stream.cuda_stream, PRIORITIES["high"])

    def random_offset(self) -> int:
        """How far the device's random numbers have come."""
        return int(torch.cuda.default_generators[self.index].get_offset())

    def captures_memory(self) -> bool:
        """Whether a captured graph has a pool of memory of its own, as with PyTorch's own allocator.

        With `backend:cudaMallocAsync` what is freed during a capture becomes a node on the stream that allocated it. Measured with torch
        2.11 on an H200: a value of a side lane that is dropped after the lane has been joined ends the capture ("capturing stream has
        unjoined work"), and from then on every capture of the process fails at an assertion of that allocator (`capture_free_streams`).
        """
        return torch.cuda.get_allocator_backend() == "native"

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy between two tensors of the device, on the current stream."""
        if target.is_inference() and not torch.is_inference_mode_enabled():
            # It was made in a call in inference mode, and may be written in that mode only; this call is outside.
            with torch.inference_mode():
                target.copy_(source, non_blocking=True)
        else:
            target.copy_(source, non_blocking=True)

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor of the device, made on the current stream."""
        return tensor.clone()


def find(name: str, program: Program | None = None) -> Device:
    """The device that a run on `name` uses: "cpu", "cuda", "cuda:1", or "auto", which is CUDA where there is some.

    For a program that names devices: the first of them, whose current stream is lane `main`.

    Raises:
        DeviceError: SG606, it is no device or not here, or one that the program names is not, or `name` is another than the program's.
    """
    if re.fullmatch("auto|cpu|cuda(:[0-9]+)?", name) is None:
        raise DeviceError(Problem("SG606", f"nothing runs on device '{quoted(name)}'", None, "one of: auto, cpu, cuda, cuda:0"))
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return HostDevice()
    _, _, index = name.partition(":")
    if program is None or not program.devices:
        return CudaDevice(int(index) if index else None)
    named = program.devices
    if index and name != named[0]:
        message = f"this run is to be on '{name}', but '{program.name}' lies on {' and '.join(named)}"
        remedy = "leave the device out; or let the program name none, and it runs wherever it is told to"
        raise DeviceError(Problem("SG606", message, None, remedy))
    found = [CudaDevice(int(device.partition(":")[2])) for device in named]  # all of them: each may be missing
    return found[0]


def _too_many(priority: str) -> Problem:
    message = f"PyTorch has {POOL} streams of one priority per device, and this schedule needs more of priority '{priority}'"
    remedy = "use fewer lanes (`streams=`), give some of them another priority, or install cuda-bindings, which makes further streams"
    return Problem("SG606", message, None, remedy)


def _missing(device: str, why: str) -> Problem:
    remedy = "device='cpu' runs the same schedule on host threads; device='sim' predicts times"
    return Problem("SG606", f"device '{device}' is not here: {why}", None, remedy)
