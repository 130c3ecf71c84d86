"""Switches: which streams have to be made current before each launch of a schedule, and which at its end.

A lane is a stream of one device, and there its tasks find it current. A copy to another device runs on the lane too, but PyTorch also looks
at the stream that is current on the device it writes to: it orders the two both ways around the copy, and takes new memory from that
stream's. So that this orders nothing that the schedule does not, each lane has a stream on such a device for this alone, where no task ever
runs. What is allocated there serves that lane only, so it is released by the rules for the lane's own memory; and since others may draw the
same stream from PyTorch's pool, it first follows the lane, which knows that all uses are over. Lane `main` has on each device the stream
that is current there when `run` is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from streamgraph.devices import crosses, first_device
from streamgraph.model import HOST, MAIN, Program
from streamgraph.schedule import Launch, Schedule
from streamgraph.storages import Accesses

Place: TypeAlias = tuple[str, str]
"""(lane, device): the stream that a lane has on a device."""


@dataclass(frozen=True, slots=True)
class Switches:
    """What to make current, in this order: before a launch, by step number, and at the end, when the caller's streams are current again.

    `targets` says for each copy between devices where it writes, and `received` for the values that such copies make, by storage number,
    whose memory that is. Host tasks run with `main` current.
    """

    before: Mapping[int, tuple[Place, ...]]
    at_end: tuple[Place, ...]
    targets: Mapping[str, str]
    received: Mapping[int, Place]


class Current:
    """What one thread has current while it issues: on each device whose stream is it, as far as that is known (`now`), and which device."""

    def __init__(self, now: Iterable[Place] = (), active: str | None = None) -> None:
        self.now, self.active = {device: (lane, device) for lane, device in now}, active

    def changes(self, lane: str, own: str, target: str | None = None) -> tuple[Place, ...]:
        """What to make current for a launch on a lane of device `own`, or for a copy from there to `target`; from here on it is."""
        found: list[Place] = []
        if target is not None and self.now.get(target) != (lane, target):
            found.append((lane, target))
        if found or self.now.get(own) != (lane, own) or self.active != own:
            found.append((lane, own))
        for place in found:
            self.now[place[1]], self.active = place, place[1]
        return tuple(found)

    def back(self, first: str) -> tuple[Place, ...]:
        """What to make current so that all streams are the caller's again, and `first` is the current device."""
        found = [(MAIN, device) for device, place in self.now.items() if place != (MAIN, device) and device != first]
        if found or self.now[first] != (MAIN, first) or self.active != first:
            found.append((MAIN, first))
        return tuple(found)


def targets_of(program: Program) -> dict[str, str]:
    """Where each copy between devices writes, by its name."""
    if len(program.devices) < 2:
        return {}
    return {task.name: ends[1] for task in program.tasks if (ends := crosses(task, program)) is not None}


def received_by(program: Program, accesses: Accesses, lane_of: Mapping[str, str]) -> dict[int, Place]:
    """Whose memory the values are that copies between devices make, by storage number."""
    targets = targets_of(program)
    return {
        number: (lane_of[name], targets[name])
        for number, storage in enumerate(accesses.storages)
        if targets and storage.producer is not None and (name := program.tasks[storage.producer].name) in targets
    }


def switches(schedule: Schedule) -> Switches:
    """The fewest changes of the current stream and device that one issuing thread needs."""
    first, program = first_device(schedule.program), schedule.program
    current = Current(((MAIN, device) for device in (first, *program.devices)), first)
    targets = targets_of(program)
    before: dict[int, tuple[Place, ...]] = {}
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Launch):
            lane = MAIN if step.lane == HOST else step.lane
            changes = current.changes(lane, schedule.device_of[lane], targets.get(step.task))
            if changes:
                before[number] = changes
    return Switches(before, current.back(first), targets, received_by(program, schedule.accesses, schedule.lane_of))


def user(schedule: Schedule, number: int, lane: str) -> Place:
    """Whose stream a `record_stream` of that storage for `lane` means: for an output, the caller's on the device where the output lies."""
    own = schedule.device_of[lane]
    if lane != MAIN or not schedule.has_devices or number not in schedule.accesses.output_storages:
        return lane, own
    return lane, schedule.program.tensor_named[schedule.accesses.storages[number].tensor].device
