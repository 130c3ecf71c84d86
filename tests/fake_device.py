"""A device that holds its work back: streams are queues, run later in any order that the events allow, drawn from a seed.

What a real GPU may do, this does, on purpose and repeatably: a stream may stand still until the host asks for something behind it, or run
far ahead of the others; a freed block goes to the next allocation of its stream at once, and its bytes are overwritten. So a missing wait,
an early release or a missing record_stream gives wrong results instead of lucky ones.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import random
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from streamgraph.calls import Call, evaluate
from streamgraph.devices import crosses, of_tasks
from streamgraph.model import Kind, Program, Task
from streamgraph.operators import Operators
from tests.programs import mix_for

GARBAGE = 0x5A


@dataclass(eq=False)
class Mark:
    """One recording of an event."""

    done: bool = False


@dataclass(eq=False)
class FakeStream:
    cuda_stream: int  # the default streams of all devices have the same, as with CUDA
    device_index: int = field(default=0, kw_only=True)
    queue: deque[Callable[[], None] | Mark | tuple[Mark]] = field(default_factory=deque)  # work, a record, a wait


@dataclass(eq=False)
class FakeEvent:
    device: FakeDevice
    latest: Mark | None = None
    shared: bool = False  # a graph records it, and waits for it, at each replay
    made: bool = False  # CUDA makes an event at its first record; until then a wait is none, in a graph for good
    recorded_on: int | None = None  # a device: its streams alone may record it

    def synchronize(self) -> None:
        self.device.log.append("synchronize")
        if self.device.graph is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        while self.latest is not None and not self.latest.done:
            assert self.device.advance(), "the host waits for an event that can never happen"


@dataclass(frozen=True, eq=False)
class Shown:
    """A node of a graph that records a shared event."""

    event: FakeEvent


@dataclass(frozen=True, eq=False)
class Awaited:
    """A node of a graph that waits for a shared event, as it was recorded last when the graph is launched."""

    event: FakeEvent


Item = Callable[[], None] | Mark | tuple[Mark] | Shown | Awaited


@dataclass(eq=False)
class Block:
    """Bytes that stay where they are; `owner` is the stream that they were allocated on, None for the host."""

    owner: FakeStream | None
    memory: np.ndarray
    pool: object = None  # of the graphs that it belongs to for good
    recorded: dict[int, FakeStream] = field(default_factory=dict)  # by the object's id: handles repeat from device to device
    guards: list[Mark] = field(default_factory=list)

    @property
    def address(self) -> int:
        return self.memory.ctypes.data


class FakeGraph:
    """What streams were given while they were captured, to be run again in any order that its waits allow."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.items: list[tuple[int, Item]] = []
        self.joined: dict[int, None] = {}  # handles of the streams in the capture, its own first
        self.high: list[int] = []  # items of high priority
        self.origin: FakeStream | None = None
        self.memory: object = None
        self.replays = 0
        self.gone = False
        device.graphs.append(self)

    def pool(self) -> object:
        return self.memory

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        assert self.device.graph is None
        self.memory = pool or object()
        assert self.device.current is not self.device.default, "the default stream cannot be captured"
        self.device.graph, self.origin = self, self.device.current
        self.joined[self.origin.cuda_stream] = None

    def take(self, stream: FakeStream, item: Item) -> bool:
        """Record the item if its stream is in the capture, or joins it with a wait for a captured event."""
        captured = [mark for _, mark in self.items if isinstance(mark, Mark)]
        if isinstance(item, tuple):
            if item[0] in captured:
                self.joined[stream.cuda_stream] = None
            elif stream.cuda_stream in self.joined:
                raise RuntimeError("dependency created on uncaptured work in another stream")
        if stream.cuda_stream not in self.joined:
            return False
        self.items.append((stream.cuda_stream, item))
        return True

    def capture_end(self) -> None:
        if self.device.graph is not self:
            raise RuntimeError("this graph is not being captured")
        self.device.graph = None
        assert self.origin is not None
        # Work of every stream must come before the end of the first one.
        reached: dict[int, int] = {self.origin.cuda_stream: len(self.items)}
        for number in range(len(self.items) - 1, -1, -1):
            handle, item = self.items[number]
            if isinstance(item, tuple) and reached.get(handle, -1) > number:
                recorded = next(n for n, (_, mark) in enumerate(self.items) if mark is item[0])
                recorder = self.items[recorded][0]
                reached[recorder] = max(reached.get(recorder, -1), recorded + 1)
        for number, (handle, item) in enumerate(self.items):
            if not isinstance(item, Mark) and number >= reached.get(handle, -1):
                raise RuntimeError("capturing stream has unjoined work")

    def replay(self) -> None:
        device, begin = self.device, Mark()
        device.put(device.current, begin)
        streams = {handle: FakeStream(-handle) for handle in self.joined}
        device.streams += streams.values()
        marks: dict[int, Mark] = {}
        for stream in streams.values():
            device.put(stream, (begin,))
        for handle, item in self.items:
            if isinstance(item, Mark):
                marks[id(item)] = item = Mark()
            elif isinstance(item, tuple):
                item = (marks[id(item[0])],)
            elif isinstance(item, Shown):
                item.event.latest = item = Mark()
            elif isinstance(item, Awaited):
                assert item.event.latest is not None
                item = (item.event.latest,)
            device.put(streams[handle], item)
        self.replays += 1
        for stream in streams.values():
            end = Mark()
            device.put(stream, end)
            device.put(device.current, (end,))

    def reset(self) -> None:
        self.items = []
        self.gone = True


