"""Lifetime: clocks become the points where each value is released, and the few record_stream calls that remain.

A value may be dropped where the clock of its allocating lane covers all of its uses (docs/design.md, section 1.7; the allocator's rule
is in
https://docs.pytorch.org/docs/stable/generated/torch.Tensor.record_stream.html). Exit gives lane 0 that clock at the latest. What a side
lane has
not covered by then is left to the next run, where the lane's first wait covers everything of this one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from streamgraph.passes.assign import Assignment
from streamgraph.passes.sync import Synchronization, join, uncovered
from streamgraph.storages import Accesses


@dataclass(frozen=True, slots=True)
class Drop:
    """Release of a value: at `node`, after its waits (`launched` False) or after its launch. `last_use` and `covered_by` are positions.

    `previous`: the value is the one that the run before left over. `record_streams`: lanes to record just before.
    """

    storage: int
    node: int
    launched: bool
    last_use: int
    covered_by: int
    previous: bool = False
    record_streams: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """`drops` by storage; `to_caller`: (storage, position of its producer) of device outputs made on a side lane, each needing one
    record_stream.

    `host_waits`: positions of the run before that the host waits for, just before this run records their event again.
    `release_edges`: waits (earlier, later, for this storage) that the policy wants besides; plan sync again with them.
    """

    drops: tuple[Drop, ...]
    to_caller: tuple[tuple[int, int], ...]
    host_waits: tuple[tuple[int, int], ...]
    release_edges: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Lane:
    """The nodes of one lane in order, and its clock at each."""

    nodes: list[int]
    clocks: list[tuple[int, ...]]


def place_releases(
    assignment: Assignment, accesses: Accesses, sync: Synchronization, policy: Literal["default", "early"]
) -> Lifetimes:
    """A release for every value that stays inside.

    With "early", one that would come later than the last use gets a release edge, if that wait delays nothing by the planner's estimate,
    else
    record_stream calls. Where `sync` was already planned with release edges, those stand and no more are asked for.
    """
    host = len(assignment.lanes) - 1
    lanes = [_Lane([], []) for _ in assignment.lanes]
    for node, lane in enumerate(sync.lane_of):
        lanes[lane].nodes.append(node)
        lanes[lane].clocks.append(sync.clocks[node])
    position = {task: place for place, task in enumerate(assignment.order, 1)}
    uses: list[dict[int, int]] = [{} for _ in accesses.storages]  # storage -> lane -> last position
    for place, task in enumerate(assignment.order, 1):
        for access in accesses.of_task[task]:
            uses[access.storage][sync.lane_of[place]] = place
    drops: list[Drop] = []
    to_caller: list[tuple[int, int]] = []
    on_host: list[int] = []
    edges: list[tuple[int, int, int]] = []
    settled = {storage for _, _, storage in sync.release_edges}
    for number, storage in enumerate(accesses.storages):
        if storage.producer is None:
            continue
        owner = host if storage.host else assignment.lane_of[storage.producer]
        if number in accesses.output_storages:
            if owner not in (0, host):
                to_caller.append((number, position[storage.producer]))
            continue
        drop = _covered(number, owner, uses[number], lanes)
        late = drop is None or drop.node != drop.last_use
        if policy == "early" and late and number not in settled and owner != host and host not in uses[number]:
            drop, wanted = _early(assignment, number, owner, uses[number], lanes, may_wait=not settled)
            edges += wanted
        drop = drop or _left_over(number, uses[number], lanes[owner])
        if drop is None:
            on_host.append(number)
        else:
            drops.append(drop)
    late_drops, host_waits = _left_over_on_host(on_host, uses, sync, host)
    return Lifetimes((*drops, *late_drops), tuple(to_caller), host_waits, tuple(dict.fromkeys(edges)))


def _covers(clock: Sequence[int], owner: int, uses: dict[int, int]) -> bool:
    return all(clock[lane] >= node for lane, node in uses.items() if lane != owner)


def _covered(storage: int, owner: int, uses: dict[int, int], lanes: list[_Lane]) -> Drop | None:
    """The first point of the owner's lane, not before the last use is issued, where its clock covers every use; None: not in this run."""
    last = max(uses.values())
    lane = lanes[owner]
    after = bisect_right(lane.nodes, last)
    if after and _covers(lane.clocks[after - 1], owner, uses):
        return Drop(storage, last, True, last, lane.nodes[after - 1])
    # Clocks only grow along a lane, so the first covering node is found by bisection.
    first = bisect_left(range(after, len(lane.nodes)), True, key=lambda index: _covers(lane.clocks[index], owner, uses)) + after
    if first == len(lane.nodes):
        return None
    return Drop(storage, lane.nodes[first], False, last, lane.nodes[first])


