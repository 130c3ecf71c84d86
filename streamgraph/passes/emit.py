"""Emit: order, waits and releases become the flat steps of a Schedule, each with its reason."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from streamgraph.errors import Location
from streamgraph.hazards import Dag
from streamgraph.model import ENTRY, EXIT, HOST, Program
from streamgraph.passes.assign import Assignment
from streamgraph.passes.lifetime import Drop, Lifetimes
from streamgraph.passes.sync import Synchronization
from streamgraph.schedule import HostWait, Launch, Reason, Record, RecordStream, Release, Schedule, Step, Wait
from streamgraph.storages import Access, Accesses, Mode, meets


def emit(
    program: Program,
    dag: Dag,
    accesses: Accesses,
    assignment: Assignment,
    sync: Synchronization,
    lifetimes: Lifetimes,
    options: tuple[tuple[str, str], ...],
) -> Schedule:
    """The schedule in host issue order: per task its waits, the releases they allow, its launch, its record."""
    steps = tuple(_Writer(program, dag, accesses, assignment, sync, lifetimes).steps())
    lanes = assignment.lanes
    if not any(isinstance(step, HostWait) or step.lane == HOST for step in steps):
        lanes = lanes[:-1]
    return Schedule(program, lanes, steps, options)


class _Writer:
    def __init__(
        self,
        program: Program,
        dag: Dag,
        accesses: Accesses,
        assignment: Assignment,
        sync: Synchronization,
        lifetimes: Lifetimes,
    ) -> None:
        self.program, self.dag, self.accesses, self.assignment, self.sync = program, dag, accesses, assignment, sync
        self.lifetimes = lifetimes
        self.release_edges: dict[tuple[int, int], list[int]] = {}
        self.drops = deque(sorted(lifetimes.drops, key=_place_of_drop))
        for earlier, later, storage in sync.release_edges:
            self.release_edges.setdefault((earlier, later), []).append(storage)
        self.held: dict[int, list[int]] = {}
        for node, storage in lifetimes.host_waits:
            self.held.setdefault(node, []).append(storage)
        waited = {node for group in (*sync.waits, *sync.previous_waits) for node in group} | set(self.held)
        self.event = {node: "entry" if node == 0 else "" for node in sorted(waited)}
        names = (node for node in self.event if node)
        self.event |= {node: f"e{number}" for number, node in enumerate(names)}
        order = assignment.order
        self.name = (ENTRY, *(program.tasks[task].name for task in order), EXIT, HOST)  # of each node
        lanes = [lane.name for lane in assignment.lanes]
        self.lane = [lanes[lane] for lane in sync.lane_of]
        self.lane_of_task = [lanes[lane] for lane in assignment.lane_of]
        self.urgent = frozenset(program.tasks[task].name for task in assignment.urgent)

    def steps(self) -> Iterator[Step]:
        """All steps; entry is node 0, exit and the caller's host come last."""
        last = self.sync.exit
        for node, (name, lane) in enumerate(zip(self.name, self.lane, strict=True)):
            if self.sync.waits[node] or self.sync.previous_waits[node]:
                yield from self.waits(node)
            yield from self.releases(node, launched=False)
            if 0 < node < last:
                yield Launch(name, lane, name in self.urgent)
            if node in self.held:
                yield HostWait(self.event[node], True, tuple(self.last_use(storage, node, node) for storage in self.held[node]))
            if node in self.event:
                yield Record(self.event[node], lane, name)
            yield from self.releases(node, launched=True)
            if node == last:
                for storage, producer in self.lifetimes.to_caller:
                    label = self.accesses.storages[storage].label
                    why = Reason("output", label, self.name[producer], EXIT)
                    yield RecordStream(label, self.assignment.lanes[0].name, (why,))

    def waits(self, node: int) -> Iterator[Step]:
        on_host = self.lane[node] == HOST
        for earlier in self.sync.previous_waits[node]:
            yield HostWait(self.event[earlier], True, tuple(self.across_runs(earlier, node)))
        for earlier in self.sync.waits[node]:
            why = tuple(self.reasons(earlier, node))
            yield HostWait(self.event[earlier], False, why) if on_host else Wait(self.event[earlier], self.lane[node], why)

    def releases(self, node: int, launched: bool) -> Iterator[Step]:
        while self.drops and self.drops[0].node == node and self.drops[0].launched is launched:
            drop = self.drops.popleft()
            storage = self.accesses.storages[drop.storage]
            owner = HOST if storage.host or storage.producer is None else self.lane_of_task[storage.producer]
            why = (self.last_use(drop.storage, drop.last_use, drop.covered_by),)
            for lane in drop.record_streams:
                yield RecordStream(storage.label, self.assignment.lanes[lane].name, why)
            yield Release(storage.label, owner, drop.previous, why)

    def last_use(self, storage: int, earlier: int, later: int) -> Reason:
        return Reason("last use", self.accesses.storages[storage].label, self.name[earlier], self.name[later])

    def reasons(self, earlier: int, later: int) -> Iterator[Reason]:
        """Why `later` waits for `earlier`: their hazards, or entry, exit, or the release that asked for it."""
        if earlier == 0:
            yield Reason("entry", "", ENTRY, self.name[later])
        elif later == self.sync.exit:
            yield Reason("exit", "", self.name[earlier], EXIT)
        elif later > self.sync.exit:
            task = self.assignment.order[earlier - 1]
            for user, storage in self.sync.caller_uses:
                if user == earlier:
                    reads = all(a.mode is Mode.READ for a in self.accesses.of_task[task] if a.storage == storage)
                    yield Reason("WAR" if reads else "RAW", self.accesses.storages[storage].label, self.name[earlier], HOST)
        else:
            pair = (self.assignment.order[earlier - 1], self.assignment.order[later - 1])
            place = _place(self.program.tasks[pair[1]].location)
            for hazard in self.dag.between(*pair):
                yield Reason(hazard.kind, hazard.tensor, self.name[earlier], self.name[later], place)
            for storage in self.release_edges.get((earlier, later), ()):
                yield self.last_use(storage, earlier, later)

    def across_runs(self, earlier: int, later: int) -> Iterator[Reason]:
        """Why a host task waits for a task of the run before: the memory that both touch."""
        pair = (self.assignment.order[earlier - 1], self.assignment.order[later - 1])
        place = _place(self.program.tasks[pair[1]].location)
        before: dict[int, list[Access]] = {}
        for access in self.accesses.of_task[pair[0]]:
            before.setdefault(access.storage, []).append(access)
        for mine in self.accesses.of_task[pair[1]]:
            for theirs in before.get(mine.storage, ()):
                both_read = mine.mode is Mode.READ and theirs.mode is Mode.READ
                if not both_read and meets(mine.box, theirs.box):
                    kind = "RAW" if mine.mode is Mode.READ else "WAR" if theirs.mode is Mode.READ else "WAW"
                    yield Reason(kind, mine.tensor, self.name[earlier], self.name[later], place)


def _place_of_drop(drop: Drop) -> tuple[int, bool]:
    return drop.node, drop.launched


def _place(location: Location | None) -> str:
    return f"{location.file}:{location.line}" if location is not None else ""
