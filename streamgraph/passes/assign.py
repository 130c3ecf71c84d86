"""Assign: Work and a policy become an issue order and a lane for every task, with names, priorities and estimated times.

The policy chooses (`passes/policies`); what holds for all of them is here: the bound on lanes, pins, the host, outputs on `main`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from streamgraph.model import HOST, MAIN, Program
from streamgraph.passes.policies import POLICIES, PolicyName
from streamgraph.passes.work import FREE, HANDOVER, ON_HOST, Placement, Work, work_of
from streamgraph.schedule import Lane
from streamgraph.storages import Accesses

if TYPE_CHECKING:
    import networkx as nx

MOST_LANES = 8  # graph replay gains up to eight streams on an H200 and hardly beyond (docs/gpu.md)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`order`: tasks in issue order. `lane_of`: index into `lanes`, by declaration index; the host, if used, is the last lane.

    `start` and `finish` are estimates in microseconds, by declaration index.
    """

    order: tuple[int, ...]
    lane_of: tuple[int, ...]
    lanes: tuple[Lane, ...]
    start: tuple[float, ...]
    finish: tuple[float, ...]

    @property
    def makespan(self) -> float:
        """The estimated end of the last task."""
        return max(self.finish, default=0.0)


def assign(
    program: Program,
    graph: nx.DiGraph[int],
    accesses: Accesses,
    costs: Sequence[float],
    streams: int | Literal["auto"],
    order: Literal["declared", "auto"],
    policy: PolicyName = "critical_path",
) -> Assignment:
    """The lanes and the issue order of one policy. `streams` bounds the lanes that unpinned tasks may use, `main` included ("auto": 8);
    pinned lanes come on top."""
    return assign_work(work_of(program, graph, accesses, costs, order), MOST_LANES if streams == "auto" else streams, policy)


def assign_work(work: Work, limit: int, policy: PolicyName) -> Assignment:
    """What the policy makes of the work, on at most `limit` lanes for its free tasks."""
    return settle(work, fold(work, POLICIES[policy](work, limit), limit))


def fold(work: Work, placement: Placement, limit: int) -> Placement:
    """The same placement on at most `limit` streams. Streams stay whole: those that do not overlap in time follow each other.

    Streams are taken by the time at which they could start if there were lanes enough. Each goes to the lane that has become free last but in
    time, which wastes least (interval colouring); where none has, to the one that becomes free first.
    """
    if max(placement.stream, default=-1) < limit:
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
    free_at = [0.0] * limit
    lane_of: dict[int, int] = {}
    for stream, (start, end, busy) in sorted(span.items(), key=lambda item: (item[1][0], item[0])):
        in_time = [lane for lane in range(limit) if free_at[lane] <= start]
        lane = max(in_time, key=lambda lane: (free_at[lane], -lane)) if in_time else min(range(limit), key=free_at.__getitem__)
        free_at[lane] = max(end, free_at[lane] + busy)
        lane_of[stream] = lane
    return Placement(placement.order, tuple(lane_of.get(stream, -1) for stream in placement.stream))


def settle(work: Work, placement: Placement) -> Assignment:
    """The assignment that a placement stands for: lanes with names and priorities, and when each task would run."""
    streams = [*range(max(placement.stream, default=0) + 1)]
    lane_of_stream = {stream: len(work.lanes) + stream - 1 if stream else 0 for stream in _without_gaps(work, placement, streams)}
    number = {stream: index for index, stream in enumerate(lane_of_stream)}
    raise NotImplementedError


