"""Clocks: the steps of a schedule, played for two runs back to back, become what each task has seen of every lane.

A lane counts what is launched on it: that is a task's *position*. What a point has *seen* of another lane is the highest position
there that is certainly finished when the point is reached. It grows only where a lane waits, so `earlier` happens before `later` iff

    on one lane:     position[earlier] < position[later]
    on two lanes:    seen[later][lane of earlier] >= position[earlier]

These are vector clocks (Lamport 1978, https://doi.org/10.1145/359545.359563; Fidge 1988; Mattern 1989), one number for the earlier side
and a vector for the later, as in FastTrack (Flanagan and Freund 2009, https://doi.org/10.1145/1542476.1542490). The host is a lane too.

What two runs of one runner share: the lanes, so their order goes on; `exit` of the first precedes `entry` of the second, both on main;
and a run returns only when its host lane is done, so all of the second run is issued after the host tasks of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from typing_extensions import assert_never

from streamgraph.model import HOST
from streamgraph.schedule import HostWait, Lane, Launch, Record, RecordStream, Release, Step, Wait

Seen: TypeAlias = tuple[int, ...]
"""Per lane, the highest position that is finished."""
RUNS = 2


@dataclass(frozen=True, slots=True)
class Point:
    """A place on a lane, and what is finished when the lane gets there."""

    lane: int
    position: int
    seen: Seen

    def follows(self, lane: int, position: int) -> bool:
        """Whether what was launched at `position` of `lane` is finished here, or is what stands here."""
        return position <= (self.position if lane == self.lane else self.seen[lane])


@dataclass(frozen=True, slots=True)
class Clocks:
    """Both runs, played. Tasks are numbered by declaration; task t of the second run is `t + tasks`.

    `lane` is -1 for a task that is not launched. `entry`, `exit` and `host` are the pseudo-tasks of the first run. `freed` tells for each
    release step what the allocator knows to be finished when it takes the first run's memory back, in that run or the next. `ends` are
    the lanes when the first run is issued, and `recorded` the lanes that it named in `record_stream`, by storage.
    """

    tasks: int
    lanes: tuple[str, ...]
    lane: list[int]
    position: list[int]
    seen: list[Seen]
    entry: Point
    exit: Point
    host: Point
    freed: Mapping[int, Point]
    ends: tuple[Point, ...]
    recorded: Mapping[str, tuple[int, ...]]

    def point(self, task: int) -> Point:
        """Where a task of either run stands."""
        return Point(self.lane[task % self.tasks], self.position[task], self.seen[task])

    def ordered(self, earlier: int, later: int) -> bool:
        """Whether the one task is finished before the other starts."""
        lane = self.lane[earlier % self.tasks]
        if lane == self.lane[later % self.tasks]:
            return self.position[earlier] < self.position[later]
        return self.seen[later][lane] >= self.position[earlier]

    def handed(self, storage: str, lane: int) -> Point:
        """What is finished when an output of lane `lane` comes back to the allocator, if the caller drops it right after the run."""
        end = self.ends[lane]
        return Point(lane, end.position, tail(end.seen, [self.ends[other] for other in self.recorded.get(storage, ())]))


def tail(seen: Seen, recorded: Sequence[Point]) -> Seen:
    """`seen`, and all that had been issued on the recorded lanes: the allocator records the *tail* of each of them at the free."""
    for point in recorded:
        seen = tuple(map(max, seen, _stamp(point.seen, point.lane, point.position)))
    return seen


def _stamp(seen: Seen, lane: int, position: int) -> Seen:
    return (*seen[:lane], position, *seen[lane + 1 :])


def play(steps: Sequence[Step], lanes: Sequence[Lane], task_number: Mapping[str, int]) -> Clocks:
    """The clocks of all tasks, pseudo-tasks and releases. Steps that name nothing known do nothing here; the structure check names them."""
    names = tuple(dict.fromkeys([*(lane.name for lane in lanes), HOST]))
    lane_number = {name: number for number, name in enumerate(names)}
    host, count = lane_number[HOST], len(task_number)
    lane_of, positions = [-1] * count, [0] * (RUNS * count)
    nothing: Seen = (0,) * len(names)
    seen_by: list[Seen] = [nothing] * (RUNS * count)
    at, known = [0] * len(names), [nothing] * len(names)  # of each lane, now
    freed: dict[int, Point] = {}
    recorded_before: dict[str, tuple[int, ...]] = {}
    events_before: dict[str, Seen] = {}
    points: list[Point] = []
    ends: tuple[Point, ...] = ()
    for run in range(RUNS):
        events: dict[str, Seen] = {}
        recorded: dict[str, tuple[int, ...]] = {}
        at[0] += 1
        points.append(Point(0, at[0], known[0]))
        for number, step in enumerate(steps):
            match step:
                case Launch(name, lane_name):
                    lane, task = lane_number.get(lane_name, -1), task_number.get(name, -1)
                    if lane >= 0:
                        at[lane] += 1
                        index = task + run * count
                        if task >= 0 and positions[index] == 0:
                            lane_of[task], positions[index], seen_by[index] = lane, at[lane], known[lane]
                case Record(event, lane_name):
                    lane = lane_number.get(lane_name, -1)
                    if lane >= 0:
                        events[event] = _stamp(known[lane], lane, at[lane])
                case Wait(event, lane_name):
                    lane, clock = lane_number.get(lane_name, -1), events.get(event)
                    if lane >= 0 and lane != host and clock is not None:
                        known[lane] = tuple(map(max, known[lane], clock))
                case HostWait(event, previous):
                    clock = (events_before if previous else events).get(event)
                    if clock is not None:
                        known[host] = tuple(map(max, known[host], clock))
                case Release(storage, lane_name, previous):
                    lane = lane_number.get(lane_name, -1)
                    others = (recorded_before if previous else recorded).get(storage, ())
                    if lane >= 0 and run == previous:
                        tails = [Point(other, at[other], known[other]) for other in others]
                        freed[number] = Point(lane, at[lane], tail(known[lane], tails))
                case RecordStream(storage, lane_name):
                    lane = lane_number.get(lane_name, -1)
                    if lane >= 0:
                        recorded[storage] = (*recorded.get(storage, ()), lane)
                case _:
                    assert_never(step)
        at[0] += 1
        points.append(Point(0, at[0], known[0]))
        at[host] += 1
        points.append(Point(host, at[host], known[host]))
        if run == 0:
            ends = tuple(Point(lane, at[lane], known[lane]) for lane in range(len(names)))
            recorded_before = recorded
        done = _stamp(known[host], host, at[host])
        known = [tuple(map(max, clock, done)) for clock in known]
        events_before = events
    entry, leave, caller = points[:3]
    return Clocks(count, names, lane_of, positions, seen_by, entry, leave, caller, freed, ends, recorded_before)
