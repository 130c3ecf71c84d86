"""Sync: an Assignment becomes the fewest waits that keep every hazard, entry and exit, by vector clocks.

The waits are exactly the cross-lane edges of the transitive reduction of (hazards, lane FIFO, entry, exit, release edges): none can be
removed and nothing else is
ordered. One pass, O(edges + waits x lanes), where networkx's own reduction is quadratic. Proof and figures: docs/design.md, section 5.

Nodes are positions in issue order: 0 is entry, 1..n the tasks, n+1 exit, n+2 the caller on the host, who reads host outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from streamgraph.frontier import Entry, Frontier, Layout
from streamgraph.hazards import Dag
from streamgraph.model import Box, Kind
from streamgraph.passes.assign import Assignment
from streamgraph.storages import Access, Accesses, Mode, meets

FEW = 8  # boxes of one storage that are looked through one by one
Clock: TypeAlias = tuple[int, ...]
"""Per lane, the newest position known to be done; -1 for nothing, not even entry."""


@dataclass(frozen=True, slots=True)
class Synchronization:
    """Which node waits for which. All tuples are indexed by node.

    `waits`: positions whose events the node waits for, oldest first. `previous_waits`: likewise, of the run before (host tasks only).
    `clocks`: what the node's lane knows to be done when the node starts, its own lane apart. `lane_of`: index into the assignment's lanes.
    `caller_uses`: the tasks that the caller's host waits for, with the storage. `release_edges`: those it was planned with.
    """

    waits: tuple[tuple[int, ...], ...]
    previous_waits: tuple[tuple[int, ...], ...]
    clocks: tuple[Clock, ...]
    lane_of: tuple[int, ...]
    caller_uses: tuple[tuple[int, int], ...]
    release_edges: tuple[tuple[int, int, int], ...] = ()

    @property
    def exit(self) -> int:
        """The position of exit; the caller on the host is the one after."""
        return len(self.waits) - 2


def synchronize(
    assignment: Assignment, dag: Dag, accesses: Accesses, release_edges: tuple[tuple[int, int, int], ...] = ()
) -> Synchronization:
    """The minimal waits for the assignment. `release_edges` are (earlier position, later position, storage) that a release policy added."""
    count, host = len(assignment.order), len(assignment.lanes) - 1
    position = [0] * count
    for place, task in enumerate(assignment.order, 1):
        position[task] = place
    lane_of = (0, *(assignment.lane_of[task] for task in assignment.order), 0, host)
    added: dict[int, list[int]] = {}
    for earlier, later, _ in release_edges:
        added.setdefault(later, []).append(earlier)
    uses = tuple(sorted((position[task], storage) for task, storage in _caller_uses(assignment, accesses, host)))
    last_on: dict[int, int] = {lane: place for place, lane in enumerate(lane_of[:-2])}

    def predecessors(node: int) -> Iterator[int]:
        if node == count + 2:
            yield from (user for user, _ in uses)
            return
        if lane_of[node] not in (0, host):
            yield 0
        if node == count + 1:
            yield from last_on.values()
        elif node:
            yield from (position[task] for task in dag.earlier[assignment.order[node - 1]])
        yield from added.get(node, ())

    known: list[Clock] = [(-1,) * len(assignment.lanes)] * len(assignment.lanes)
    snapshot: list[Clock] = []
    waits: list[tuple[int, ...]] = []
    for node, lane in enumerate(lane_of):
        chosen = uncovered(predecessors(node), lane, lane_of, known[lane], snapshot)
        for earlier in chosen:
            known[lane] = join(known[lane], snapshot[earlier], lane_of[earlier], earlier)
        waits.append(chosen)
        snapshot.append(known[lane])
    clocks = tuple(snapshot)
    previous = _previous_waits(assignment, accesses, lane_of, clocks)
    return Synchronization(tuple(waits), previous, clocks, lane_of, uses, release_edges)


def uncovered(earlier: Iterable[int], lane: int, lane_of: Sequence[int], known: Clock, clocks: Sequence[Clock]) -> tuple[int, ...]:
    """Of the positions `earlier`, those that `lane` must wait for: per lane the newest, less what the lane knows, less what another of
    them implies."""
    newest: dict[int, int] = {}
    for node in earlier:
        other = lane_of[node]
        if other != lane and node > known[other] and node > newest.get(other, -1):
            newest[other] = node
    if len(newest) < 2:
        return tuple(newest.values())
    return tuple(
        sorted(node for other, node in newest.items() if not any(clocks[via][other] >= node for via in newest.values() if via != node))
    )


def join(known: Clock, other: Clock, lane: int, node: int) -> Clock:
    """What a lane knows after waiting for `node` of `lane`, whose own clock was `other`."""
    return tuple(max(mine, theirs, node if index == lane else -1) for index, (mine, theirs) in enumerate(zip(known, other, strict=True)))


def _caller_uses(assignment: Assignment, accesses: Accesses, host: int) -> Iterator[tuple[int, int]]:
    """Device tasks that use host memory which is then the caller's: outputs, to read and to change, and inputs that a task writes."""
    for task, touched in enumerate(accesses.of_task):
        for access in touched:
            storage = accesses.storages[access.storage]
            changed = storage.kind is Kind.INPUT and access.mode is not Mode.READ
            if storage.host and (changed or access.storage in accesses.output_storages) and assignment.lane_of[task] != host:
                yield task, access.storage


