"""Phases: the graphs of an iteration that is issued again and again, captured once for each of the `period` places in turn.

    the first time      each part is captured where the iteration has come to it, and launched at once
    from then on        graphs are launched; host tasks run, and eager launches are issued, in between

What parts make lies in the memory of their phase, at the same addresses each time: all parts of a phase share one pool, since they replay
in the order in which they were captured, lane for lane; phases, which overlap, have a pool each. So the memory of a loop is that of one
iteration, once for each phase. What an eager launch makes for a part is copied to where that part has found it first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from streamgraph.calls import evaluate, type_text
from streamgraph.errors import Problem, TaskError
from streamgraph.executors.capture import Captures, Graph, capturing
from streamgraph.executors.capture_part import Capturing
from streamgraph.executors.device import Device, Event, Stream
from streamgraph.executors.graph_threads import AT_ONCE, HostTasks
from streamgraph.executors.launch import failure, launch
from streamgraph.executors.memory import Cells
from streamgraph.executors.parts import Cut, Member, Piece
from streamgraph.iterations import ITEM
from streamgraph.model import MAIN, Program
from streamgraph.operators import Operator
from streamgraph.storages import Accesses

LAUNCHERS = 16  # streams that graphs are launched on; parts take them in turn, and two on one stream follow each other


@dataclass
class _Part:
    """A captured piece. `random`: it draws random numbers, whose state all graphs of the device share."""

    graph: Graph
    stream: Stream
    end: Event
    random: bool = False


@dataclass
class Phase:
    """One place of the period: tensors by storage, graphs by piece, and the events behind which its latest iteration has ended."""

    cells: Cells
    parts: dict[int, _Part] = field(default_factory=dict)
    homes: dict[int, torch.Tensor] = field(default_factory=dict)
    ended: list[Event] = field(default_factory=list)
    pool: Any = None
    whole: bool = False  # every part has been captured


class Phases:
    """Issues iterations of a cut to streams. `lanes` has a stream for each lane, `main` included, all of them the owner's own.

    `held` are storages that are not to be dropped inside an iteration.
    """

    def __init__(
        self, cut: Cut, operators: Mapping[str, Operator], device: Device, captures: Captures, program: Program, accesses: Accesses,
        number: Mapping[str, int], lanes: Mapping[str, Stream], held: Collection[int] = (),
    ) -> None:  # fmt: skip
        self.cut, self.device, self.lanes = cut, device, lanes
        self.operators, self.captures, self._program, self._accesses, self.number = operators, captures, program, accesses, number
        self._phases: dict[int, Phase] = {}
        self._launchers: list[Stream] = []
        self._made = 0  # parts so far
        self._whole = False
        self._random: Event | None = None  # the end of the latest part that drew random numbers
        issued_apart = {m.issue.task for piece in cut.pieces if piece.kind != "part" for m in piece.members}
        apart = {a.storage for task, of in zip(program.tasks, accesses.of_task, strict=True) if task.name in issued_apart for a in of}
        in_parts = {
            a.storage for task, of in zip(program.tasks, accesses.of_task, strict=True) if task.name not in issued_apart for a in of
        }
        lasting = {n for n, storage in enumerate(accesses.storages) if storage.host or storage.producer is None}
        self.kept = apart | lasting | set(accesses.output_storages) | set(held)
        eager = [member.issue for piece in cut.pieces if piece.kind == "eager" for member in piece.members]
        # What eager launches make and parts use must lie where the part has found it.
        self._homes = {
            n for n in in_parts if (maker := accesses.storages[n].producer) is not None
            and program.tasks[maker].name in {issue.task for issue in eager}
        }  # fmt: skip
        self.eager_lanes = tuple(dict.fromkeys(issue.lane for issue in eager if issue.task != ITEM))
        self._last_eager = tuple({issue.lane: issue.task for issue in eager if issue.task != ITEM}.values())
        # Where a part of the iteration waits for an eager launch, the end of the part is behind it.
        awaited = {back.name for piece in cut.pieces if piece.kind == "part" for m in piece.members for back in m.outside if not back.by}
        self._open = tuple(task for task in self._last_eager if task not in awaited)
        recorded = (*sorted(cut.shown), *self._last_eager)
        self._events = {task: [captures.new_shared_event() for _ in range(cut.period)] for task in dict.fromkeys(recorded)}
        for events in self._events.values():
            for event in events:
                device.record(event, lanes[MAIN])  # CUDA makes an event at its first record; a wait before that is none

    @property
    def whole(self) -> bool:
        """Whether every phase has been captured."""
        return self._whole

    def phase(self, iteration: int) -> Phase | None:
        """The phase of an iteration, if it has been captured."""
        return self._phases.get(iteration % self.cut.period)

    def event(self, task: str, iteration: int) -> Event:
        """The event of a task's iteration."""
        return self._events[task][iteration % self.cut.period]

    def shows(self, task: str) -> bool:
        """Whether the task's event is recorded for others than its part."""
        return task in self._events

    def wait_first(self, iteration: int) -> None:
        """Let the host wait for what reaches a whole period back."""
        for back in self.cut.first:
            self.event(back.name, iteration - back.by).synchronize()

    def wait_last(self, iteration: int) -> None:
        """Let the host wait for what makes results in host memory."""
        for back in self.cut.last:
            self.event(back.name, iteration - back.by).synchronize()

    def issue(
        self, iteration: int, after: Sequence[Event], cells: Callable[[], Cells], prepare: Callable[[Phase], None],
        item: tuple[Stream, Callable[[Phase], None]] | None = None, hosts: HostTasks = AT_ONCE,
    ) -> Phase:  # fmt: skip
        """Issue one iteration behind the events `after`, and capture what of it has not been captured yet.

        `cells` makes the tensors of a phase that is new, `prepare` puts in what each iteration brings, and `item` copies what comes on
        the caller's stream. `hosts` calls host tasks; while there is something to capture, everything waits for them. The current stream
        is another one afterwards.

        Raises:
            TaskError: a task raised, or could not be captured. The phase is captured anew next time, unless it was whole.
            RunnerError: SG614.
        """
        place = iteration % self.cut.period
        phase = self._phases.get(place)
        if phase is None:
            phase = self._phases[place] = Phase(cells())
        try:
            prepare(phase)
            for event in after:
                for lane in self.eager_lanes:
                    self.device.wait(event, self.lanes[lane])
                for part in phase.parts.values():
                    if event is not part.end:
                        self.device.wait(event, part.stream)
                if item is not None:
                    self.device.wait(event, item[0])
            for number, piece in enumerate(self.cut.pieces):
                for member in piece.members:
                    for back in member.hosts:
                        hosts.wait(back.name, iteration - back.by)
                if piece.kind == "part":
                    if number not in phase.parts:
                        phase.parts[number] = self._capture(piece, iteration, phase, after)
                    self._launch(phase.parts[number], first=not phase.whole)
                elif piece.kind == "eager":
                    self._eagerly(piece.members[0], iteration, phase, item)
                else:
                    task = piece.members[0].issue.task
                    hosts.call(task, iteration, partial(self._on_host, piece.members[0], iteration, phase))
                    if not self._whole:
                        hosts.wait(task, iteration)
        except BaseException:
            if not phase.whole:
                self._phases.pop(place, None)
                self._at_rest(phase, iteration)
                _drop(phase)
            raise
        if not phase.whole:
            phase.whole = True
            self._whole = len(self._phases) == self.cut.period and all(phase.whole for phase in self._phases.values())
        phase.ended = [part.end for part in phase.parts.values()]
        phase.ended += [self.event(task, iteration) for task in self._open]
        return phase

    def _on_host(self, member: Member, iteration: int, phase: Phase) -> None:
        for back in member.outside:
            self.event(back.name, iteration - back.by).synchronize()
        self.device.set_stream(self.lanes[MAIN])
        self._call(member, phase)

    def _eagerly(self, member: Member, iteration: int, phase: Phase, item: tuple[Stream, Callable[[Phase], None]] | None) -> None:
        issue = member.issue
        stream = self.lanes[issue.lane]
        if issue.task == ITEM:
            assert item is not None
            stream = item[0]
        for back in member.outside:
            self.device.wait(self.event(back.name, iteration - back.by), stream)
        self.device.set_stream(stream)
        if issue.task == ITEM:
            assert item is not None
            item[1](phase)
        else:
            self._call(member, phase)
        if issue.task in self._events:
            self.device.record(self.event(issue.task, iteration), stream)

    def _call(self, member: Member, phase: Phase) -> None:
        """Call one task outside of any graph; what parts read of it goes where they have found it."""
        operator, cells = self.operators[member.issue.task], phase.cells
        call = operator.call
        try:
            if call.is_copy and call.returns and call.returns[0].storage in phase.homes:
                number = call.returns[0].storage
                self._settle(operator, phase, number, evaluate(call.positional[0], cells), member.issue.lane)
                return
            launch(operator, cells, self.device.location, member.issue.lane, check=False)
            for returned in call.returns:
                made = cells[returned.storage]
                if returned.storage in self._homes and made is not None:
                    self._settle(operator, phase, returned.storage, made, member.issue.lane)
        except BaseException as error:
            raised = failure(error, operator, cells, member.issue.lane)
            if raised is error:
                raise
            raise raised from error

    def _settle(self, operator: Operator, phase: Phase, number: int, made: torch.Tensor, lane: str) -> None:
        home = phase.homes.setdefault(number, made)
        if home is not made:
            if home.shape != made.shape:
                task = operator.call.task
                message = f"task '{task}' @{lane} makes {type_text(made)}, but the CUDA graph was captured with {type_text(home)}"
                remedy = "compile a second runner for other shapes"
                raise TaskError(Problem("SG613", message, operator.call.location, remedy), task, lane)
            self.captures.copy(home, made)
        phase.cells[number] = home

    def _launch(self, part: _Part, first: bool) -> None:
        before: Hashable = None
        if (first or part.random) and self._random is not None:
            self.device.wait(self._random, part.stream)
        if first:
            before = self.captures.random_offset()
        self.device.set_stream(part.stream)
        part.graph.replay()
        self.device.record(part.end, part.stream)
        if first:
            part.random = before != self.captures.random_offset()
        if part.random:
            self._random = part.end

    def _capture(self, piece: Piece, iteration: int, phase: Phase, after: Sequence[Event]) -> _Part:
        device, stream = self.device, self._launcher()
        for event in after:
            device.wait(event, stream)
        part = _Part(self.captures.new_graph(), stream, device.new_event())
        device.set_stream(stream)
        with capturing(part.graph, self._program.name, phase.pool):
            Capturing(self, piece, iteration, phase.cells, stream).run()
        phase.pool = part.graph.pool()
        return part

    def _launcher(self) -> Stream:
        if self._made >= len(self._launchers) and len(self._launchers) < LAUNCHERS:
            taken = {stream.cuda_stream for stream in (*self.lanes.values(), *self._launchers, self.device.current_stream())}
            self._launchers.append(self.device.new_stream("normal", taken))
        self._made += 1
        return self._launchers[(self._made - 1) % len(self._launchers)]

    def launchers(self) -> tuple[Stream, ...]:
        """The streams that graphs are launched on."""
        return tuple(self._launchers)

    def join(self, main: Stream) -> None:
        """Let a stream follow all that has been issued to lanes and launchers."""
        end = self.device.new_event()
        for handle, stream in {stream.cuda_stream: stream for stream in (*self.lanes.values(), *self._launchers)}.items():
            if handle != main.cuda_stream:
                self.device.record(end, stream)
                self.device.wait(end, main)

    def _at_rest(self, phase: Phase, iteration: int) -> None:
        """Wait for what has been issued of a phase whose memory is about to go."""
        for part in phase.parts.values():
            part.end.synchronize()
        for task in self._last_eager:
            self.event(task, iteration).synchronize()

    def close(self) -> None:
        """Give graphs and memory back. Nothing may be running."""
        for phase in self._phases.values():
            _drop(phase)
        self._phases.clear()
        self._events.clear()
        self._launchers.clear()
        self._random = None


def _drop(phase: Phase) -> None:
    phase.cells = []
    phase.homes.clear()
    for part in phase.parts.values():
        with suppress(RuntimeError):
            part.graph.reset()
    phase.parts.clear()
    phase.ended = []
