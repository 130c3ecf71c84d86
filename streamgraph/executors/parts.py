"""Parts: what is issued for one iteration, cut into pieces that are captured as CUDA graphs and pieces that are issued as they are.

    host    a host task, or a place where the host waits: the issuing thread itself
    eager   a launch that reads memory whose address changes from call to call: host tensors that the caller or a host task brings
    part    all other launches between these, of all lanes: one graph

A part is launched as soon as the pieces before it have been issued, and no sooner is any of its tasks ready: it holds the tasks that depend
on the same number of host tasks (and, between two of these, on the same eager launches). Launching a graph orders nothing by itself. What
orders its tasks is what the schedule says: a wait for a task of the same part is an edge of the graph; a wait for any other task, and the
order of a lane from one piece to the next, is a node that waits for an event, which the other side records in a node of its own. So the
pieces overlap as the schedule's tasks would.

An iteration has the memory of the one `period` iterations before it, and begins after that one has ended. Waits that reach so far back are
left out, and the host makes its own such waits first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from streamgraph.iterations import DELIVER, ITEM, RESULT, SOURCE
from streamgraph.loop import Back, Issue
from streamgraph.model import ENTRY, HOST, MAIN, Kind, Program
from streamgraph.schedule import HostWait, Launch, Record, Release, Schedule, Wait
from streamgraph.storages import Accesses

PieceKind: TypeAlias = Literal["host", "eager", "part"]


@dataclass(frozen=True, slots=True)
class Member:
    """One issue of a piece, with what it waits for: events of tasks of the same part (`inside`), events of others (`outside`), and host
    tasks, which whoever issues it waits for (`hosts`)."""

    issue: Issue
    inside: tuple[str, ...] = ()
    outside: tuple[Back, ...] = ()
    hosts: tuple[Back, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What is issued at once: a part's tasks in issue order, or a single host task or eager launch."""

    kind: PieceKind
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """The pieces of an iteration in the order in which they are issued.

    `shown`: tasks whose events others than their own part wait for. `inner`: tasks whose events their own part waits for.
    `first`: what the host waits for before anything of the iteration is issued; `last`: once all of it is, before results are given.
    """

    pieces: tuple[Piece, ...]
    shown: frozenset[str]
    inner: frozenset[str]
    first: tuple[Back, ...]
    last: tuple[Back, ...]
    period: int

    @property
    def graphs(self) -> int:
        """How many graphs an iteration launches."""
        return sum(piece.kind == "part" for piece in self.pieces)

    def __str__(self) -> str:
        return "\n".join(f"{piece.kind:<6} {', '.join(member.issue.task for member in piece.members)}" for piece in self.pieces) + "\n"


def cut(
    issues: tuple[Issue, ...], eager: Collection[str], period: int, looked_at: Iterable[str] = (), host_lanes: Collection[str] = (HOST,)
) -> Cut:
    """Cut one iteration. `eager` are tasks that no graph can hold; somebody outside waits for the events of the tasks `looked_at`.
    `host_lanes` are those of host tasks and of the caller's thread.
    """
    cutter = _Cutter(issues, frozenset(eager) | {ITEM}, period, host_lanes)
    for issue in issues:
        cutter.add(issue)
    return cutter.done(frozenset(looked_at))


def moving(program: Program, accesses: Accesses, bound: Collection[str]) -> frozenset[str]:
    """The device tasks that no graph can hold: they touch memory that the caller brings on the host, or that a host task makes.

    What such a task makes in host memory lies elsewhere each time too. (What it makes on the device is copied to where parts expect it.)
    """
    moved = {
        number
        for number, storage in enumerate(accesses.storages)
        if storage.kind is Kind.INPUT and storage.host and storage.tensor not in bound
    }
    made: dict[int, list[int]] = {}
    for number, storage in enumerate(accesses.storages):
        if storage.producer is not None:
            made.setdefault(storage.producer, []).append(number)
    found: list[str] = []
    for index, task in enumerate(program.tasks):
        if task.host:
            moved.update(made.get(index, ()))
        elif any(access.storage in moved for access in accesses.of_task[index]):
            found.append(task.name)
            moved.update(number for number in made.get(index, ()) if accesses.storages[number].host)
    return frozenset(found)


