"""Loop: what is issued for item after item, with waits that reach back to earlier ones; and the flat Schedule of any number of them.

The first iterations stand as they are (`prologue`), one that repeats comes after (`steady`). `plan_loop.py` makes it; executors run it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from streamgraph.devices import first_device, of_tasks
from streamgraph.iterations import DELIVER, RESULT, at, kind_of, split, unroll
from streamgraph.model import ENTRY, HOST, MAIN, Program
from streamgraph.schedule import HostWait, Lane, Launch, Record, RecordStream, Release, Schedule, Step, Wait
from streamgraph.storages import trace


@dataclass(frozen=True, slots=True)
class Back:
    """The event or the value `name` of the iteration `by` before this one."""

    name: str
    by: int

    def __str__(self) -> str:
        return f"{self.name}[-{self.by}]" if self.by else self.name


@dataclass(frozen=True, slots=True)
class Issue:
    """One task of an iteration with what is issued around it, in this order: waits, releases, the launch, the record, more releases.

    `task` is a task of the program or a pseudo-task (`item`, `source`, `result`, `deliver`). A wait names the task whose event it is;
    `entry` is the caller's work before the loop. `record_streams` are values for the caller, whose stream `lane` is, that another lane
    allocated.
    `urgent` is as in a launch.
    """

    task: str
    lane: str
    waits: tuple[Back, ...] = ()
    releases_before: tuple[Back, ...] = ()
    record: bool = False
    releases_after: tuple[Back, ...] = ()
    record_streams: tuple[str, ...] = ()
    urgent: bool = False

    def __str__(self) -> str:
        parts = [f"wait {wait}" for wait in self.waits] + [f"release {drop}" for drop in self.releases_before]
        parts.append(f"launch {self.task}{' urgent' if self.urgent else ''}")
        parts += ["record"] * self.record + [f"release {drop}" for drop in self.releases_after]
        parts += [f"record_stream {name}" for name in self.record_streams]
        return f"@{self.lane:<8} " + "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Loop:
    """What is issued for item 0, 1, ...: `prologue[i]`, then `steady` again and again. `lanes` as in a Schedule.

    `inflight`: how many items may be under way before the caller has taken the first result. `reach`: how many iterations back a wait or
    release may look. `proved`: how many iterations the verifier has seen written out. `main` is the lane of the tasks that a single run has
    on `main`, `caller` that of the pseudo-tasks of the caller's host thread: `main` and `host` unless the caller is apart (`plan_loop.py`).
    `callers` are (device, lane) of the caller's streams on further devices, from which items come and to which results go.
    """

    program: Program
    per_item: frozenset[str]
    inflight: int
    lanes: tuple[Lane, ...]
    prologue: tuple[tuple[Issue, ...], ...]
    steady: tuple[Issue, ...]
    reach: int
    proved: int = 0
    main: str = MAIN
    caller: str = HOST
    callers: tuple[tuple[str, str], ...] = ()

    @property
    def has_devices(self) -> bool:
        """Whether the program lies on several devices."""
        return len(self.program.devices) > 1

    @property
    def device_of(self) -> dict[str, str]:
        """The device of each lane that is a stream: that of its tasks. "device" is the run's, in a program that names none."""
        first = first_device(self.program)
        of_task = dict(zip(self.program.index_of_task, of_tasks(self.program), strict=True))
        found = {lane: device for device, lane in self.callers}
        found |= {issue.lane: of_task[issue.task] for issue in self.steady if issue.task in of_task}
        return {lane.name: found.get(lane.name, first) for lane in self.lanes if lane.name not in self.host_lanes}

    @property
    def host_lanes(self) -> frozenset[str]:
        """The lanes that are host threads and no streams: of host tasks, and of the caller."""
        return frozenset((HOST, self.caller))

    @property
    def host_events(self) -> frozenset[str]:
        """The tasks whose events are recorded by host threads."""
        return frozenset(issue.task for issue in self.steady if issue.lane in self.host_lanes)

    def block(self, iteration: int) -> tuple[Issue, ...]:
        """What is issued for one iteration."""
        return self.prologue[iteration] if iteration < len(self.prologue) else self.steady

    def __str__(self) -> str:
        lines = [f"# {self.program.name}: {self.inflight} items in flight, steady after {len(self.prologue)} iterations"]
        for number, block in enumerate(self.prologue):
            lines += [f"# iteration {number}", *map(str, block)]
        return "\n".join([*lines, "# every later iteration", *map(str, self.steady)]) + "\n"

    def schedule(self, count: int) -> Schedule:
        """The loop for `count` items as one flat Schedule of the program written out, to look at, to draw and to verify."""
        written = unroll(self.program, count, self.per_item, self.inflight, self.main, self.caller, dict(self.callers))
        return Schedule(written.program, self.lanes, tuple(_WrittenOut(self, written.program, written.blocks[-1]).steps(count)))

    def own(self, task: str, iteration: int) -> int:
        """The iteration that a task issued in the block of `iteration` belongs to: results are taken `inflight - 1` blocks later."""
        return iteration - self.inflight + 1 if kind_of(task) in (RESULT, DELIVER) else iteration


