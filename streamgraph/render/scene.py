"""What a picture of a schedule in time holds: rows, bars, arrows. A Schedule and its Timeline become a Scene; text and SVG draw it.

One row per lane, one bar per task, one arrow per wait. Beyond `limit` bars, consecutive tasks of a lane share a bar, and `note` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamgraph.model import ENTRY, EXIT, HOST, Argument, Task
from streamgraph.render.bands import MARK, Band, bands_of
from streamgraph.render.colours import paint_of
from streamgraph.render.fit import duration, shown
from streamgraph.schedule import HostWait, Launch, Reason, Schedule, Wait
from streamgraph.simulate import WAIT, TaskTime, Timeline, WaitTime
from streamgraph.timeline import lane_names


@dataclass(frozen=True, slots=True)
class Row:
    """A lane: its name, its priority if that is not normal, how long it was busy, in microseconds, and its GPU, if that has a name."""

    name: str
    priority: str
    busy: float
    device: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """One task, or several consecutive ones of a lane. `paint` is what it is coloured by; `facts` are the lines that describe it."""

    row: int
    start: float
    end: float
    label: str
    tasks: tuple[str, ...]
    paint: str
    critical: bool
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arrow:
    """A wait: from an event to what had to wait for it. `source` and `target` are bars, or None for entry, exit and the host's end.

    `held` is how long the lane stood still for it; `count` is how many waits it stands for; `source_row` is None if the event belongs to
    the run before.
    """

    source: int | None
    source_row: int | None
    source_time: float
    target: int | None
    target_row: int
    target_time: float
    since: float
    held: float
    label: str
    critical: bool
    facts: tuple[str, ...]
    count: int = 1
    host: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything a picture of a run shows, in microseconds; `note` says what was put together to keep it readable.

    `bands` are the iterations of a loop written out; there are none for a single run.
    """

    rows: tuple[Row, ...]
    bars: tuple[Bar, ...]
    arrows: tuple[Arrow, ...]
    end: float
    note: str
    bands: tuple[Band, ...] = ()


def make_scene(schedule: Schedule, timeline: Timeline, limit: int) -> Scene:
    """The scene of a run with at most `limit` bars, or one bar per lane if there are more lanes than that.

    Up to `limit` tasks every wait has its arrow; beyond, waits between the same two bars share one, and at most `limit` are kept.
    """
    names = lane_names(schedule, timeline)
    priority = {lane.name: lane.priority for lane in schedule.lanes}
    busy = dict(timeline.busy)
    device = schedule.device_of if schedule.program.devices else {}
    rows = tuple(Row(name, priority.get(name, "normal"), busy.get(name, 0.0), device.get(name, "")) for name in names)
    row_of = {name: number for number, name in enumerate(names)}
    chunks, size = _chunks(timeline, names, limit)
    critical = {time.task for time in timeline.critical_path}
    bars: list[Bar] = []
    bar_of: dict[str, int] = {}
    for chunk in chunks:
        bar_of.update((time.task, len(bars)) for time in chunk)
        bars.append(_bar(schedule, chunk, row_of, critical))
    arrows = _arrows(schedule, timeline, row_of, bar_of, bars)
    note = ""
    if size > 1:
        merged = _merged(arrows)
        arrows = _most_telling(merged, limit)
        note = f"{len(timeline.tasks):,} tasks as {len(bars):,} bars: each stands for up to {size:,} consecutive tasks of its lane"
        if len(arrows) < len(merged):
            note += f"; of {len(merged):,} arrows between them, the {len(arrows):,} that held up most"
    bands = bands_of(timeline, row_of, {task.name: task for task in schedule.program.tasks})
    return Scene(rows, tuple(bars), tuple(arrows), timeline.makespan, note, bands)


def family_of(task: str) -> str:
    """A task's name without its members and its iteration: `upload` for `upload@0@front`; itself for a name that begins with `@`."""
    return task.split("@", 1)[0].split(MARK, 1)[0] or task


