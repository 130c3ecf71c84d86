"""Resources × lanes: a Schedule becomes, resource by resource, who touches it on which lane, and what keeps the order between two lanes.

That is an event that is waited for, or other waits that imply the order. What only one lane touches needs no event, and is only named.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from streamgraph.hazards import find_hazards
from streamgraph.model import ENTRY, HOST, Kind
from streamgraph.render.memory import place_of
from streamgraph.schedule import HostWait, Launch, Record, Schedule, Wait
from streamgraph.storages import Access, Mode, meets

LAST = 1 << 60  # the caller comes after every turn of a slot
MOST_LINES = 24  # of one resource


@dataclass(frozen=True, slots=True)
class Use:
    """A task's access to a resource; the caller on the host has the number behind the last task.

    `line` counts from 0 inside the resource: uses on one line may happen in any order.
    """

    task: int
    lane: int
    mode: Mode
    tensor: str
    line: int


@dataclass(frozen=True, slots=True)
class Order:
    """Use `later` follows use `earlier` on another lane (numbers of uses): by `event`, or, if that is None, by other waits."""

    earlier: int
    later: int
    kind: str
    event: str | None


@dataclass(frozen=True, slots=True)
class Resource:
    """A storage that several lanes touch. `left_out` counts uses beyond the first lines."""

    label: str
    about: str
    uses: tuple[Use, ...]
    orders: tuple[Order, ...]
    left_out: int


def resources(schedule: Schedule) -> tuple[tuple[Resource, ...], tuple[str, ...]]:
    """The resources that more than one lane touches, in declaration order, and the labels of all others."""
    program, accesses = schedule.program, schedule.accesses
    lane_number = {lane.name: number for number, lane in enumerate(schedule.lanes)}
    lane = [lane_number[schedule.lane_of[task.name]] if task.name in schedule.lane_of else -1 for task in program.tasks]
    touched: list[dict[tuple[int, int], list[Access]]] = [{} for _ in accesses.storages]  # by turn and task
    caller = len(program.tasks)
    lane.append(lane_number.get(HOST, -1))
    for number, all_of_it in enumerate(accesses.of_task):
        for access in all_of_it:
            touched[access.storage].setdefault((access.turn, number), []).append(access)
    for number in sorted(accesses.output_storages):
        if accesses.storages[number].host:
            touched[number][LAST, caller] = [Access(number, None, Mode.READ, accesses.storages[number].label)]
    ordered = {(hazard.earlier, hazard.later) for hazard in find_hazards(program, accesses)}
    events = _events(schedule)
    found: list[Resource] = []
    alone: list[str] = []
    for storage, its in zip(accesses.storages, touched, strict=True):
        if not its:
            continue
        if len({lane[task] for _, task in its if lane[task] >= 0}) < 2:
            alone.append(storage.label)
            continue
        uses: list[Use] = []
        orders: list[Order] = []
        made: list[list[Access]] = []
        for (_, task), together in sorted(its.items(), key=lambda entry: entry[0]):
            before = {
                n: kind for n, use in enumerate(uses)
                if (task == caller or (use.task, task) in ordered) and (kind := _hazard(made[n], together))
            }  # fmt: skip
            same = [use.line + 1 for use in uses if use.lane == lane[task]]
            line = max([*(uses[n].line + 1 for n in before), *same], default=0)
            if line >= MOST_LINES or lane[task] < 0:
                break
            orders += [
                Order(n, len(uses), kind, events.get((uses[n].task, task))) for n, kind in before.items() if uses[n].lane != lane[task]
            ]
            uses.append(Use(task, lane[task], _mode(together), ", ".join(dict.fromkeys(access.tensor for access in together)), line))
            made.append(together)
        tensor_type = program.tensor_named[storage.tensor].type
        place = "" if storage.kind is Kind.RESOURCE and not storage.host else f"{place_of(storage, program)} memory"
        kind = "ring slot" if storage.version == 0 and storage.label != storage.tensor else storage.kind.value
        about = ", ".join(part for part in (kind, str(tensor_type) if tensor_type else "", place) if part)
        found.append(Resource(storage.label, about, tuple(uses), tuple(orders), len(its) - len(uses)))
    return tuple(found), tuple(alone)


def _mode(together: list[Access]) -> Mode:
    modes = {access.mode for access in together}
    return together[0].mode if len(modes) == 1 else Mode.UPDATE


def _hazard(earlier: list[Access], later: list[Access]) -> str:
    """What orders two tasks on one storage: RAW, WAR or WAW, or nothing if they only read, or touch other parts of it."""
    kinds: list[str] = []
    for one, two in itertools.product(earlier, later):
        if one.turn == two.turn and not meets(one.box, two.box):
            continue
        if one.mode is not Mode.READ:
            kinds.append("WAW" if two.mode is Mode.WRITE else "RAW")
        elif two.mode is not Mode.READ:
            kinds.append("WAR")
    return ", ".join(dict.fromkeys(kinds))


def _events(schedule: Schedule) -> dict[tuple[int, int], str]:
    """The event that a task waits for another task by, as (earlier, later) -> event."""
    index = schedule.program.index_of_task
    recorded: dict[str, str] = {}
    pending: dict[str, list[str]] = {}
    found: dict[tuple[int, int], str] = {}
    for step in schedule.steps:
        match step:
            case Record(event, _, task):
                recorded[event] = task
            case Wait(event, lane):
                pending.setdefault(lane, []).append(event)
            case Launch(task, lane):
                for event in pending.pop(lane, ()):
                    source = recorded.get(event, ENTRY)
                    if source in index:
                        found[index[source], index[task]] = event
            case HostWait(event, False) if recorded.get(event) in index:
                found[index[recorded[event]], len(index)] = event
            case _:
                pass
    return found
