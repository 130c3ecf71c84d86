"""The second oracle: every interleaving of a small schedule, visited one state at a time.

A state is how many tasks each lane has finished. From it, a lane may start its next task if what the lane waited for is finished; a pair is
broken if the later side may start (or memory may be given back) in some reachable state where the earlier side is not finished. Two runs
back to back. Nothing here is shared with the verifier's clocks: conflicts are sets of elements, order is reachability.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from streamgraph.model import HOST, Program
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Wait
from streamgraph.storages import Access, Accesses, Mode, Storage

Name = tuple[str, int]  # a task or pseudo-task, and its run
Place = tuple[int, int]  # a lane, and how many of its tasks must be finished
Needs = frozenset[Place]


class Broken(NamedTuple):
    """A pair that some interleaving breaks; `later` of a release reads `release x.1`."""

    earlier: str
    later: str
    across: bool = False


@dataclass
class Exploration:
    """What was found: pairs broken, states visited, and whether some state is stuck."""

    broken: set[Broken] = field(default_factory=set)
    states: int = 0
    stuck: bool = False


@dataclass
class Machine:
    """The two runs as lanes of (name, needs), and where the first run's memory is given back, as (label, by whom, needs)."""

    lanes: list[list[tuple[Name, Needs]]]
    frees: list[tuple[str, str, Needs]]

    def place(self) -> dict[Name, Place]:
        return {name: (lane, index + 1) for lane, queue in enumerate(self.lanes) for index, (name, _) in enumerate(queue)}


def machine(schedule: Schedule) -> Machine:
    """The schedule's two runs. A wait whose event this run has not recorded is none, as in CUDA."""
    lane_of = {lane.name: number for number, lane in enumerate(schedule.lanes)}
    lane_of.setdefault(HOST, len(lane_of))
    host = lane_of[HOST]
    lanes: list[list[tuple[Name, Needs]]] = [[] for _ in lane_of]
    pending: list[set[Place]] = [set() for _ in lane_of]
    frees: list[tuple[str, str, Needs]] = []
    events: dict[tuple[str, int], set[Place]] = {}
    recorded: dict[tuple[str, int], list[str]] = {}

    def put(name: str, run: int, lane: int) -> None:
        lanes[lane].append(((name, run), frozenset(pending[lane])))
        pending[lane].clear()

    def now(lane: int) -> set[Place]:
        return {(lane, len(lanes[lane])), *pending[lane]}

    for run in (0, 1):
        put("entry", run, 0)
        for step in schedule.steps:
            match step:
                case Launch(task, lane):
                    put(task, run, lane_of[lane])
                case Record(event, lane):
                    events[event, run] = now(lane_of[lane])
                case Wait(event, lane):
                    pending[lane_of[lane]] |= events.get((event, run), set())
                case HostWait(event, previous):
                    pending[host] |= events.get((event, run - previous), set())
                case RecordStream(storage, lane):
                    recorded.setdefault((storage, run), []).append(lane)
                case Release(storage, lane, previous):
                    needs = now(lane_of[lane])
                    for other in recorded.get((storage, run - previous), ()):
                        needs |= now(lane_of[other])
                    if run - previous == 0:
                        frees.append((storage, "next run" if previous else "run", frozenset(needs)))
        put("exit", run, 0)
        put("host", run, host)
        if run == 0:
            for _, storage in schedule.accesses.outputs:
                made = schedule.accesses.storages[storage]
                home = schedule.lane_of.get(schedule.program.tasks[made.producer].name) if made.producer is not None else None
                if not made.host and home is not None and home != HOST:
                    needs = now(lane_of[home])
                    for other in recorded.get((made.label, 0), ()):
                        needs |= now(lane_of[other])
                    frees.append((made.label, "caller", frozenset(needs)))
            for waiting in pending:
                waiting.add((host, len(lanes[host])))
    return Machine(lanes, frees)


