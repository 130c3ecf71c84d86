"""Assign: Work and a policy become an issue order and a lane for every task, with names, priorities and estimated times.

The policy chooses (`passes/policies`); what holds for all of them is here: the bound on lanes, pins, the host, outputs on `main`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from streamgraph.hazards import Dag
from streamgraph.model import HOST, Program
from streamgraph.passes.policies import POLICIES, PolicyName
from streamgraph.passes.work import FREE, HANDOVER, ON_HOST, Placement, Work, work_of
from streamgraph.schedule import Lane
from streamgraph.storages import Accesses

MOST_LANES = 8  # of free tasks, where the host issues every step; `portfolio` allows more in a CUDA graph


@dataclass(frozen=True, slots=True)
class Assignment:
    """`order`: tasks in issue order. `lane_of`: index into `lanes`, by declaration index; the host, if used, is the last lane.

    `start` and `finish` are estimates in microseconds, by declaration index. `high` is whether a policy chose the lanes of high priority;
    `urgent` are the tasks whose launches shall have it.
    """

    order: tuple[int, ...]
    lane_of: tuple[int, ...]
    lanes: tuple[Lane, ...]
    start: tuple[float, ...]
    finish: tuple[float, ...]
    high: bool = False
    urgent: tuple[int, ...] = ()

    @property
    def makespan(self) -> float:
        """The estimated end of the last task."""
        return max(self.finish, default=0.0)


def assign(
    program: Program,
    dag: Dag,
    accesses: Accesses,
    costs: Sequence[float],
    streams: int | Literal["auto"],
    order: Literal["declared", "auto"],
    policy: PolicyName = "critical_path",
) -> Assignment:
    """The lanes and the issue order of one policy. `streams` bounds the lanes that unpinned tasks may use, `main` included ("auto": 8);
    pinned lanes come on top."""
    return assign_work(work_of(program, dag, accesses, costs, order), MOST_LANES if streams == "auto" else streams, policy)


def assign_work(work: Work, limit: int, policy: PolicyName) -> Assignment:
    """What the policy makes of the work, on at most `limit` lanes of each device for its free tasks."""
    return settle(work, fold(work, by_device(work, POLICIES[policy](work, limit)), limit))


def by_device(work: Work, placement: Placement) -> Placement:
    """The same placement with a stream for each device where one has tasks of several; stream 0 is left to `main`'s device."""
    if not work.has_devices:
        return placement
    parts = sorted({(device, stream) for device, stream in zip(work.device, placement.stream, strict=True) if stream >= 0})
    first = 0 if parts and parts[0][0] == 0 else 1
    number = {part: place for place, part in enumerate(parts, first)}
    stream = tuple(number.get(part, -1) for part in zip(work.device, placement.stream, strict=True))
    return Placement(placement.order, stream, tuple(number[part] for part in parts if part[1] in placement.high))


def fold(work: Work, placement: Placement, limit: int) -> Placement:
    """The same placement on at most `limit` streams of each device. Streams stay whole: what does not overlap in time follows each other.

    Streams are taken by the time at which they could start if there were lanes enough. Each goes to the lane that has become free last but
    in time, which wastes least (interval colouring); where none has, to the one that becomes free first.
    """
    device_of = {stream: device for stream, device in zip(placement.stream, work.device, strict=True) if stream >= 0}
    streams = Counter(device_of.values()) if work.has_devices else {0: max(placement.stream, default=-1) + 1}
    if max(streams.values(), default=0) <= limit:
        return placement
    finish = [0.0] * len(work.costs)
    span: dict[int, list[float]] = {}
    for task in placement.order:
        start = max([finish[p] for p in work.earlier[task]], default=0.0)
        finish[task] = start + work.costs[task]
        stream = placement.stream[task]
        if stream >= 0:
            span.setdefault(stream, [start, 0.0, 0.0])
            span[stream][1] = max(span[stream][1], finish[task])
            span[stream][2] += work.costs[task]
    free_at = [0.0] * limit * (max(work.device) + 1)
    lane_of: dict[int, int] = {}
    for stream, (start, end, busy) in sorted(span.items(), key=lambda item: (item[1][0], item[0])):
        lanes = range(device_of[stream] * limit, (device_of[stream] + 1) * limit)
        in_time = [lane for lane in lanes if free_at[lane] <= start]
        lane = max(in_time, key=lambda lane: (free_at[lane], -lane)) if in_time else min(lanes, key=free_at.__getitem__)
        free_at[lane] = max(end, free_at[lane] + busy)
        lane_of[stream] = lane
    return Placement(placement.order, tuple(lane_of.get(stream, -1) for stream in placement.stream))  # no priorities: streams were mixed