class _Cutter:
    def __init__(self, issues: tuple[Issue, ...], eager: frozenset[str], period: int, host_lanes: Collection[str]) -> None:
        self.period, self.eager, self.host_lanes = period, eager, host_lanes
        self.lane_of = {issue.task: issue.lane for issue in issues}
        self.on_host = {issue.task for issue in issues if issue.lane in host_lanes}
        self.host_tasks = self.on_host - {SOURCE, DELIVER}
        self.last: dict[str, str] = {}  # by lane: its latest task, of the iteration before at first
        self.in_block: set[str] = set()
        for issue in issues:
            if issue.task not in (RESULT, *self.on_host):
                self.last[issue.lane] = issue.task
        # Results are handed over behind the tasks of a block: what that waits for on main, main's next task waits for.
        self.carried = tuple(
            Back(back.name, back.by + 1) for issue in issues if issue.task == RESULT for back in self.for_device(issue)
        )
        self.place: dict[str, tuple[int, int]] = {}
        self.hosts = 0
        self.first: dict[Back, None] = {}
        self.latest: list[Back] = []
        self.shown: set[str] = set()
        self.inner: set[str] = set()
        self.found: dict[tuple[int, int, PieceKind], list[Member]] = {}

    def for_device(self, issue: Issue) -> list[Back]:
        """The waits for device tasks: everything is behind entry, and no event waits for a host task."""
        return [back for back in issue.waits if back.name not in self.on_host and back.name != ENTRY]

    def add(self, issue: Issue) -> None:
        waits = self.for_device(issue)
        if issue.task == SOURCE:
            self.shown.update(back.name for back in waits)  # whoever pulls the item has waited
        elif issue.lane in self.host_lanes:
            self.host(issue, waits)
        elif issue.task != RESULT:
            self.device(issue, waits)

    def host(self, issue: Issue, waits: list[Back]) -> None:
        self.first.update((back, None) for back in waits if back.by >= self.period)
        outside = tuple(back for back in waits if back.by < self.period)
        self.shown.update(back.name for back in waits)
        if issue.task == DELIVER:
            self.latest += outside
            return
        self.hosts += 1
        self.place[issue.task] = (self.hosts, 0)
        self.found[self.hosts, -1, "host"] = [Member(issue, (), outside)]

    def device(self, issue: Issue, waits: list[Back]) -> None:
        task, lane, is_eager = issue.task, issue.lane, issue.task in self.eager
        if lane == MAIN:
            waits += self.carried
            self.carried = ()
        before = self.last[lane]
        follows = Back(before, 0 if before in self.in_block else 1)
        self.last[lane] = task
        # Two eager launches of a lane follow each other on its stream. An item is copied on the caller's own.
        if not (is_eager and before in self.eager and ITEM not in (task, before)):
            waits.append(follows)
        here = [back.name for back in (*issue.waits, follows) if back.by == 0 and back.name in self.place]
        place = max((self.after(name, is_eager) for name in here), default=(0, 0))
        self.place[task] = place
        self.in_block.add(task)
        inside, outside = [], []
        for back in dict.fromkeys(waits):
            if back.by >= self.period:
                continue  # that iteration has ended
            same = back.by == 0 and not is_eager and back.name not in self.eager and self.place.get(back.name) == place
            if not same:
                outside.append(back)
            elif self.lane_of[back.name] != lane:
                inside.append(back.name)
        self.shown.update(back.name for back in outside)
        self.inner.update(inside)
        # An iteration begins once its item is there and the caller has taken the results that were due before it.
        hosts = tuple(back for back in issue.waits if back.name in self.host_tasks)
        member = Member(issue, tuple(inside), tuple(outside), hosts)
        self.found.setdefault((*place, "eager" if is_eager else "part"), []).append(member)

    def after(self, name: str, is_eager: bool) -> tuple[int, int]:
        """The first place for a launch that follows `name`: the same one, but an eager launch comes before the part of its place."""
        hosts, round = self.place[name]
        return (hosts, round + (is_eager and name not in self.eager and name not in self.on_host))

    def done(self, looked_at: frozenset[str]) -> Cut:
        pieces: list[Piece] = []
        for (_, _, kind), members in sorted(self.found.items(), key=lambda entry: entry[0]):
            pieces += [Piece("part", tuple(members))] if kind == "part" else [Piece(kind, (member,)) for member in members]
        shown = frozenset(self.shown) | looked_at
        return Cut(tuple(pieces), shown, frozenset(self.inner), tuple(self.first), tuple(self.latest), self.period)


def issues_of(schedule: Schedule) -> tuple[Issue, ...]:
    """A schedule as what is issued for one iteration of a loop, run after run: `previous` is the iteration before.

    Entry and exit are left out, and what lanes do behind their last task; what the host waits for in the end is a last issue, `deliver`.
    """
    task_of = schedule.event_task
    recorded = {step.task for step in schedule.steps if isinstance(step, Record)}
    waits: dict[str, list[Back]] = {}
    before: dict[str, list[Back]] = {}
    issues: list[Issue] = []
    latest: dict[str, int] = {}  # by lane: the place of its latest issue, while no wait has followed
    for step in schedule.steps:
        match step:
            case Wait(event, lane):
                waits.setdefault(lane, []).append(Back(task_of[event], 0))
                latest.pop(lane, None)
            case HostWait(event, previous):
                waits.setdefault(HOST, []).append(Back(task_of[event], int(previous)))
                latest.pop(HOST, None)
            case Release(storage, lane, False) if lane in latest:
                issue = issues[latest[lane]]
                dropped = (*issue.releases_after, Back(storage, 0))
                issues[latest[lane]] = replace(issue, releases_after=dropped)
            case Release(storage, lane, False):
                before.setdefault(lane, []).append(Back(storage, 0))
            case Launch(task, lane, urgent):
                latest[lane] = len(issues)
                around = tuple(waits.pop(lane, ())), tuple(before.pop(lane, ()))
                issues.append(Issue(task, lane, *around, task in recorded, urgent=urgent))
            case _:
                pass
    if HOST in waits:
        issues.append(Issue(DELIVER, HOST, tuple(waits[HOST])))
    return tuple(issues)
