"""Everything the HTML report shows, as plain data: columns of numbers beside tables of names, so that 100,000 tasks stay small.

Tasks are numbered in the order in which they are issued. Times are microseconds, rounded to nanoseconds.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from streamgraph.errors import StreamgraphError
from streamgraph.hazards import find_hazards
from streamgraph.model import ENTRY, EXIT, HOST, MAIN, Kind
from streamgraph.render.bands import bands_of
from streamgraph.render.colours import HATCHES, OTHERS, OTHERS_COLOUR, colours_of, paint_of
from streamgraph.render.fit import shown
from streamgraph.render.layers import layered
from streamgraph.render.memory import curve, lives, place_of, places
from streamgraph.render.scene import is_critical, next_launches, reason_label
from streamgraph.schedule import HostWait, Schedule, Wait
from streamgraph.simulate import Timeline
from streamgraph.storages import Mode
from streamgraph.timeline import lane_names

MOST_STEPS = 60_000
MOST_SPEC = 5_000  # tasks whose spec is written out
NOBODY, AT_ENTRY, AT_EXIT, ON_HOST = -1, -2, -3, -4  # where a task's number stands for none, or for the caller
PSEUDO = {ENTRY: AT_ENTRY, EXIT: AT_EXIT, HOST: ON_HOST}
MODES = (Mode.READ, Mode.WRITE, Mode.UPDATE)


class _Names:
    """A table of texts: each is stored once and stands as its number."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.number.setdefault(text, len(self.number))

    @property
    def table(self) -> list[str]:
        """The texts in the order of their numbers, as a page may show them."""
        return [shown(text, 200) for text in self.number]


def facts_of(
    schedule: Schedule, timeline: Timeline, spec: str | None = None, python: str | None = None, measured: Timeline | None = None
) -> dict[str, Any]:
    """The data of the report, as `report.draw_html` takes it."""
    names = _Names()
    number_of = {time.task: number for number, time in enumerate(timeline.tasks)} | PSEUDO
    declared = [number_of.get(task.name, NOBODY) for task in schedule.program.tasks]
    lanes = lane_names(schedule, timeline)
    return {
        **_summary(schedule, timeline, lanes),
        "task": _tasks(schedule, timeline, names, lanes, number_of),
        "wait": _waits(schedule, timeline, names, lanes, number_of),
        "hazard": _hazards(schedule, names, declared),
        **_storages(schedule, timeline, names, declared),
        "graph": _graph(schedule, declared),
        "bands": _bands(schedule, timeline, lanes),
        **_texts(schedule, spec, python),
        **({} if measured is None else {"measured": _measured(schedule, measured, names, lanes, number_of, declared)}),
        "names": names.table,
    }


def _bands(schedule: Schedule, timeline: Timeline, lanes: list[str]) -> list[list[object]]:
    """[lane, iteration, start, end, tint] for the iterations of a loop written out."""
    row_of = {name: row for row, name in enumerate(lanes)}
    bands = bands_of(timeline, row_of, {task.name: task for task in schedule.program.tasks})
    return [[band.row, band.iteration, round(band.start, 3), round(band.end, 3), band.tint] for band in bands]


def _summary(schedule: Schedule, timeline: Timeline, lanes: list[str]) -> dict[str, Any]:
    priority, busy = {lane.name: lane.priority for lane in schedule.lanes}, dict(timeline.busy)
    device = schedule.device_of if schedule.program.devices else {}

    def about(lane: str) -> str:
        said = [*([priority[lane]] if priority.get(lane, "normal") != "normal" else []), *([device[lane]] if lane in device else [])]
        return "".join(f", {shown(part)}" for part in said)

    kinds = [time.source for time in timeline.tasks]
    return {
        "name": shown(schedule.program.name) or "program",
        "counts": str(schedule.counts),
        "records": schedule.counts.record_streams,
        "waits": schedule.counts.waits + schedule.counts.host_waits,
        "basis": shown(timeline.basis, 200),
        "bound": [timeline.bound[0], _time(timeline.bound[1])],
        "makespan": _time(timeline.makespan),
        "oneStream": _time(timeline.one_stream),
        "work": _time(timeline.work),
        "speedUp": round(timeline.speed_up, 3),
        "overlap": round(timeline.overlap, 3),
        "issueCost": timeline.machine.launch,
        "sources": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "options": [[shown(key), shown(value)] for key, value in schedule.options],
        "notes": [shown(note, 400) for note in schedule.notes],
        "lanes": [[shown(name), about(name), _time(busy.get(name, 0.0)), int(name == HOST)] for name in lanes],
        "main": lanes.index(MAIN) if MAIN in lanes else 0,
    }