def settle(work: Work, placement: Placement) -> Assignment:
    """The assignment that a placement stands for: lanes with names and priorities, and when each task would run.

    In a captured graph the launches of urgent tasks get the high priority, and no lane. Pinned tasks keep what their stream declares.
    """
    main_is_pinned = 0 in work.home
    used = sorted({stream for stream in placement.stream if stream >= 0} | ({0} if main_is_pinned or work.has_devices else set()))
    if not main_is_pinned:
        _outputs_first(work, placement, used)
    lane_of_stream = {stream: len(work.lanes) + index - 1 if index else 0 for index, stream in enumerate(used)}
    lanes = [*work.lanes, *_fresh(work, len(used) - 1)]
    host = len(lanes)
    lane_of = tuple(
        host if home == ON_HOST else lane_of_stream[stream] if home == FREE else home
        for home, stream in zip(work.home, placement.stream, strict=True)
    )
    urgent = tuple(task for task in work.urgent if work.home[task] == FREE) if work.captured and len(lanes) > 1 else ()
    chosen = [lane_of_stream[stream] for stream in placement.high if stream in lane_of_stream]
    for lane in chosen or ([_critical_lane(work, lane_of)] if len(used) > 1 and not urgent else []):
        if lane >= len(work.lanes):
            lanes[lane] = Lane(lanes[lane].name, "high")
    start, finish = _play(work, placement.order, lane_of, host)
    return Assignment(placement.order, lane_of, (*lanes, Lane(HOST)), start, finish, bool(chosen), urgent)


def _outputs_first(work: Work, placement: Placement, used: list[int]) -> None:
    """Put the stream that makes the most outputs first in `used`, which is `main`: each output made there saves a record_stream."""
    if not used:
        return
    made = dict.fromkeys(used, 0)
    for task in work.declared_results:
        if placement.stream[task] >= 0:
            made[placement.stream[task]] += 1
    others = {stream for task, stream in enumerate(placement.stream) if work.device[task] > 0}
    here = [stream for stream in used if stream not in others]
    best = max(here, key=lambda stream: (made[stream], stream not in placement.high, -stream))
    place = used.index(best)
    used[0], used[place] = used[place], used[0]


def _fresh(work: Work, count: int) -> list[Lane]:
    """Lanes s1, s2, ..., leaving out names that tasks are pinned to."""
    taken = {lane.name for lane in work.lanes}
    lanes: list[Lane] = []
    number = 1
    while len(lanes) < count:
        if f"s{number}" not in taken:
            lanes.append(Lane(f"s{number}"))
        number += 1
    return lanes


def _critical_lane(work: Work, lane_of: tuple[int, ...]) -> int:
    """The lane of free tasks that runs most of the longest path. Its kernels should not queue behind others: it gets high priority.

    `main` is the caller's stream, whose priority is the caller's.
    """
    share: dict[int, float] = {}
    task: int | None = max(range(len(lane_of)), key=lambda task: (work.bottom[task], -task), default=None)
    while task is not None:
        if work.home[task] == FREE:
            share[lane_of[task]] = share.get(lane_of[task], 0.0) + work.costs[task]
        task = max(work.later[task], key=lambda task: (work.bottom[task], -task), default=None)
    return max(share, key=lambda lane: (share[lane], -lane), default=0)


def _play(
    work: Work, order: tuple[int, ...], lane_of: tuple[int, ...], host: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """When each task would start and finish, if a handover between lanes took HANDOVER and nothing else cost time."""
    start, finish = [0.0] * len(order), [0.0] * len(order)
    free_at = [0.0, *[HANDOVER] * (host - 1), 0.0]  # a side lane begins with a wait for entry
    for task in order:
        lane = lane_of[task]
        time = free_at[lane]
        for p in work.earlier[task]:
            ready = finish[p] if lane_of[p] == lane or lane == host else finish[p] + HANDOVER
            if ready > time:
                time = ready
        start[task] = time
        free_at[lane] = finish[task] = time + work.costs[task]
    return tuple(start), tuple(finish)
