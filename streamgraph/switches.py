"""Switches: which streams have to be made current before each launch of a schedule, and which at its end.

A lane is a stream of one device, and there its tasks find it current. A copy to another device runs on the lane too, but PyTorch also looks
at the stream that is current on the device it writes to: it orders the two both ways around the copy, and takes new memory from that
stream's. So that this orders nothing that the schedule does not, each lane has a stream on such a device for this alone, where no task ever
runs. What is allocated there serves that lane only, so it is released by the rules for the lane's own memory; and since others may draw the
same stream from PyTorch's pool, it first follows the lane, which knows that all uses are over. Lane `main` has on each device the stream
that is current there when `run` is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from streamgraph.devices import crosses, first_device
from streamgraph.model import HOST, MAIN
from streamgraph.schedule import Launch, Schedule

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


def switches(schedule: Schedule) -> Switches:
    """The fewest changes of the current stream and device that one issuing thread needs."""
    first, program = first_device(schedule.program), schedule.program
    now = {device: (MAIN, device) for device in (first, *program.devices)}
    active = first
    before: dict[int, tuple[Place, ...]] = {}
    targets: dict[str, str] = {}
    for number, step in enumerate(schedule.steps):
        if not isinstance(step, Launch):
            continue
        lane = MAIN if step.lane == HOST else step.lane
        own = schedule.device_of[lane]
        changes: list[Place] = []
        if schedule.has_devices:
            ends = crosses(program.tasks[program.index_of_task[step.task]], program)
            if ends is not None:
                targets[step.task] = ends[1]
                if now[ends[1]] != (lane, ends[1]):
                    changes.append((lane, ends[1]))
        if changes or now[own] != (lane, own) or active != own:
            changes.append((lane, own))
        for place in changes:
            now[place[1]], active = place, place[1]
        if changes:
            before[number] = tuple(changes)
    at_end = [(MAIN, device) for device, place in now.items() if place != (MAIN, device) and device != first]
    if at_end or now[first] != (MAIN, first) or active != first:
        at_end.append((MAIN, first))
    received = {
        number: (schedule.lane_of[name], targets[name])
        for number, storage in enumerate(schedule.accesses.storages)
        if targets and storage.producer is not None and (name := program.tasks[storage.producer].name) in targets
    }
    return Switches(before, tuple(at_end), targets, received)


def user(schedule: Schedule, number: int, lane: str) -> Place:
    """Whose stream a `record_stream` of that storage for `lane` means: for an output, the caller's on the device where the output lies."""
    own = schedule.device_of[lane]
    if lane != MAIN or not schedule.has_devices or number not in schedule.accesses.output_storages:
        return lane, own
    return lane, schedule.program.tensor_named[schedule.accesses.storages[number].tensor].device
