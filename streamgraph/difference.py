"""Difference: two plans become what changed between them, as data, text or Markdown. Made for reviewing a change to a program.

Tasks are compared by name. A wait is compared by the task that it waits for and the task that it holds, whatever its event is called.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from streamgraph.cost import Measured, load_costs
from streamgraph.machine import AnyMachine
from streamgraph.model import EXIT, HOST, MAIN
from streamgraph.plan import Spec, as_program, plan
from streamgraph.render.fit import duration
from streamgraph.render.memory import curve, lives, places, size
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Schedule, Wait
from streamgraph.simulate import Timeline, simulate

SHOWN = 20  # entries told of each kind of change; all of them are in `to_dict()`
PLANNED_WITH = "planned with"
Unit = Literal["count", "us", "bytes"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of both plans; times are simulated microseconds."""

    name: str
    before: float
    after: float
    unit: Unit = "count"

    @property
    def text(self) -> tuple[str, str, str]:
        """Before, after, and the change with its sign, as people read them."""
        change = self.after - self.before
        if not change:
            return self._said(self.before), self._said(self.after), ""
        percent = f" ({change / self.before:+.1%})" if self.before and self.unit != "count" else ""
        return self._said(self.before), self._said(self.after), f"{'+' if change > 0 else '-'}{self._said(abs(change))}{percent}"

    def _said(self, value: float) -> str:
        return duration(value) if self.unit == "us" else size(value) if self.unit == "bytes" else f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Order:
    """`later`, on `lane`, waits for `earlier`; both are tasks, or `entry`, `exit` and `host`. `why` are the hazards that ask for it.

    `previous`: the task of the run before.
    """

    earlier: str
    later: str
    lane: str
    why: tuple[str, ...]
    previous: bool = False

    def __str__(self) -> str:
        run = " of the previous run" if self.previous else ""
        return f"{self.earlier}{run} -> {self.later} @{self.lane} ({', '.join(self.why)})"


