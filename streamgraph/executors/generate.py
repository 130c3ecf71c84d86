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

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import assert_never

from streamgraph.executors import flat
from streamgraph.executors.direct import Direct, Symbol
from streamgraph.executors.flat import NO_STEP, Flat, Part
from streamgraph.model import HOST, MAIN, Kind
from streamgraph.operators import Operator
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Step, Wait
from streamgraph.switches import switches, user


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


def generate(schedule: Schedule, operators: Sequence[Operator], direct: Direct) -> Generated:
    """The text for a schedule. `operators` are in declaration order."""
    return _Writer(schedule, operators, direct).write()


class _Writer(Flat):
    def __init__(self, schedule: Schedule, operators: Sequence[Operator], direct: Direct) -> None:
        super().__init__(schedule.accesses.storages, operators, direct)
        self.schedule = schedule
        self.number = {storage.label: number for number, storage in enumerate(self.storages)}
        self.index = schedule.program.index_of_task
        self.host_events = {s.event for s in schedule.steps if isinstance(s, Record) and s.lane == HOST}
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
                    if launches == flat.PART:
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
                if launches == flat.PART:
                    self.parts.append(Part())
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
            lines += self.finished(part)
        return Generated(
            "\n".join(text for text, _ in lines) + "\n", len(self.parts), tuple((name, symbol) for symbol, name in self.names.items()),
            tuple(step for _, step in lines), self.inputs, len(self.carried) - len(self.inputs),
        )  # fmt: skip

    def finished(self, index: int) -> list[tuple[str, int]]:
        """The lines of one part, with what it takes from `carry` and puts there."""
        part = self.parts[index]
        loads = [f"v{number} = carry[{self.carried[number]}]" for number in part.loaded]
        stores = [f"carry[{self.carried[number]}] = v{number}" for number in part.made if number in self.carried]
        # The last line of the last part returns; it makes nothing that another part uses.
        return self.function(f"part{index}", "carry", index, loads, stores)

    def step(self, step: Step, number: int) -> None:
        match step:
            case Launch(task, lane):
                self.launch(self.index[task], lane, number)
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

    def launch(self, task: int, lane: str, number: int) -> None:
        for at in self.switches.before.get(number, ()):
            self.call(self.direct.switch(at), "", number)
        self.task(task, MAIN if lane == HOST else lane, number)

    def target(self, number: int) -> str:
        """See `Flat.target`."""
        return f"v{number}"

    def storage(self, number: int) -> str:
        """See `Flat.storage`."""
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
        places = self.views_of(number)
        if number in part.made or number in part.loaded:
            places.append(f"v{number}")
        if number in self.carried and self.part_of[number] != len(self.parts) - 1:
            places.append(f"carry[{self.carried[number]}]")
        if places:
            self.line(f"{' = '.join(places)} = None", why, step)