def _tasks(
    schedule: Schedule, timeline: Timeline, names: _Names, lanes: list[str], number_of: dict[str, int]
) -> dict[str, Any]:
    tasks = [schedule.program.tasks[schedule.program.index_of_task[time.task]] for time in timeline.tasks]
    paints = [paint_of(task, time.engine, schedule.program) for task, time in zip(tasks, timeline.tasks, strict=True)]
    colours = colours_of(paints)
    paint_number = {paint: number for number, paint in enumerate(colours)}
    lane_number = {name: number for number, name in enumerate(lanes)}
    legend = [
        [OTHERS if colour == OTHERS_COLOUR else shown(paint, 60), colour, HATCHES.get(paint, 0)] for paint, colour in colours.items()
    ]
    files = _Names()
    return {
        "name": [shown(time.task, 200) for time in timeline.tasks],
        "lane": [lane_number[time.lane] for time in timeline.tasks],
        "start": [_time(time.start) for time in timeline.tasks],
        "end": [_time(time.end) for time in timeline.tasks],
        "alone": [_time(time.alone) for time in timeline.tasks],
        "issued": [_time(time.issued) for time in timeline.tasks],
        "paint": [paint_number[paint] for paint in paints],
        "operator": [names(task.operator) for task in tasks],
        "source": [names(time.source) for time in timeline.tasks],
        "engine": [names(time.engine) for time in timeline.tasks],
        "held": [names(time.held_by) for time in timeline.tasks],
        "after": [NOBODY if time.after is None else number_of[time.after] for time in timeline.tasks],
        "file": [NOBODY if task.location is None else files(PurePath(task.location.file).name) for task in tasks],
        "line": [0 if task.location is None else task.location.line or 0 for task in tasks],
        "pinned": [number for number, task in enumerate(tasks) if task.stream is not None],
        "urgent": [number for number, task in enumerate(tasks) if task.name in schedule.urgent],
        "critical": [number_of[time.task] for time in timeline.critical_path],
        "notes": {number: shown(task.note, 400) for number, task in enumerate(tasks) if task.note},
        "files": files.table,
        "paints": legend,
    }


def _measured(
    schedule: Schedule, measured: Timeline, names: _Names, lanes: list[str], number_of: dict[str, int], declared: list[int]
) -> dict[str, Any]:
    """What is another in a run that took place: the same keys and columns, for the page to put in the place of the simulated ones."""
    tasks, waits = _tasks(schedule, measured, names, lanes, number_of), _waits(schedule, measured, names, lanes, number_of)
    held = _storages(schedule, measured, names, declared)
    summary = _summary(schedule, measured, lanes)
    return {
        **{key: summary[key] for key in ("basis", "bound", "makespan", "oneStream", "speedUp", "overlap", "sources", "lanes")},
        # Lanes with threads of their own issue in no common order, and the page shows none.
        "inOrder": int(all(a.issued <= b.issued for a, b in zip(measured.tasks, measured.tasks[1:], strict=False))),
        "task": {key: tasks[key] for key in ("start", "end", "alone", "issued", "source", "held", "after", "critical")},
        "wait": {key: waits[key] for key in ("since", "until", "at", "critical")},
        "storage": {key: held["storage"][key] for key in ("start", "end")},
        "memory": held["memory"],
        "bands": _bands(schedule, measured, lanes),
    }


def _waits(
    schedule: Schedule, timeline: Timeline, names: _Names, lanes: list[str], number_of: dict[str, int]
) -> dict[str, Any]:
    upcoming = next_launches(schedule)
    critical = {time.task for time in timeline.critical_path}
    lane_number = {name: number for number, name in enumerate(lanes)}
    columns: dict[str, list[Any]] = {
        key: [] for key in ("event", "from", "fromLane", "to", "lane", "since", "until", "at", "label", "why", "critical", "previous")
    }
    for number, wait in enumerate(timeline.waits):
        waiter, step = upcoming[wait.step], schedule.steps[wait.step]
        reasons = step.reasons if isinstance(step, (Wait, HostWait)) else ()
        end = ON_HOST if wait.lane == HOST else AT_EXIT if wait.lane == MAIN else NOBODY
        row = {
            "event": names(wait.event),
            "from": number_of.get(wait.event_task, NOBODY) if wait.event_lane else NOBODY,
            "fromLane": lane_number.get(wait.event_lane, NOBODY),
            "to": end if waiter is None else number_of.get(waiter, NOBODY),
            "lane": lane_number[wait.lane],
            "since": _time(wait.since), "until": _time(wait.until), "at": _time(wait.event_time),
            "label": names(reason_label(reasons)),
            "why": [
                [names(why.kind), names(why.tensor), number_of.get(why.earlier, NOBODY), number_of.get(why.later, NOBODY)]
                for why in reasons
            ],
        }  # fmt: skip
        for key, value in row.items():
            columns[key].append(value)
        if not wait.event_lane:
            columns["previous"].append(number)
        if is_critical(wait, waiter, timeline, critical):
            columns["critical"].append(number)
    return columns


