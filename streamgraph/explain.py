"""Explain: why a task waits, and why a hazard got no wait: which lane order and which other waits already imply it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamgraph.errors import Problem, SpecError, quoted
from streamgraph.model import ENTRY, EXIT, HOST, MAIN
from streamgraph.schedule import HostWait, Launch, Reason, Record, RecordStream, Release, Schedule, Wait


@dataclass(frozen=True, slots=True)
class Link:
    """`later` follows `earlier` directly: because of `event`, or, if that is None, because both are on `lane`."""

    earlier: str
    later: str
    lane: str
    event: str | None

    def __str__(self) -> str:
        return f"wait {self.event} @{self.lane}" if self.event is not None else f"same lane @{self.lane}"


@dataclass(frozen=True, slots=True)
class Relation:
    """How two tasks are ordered: the hazards between them, and the links of the schedule that lead from one to the other, shortest first.

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
        SpecError: SG203 for a name that is no task of the schedule, with the near name.
    """
    known = [*schedule.lane_of, ENTRY, EXIT, HOST]
    problems = []
    for name in (first, second):
        if name is not None and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean '{near[0]}'?" if near else "`plan` lists the tasks"
            problems.append(Problem("SG203", f"there is no task '{quoted(name)}' in '{schedule.program.name}'", None, remedy))
    if problems:
        raise SpecError(*problems)
    paths = _Paths(schedule)
    return _one(schedule, paths, first) if second is None else _pair(schedule, paths, first, second)


class _Paths:
    """The order that the steps enforce, as links into each node; answers which of them lead from one task to another."""

    def __init__(self, schedule: Schedule) -> None:
        self.place: dict[str, int] = {ENTRY: -1}
        self.into: dict[str, list[Link]] = {}
        last: dict[str, str] = {MAIN: ENTRY}
        pending: dict[str, list[str]] = {}
        for number, step in enumerate(schedule.steps):
            match step:
                case Wait(event, lane):
                    pending.setdefault(lane, []).append(event)
                case HostWait(event, False):
                    pending.setdefault(HOST, []).append(event)
                case Launch(task, lane):
                    self._enter(schedule, task, lane, last, pending.pop(lane, []))
                    self.place[task] = number
                case _:
                    pass
        self._enter(schedule, EXIT, MAIN, last, pending.pop(MAIN, []))
        self._enter(schedule, HOST, HOST, last, pending.pop(HOST, []))
        self.place |= {EXIT: len(schedule.steps), HOST: len(schedule.steps) + 1}

    def _enter(self, schedule: Schedule, node: str, lane: str, last: dict[str, str], events: list[str]) -> None:
        links = [Link(schedule.event_task[event], node, lane, event) for event in events]
        if lane in last:
            links.append(Link(last[lane], node, lane, None))
        self.into[node] = links
        last[lane] = node

    def between(self, earlier: str, later: str) -> tuple[Link, ...]:
        """The fewest links that lead from `earlier` to `later`; empty if none do. Searches backwards, breadth first."""
        origin = self.place[earlier]
        towards: dict[str, Link | None] = {later: None}
        queue = [later]
        for node in queue:
            for link in self.into.get(node, ()):
                if link.earlier not in towards and self.place[link.earlier] >= origin:
                    towards[link.earlier] = link
                    queue.append(link.earlier)
            if earlier in towards:
                break
        path: list[Link] = []
        step = towards.get(earlier)
        while step is not None:
            path.append(step)
            step = towards[step.later]
        return tuple(path)


def _one(schedule: Schedule, paths: _Paths, task: str) -> Explanation:
    program = schedule.program
    if task not in program.index_of_task:
        waits = [step for step in schedule.steps if _waits_at(schedule, step) == task]
        lines = [f"{task} is {_PSEUDO[task]}", *(f"  {step}" for step in waits)]
        return Explanation(tuple(lines), ())
    index = program.index_of_task[task]
    before = [_relate(schedule, paths, earlier, index) for earlier in sorted(schedule.graph.predecessors(index))]
    after = [_relate(schedule, paths, index, later) for later in sorted(schedule.graph.successors(index))]
    declared = program.tasks[index]
    lines = [f"{task} runs on {schedule.lane_of[task]}" + (" (pinned there)" if declared.stream is not None else "")]
    others = [link for link in paths.into[task] if link.event is not None and link.earlier not in {r.earlier for r in before}]
    lines.append("waits for:" if before or others else "waits for nothing")
    lines += [f"  {ENTRY}: {link}, so that all that the caller issued before is done" for link in others if link.earlier == ENTRY]
    for relation in before:
        lines += _told(relation, relation.earlier)
    if after:
        lines.append("is waited for by:")
    for relation in after:
        lines += _told(relation, relation.later)
    lines += [f"  {step}" for step in schedule.steps if _concerns(step, task)]
    return Explanation(tuple(lines), (*before, *after))


def _pair(schedule: Schedule, paths: _Paths, first: str, second: str) -> Explanation:
    earlier, later = sorted((first, second), key=lambda name: paths.place[name])
    index = schedule.program.index_of_task
    if earlier in index and later in index:
        relation = _relate(schedule, paths, index[earlier], index[later])
    else:
        relation = Relation(earlier, later, (), paths.between(earlier, later))
    if earlier == later:
        return Explanation((f"{earlier} is one task, which needs no order",), ())
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
    elif relation.path and relation.verdict != "may overlap" and {earlier, later}.isdisjoint((ENTRY, EXIT, HOST)):
        lines.append("nothing that they touch asks for this order: it comes from the lanes and from what other tasks wait for")
    return Explanation(tuple(lines), (relation,))


def _relate(schedule: Schedule, paths: _Paths, earlier: int, later: int) -> Relation:
    tasks = schedule.program.tasks
    first, second = tasks[earlier].name, tasks[later].name
    found = schedule.graph.edges[earlier, later]["hazards"] if schedule.graph.has_edge(earlier, later) else ()
    place = tasks[later].location
    where = f"{place.file}:{place.line}" if place is not None else ""
    hazards = tuple(Reason(hazard.kind, hazard.tensor, first, second, where) for hazard in found)
    return Relation(first, second, hazards, paths.between(first, second))


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


def _concerns(step: object, task: str) -> bool:
    """Whether a release or record_stream stands where it does because of the task's use."""
    return isinstance(step, Release | RecordStream) and any(reason.earlier == task for reason in step.reasons)