def _previous_waits(
    assignment: Assignment, accesses: Accesses, lane_of: Sequence[int], clocks: tuple[Clock, ...]
) -> tuple[tuple[int, ...], ...]:
    """Per host task, the device tasks of the run before that may still use what it touches.

    Device lanes are ordered by entry and exit; the host is not. Once a host wait of this run has covered entry, it has covered all of
    the run before. Until then only tasks issued after the host task are open: an earlier one has a wait of this run.
    """
    host = len(assignment.lanes) - 1
    waits: list[tuple[int, ...]] = [()] * len(lane_of)
    nodes = [place for place, lane in enumerate(lane_of[:-2]) if lane == host and clocks[place][0] < 0]
    if not nodes:
        return tuple(waits)
    users: dict[int, _Users] = {}
    for place, task in enumerate(assignment.order, 1):
        if lane_of[place] != host:
            for access in accesses.of_task[task]:
                if accesses.storages[access.storage].version == 0:
                    users.setdefault(access.storage, _Users()).add(access, lane_of[place], place)
    for node in nodes:
        for access in accesses.of_task[assignment.order[node - 1]]:
            if access.storage in users:
                users[access.storage].expect(access.box)
    known = clocks[-1]  # what the host had waited for when the run before ended
    for node in nodes:
        touched = accesses.of_task[assignment.order[node - 1]]
        open_uses = (place for access in touched if access.storage in users for place in users[access.storage].conflicting(access))
        waits[node] = uncovered(open_uses, host, lane_of, known, clocks)
        for earlier in waits[node]:
            known = join(known, clocks[earlier], lane_of[earlier], earlier)
    return tuple(waits)


class _Users:
    """Who uses one storage. Of the reads of one box on one lane the last stands for all; likewise of the other uses."""

    def __init__(self) -> None:
        self._last: dict[tuple[Box | None, bool], dict[int, int]] = {}
        self._used: dict[Box | None, None] = {}
        self._asked: dict[Box | None, None] = {}
        self._index: Frontier | None = None

    def add(self, access: Access, lane: int, place: int) -> None:
        self._used[access.box] = None
        self._last.setdefault((access.box, access.mode is Mode.READ), {})[lane] = place

    def expect(self, box: Box | None) -> None:
        """Say that conflicts with this box will be asked for. All uses and expectations come before the first question."""
        self._asked[box] = None

    def conflicting(self, access: Access) -> Iterator[int]:
        """The places of uses that share an element with this one and are not both reads."""
        for box in self._meeting(access.box):
            yield from self._last.get((box, False), {}).values()
            if access.mode is not Mode.READ:
                yield from self._last.get((box, True), {}).values()

    def _meeting(self, box: Box | None) -> list[Box | None]:
        if box is None or len(self._used) < FEW:
            return [other for other in self._used if meets(box, other)]
        if self._index is None:
            self._index = Frontier(Layout.of([other for other in (*self._used, *self._asked) if other is not None]))
            for other in self._used:
                if other is not None and meets(other, other):
                    self._index.add(Entry(other, 0, 0))
        parts: list[Box | None] = [entry.box for entry in self._index.meeting(box)] if meets(box, box) else []
        return [*parts, None] if None in self._used and meets(None, box) else parts
