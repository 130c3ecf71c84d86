"""The schedule: flat, frozen steps in host issue order. The narrow waist between planning and everything that reads a plan.

One line of text per step, which parses back, the reason after `#` included:

    launch upload@0 @copy
    record e0 @copy               # after upload@0
    wait e0 @main                 # RAW frame@0: upload@0 -> preprocess@0 (cameras.yaml:12)
    hostwait e3                   # RAW result.1: download -> host
    hostwait e3 previous          # WAR staging: upload -> fill         (the event of the run before)
    release image@0.1 @main       # last use image@0.1: stack -> stack
    release w.1 @copy previous    # what the run before left over
    record_stream h.2 @main       # output h.2: mm@3 -> exit

`launch` on lane `host` is a host task. `record` on lane `host` and `wait` for such an event order the issuing threads; with one issuing
thread they are free, since the host is already past the task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from streamgraph.errors import Problem, ScheduleError, quoted
from streamgraph.model import HOST, MAIN, Program
from streamgraph.storages import Accesses, trace

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import networkx as nx

    from streamgraph.explain import Explanation


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a step is there. `kind` is RAW, WAR, WAW, after, host order, entry, exit, last use, or output; `earlier` and `later` name tasks.

    The pseudo-tasks are called `entry`, `exit` and `host` (the caller, reading results on the host). `place` is `file:line`.
    """

    kind: str
    tensor: str
    earlier: str
    later: str
    place: str = ""

    def __str__(self) -> str:
        subject = f"{self.kind} {self.tensor}" if self.tensor else self.kind
        place = f" ({self.place})" if self.place else ""
        return f"{subject}: {self.earlier} -> {self.later}{place}"


_REASON = re.compile(
    r"(?P<kind>RAW|WAR|WAW|after|host order|entry|exit|last use|output)(?: (?P<tensor>\S+(?: \d+\])?))?"
    r": (?P<earlier>\S+) -> (?P<later>\S+)(?: \((?P<place>.*)\))?\Z"
)


@dataclass(frozen=True, slots=True)
class Launch:
    """Call the task's operator with its lane's stream current."""

    task: str
    lane: str

    def __str__(self) -> str:
        return f"launch {self.task} @{self.lane}"


@dataclass(frozen=True, slots=True)
class Record:
    """Record the event on the lane, right after `task`; `entry` is the caller's work before the run."""

    event: str
    lane: str
    task: str

    def __str__(self) -> str:
        return _line(f"record {self.event} @{self.lane}", f"after {self.task}")


@dataclass(frozen=True, slots=True)
class Wait:
    """What is issued on the lane from here on starts after the event."""

    event: str
    lane: str
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return _line(f"wait {self.event} @{self.lane}", *self.reasons)


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host blocks until the event is done; `previous`: the event as the run before recorded it."""

    event: str
    previous: bool = False
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return _line(f"hostwait {self.event}{' previous' if self.previous else ''}", *self.reasons)


@dataclass(frozen=True, slots=True)
class Release:
    """Drop the last reference to a value (`name.version`), allocated on `lane`; `previous`: the one of the run before."""

    storage: str
    lane: str
    previous: bool = False
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return _line(f"release {self.storage} @{self.lane}{' previous' if self.previous else ''}", *self.reasons)


@dataclass(frozen=True, slots=True)
class RecordStream:
    """Tell the allocator that `lane` uses the value, which another lane allocated."""

    storage: str
    lane: str
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        return _line(f"record_stream {self.storage} @{self.lane}", *self.reasons)


Step: TypeAlias = Launch | Record | Wait | HostWait | Release | RecordStream


def _line(step: str, *why: object) -> str:
    return f"{step:<29} # {'; '.join(map(str, why))}" if why else step


@dataclass(frozen=True, slots=True)
class Lane:
    """One stream of the schedule. `priority` is "high", "normal" or "low"; lane `host` is the host itself."""

    name: str
    priority: str = "normal"

    @property
    def is_host(self) -> bool:
        """Whether this lane is the host and not a stream."""
        return self.name == HOST


@dataclass(frozen=True)
class Schedule:
    """A program with its steps. `lanes[0]` is `main`, the caller's stream; lane `host`, if any task runs there, is last.

    `options` are the planner's options by name; `notes` say what a reader should know about the plan.
    """

    program: Program
    lanes: tuple[Lane, ...]
    steps: tuple[Step, ...]
    options: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return "\n".join([f"# {self.program.name}: {self.counts}", *map(str, self.steps)]) + "\n"

    @cached_property
    def accesses(self) -> Accesses:
        """The storages of the program and each task's accesses to them."""
        return trace(self.program)[0]

    @cached_property
    def lane_of(self) -> dict[str, str]:
        """The lane of each task, by name."""
        return {step.task: step.lane for step in self.steps if isinstance(step, Launch)}

    @cached_property
    def event_task(self) -> dict[str, str]:
        """The task (or `entry`) that each event is recorded after."""
        return {step.event: step.task for step in self.steps if isinstance(step, Record)}

    @cached_property
    def graph(self) -> nx.DiGraph[int]:
        """The DAG that was planned: nodes are tasks in declaration order, edges carry their hazards (`graph.edges[0, 3]["hazards"]`)."""
        from streamgraph.hazards import task_graph

        return task_graph(self.program)

    @cached_property
    def counts(self) -> Counts:
        """How many steps of each kind the schedule has."""
        kinds = [type(step) for step in self.steps]
        on_host = {step.event for step in self.steps if isinstance(step, Record) and step.lane == HOST}
        return Counts(
            tasks=kinds.count(Launch),
            lanes=len(self.lanes),
            events=kinds.count(Record) - len(on_host),
            waits=sum(isinstance(step, Wait) and step.event not in on_host for step in self.steps),
            host_waits=kinds.count(HostWait),
            record_streams=kinds.count(RecordStream),
            host_events=len(on_host),
        )

    # The methods below are for users' convenience; each calls one function of a later module, imported when it is used.

    def explain(self, first: str, second: str | None = None) -> Explanation:
        """Why a task waits, and why its other hazards need no wait; for two tasks, what orders them. See `streamgraph.explain`."""
        from streamgraph.explain import explain

        return explain(self, first, second)

    def draw(self, path: str | os.PathLike[str]) -> Path:
        """Write a picture; the suffix decides: `.svg`, `.mmd`, `.dot`, `.txt`, `.json`. Returns the path."""
        from streamgraph.render import draw

        return draw(self, path)

    def to_json(self) -> str:
        """The schedule with its program as JSON, which `Schedule.from_json` reads back and verifies."""
        from streamgraph.saved import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """The verified schedule that `to_json` wrote. Raises ScheduleError, SpecError or VerificationError."""
        from streamgraph.saved import from_json

        return from_json(text)

    @classmethod
    def from_text(cls, text: str, program: Program, priorities: Mapping[str, str] | None = None) -> Schedule:
        """The schedule whose `str()` is `text`. Not verified: see `streamgraph.verify`. Lanes come in order of appearance, `main` first.

        Raises:
            ScheduleError: SG701 for each line that is not a step.
        """
        steps = parse_steps(text.splitlines())
        named = dict.fromkeys([MAIN, *(HOST if isinstance(step, HostWait) else step.lane for step in steps)])
        order = [name for name in named if name != HOST] + [HOST] * (HOST in named)
        return cls(program, tuple(Lane(name, (priorities or {}).get(name, "normal")) for name in order), steps)


