"""A virtual clock: a Schedule and a time per task become a Timeline.

The rules, which are CUDA's as far as they go:

- One host thread issues the steps in order, and each call takes it a little time. A task cannot start before it was issued.
- A lane runs its launches in order. A wait holds the lane until the event's lane had come to the record.
- A host task and a host wait hold the issuing thread. A wait whose event nothing has recorded yet is no wait, as in CUDA.
- Each copy engine (`h2d`, `d2h`) serves one copy at a time, whichever is ready first.

Not modelled: kernels on different lanes do not slow each other down here, so a plan with many lanes looks faster than it will be. A memory
copy does not steal bandwidth from a kernel. What the previous run left over (`previous`) counts as done. A lane per thread is not told
apart from the single issuing thread.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from typing_extensions import assert_never

from streamgraph.cost import D2H, H2D, Costs, task_costs
from streamgraph.errors import Problem, ScheduleError, quoted
from streamgraph.model import HOST
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Step, Wait

# Microseconds of the issuing thread per call, medians on one H200 machine: a tiny `add_`, `set_stream` with ready integers,
# `event.record`, `wait_event`, `record_stream`. Dropping a tensor was not measured.
ISSUE_LAUNCH, ISSUE_SWITCH, ISSUE_RECORD, ISSUE_WAIT, ISSUE_RECORD_STREAM, ISSUE_RELEASE = 7.0, 0.75, 0.8, 0.9, 0.5, 0.3

FIFO, WAIT, ISSUE, ENGINE, START = "FIFO", "wait", "issue", "engine", "start"


@dataclass(frozen=True, slots=True)
class TaskTime:
    """When a task ran, in microseconds. `held_by` is why it did not start sooner, and `after` the task that held it, if one did.

    `held_by` is `FIFO` (the task before it on its lane), `wait` (an event), `issue` (the host had not come to it), `engine` (the copy
    engine was busy), or `start`.
    """

    task: str
    lane: str
    engine: str
    source: str
    start: float
    end: float
    held_by: str
    after: str | None

    @property
    def duration(self) -> float:
        """How long the task ran, in microseconds."""
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


@dataclass(frozen=True)
class Timeline:
    """A simulated run, in microseconds. `tasks` and `waits` are in issue order, `busy` in lane order.

    `work` is the sum of all tasks; `one_stream` is the makespan of the same steps on a single stream; `critical_path` are the tasks that
    determine the makespan, first to last, each held by the one before it.
    """

    tasks: tuple[TaskTime, ...]
    waits: tuple[WaitTime, ...]
    makespan: float
    work: float
    one_stream: float
    busy: tuple[tuple[str, float], ...]
    critical_path: tuple[TaskTime, ...]

    @property
    def speed_up(self) -> float:
        """How many times faster than the same steps on one stream (1.0 for an empty program)."""
        return self.one_stream / self.makespan if self.makespan > 0 else 1.0

    @cached_property
    def time_of(self) -> Mapping[str, TaskTime]:
        """The time of each task, by name."""
        return {time.task: time for time in self.tasks}

    def to_dict(self) -> dict[str, object]:
        """Plain data for `--json`, times in microseconds."""
        return {
            "unit": "us",
            "makespan": self.makespan,
            "work": self.work,
            "one_stream": self.one_stream,
            "speed_up": self.speed_up,
            "busy": dict(self.busy),
            "critical_path": [time.task for time in self.critical_path],
            "tasks": [
                {
                    "task": time.task, "lane": time.lane, "engine": time.engine, "source": time.source,
                    "start": time.start, "end": time.end, "held_by": time.held_by, "after": time.after,
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


def simulate(schedule: Schedule, costs: Mapping[str, float] | Costs | None = None) -> Timeline:
    """The timeline of one run. `costs` are measured microseconds by task name (others fall back, see `cost.task_costs`), or ready Costs.

    The same schedule and costs always give the same timeline. Time is linear in the number of steps for a fixed number of lanes.

    Raises:
        ScheduleError: SG702 if the steps launch something that is no task of the program.
    """
    unknown = [s.task for s in schedule.steps if isinstance(s, Launch) and s.task not in schedule.program.index_of_task]
    if unknown:
        message = "the schedule launches '{}', which is no task of the program"
        raise ScheduleError(*(Problem("SG702", message.format(quoted(name))) for name in unknown))
    ready_costs = costs if isinstance(costs, Costs) else task_costs(schedule.program, schedule.accesses, costs)
    clock = _Clock(schedule, schedule.steps, ready_costs)
    clock.run()
    alone = _Clock(schedule, _on_one_stream(schedule), ready_costs)
    alone.run()
    times = clock.times
    by_lane: dict[str, float] = {lane.name: 0.0 for lane in schedule.lanes}
    for time in times:
        by_lane[time.lane] = by_lane.get(time.lane, 0.0) + time.duration
    return Timeline(
        tasks=times,
        waits=tuple(clock.waits[step] for step in sorted(clock.waits)),
        makespan=clock.makespan,
        work=sum(time.duration for time in times),
        one_stream=alone.makespan,
        busy=tuple(by_lane.items()),
        critical_path=clock.critical_path(times),
    )


def _on_one_stream(schedule: Schedule) -> tuple[Step, ...]:
    """The same launches in the same order on `main`, with no event but those that the host waits for."""
    main = schedule.lanes[0].name if schedule.lanes else "main"
    for_host = {step.event for step in schedule.steps if isinstance(step, HostWait)}
    steps: list[Step] = []
    for step in schedule.steps:
        match step:
            case Launch(task, lane):
                steps.append(Launch(task, lane if lane == HOST else main))
            case Record(event, lane, task) if event in for_host:
                steps.append(Record(event, lane if lane == HOST else main, task))
            case HostWait():
                steps.append(step)
            case _:
                pass  # releases stay out as well: they cost about the same either way
    return tuple(steps)


class _Binder(NamedTuple):
    """Why a clock stands where it stands: a launch, by number (-1: the start of the run), and how it held the clock."""

    launch: int = -1
    kind: str = START


class _Lane:
    """A stream: how far it is, and what has been issued to it and not yet been run.

    The queue holds (step number, step, time of issue, the launch that the host had last waited for).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.clock = 0.0
        self.binder = _Binder()
        self.queue: deque[tuple[int, Step, float, int]] = deque()


