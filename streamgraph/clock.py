"""Clock: the steps of a Schedule are played on a machine that exists in numbers only. The rules stand in `simulate`."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from typing_extensions import assert_never

from streamgraph.contention import Contention
from streamgraph.cost import COMPUTE, Costs
from streamgraph.devices import of_tasks
from streamgraph.machine import Machine
from streamgraph.model import HOST
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Step, Wait
from streamgraph.timeline import ENGINE, FIFO, ISSUE, START, WAIT, Played, WaitTime


class _Lane:
    """A stream: how far it is and why (`held_by`, the launch `holder`), and what was issued to it and has not been run yet.

    The queue holds (step number, step, time of issue, the launch that the host had last waited for).
    """

    __slots__ = ("clock", "held_by", "holder", "joined", "name", "queue", "under_way")

    def __init__(self, name: str) -> None:
        self.name, self.clock = name, 0.0
        self.held_by, self.holder = START, -1
        self.joined = 0  # waits since the last launch
        self.under_way = False  # the head of the queue is a launch that is on its way, or running
        self.queue: deque[tuple[int, Step, float, int]] = deque()


class _Done:
    """A record: when the device came to it, because of which launch, and how that held it."""

    __slots__ = ("held_by", "holder", "time")

    def __init__(self, time: float, held_by: str, holder: int) -> None:
        self.time, self.held_by, self.holder = time, held_by, holder


class Clock:
    """One simulated run of the steps; `play` runs it, once."""

    def __init__(self, schedule: Schedule, steps: tuple[Step, ...], costs: Costs, machine: Machine, captured: bool) -> None:
        self.steps, self.costs, self.machine, self.captured = steps, costs, machine, captured
        self.index_of = schedule.program.index_of_task
        self.lanes = {lane.name: _Lane(lane.name) for lane in schedule.lanes}
        self.high_lanes = {lane.name for lane in schedule.lanes if lane.priority == "high"}
        self.handover = machine.captured_handover if captured else machine.handover
        self.branch = machine.captured_branch if captured else 0.0
        # The host.
        self.host = machine.replay if captured else machine.call
        self.host_held_by, self.host_holder = START, -1
        self.issued = 0  # steps that the host is past
        self.current = ""  # the lane whose stream is current on the host
        self.record_of: dict[str, int] = {}  # event -> step of its newest issued record
        self.target: dict[int, int] = {}  # wait step -> record step that it stands for
        self.done: dict[int, _Done] = {}  # by record step
        self.sleepers: dict[int, list[_Lane]] = {}
        self.waits: dict[int, WaitTime] = {}
        # Launches, by number.
        self.number_of: dict[int, int] = {}  # step -> launch number
        self.task_of: list[int] = []
        self.lane_of: list[str] = []
        self.high: list[bool] = []  # priority
        self.issue_times: list[float] = []
        self.start: list[float] = []
        self.end: list[float] = []
        self.held_by: list[str] = []
        self.holder: list[int] = []
        # The device.
        self.now = 0.0
        self.device = of_tasks(schedule.program)  # by task
        self.contention = {device: Contention(costs, machine.interference) for device in dict.fromkeys(self.device)}
        self.timed: list[tuple[float, int, int, str]] = []  # (time, 0: a copy ends or 1: a launch is ready, launch number, lane)
        self.on_engine: dict[tuple[str, str], int] = {}  # a device's copy engine -> the launch that it serves
        self.queued: dict[tuple[str, str], deque[tuple[int, str]]] = {}  # copy engine -> launches that it will serve

    def play(self) -> Played:
        """Run to the end."""
        self._issue()
        while True:
            end, ends_on = self._next_end()
            if end is not None and (not self.timed or end <= self.timed[0][0]):
                for device, contention in self.contention.items():
                    if device != ends_on:
                        contention.pass_time(end - self.now)
                number, lane = self.contention[ends_on].pop(end - self.now)
                self.now = end
                self._finish(number, self.lanes[lane])
            elif self.timed:
                time, is_start, number, lane = heappop(self.timed)
                for contention in self.contention.values():
                    contention.pass_time(time - self.now)
                self.now = time
                if is_start:
                    self._ready(number, self.lanes[lane])
                else:
                    self._finish(number, self.lanes[lane])
            else:
                break
        last = max(self.lanes.values(), key=lambda lane: lane.clock, default=None)
        on_lane = last is not None and last.clock >= self.host
        return Played(
            max(self.host, last.clock if last is not None else 0.0), self._host_work(), tuple(self.task_of), tuple(self.lane_of),
            tuple(self.start), tuple(self.end), tuple(self.held_by), tuple(self.holder), tuple(self.issue_times),
            tuple(self.waits[step] for step in sorted(self.waits)),
            last.holder if last is not None and on_lane else self.host_holder,
        )  # fmt: skip

    def _next_end(self) -> tuple[float | None, str]:
        """When the next kernel ends, if nothing starts or ends before, and on which device; the others come as far, see `play`."""
        ends = [(end, device) for device, contention in self.contention.items() if (end := contention.next_end(self.now)) is not None]
        return min(ends, key=lambda entry: entry[0], default=(None, ""))

    def _host_work(self) -> float:
        """The host's own time, without what it waited for."""
        return self.host - sum(wait.until - wait.since for wait in self.waits.values() if wait.lane == HOST)

    # --- the host ---

    def _issue(self) -> None:
        """Let the host go on until it has to wait for an event whose time is not known yet."""
        calls = self.machine
        while self.issued < len(self.steps):
            number = self.issued
            step = self.steps[number]
            match step:
                case Launch(task, lane, urgent):
                    self.number_of[number] = len(self.task_of)
                    self.task_of.append(self.index_of[task])
                    self.lane_of.append(lane)
                    self.high.append(lane in self.high_lanes or (urgent and self.captured))
                    self.start.append(0.0)
                    self.end.append(0.0)
                    self.held_by.append(START)
                    self.holder.append(-1)
                    if lane == HOST:
                        self.issue_times.append(self.host)
                        self._run_on_host(number)
                    else:
                        self._spend(self._launching(self.index_of[task], lane))
                        self.issue_times.append(self.host)
                        self._enqueue(lane, number, step)
                case Record(event, lane, _):
                    self.record_of[event] = number
                    if lane == HOST:
                        self.done[number] = _Done(self.host, self.host_held_by, self.host_holder)
                    else:
                        self._spend(calls.record)
                        self._enqueue(lane, number, step)
                case Wait(event, lane, _) if lane != HOST:
                    self.target[number] = self.record_of.get(event, -1)
                    # A wait for a host event is no CUDA call: the host is already past it.
                    self._spend(0.0 if self._recorded_on_host(number) else calls.wait)
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
                    self._spend(calls.record_stream)
                case Release():
                    self._spend(calls.release)
                case _:
                    assert_never(step)
            self.issued += 1

    def _spend(self, time: float) -> None:
        """Time of the issuing thread; in a captured graph there is none."""
        if not self.captured:
            self.host += time

    def _launching(self, task: int, lane: str) -> float:
        changed = self.current not in ("", lane)
        self.current = lane
        own = self.costs.issue[task] if self.costs.issue else None
        return (self.machine.launch if own is None else own + self.machine.step) + (self.machine.switch if changed else 0.0)

    def _recorded_on_host(self, wait: int) -> bool:
        record = self.steps[self.target[wait]] if self.target[wait] >= 0 else None
        return isinstance(record, Record) and record.lane == HOST

    def _enqueue(self, name: str, number: int, step: Step) -> None:
        lane = self._lane(name)
        lane.queue.append((number, step, self.host, self.host_holder))
        if len(lane.queue) == 1:
            self._advance([lane])

    def _lane(self, name: str) -> _Lane:
        if name not in self.lanes:
            self.lanes[name] = _Lane(name)
        return self.lanes[name]

    def _run_on_host(self, number: int) -> None:
        launch = self.number_of[number]
        self.start[launch] = self.host
        self.held_by[launch] = ISSUE if self.host_held_by == START and self.host > 0 else self.host_held_by
        self.holder[launch] = self.host_holder
        self.host += self.costs.microseconds[self.task_of[launch]]
        self.end[launch] = self.host
        self.host_held_by, self.host_holder = FIFO, launch
        lane = self._lane(HOST)
        lane.clock, lane.held_by, lane.holder = self.host, FIFO, launch

    def _host_wait(self, number: int, event: str) -> bool:
        """Whether the host can go on: its clock then stands at the event, or where it stood."""
        record = self.target[number]
        if record >= 0 and record not in self.done:
            return False
        since = self.host
        if record >= 0 and self.done[record].time > since:
            self.host, self.host_held_by, self.host_holder = self.done[record].time, WAIT, self.done[record].holder
        self._note(number, HOST, since, self.host, event, record)
        self._spend(self.machine.host_wait if record >= 0 else 0.0)
        return True

    def _note(self, number: int, lane: str, since: float, until: float, event: str, record: int) -> None:
        step = self.steps[record] if record >= 0 else None
        task, event_lane = (step.task, step.lane) if isinstance(step, Record) else ("", "")
        time = self.done[record].time if record >= 0 else since
        self.waits[number] = WaitTime(number, lane, since, until, event, task, event_lane, time)

    # --- the lanes ---

    def _advance(self, lanes: list[_Lane]) -> None:
        """Let these lanes, and all that wait for them, run up to their next launch or to a wait for an event not known yet."""
        while lanes:
            lane = lanes.pop()
            while lane.queue and not lane.under_way:
                number, step, issued, host_holder = lane.queue[0]
                if isinstance(step, Launch):
                    lane.under_way = True
                    heappush(self.timed, (max(lane.clock, issued), 1, self.number_of[number], lane.name))
                    break
                if isinstance(step, Wait):
                    record = self.target[number]
                    if record >= 0 and record not in self.done:
                        self.sleepers.setdefault(record, []).append(lane)
                        break
                    self._wait(lane, number, step.event, record, max(lane.clock, issued))
                elif isinstance(step, Record):
                    late = issued > lane.clock
                    self.done[number] = _Done(issued, ISSUE, host_holder) if late else _Done(lane.clock, lane.held_by, lane.holder)
                    lanes.extend(self.sleepers.pop(number, ()))
                lane.queue.popleft()

    def _wait(self, lane: _Lane, number: int, event: str, record: int, since: float) -> None:
        until = since
        if record >= 0:
            done = self.done[record]
            # Where no task stands before the record there is nothing to hand over, and no edge in a captured graph.
            behind_task = done.holder >= 0 and not self._recorded_on_host(number)
            arrival = done.time + self.handover if behind_task else done.time
            if arrival > lane.clock:
                lane.clock = arrival
                lane.held_by, lane.holder = ISSUE if done.held_by == ISSUE else WAIT, done.holder
            if behind_task:
                lane.clock += self.branch if lane.joined else 0.0
                lane.joined += 1
            until = max(since, arrival)
        self._note(number, lane.name, since, until, event, record)

    # --- the device ---

    def _ready(self, number: int, lane: _Lane) -> None:
        """A launch has come to the head of its lane: a kernel starts, a copy starts or queues for its engine."""
        engine = self.costs.engine[self.task_of[number]]
        its = self.device[self.task_of[number]], engine
        if engine == COMPUTE or its not in self.on_engine:
            self._begin(number, lane, engine)
        else:
            self.queued.setdefault(its, deque()).append((number, lane.name))

    def _begin(self, number: int, lane: _Lane, engine: str, occupant: int = -1) -> None:
        task = self.task_of[number]
        _, _, issued, host_holder = lane.queue.popleft()
        if occupant >= 0:
            self.held_by[number], self.holder[number] = ENGINE, occupant
        elif issued > lane.clock:
            self.held_by[number], self.holder[number] = ISSUE, host_holder
        else:
            self.held_by[number], self.holder[number] = lane.held_by, lane.holder
        self.start[number] = self.now
        self.contention[self.device[task]].begin(task, number, lane.name, self.high[number])
        if engine != COMPUTE:
            self.on_engine[self.device[task], engine] = number
            heappush(self.timed, (self.now + self.costs.microseconds[task], 0, number, lane.name))

    def _finish(self, number: int, lane: _Lane) -> None:
        task = self.task_of[number]
        self.contention[self.device[task]].end(task, self.high[number])
        self.end[number] = lane.clock = self.now
        lane.held_by, lane.holder = FIFO, number
        lane.under_way, lane.joined = False, 0
        engine = self.costs.engine[task]
        if engine != COMPUTE:
            its = self.device[task], engine
            del self.on_engine[its]
            if self.queued.get(its):
                waiting, name = self.queued[its].popleft()
                self._begin(waiting, self.lanes[name], engine, number)
        self._advance([lane])
        self._issue()