def explore(schedule: Schedule, extra: Iterable[Broken] = ()) -> Exploration:
    """Every reachable state. `extra` pairs are ordered as if by one more wait each."""
    model = machine(schedule)
    place = model.place()
    for pair in extra:
        for run in (0, 1) if not pair.across else (0,):
            if pair.later.startswith("release "):
                label = pair.later.removeprefix("release ")
                model.frees = [
                    (name, whose, needs | {place[pair.earlier, 0]} if name == label else needs) for name, whose, needs in model.frees
                ]
            else:
                lane, count = place[pair.later, run + pair.across]
                name, needs = model.lanes[lane][count - 1]
                model.lanes[lane][count - 1] = (name, needs | {place[pair.earlier, run]})
    before = required(schedule.program, schedule.accesses, place)
    uses = _uses(schedule.program, schedule.accesses)
    found = Exploration()
    start = (0,) * len(model.lanes)
    seen = {start}
    stack = [start]
    while stack:
        state = stack.pop()
        found.states += 1
        moves = 0
        for lane, queue in enumerate(model.lanes):
            if state[lane] == len(queue):
                continue
            (name, run), needs = queue[state[lane]]
            if any(state[other] < count for other, count in needs):
                continue
            moves += 1
            for earlier, earlier_run in before.get((name, run), ()):
                other, count = place[earlier, earlier_run]
                if state[other] < count:
                    found.broken.add(Broken(earlier, name, run > earlier_run))
            following = (*state[:lane], state[lane] + 1, *state[lane + 1 :])
            if following not in seen:
                seen.add(following)
                stack.append(following)
        for label, whose, needs in model.frees:
            if all(state[lane] >= count for lane, count in needs):
                for user in ["exit"] if whose == "caller" else uses.get(label, []):
                    lane, count = place.get((user, 0), (0, 0))
                    if state[lane] < count:
                        found.broken.add(Broken(user, f"release {label}", whose == "next run"))
        found.stuck = found.stuck or (moves == 0 and any(count < len(queue) for count, queue in zip(state, model.lanes, strict=True)))
    return found


def required(program: Program, accesses: Accesses, place: dict[Name, Place]) -> dict[Name, list[Name]]:
    """What must be finished before each task of both runs starts: all pairs, straight from the meaning."""
    lanes = {name: where[0] for name, where in place.items()}
    host = lanes["host", 0]
    before: dict[Name, list[Name]] = {}

    def add(earlier: Name, later: Name) -> None:
        if earlier in place and later in place:
            before.setdefault(later, []).append(earlier)

    touched = [
        (access.turn, index, task.name, access, _elements(access, accesses.storages[access.storage], program))
        for index, task in enumerate(program.tasks)
        for access in accesses.of_task[index]
    ]
    for first, second in itertools.product(touched, repeat=2):
        (turn, index, earlier, a, some), (later_turn, later_index, later, b, others) = first, second
        if a.storage != b.storage or (a.mode is Mode.READ and b.mode is Mode.READ) or not some & others:
            continue
        if earlier != later and (turn, index) < (later_turn, later_index):
            add((earlier, 0), (later, 0))
            add((earlier, 1), (later, 1))
        if accesses.storages[a.storage].version == 0:
            add((earlier, 0), (later, 1))
    for task in program.tasks:
        for run in (0, 1):
            for name in task.after:
                add((name, run), (task.name, run))
            if lanes.get((task.name, run)) != host:
                add(("entry", run), (task.name, run))
            add((task.name, run), ("exit", run))
    hosts = [task.name for task in program.tasks if task.host]
    for earlier, later in itertools.combinations(hosts, 2):
        add((earlier, 0), (later, 0))
        add((earlier, 1), (later, 1))
    shown = {number for _, number in accesses.outputs}
    for _, _, name, access, _ in touched:
        storage = accesses.storages[access.storage]
        changed = storage.kind.value == "input" and access.mode is not Mode.READ
        if storage.host and (access.storage in shown or changed):
            add((name, 0), ("host", 0))
            add((name, 1), ("host", 1))
    return before


def _uses(program: Program, accesses: Accesses) -> dict[str, list[str]]:
    uses: dict[str, list[str]] = {}
    for task, touched in zip(program.tasks, accesses.of_task, strict=True):
        for access in touched:
            uses.setdefault(accesses.storages[access.storage].label, []).append(task.name)
    return uses


def _elements(access: Access, storage: Storage, program: Program) -> frozenset[tuple[int, ...]]:
    kind = program.tensor_named[storage.tensor].type
    shape = kind.shape if kind is not None else ()
    box = access.box if access.box is not None else tuple((0, size) for size in shape)
    return frozenset(itertools.product(*(range(*part) for part in box)))
