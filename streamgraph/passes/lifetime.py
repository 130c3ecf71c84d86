"""Lifetime: clocks become the points where each value is released, and the few record_stream calls that remain.

A value may be dropped where the clock of its allocating lane covers all of its uses (docs/design.md, section 1.7; the allocator's rule
is in https://docs.pytorch.org/docs/stable/generated/torch.Tensor.record_stream.html). Exit gives lane 0 that clock at the latest. What a
side lane has not covered by then is left to the next run, where the lane's first wait covers everything of this one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from streamgraph.passes.assign import Assignment
from streamgraph.passes.sync import Synchronization, join, uncovered
from streamgraph.storages import Accesses


class Drop(NamedTuple):
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


@dataclass(frozen=True)
class _Lane:
    """The nodes of one lane in order, and its clock at each."""

    nodes: list[int]
    clocks: list[tuple[int, ...]]

    @cached_property
    def first_after_entry(self) -> int | None:
        """The first node that knows entry, and so all of the run before."""
        return next((node for node, clock in zip(self.nodes, self.clocks, strict=True) if clock[0] >= 0), None)


def place_releases(
    assignment: Assignment, accesses: Accesses, sync: Synchronization, policy: Literal["default", "early"]
) -> Lifetimes:
    """A release for every value that stays inside.

    With "early", one that would come later than the last use gets a release edge, if that wait delays nothing by the planner's estimate,
    else record_stream calls. Where `sync` was already planned with release edges, those stand and no more are asked for.
    """
    host = len(assignment.lanes) - 1
    lanes = [_Lane([], []) for _ in assignment.lanes]
    for node, lane in enumerate(sync.lane_of):
        lanes[lane].nodes.append(node)
        lanes[lane].clocks.append(sync.clocks[node])
    position = {task: place for place, task in enumerate(assignment.order, 1)}
    made = [storage.producer is not None for storage in accesses.storages]
    users: list[list[int]] = [[] for _ in made]
    for place, task in enumerate(assignment.order, 1):
        for access in accesses.of_task[task]:
            if made[access.storage]:
                users[access.storage].append(place)
    drops: list[Drop] = []
    to_caller: list[tuple[int, int]] = []
    on_host: dict[int, dict[int, int]] = {}
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
        uses = {sync.lane_of[place]: place for place in users[number]}  # of each lane, the last
        drop = _covered(number, owner, uses, lanes)
        late = drop is None or drop.node != drop.last_use
        if policy == "early" and late and number not in settled and owner != host and host not in uses:
            drop, wanted = _early(assignment, number, owner, uses, lanes, may_wait=not settled)
            edges += wanted
        drop = drop or _left_over(number, uses, lanes[owner])
        if drop is None:
            on_host[number] = uses
        else:
            drops.append(drop)
    late_drops, host_waits = _left_over_on_host(on_host, sync, host)
    return Lifetimes((*drops, *late_drops), tuple(to_caller), host_waits, tuple(dict.fromkeys(edges)))


def _covers(clock: Sequence[int], uses: list[tuple[int, int]]) -> bool:
    for lane, node in uses:  # noqa: SIM110 (`all` with a generator takes twice as long)
        if clock[lane] < node:
            return False
    return True


def _covered(storage: int, owner: int, uses: dict[int, int], lanes: list[_Lane]) -> Drop | None:
    """The first point of the owner's lane, not before the last use is issued, where its clock covers every use; None: not in this run."""
    last = max(uses.values())
    nodes, clocks = lanes[owner].nodes, lanes[owner].clocks
    after = bisect_right(nodes, last)
    foreign = [use for use in uses.items() if use[0] != owner]
    if after and _covers(clocks[after - 1], foreign):
        return Drop(storage, last, True, last, nodes[after - 1])
    # Clocks only grow along a lane, so the first covering node is found by bisection, most often among the next few.
    low, reach = after, 1
    while low + reach < len(nodes) and not _covers(clocks[low + reach - 1], foreign):
        low, reach = low + reach, 2 * reach
    high = min(low + reach, len(nodes))
    first = bisect_left(range(low, high), True, key=lambda index: _covers(clocks[index], foreign)) + low
    if first == len(nodes):
        return None
    return Drop(storage, nodes[first], False, last, nodes[first])


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
    node = lane.first_after_entry
    return None if node is None else Drop(storage, node, False, max(uses.values()), node, previous=True)


def _left_over_on_host(
    uses: dict[int, dict[int, int]], sync: Synchronization, host: int
) -> tuple[list[Drop], tuple[tuple[int, int], ...]]:
    """Host memory whose device uses the host never waits for within a run: the next run waits for their events just before it records
    them again, when they are most likely done, and only for those that its host tasks have not waited for anyway.
    """
    if not uses:
        return [], ()
    device = {number: [use for use in its.items() if use[0] != host] for number, its in uses.items()}
    learned = [(node, False, earlier) for node, group in enumerate(sync.previous_waits) for earlier in group]
    known = sync.clocks[-1]
    for _, _, earlier in learned:
        known = join(known, sync.clocks[earlier], sync.lane_of[earlier], earlier)
    added = uncovered((node for its in device.values() for _, node in its), host, sync.lane_of, known, sync.clocks)
    learned = sorted([*learned, *((node, True, node) for node in added)])
    knowing = [sync.clocks[-1]]
    for _, _, earlier in learned:
        knowing.append(join(knowing[-1], sync.clocks[earlier], sync.lane_of[earlier], earlier))
    drops: list[tuple[int, Drop]] = []
    for number, its in device.items():
        # What the host knows only grows, so the first point where it is enough is found by bisection.
        enough = bisect_left(knowing, True, 1, key=lambda known, its=its: _covers(known, its)) - 1  # type: ignore[misc]
        node, launched, earlier = learned[enough]
        drops.append((enough, Drop(number, node, launched, max(uses[number].values()), earlier, previous=True)))
    drops.sort()
    waited = set(added)
    reasons = [(node, number) for number, its in device.items() for _, node in its if node in waited]
    return [drop for _, drop in drops], tuple(sorted(reasons))
