"""Moves: a Placement becomes the placements next to it that could shorten its critical path, the most promising first.

One move changes the lane of one task, or has one task issued earlier, together with what it still depends on. Only what holds the critical
path is moved: whatever else one changes, the path stays as long as it is (the idea of local search on critical blocks for job shops:
Nowicki and Smutnicki, "A fast taboo search algorithm for the job shop problem", Management Science 42(6), 1996).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from streamgraph.passes.work import FREE, Placement, Work


@dataclass(frozen=True, slots=True)
class Link:
    """A task of the critical path, and what held it: the task `after` (-1: none) on its lane, on another, or the issuing thread."""

    task: int
    held: Literal["lane", "wait", "issue", "start"]
    after: int


def moves(work: Work, placement: Placement, path: Sequence[Link], limit: int) -> Iterator[Placement]:
    """The neighbours that concern the critical path, from its end to its beginning."""
    if path:
        yield from _swapped_with_main(work, placement, placement.stream[path[-1].task])
    for link in reversed(path):
        depends = link.after in work.earlier[link.task]
        if link.held == "wait" or (link.held == "lane" and depends):
            # A handover: the two could share a lane. Without one, only other tasks could be in the way.
            yield from _onto(work, placement, link.task, _streams_of(placement, link.after))
            yield from _onto(work, placement, link.after, _streams_of(placement, link.task))
        elif link.held == "lane":
            if work.may_reorder:
                yield from _before(work, placement, link.task, placement.order.index(link.after))
            yield from _onto(work, placement, link.task, _streams(work, placement, link.task, limit))
            yield from _onto(work, placement, link.after, _streams(work, placement, link.after, limit))
        elif work.may_reorder:
            yield from _earlier(work, placement, link.task)


def all_moves(work: Work, placement: Placement, limit: int) -> Iterator[Placement]:
    """Every neighbour: each other stream as `main`, each task on each lane and at each earlier place in the issue order, or both."""
    for stream in sorted(set(placement.stream)):
        yield from _swapped_with_main(work, placement, stream)
    for task in work.free:
        yield from _onto(work, placement, task, _streams(work, placement, task, limit))
    if work.may_reorder:
        for index, task in enumerate(placement.order):
            for place in range(index - 1, -1, -1):
                for earlier in _before(work, placement, task, place):
                    yield earlier
                    yield from _onto(work, earlier, task, _streams(work, placement, task, limit))


def _swapped_with_main(work: Work, placement: Placement, stream: int) -> Iterator[Placement]:
    """This stream as `main`: what ends on `main` needs no wait before the caller can go on."""
    if stream > 0 and work.device[placement.stream.index(stream)] == 0:
        swap = {0: stream, stream: 0}
        yield replace(placement, stream=tuple(swap.get(other, other) for other in placement.stream))


def _streams(work: Work, placement: Placement, task: int, limit: int) -> Sequence[int]:
    """All streams in use, of the task's device, and one more."""
    if not work.has_devices or task < 0:
        return range(min(limit, max(placement.stream, default=-1) + 2))
    device = work.device[task]
    of_device = sorted({stream for stream, its in zip(placement.stream, work.device, strict=True) if stream >= 0 and its == device})
    further = max(placement.stream) + 1 if of_device or device else 0
    return [*of_device, further][:limit]


def _streams_of(placement: Placement, task: int) -> range:
    stream = placement.stream[task] if task >= 0 else -1
    return range(max(stream, 0), stream + 1)


def _onto(work: Work, placement: Placement, task: int, streams: Sequence[int]) -> Iterator[Placement]:
    """The placements in which the task runs on one of the streams instead, if these are of its device."""
    if task < 0 or work.home[task] != FREE:
        return
    for stream in streams:
        users = (its for other, its in zip(placement.stream, work.device, strict=True) if other == stream) if work.has_devices else ()
        if stream != placement.stream[task] and all(device == work.device[task] for device in users):
            yield replace(placement, stream=(*placement.stream[:task], stream, *placement.stream[task + 1 :]))


def _earlier(work: Work, placement: Placement, task: int) -> Iterator[Placement]:
    """The task issued as soon as it can be, then half way there, then one place earlier."""
    place = {other: index for index, other in enumerate(placement.order)}
    now = place[task]
    first = max([place[p] + 1 for p in work.earlier[task]], default=0)
    for target in dict.fromkeys((first, (first + now) // 2, now - 1)):
        if first <= target < now:
            yield from _before(work, placement, task, target)
    # What it depends on holds it too.
    if first and first == now:
        yield from _earlier(work, placement, placement.order[now - 1])


def _before(work: Work, placement: Placement, task: int, target: int) -> Iterator[Placement]:
    """The task moved to place `target` in the issue order, and with it what it depends on; none if that includes the task there."""
    order = placement.order
    now = order.index(task)
    if now <= target:
        return
    needed = {task}
    for other in reversed(order[target:now]):
        if any(later in needed for later in work.later[other]):
            needed.add(other)
    if order[target] in needed:
        return
    window = order[target : now + 1]
    pulled = [other for other in window if other in needed]
    rest = [other for other in window if other not in needed]
    yield replace(placement, order=(*order[:target], *pulled, *rest, *order[now + 1 :]))
