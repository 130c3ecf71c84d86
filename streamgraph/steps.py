"""The steps of a schedule: flat, frozen, in host issue order.

One line of text per step, which parses back, the reason after `#` included:

    launch upload@0 @copy
    launch mm@3 @main urgent      # in a captured graph its kernels have high priority
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
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from streamgraph.errors import Problem, ScheduleError, quoted


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
    """Call the task's operator with its lane's stream current.

    `urgent`: its kernels have high priority in a captured graph. That orders nothing, and means nothing where steps are issued one by one.
    """

    task: str
    lane: str
    urgent: bool = False

    def __str__(self) -> str:
        return f"launch {self.task} @{self.lane}{' urgent' if self.urgent else ''}"


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


_STEP = re.compile(
    r"(?:(?P<launch>launch) (?P<task>\S+)|(?P<verb>record_stream|record|wait|release|hostwait) (?P<subject>\S+))"
    r"(?: @(?P<lane>\w+(?:\.\w+)*))?(?P<previous> previous)?(?P<urgent> urgent)?\s*(?:# (?P<why>.*))?\Z"
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
    lane, previous, urgent, why = match["lane"], match["previous"] is not None, match["urgent"] is not None, match["why"]
    verb = match["launch"] or match["verb"]
    if (lane is None) != (verb == "hostwait") or (previous and verb not in ("hostwait", "release")) or (urgent and verb != "launch"):
        raise ValueError(text)
    match verb:
        case "launch":
            return Launch(match["task"], lane, urgent)
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
