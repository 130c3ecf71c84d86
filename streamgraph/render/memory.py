"""Memory over time: a Schedule and its Timeline become the life of each storage, and how many bytes are live when.

A value lives from the start of the task that makes it until its lane comes to the release, which is when the caching allocator may hand
its memory out again on that lane. Inputs, buffers and ring slots live throughout, and so do outputs and what is dropped in the next run.
Sizes are those of declared types: a value without a type counts as nothing, and is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamgraph.model import DEVICE, HOST, Kind, Program
from streamgraph.schedule import HostWait, Launch, Release, Schedule, Wait
from streamgraph.simulate import Timeline
from streamgraph.storages import Storage


@dataclass(frozen=True, slots=True)
class Life:
    """One storage, by its number in `schedule.accesses.storages`: live from `start` to `end` in microseconds.

    `bytes` is None where no type tells. `place` is where it lies: see `places`.
    """

    storage: int
    start: float
    end: float
    bytes: int | None
    place: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Live bytes as steps: `bytes[i]` from `times[i]` on, until `times[i + 1]`."""

    times: tuple[float, ...]
    bytes: tuple[int, ...]

    @property
    def peak(self) -> tuple[float, int]:
        """When the most bytes are live for the first time, and how many."""
        most = max(self.bytes, default=0)
        return (self.times[self.bytes.index(most)], most) if self.bytes else (0.0, 0)


def places(program: Program) -> tuple[str, ...]:
    """The memories that a program has to do with: its GPUs by name ("device" if it names none), then "host"."""
    return (*(program.devices or (DEVICE,)), HOST)


def place_of(storage: Storage, program: Program) -> str:
    """In which of them a storage lies; for a resource, which has no bytes, the first."""
    if storage.host:
        return HOST
    tensor = program.tensor_named.get(storage.tensor)
    return tensor.device if tensor is not None and tensor.device in program.devices else places(program)[0]


def lives(schedule: Schedule, timeline: Timeline) -> tuple[Life, ...]:
    """The life of every storage but resources, in the order of the storages."""
    ends = _releases(schedule, timeline)
    named, tasks = schedule.program.tensor_named, schedule.program.tasks
    found: list[Life] = []
    for number, storage in enumerate(schedule.accesses.storages):
        if storage.kind is Kind.RESOURCE:
            continue
        start, end = 0.0, timeline.makespan
        if storage.producer is not None:
            made = timeline.time_of.get(tasks[storage.producer].name)
            if made is None:
                continue  # a schedule that leaves a task out makes nothing there
            start = made.start
            if number not in schedule.accesses.output_storages:
                end = max(made.end, ends.get(storage.label, end))
        kind = named[storage.tensor].type
        found.append(Life(number, start, end, None if kind is None else kind.bytes, place_of(storage, schedule.program)))
    return tuple(found)


def curve(found: Iterable[Life], place: str) -> Curve:
    """How many bytes of that memory are live when."""
    changes: dict[float, int] = {}
    for life in found:
        if life.place == place and life.bytes:
            changes[life.start] = changes.get(life.start, 0) + life.bytes
            changes[life.end] = changes.get(life.end, 0) - life.bytes
    times = sorted(changes)
    live, total = [], 0
    for time in times:
        total += changes[time]
        live.append(total)
    return Curve(tuple(times), tuple(live))


def size(count: float) -> str:
    """Bytes with a binary unit and three digits: `412 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} TiB" if count < 999.5 else f"{count:,.0f} TiB"


def _releases(schedule: Schedule, timeline: Timeline) -> dict[str, float]:
    """When each value's lane comes to its release, by the storage's label."""
    clock: dict[str, float] = {}
    until = {wait.step: wait.until for wait in timeline.waits}
    found: dict[str, float] = {}
    for number, step in enumerate(schedule.steps):
        match step:
            case Launch(task, lane):
                clock[lane] = max(clock.get(lane, 0.0), timeline.time_of[task].end)
            case Wait(_, lane, _):
                clock[lane] = max(clock.get(lane, 0.0), until.get(number, 0.0))
            case HostWait():
                clock[HOST] = max(clock.get(HOST, 0.0), until.get(number, 0.0))
            case Release(storage, lane, False):
                found[storage] = clock.get(lane, 0.0)
    return found