@dataclass(frozen=True, slots=True)
class Difference:
    """What changed from the first plan to the second. Everything is empty where nothing did; `is_empty` says so.

    `moved` is (task, lane before, lane after) of tasks that both have, with `urgent` behind the lane where the launch is; `reordered` are
    tasks that must move for one issue order to become the other; `events` and `record_streams` name the task after which an event is
    recorded, and `storage @lane`. `figures` are numbers of both plans, changed or not.
    """

    names: tuple[str, str]
    figures: tuple[Figure, ...]
    tasks_added: tuple[str, ...]
    tasks_removed: tuple[str, ...]
    moved: tuple[tuple[str, str, str], ...]
    reordered: tuple[str, ...]
    waits_added: tuple[Order, ...]
    waits_removed: tuple[Order, ...]
    events_added: tuple[str, ...]
    events_removed: tuple[str, ...]
    record_streams_added: tuple[str, ...]
    record_streams_removed: tuple[str, ...]
    options: tuple[tuple[str, str, str], ...]

    @property
    def is_empty(self) -> bool:
        """Whether the two plans are the same but for names of events, and cost, hold and take the same, however they were asked for."""
        told = any(changes for title, changes in self._changes() if title != PLANNED_WITH)
        return not told and all(figure.before == figure.after for figure in self.figures)

    def __str__(self) -> str:
        rows = [("", "before", "after", "change"), *((figure.name, *figure.text) for figure in self.figures)]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        table = [
            "  ".join([row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in (1, 2, 3))]).rstrip() for row in rows
        ]
        lines = [self._title, "", *table]
        for title, changes in self._changes():
            if changes:
                lines += ["", f"{title}:", *(f"  {line}" for line in _shortened(changes))]
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """The same for a comment on a pull request."""
        lines = [f"### {_escaped(self._title)}", "", "| | before | after | change |", "| --- | ---: | ---: | ---: |"]
        lines += ["| " + " | ".join(_escaped(cell) for cell in (figure.name, *figure.text)) + " |" for figure in self.figures]
        for title, changes in self._changes():
            if changes:
                head = title[0].upper() + title[1:]
                lines += ["", f"**{head}**", "", *(f"- {_escaped(line)}" for line in _shortened(changes))]
        return "\n".join(lines) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`; nothing is shortened."""
        def orders(found: tuple[Order, ...]) -> list[dict[str, Any]]:
            return [
                {"earlier": o.earlier, "later": o.later, "lane": o.lane, "why": list(o.why), "previous": o.previous} for o in found
            ]

        return {
            "names": list(self.names), "same": self.is_empty,
            "figures": {figure.name: {"before": figure.before, "after": figure.after, "unit": figure.unit} for figure in self.figures},
            "tasks": {"added": list(self.tasks_added), "removed": list(self.tasks_removed)},
            "moved": [{"task": task, "before": before, "after": after} for task, before, after in self.moved],
            "reordered": list(self.reordered),
            "waits": {"added": orders(self.waits_added), "removed": orders(self.waits_removed)},
            "events": {"added": list(self.events_added), "removed": list(self.events_removed)},
            "record_streams": {"added": list(self.record_streams_added), "removed": list(self.record_streams_removed)},
            "options": [{"option": name, "before": before, "after": after} for name, before, after in self.options],
        }  # fmt: skip

    @property
    def _title(self) -> str:
        first, second = self.names
        named = first if first == second else f"{first} -> {second}"
        return f"{named}: {'the same plan' if self.is_empty else 'the plans differ'}"

    def _changes(self) -> list[tuple[str, list[str]]]:
        return [
            ("tasks", _signed(self.tasks_added, self.tasks_removed)),
            ("lanes", [f"{task}: {before} -> {after}" for task, before, after in self.moved]),
            ("issued earlier or later", list(self.reordered)),
            ("waits", _signed(self.waits_added, self.waits_removed)),
            ("events", _signed([f"after {task}" for task in self.events_added], [f"after {task}" for task in self.events_removed])),
            ("record_stream", _signed(self.record_streams_added, self.record_streams_removed)),
            (PLANNED_WITH, [f"{name}: {before or 'nothing'} -> {after or 'nothing'}" for name, before, after in self.options]),
        ]


def diff(first: Spec, second: Spec, *, costs: Measured | None = None, machine: AnyMachine = None) -> Difference:
    """What changed between two plans. What is not yet a Schedule is planned, with the planner's default options.

    Peak memory and makespan come from simulating both plans, each as it was planned to be issued; `costs` (those of tasks that a plan has)
    and `machine` are as for `plan`.

    Raises:
        SpecError, VerificationError: as `plan` does.
    """
    measured = load_costs(costs) if isinstance(costs, str | os.PathLike) else costs or {}
    programs = [as_program(spec) for spec in (first, second)]
    known = [{task.name: measured[task.name] for task in program.tasks if task.name in measured} for program in programs]
    before, after = (
        spec if isinstance(spec, Schedule) else plan(program, costs=its, machine=machine)
        for spec, program, its in zip((first, second), programs, known, strict=True)
    )
    timelines = tuple(simulate(each, its, machine=machine, issue=each.issue) for each, its in zip((before, after), known, strict=True))
    lanes = [{task: lane + " urgent" * (task in of.urgent) for task, lane in of.lane_of.items()} for of in (before, after)]
    both = [task for task in lanes[0] if task in lanes[1]]
    orders = _orders(before), _orders(after)
    events, copies = (_events(before), _events(after)), (_record_streams(before), _record_streams(after))
    options = dict(before.options), dict(after.options)
    changed = [name for name in dict.fromkeys([*options[0], *options[1]]) if options[0].get(name) != options[1].get(name)]
    return Difference(
        names=(before.program.name, after.program.name),
        figures=_figures((before, after), timelines),
        tasks_added=_new(lanes[1], lanes[0]),
        tasks_removed=_new(lanes[0], lanes[1]),
        moved=tuple((task, lanes[0][task], lanes[1][task]) for task in both if lanes[0][task] != lanes[1][task]),
        reordered=_reordered(both, [task for task in lanes[1] if task in lanes[0]]),
        waits_added=tuple(order for key, order in orders[1].items() if key not in orders[0]),
        waits_removed=tuple(order for key, order in orders[0].items() if key not in orders[1]),
        events_added=_new(events[1], events[0]),
        events_removed=_new(events[0], events[1]),
        record_streams_added=_new(copies[1], copies[0]),
        record_streams_removed=_new(copies[0], copies[1]),
        options=tuple((name, options[0].get(name, ""), options[1].get(name, "")) for name in changed),
    )


def _figures(plans: tuple[Schedule, Schedule], timelines: tuple[Timeline, ...]) -> tuple[Figure, ...]:
    counts = plans[0].counts, plans[1].counts
    figures = [
        Figure(label, getattr(counts[0], name), getattr(counts[1], name))
        for label, name in (
            ("tasks", "tasks"), ("lanes", "lanes"), ("waits", "waits"), ("host waits", "host_waits"), ("events", "events"),
            ("record_stream", "record_streams"),
        )
    ]  # fmt: skip
    figures.append(Figure("time (simulated)", timelines[0].makespan, timelines[1].makespan, "us"))
    found = lives(plans[0], timelines[0]), lives(plans[1], timelines[1])
    named = dict.fromkeys(place for its in plans for place in places(its.program))
    for place in sorted(named, key=lambda place: (place == HOST, place)):
        peaks = [curve(its, place).peak[1] for its in found]
        if any(peaks):
            typed = all(life.bytes is not None for its in found for life in its if life.place == place)
            label = f"{place} memory, peak" if typed else f"{place} memory, peak of declared types"
            figures.append(Figure(label, peaks[0], peaks[1], "bytes"))
    live = [_most_alive((life.start, life.end) for life in its) for its in found]
    return (*figures, Figure("tensors alive, most", live[0], live[1]))


def _most_alive(spans: Iterable[tuple[float, float]]) -> int:
    # An end counts before a start at the same time, as it does for bytes.
    changes = sorted(change for start, end in spans for change in ((start, 1), (end, -1)))
    most = alive = 0
    for _, change in changes:
        alive += change
        most = max(most, alive)
    return most


def _orders(schedule: Schedule) -> dict[tuple[str, str, str, bool], Order]:
    """Every wait, by what it orders: the task waited for, the next task of the waiting lane, that lane, and whether across runs."""
    found: dict[tuple[str, str, str, bool], Order] = {}
    open_waits: dict[str, list[Wait | HostWait]] = {}

    def settle(lane: str, later: str) -> None:
        for step in open_waits.pop(lane, ()):
            previous = isinstance(step, HostWait) and step.previous
            earlier = schedule.event_task.get(step.event, step.event)
            why = tuple(dict.fromkeys(f"{reason.kind} {reason.tensor}".rstrip() for reason in step.reasons))
            found[earlier, later, lane, previous] = Order(earlier, later, lane, why, previous)

    for step in schedule.steps:
        match step:
            case Wait(_, lane):
                open_waits.setdefault(lane, []).append(step)
            case HostWait():
                open_waits.setdefault(HOST, []).append(step)
            case Launch(task, lane):
                settle(lane, task)
            case _:
                pass
    settle(MAIN, EXIT)
    for lane in list(open_waits):
        settle(lane, HOST if lane == HOST else "the end")
    return found


def _events(schedule: Schedule) -> tuple[str, ...]:
    return tuple(step.task for step in schedule.steps if isinstance(step, Record))


def _record_streams(schedule: Schedule) -> tuple[str, ...]:
    return tuple(f"{step.storage} @{step.lane}" for step in schedule.steps if isinstance(step, RecordStream))


def _new(those: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    old = set(known)
    return tuple(name for name in dict.fromkeys(those) if name not in old)


def _reordered(before: list[str], after: list[str]) -> tuple[str, ...]:
    """The fewest tasks that have to move: all but a longest increasing run of places (patience sorting)."""
    place = {task: number for number, task in enumerate(after)}
    places = [place[task] for task in before]
    tails: list[int] = []  # the smallest last place of a run of each length
    top: list[int] = []  # whose place that is
    link = [-1] * len(places)
    for number, at in enumerate(places):
        length = bisect_left(tails, at)
        link[number] = top[length - 1] if length else -1
        tails[length : length + 1], top[length : length + 1] = [at], [number]
    stays = set()
    number = top[-1] if top else -1
    while number >= 0:
        stays.add(number)
        number = link[number]
    return tuple(task for number, task in enumerate(before) if number not in stays)


def _signed(added: Iterable[object], removed: Iterable[object]) -> list[str]:
    return [*(f"- {entry}" for entry in removed), *(f"+ {entry}" for entry in added)]


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"... and {len(lines) - SHOWN:,} more (--json lists all)"]


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: names hold no more than letters, digits and a few signs, which includes its underscores."""
    lead = "\\" if text.startswith(("- ", "+ ")) else ""  # which would begin a list inside the list
    return lead + "".join(f"\\{sign}" if sign in "\\`*_{}[]<>|#~" else sign for sign in text)
