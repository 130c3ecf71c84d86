"""Timeline: what a simulated run was like. When each task and wait happened, what held it, and what bounds any run from below.

`simulate` makes it. Everything but the makespan is worked out when it is asked for: planning asks for thousands of makespans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from streamgraph.cost import COMPUTE, D2H, DECLARED, DEFAULT, H2D, MEASURED, Costs
from streamgraph.devices import of_tasks
from streamgraph.errors import quoted
from streamgraph.machine import DEFAULT_MACHINE, Machine
from streamgraph.model import DEVICE, HOST
from streamgraph.schedule import Schedule

FIFO, WAIT, ISSUE, ENGINE, START = "FIFO", "wait", "issue", "engine", "start"


@dataclass(frozen=True, slots=True)
class TaskTime:
    """When a task ran, in microseconds. `held_by` is why it did not start sooner, and `after` the task that held it, if one did.

    `held_by` is `FIFO` (the task before it on its lane), `wait` (an event), `issue` (the host had not come to it), `engine` (the copy
    engine was busy), or `start`. `issued` is when the host had issued it, `alone` how long it takes with the device to itself.
    """

    task: str
    lane: str
    engine: str
    source: str
    start: float
    end: float
    held_by: str
    after: str | None
    issued: float = 0.0
    alone: float = 0.0

    @property
    def duration(self) -> float:
        """How long the task ran, in microseconds: `alone`, and longer where others ran beside it."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class WaitTime:
    """What a wait did: `lane` (`host` for a host wait) came to it at `since` and went on at `until`.

    `step` is its place in `schedule.steps`; the event was recorded on `event_lane` after `event_task` and done at `event_time`. A wait
    that cost nothing has `until == since`; one for an event of the run before has an empty `event_task` and `event_lane`.
    """

    step: int
    lane: str
    since: float
    until: float
    event: str
    event_task: str
    event_lane: str
    event_time: float


@dataclass(frozen=True, slots=True)
class Played:
    """What the virtual clock saw, raw: by launch number its task's index, lane, start, end, cause, the launch that held it, and issue."""

    makespan: float
    host: float
    task_of: tuple[int, ...]
    lane_of: tuple[str, ...]
    start: tuple[float, ...]
    end: tuple[float, ...]
    held_by: tuple[str, ...]
    holder: tuple[int, ...]
    issued: tuple[float, ...]
    waits: tuple[WaitTime, ...]
    last: int


