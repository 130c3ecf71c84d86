"""Measured: real starts and ends of tasks become a Timeline like the simulated one, so that everything that shows one shows the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from streamgraph.cost import MEASURED
from streamgraph.machine import Machine
from streamgraph.model import HOST
from streamgraph.schedule import HostWait, Launch, Record, Schedule, Wait
from streamgraph.simulate import Timeline
from streamgraph.timeline import FIFO, ISSUE, START, WAIT, Played, WaitTime

Times: TypeAlias = tuple[float, float, "float | None"]
"""Start and end of a task in microseconds from the entry of the run, and when the host issued it, if that is not the start."""


class MeasuredTimeline(Timeline):
    """A run that took place. `runs` is how many were measured; this is the one with the median makespan.

    Starts and ends of tasks are measured. Waits are not: a lane is taken to come to a wait when the task before is done, and to go on when
    the task that it waits for is. What held a task (`held_by`) is, of what it had to follow, what ended last.
    """

    measured = True

    def __init__(
        self, schedule: Schedule, predicted: Timeline, times: Mapping[str, Times], makespan: float, one_stream: float,
        *, device: str, runs: int,
    ) -> None:  # fmt: skip
        tasks, known = schedule.program.tasks, predicted.costs
        spent = {name: max(0.0, end - start) for name, (start, end, _) in times.items()}
        costs = replace(
            known,
            microseconds=tuple(spent.get(task.name, known.microseconds[number]) for number, task in enumerate(tasks)),
            source=tuple(MEASURED if task.name in spent else known.source[number] for number, task in enumerate(tasks)),
        )
        machine: Machine = replace(predicted.machine, name=device)

        def alone() -> float:
            return one_stream

        super().__init__(schedule, costs, machine, "eager", _played(schedule, times, makespan), alone)
        self.device, self.runs = device, runs

    @property
    def basis(self) -> str:
        """Where it was measured, in words."""
        return f"measured on {self.device}, the median of {self.runs} runs"

    def __repr__(self) -> str:
        return f"<Timeline of '{self.schedule.program.name}' measured on {self.device}: {self.makespan:.1f} us>"

    def to_dict(self) -> dict[str, object]:
        """Plain data for `--json`, times in microseconds."""
        return {**super().to_dict(), "device": self.device, "runs": self.runs}


def _played(schedule: Schedule, times: Mapping[str, Times], makespan: float) -> Played:
    """The steps once more, with the times as they were."""
    index = schedule.program.index_of_task
    names: list[str] = []
    lane_of: list[str] = []
    held_by: list[str] = []
    holder: list[int] = []
    number_of: dict[str, int] = {}
    last_on: dict[str, int] = {}  # lane -> its newest launch
    joined: dict[str, list[int]] = {}  # lane -> the launches that it has waited for since
    record_of: dict[str, Record] = {}
    waits: list[WaitTime] = []

    def end(launch: int | None) -> float:
        return times[names[launch]][1] if launch is not None else 0.0

    for number, step in enumerate(schedule.steps):
        match step:
            case Launch(task, lane) if task in times:
                _, _, issued = times[task]
                before = last_on.get(lane)
                found = [(end(before), before, FIFO)] if before is not None else []
                found += [(end(launch), launch, WAIT) for launch in joined.pop(lane, [])]
                time, launch, why = max(found, key=lambda candidate: candidate[0], default=(0.0, -1, START))
                if issued is not None and issued > time:
                    launch, why = -1, ISSUE
                number_of[task] = last_on[lane] = len(names)
                names.append(task)
                lane_of.append(lane)
                held_by.append(why)
                holder.append(launch)
            case Record(event):
                record_of[event] = step
            case Wait(event, lane):
                waits.append(_wait(number, lane, event, end(last_on.get(lane)), record_of.get(event), times))
                if (record := record_of.get(event)) is not None and record.task in number_of:
                    joined.setdefault(lane, []).append(number_of[record.task])
            case HostWait(event, previous):
                record = None if previous else record_of.get(event)
                waits.append(_wait(number, HOST, event, end(last_on.get(HOST)), record, times))
                if record is not None and record.task in number_of:
                    joined.setdefault(HOST, []).append(number_of[record.task])
            case _:
                pass
    starts = tuple(times[name][0] for name in names)
    ends = tuple(times[name][1] for name in names)
    issues = tuple(start if times[name][2] is None else float(times[name][2] or 0.0) for name, start in zip(names, starts, strict=True))
    last = max(range(len(names)), key=lambda launch: ends[launch], default=-1)
    whole = max([makespan, *ends, *(wait.until for wait in waits)])
    return Played(
        whole, max(issues, default=0.0), tuple(index[name] for name in names), tuple(lane_of), starts, ends, tuple(held_by), tuple(holder),
        issues, tuple(waits), last,
    )  # fmt: skip


def _wait(number: int, lane: str, event: str, since: float, record: Record | None, times: Mapping[str, Times]) -> WaitTime:
    if record is None:
        return WaitTime(number, lane, since, since, event, "", "", since)
    at = times[record.task][1] if record.task in times else 0.0
    return WaitTime(number, lane, since, max(since, at), event, record.task, record.lane, at)
