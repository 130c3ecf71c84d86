"""Lane steps: the steps of a Schedule, dealt out to the threads that issue them.

The schedule's issue order is one thread's. With several, two things need a step of their own: a lane that has come to a certain place in
that order, and a release which has to wait until other lanes have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from streamgraph.model import HOST, MAIN
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Wait


@dataclass(frozen=True, slots=True)
class Passed:
    """The lane has issued everything that stands before step `number`."""

    number: int
    lane: str


@dataclass(frozen=True, slots=True)
class RecordedRelease:
    """Tell the allocator about these lanes, once each of them has passed step `number`; then release."""

    number: int
    storage: str
    lanes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits of one lane with nothing in between; they count as the last of them."""

    events: tuple[str, ...]


LaneStep: TypeAlias = "Launch | Record | Waits | HostWait | Release | Passed | RecordedRelease"


def by_lane(schedule: Schedule) -> tuple[dict[str, tuple[tuple[int, LaneStep], ...]], tuple[tuple[int, str], ...]]:
    """Each lane's steps with their place in issue order; and (storage, lane) of every `record_stream` of a value that the run hands out.

    `main` comes first, and lanes without a step are left out. Host waits belong to lane `host`. Waits that follow each other are one step.
    A `record_stream` is not a step of the lane that it names: the allocator looks at its streams when the value is dropped, so it is the
    business of the lane that drops it.
    """
    recorded: dict[str, dict[str, None]] = {}
    for step in schedule.steps:
        if isinstance(step, RecordStream):
            recorded.setdefault(step.storage, {})[step.lane] = None
    found: dict[str, list[tuple[int, LaneStep]]] = {MAIN: []}
    for number, step in enumerate(schedule.steps):
        if isinstance(step, RecordStream):
            continue
        if isinstance(step, Release) and not step.previous and step.storage in recorded:
            lanes = tuple(recorded.pop(step.storage))
            for lane in lanes:
                found.setdefault(lane, []).append((number, Passed(number, lane)))
            found.setdefault(step.lane, []).append((number, RecordedRelease(number, step.storage, lanes)))
        elif isinstance(step, Wait):
            steps = found.setdefault(step.lane, [])
            before = steps.pop()[1] if steps and isinstance(steps[-1][1], Waits) else None
            steps.append((number, Waits((*(before.events if isinstance(before, Waits) else ()), step.event))))
        else:
            found.setdefault(HOST if isinstance(step, HostWait) else step.lane, []).append((number, step))
    numbers = {storage.label: number for number, storage in enumerate(schedule.accesses.storages)}
    kept = tuple((numbers[storage], lane) for storage, lanes in recorded.items() for lane in lanes)
    return {lane: tuple(steps) for lane, steps in found.items()}, kept