def _hazards(schedule: Schedule, names: _Names, declared: list[int]) -> dict[str, Any]:
    found = find_hazards(schedule.program, schedule.accesses)
    return {
        "earlier": [declared[hazard.earlier] for hazard in found],
        "later": [declared[hazard.later] for hazard in found],
        "kind": [names(hazard.kind) for hazard in found],
        "tensor": [names(hazard.tensor) for hazard in found],
    }


def _storages(schedule: Schedule, timeline: Timeline, names: _Names, declared: list[int]) -> dict[str, Any]:
    named, accesses = schedule.program.tensor_named, schedule.accesses
    found = {life.storage: life for life in lives(schedule, timeline)}
    types = [named[storage.tensor].type if storage.tensor in named else None for storage in accesses.storages]
    uses = [(declared[task], access) for task, its in enumerate(accesses.of_task) for access in its]
    curves = {place: curve(found.values(), place) for place in places(schedule.program)}
    return {
        "storage": {
            "label": [shown(storage.label, 120) for storage in accesses.storages],
            "kind": [names(_kind(storage.kind, storage.version == 0 and storage.label != storage.tensor)) for storage in accesses.storages],
            "type": [names("" if kind is None else str(kind)) for kind in types],
            "place": [names(place_of(storage, schedule.program)) for storage in accesses.storages],
            "output": sorted(accesses.output_storages),
            "bytes": [found[n].bytes if n in found else None for n in range(len(accesses.storages))],
            "start": [_time(found[n].start) if n in found else 0 for n in range(len(accesses.storages))],
            "end": [_time(found[n].end) if n in found else _time(timeline.makespan) for n in range(len(accesses.storages))],
        },
        "use": {
            "task": [task for task, _ in uses],
            "storage": [access.storage for _, access in uses],
            "mode": [MODES.index(access.mode) for _, access in uses],
            "tensor": [names(access.tensor) for _, access in uses],
            "turn": [access.turn for _, access in uses],
        },
        "memory": {
            name: {"times": [_time(time) for time in steps.times], "bytes": list(steps.bytes)} for name, steps in curves.items()
        },
    }


def _kind(kind: Kind, slot: bool) -> str:
    return "ring slot" if slot else kind.value


def _graph(schedule: Schedule, declared: list[int]) -> dict[str, Any]:
    layers = layered(schedule)
    return {
        "label": [box.label for box in layers.boxes],
        "tasks": [[declared[task] for task in box.tasks] for box in layers.boxes],
        "layer": [box.layer for box in layers.boxes],
        "place": [round(box.place, 3) for box in layers.boxes],
        "edges": [end for edge in layers.edges for end in edge],
        "hidden": layers.hidden,
        "note": layers.note,
    }


def _texts(schedule: Schedule, spec: str | None, python: str | None) -> dict[str, Any]:
    """The steps, the same as Python, and the spec: None for what is too long for a page, or has no such form."""
    steps = [shown(str(step), 600) for step in schedule.steps] if len(schedule.steps) <= MOST_STEPS else None
    return {
        "steps": steps,
        "stepCount": len(schedule.steps),
        "python": None if python is None else _plain(python),
        "spec": _canonical(schedule) if spec is None else _plain(spec),
        "specIsOwn": spec is not None,
    }


def _canonical(schedule: Schedule) -> str | None:
    from streamgraph.spec.write import to_yaml

    if len(schedule.program.tasks) > MOST_SPEC:
        return None
    try:
        return _plain(to_yaml(schedule.program))
    except StreamgraphError:
        return None  # a constant that is no plain data, for one


def _plain(text: str) -> str:
    """Line by line what a page may show."""
    return "\n".join(shown(line.replace("\t", "    "), 2_000) for line in text.splitlines())


def _time(microseconds: float) -> float:
    return round(microseconds, 3)
