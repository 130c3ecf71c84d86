"""Compiled: the eager executor with its steps unrolled into one Python function, made once and called for every run.

The first run goes through `EagerExecutor`, which checks what tasks return and leaves streams and events made. From the second run on
nothing is looked up: a run is a call of the generated function (see `generate`), which holds callables, streams and events as locals. An
error is traced back to its task by the line on which it came up, so the way without errors pays nothing for it.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from streamgraph.calls import cut
from streamgraph.errors import Problem, TaskError
from streamgraph.executors import Finished, launch
from streamgraph.executors.device import Device, Event, Stream
from streamgraph.executors.direct import Symbol, direct
from streamgraph.executors.eager import EagerExecutor
from streamgraph.executors.flat import NO_STEP, code_of, index_of, left_in
from streamgraph.executors.generate import Generated, generate
from streamgraph.executors.memory import Cells, Memory
from streamgraph.executors.places import Caller
from streamgraph.model import MAIN, Kind
from streamgraph.operators import Operator
from streamgraph.schedule import Launch, Schedule

_files = itertools.count()


@dataclass(frozen=True, slots=True)
class _Bound:
    """The generated functions with the streams of one caller's stream bound to them."""

    key: Hashable  # of the caller's streams, as `Direct.current` gives it
    caller: Caller
    parts: tuple[Callable[[list[Any]], tuple[torch.Tensor, ...] | None], ...]
    inputs_free: Callable[[], None]


