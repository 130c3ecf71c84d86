"""Stopwatch: when each task of a run began and ended. Operators become operators between two marks; `watched` executors call them.

On the CPU, and for host tasks everywhere, a mark is the host's clock on the thread that calls. For the other tasks on a GPU it is a timing
event, recorded on the stream that is current for the task, and read when the run is over. Runs that nobody watches have no marks and no
such events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from streamgraph.calls import gpus
from streamgraph.executors.annotate import named
from streamgraph.executors.device import Device
from streamgraph.executors.watched import copy_call
from streamgraph.model import Program
from streamgraph.operators import Operator


@dataclass(frozen=True, slots=True)
class Span:
    """When a task ran, in microseconds from the begin of its run. `issued`: when the host called it, if that is not the start."""

    task: str
    start: float
    end: float
    issued: float | None


@dataclass(frozen=True, slots=True)
class Lap:
    """One run: `spans` in the order in which tasks were done being issued, and the time until all of it was done."""

    spans: tuple[Span, ...]
    makespan: float


class DeviceClock(Protocol):
    """A device's time, by marks in its streams."""

    def reset(self) -> None:
        """Let the device come to rest, and count from now on."""
        ...

    def mark(self) -> Any:
        """A mark at the end of what the current stream holds."""
        ...

    def finish(self) -> None:
        """Block the host until everything is done."""
        ...

    def read(self, mark: Any) -> float:
        """Microseconds from `reset` to the mark, which the device has passed."""
        ...


class CudaClock:
    """The clock of CUDA devices: those of a program, or the one of the run. A mark belongs to the device that is current for a task."""

    def __init__(self, devices: Sequence[int]) -> None:
        self.devices = tuple(devices)
        self._zero: dict[int, torch.cuda.Event] = {}

    def reset(self) -> None:
        """See `DeviceClock`. The events are done when this returns, so the host's clock and the devices' begin together."""
        self.finish()
        self._zero = {device: self._at(device) for device in self.devices}
        for event in self._zero.values():
            event.synchronize()

    def mark(self) -> tuple[int, torch.cuda.Event]:
        """See `DeviceClock`."""
        device = torch.cuda.current_device() if len(self.devices) > 1 else self.devices[0]
        return device, self._at(device)

    def _at(self, device: int) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        return event

    def finish(self) -> None:
        """See `DeviceClock`."""
        for device in self.devices:
            torch.cuda.synchronize(device)

    def read(self, mark: tuple[int, torch.cuda.Event]) -> float:
        """See `DeviceClock`."""
        device, event = mark
        return float(self._zero[device].elapsed_time(event)) * 1e3


def clock_of(device: Device, program: Program) -> DeviceClock | None:
    """The clock of the devices that the program runs on; None where tasks are done when their calls return."""
    return CudaClock(gpus(program, device.location)) if device.location.type == "cuda" else None


class Stopwatch:
    """Times the tasks of one run after another: `begin`, the run, `end`. With `names`, tasks show under their names in profilers."""

    def __init__(self, clock: DeviceClock | None, *, names: bool = False) -> None:
        self.clock, self.names = clock, names
        self._marks: list[tuple[str, Any, Any, float | None]] = []
        self._begun = 0.0

    def begin(self) -> None:
        """A run begins."""
        self._marks = []
        if self.clock is not None:
            self.clock.reset()
        self._begun = time.perf_counter()

    def end(self) -> Lap:
        """The run has returned: wait until it is done, and read the marks."""
        if self.clock is not None:
            self.clock.finish()
        makespan = self._now()
        spans = tuple(Span(task, self._read(start), self._read(end), issued) for task, start, end, issued in self._marks)
        self._marks = []
        return Lap(spans, max([makespan, *(span.end for span in spans)]))

    def watched(self, operator: Operator, location: torch.device) -> Operator:
        """The operator between two marks, for `watched_executor`."""
        call = operator.call
        function: Callable[..., Any] = partial(copy_call, call, location) if call.is_copy else operator.function
        if self.names:
            function = named(function, call.task, location)
        on_host = call.host or self.clock is None
        return replace(operator, function=partial(self._timed, function, call.task, on_host), call=replace(call, is_copy=False))

    def _timed(self, function: Callable[..., Any], task: str, on_host: bool, *positional: Any, **keywords: Any) -> Any:
        if on_host:
            begun = self._now()
            result = function(*positional, **keywords)
            self._marks.append((task, begun, self._now(), None))
            return result
        assert self.clock is not None
        issued, first = self._now(), self.clock.mark()
        result = function(*positional, **keywords)
        self._marks.append((task, first, self.clock.mark(), issued))  # one thread per lane may do so: appending is atomic
        return result

    def _now(self) -> float:
        return (time.perf_counter() - self._begun) * 1e6

    def _read(self, mark: Any) -> float:
        return mark if isinstance(mark, float) else max(0.0, self.clock.read(mark)) if self.clock is not None else 0.0