class FakeDevice:
    """Streams, events and an allocator without a GPU. `pace` is the chance that a queued item runs after each call of the host.

    Siblings are further devices of the same machine. Without `reach`, a copy between two devices ends on the one that it writes to. With
    `shared`, others have drawn the same streams: whatever goes back to one is allocated there at once, written, and freed again. `slow`
    says which stream of the machine runs only where no other one can.
    """

    location = torch.device("cpu")

    def __init__(self, seed: int = 0, pace: float = 0.3) -> None:
        self.random, self.pace = random.Random(seed), pace
        self.log: list[str] = []
        self.default = FakeStream(100)
        self.streams = [self.default]
        self.index, self.family, self.reach, self.shared = 0, {0: self}, True, False
        self.slow: Callable[[], FakeStream | None] = lambda: None
        self.own: Any = SimpleNamespace()  # what a thread has current
        self.device_of: dict[str, tuple[str, tuple[str, str] | None]] = {}  # by task: its device, and both ends of a copy between two
        self.events = 0
        self.capturing = False
        self.graph: FakeGraph | None = None  # that is being captured
        self.graphs: list[FakeGraph] = []
        self.blocks: list[Block] = []
        self.free: list[Block] = []

    @property
    def current(self) -> FakeStream:
        """The stream of this device that is current."""
        stream: FakeStream = getattr(self.own, f"stream{self.index}", self.default)
        return stream

    @current.setter
    def current(self, stream: FakeStream) -> None:
        setattr(self.own, f"stream{self.index}", stream)

    @property
    def device_index(self) -> int:
        """The device that is current."""
        index: int = getattr(self.own, "index", 0)
        return index

    @device_index.setter
    def device_index(self, index: int) -> None:
        self.own.index = index

    def named(self, device: str) -> FakeDevice:
        """The device of that name."""
        return self.family[int(device.partition(":")[2] or 0)]

    # --- what the eager executor calls ---

    def current_stream(self) -> FakeStream:
        return self.current

    def current_device(self) -> int:
        return self.device_index

    def set_stream(self, stream: FakeStream) -> None:
        self.log.append("set_stream")
        self.family[stream.device_index].current = stream
        self.device_index = stream.device_index

    def is_current(self, stream: FakeStream) -> bool:
        return self.current is stream and self.device_index == self.index

    def set_device(self, index: int) -> None:
        self.device_index = index

    def new_stream(self, priority: str, taken: Collection[int]) -> FakeStream:
        mine = (s for s in self.streams if s.device_index == self.index and s is not self.default)
        stream = next((s for s in mine if s.cuda_stream not in taken), None)
        if stream is None:
            stream = FakeStream(100 + len(self.streams), device_index=self.index)
            self.streams.append(stream)
        return stream

    def new_event(self) -> FakeEvent:
        self.events += 1
        return FakeEvent(self)

    def new_shared_event(self) -> FakeEvent:
        self.events += 1
        return FakeEvent(self, shared=True)

    def random_offset(self) -> int:
        return 0

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        self.log.append("record")
        assert event.recorded_on in (None, stream.device_index), "an event belongs to the device where it was first recorded"
        event.made, event.recorded_on = True, stream.device_index
        if event.shared and self.graph is not None and stream.cuda_stream in self.graph.joined:
            self.graph.items.append((stream.cuda_stream, Shown(event)))
            return
        event.latest = Mark()
        self.put(stream, event.latest)

    def wait(self, event: FakeEvent, stream: FakeStream) -> None:
        self.log.append("wait")
        if event.shared and self.graph is not None and stream.cuda_stream in self.graph.joined:
            assert event.made, "a graph would never wait for this event"
            self.graph.items.append((stream.cuda_stream, Awaited(event)))
            return
        if event.latest is not None:  # as in CUDA, a wait for what was never recorded is none
            self.put(stream, (event.latest,))

    def record_stream(self, tensor: torch.Tensor, stream: FakeStream) -> None:
        self.log.append("record_stream")
        assert self.graph is None, "record_stream in a capture holds the memory until its end"
        block = self.block_of(tensor)
        if block is not None and block.owner is not stream:
            block.recorded[id(stream)] = stream

    def sibling(self, name: str) -> FakeDevice:
        index = int(name.partition(":")[2])
        if index not in self.family:
            made = copy.copy(self)  # shares all but these
            made.index, made.default = index, FakeStream(100, device_index=index)
            self.streams.append(made.default)
            self.family[index] = made
        return self.family[index]

    def reaches(self, other: FakeDevice) -> bool:
        return self.reach

    def is_capturing(self) -> bool:
        return self.capturing or (self.graph is not None and self.current.cuda_stream in self.graph.joined)

    def new_graph(self) -> FakeGraph:
        return FakeGraph(self)

    def captures_memory(self) -> bool:
        return True

    @contextmanager
    def high_priority(self, stream: FakeStream) -> Iterator[None]:
        graph = self.graph
        assert graph is not None, "priorities of launches are a captured graph's"
        assert self.current is stream
        begun = len(graph.items)
        yield
        graph.high += [number for number in range(begun, len(graph.items)) if graph.items[number][0] == stream.cuda_stream]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        to, of = self.pointer_to(target), self.pointer_to(source)
        self.put(self.current, lambda: to.copy_(of))

    def clone(self, tensor: torch.Tensor) -> torch.Tensor:
        result = self.allocate(tensor.shape, tensor.dtype)
        self.copy(result, tensor)
        return result

    # --- the device's side ---

    def put(self, stream: FakeStream, item: Item) -> None:
        if self.graph is not None and self.graph.take(stream, item):
            return
        stream.queue.append(item)
        while self.random.random() < self.pace and self.advance():
            pass

    def advance(self) -> bool:
        """Run the head of one stream that is not held back. False if there is none."""
        ready = [s for s in self.streams if s.queue and not (isinstance(s.queue[0], tuple) and not s.queue[0][0].done)]
        if not ready:
            return False
        slow = self.family[0].slow()
        item = self.random.choice([stream for stream in ready if stream is not slow] or ready).queue.popleft()
        if isinstance(item, Mark):
            item.done = True
        elif not isinstance(item, tuple):
            item()
        return True

    def drain(self) -> None:
        while self.advance():
            pass
        assert not any(stream.queue for stream in self.streams), "a stream is held back for ever"

    # --- memory ---

    def allocate(
        self, shape: Sequence[int], dtype: torch.dtype, *, host: bool = False, on: FakeDevice | None = None,
        first: FakeStream | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """A tensor of garbage: a freed block of the current stream of that device (None: the current one) if one fits.

        `first` is the stream that uses the block first, and so writes the garbage; None: the one that it belongs to.
        """
        example = torch.empty(tuple(shape), dtype=dtype)
        size, owner = example.numel() * example.element_size(), None if host else (on or self.active).current
        pool = self.graph.memory if self.graph is not None and owner is not None and owner.cuda_stream in self.graph.joined else None
        fitting = [b for b in self.free if b.owner is owner and b.memory.size == size and all(mark.done for mark in b.guards)]
        fitting = [block for block in fitting if block.pool is pool]
        if fitting:
            block = fitting[-1]
            self.free.remove(block)
            block.guards, block.recorded = [], {}
            # The host does not touch device memory: whoever gets the block overwrites it when its stream comes to that.
            fill = partial(block.memory.fill, GARBAGE)
            if pool is not None:
                assert self.graph is not None
                self.graph.take(self.current, fill)
            elif owner is not None:
                (first or owner).queue.append(fill)
            else:
                fill()
        else:
            block = Block(owner, np.full(size, GARBAGE, np.uint8), pool)
            self.blocks.append(block)
        holder = block.memory[:]  # every tensor over it keeps this object alive, and nothing else does
        tensor = torch.from_numpy(holder).view(dtype).reshape(tuple(shape))
        weakref.finalize(holder, self._freed, block).atexit = False
        return tensor

    def _freed(self, block: Block) -> None:
        for stream in block.recorded.values():  # the tail of each recorded stream, as it is now
            mark = Mark()
            stream.queue.append(mark)
            block.guards.append(mark)
        if self.family[0].shared and block.owner is not None and not block.guards:
            block.owner.queue.append(partial(block.memory.fill, GARBAGE))
        self.free.append(block)

    def block_of(self, tensor: torch.Tensor) -> Block | None:
        at = tensor.data_ptr()
        return next((b for b in self.blocks if b.address <= at < b.address + b.memory.size), None)

    def pointer_to(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor's bytes as a kernel has them: an address that keeps nothing alive. (Memory of the caller's is kept.)"""
        block = self.block_of(tensor)
        if block is None:
            return tensor.detach()
        count = tensor.numel() * tensor.element_size()
        assert tensor.is_contiguous()
        raw = (ctypes.c_uint8 * count).from_address(tensor.data_ptr())
        return torch.from_numpy(np.frombuffer(raw, np.uint8)).view(tensor.dtype).reshape(tensor.shape)

    @property
    def active(self) -> FakeDevice:
        """The device that is current."""
        return self.family[self.device_index]

    # --- operators ---

    def operators(self, program: Program) -> Operators:
        """`mix` for every task: device tasks queue their work on the current stream, host tasks do it at once."""
        immediate = mix_for(program)
        kinds = program.tensor_named
        places = zip(program.tasks, of_tasks(program), strict=True)
        self.device_of.update({task.name: (device, crosses(task, program)) for task, device in places})

        def operator(task: Task) -> Callable[..., Any]:
            compute = immediate(task)
            returned = [n for entry in task.writes for n in entry.tensors if kinds[n].kind in (Kind.VALUE, Kind.INPUT)]
            on_host = [kinds[name].device == "cpu" for name in returned]

            def call(*positional: Any, **keywords: Any) -> Any:
                assert task.host or self.active is self.named(self.device_of[task.name][0]), f"{task.name} found another device current"
                shapes = self._results(compute(*_apply(positional, torch.clone), **_apply(keywords, torch.clone)))
                made = [self.allocate(s.shape, s.dtype, host=host) for s, host in zip(shapes, on_host, strict=True)]
                arguments, named = _apply(positional, self.pointer_to), _apply(keywords, self.pointer_to)
                targets = [self.pointer_to(tensor) for tensor in made]

                def work() -> None:
                    for target, result in zip(targets, self._results(compute(*arguments, **named)), strict=True):
                        target.copy_(result)

                if task.host:
                    work()
                else:
                    self.put(self.active.current, work)
                return (made[0] if len(made) == 1 else tuple(made)) if made else None

            return call

        return operator

    @staticmethod
    def _results(value: Any) -> list[torch.Tensor]:
        return [] if value is None else list(value) if isinstance(value, tuple | list) else [value]

    def run_copy(self, call: Call, tensors: Any, run_device: torch.device, lane: str = "") -> tuple[torch.Tensor, ...]:
        """Stands in for `returned.run_copy`."""
        source = evaluate(call.positional[0], tensors)
        target = None if call.returns else evaluate(dict(call.keywords)["out"], tensors)
        result = self._copy(call, source, target)
        return (result,) if call.returns else ()

    def copy_call(self, call: Call, location: torch.device, lane: str) -> Callable[..., Any]:
        """Stands in for `launch.copy_call`."""

        def copy(*source: torch.Tensor, out: torch.Tensor | None = None, **named: torch.Tensor) -> Any:
            (of,) = (*source, *named.values())
            return self._copy(call, of, out)

        return copy

    def _copy(self, call: Call, source: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
        device, ends = self.device_of.get(call.task, ("", None))
        assert call.host or not ends or self.active is self.named(device), f"{call.task} found another device current"
        here, there = self.active, self.named(ends[1]) if ends else self.active
        if here is not there:  # PyTorch orders the current streams of both devices, before and after
            self._order(there.current, here.current)
        if target is None:
            host = call.returns[0].device == "cpu"
            target = self.allocate(source.shape, source.dtype, host=host, on=there, first=here.current)
        to, of = self.pointer_to(target), self.pointer_to(source)

        def work() -> None:
            to.copy_(of)

        if call.host:
            work()
        elif here is there:
            self.put(here.current, work)
        elif self.reach:
            self.put(here.current, work)
            self._order(here.current, there.current)
        else:
            staged = torch.empty_like(to)
            self.put(here.current, partial(staged.copy_, of))
            self._order(here.current, there.current)
            self.put(there.current, partial(to.copy_, staged))
        return target

    def _order(self, earlier: FakeStream, later: FakeStream) -> None:
        mark = Mark()
        self.put(earlier, mark)
        self.put(later, (mark,))


def _apply(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _apply(item, function) for key, item in value.items()}
    return type(value)(_apply(item, function) for item in value) if isinstance(value, tuple | list) else value


def ensure_nothing_held(device: FakeDevice) -> None:
    """All memory of the device has been given back."""
    if len(device.free) < len(device.blocks):
        gc.collect()
    assert len(device.free) == len(device.blocks), "memory is still held after close() and after the results are gone"


standing_in: list[FakeDevice] = []
"""The built-in copy goes to the last of these, while there is one, in tests that use the fixture `copies`."""


def fake(seed: int = 0, pace: float = 0.3) -> FakeDevice:
    """A device that copies go to."""
    standing_in.append(FakeDevice(seed, pace))
    return standing_in[-1]
