"""Emit: order, waits and releases become the flat steps of a Schedule, each with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from streamgraph.errors import Location
from streamgraph.model import ENTRY, EXIT, HOST, Program
from streamgraph.passes.assign import Assignment
from streamgraph.passes.lifetime import Drop, Lifetimes
from streamgraph.passes.sync import Synchronization
from streamgraph.schedule import HostWait, Launch, Reason, Record, RecordStream, Release, Schedule, Step, Wait
from streamgraph.storages import Accesses, Mode, meets

if TYPE_CHECKING:
    import networkx as nx


def emit(
    program: Program,
    graph: nx.DiGraph[int],
    accesses: Accesses,
    assignment: Assignment,
    sync: Synchronization,
    lifetimes: Lifetimes,
    options: tuple[tuple[str, str], ...],
) -> Schedule:
    """The schedule in host issue order: per task its waits, the releases they allow, its launch, its record."""
    steps = tuple(_Writer(program, graph, accesses, assignment, sync, lifetimes).steps())
    lanes = assignment.lanes
    if not any(isinstance(step, HostWait) or (not isinstance(step, HostWait) and step.lane == HOST) for step in steps):
        lanes = lanes[:-1]
    return Schedule(program, lanes, steps, options)


class _Writer:
    def __init__(
        self,
        program: Program,
        graph: nx.DiGraph[int],
        accesses: Accesses,
        assignment: Assignment,
        sync: Synchronization,
        lifetimes: Lifetimes,
    ) -> None:
        self.program, self.graph, self.accesses, self.assignment, self.sync = program, graph, accesses, assignment, sync
        self.lifetimes = lifetimes
        self.release_edges: dict[tuple[int, int], list[int]] = {}
        self.before: dict[int, list[Drop]] = {}
        self.after: dict[int, list[Drop]] = {}
        for drop in lifetimes.drops:
            (self.after if drop.launched else self.before).setdefault(drop.node, []).append(drop)
        for earlier, later, storage in sync.release_edges:
            self.release_edges.setdefault((earlier, later), []).append(storage)
        self.held: dict[int, list[int]] = {}
        for node, storage in lifetimes.host_waits:
            self.held.setdefault(node, []).append(storage)
        waited = {node for group in (*sync.waits, *sync.previous_waits) for node in group} | set(self.held)
        self.event = {node: "entry" if node == 0 else "" for node in sorted(waited)}
        names = (node for node in self.event if node)
        self.event |= {node: f"e{number}" for number, node in enumerate(names)}

    def name(self, node: int) -> str:
        if node == 0:
            return ENTRY
        if node > len(self.assignment.order):
            return EXIT if node == self.sync.exit else HOST
        return self.program.tasks[self.assignment.order[node - 1]].name

    def lane(self, node: int) -> str:
        return self.assignment.lanes[self.sync.lane_of[node]].name

    def steps(self) -> Iterator[Step]:
        """All steps; entry is node 0, exit and the caller's host come last."""
        for node in range(len(self.sync.waits)):
            yield from self.waits(node)
            yield from self.releases(self.before.get(node, ()))
            if 0 < node < self.sync.exit:
                yield Launch(self.name(node), self.lane(node))
            if node in self.held:
                yield HostWait(self.event[node], True, tuple(self.last_use(storage, node, node) for storage in self.held[node]))
            if node in self.event:
                yield Record(self.event[node], self.lane(node), self.name(node))
            yield from self.releases(self.after.get(node, ()))
            if node == self.sync.exit:
                for storage, producer in self.lifetimes.to_caller:
                    label = self.accesses.storages[storage].label
                    why = Reason("output", label, self.name(producer), EXIT)
                    yield RecordStream(label, self.assignment.lanes[0].name, (why,))

    def waits(self, node: int) -> Iterator[Step]:
        on_host = self.lane(node) == HOST
        for earlier in self.sync.previous_waits[node]:
            yield HostWait(self.event[earlier], True, tuple(self.across_runs(earlier, node)))
        for earlier in self.sync.waits[node]:
            why = tuple(self.reasons(earlier, node))
            yield HostWait(self.event[earlier], False, why) if on_host else Wait(self.event[earlier], self.lane(node), why)

    def releases(self, drops: list[Drop] | tuple[()]) -> Iterator[Step]:
        for drop in drops:
            storage = self.accesses.storages[drop.storage]
            owner = HOST if storage.host or storage.producer is None else self.lane_of_task(storage.producer)
            why = (self.last_use(drop.storage, drop.last_use, drop.covered_by),)
            for lane in drop.record_streams:
                yield RecordStream(storage.label, self.assignment.lanes[lane].name, why)
            yield Release(storage.label, owner, drop.previous, why)

    def lane_of_task(self, task: int) -> str:
        return self.assignment.lanes[self.assignment.lane_of[task]].name

    def last_use(self, storage: int, earlier: int, later: int) -> Reason:
        return Reason("last use", self.accesses.storages[storage].label, self.name(earlier), self.name(later))

    def reasons(self, earlier: int, later: int) -> Iterator[Reason]:
        """Why `later` waits for `earlier`: their hazards, or entry, exit, or the release that asked for it."""
        if earlier == 0:
            yield Reason("entry", "", ENTRY, self.name(later))
        elif later == self.sync.exit:
            yield Reason("exit", "", self.name(earlier), EXIT)
        elif later > self.sync.exit:
            task = self.assignment.order[earlier - 1]
            for user, storage in self.sync.caller_uses:
                if user == earlier:
                    reads = all(a.mode is Mode.READ for a in self.accesses.of_task[task] if a.storage == storage)
                    yield Reason("WAR" if reads else "RAW", self.accesses.storages[storage].label, self.name(earlier), HOST)
        else:
            pair = (self.assignment.order[earlier - 1], self.assignment.order[later - 1])
            place = _place(self.program.tasks[pair[1]].location)
            for hazard in self.graph.edges[pair]["hazards"] if self.graph.has_edge(*pair) else ():
                yield Reason(hazard.kind, hazard.tensor, self.name(earlier), self.name(later), place)
            for storage in self.release_edges.get((earlier, later), ()):
                yield self.last_use(storage, earlier, later)

    def across_runs(self, earlier: int, later: int) -> Iterator[Reason]:
        """Why a host task waits for a task of the run before: the memory that both touch."""
        pair = (self.assignment.order[earlier - 1], self.assignment.order[later - 1])
        first, second = (self.accesses.of_task[task] for task in pair)
        place = _place(self.program.tasks[pair[1]].location)
        for mine in second:
            for theirs in first:
                both_read = mine.mode is Mode.READ and theirs.mode is Mode.READ
                if mine.storage == theirs.storage and not both_read and meets(mine.box, theirs.box):
                    kind = "RAW" if mine.mode is Mode.READ else "WAR" if theirs.mode is Mode.READ else "WAW"
                    yield Reason(kind, mine.tensor, self.name(earlier), self.name(later), place)


def _place(location: Location | None) -> str:
    return f"{location.file}:{location.line}" if location is not None else ""
