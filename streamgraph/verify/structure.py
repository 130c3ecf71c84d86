"""Structure: a Schedule becomes the faults that show without clocks: steps that are missing, repeated, or mean nothing where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

from typing_extensions import assert_never

from streamgraph.devices import first_device, of_tasks
from streamgraph.model import ENTRY, HOST, MAIN, Program
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Step, Wait
from streamgraph.storages import Access, Accesses, Storage, meets


@dataclass(frozen=True, slots=True)
class Fault:
    """One step (None: one that is missing) that does not belong where it is. `subject` is a task, lane, event or storage."""

    code: str
    kind: str
    step: int | None
    subject: str
    message: str
    help: str
    task: str = ""
    lane: str = ""


def faults(schedule: Schedule, program: Program, accesses: Accesses) -> Iterator[Fault]:
    """Every fault, the lanes first, then step by step, then what is missing."""
    yield from _lanes(schedule)
    yield from _crowded(program, accesses)
    reader = _Reader(schedule, program, accesses)
    for number, step in enumerate(schedule.steps):
        reader.step(number, step)
        if reader.found:
            yield from reader.found
            reader.found.clear()
    yield from reader.missing()


def _lanes(schedule: Schedule) -> Iterator[Fault]:
    names = [lane.name for lane in schedule.lanes]
    if names[:1] != [MAIN]:
        yield _structure(None, MAIN, "the first lane is not 'main', the caller's stream", "list `main` first")
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield _structure(None, name, f"lane '{name}' is listed twice", "list it once")
    if HOST in names[:-1]:
        yield _structure(None, HOST, "lane 'host' is not the last lane", "list `host` last")


def _crowded(program: Program, accesses: Accesses) -> Iterator[Fault]:
    """One task that uses two occupants of a ring slot at once: no order of steps can make that right."""
    shared = [len(storage.members) > 1 for storage in accesses.storages]
    for task, touched in zip(program.tasks, accesses.of_task, strict=True):
        by_slot: dict[int, dict[int, list[Access]]] = {}
        for access in touched:
            if shared[access.storage]:
                by_slot.setdefault(access.storage, {}).setdefault(access.turn, []).append(access)
        for slot, by_turn in by_slot.items():
            for one, two in combinations(by_turn.values(), 2):
                for first, second in product(one, two):
                    if meets(first.box, second.box):
                        label = accesses.storages[slot].label
                        text = f"'{task.name}' uses '{first.tensor}' and '{second.tensor}', which take turns in {label}"
                        yield _structure(None, label, text, "give the ring more slots", task=task.name)


def _structure(step: int | None, subject: str, message: str, remedy: str, task: str = "", lane: str = "") -> Fault:
    return Fault("SG702", "structure", step, subject, message, remedy, task, lane)


class _Reader:
    """Goes through the steps in issue order, knowing what has been seen so far."""

    def __init__(self, schedule: Schedule, program: Program, accesses: Accesses) -> None:
        self.program, self.accesses = program, accesses
        self.device_of_task, self.device_of_lane = of_tasks(program), {MAIN: first_device(program)}
        self.lanes = {lane.name for lane in schedule.lanes}
        self.storages = {storage.label: number for number, storage in enumerate(accesses.storages)}
        self.events = {step.event for step in schedule.steps if isinstance(step, Record)}
        self.found: list[Fault] = []  # at the newest step
        # The step that did it, or -1, by number of the task or storage: at a million, each look into a dictionary leaves the cache.
        self.launched = [-1] * len(program.tasks)
        self.released = [-1] * len(accesses.storages)
        self.freed_now = [-1] * len(accesses.storages)
        self.lane_of: list[str | None] = [None] * len(program.tasks)
        for name, lane in schedule.lane_of.items():
            if name in program.index_of_task:
                self.lane_of[program.index_of_task[name]] = lane
        self.newest: dict[str, str] = {}  # lane -> what was launched on it last
        self.recorded: dict[str, int] = {}

    def step(self, number: int, step: Step) -> None:
        lane = HOST if isinstance(step, HostWait) else step.lane
        if lane not in self.lanes:
            text = f"step {number} is on lane '{lane}', which the schedule does not list"
            self.found.append(_structure(number, lane, text, "list the lane", lane=lane))
        match step:
            case Launch():
                self._launch(number, step)
            case Record():
                self._record(number, step)
            case Wait(event, lane):
                if lane == HOST:
                    text = f"step {number}: the host cannot `wait` for '{event}', which blocks a stream"
                    self.found.append(Fault("SG704", "event", number, event, text, f"write: hostwait {event}", lane=lane))
                self._wait(number, event, lane)
            case HostWait(event, previous):
                if previous:
                    self._wait_previous(number, event)
                else:
                    self._wait(number, event, HOST)
            case Release():
                self._release(number, step)
            case RecordStream():
                self._record_stream(number, step)
            case _:
                assert_never(step)

    def _launch(self, number: int, step: Launch) -> None:
        name, lane = step.task, step.lane
        self.newest[lane] = name
        index = self.program.index_of_task.get(name)
        if index is None:
            text = f"step {number} launches '{name}', which the program does not have"
            self.found.append(_structure(number, name, text, "plan again", name, lane))
            return
        if self.launched[index] >= 0:
            text = f"'{name}' is launched twice, by step {self.launched[index]} and step {number}"
            self.found.append(_structure(number, name, text, "launch each task once", name, lane))
            return
        self.launched[index] = number
        task = self.program.tasks[index]
        if task.host and lane != HOST:
            text = f"'{name}' is a host task, but step {number} launches it on @{lane}"
            self.found.append(_structure(number, name, text, "launch it @host", name, lane))
        elif lane == HOST and not task.host:
            text = f"'{name}' is not a host task, but step {number} launches it on @host"
            self.found.append(_structure(number, name, text, "launch it on a stream, or declare it `host: true`", name, lane))
        elif task.stream is not None and not task.host and lane != task.stream:
            text = f"'{name}' is pinned to stream '{task.stream}', but step {number} launches it on @{lane}"
            self.found.append(_structure(number, name, text, f"launch it @{task.stream}", name, lane))
        if step.urgent and lane == HOST:
            text = f"step {number} launches '{name}' @host as urgent, but only kernels have a priority"
            self.found.append(_structure(number, name, text, "leave `urgent` out", name, lane))
        if not task.host and lane != HOST:
            own = self.device_of_task[index]
            lanes = self.device_of_lane.setdefault(lane, own)
            if own != lanes:
                text = f"'{name}' belongs to {own}, but step {number} launches it on @{lane}, a stream of {lanes}"
                self.found.append(_structure(number, name, text, "launch it on a lane of its device", name, lane))

    def _record(self, number: int, step: Record) -> None:
        event, lane, task = step.event, step.lane, step.task
        if event in self.recorded:
            text = f"event '{event}' is recorded twice, by step {self.recorded[event]} and step {number}: waits would mean the later one"
            self.found.append(Fault("SG704", "event", number, event, text, "give each record its own event", task, lane))
            return
        self.recorded[event] = number
        if task == ENTRY:
            if lane != MAIN or MAIN in self.newest:
                text = f"step {number} records '{event}' as the caller's work before the run, but not at the start of @main"
                self.found.append(Fault("SG704", "event", number, event, text, "record it on @main before everything", task, lane))
        elif task not in self.program.index_of_task:
            text = f"step {number} records '{event}' after '{task}', which the program does not have"
            self.found.append(_structure(number, event, text, "name a task or `entry`", task, lane))
        elif self.newest.get(lane) != task:
            text = f"step {number} records '{event}' as the end of '{task}', which is not what @{lane} was given last"
            self.found.append(Fault("SG704", "event", number, event, text, f"record it right after '{task}', on its lane", task, lane))

    def _wait(self, number: int, event: str, lane: str) -> None:
        if event in self.recorded:
            return
        if event in self.events:
            text = f"step {number} waits for event '{event}' before this run records it: CUDA would silently not wait"
            self.found.append(Fault("SG704", "event", number, event, text, "issue the record first", lane=lane))
        else:
            text = f"step {number} waits for event '{event}', which nothing records: CUDA would silently not wait"
            self.found.append(Fault("SG704", "event", number, event, text, "record it after the task that must be done", lane=lane))

    def _wait_previous(self, number: int, event: str) -> None:
        if event not in self.events:
            text = f"step {number} waits for event '{event}' of the previous run, which nothing records"
            self.found.append(Fault("SG704", "event", number, event, text, "record it after the task that must be done", lane=HOST))
        elif event in self.recorded:
            text = f"step {number} waits for event '{event}' of the previous run, but step {self.recorded[event]} has recorded it anew"
            self.found.append(Fault("SG704", "event", number, event, text, "move the hostwait above the record", lane=HOST))

    def _release(self, number: int, step: Release) -> None:
        label, lane = step.storage, step.lane
        index = self.storages.get(label)
        if index is None:
            text = f"step {number} releases '{label}', which the program does not have"
            self.found.append(_structure(number, label, text, "plan again", lane=lane))
            return
        storage = self.accesses.storages[index]
        home = self._allocated_on(storage)
        problem = remedy = ""
        if self.released[index] >= 0:
            problem, remedy = f"'{label}' is released twice, by step {self.released[index]} and step {number}", "release it once"
        elif index in self.accesses.output_storages:
            problem, remedy = f"step {number} releases '{label}', an output, which belongs to the caller", "leave the release out"
        elif not storage.version:
            problem, remedy = f"step {number} releases '{label}', which outlives the run", "leave the release out"
        elif home is not None and lane != home:
            problem = f"step {number} releases '{label}' on @{lane}, but its memory goes back to @{home}, which allocated it"
            remedy = f"release it @{home}"
        if problem:
            self.found.append(Fault("SG705", "release", number, label, f"{problem} (release {label})", remedy, lane=lane))
        if self.released[index] < 0:
            self.released[index] = number
        if not step.previous and self.freed_now[index] < 0:
            self.freed_now[index] = number

    def _record_stream(self, number: int, step: RecordStream) -> None:
        label, lane = step.storage, step.lane
        index = self.storages.get(label)
        if index is None:
            text = f"step {number} is a record_stream of '{label}', which the program does not have"
            self.found.append(_structure(number, label, text, "plan again", lane=lane))
            return
        storage = self.accesses.storages[index]
        home = self._allocated_on(storage)
        why = ""
        if not storage.version:
            why = "its memory outlives the run"
        elif lane == HOST or home == HOST:
            why = "the host is no stream, and host memory has no record_stream"
        elif self.freed_now[index] >= 0:
            why = f"it comes after the release in step {self.freed_now[index]}"
        elif not self._is_made(storage):
            why = "nothing has made it yet"
        elif lane == home:
            why = f"@{lane} allocated it, and the allocator knows that lane already"
        if why:
            text = f"step {number}: record_stream of '{label}' for @{lane} does nothing: {why}"
            remedy = "leave it out, or record the lane that uses the memory"
            self.found.append(Fault("SG706", "record_stream", number, label, text, remedy, lane=lane))

    def missing(self) -> Iterator[Fault]:
        for step, task in zip(self.launched, self.program.tasks, strict=True):
            if step < 0:
                yield _structure(None, task.name, f"'{task.name}' is never launched", "launch each task once", task.name)
        for number, storage in enumerate(self.accesses.storages):
            if storage.version and number not in self.accesses.output_storages and self.released[number] < 0:
                text = f"'{storage.label}' is never released, in this run or in the next (release {storage.label})"
                remedy = f"add after its last use: release {storage.label} @{self._allocated_on(storage) or MAIN}"
                yield Fault("SG705", "release", None, storage.label, text, remedy)

    def _is_made(self, storage: Storage) -> bool:
        return storage.producer is not None and self.launched[storage.producer] >= 0

    def _allocated_on(self, storage: Storage) -> str | None:
        """The lane that a value's memory belongs to: its producer's, or the host's; None if it is made nowhere."""
        if storage.producer is None:
            return None
        return HOST if storage.host else self.lane_of[storage.producer]
