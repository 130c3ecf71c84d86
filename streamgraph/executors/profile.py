"""Profile: what every task of a schedule costs, alone and in its place among the others. `measure` does the timing.

Repeated, a call finds warm what in its place it finds cold: the host's caches, the device's caches, the code of its kernel. So there are
two passes. The first times each task alone. The second goes through the whole program: issue times are taken in their places, and the
device's time of all captured tasks is measured in one graph. What that is above the sum of the times alone is laid on the tasks in equal
parts: on an H200 it was some 0.55 us per task, in programs of small kernels and of large ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from streamgraph.cost import TaskCost
from streamgraph.executors.measure import CAPTURED, CLOCK, Call, Timing, capture, replay_times, time_call
from streamgraph.executors.memory import Cells, Memory
from streamgraph.executors.modes import task_mode
from streamgraph.operators import Operator
from streamgraph.returned import run_copy, tensors_in
from streamgraph.schedule import Launch, Schedule
from streamgraph.storages import Access, Mode

# Tasks whose calls are issued in one go: enough that they do not find each other's caches warm, and few enough that no queue of the device
# is full, which would hold the host up (some 1,000 kernels).
WINDOW, GOES = 32, 3


@dataclass(frozen=True, slots=True)
class Profile:
    """The timing of every task; of those that were captured, the sum of their times alone, and their time in their places, all in one."""

    timings: Mapping[str, Timing]
    alone: float = 0.0
    in_place: float | None = None

    @property
    def costs(self) -> dict[str, TaskCost]:
        """What a costs file holds."""
        return {name: timing.cost for name, timing in self.timings.items()}


def profile_tasks(
    schedule: Schedule, operators: Sequence[Operator], inputs: Mapping[str, torch.Tensor], location: torch.device,
    *, seed: int = 0, rounds: int = 5, reuse: bool = True, progress: Callable[[int, int], None] | None = None,
) -> Profile:  # fmt: skip
    """What every task of the schedule costs, in issue order.

    A task's calls see what the tasks before it left, and what it updates in place is put back afterwards. With `reuse`, two tasks that call
    one operator on tensors of the same types with the same constants are measured once. `progress` is called with how many tasks have been
    timed alone, and of how many.
    """
    sequence = _Sequence(schedule, operators, inputs, location, seed)
    timings: dict[str, Timing] = {}
    seen: dict[object, Timing] = {}

    def alone(name: str, call: Call) -> Any:
        key = sequence.signature(name)
        known = seen.get(key) if reuse else None
        if known is None:
            on_host = sequence.named[name].call.host
            with sequence.restored(sequence.updated(name)):
                known = time_call(call, location, rounds, on_host=on_host, over_link=sequence.is_over_link(name))
            seen[key] = replace(known, reused=True)
        timings[name] = known
        if known.how != CAPTURED:
            sequence.lasting_values.add(name)
        if progress is not None:
            progress(len(timings), len(sequence.order))
        return call()

    with task_mode():
        sequence.walk(alone)
        found = _in_place(sequence, timings, rounds) if location.type == "cuda" else Profile(timings)
    sequence.memory.close()
    return found


def plain_loop(
    schedule: Schedule, operators: Sequence[Operator], inputs: Mapping[str, torch.Tensor], location: torch.device, *, seed: int = 0
) -> Callable[[], None]:
    """The bare calls of all device tasks, one after another on the current stream, each on the tensors that it found in a first run.

    How long it takes to return says how fast the host is now; against the sum of the profile's issue times, how much faster or slower than
    it was then. What tasks change in place goes on changing with every call.
    """
    sequence = _Sequence(schedule, operators, inputs, location, seed)
    calls: list[Call] = []

    def once(name: str, call: Call) -> Any:
        if not sequence.named[name].call.host:
            calls.append(call)
        return call()

    with task_mode():
        sequence.walk(once)

    def loop() -> None:
        with task_mode():
            for call in calls:
                call()

    return loop


def _in_place(sequence: _Sequence, timings: dict[str, Timing], rounds: int) -> Profile:
    """The second pass: the timings, corrected."""
    location = sequence.location
    captured = [name for name, timing in timings.items() if timing.how == CAPTURED]
    rest = frozenset(timings) - frozenset(captured)
    on_host = frozenset(name for name, timing in timings.items() if timing.how == CLOCK)  # may send or print: not called again
    issue: dict[str, list[float]] = {name: [] for name in timings}
    window: list[tuple[str, Call]] = []

    def timed(name: str, call: Call) -> Any:
        begun = time.perf_counter()
        result = call()
        issue[name].append((time.perf_counter() - begun) * 1e6)
        window.append((name, call))
        if len(window) == WINDOW:
            _in_one_go(window, issue, location)
        return result

    def walks(count: int) -> torch.cuda.CUDAGraph:
        def body(_: object) -> None:
            for _ in range(count):
                sequence.walk(lambda name, call: call(), rest)

        return capture(body, 1, location)

    whole = None
    with sequence.restored(sequence.lasting()):
        for _ in range(rounds):
            torch.cuda.synchronize(location)
            sequence.walk(timed, on_host)
            _in_one_go(window, issue, location)
        if captured:
            with suppress(RuntimeError):  # tasks that can be captured one by one can be refused together; then there is no correction
                short, long = walks(1), walks(2)
                once, twice = replay_times([short, long], rounds)
                whole = max(0.0, twice - once)
        torch.cuda.synchronize(location)
    alone = sum(timings[name].cost.us for name in captured)
    extra = max(0.0, whole - alone) / len(captured) if whole is not None else 0.0
    factor = whole / alone if whole is not None and 0 < whole < alone else 1.0
    corrected: dict[str, Timing] = {}
    for name, timing in timings.items():
        us = timing.cost.us * factor + extra if timing.how == CAPTURED else timing.cost.us
        at_issue = statistics.median(issue[name]) if timing.how != CLOCK else None
        corrected[name] = replace(timing, cost=TaskCost(us, timing.cost.fill, at_issue))
    return Profile(corrected, alone, whole)


def _in_one_go(window: list[tuple[str, Call]], issue: dict[str, list[float]], location: torch.device) -> None:
    """Scale the newest issue times of these tasks to the time of a plain loop over their calls, as an executor makes them."""
    times = []
    for _ in range(GOES):
        torch.cuda.synchronize(location)
        begun = time.perf_counter()
        for _, call in window:
            call()
        times.append((time.perf_counter() - begun) * 1e6)
    one_by_one = sum(issue[name][-1] for name, _ in window)
    for name, _ in window:
        issue[name][-1] *= statistics.median(times) / one_by_one
    window.clear()


class _Sequence:
    """A schedule's tasks one after another on the current stream, walked through again and again."""

    def __init__(
        self, schedule: Schedule, operators: Sequence[Operator], inputs: Mapping[str, torch.Tensor], location: torch.device, seed: int
    ) -> None:
        self.accesses, self.location, self.inputs = schedule.accesses, location, inputs
        self.memory = Memory(schedule.program, self.accesses, location, seed)
        self.named = {operator.call.task: operator for operator in operators}
        self.index = schedule.program.index_of_task
        self.order = [step.task for step in schedule.steps if isinstance(step, Launch)]
        self.lasting_values: set[str] = set()  # tasks that a later walk leaves out, although it needs what they make
        self.kept: dict[int, torch.Tensor] = {}
        self.last_use: dict[int, str] = {}
        for name in self.order:
            self.last_use.update({access.storage: name for access in self.touched(name)})
        self.cells: Cells = []

    def touched(self, name: str) -> tuple[Access, ...]:
        return self.accesses.of_task[self.index[name]]

    def walk(self, perform: Callable[[str, Call], Any], leave_out: frozenset[str] = frozenset()) -> None:
        """Let `perform` make the call of every task, and keep what it returns until its last use.

        What is left out keeps the value that it had last.
        """
        self.cells = self.memory.begin(self.inputs)
        for storage, value in self.kept.items():
            self.cells[storage] = value
        for name in self.order:
            if name not in leave_out:
                self._keep(name, perform(name, _invocation(self.named[name], self.cells, self.location)))
            for storage in dict.fromkeys(access.storage for access in self.touched(name)):
                if self.last_use[storage] == name and self.accesses.storages[storage].producer is not None:
                    self.cells[storage] = None

    def _keep(self, name: str, result: Any) -> None:
        call = self.named[name].call
        if not call.returns:
            return
        returned = result if call.is_copy or call.returns_sequence else (result,)
        for place, tensor in zip(call.returns, returned, strict=True):
            self.cells[place.storage] = tensor
            if name in self.lasting_values:
                self.kept[place.storage] = tensor

    def is_over_link(self, name: str) -> bool:
        """Whether the task copies between host and device."""
        return self.named[name].call.is_copy and len({self.accesses.storages[access.storage].host for access in self.touched(name)}) > 1

    def updated(self, name: str) -> list[int]:
        """The storages that a task changes in place."""
        return [access.storage for access in self.touched(name) if access.mode is Mode.UPDATE]

    def lasting(self) -> list[int]:
        """The storages that some task changes in place and that the next walk finds again."""
        return [number for name in self.order for number in self.updated(name) if self.accesses.storages[number].producer is None]

    @contextmanager
    def restored(self, storages: Sequence[int]) -> Iterator[None]:
        """What is done inside leaves no trace in these storages."""
        tensors = [tensor for storage in dict.fromkeys(storages) if (tensor := self.cells[storage]) is not None]
        copies = [tensor.clone() for tensor in tensors]
        yield
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.copy_(copy)

    def signature(self, name: str) -> object:
        """Equal for calls that take the same time: one function, tensors of one type and layout, the same constants."""
        call, function = self.named[name].call, self.named[name].function
        positional, keywords = call.arguments(self.cells)
        passed = tensors_in([positional, list(keywords.values())])
        layouts = [(tuple(t.shape), t.stride(), str(t.dtype), str(t.device), t.is_pinned()) for t in passed]
        # A function made in a loop is another one each time, so its identity counts; so does what a module holds.
        return "copy" if call.is_copy else id(function), repr(call.const), tuple(layouts), len(call.returns)


def _invocation(operator: Operator, cells: Cells, location: torch.device) -> Call:
    call = operator.call
    if call.is_copy:
        held: Any = {operand.storage: cells[operand.storage] for operand in call.operands()}  # `cells` drops what is used up
        return lambda: run_copy(call, held, location)
    positional, keywords = call.arguments(cells)
    return lambda: operator.function(*positional, **keywords)