class CompiledExecutor:
    """Runs a schedule on a device's streams. See `EagerExecutor`, to which the first run, failures and clean-up belong."""

    def __init__(self, schedule: Schedule, operators: Sequence[Operator], device: Device, seed: int = 0) -> None:
        self.schedule, self.device = schedule, device
        self._eager = EagerExecutor(schedule, operators, device, seed)
        self._lanes = self._eager.lanes
        self._operators, self._direct = tuple(operators), direct(device, self._lanes)
        self._has_devices = schedule.has_devices
        self._generated: Generated | None = None
        self._code: CodeType | None = None
        self._file = f"<streamgraph {schedule.program.name} {next(_files)}>"
        storages = schedule.accesses.storages
        self._inputs = tuple(storage.tensor for storage in storages if storage.kind is Kind.INPUT)
        self._outputs = tuple(name for name, _ in schedule.accesses.outputs)
        self._bound: _Bound | None = None  # None: the next run has something to prepare, or to check
        self._kept: dict[tuple[int, ...], _Bound] = {}  # by the handles of all lanes

    @property
    def source(self) -> str:
        """The text of the generated functions."""
        return self._generate().text

    @property
    def memory(self) -> Memory:
        """Buffers, and which storages there are."""
        return self._eager.memory

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The stream of each lane, of the latest run."""
        return self._lanes.streams

    @property
    def events(self) -> Mapping[str, Event]:
        """The events by name."""
        return self._lanes.events

    @property
    def pending(self) -> Mapping[int, torch.Tensor]:
        """The values that the latest run left to the next one, by storage number."""
        return self._lanes.pending

    def run(self, inputs: Mapping[str, torch.Tensor]) -> Finished:
        """Issue every step. See `Executor.run`."""
        bound = self._bound
        # A capture needs events of its own, and another stream of the caller's other arguments.
        if bound is None or self._direct.current() != bound.key or self._direct.is_capturing():
            if self._eager.first or self._eager.broken is not None or self._direct.is_capturing():
                return self._eager.run(inputs)
            bound = self._bound = self._prepare()
        return self._run(bound, inputs)

    def _run(self, bound: _Bound, inputs: Mapping[str, torch.Tensor]) -> Finished:
        carry: list[Any] = [inputs[name] for name in self._inputs]
        assert self._generated is not None
        carry += [None] * self._generated.room
        device_before = None
        if not self._direct.device_is_current():
            device_before = self.device.current_device()
            self.device.set_stream(bound.caller.main)
        # As `task_mode` does, 0.2 us faster (measured on the CPU).
        gradients, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
        torch._C._set_grad_enabled(False)
        torch.set_autocast_cache_enabled(False)
        results: tuple[torch.Tensor, ...] | None = None
        try:
            if self._has_devices:
                self._lanes.fork()
            for part in bound.parts:
                results = part(carry)
            if self._has_devices:
                self._lanes.join()
        except BaseException as error:
            raised = self._failed(error, carry)
            carry.clear()
            if raised is error:
                raise
            raise raised from error
        finally:
            torch.set_autocast_cache_enabled(cache)
            torch._C._set_grad_enabled(gradients)
            astray = self._direct.current() != bound.key or not self._direct.device_is_current()
            if astray:
                self._lanes.restore(bound.caller)
            if device_before is not None:
                self.device.set_device(device_before)
        if astray:
            self._astray()
        assert results is not None
        return Finished(dict(zip(self._outputs, results, strict=True)), bound.inputs_free)

    def _generate(self) -> Generated:
        if self._generated is None:
            self._generated = generate(self.schedule, self._operators, self._direct)
        return self._generated

    def _prepare(self) -> _Bound:
        """Make the caller's stream lane 0, and bind the functions to the streams."""
        lanes = self._lanes
        caller = lanes.now()
        lanes.enter(caller)
        handles = tuple(stream.cuda_stream for stream in lanes.at.values())
        if handles in self._kept:
            return self._kept[handles]
        generated = self._generate()
        if self._code is None:
            self._code = code_of(generated.text, self._file)
        names: dict[str, Any] = {}
        for name, symbol in generated.symbols:
            names[name] = self._value(symbol)
        exec(self._code, names)
        parts = tuple(names[f"part{number}"] for number in range(generated.parts))
        bound = _Bound(self._direct.current(), caller, parts, lanes.inputs_free())
        self._kept[handles] = bound
        return bound

    def _value(self, symbol: Symbol) -> object:
        """What a name of the text stands for."""
        memory = self.memory
        match symbol:
            case ("function", task):
                operator = self._operators[int(task)]
                if operator.call.is_copy:
                    lane = self.schedule.lane_of[operator.call.task]
                    return self._lanes.arriving(operator.call.task, launch.copy_call(operator.call, self.device.location, lane))
                return operator.function
            case ("constant", task, place):
                return self._operators[int(task)].call.const[int(place)][1]
            case ("buffer", number):
                return memory.buffer(int(number))
            case ("view", number, subscript):
                return self._view(int(number), subscript)
            case ("pending",):
                return self._lanes.pending
            case ("give_back",):
                return self._lanes.give_back
            case ("drop",):
                return self._lanes.pending.pop
            case _:
                return self._direct.value(symbol, self._lanes)

    def _view(self, number: int, subscript: str) -> torch.Tensor:
        """A view of a buffer: the buffer stays where it is, so its views do."""
        with torch.inference_mode(False), torch.no_grad():
            return cut(self.memory.buffer(number), index_of(subscript))

    def _failed(self, error: BaseException, carry: Sequence[Any]) -> BaseException:
        """Bring all lanes to rest after an error; the exception to raise for it."""
        assert self._generated is not None
        launching, lane = None, MAIN
        cells: Cells = [None] * len(self.schedule.accesses.storages)
        line, found = left_in(error, self._file)
        number = self._generated.step_of_line[line - 1] if line else NO_STEP
        step = self.schedule.steps[number] if number != NO_STEP else None
        if isinstance(step, Launch):
            launching, lane = self._operators[self.schedule.program.index_of_task[step.task]], step.lane
            for storage in range(len(cells)):
                cells[storage] = found.get(f"v{storage}")
            for storage, buffer in self.memory.buffers():
                cells[storage] = buffer
        found.clear()
        raised = launch.failure(error, launching, cells, lane) if launching is not None else error
        cells.clear()
        self._bound = None
        self._eager.come_to_rest([lane.name for lane in self.schedule.lanes if not lane.is_host], raised)
        return raised

    def _astray(self) -> None:
        """SG607 for a run in which some task left another stream or device current; the next run finds out which."""
        self._eager.first = True
        self._bound = None
        message = f"a task of '{self.schedule.program.name}' left another stream or device current than it found"
        raise TaskError(Problem("SG607", message, None, "run again: the next run is checked after each task, and names it"))

    def runs_on(self, thread: int) -> bool:
        """Never: tasks run on the caller's thread. See `Executor.runs_on`."""
        return False

    def close(self) -> None:
        """Drop everything. See `Executor.close`."""
        self._bound = None
        self._kept.clear()
        linecache.cache.pop(self._file, None)
        self._eager.close()