@dataclass(frozen=True, slots=True)
class Counts:
    """The figures of a schedule: `events` and `waits` are CUDA calls; `host_events` only order issuing threads and cost nothing."""

    tasks: int
    lanes: int
    events: int
    waits: int
    host_waits: int
    record_streams: int
    host_events: int

    def __str__(self) -> str:
        parts = [
            _many(self.tasks, "task"), _many(self.lanes, "lane"), _many(self.events, "event"), _many(self.waits, "wait"),
            *([_many(self.host_waits, "host wait")] if self.host_waits else []), f"{self.record_streams} record_stream",
        ]  # fmt: skip
        return ", ".join(parts)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_STEP = re.compile(
    r"(?:(?P<launch>launch) (?P<task>\S+)|(?P<verb>record_stream|record|wait|release|hostwait) (?P<subject>\S+))"
    r"(?: @(?P<lane>\w+(?:\.\w+)*))?(?P<previous> previous)?\s*(?:# (?P<why>.*))?\Z"
)


def parse_steps(lines: Iterable[str]) -> tuple[Step, ...]:
    """The steps that `str()` printed. Empty lines and lines that begin with `#` are passed over.

    Raises:
        ScheduleError: SG701 for every line that is not a step.
    """
    steps: list[Step] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            steps.append(_parse_step(text))
        except ValueError:
            problems.append(Problem("SG701", f"line {number} is not a step: '{quoted(text)}'", None, "a step reads like: wait e0 @main"))
    if problems:
        raise ScheduleError(*problems)
    return tuple(steps)


def _parse_step(text: str) -> Step:
    match = _STEP.match(text)
    if match is None:
        raise ValueError(text)
    lane, previous, why = match["lane"], match["previous"] is not None, match["why"]
    verb = match["launch"] or match["verb"]
    if (lane is None) != (verb == "hostwait") or (previous and verb not in ("hostwait", "release")):
        raise ValueError(text)
    match verb:
        case "launch":
            return Launch(match["task"], lane)
        case "record":
            if why is None or not why.startswith("after "):
                raise ValueError(text)
            return Record(match["subject"], lane, why.removeprefix("after "))
        case "wait":
            return Wait(match["subject"], lane, _parse_reasons(why))
        case "hostwait":
            return HostWait(match["subject"], previous, _parse_reasons(why))
        case "release":
            return Release(match["subject"], lane, previous, _parse_reasons(why))
        case _:
            return RecordStream(match["subject"], lane, _parse_reasons(why))


def _parse_reasons(text: str | None) -> tuple[Reason, ...]:
    if not text:
        return ()
    reasons: list[Reason] = []
    for part in text.split("; "):
        match = _REASON.match(part)
        if match is None:
            raise ValueError(part)
        reasons.append(Reason(match["kind"], match["tensor"] or "", match["earlier"], match["later"], match["place"] or ""))
    return tuple(reasons)