def reason_label(reasons: tuple[Reason, ...]) -> str:
    """The short form for an arrow: the first hazard, and how many more there are. Empty for entry and exit, whose marks say it."""
    hazards = [reason for reason in reasons if reason.kind not in (ENTRY, EXIT)]
    if not hazards:
        return ""
    first = f"{hazards[0].kind} {shown(hazards[0].tensor, 40)}".strip()
    return f"{first} +{len(hazards) - 1}" if len(hazards) > 1 else first


def call_of(task: Task) -> str:
    """How the task touches its tensors, in words: `aten.conv2d: reads batch, weight; writes features`."""

    def listed(entries: tuple[Argument, ...]) -> str:
        return ", ".join(shown(name, 60) for entry in entries for name in entry.tensors)

    parts = [("updates", task.updates), ("reads", task.reads), ("writes", task.writes)]
    return f"{shown(task.operator)}: {'; '.join(f'{verb} {listed(entries)}' for verb, entries in parts if entries) or 'touches nothing'}"


def _chunks(timeline: Timeline, names: list[str], limit: int) -> tuple[list[tuple[TaskTime, ...]], int]:
    by_lane: dict[str, list[TaskTime]] = {name: [] for name in names}
    for time in timeline.tasks:
        by_lane[time.lane].append(time)
    longest = max((len(times) for times in by_lane.values()), default=0)
    size = max(1, -(-len(timeline.tasks) // limit))
    while size < longest and sum(-(-len(times) // size) for times in by_lane.values()) > limit:
        size += 1 + size // 16  # steps that grow, so that a million tasks take a few rounds
    return [tuple(times[at : at + size]) for times in by_lane.values() for at in range(0, len(times), size)], size


def _bar(schedule: Schedule, chunk: tuple[TaskTime, ...], row_of: dict[str, int], critical: set[str]) -> Bar:
    first, last = chunk[0], chunk[-1]
    tasks = [schedule.program.tasks[schedule.program.index_of_task[time.task]] for time in chunk]
    span = f"{duration(first.start)} to {duration(last.end)}"
    if len(chunk) == 1:
        label, urgent = shown(first.task), ", urgent" * (first.task in schedule.urgent)
        facts = (
            label,
            call_of(tasks[0]),
            f"{span}: {duration(first.duration)} ({first.source}), lane {shown(first.lane)}{urgent}, engine {first.engine}",
            _held(first),
            *([f"note: {shown(tasks[0].note)}"] if tasks[0].note else []),
            *([shown(str(tasks[0].location))] if tasks[0].location else []),
        )
    else:
        label = f"{shown(first.task, 40)} … {shown(last.task, 40)}"
        busy = sum(time.duration for time in chunk)
        facts = (f"{len(chunk)} tasks: {label}", f"{span}, busy {duration(busy)}, lane {shown(first.lane)}")
    return Bar(
        row=row_of[first.lane],
        start=first.start,
        end=max(first.start, last.end),
        label=label,
        tasks=tuple(time.task for time in chunk),
        paint=paint_of(tasks[0], first.engine, schedule.program),
        critical=any(time.task in critical for time in chunk),
        facts=facts,
    )


def _held(time: TaskTime) -> str:
    after = f" '{shown(time.after)}'" if time.after is not None else ""
    match time.held_by:
        case "FIFO":
            return f"started right after{after} on its lane"
        case "wait":
            return f"started when{after or ' the event'} was done"
        case "issue":
            return "started when the host issued it" + (f", which had waited for{after}" if after else "")
        case "engine":
            return f"started when the copy engine was free, after{after}"
        case _:
            return "started at once"


def _arrows(
    schedule: Schedule, timeline: Timeline, row_of: dict[str, int], bar_of: dict[str, int], bars: list[Bar]
) -> list[Arrow]:
    next_launch = next_launches(schedule)
    critical = {time.task for time in timeline.critical_path}
    arrows: list[Arrow] = []
    for wait in timeline.waits:
        waiter = next_launch[wait.step]
        source = bar_of.get(wait.event_task) if wait.event_lane else None
        on_path = is_critical(wait, waiter, timeline, critical)
        target = bar_of[waiter] if waiter is not None else None
        step = schedule.steps[wait.step]
        reasons = step.reasons if isinstance(step, (Wait, HostWait)) else ()
        arrows.append(
            Arrow(
                source=source,
                source_row=row_of.get(wait.event_lane),
                source_time=wait.event_time,
                target=target,
                target_row=row_of[wait.lane],
                target_time=wait.until if target is None or wait.lane == HOST else max(wait.until, bars[target].start),
                since=wait.since,
                held=wait.until - wait.since,
                label=reason_label(reasons) + ("" if wait.event_lane else " (run before)"),
                critical=on_path,
                facts=_wait_facts(wait, reasons, waiter),
                host=wait.lane == HOST,
            )
        )
    return arrows


def is_critical(wait: WaitTime, waiter: str | None, timeline: Timeline, critical: set[str]) -> bool:
    """Whether a wait sets the makespan: it held a task of the critical path, or the end of the run. `critical` are that path's tasks."""
    if waiter is not None:
        time = timeline.time_of[waiter]
        return waiter in critical and time.held_by == WAIT and time.after == wait.event_task and time.start == wait.until
    last = timeline.critical_path[-1].task if timeline.critical_path else None
    return wait.until == timeline.makespan and wait.until > wait.since and wait.event_task == last


def next_launches(schedule: Schedule) -> dict[int, str | None]:
    """For every wait, by step: the first task that its lane launches after it, or None."""
    found: dict[int, str | None] = {}
    upcoming: dict[str, str] = {}
    for number in range(len(schedule.steps) - 1, -1, -1):
        match schedule.steps[number]:
            case Launch(task, lane):
                upcoming[lane] = task
            case Wait(_, lane, _):
                found[number] = upcoming.get(lane)
            case HostWait():
                found[number] = upcoming.get(HOST)
    return found


def _wait_facts(wait: WaitTime, reasons: tuple[Reason, ...], waiter: str | None) -> tuple[str, ...]:
    verb = "the host waits" if wait.lane == HOST else f"lane {shown(wait.lane)} waits"
    if not wait.event_lane:
        what = f"{verb} for {shown(wait.event)} of the run before"
    else:
        what = f"{verb} for {shown(wait.event)}, recorded after {shown(wait.event_task)} on lane {shown(wait.event_lane)}"
    who = "before the run ends" if waiter is None else f"before {shown(waiter)}"
    held = wait.until - wait.since
    cost = f"held it for {duration(held)}" if held > 0 else "was done already: held nothing up"
    return (f"{what}, {who}", *(shown(str(reason), 300) for reason in reasons), cost)


def _most_telling(arrows: list[Arrow], limit: int) -> list[Arrow]:
    """At most `limit` arrows, in their order: those on the critical path, then those that held a lane the longest."""
    ranked = sorted(range(len(arrows)), key=lambda number: (not arrows[number].critical, -arrows[number].held, number))
    return [arrows[number] for number in sorted(ranked[:limit])]


def _merged(arrows: list[Arrow]) -> list[Arrow]:
    """One arrow per pair of bars; waits inside one bar vanish into it."""
    groups: dict[tuple[int | None, int | None, int | None, int], list[Arrow]] = {}
    for arrow in arrows:
        if arrow.source is None or arrow.source != arrow.target:
            groups.setdefault((arrow.source, arrow.source_row, arrow.target, arrow.target_row), []).append(arrow)
    merged: list[Arrow] = []
    for group in groups.values():
        first = group[0]
        if len(group) == 1:
            merged.append(first)
            continue
        shown_facts = tuple(arrow.facts[0] for arrow in group[:3])
        more = (f"and {len(group) - 3} more",) if len(group) > 3 else ()
        merged.append(
            Arrow(
                first.source, first.source_row, first.source_time, first.target, first.target_row, first.target_time, first.since,
                sum(arrow.held for arrow in group), f"{len(group)} waits", any(arrow.critical for arrow in group),
                (f"{len(group)} waits", *shown_facts, *more), len(group), first.host,
            )
        )  # fmt: skip
    return merged
