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
from dataclasses import dataclass, replace
from typing import Literal

from streamgraph.passes.assign import Assignment
from streamgraph.passes.sync import Synchronization
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
    host_waits: dict[tuple[int, int], None] = {}
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
        if drop is None:
            drop = _left_over(number, owner, uses[number], lanes)
            if owner == host and not _host_knows_entry(lanes[host]):
                drop = replace(drop, node=max(drop.node, *(node for _, node in _tails(uses[number], sync, host))))
                host_waits |= dict.fromkeys((node, number) for _, node in _tails(uses[number], sync, host))
        drops.append(drop)
    return Lifetimes(tuple(drops), tuple(to_caller), tuple(host_waits), tuple(dict.fromkeys(edges)))


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
    chosen = dict(open_uses)
    for lane in sorted(open_uses):
        rest = [other for other in chosen if other != lane]
        if any(tails[other][lane] >= open_uses[lane] for other in rest):
            del chosen[lane]
    return Drop(storage, last, True, last, last, record_streams=tuple(sorted(chosen))), []


def _tail(lane: _Lane, last: int) -> tuple[int, ...]:
    return lane.clocks[bisect_right(lane.nodes, last) - 1]


def _left_over(storage: int, owner: int, uses: dict[int, int], lanes: list[_Lane]) -> Drop:
    """Dropped in the next run, at the owner's first node that knows entry: entry follows all of the run before."""
    last = max(uses.values())
    lane = lanes[owner]
    for node, clock in zip(lane.nodes, lane.clocks, strict=True):
        if clock[0] >= 0:
            return Drop(storage, node, False, last, node, previous=True)
    return Drop(storage, 0, True, last, 0, previous=True)


def _host_knows_entry(lane: _Lane) -> bool:
    return any(clock[0] >= 0 for clock in lane.clocks)


def _tails(uses: dict[int, int], sync: Synchronization, host: int) -> list[tuple[int, int]]:
    """(lane, position) of the uses on device lanes that no other of them implies."""
    device = {lane: node for lane, node in uses.items() if lane != host}
    return [
        (lane, node)
        for lane, node in device.items()
        if not any(sync.clocks[other][lane] >= node for other in device.values() if other != node)
    ]
