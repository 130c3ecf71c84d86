"""Generate loop: what a thread issues for each iteration of a Loop, once that repeats, becomes the text of flat Python functions.

    def source(synchronize_upload_2=synchronize_upload_2):    what the host waits for before an item is pulled
        synchronize_upload_2()                                # wait upload[-2] @host
    def part0(item, cells_0=cells_0, cells_2=cells_2, ...):
        cells_0[0] = item['packet']                           # what outlives the function stands in the iteration's cells
        cells_2[0] = None                                     # two iterations ago nobody reads any more
        wait_track_2(stream_copy)                             # wait track[-2] @copy
        v3 = f0(b1)                                           # detect @main
        if not is_current(stream_main): astray(3, 3)

The text is the same for every iteration. Events (`track_2`: of two iterations before), cells and slots of rings are names, to which each
iteration of a period has its own bound. Where one thread issues everything, values that one function makes, uses and drops are its locals.
Several threads tell each other by the board of the loop, and keep values in cells.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from streamgraph.calls import Call
from streamgraph.devices import first_device
from streamgraph.executors import flat
from streamgraph.executors.direct import Direct, Symbol
from streamgraph.executors.flat import NO_STEP, Flat, Part
from streamgraph.executors.slots import Slots
from streamgraph.iterations import PSEUDO, kind_of
from streamgraph.loop import Back, Issue
from streamgraph.model import HOST, MAIN, Kind
from streamgraph.operators import Operator
from streamgraph.switches import Current, Place, received_by, targets_of


@dataclass(frozen=True, slots=True)
class GeneratedLoop:
    """`text` defines `source` if `has_source`, and `parts` functions; `symbols` are the names that it leaves open; `step_of_line[n]` is the
    place in the repeating iteration of the task on line n + 1.

    Alone, the functions take the item (`source` takes nothing), and the last one returns the outputs that are due. Otherwise they take the
    iteration's number and the board, and return False if an error stands before something that they have not issued.
    """

    text: str
    parts: int
    has_source: bool
    symbols: tuple[tuple[str, Symbol], ...]
    step_of_line: tuple[int, ...]


def generate_loop(
    slots: Slots, operators: Sequence[Operator], direct: Direct, lanes: Collection[str], told: frozenset[str] | None = None
) -> GeneratedLoop:
    """The text of what one thread issues to these lanes. `told`: the events that threads tell each other of; None: there is one thread."""
    return _Writer(slots, operators, direct, lanes, told).write()


def event_of(name: str, by: int) -> str:
    """The name in the text of an event of `by` iterations before."""
    return f"{name}_{by}"


class _Writer(Flat):
    def __init__(
        self, slots: Slots, operators: Sequence[Operator], direct: Direct, lanes: Collection[str], told: frozenset[str] | None
    ) -> None:
        super().__init__(slots.memory.accesses.storages, operators, direct)
        self.slots, self.loop = slots, slots.loop
        self.host_lanes, self.host_events = self.loop.host_lanes, self.loop.host_events
        self.told = told or frozenset()
        self.alone = told is None
        self.index = self.loop.program.index_of_task
        self.mine = [(place, issue) for place, issue in enumerate(self.loop.steady) if issue.lane in lanes]
        self.first, self.home = first_device(self.loop.program), self.loop.device_of
        self.targets = targets_of(self.loop.program)
        lane_of = {issue.task: issue.lane for issue in self.loop.steady}
        self.received = received_by(self.loop.program, slots.memory.accesses, lane_of)
        # Threads find their own stream current, and leave theirs as it is; one that issues to several lanes may have left any.
        self.current = Current()
        if self.alone:
            self.current = Current(((MAIN, device) for device in (self.first, *self.loop.program.devices)), self.first)
        elif len(lanes) == 1:
            (lane,) = map(self._stream, lanes)
            own, receiving = self._home(lane), [(lane, to) for task, to in self.targets.items() if lane_of[task] == lane]
            self.current = Current([*receiving, (lane, own)], own)
        self.segment: list[int] = []  # places of the tasks issued since the stream was last changed or looked at
        self.local = self._locals() if self.alone else frozenset()

    def _locals(self) -> frozenset[int]:
        """The values that one part makes, uses and drops."""
        made: dict[int, int] = {}
        used: dict[int, set[int]] = {}
        dropped: set[int] = set()
        launches = 0
        for _, issue in self.mine:
            part = launches // flat.PART
            if kind_of(issue.task) not in PSEUDO:
                call = self._call(issue)
                made.update((returned.storage, part) for returned in call.returns)
                for operand in call.operands():
                    used.setdefault(operand.storage, set()).add(part)
                launches += 1
            for value in (*issue.releases_before, *issue.releases_after):
                if value.by == 0:
                    dropped.add(self.slots.number[value.name])
                    used.setdefault(self.slots.number[value.name], set()).add(part)
        outputs = self.slots.memory.accesses.output_storages
        return frozenset(n for n, part in made.items() if n in dropped and n not in outputs and used[n] == {part})

    def _call(self, issue: Issue) -> Call:
        return self.operators[self.index[issue.task]].call

    def write(self) -> GeneratedLoop:
        first = self.loop.steady[0]
        begins = any(place == 0 for place, _ in self.mine)
        if begins:
            for back in first.waits:
                self.wait(back, first.lane, 0)
        has_source = bool(self.parts[0].lines)
        self.parts.append(Part())
        if self.alone:
            for number, name in self.slots.brought:
                self.line(f"{self.cells(0)}[{number}] = item[{name!r}]", "", NO_STEP)
            for number in self.slots.on_host:
                self.line(f"{self.cells(self.loop.inflight)}[{number}] = None", "nobody reads it any more", NO_STEP)
        launches = 0
        for place, issue in self.mine:
            if kind_of(issue.task) not in PSEUDO:
                if launches and launches % flat.PART == 0:
                    self.parts.append(Part())
                launches += 1
            self.issue(place, issue)
        self.look(self.current.now, self.current.active)
        if self.alone:
            self.hand_over()
        lines: list[tuple[str, int]] = []
        arguments = "item" if self.alone else "iteration, board"
        done = () if self.alone else ("return True",)
        if has_source:
            lines += self.function("source", "" if self.alone else arguments, 0, (), done)
        for part in range(1, len(self.parts)):
            lines += self.function(f"part{part - 1}", arguments, part, (), done)
        symbols = tuple((name, symbol) for symbol, name in self.names.items())
        text = "\n".join(text for text, _ in lines) + "\n"
        return GeneratedLoop(text, len(self.parts) - 1, has_source, symbols, tuple(step for _, step in lines))

    def issue(self, place: int, issue: Issue) -> None:
        if place:
            for back in issue.waits:
                self.wait(back, issue.lane, place)
        if not self.alone:
            self.line(f"if board.limit <= (iteration, {place}): return False", "", NO_STEP)
        self.drop(issue.releases_before)
        if kind_of(issue.task) not in PSEUDO:
            self.launch(place, issue)
        by = -self.loop.own(issue.task, 0)
        if issue.record:
            if issue.lane not in self.host_lanes:
                self.call(self.direct.record(event_of(issue.task, by), issue.lane), f"after {issue.task}", NO_STEP)
            if issue.task in self.told:
                self.line(f"board.record({issue.task!r}, iteration - {by})", "", NO_STEP)
        self.drop(issue.releases_after)
        for name in issue.record_streams:
            function, *rest = self.direct.record_stream((issue.lane, self._home(issue.lane)))
            arguments = ", ".join([f"{self.cells(by)}[{self.slots.number[name]}]", *map(self.name, rest)])
            self.line(f"{self.name(function)}({arguments})", f"record_stream {name} @{issue.lane}", NO_STEP)

    def launch(self, place: int, issue: Issue) -> None:
        lane, known = self._stream(issue.lane), dict(self.current.now)
        active, changes = self.current.active, self.current.changes(lane, self._home(lane), self.targets.get(issue.task))
        if changes:
            self.look(known, active)
        for at in changes:
            self.call(self.direct.switch(at), "", NO_STEP)
        self.task(self.index[issue.task], issue.lane, place)
        self.segment.append(place)

    def _stream(self, lane: str) -> str:
        return MAIN if lane == HOST else lane

    def _home(self, lane: str) -> str:
        return self.home.get(lane, self.first)

    def wait(self, back: Back, lane: str, place: int) -> None:
        if back.name in self.told:
            self.line(f"if not board.wait({back.name!r}, iteration - {back.by}, (iteration, {place})): return False", "", NO_STEP)
        if back.name in self.host_events:
            return  # the host is past the task
        event = event_of(back.name, back.by)
        symbols = (("synchronize", event),) if lane in self.host_lanes else self.direct.wait(event, lane)
        self.call(symbols, f"wait {back} @{lane}", NO_STEP)

    def look(self, known: Mapping[str, Place], active: str | None) -> None:
        """Whether a task since the last change of stream left another one current on a device, or another device; `known` and `active` are
        what was current. The built-in copy never does."""
        suspects = [place for place in self.segment if not self._call(self.loop.steady[place]).is_copy]
        if suspects and active is not None:
            others = [place for device, place in known.items() if device != active]
            condition = self.direct.elsewhere(known[active], others, self.name)
            self.line(f"if {condition}: {self.name(('astray',))}({suspects[0]}, {suspects[-1]})", "", suspects[-1])
        self.segment = []

    def drop(self, values: Sequence[Back]) -> None:
        for value in values:
            number = self.slots.number[value.name]
            if number in self.received:
                self.line(f"{self.name(('give_back',))}({number})", "the stream that it was taken from follows the lane", NO_STEP)
            places = self.views_of(number) if value.by == 0 else []
            places.append(f"v{number}" if number in self.local and value.by == 0 else f"{self.cells(value.by)}[{number}]")
            self.line(f"{' = '.join(places)} = None", f"release {value}", NO_STEP)

    def hand_over(self) -> None:
        """The outputs that are due are the caller's from here on."""
        for at in self.current.back(self.first):
            self.call(self.direct.switch(at), "the caller's stream again", NO_STEP)
        numbers = [number for _, number in self.slots.memory.accesses.outputs]
        cells = self.cells(self.loop.inflight - 1) if numbers else ""
        self.line(f"results = ({''.join(f'{cells}[{number}], ' for number in numbers)})", "", NO_STEP)
        for number in dict.fromkeys(numbers):
            self.line(f"{cells}[{number}] = None", "", NO_STEP)
        self.line("return results", "", NO_STEP)

    def cells(self, by: int) -> str:
        """The cells of `by` iterations before."""
        return self.name(("cells", str(by)))

    def storage(self, number: int) -> str:
        """See `Flat.storage`."""
        if self.storages[number].kind is Kind.BUFFER:
            return self.name(("buffer", str(number)))
        return self.target(number)

    def target(self, number: int) -> str:
        """See `Flat.target`."""
        return f"v{number}" if number in self.local else f"{self.cells(0)}[{number}]"
