"""The fake device for several issuing threads: each thread has a current stream and device of its own, as with CUDA."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch

from streamgraph.executors.lanes import LanesExecutor
from streamgraph.operators import resolve
from streamgraph.schedule import Schedule
from tests.fake_device import Block, FakeDevice, FakeEvent, FakeGraph, FakeStream, Mark


@dataclass(eq=False)
class ThreadedEvent(FakeEvent):
    """`synchronized` are the recordings that the host has waited for."""

    synchronized: list[Mark | None] = field(default_factory=list)

    def synchronize(self) -> None:
        assert isinstance(self.device, ThreadedDevice)
        mark = self.latest
        self.synchronized.append(mark)
        if self.device.graph is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.device.log.append("synchronize")
        while mark is not None:
            with self.device.lock:
                if mark.done:
                    return
                assert self.device.advance(), "the host waits for an event that can never happen"


class ThreadedGraph(FakeGraph):
    """A launch is one call of the driver, whatever other threads do."""

    def replay(self) -> None:
        assert isinstance(self.device, ThreadedDevice)
        with self.device.lock:
            super().replay()


class ThreadedDevice(FakeDevice):
    """`set_by` lists the names of the threads that set a stream, as often as they did."""

    def __init__(self, seed: int = 0, pace: float = 0.3) -> None:
        self.lock = threading.RLock()
        self.set_by: list[str] = []
        super().__init__(seed, pace)
        self.own = threading.local()

    def set_stream(self, stream: FakeStream) -> None:
        self.set_by.append(threading.current_thread().name)
        super().set_stream(stream)

    def new_stream(self, priority: str, taken: Collection[int]) -> FakeStream:
        with self.lock:
            return super().new_stream(priority, taken)

    def new_event(self) -> FakeEvent:
        with self.lock:
            self.events += 1
            return ThreadedEvent(self)

    def new_shared_event(self) -> FakeEvent:
        with self.lock:
            self.events += 1
            return ThreadedEvent(self, shared=True)

    def new_graph(self) -> FakeGraph:
        return ThreadedGraph(self)

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        with self.lock:
            super().record(event, stream)

    def wait(self, event: FakeEvent, stream: FakeStream) -> None:
        with self.lock:
            # In CUDA this is silently no wait at all; from several threads it would be luck.
            assert event.latest is not None, "a wait for an event that was never recorded"
            super().wait(event, stream)

    def record_stream(self, tensor: torch.Tensor, stream: FakeStream) -> None:
        with self.lock:
            super().record_stream(tensor, stream)

    def put(self, stream: FakeStream, item: Callable[[], None] | Mark | tuple[Mark]) -> None:
        with self.lock:
            super().put(stream, item)

    def advance(self) -> bool:
        with self.lock:
            return super().advance()

    def allocate(
        self, shape: Sequence[int], dtype: torch.dtype, *, host: bool = False, on: FakeDevice | None = None,
        first: FakeStream | None = None,
    ) -> torch.Tensor:  # fmt: skip
        with self.lock:
            return super().allocate(shape, dtype, host=host, on=on, first=first)

    def _freed(self, block: Block) -> None:
        with self.lock:
            super()._freed(block)

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        with self.lock:
            return super().block_of(tensor)

    def held(self) -> list[Block]:
        """The blocks of device memory that something still holds."""
        return [block for block in self.blocks if block.owner is not None and block not in self.free]


def threaded(
    schedule: Schedule, device: ThreadedDevice, ops: object = None, delay: Callable[[str, str], None] | None = None
) -> LanesExecutor:
    """A lanes executor of a schedule that nobody has verified, on such a device."""
    operators = resolve(schedule.program, ops or device.operators(schedule.program))  # type: ignore[arg-type]
    return LanesExecutor(schedule, operators, delay=delay, device=device)
