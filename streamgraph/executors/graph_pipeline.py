"""Graph pipeline: a Loop whose iterations are CUDA graphs; results come out while later items are under way (`graph_run`).

An iteration has the memory, the ring slots and the events of the one `period` before it, and begins once that has ended (`phases`). Items
and results go through the caller's stream: device items are copied in, results are copied out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from streamgraph.binding import written_in_place
from streamgraph.errors import Problem, RunnerError
from streamgraph.executors.capture import Captures
from streamgraph.executors.device import Device, Event, Stream
from streamgraph.executors.first_iterations import begins_steadily
from streamgraph.executors.graph import ResultMemory
from streamgraph.executors.graph_run import GraphRun
from streamgraph.executors.graph_threads import GraphThreads
from streamgraph.executors.memory import Memory
from streamgraph.executors.parts import Cut, cut, moving
from streamgraph.executors.phases import Phases
from streamgraph.executors.pipeline import Items, Outputs
from streamgraph.executors.slots import Slots
from streamgraph.loop import Loop
from streamgraph.model import MAIN, Kind
from streamgraph.operators import Operator
from streamgraph.storages import Mode

LONGEST = 64  # iterations that are captured, each in memory of its own


class GraphPipeline:
    """Runs a loop on CUDA graphs, one loop at a time. Streams, events and graphs are made in the first loop, and used by later ones."""

    def __init__(
        self, loop: Loop, operators: Sequence[Operator], device: Device, memory: Memory, bound: Mapping[str, torch.Tensor],
        calls: Mapping[str, Stream],
    ) -> None:  # fmt: skip
        """`calls` has, under `main`, the stream of the executor's last call, which a loop on another stream follows.

        Raises:
            RunnerError: SG615, the loop repeats after too many iterations to capture them all.
        """
        assert isinstance(device, Captures)
        self.loop, self.device, self.captures = loop, device, device
        self.memory, self.calls = memory, calls
        self.slots = Slots(loop, memory)
        self.operators = {operator.call.task: operator for operator in operators}
        program, accesses = loop.program, memory.accesses
        turns = self.slots.period()
        self.period = -(-max(loop.reach, loop.inflight) // turns) * turns
        if self.period > LONGEST:
            message = f"the loop of '{program.name}' repeats after {self.period} iterations, and each of them would be a CUDA graph"
            remedy = f"choose numbers of slots with a common multiple of at most {LONGEST}, or executor='eager'"
            raise RunnerError(Problem("SG615", message, None, remedy))
        self.inputs = tuple(
            (n, s.tensor) for n, s in enumerate(accesses.storages) if s.kind is Kind.INPUT and s.tensor in loop.per_item
        )
        self.on_device = tuple(name for _, name in self.inputs if program.tensor_named[name].device != "cpu")
        written = set(written_in_place(program, accesses))
        self.changed = tuple((n, name) for n, name in self.inputs if name in self.on_device and name in written)
        # The caller's stream waits for who makes an output, or changes an item.
        looked = {number for _, number in accesses.outputs if not accesses.storages[number].host} | {n for n, _ in self.changed}
        self.makers = tuple(
            task.name
            for task, touched in zip(program.tasks, accesses.of_task, strict=True)
            if not task.host and any(access.storage in looked and access.mode is not Mode.READ for access in touched)
        )
        self.cut: Cut = cut(loop.steady, moving(program, accesses, frozenset(bound)), self.period, self.makers, loop.host_lanes)
        waits = (back.by for piece in self.cut.pieces if piece.kind == "host" for member in piece.members for back in member.outside)
        self.host_reach = max(waits, default=0)  # how many iterations back an event may be that a host task waits for
        hosted = (s.producer is not None and program.tasks[s.producer].host for s in accesses.storages)
        made_anew = {number for number, yes in enumerate(hosted) if yes}
        self.host_outputs = tuple((name, n) for name, n in accesses.outputs if accesses.storages[n].host and n not in made_anew)
        self.holds_host_values = any(storage.host and storage.producer is not None for storage in accesses.storages)
        self.result_memory = ResultMemory()
        self.on_host = loop.host_events
        self.prologue = 0 if begins_steadily(loop) else len(loop.prologue)
        self.lanes: dict[str, Stream] = {}
        self.phases: Phases | None = None
        self.spare: dict[str, Event] = {}
        self.broken: str | None = None
        self.under_way: GraphThreads | None = None
        self.warm = False  # an iteration has been issued launch by launch, and checked

    def run(self, items: Items, bound: Mapping[str, torch.Tensor]) -> Iterator[Outputs]:
        """The outputs of each item, in order. See `Pipeline.run`.

        Raises:
            RunnerError: SG604, an earlier loop was given up while a host task was still running.
        """
        if self.broken is not None:
            raise RunnerError(Problem("SG604", f"{self.broken}; this runner cannot run again", None, "make a new runner"))
        run = GraphRun(self, bound)
        self.under_way = run.threads
        try:
            yield from run.results(items)
        except GeneratorExit:  # who closes early wants what has begun to be finished
            raise
        except BaseException:
            run.stop()
            raise
        finally:
            run.end()

    def runs_on(self, thread: int) -> bool:
        """Whether that thread, by its ident, is one of the loop under way."""
        return self.under_way is not None and self.under_way.runs_on(thread)

    def ready(self, main: Stream) -> Phases:
        """Streams for the lanes, other than the caller's in the first loop, and events: made once, and never again."""
        if self.phases is None:
            for lane in self.loop.lanes:
                if lane.name not in self.loop.host_lanes:
                    taken = {main.cuda_stream, *(stream.cuda_stream for stream in self.lanes.values())}
                    self.lanes[lane.name] = self.device.new_stream(lane.priority, taken)
            self.lanes.update((lane, self.lanes[MAIN]) for lane in self.loop.host_lanes)
            program, accesses = self.loop.program, self.memory.accesses
            self.phases = Phases(
                self.cut, self.operators, self.device, self.captures, program, accesses, self.slots.number, self.lanes
            )
        return self.phases

    def event(self, name: str) -> Event:
        """An event for something outside of the iterations."""
        if name not in self.spare:
            self.spare[name] = self.device.new_event()
        return self.spare[name]

    def close(self) -> None:
        """Drop graphs, rings, streams and events. No loop may be under way."""
        if self.phases is not None:
            self.phases.close()
            self.phases = None
        self.slots.close()
        self.lanes.clear()
        self.spare.clear()