class _Clock:
    """One simulated run. Launches become ready in order of time: the heap holds at most one per lane."""

    def __init__(self, schedule: Schedule, steps: tuple[Step, ...], costs: Costs) -> None:
        self.schedule = schedule
        self.steps = steps
        self.costs = costs
        self.lanes = {lane.name: _Lane(lane.name) for lane in schedule.lanes}
        self.host = 0.0
        self.host_binder = _Binder()
        self.issued = 0  # steps that the host is past
        self.current = ""  # the lane whose stream is current on the host
        self.record_of: dict[str, int] = {}  # event -> step of its newest issued record
        self.target: dict[int, int] = {}  # wait step -> record step that it stands for
        self.done: dict[int, tuple[float, _Binder]] = {}  # record step -> when, and because of which launch
        self.sleepers: dict[int, list[_Lane]] = {}
        self.engine_free: dict[str, tuple[float, int]] = {}
        self.ready: list[tuple[float, int, str]] = []
        self.launch_steps: list[int] = []  # launch number -> step
        self.number_of: dict[int, int] = {}
        self.placed: dict[int, tuple[float, float, str, int]] = {}  # launch number -> start, end, held by, launch that held it
        self.waits: dict[int, WaitTime] = {}

    def run(self) -> None:
        self._issue()
        while self.ready:
            ready, step_number, lane_name = heapq.heappop(self.ready)
            lane = self.lanes[lane_name]
            self._start(lane, step_number, ready)
            self._advance([lane])
            self._issue()

    @property
    def makespan(self) -> float:
        return max([self.host, *(lane.clock for lane in self.lanes.values())])

    @property
    def times(self) -> tuple[TaskTime, ...]:
        found: list[TaskTime] = []
        for number, step_number in enumerate(self.launch_steps):
            launch = self.steps[step_number]
            assert isinstance(launch, Launch), "bug in streamgraph: a launch number points at another step"
            start, end, held_by, holder = self.placed[number]
            index = self.schedule.program.index_of_task[launch.task]
            after = self._task_of(holder)
            engine, source = self.costs.engine[index], self.costs.source[index]
            found.append(TaskTime(launch.task, launch.lane, engine, source, start, end, held_by, after))
        return tuple(found)

    def critical_path(self, times: tuple[TaskTime, ...]) -> tuple[TaskTime, ...]:
        last = max(self.lanes.values(), key=lambda lane: lane.clock, default=None)
        binder = last.binder if last is not None and last.clock >= self.host else self.host_binder
        path: list[TaskTime] = []
        number = binder.launch
        while number >= 0:
            path.append(times[number])
            number = self.placed[number][3]
        return tuple(reversed(path))

    def _task_of(self, launch: int) -> str | None:
        if launch < 0:
            return None
        step = self.steps[self.launch_steps[launch]]
        return step.task if isinstance(step, Launch) else None

    def _lane(self, name: str) -> _Lane:
        if name not in self.lanes:
            self.lanes[name] = _Lane(name)
        return self.lanes[name]

    def _issue(self) -> None:
        """Let the host go on until it has to wait for an event whose time is not known yet."""
        while self.issued < len(self.steps):
            number = self.issued
            step = self.steps[number]
            match step:
                case Launch(_, lane):
                    self.number_of[number] = len(self.launch_steps)
                    self.launch_steps.append(number)
                    if lane == HOST:
                        self._run_on_host(number, step)
                    else:
                        self.host += ISSUE_LAUNCH + self._switch(lane)
                        self._enqueue(lane, number, step)
                case Record(event, lane, _):
                    self.record_of[event] = number
                    if lane == HOST:
                        self.done[number] = (self.host, self.host_binder)
                    else:
                        self.host += ISSUE_RECORD
                        self._enqueue(lane, number, step)
                case Wait(event, lane, _) if lane != HOST:
                    self.target[number] = self.record_of.get(event, -1)
                    # A wait for a host event is no CUDA call: the host is already past it.
                    self.host += 0.0 if self._recorded_on_host(number) else ISSUE_WAIT
                    self._enqueue(lane, number, step)
                case HostWait(event, previous, _):
                    self.target[number] = -1 if previous else self.record_of.get(event, -1)
                    if not self._host_wait(number, event):
                        return
                case Wait(event, _, _):  # the host lane waits for a stream
                    self.target[number] = self.record_of.get(event, -1)
                    if not self._host_wait(number, event):
                        return
                case RecordStream():
                    self.host += ISSUE_RECORD_STREAM
                case Release():
                    self.host += ISSUE_RELEASE
                case _:
                    assert_never(step)
            self.issued += 1

    def _switch(self, lane: str) -> float:
        changed = self.current not in ("", lane)
        self.current = lane
        return ISSUE_SWITCH if changed else 0.0

    def _recorded_on_host(self, wait: int) -> bool:
        record = self.steps[self.target[wait]] if self.target[wait] >= 0 else None
        return isinstance(record, Record) and record.lane == HOST

    def _enqueue(self, name: str, number: int, step: Step) -> None:
        lane = self._lane(name)
        idle = not lane.queue
        lane.queue.append((number, step, self.host, self.host_binder.launch))
        if idle:
            self._advance([lane])

    def _run_on_host(self, number: int, step: Launch) -> None:
        launch, start = self.number_of[number], self.host
        self.host += self.costs.microseconds[self.schedule.program.index_of_task[step.task]]
        kind = ISSUE if self.host_binder.kind == START and start > 0 else self.host_binder.kind
        self.placed[launch] = (start, self.host, kind, self.host_binder.launch)
        self.host_binder = _Binder(launch, FIFO)
        lane = self._lane(HOST)
        lane.clock, lane.binder = self.host, self.host_binder

    def _host_wait(self, number: int, event: str) -> bool:
        """Whether the host can go on: its clock then stands at the event."""
        record = self.target[number]
        if record < 0:
            self._note(number, HOST, self.host, self.host, event, record, self.host)
            return True
        if record not in self.done:
            return False
        time, binder = self.done[record]
        since = self.host
        if time > self.host:
            self.host, self.host_binder = time, _Binder(binder.launch, WAIT)
        self._note(number, HOST, since, self.host, event, record, time)
        return True

    def _note(self, number: int, lane: str, since: float, until: float, event: str, record: int, time: float) -> None:
        step = self.steps[record] if record >= 0 else None
        task, event_lane = (step.task, step.lane) if isinstance(step, Record) else ("", "")
        self.waits[number] = WaitTime(number, lane, since, until, event, task, event_lane, time)

    def _advance(self, lanes: list[_Lane]) -> None:
        """Let these lanes, and all that wait for them, run up to their next launch or to a wait for an event not known yet."""
        while lanes:
            lane = lanes.pop()
            while lane.queue:
                number, step, issued, _ = lane.queue[0]
                if isinstance(step, Launch):
                    heapq.heappush(self.ready, (max(lane.clock, issued), number, lane.name))
                    break
                if isinstance(step, Wait):
                    record, since = self.target[number], max(lane.clock, issued)
                    if record >= 0 and record not in self.done:
                        self.sleepers.setdefault(record, []).append(lane)
                        break
                    time, binder = self.done.get(record, (0.0, lane.binder))
                    if time > lane.clock:
                        lane.clock, lane.binder = time, _Binder(binder.launch, WAIT)
                    self._note(number, lane.name, since, max(since, time), step.event, record, time)
                elif isinstance(step, Record):
                    self.done[number] = (lane.clock, lane.binder)
                    lanes.extend(self.sleepers.pop(number, ()))
                lane.queue.popleft()

    def _start(self, lane: _Lane, number: int, ready: float) -> None:
        _, step, issued, host_holder = lane.queue.popleft()
        assert isinstance(step, Launch), "bug in streamgraph: something else than a launch was ready"
        index = self.schedule.program.index_of_task[step.task]
        engine = self.costs.engine[index]
        free, occupant = self.engine_free.get(engine, (0.0, -1)) if engine in (H2D, D2H) else (0.0, -1)
        if free > ready:
            start, held_by, holder = free, ENGINE, occupant
        elif issued > lane.clock:
            start, held_by, holder = ready, ISSUE, host_holder
        else:
            start, held_by, holder = ready, lane.binder.kind, lane.binder.launch
        launch = self.number_of[number]
        lane.clock = start + self.costs.microseconds[index]
        lane.binder = _Binder(launch, FIFO)
        self.placed[launch] = (start, lane.clock, held_by, holder)
        if engine in (H2D, D2H):
            self.engine_free[engine] = (lane.clock, launch)