class _WrittenOut:
    """Writes the iterations of a loop as steps, then its end: main joins every lane, the host joins them all, what is left is dropped."""

    def __init__(self, loop: Loop, program: Program, rest: tuple[str, ...]) -> None:
        self.loop, self.program, self.rest = loop, program, rest
        accesses = trace(program)[0]
        self.inside = {
            storage.label: storage
            for number, storage in enumerate(accesses.storages)
            if storage.producer is not None and number not in accesses.output_storages
        }
        self.made: dict[str, list[str]] = {}
        for label, storage in self.inside.items():
            self.made.setdefault(program.tasks[storage.producer or 0].name, []).append(label)
        self.lane_of: dict[str, str] = {}
        self.last: dict[str, str] = {MAIN: ENTRY}  # by lane
        self.recorded: set[str] = set()
        self.alive: dict[str, None] = {}

    def steps(self, count: int) -> Iterator[Step]:
        if any(back.name == ENTRY for number in range(count) for issue in self.loop.block(number) for back in issue.waits):
            yield from self.record(MAIN)
        for number in range(count):
            for issue in self.loop.block(number):
                yield from self.issue(issue, number)
        yield from self.end()

    def issue(self, issue: Issue, number: int) -> Iterator[Step]:
        for back in issue.waits:
            event = ENTRY if back.name == ENTRY else at(back.name, number - back.by)
            yield HostWait(event) if issue.lane == HOST else Wait(event, issue.lane)
        yield from self.drop(issue.releases_before, number)
        own = self.loop.own(issue.task, number)
        yield from self.launch(at(issue.task, own), issue.lane, urgent=issue.urgent)
        if issue.record:
            yield from self.record(issue.lane)
        yield from self.drop(issue.releases_after, number)
        yield from self.hand_over(issue, own)

    def hand_over(self, issue: Issue, iteration: int) -> Iterator[Step]:
        for value in issue.record_streams:
            yield RecordStream(_label(value, iteration), MAIN)

    def launch(self, name: str, lane: str, *, urgent: bool = False) -> Iterator[Step]:
        self.lane_of[name], self.last[lane] = lane, name
        self.alive.update((label, None) for label in self.made.get(name, ()))
        yield Launch(name, lane, urgent)

    def record(self, lane: str) -> Iterator[Step]:
        """Record an event after the lane's last task, if there is none yet."""
        if self.last[lane] not in self.recorded:
            self.recorded.add(self.last[lane])
            yield Record(self.last[lane], lane, self.last[lane])

    def drop(self, values: tuple[Back, ...], iteration: int) -> Iterator[Step]:
        for value in values:
            label = _label(value.name, iteration - value.by)
            if label in self.alive:
                del self.alive[label]
                yield Release(label, self.owner(label))

    def owner(self, label: str) -> str:
        storage = self.inside[label]
        return HOST if storage.host else self.lane_of[self.program.tasks[storage.producer or 0].name]

    def end(self) -> Iterator[Step]:
        callers = [lane for _, lane in self.loop.callers]
        sides = [lane.name for lane in self.loop.lanes if lane.name not in (MAIN, HOST, *callers) and lane.name in self.last]
        if callers:
            yield from self.record(MAIN)
        for lane in sides:
            yield from self.record(lane)
            yield Wait(self.last[lane], MAIN)
        for caller in callers:
            for lane in (MAIN, *sides):
                yield Wait(self.last[lane], caller)
        taken = {issue.task: issue for issue in self.loop.steady if kind_of(issue.task) == RESULT}
        made = [issue.lane for issue in taken.values()] if any(task.host for task in self.loop.program.tasks) else []
        if made:
            # A host task may have made what is handed over. Every thread has come to its end by then.
            yield from self.record(HOST)
            for lane in made:
                yield Wait(self.last[HOST], lane)
        for name in self.rest:
            if split(name)[0] in taken:
                result = taken[split(name)[0]]
                yield from self.launch(name, result.lane)
                yield from self.hand_over(result, split(name)[1])
        for caller in callers:
            if caller in self.last:
                yield from self.record(caller)
                yield Wait(self.last[caller], MAIN)
        # An event stands right after its task, so main's own waits are behind none of them: whoever joins, joins every lane.
        yield from self.record(MAIN)
        ends = [(lane, self.last[lane]) for lane in (MAIN, *sides, *callers) if lane in self.last]
        for _, event in ends:
            yield HostWait(event)
        yield from self.deliver(ends)
        for lane in dict.fromkeys(self.owner(label) for label in self.alive):
            for other, event in ends:
                if lane not in (MAIN, HOST, other):
                    yield Wait(event, lane)
        if HOST in self.last:
            yield Wait(self.last[HOST], MAIN)
        for label in self.alive:
            yield Release(label, self.owner(label))

    def deliver(self, ends: list[tuple[str, str]]) -> Iterator[Step]:
        """The caller takes what is left in host memory, once every lane is at its end."""
        caller = self.loop.caller
        rest = [name for name in self.rest if split(name)[0] == DELIVER]
        if caller == HOST:
            for name in rest:
                yield from self.launch(name, HOST)
        elif rest:
            if HOST in self.last:
                yield from self.record(HOST)
            for lane, event in (*ends, (HOST, self.last.get(HOST, ""))):
                if lane != caller and event:
                    yield Wait(event, caller)
            for name in rest:
                yield from self.launch(name, caller)
            yield from self.record(caller)
            yield HostWait(self.last[caller])
            yield Wait(self.last[caller], MAIN)
        if HOST in self.last:
            yield from self.record(HOST)
            ends.append((HOST, self.last[HOST]))


def _label(value: str, iteration: int) -> str:
    tensor, _, version = value.rpartition(".")
    return f"{at(tensor, iteration)}.{version}"
