"""Explain: why a task waits, and why a hazard got no wait: which lane order and which other waits already imply it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from streamgraph.errors import Problem, SpecError, quoted
from streamgraph.model import ENTRY, EXIT, HOST
from streamgraph.names import near
from streamgraph.paths import Link, Paths, path_to
from streamgraph.schedule import HostWait, Reason, Record, RecordStream, Release, Schedule, Step, Wait
from streamgraph.storages import Access, Mode, meets

USERS = 5  # tasks named for a tensor
SHOWN = 40  # relations told in each direction; all of them are in `Explanation.relations`


@dataclass(frozen=True, slots=True)
class Relation:
    """How two tasks are ordered: the hazards between them, and the links of the schedule that lead from one to the other with fewest waits.

    No links: nothing orders them. One link with an event: a wait of its own. Otherwise the hazards are implied.
    """

    earlier: str
    later: str
    hazards: tuple[Reason, ...]
    path: tuple[Link, ...]

    @property
    def verdict(self) -> str:
        """`wait`, `same lane`, `implied`, or `may overlap`."""
        if not self.path:
            return "may overlap"
        if len(self.path) > 1:
            return "same lane" if all(link.event is None for link in self.path) else "implied"
        return "same lane" if self.path[0].event is None else "wait"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "earlier": self.earlier,
            "later": self.later,
            "verdict": self.verdict,
            "hazards": [str(hazard) for hazard in self.hazards],
            "path": [{"earlier": link.earlier, "later": link.later, "lane": link.lane, "event": link.event} for link in self.path],
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer as sentences (`str()`), and the relations that it rests on."""

    lines: tuple[str, ...]
    relations: tuple[Relation, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {"text": str(self), "relations": [relation.to_dict() for relation in self.relations]}


def explain(schedule: Schedule, first: str, second: str | None = None) -> Explanation:
    """Why a task waits and for what not; for two tasks, what orders them, or that they may overlap.

    Raises:
        SpecError: SG203 for a name that is no task of the schedule, with the name that was probably meant.
    """
    problems = []
    for name in (first, second):
        if name is not None and name not in schedule.lane_of and name not in _PSEUDO:
            message = f"there is no task '{quoted(name)}' in '{schedule.program.name}'"
            problems.append(Problem("SG203", message, None, _meant(schedule, name)))
    if problems:
        raise SpecError(*problems)
    paths = Paths(schedule)
    return _one(schedule, paths, first) if second is None else _pair(schedule, paths, first, second)


def _meant(schedule: Schedule, name: str) -> str:
    """What to write instead of a name that is no task: a member, a task that uses the tensor, a name that is close."""
    members = [task for task in schedule.lane_of if task.startswith(f"{name}@")]
    if members:
        return f"'{name}' stands for {len(members)} tasks: name one, {members[0]} to {members[-1]}"
    users = [task.name for task in schedule.program.tasks if any(n == name or n.startswith(f"{name}@") for n in task.names())]
    if users:
        shown = ", ".join(users[:USERS]) + (f" and {len(users) - USERS} more" if len(users) > USERS else "")
        return f"'{name}' is a tensor, which {'this task uses' if len(users) == 1 else 'these tasks use'}: {shown}"
    close = near(name, (*_PSEUDO, *schedule.lane_of))
    return f"did you mean '{close}'?" if close else "`plan` lists the tasks"


def _one(schedule: Schedule, paths: Paths, task: str) -> Explanation:
    program = schedule.program
    if task not in program.index_of_task:
        waits = [step for step in schedule.steps if _waits_at(schedule, step) == task]
        lines = [f"{task} is {_PSEUDO[task]}", *([f"  {step}" for step in waits] or _NOTHING[task])]
        return Explanation(tuple(lines), ())
    index = program.index_of_task[task]
    names = [program.tasks[earlier].name for earlier in sorted(schedule.graph.predecessors(index))]
    tree = paths.before(task, min((paths.place[name] for name in names), default=0))
    before = [_relate(schedule, program.index_of_task[name], index, path_to(tree, name)) for name in names]
    names = [program.tasks[later].name for later in sorted(schedule.graph.successors(index))]
    tree = paths.after(task, max((paths.place[name] for name in names), default=0))
    after = [_relate(schedule, index, program.index_of_task[name], path_to(tree, name)) for name in names]
    pinned = " (pinned there)" if program.tasks[index].stream is not None else ""
    lines = [f"{task} runs on {schedule.lane_of[task]}{pinned}"]
    known = {relation.earlier for relation in before}
    others = [link for link in paths.into[task] if link.event is not None and link.earlier not in known]
    lines.append("waits for:" if before or others else "waits for nothing")
    lines += [f"  {ENTRY}: {link}, so that all that the caller issued before is done" for link in others if link.earlier == ENTRY]
    lines += [f"  {link.earlier}: {link}, so that memory can be released early" for link in others if link.earlier != ENTRY]
    lines += _all_told(before, [relation.earlier for relation in before])
    if after:
        lines.append("is waited for by:")
        lines += _all_told(after, [relation.later for relation in after])
    memory = [f"  {step}" for step in schedule.steps if _concerns(step, task)]
    if memory:
        lines += ["is the last to use:", *memory]
    return Explanation(tuple(lines), (*before, *after))


def _pair(schedule: Schedule, paths: Paths, first: str, second: str) -> Explanation:
    earlier, later = sorted((first, second), key=lambda name: paths.place[name])
    index = schedule.program.index_of_task
    if earlier == later:
        return Explanation((f"{earlier} is one task, which needs no order",), ())
    path = path_to(paths.before(later, paths.place[earlier]), earlier)
    if earlier in index and later in index:
        relation = _relate(schedule, index[earlier], index[later], path)
    else:
        relation = Relation(earlier, later, (), path)
    match relation.verdict:
        case "may overlap":
            lines = [f"{earlier} and {later} may overlap: no memory, resource or `after` orders them, and the schedule adds nothing"]
        case "wait":
            lines = [f"{later} waits for {earlier}: {relation.path[0]}"]
        case "same lane":
            lines = [f"{later} follows {earlier} without a wait: both are on {relation.path[0].lane}, which runs its tasks in order"]
        case _:
            lines = [f"{later} follows {earlier} without a wait of its own, since other steps imply it:", *_steps_of(relation)]
    if relation.hazards:
        lines += ["because of:", *(f"  {hazard}" for hazard in relation.hazards)]
        lines += _remedy(relation)
    elif relation.path and {earlier, later}.isdisjoint(_PSEUDO):
        kept = _kept_between(schedule, index[earlier], index[later])
        if kept:
            lines += ["because of this, which the hazards of the tasks between them keep as well:", *(f"  {hazard}" for hazard in kept)]
        else:
            lines.append("nothing that they touch asks for this order: it comes from the lanes and from what other tasks wait for")
    return Explanation(tuple(lines), (relation,))


def _relate(schedule: Schedule, earlier: int, later: int, path: tuple[Link, ...]) -> Relation:
    tasks = schedule.program.tasks
    first, second = tasks[earlier].name, tasks[later].name
    edge = schedule.graph.get_edge_data(earlier, later)
    where = _where(schedule, later)
    hazards = tuple(Reason(hazard.kind, hazard.tensor, first, second, where) for hazard in (edge["hazards"] if edge is not None else ()))
    return Relation(first, second, hazards, path)


def _kept_between(schedule: Schedule, earlier: int, later: int) -> tuple[Reason, ...]:
    """Conflicts that are no hazards of their own, since a task between the two replaces the bytes or reads them in time."""
    names = schedule.program.tasks[earlier].name, schedule.program.tasks[later].name
    touched: dict[int, list[Access]] = {}
    for access in schedule.accesses.of_task[earlier]:
        touched.setdefault(access.storage, []).append(access)
    found: dict[Reason, None] = {}
    for access in schedule.accesses.of_task[later]:
        for before in touched.get(access.storage, ()):
            reads = before.mode is Mode.READ, access.mode is Mode.READ
            if not all(reads) and meets(before.box, access.box):
                kind = "WAR" if reads[0] else "WAW" if access.mode is Mode.WRITE else "RAW"
                found[Reason(kind, access.tensor, *names, _where(schedule, later))] = None
    return tuple(found)


def _where(schedule: Schedule, task: int) -> str:
    place = schedule.program.tasks[task].location
    return f"{place.file}:{place.line}" if place is not None else ""


def _all_told(relations: Iterable[Relation], others: list[str]) -> Iterator[str]:
    for relation, other in zip(relations, others[:SHOWN], strict=False):
        yield from _told(relation, other)
    if len(others) > SHOWN:
        yield f"  ... and {len(others) - SHOWN:,} more (--json lists all)"


def _told(relation: Relation, other: str) -> Iterator[str]:
    hazards = ", ".join(f"{hazard.kind} {hazard.tensor}".rstrip() for hazard in relation.hazards)
    match relation.verdict:
        case "wait":
            yield f"  {other} ({hazards}): {relation.path[0]}"
        case "same lane":
            yield f"  {other} ({hazards}): no wait, both are on {relation.path[0].lane}"
        case "implied":
            yield f"  {other} ({hazards}): no wait, implied by"
            yield from (f"  {line}" for line in _steps_of(relation))
        case _:
            yield f"  {other} ({hazards}): NOT ORDERED"


def _steps_of(relation: Relation) -> Iterator[str]:
    for link in relation.path:
        yield f"  {link.earlier} -> {link.later}: {link}"


def _remedy(relation: Relation) -> list[str]:
    """What would let the two overlap, where the order is about memory and not about data."""
    if relation.verdict != "wait" or any(hazard.kind not in ("WAR", "WAW") for hazard in relation.hazards):
        return []
    tensors = " and ".join(dict.fromkeys(f"'{hazard.tensor}'" for hazard in relation.hazards))
    return [f"no data flows between them, only memory is reused: with another buffer (or one more slot) for {tensors} they could overlap"]


# What is said of a pseudo-task that no step stands for.
_NOTHING = {
    ENTRY: ["  no lane but main runs anything, and main follows the caller's work anyway"],
    EXIT: ["  nothing of its own: by the order of main and the waits there, every lane is done when main is"],
    HOST: ["  nothing: no result is in host memory that the device writes"],
}
_PSEUDO = {
    ENTRY: "what the caller issued before the run; every lane starts after it",
    EXIT: "the end of the run on the caller's stream; it waits for",
    HOST: "the caller, reading results on the host; it waits for",
}


def _waits_at(schedule: Schedule, step: object) -> str | None:
    match step:
        case Wait(_, _, reasons) | HostWait(_, False, reasons):
            return reasons[0].later if reasons else None
        case Record(_, _, task) if task == ENTRY:
            return ENTRY
        case _:
            return None


def _concerns(step: Step, task: str) -> bool:
    """Whether a release or record_stream stands where it does because of the task's use."""
    return isinstance(step, Release | RecordStream) and any(reason.earlier == task for reason in step.reasons)
