"""Left over: what outlives a run on a device's streams, whoever issued it: values that it left behind, and host inputs still read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from streamgraph.executors.device import Device, Event, Stream, same
from streamgraph.model import HOST, Kind
from streamgraph.schedule import Launch, Record, Schedule


def drop_pending(
    schedule: Schedule, device: Device, owners: Callable[[int, str], Sequence[Stream]], pending: dict[int, torch.Tensor], last: Stream,
    event: Event, only: str | None = None,
) -> None:  # fmt: skip
    """Drop left-over values once the lanes that allocated them follow `last`, lane 0's stream, and with it everything that used them.

    `pending` are values by storage number, `event` one that nobody waits for, `only` the lane whose values are meant (None: all). `owners`
    says whose the memory of a value is, that the given lane made.
    """
    on_host = False
    streams: list[Stream] = []
    dropped: list[int] = []
    for number in pending:
        storage = schedule.accesses.storages[number]
        assert storage.producer is not None
        lane = schedule.lane_of[schedule.program.tasks[storage.producer].name]
        if only in (None, lane):
            dropped.append(number)
            on_host |= storage.host or lane == HOST
            streams += (owner for owner in owners(number, lane) if not any(same(owner, other) for other in streams))
    if dropped:
        device.record(event, last)
    for stream in streams:
        if not same(stream, last):
            device.wait(event, stream)
    if on_host:
        event.synchronize()
    for number in dropped:
        del pending[number]


def inputs_free(device: Device, main: Stream, events: tuple[Event, ...], on_main: bool) -> Callable[[], None]:
    """A call that blocks the host until no device task of a run reads a bound host input any more; `last_records` says on what."""

    def wait() -> None:
        for event in events:
            event.synchronize()
        if on_main:
            # No event of the schedule stands behind the last reader on lane 0, so its tail is recorded now: later work is waited for
            # too, but no run pays for a call that is never made.
            tail = device.new_event()
            device.record(tail, main)
            tail.synchronize()

    return wait


def last_records(schedule: Schedule) -> tuple[tuple[str, ...], bool]:
    """The events behind the last device task of each lane that touches a host input, and whether lane 0 has such a task without one."""
    storages = schedule.accesses.storages
    index, of_task = schedule.program.index_of_task, schedule.accesses.of_task
    open_lanes: dict[str, None] = {}
    found: dict[str, str] = {}
    for step in schedule.steps:
        if isinstance(step, Launch) and step.lane != HOST:
            touched = (storages[access.storage] for access in of_task[index[step.task]])
            if any(storage.host and storage.kind is Kind.INPUT for storage in touched):
                open_lanes[step.lane] = None
        elif isinstance(step, Record) and step.lane in open_lanes:
            found[step.lane] = step.event
            del open_lanes[step.lane]
    # A side lane always has one: exit follows its last task.
    return tuple(event for lane, event in found.items() if lane not in open_lanes), bool(open_lanes)
