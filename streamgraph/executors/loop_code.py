"""Loop code: the generated functions of one thread of a loop (`generate_loop`), compiled once, with each iteration's events, cells and
slots bound to them; and what an error in them was about.

After `period` iterations all rings stand as they stood, so as many sets of functions are made, each when it is first needed.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from types import CodeType
from typing import Any

import torch

from streamgraph.calls import cut
from streamgraph.executors import launch
from streamgraph.executors.device import Device, Event, Stream
from streamgraph.executors.direct import Direct, Symbol, direct
from streamgraph.executors.flat import NO_STEP, code_of, index_of, left_in
from streamgraph.executors.generate_loop import GeneratedLoop, generate_loop
from streamgraph.executors.loop_streams import LoopStreams
from streamgraph.executors.memory import Cells
from streamgraph.executors.slots import Slots
from streamgraph.model import ENTRY, HOST, MAIN
from streamgraph.operators import Operator
from streamgraph.switches import Place

MOST = 256  # sets of functions that are kept
_files = itertools.count()
# What differs from iteration to iteration; all else is bound once.
_TURNING = frozenset({"event", "record", "wait", "synchronize", "cells", "buffer", "view"})

Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Phase:
    """The functions of the iterations at one place in the period; see `GeneratedLoop`. `source` is None if it would do nothing."""

    source: Callable[..., Any] | None
    parts: tuple[Callable[..., Any], ...]


class LoopCode:
    """What one thread issues to `lanes`. `told` as for `generate_loop`; `wrap` is a hook for tests: each task with its function."""

    def __init__(
        self,
        slots: Slots,
        operators: Sequence[Operator],
        device: Device,
        streams: LoopStreams,
        lanes: Collection[str],
        told: frozenset[str] | None = None,
        wrap: Wrap | None = None,
    ) -> None:
        self.slots, self.operators, self.device, self.streams = slots, tuple(operators), device, streams
        self.lanes, self.told, self.wrap = lanes, told, wrap
        self.loop = slots.loop
        self.direct: Direct = direct(device, streams)
        self.period = lcm(slots.length, slots.period())
        self._generated: GeneratedLoop | None = None
        self._code: CodeType | None = None
        self._file = f"<streamgraph loop {self.loop.program.name} {next(_files)}>"
        self._held: tuple[object, ...] = ()  # streams and buffers that the functions have
        self._shared: dict[str, Any] = {}
        self._phases: dict[int, Phase] = {}

    @property
    def source(self) -> str:
        """The text of the functions."""
        return self._generate().text

    def enter(self) -> None:
        """Begin a loop: functions that have other streams or buffers are of no use any more."""
        streams = (*self.streams.streams.values(), *self.streams.at.values())
        held = (*(stream.cuda_stream for stream in streams), *map(id, self.slots.held()))
        if held != self._held:
            self._phases.clear()
            self._shared = {}
            self._held = held

    def phase(self, iteration: int) -> Phase:
        """The functions for an iteration."""
        found = self._phases.get(iteration % self.period)
        return self._bind(iteration % self.period) if found is None else found

    def _generate(self) -> GeneratedLoop:
        if self._generated is None:
            self._generated = generate_loop(self.slots, self.operators, self.direct, self.lanes, self.told)
        return self._generated

    def _bind(self, place: int) -> Phase:
        generated = self._generate()
        if self._code is None:
            self._code = code_of(generated.text, self._file)
        here = _Iteration(self.streams, place)
        if not self._shared:
            self._shared = {name: self._value(s, here) for name, s in generated.symbols if s[0] not in _TURNING or len(s) == 1}
        names: dict[str, Any] = self._shared.copy()
        names.update((name, self._value(symbol, here)) for name, symbol in generated.symbols if name not in names)
        exec(self._code, names)
        found = Phase(names.get("source"), tuple(names[f"part{number}"] for number in range(generated.parts)))
        if len(self._phases) >= MOST:
            self._phases.clear()
        self._phases[place] = found
        return found

    def _value(self, symbol: Symbol, here: _Iteration) -> object:
        """What a name of the text stands for in an iteration."""
        match symbol:
            case ("function", task):
                operator = self.operators[int(task)]
                function = operator.function
                if operator.call.is_copy:
                    function = launch.copy_call(operator.call, self.device.location, self._lane_of(operator.call.task))
                    function = self.streams.arriving(operator.call.task, function)
                return function if self.wrap is None else self.wrap(operator.call.task, function)
            case ("constant", task, place):
                return self.operators[int(task)].call.const[int(place)][1]
            case ("buffer", number):
                return self.slots.buffer(int(number), here.number)
            case ("view", number, subscript):
                with torch.inference_mode(False), torch.no_grad():
                    return cut(self.slots.buffer(int(number), here.number), index_of(subscript))
            case ("cells", by):
                return self.slots.of(here.number - int(by))
            case ("astray",):
                return self._astray
            case ("give_back",):
                return self.streams.give_back
            case _:
                return self.direct.value(symbol, here)

    def _astray(self, first: int, last: int) -> None:
        """SG607 for the tasks of one lane between these places of the iteration."""
        one = (HOST, MAIN)  # host tasks find lane 0's stream current
        lane = self.loop.steady[first].lane
        found = [issue for issue in self.loop.steady[first : last + 1] if issue.lane == lane or (lane in one and issue.lane in one)]
        tasks = [self.operators[self.loop.program.index_of_task[i.task]] for i in found if i.task in self.loop.program.index_of_task]
        suspects = [operator.call for operator in tasks if not operator.call.is_copy]
        raise launch.left_another_stream(suspects, found[0].lane)

    def _lane_of(self, task: str) -> str:
        return next(issue.lane for issue in self.loop.steady if issue.task == task)

    def failed(self, error: BaseException, iteration: int) -> tuple[BaseException, int]:
        """What to raise for an error that came out of the functions, with the task and its tensors if it was one's; its place, or -1."""
        assert self._generated is not None
        launching, lane = None, ""
        cells: Cells = []
        line, found = left_in(error, self._file)
        step = self._generated.step_of_line[line - 1] if line else NO_STEP
        if step != NO_STEP:
            issue = self.loop.steady[step]
            launching, lane = self.operators[self.loop.program.index_of_task[issue.task]], issue.lane
            cells = list(self.slots.of(iteration))
            for storage in self.slots.seats:
                cells[storage] = self.slots.buffer(storage, iteration)
            for storage in range(len(cells)):
                cells[storage] = found.get(f"v{storage}", cells[storage])
        found.clear()
        raised = launch.failure(error, launching, cells, lane) if launching is not None else error
        cells.clear()
        return launch.in_item(raised, iteration), step

    def close(self) -> None:
        """Drop the functions."""
        self._phases.clear()
        self._shared, self._held = {}, ()
        linecache.cache.pop(self._file, None)
        self._code = None


class _Iteration(Mapping[str, Event]):
    """The events of an iteration, by their names in the text, and the streams of all."""

    def __init__(self, streams: LoopStreams, number: int) -> None:
        self.number, self._streams = number, streams

    @property
    def streams(self) -> Mapping[str, Stream]:
        return self._streams.streams

    @property
    def events(self) -> Mapping[str, Event]:
        return self

    @property
    def at(self) -> Mapping[Place, Stream]:
        return self._streams.at

    @property
    def devices(self) -> Mapping[str, Device]:
        return self._streams.devices

    def __getitem__(self, name: str) -> Event:
        task, _, by = name.rpartition("_")
        return self._streams.event(task, 0 if task == ENTRY else self.number - int(by))

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
