"""Order: a Program and the clocks of a schedule become the pairs that must be ordered and are not.

Pairs are looked for where one failure stands for many: the first task of a lane for `entry`, the last for `exit`, neighbours for
conflicts. A value's release is the later side of all its uses: with the lane that allocated it, and the lanes that `record_stream`
named, the allocator must know all uses to be done. Allocation needs no rule of its own: memory that is free on a lane is free for
what follows on that lane, and the caller's is since `entry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from streamgraph.model import ENTRY, EXIT, HOST, Kind, Program
from streamgraph.schedule import Release, Schedule
from streamgraph.storages import Accesses, Mode
from streamgraph.verify.clocks import Clocks, Point
from streamgraph.verify.conflicts import unordered_conflicts


@dataclass(frozen=True, slots=True)
class Pair:
    """`earlier` must happen before `later` and does not. Both are tasks or pseudo-tasks; `later` is "" where memory is given back.

    `kind` is conflict, after, host order, entry, exit, result (the caller reads on the host), release (by step `release`), or output
    (the caller drops it). `storage` is a number, -1 if no memory is meant. `across`: the later side belongs to the next run.
    """

    kind: str
    storage: int
    earlier: str
    later: str
    before: Point
    after: Point
    across: bool = False
    release: int | None = None

    @property
    def is_reversed(self) -> bool:
        """Whether the later side even happens before the earlier one, so that no wait can help."""
        return self.later != "" and self.before.follows(self.after.lane, self.after.position)

    def implies(self, other: Pair) -> bool:
        """Whether an edge between the two sides of this pair would order the other pair too."""
        if self.later == "" and (self.release, self.storage) != (other.release, other.storage):
            return False  # giving memory back is no task: nothing follows it but the next owner
        return (
            (self.earlier, self.later, self.across, self.release) != (other.earlier, other.later, other.across, other.release)
            and self.before.follows(other.before.lane, other.before.position)
            and other.after.follows(self.after.lane, self.after.position)
        )


def unordered_pairs(schedule: Schedule, program: Program, accesses: Accesses, clocks: Clocks) -> Iterator[Pair]:
    """Every pair that misses its order, up to those that another one implies through the order of a lane."""
    tasks, count = program.tasks, clocks.tasks
    for storage, earlier, later in unordered_conflicts(accesses, clocks):
        names = tasks[earlier % count].name, tasks[later % count].name
        yield Pair("conflict", storage, *names, clocks.point(earlier), clocks.point(later), across=later >= count > earlier)
    yield from _after(program, clocks)
    yield from _host_order(program, clocks)
    yield from _entry_and_exit(program, clocks)
    yield from _results(program, accesses, clocks)
    yield from _releases(schedule, program, accesses, clocks)
    yield from _handed_over(accesses, clocks)


def _after(program: Program, clocks: Clocks) -> Iterator[Pair]:
    for later, task in enumerate(program.tasks):
        for name in task.after:
            earlier = program.index_of_task.get(name, -1)
            if earlier >= 0 and min(clocks.lane[earlier], clocks.lane[later]) >= 0 and not clocks.ordered(earlier, later):
                yield Pair("after", -1, name, task.name, clocks.point(earlier), clocks.point(later))


def _host_order(program: Program, clocks: Clocks) -> Iterator[Pair]:
    # Host tasks may print or write files, so they keep the order of declaration whatever they touch.
    host = clocks.lanes.index(HOST)
    on_host = [number for number, task in enumerate(program.tasks) if task.host and clocks.lane[number] == host]
    for earlier, later in pairwise(on_host):
        if not clocks.ordered(earlier, later):
            names = program.tasks[earlier].name, program.tasks[later].name
            yield Pair("host order", -1, *names, clocks.point(earlier), clocks.point(later))


def _entry_and_exit(program: Program, clocks: Clocks) -> Iterator[Pair]:
    entry, leave, host = clocks.entry, clocks.exit, clocks.lanes.index(HOST)
    first, last = [-1] * len(clocks.lanes), [-1] * len(clocks.lanes)
    for task, lane in enumerate(clocks.lane):
        if lane < 0:
            continue
        position = clocks.position[task]
        if first[lane] < 0 or position < clocks.position[first[lane]]:
            first[lane] = task
        if last[lane] < 0 or position > clocks.position[last[lane]]:
            last[lane] = task
    for lane, task in enumerate(first):
        # The host lane begins where the caller's own host thread is, whatever the caller has queued on the device.
        if task >= 0 and lane != host and not clocks.point(task).follows(0, entry.position):
            yield Pair("entry", -1, ENTRY, program.tasks[task].name, entry, clocks.point(task))
    for lane, task in enumerate(last):
        if task >= 0 and not leave.follows(lane, clocks.position[task]):
            yield Pair("exit", -1, program.tasks[task].name, EXIT, clocks.point(task), leave)


def _results(program: Program, accesses: Accesses, clocks: Clocks) -> Iterator[Pair]:
    # A result in host memory is the caller's to read and to change: every use of it comes first. Of an input only what is written is news.
    outputs, host = accesses.output_storages, clocks.host
    theirs = [storage.host and number in outputs for number, storage in enumerate(accesses.storages)]
    shown = [storage.host and storage.kind is Kind.INPUT for storage in accesses.storages]
    for task, touched in enumerate(accesses.of_task):
        lane, position = clocks.lane[task], clocks.position[task]
        for access in touched:
            concerns = theirs[access.storage] or (shown[access.storage] and access.mode is not Mode.READ)
            if concerns and lane >= 0 and not host.follows(lane, position):
                yield Pair("result", access.storage, program.tasks[task].name, HOST, clocks.point(task), host)


def _releases(schedule: Schedule, program: Program, accesses: Accesses, clocks: Clocks) -> Iterator[Pair]:
    released: dict[str, tuple[int, bool]] = {}
    for number in clocks.freed:
        step = schedule.steps[number]
        if isinstance(step, Release):
            released.setdefault(step.storage, (number, step.previous))
    step_of = [released.get(storage.label) if storage.version else None for storage in accesses.storages]
    for task, touched in enumerate(accesses.of_task):
        lane = clocks.lane[task]
        for access in touched:
            release = step_of[access.storage]
            if release is None or lane < 0:
                continue
            number, across = release
            if not clocks.freed[number].follows(lane, clocks.position[task]):
                name, free = program.tasks[task].name, clocks.freed[number]
                yield Pair("release", access.storage, name, "", clocks.point(task), free, across, number)


def _handed_over(accesses: Accesses, clocks: Clocks) -> Iterator[Pair]:
    """Device outputs of side lanes: the caller drops them any time after the run, while main may be busy with them."""
    for storage in dict.fromkeys(storage for _, storage in accesses.outputs):
        made = accesses.storages[storage]
        lane = -1 if made.producer is None or made.host else clocks.lane[made.producer]
        if lane >= 0 and clocks.lanes[lane] != HOST:
            end = clocks.handed(made.label, lane)
            if not end.follows(0, clocks.exit.position):
                yield Pair("output", storage, EXIT, "", clocks.exit, end)
