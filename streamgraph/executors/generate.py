"""Generate: a schedule becomes the text of a flat Python function, one line per step, to be compiled once and called for every run.

    def part0(carry, f0=f0, set_stream=set_stream, ...):      everything that a run does not change is bound as a default: a local
        v0 = carry[0]                                         inputs, and values of earlier parts
        wait_e0(stream_main)                                  # wait e0 @main: RAW frame@0: upload@0 -> preprocess@0
        set_stream(id_copy, device, type)                     only where the lane changes
        v3 = f0(v0, b1, out=b2, alpha=0.5)                    # mm@3 @copy
        v3 = None                                             # release mm.1

A storage is `v7` or, if it is a buffer, `b7`; a view of it is `v7_0`, cut once. Schedules longer than `PART` tasks become several functions
that hand values over in the list `carry`: CPython compiles functions in time that grows faster than their length, and copies their
defaults at each call.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import assert_never

from streamgraph.calls import Operand, Slot
from streamgraph.errors import quoted
from streamgraph.executors.direct import Direct, Symbol
from streamgraph.model import HOST, MAIN, Index, Kind
from streamgraph.operators import Operator
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Step, Wait
from streamgraph.switches import switches, user

PART = 400  # tasks
NO_STEP = -1


@dataclass(frozen=True, slots=True)
class Generated:
    """`text` defines `parts` functions; `symbols` are the names that it leaves open; `step_of_line[n]` is the step on line n + 1.

    The functions take the list `carry`: the tensors of `inputs`, by storage number, and then `room` places that are None. The last one
    returns a tuple of the outputs. Values that the run leaves to the next one are put into `pending`, a dict by storage number.
    """

    text: str
    parts: int
    symbols: tuple[tuple[str, Symbol], ...]
    step_of_line: tuple[int, ...]
    inputs: tuple[int, ...]
    room: int


@dataclass
class _Part:
    """One function while it is written: body lines with their steps, and which storages and names it uses."""

    lines: list[tuple[str, int]] = field(default_factory=list)
    names: dict[str, None] = field(default_factory=dict)
    loaded: dict[int, None] = field(default_factory=dict)
    made: dict[int, None] = field(default_factory=dict)
    views: dict[tuple[int, Index], str] = field(default_factory=dict)


def generate(schedule: Schedule, operators: Sequence[Operator], direct: Direct) -> Generated:
    """The text for a schedule. `operators` are in declaration order."""
    return _Writer(schedule, operators, direct).write()


class _Writer:
    def __init__(self, schedule: Schedule, operators: Sequence[Operator], direct: Direct) -> None:
        self.schedule, self.direct, self.operators = schedule, direct, operators
        self.storages = schedule.accesses.storages
        self.number = {storage.label: number for number, storage in enumerate(self.storages)}
        self.index = schedule.program.index_of_task
        self.host_events = {s.event for s in schedule.steps if isinstance(s, Record) and s.lane == HOST}
        self.names: dict[Symbol, str] = {}
        self.counts: dict[str, int] = {}
        self.parts = [_Part()]
        self.switches = switches(schedule)
        self.inputs = tuple(n for n, storage in enumerate(self.storages) if storage.kind is Kind.INPUT)
        self.carried = {number: place for place, number in enumerate(self.inputs)}
        self.part_of: dict[int, int] = {}  # values: the part that makes them
        self._plan_carrying()

    def _plan_carrying(self) -> None:
        """Find the values that one part makes and another uses, returns or drops: they get a place in `carry`."""
        part, launches = 0, 0
        uses: list[tuple[int, int]] = []
        for step in self.schedule.steps:
            match step:
                case Launch(task, _):
                    if launches == PART:
                        part, launches = part + 1, 0
                    launches += 1
                    call = self.operators[self.index[task]].call
                    uses += [(operand.storage, part) for operand in call.operands()]
                    self.part_of.update((returned.storage, part) for returned in call.returns)
                case Release(storage, _, False) | RecordStream(storage, _):
                    uses.append((self.number[storage], part))
                case _:
                    pass
        released = {self.number[s.storage] for s in self.schedule.steps if isinstance(s, Release) and not s.previous}
        self.outputs = tuple(number for _, number in self.schedule.accesses.outputs)
        self.left = tuple(n for n in self.part_of if n not in released and n not in self.schedule.accesses.output_storages)
        uses += [(number, part) for number in (*self.outputs, *self.left)]
        for number, where in uses:
            if number in self.part_of and self.part_of[number] != where and number not in self.carried:
                self.carried[number] = len(self.carried)

    def write(self) -> Generated:
        launches = 0
        for number, step in enumerate(self.schedule.steps):
            if isinstance(step, Launch):
                if launches == PART:
                    self.parts.append(_Part())
                    launches = 0
                launches += 1
            self.step(step, number)
        for at in self.switches.at_end:
            self.call(self.direct.switch(at), "the caller's stream again", NO_STEP)
        for storage in self.left:
            self.line(f"{self.name(('pending',))}[{storage}] = {self.storage(storage)}", "left to the next run", NO_STEP)
        returned = "".join(f"{self.storage(number)}, " for number in self.outputs)
        self.line(f"return ({returned})" if self.outputs else "return ()", "", NO_STEP)
        lines: list[tuple[str, int]] = []
        for part in range(len(self.parts)):
            lines += self.function(part)
        return Generated(
            "\n".join(text for text, _ in lines) + "\n", len(self.parts), tuple((name, symbol) for symbol, name in self.names.items()),
            tuple(step for _, step in lines), self.inputs, len(self.carried) - len(self.inputs),
        )  # fmt: skip

    def function(self, index: int) -> list[tuple[str, int]]:
        """The finished lines of one part."""
        part = self.parts[index]
        parameters = "".join(f", {name}={name}" for name in part.names)
        loads = [(f"    v{number} = carry[{self.carried[number]}]", NO_STEP) for number in part.loaded]
        body = part.lines
        stores = [(f"    carry[{self.carried[number]}] = v{number}", NO_STEP) for number in part.made if number in self.carried]
        # The last line of the last part returns; it makes nothing that another part uses.
        return [(f"def part{index}(carry{parameters}):", NO_STEP), *loads, *body, *stores] + [("    pass", NO_STEP)] * (not body)

    def step(self, step: Step, number: int) -> None:
        match step:
            case Launch(task, lane):
                self.launch(self.operators[self.index[task]], self.index[task], lane, number)
            case Record(event, lane, task):
                if lane != HOST:
                    self.call(self.direct.record(event, lane), f"after {task}", number)
            case Wait(event, lane):
                if event not in self.host_events:
                    self.call(self.direct.wait(event, lane), str(step), number)
            case HostWait(event):
                self.call((("synchronize", event),), str(step), number)
            case Release(storage, _, previous):
                self.release(self.number[storage], str(step), number, previous=previous)
            case RecordStream(storage, lane):
                function, *rest = self.direct.record_stream(user(self.schedule, self.number[storage], lane))
                arguments = ", ".join([self.storage(self.number[storage]), *map(self.name, rest)])
                self.line(f"{self.name(function)}({arguments})", str(step), number)
            case _:
                assert_never(step)

    def launch(self, operator: Operator, task: int, lane: str, number: int) -> None:
        lane = MAIN if lane == HOST else lane
        for at in self.switches.before.get(number, ()):
            self.call(self.direct.switch(at), "", number)
        call = operator.call
        arguments = [self.slot(slot, number) for slot in call.positional]
        spread: list[str] = []
        for name, slot in call.keywords:
            self.keyword(name, self.slot(slot, number), arguments, spread)
        for place, (name, value) in enumerate(call.const):
            self.keyword(name, _literal(value) or self.name(("constant", str(task), str(place))), arguments, spread)
        if spread:
            arguments.append(f"**{{{', '.join(spread)}}}")
        targets = [f"v{returned.storage}" for returned in call.returns]
        result = f"{', '.join(targets)}{',' if call.returns_sequence and len(targets) == 1 else ''} = " if targets else ""
        self.line(f"{result}{self.name(('function', str(task)))}({', '.join(arguments)})", f"{call.task} @{lane}", number)
        self.parts[-1].made.update(dict.fromkeys(returned.storage for returned in call.returns))

    @staticmethod
    def keyword(name: str, text: str, arguments: list[str], spread: list[str]) -> None:
        # Keywords keep their order, so what follows one that has to be spread is spread too.
        if name.isidentifier() and not keyword.iskeyword(name) and not spread:
            arguments.append(f"{name}={text}")
        else:
            spread.append(f"{name!r}: {text}")

    def slot(self, slot: Slot, number: int) -> str:
        if isinstance(slot, Operand):
            return self.operand(slot, number)
        items = [self.slot(item, number) for item in slot.items]
        return f"[{', '.join(items)}]" if slot.is_list else f"({''.join(item + ', ' for item in items)})"

    def operand(self, operand: Operand, number: int) -> str:
        """The name of a tensor or of a view of it, which is cut at its first use in the part."""
        storage = operand.storage
        if not operand.index:
            return self.storage(storage)
        if self.storages[storage].kind is Kind.BUFFER:
            return self.name(("view", str(storage), _subscript(operand.index)))
        views = self.parts[-1].views
        key = (storage, operand.index)
        if key not in views:
            name = f"v{storage}_{sum(of == storage for of, _ in views)}"
            self.line(f"{name} = {self.storage(storage)}[{_subscript(operand.index)}]", operand.tensor, number)
            views[key] = name
        return views[key]

    def storage(self, number: int) -> str:
        part = self.parts[-1]
        if self.storages[number].kind is Kind.BUFFER:
            return self.name(("buffer", str(number)))
        if number not in part.made:
            part.loaded[number] = None
        return f"v{number}"

    def release(self, number: int, why: str, step: int, *, previous: bool) -> None:
        part = self.parts[-1]
        if number in self.switches.received:
            self.line(f"{self.name(('give_back',))}({number})", "the stream that it was taken from follows the lane", step)
        if previous:
            self.line(f"{self.name(('drop',))}({number}, None)", why, step)
            return
        places = [name for (storage, _), name in part.views.items() if storage == number]
        if number in part.made or number in part.loaded:
            places.append(f"v{number}")
        if number in self.carried and self.part_of[number] != len(self.parts) - 1:
            places.append(f"carry[{self.carried[number]}]")
        if places:
            self.line(f"{' = '.join(places)} = None", why, step)

    def call(self, symbols: Sequence[Symbol], why: str, step: int) -> None:
        function, *arguments = map(self.name, symbols)
        self.line(f"{function}({', '.join(arguments)})", why, step)

    def line(self, code: str, why: str, step: int) -> None:
        text = quoted(re.sub(r"\s+# ", ": ", why), 200)
        self.parts[-1].lines.append((f"    {code:<46}  # {text}" if text else f"    {code}", step))

    def name(self, symbol: Symbol) -> str:
        """The name of what stands behind a symbol; one name for each, a parameter of every part that uses it."""
        if symbol not in self.names:
            prefix = _PREFIX.get(symbol[0], symbol[0])
            number = self.counts.get(prefix, 0)
            self.counts[prefix] = number + 1
            # Streams and events keep their names where these can stand in a program.
            own = f"{prefix}_{symbol[-1]}"
            speaks = symbol[0] in _SPEAKS and own.isascii() and own.isidentifier()
            self.names[symbol] = symbol[0] if len(symbol) == 1 else own if speaks else f"{prefix}{number}"
        name = self.names[symbol]
        self.parts[-1].names[name] = None
        return name


_PREFIX = {"function": "f", "constant": "k", "buffer": "b", "view": "u"}
_SPEAKS = frozenset({"stream", "id", "event", "record", "wait", "synchronize"})


def _literal(value: object) -> str | None:
    """A constant as it can stand in the text; None for what has to be bound."""
    simple = value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value))
    return repr(value) if simple or (type(value) is str and len(value) < 40 and value.isprintable()) else None


def _subscript(index: Index) -> str:
    """What stands between the brackets: `0:2, 3`."""
    return ", ".join(str(part) if isinstance(part, int) else f"{part[0]}:{part[1]}" for part in index)