def _early(
    assignment: Assignment, storage: int, owner: int, uses: dict[int, int], lanes: list[_Lane], may_wait: bool
) -> tuple[Drop, list[tuple[int, int, int]]]:
    """Release right after the last use: one wait where it delays nothing, else record_stream on as few lanes as cover the uses.

    The allocator records the tail of each recorded stream when the block is freed, so a lane stands for all that it has waited for.
    """
    last = max(uses.values())
    own = lanes[owner]
    after = bisect_right(own.nodes, last)
    clock = own.clocks[after - 1] if after else (-1,) * len(assignment.lanes)
    open_uses = {lane: node for lane, node in uses.items() if lane != owner and clock[lane] < node}
    tails = {lane: _tail(lanes[lane], last) for lane in open_uses}
    following = own.nodes[after] if after < len(own.nodes) else None
    if may_wait and following is not None and following <= len(assignment.order):
        start = assignment.start[assignment.order[following - 1]]
        if all(assignment.finish[assignment.order[node - 1]] <= start for node in open_uses.values()):
            return Drop(storage, following, False, last, following), [(node, following, storage) for node in open_uses.values()]
    chosen = set(open_uses)
    for lane in sorted(open_uses):
        # All uses are asked about again: a lane that was dropped may have been covered by this one only.
        rest = chosen - {lane}
        if all(use in rest or any(tails[other][use] >= node for other in rest) for use, node in open_uses.items()):
            chosen = rest
    return Drop(storage, last, True, last, last, record_streams=tuple(sorted(chosen))), []


def _tail(lane: _Lane, last: int) -> tuple[int, ...]:
    return lane.clocks[bisect_right(lane.nodes, last) - 1]


def _left_over(storage: int, uses: dict[int, int], lane: _Lane) -> Drop | None:
    """Dropped in the next run, at the owner's first node that knows entry, since entry follows all of the run before.

    Every side lane begins with such a node. The host need not have one: None.
    """
    for node, clock in zip(lane.nodes, lane.clocks, strict=True):
        if clock[0] >= 0:
            return Drop(storage, node, False, max(uses.values()), node, previous=True)
    return None


def _left_over_on_host(
    storages: list[int], uses: list[dict[int, int]], sync: Synchronization, host: int
) -> tuple[list[Drop], tuple[tuple[int, int], ...]]:
    """Host memory whose device uses the host never waits for within a run: the next run waits for their events just before it records
    them again, when they are most likely done, and only for those that its host tasks have not waited for anyway.
    """
    device = {number: {lane: node for lane, node in uses[number].items() if lane != host} for number in storages}
    learned = [(node, False, earlier) for node, group in enumerate(sync.previous_waits) for earlier in group]
    known = sync.clocks[-1]
    for _, _, earlier in learned:
        known = join(known, sync.clocks[earlier], sync.lane_of[earlier], earlier)
    last_uses = (node for number in storages for node in device[number].values())
    added = uncovered(last_uses, host, sync.lane_of, known, sync.clocks)
    learned = sorted([*learned, *((node, True, node) for node in added)])
    drops: list[Drop] = []
    waiting = list(storages)
    known = sync.clocks[-1]
    for node, launched, earlier in learned:
        known = join(known, sync.clocks[earlier], sync.lane_of[earlier], earlier)
        ready = [number for number in waiting if _covers(known, host, device[number])]
        drops += [Drop(number, node, launched, max(uses[number].values()), earlier, previous=True) for number in ready]
        waiting = [number for number in waiting if number not in ready]
    reasons = [(node, number) for node in added for number in storages if node in device[number].values()]
    return drops, tuple(reasons)
