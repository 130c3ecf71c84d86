"""A run as a trace that Perfetto (https://ui.perfetto.dev) and chrome://tracing open: slices per lane, flows per wait, memory as counters.

The format is Chrome's trace events as JSON ("Trace Event Format", Google, 2016). Times are microseconds, moved by `SHIFT` so that `entry`
has a slice of its own before the first task.
"""

from __future__ import annotations

import json
from typing import Any

from streamgraph.model import ENTRY, EXIT, HOST, MAIN
from streamgraph.render.colours import paint_of
from streamgraph.render.fit import shown
from streamgraph.render.memory import curve, lives, places
from streamgraph.render.scene import next_launches, reason_label
from streamgraph.schedule import HostWait, Schedule, Wait
from streamgraph.simulate import Timeline
from streamgraph.timeline import lane_names

SHIFT = 1.0
PROCESS, MEASURED = 1, 2
BEGIN, END = "entry of the caller", "end of the lane"  # no task's name holds a space
SHORTEST = 0.001  # microseconds: the format's clock counts nanoseconds, and a flow needs a slice to stand in


def draw_trace(schedule: Schedule, timeline: Timeline, measured: Timeline | None = None) -> str:
    """The JSON text of the planned run: one slice per task, `entry`, `exit` and the host's end, one flow per wait of this run.

    With `measured`, a run that took place, that is a second process of the same form.
    """
    return json.dumps(trace_of(schedule, timeline, measured), ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"


def trace_of(schedule: Schedule, timeline: Timeline, measured: Timeline | None = None) -> dict[str, Any]:
    """The trace as plain data."""
    events = _process(schedule, timeline)
    if measured is not None:
        apart = len(timeline.waits)  # flows are known by their numbers, over all processes
        for event in _process(schedule, measured):
            events.append({**event, "pid": MEASURED, **({"id": event["id"] + apart} if "id" in event else {})})
    return {"displayTimeUnit": "ns", "traceEvents": events, "otherData": {"program": shown(schedule.program.name), "by": "streamgraph"}}


def _process(schedule: Schedule, timeline: Timeline) -> list[dict[str, Any]]:
    """One run."""
    names = lane_names(schedule, timeline)
    thread = {name: number for number, name in enumerate(names, 1)}
    process = f"{shown(schedule.program.name)} ({'measured' if timeline.measured else 'planned, simulated'})"
    events: list[dict[str, Any]] = [{"ph": "M", "pid": PROCESS, "tid": 0, "name": "process_name", "args": {"name": process}}]
    for name, number in thread.items():
        events.append({"ph": "M", "pid": PROCESS, "tid": number, "name": "thread_name", "args": {"name": shown(name)}})
        events.append({"ph": "M", "pid": PROCESS, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})
    slices = _slices(schedule, timeline, thread)
    events += [event for _, event in sorted(slices.values(), key=lambda item: item[0])]
    events += _flows(schedule, timeline, slices)
    events += _counters(schedule, timeline)
    return events


_Slices = dict[tuple[str, str], tuple[float, dict[str, Any]]]  # (lane, task or pseudo-task) -> begin, event


def _slices(schedule: Schedule, timeline: Timeline, thread: dict[str, int]) -> _Slices:
    tasks, index = schedule.program.tasks, schedule.program.index_of_task
    critical = {time.task for time in timeline.critical_path}
    found: _Slices = {}
    for time in timeline.tasks:
        task = tasks[index[time.task]]
        touched = {"updates": task.updates, "reads": task.reads, "writes": task.writes}
        args: dict[str, Any] = {"operator": shown(task.operator), "lane": shown(time.lane), "engine": time.engine, "time from": time.source}
        args |= {key: [shown(name) for entry in entries for name in entry.tensors] for key, entries in touched.items() if entries}
        args |= {"held by": time.held_by, "critical path": time.task in critical}
        if time.after is not None:
            args["after"] = shown(time.after)
        if task.location is not None:
            args["declared at"] = shown(f"{task.location.file}:{task.location.line}")
        kind = shown(paint_of(task, time.engine, schedule.program))
        found[time.lane, time.task] = _slice(shown(time.task), kind, thread[time.lane], SHIFT + time.start, SHIFT + time.end, args)
    if MAIN in thread:
        found[MAIN, BEGIN] = _slice(ENTRY, "caller", thread[MAIN], 0.0, SHIFT, {})
    upcoming, end = next_launches(schedule), SHIFT + timeline.makespan
    for lane in dict.fromkeys([MAIN, HOST, *(wait.lane for wait in timeline.waits if upcoming[wait.step] is None)]):
        if lane in thread:
            name = {MAIN: EXIT, HOST: "the run ends"}.get(lane, f"end of {shown(lane)}")
            found[lane, END] = _slice(name, "caller", thread[lane], end, end + SHIFT, {})
    return found


def _slice(name: str, kind: str, thread: int, start: float, end: float, args: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    begin, until = round(start, 3), round(end, 3)
    length = max(SHORTEST, round(until - begin, 3))
    event = {"ph": "X", "pid": PROCESS, "tid": thread, "name": name or "(no name)", "cat": kind, "ts": begin, "dur": length, "args": args}
    return begin, event


def _flows(schedule: Schedule, timeline: Timeline, slices: _Slices) -> list[dict[str, Any]]:
    upcoming = next_launches(schedule)
    events: list[dict[str, Any]] = []
    for number, wait in enumerate(timeline.waits):
        source = slices.get((wait.event_lane, BEGIN if wait.event_task == ENTRY else wait.event_task))
        waiter = upcoming[wait.step]
        target = slices.get((wait.lane, END if waiter is None else waiter))
        if source is None or target is None:
            continue  # an event of the run before has no slice here
        step = schedule.steps[wait.step]
        reasons = step.reasons if isinstance(step, (Wait, HostWait)) else ()
        name = reason_label(reasons) or shown(wait.event)
        why = [shown(str(reason), 300) for reason in reasons]
        args = {"event": shown(wait.event), "held (us)": round(wait.until - wait.since, 3), "why": why}
        for kind, (begin, event) in (("s", source), ("f", target)):
            # In the middle of its slice, so that it belongs to that slice and no neighbour; viewers draw it from end to beginning.
            place = {"pid": PROCESS, "tid": event["tid"], "ts": round(begin + event["dur"] / 2, 4)}
            extra = {"bp": "e"} if kind == "f" else {"args": args}
            events.append({"ph": kind, "id": number + 1, "name": name, "cat": "wait", **place, **extra})
    return events


def _counters(schedule: Schedule, timeline: Timeline) -> list[dict[str, Any]]:
    found = lives(schedule, timeline)
    events: list[dict[str, Any]] = []
    for place in places(schedule.program):
        steps, name = curve(found, place), f"{place} memory"
        for time, live in zip(steps.times, steps.bytes, strict=True):
            events.append({"ph": "C", "pid": PROCESS, "tid": 0, "name": name, "ts": round(SHIFT + time, 3), "args": {"bytes": live}})
    return events