class Timeline:
    """A simulated run, in microseconds. `tasks` and `waits` are in issue order, `busy` and `idle` in lane order.

    `costs`, `machine` and `issue` ("eager" or "captured") are what it was made from. `measured` is true of its one subclass.
    """

    measured = False

    def __init__(
        self, schedule: Schedule, costs: Costs, machine: Machine, issue: str, played: Played, on_one_stream: Callable[[], float]
    ) -> None:
        self.schedule, self.costs, self.machine, self.issue = schedule, costs, machine, issue
        self._played, self._on_one_stream = played, on_one_stream

    @property
    def makespan(self) -> float:
        """From the call to the end of the last task, wait or host call."""
        return self._played.makespan

    @cached_property
    def tasks(self) -> tuple[TaskTime, ...]:
        """When each task ran."""
        names = [task.name for task in self.schedule.program.tasks]
        seen, costs = self._played, self.costs
        made: list[TaskTime] = []
        for number, index in enumerate(seen.task_of):
            holder = seen.holder[number]
            made.append(
                TaskTime(
                    names[index], seen.lane_of[number], costs.engine[index], costs.source[index], seen.start[number], seen.end[number],
                    seen.held_by[number], names[seen.task_of[holder]] if holder >= 0 else None, seen.issued[number],
                    costs.microseconds[index],
                )
            )  # fmt: skip
        return tuple(made)

    @property
    def waits(self) -> tuple[WaitTime, ...]:
        """What each wait did."""
        return self._played.waits

    @cached_property
    def time_of(self) -> Mapping[str, TaskTime]:
        """The time of each task, by name."""
        return {time.task: time for time in self.tasks}

    @cached_property
    def critical_path(self) -> tuple[TaskTime, ...]:
        """The tasks that determine the makespan, first to last, each held by the one before it."""
        path: list[TaskTime] = []
        number = self._played.last
        while number >= 0:
            path.append(self.tasks[number])
            number = self._played.holder[number]
        return tuple(reversed(path))

    @cached_property
    def busy(self) -> tuple[tuple[str, float], ...]:
        """How long each lane ran tasks."""
        seen = self._played
        total = {lane.name: 0.0 for lane in self.schedule.lanes}
        for lane, start, end in zip(seen.lane_of, seen.start, seen.end, strict=True):
            total[lane] = total.get(lane, 0.0) + (end - start)
        return tuple(total.items())

    @property
    def idle(self) -> tuple[tuple[str, float], ...]:
        """How long each lane ran none."""
        return tuple((lane, self.makespan - time) for lane, time in self.busy)

    @cached_property
    def work(self) -> float:
        """All tasks one after another, each alone: T1."""
        return sum(self.costs.microseconds[index] for index in self._played.task_of)

    @cached_property
    def overlap(self) -> float:
        """How many tasks ran at once, on average: the sum of their times over the makespan (0.0 for an empty program)."""
        return sum(time for _, time in self.busy) / self.makespan if self.makespan > 0 else 0.0

    @cached_property
    def one_stream(self) -> float:
        """The makespan of the same steps on a single stream."""
        return self._on_one_stream()

    @property
    def basis(self) -> str:
        """What the times rest on, in words: "measured costs of 12 of 14 tasks, sizes for the rest, on 'h200'"."""
        source = Counter(self.costs.source[index] for index in self._played.task_of)
        known = [f"{how} costs of {source[how]}" for how in (MEASURED, DECLARED) if source[how]]
        said = f"{' and '.join(known)} of {len(self._played.task_of)} tasks" if known else "sizes alone"
        said += ", sizes for the rest" if known and source[DEFAULT] else ""
        said += "" if self.machine.name == DEFAULT_MACHINE else f" on '{quoted(self.machine.name)}'"
        return f"{said}, as a CUDA graph" if self.issue == "captured" else said

    @property
    def speed_up(self) -> float:
        """How many times faster than the same steps on one stream (1.0 for an empty program)."""
        return self.one_stream / self.makespan if self.makespan > 0 else 1.0

    @cached_property
    def span(self) -> float:
        """The longest path of hazards, each task alone: T-infinity. No number of lanes is faster."""
        import networkx as nx

        graph = self.schedule.graph
        launched = set(self._played.task_of)
        finish: dict[int, float] = {}
        for task in nx.topological_sort(graph):
            own = self.costs.microseconds[task] if task in launched else 0.0
            finish[task] = own + max((finish[earlier] for earlier in graph.predecessors(task)), default=0.0)
        return max(finish.values(), default=0.0)

    @cached_property
    def bounds(self) -> Mapping[str, float]:
        """What no run on these lanes can beat, by name.

        `span`: the longest path of hazards. `lanes`: the tasks of the busiest lane, each alone. `device`: each task's share of the device
        times its time. `bandwidth`: likewise of the memory's bandwidth. `h2d`, `d2h`: the copies of that direction. `host`: the host's
        calls.
        With several devices the last four but `host` are those of the device that has the most of it.
        """
        costs, launched = self.costs, self._played.task_of
        device_of = of_tasks(self.schedule.program)
        sums = {device: {"device": 0.0, "bandwidth": 0.0, H2D: 0.0, D2H: 0.0} for device in (*device_of, DEVICE)}
        of_lane: dict[str, float] = {}
        for index, lane in zip(launched, self._played.lane_of, strict=True):
            time, engine, of_device = costs.microseconds[index], costs.engine[index], sums[device_of[index]]
            if engine == COMPUTE:
                of_device["device"] += time * costs.fill[index] if costs.fill else 0.0
                of_device["bandwidth"] += time * costs.bandwidth[index] if costs.bandwidth else 0.0
            elif engine in (H2D, D2H):
                of_device[engine] += time
            of_lane[lane] = of_lane.get(lane, 0.0) + time
        most = {name: max(of_device[name] for of_device in sums.values()) for name in sums[DEVICE]}
        return {"span": self.span, "lanes": max(of_lane.values(), default=0.0), **most, "host": self._played.host}

    @property
    def bound(self) -> tuple[str, float]:
        """The largest of the lower bounds, with its name."""
        return max(self.bounds.items(), key=lambda entry: entry[1])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timeline):
            return NotImplemented
        return (self._played, self.costs, self.machine, self.issue) == (other._played, other.costs, other.machine, other.issue)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Timeline of '{self.schedule.program.name}' on '{self.machine.name}', {self.issue}: {self.makespan:.1f} us>"

    def to_dict(self) -> dict[str, object]:
        """Plain data for `--json`, times in microseconds."""
        return {
            "unit": "us",
            "machine": self.machine.name,
            "issue": self.issue,
            "makespan": self.makespan,
            "work": self.work,
            "span": self.span,
            "one_stream": self.one_stream,
            "speed_up": self.speed_up,
            "overlap": self.overlap,
            "bounds": dict(self.bounds),
            "bound": self.bound[0],
            "busy": dict(self.busy),
            "critical_path": [time.task for time in self.critical_path],
            "tasks": [
                {
                    "task": time.task, "lane": time.lane, "engine": time.engine, "source": time.source, "start": time.start,
                    "end": time.end, "alone": time.alone, "issued": time.issued, "held_by": time.held_by, "after": time.after,
                }
                for time in self.tasks
            ],
            "waits": [
                {
                    "step": wait.step, "lane": wait.lane, "since": wait.since, "until": wait.until, "event": wait.event,
                    "event_task": wait.event_task, "event_lane": wait.event_lane, "event_time": wait.event_time,
                }
                for wait in self.waits
            ],
        }  # fmt: skip


def lane_names(schedule: Schedule, timeline: Timeline) -> list[str]:
    """The lanes of a run in the order of the schedule; those that only the run has stand last."""
    names = [lane.name for lane in schedule.lanes]
    names += [name for name, _ in timeline.busy if name not in names]
    if HOST not in names and any(wait.lane == HOST for wait in timeline.waits):
        names.append(HOST)
    return names
