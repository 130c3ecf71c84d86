"""Graph pipeline: one thread issues a Loop whose iterations are CUDA graphs; results come out while later items are under way.

    the first iteration     launch by launch, on the streams that will be captured (`first_iterations`)
    one for each phase      parts are captured where the iteration comes to them, and launched at once
    from then on            graphs are launched; uploads of what items bring in host memory, and host tasks, are issued in between

An iteration has the memory, the ring slots and the events of the one `period` before it, and begins once that has ended (`phases`). Items
and results go through the caller's stream: device items are copied in, results are copied out. Host tasks run on the caller's thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from streamgraph.binding import written_in_place
from streamgraph.calls import type_text
from streamgraph.errors import BindingError, Problem, RunnerError
from streamgraph.executors.capture import Captures
from streamgraph.executors.device import Device, Event, Stream
from streamgraph.executors.first_iterations import FirstIterations, begins_steadily
from streamgraph.executors.graph import empty_like
from streamgraph.executors.launch import in_item
from streamgraph.executors.memory import Cells, Memory
from streamgraph.executors.modes import on_stream, task_mode
from streamgraph.executors.parts import Cut, cut
from streamgraph.executors.phases import Phase, Phases, moving
from streamgraph.executors.pipeline import Items, Outputs
from streamgraph.executors.slots import Slots
from streamgraph.loop import Issue, Loop
from streamgraph.model import ENTRY, HOST, MAIN, Kind
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
        self.cut: Cut = cut(loop.steady, moving(program, accesses, frozenset(bound)), self.period, self.makers)
        hosted = (s.producer is not None and program.tasks[s.producer].host for s in accesses.storages)
        made_anew = {number for number, yes in enumerate(hosted) if yes}
        self.host_outputs = tuple((name, n) for name, n in accesses.outputs if accesses.storages[n].host and n not in made_anew)
        self.pinned: dict[str, bool] = {}
        self.on_host = frozenset(issue.task for issue in loop.steady if issue.lane == HOST)
        self.prologue = 0 if begins_steadily(loop) else len(loop.prologue)
        self.lanes: dict[str, Stream] = {}
        self.phases: Phases | None = None
        self.spare: dict[str, Event] = {}
        self.warm = False  # an iteration has been issued launch by launch, and checked

    def run(self, items: Items, bound: Mapping[str, torch.Tensor]) -> Iterator[Outputs]:
        """The outputs of each item, in order. See `Pipeline.run`."""
        run = _Run(self, bound)
        try:
            yield from run.results(items)
        finally:
            run.end()

    def ready(self, main: Stream) -> Phases:
        """Streams for the lanes, other than the caller's in the first loop, and events: made once, and never again."""
        if self.phases is None:
            for lane in self.loop.lanes:
                if not lane.is_host:
                    taken = {main.cuda_stream, *(stream.cuda_stream for stream in self.lanes.values())}
                    self.lanes[lane.name] = self.device.new_stream(lane.priority, taken)
            self.lanes[HOST] = self.lanes[MAIN]
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


class _Run:
    """One loop under way."""

    def __init__(self, pipeline: GraphPipeline, bound: Mapping[str, torch.Tensor]) -> None:
        self.pipeline, self.bound, self.loop, self.device = pipeline, bound, pipeline.loop, pipeline.device
        self.main = self.device.current_stream()
        self.ended = False
        self.taken = 0  # results given to the caller
        self.eager: dict[int, Cells] = {}  # of iterations that are issued launch by launch
        self.items: dict[int, Mapping[str, torch.Tensor]] = {}
        self.behind: dict[int, list[Event]] = {}  # by place in the period: behind these the latest iteration there has ended
        self.launched = 0  # iterations that were graphs
        self.fresh: dict[str, torch.Tensor] = {}  # memory for the results that are due next

    def results(self, items: Items) -> Iterator[Outputs]:
        pipeline, loop = self.pipeline, self.loop
        iteration = 0
        with self._issuing():
            self._begin()
        while True:
            block = loop.block(iteration)
            self._host_waits(block[0], iteration)
            try:
                item = next(items)
            except StopIteration:
                break
            with self._issuing():
                self.items[iteration] = item
                if iteration < pipeline.prologue or not pipeline.warm:
                    self._launches(block, iteration, item)
                    pipeline.warm = True
                else:
                    self._graphs(iteration, item)
                iteration += 1
                due = self._copied_out(iteration - loop.inflight) if iteration >= loop.inflight else None
            if due is not None:
                yield due
        self.end()
        for rest in range(self.taken, iteration):
            with self._issuing():
                due = self._copied_out(rest)
            yield due

    def _begin(self) -> None:
        """Everything follows what the caller has issued, and the executor's last call."""
        pipeline, device = self.pipeline, self.device
        last = pipeline.calls.get(MAIN)
        if last is not None and last.cuda_stream != self.main.cuda_stream:
            device.record(pipeline.event("call"), last)
            device.wait(pipeline.event("call"), self.main)
        pipeline.slots.prepare()
        phases = pipeline.ready(self.main)
        self._first = FirstIterations(pipeline, phases, self.main)
        device.record(pipeline.event(ENTRY), self.main)
        for stream in (*pipeline.lanes.values(), *phases.launchers()):
            device.wait(pipeline.event(ENTRY), stream)

    def _host_waits(self, issue: Issue, iteration: int) -> None:
        """What the host waits for before an item is pulled, which may refill memory."""
        first = self._first
        for back in issue.waits:
            if back.name != ENTRY and back.name not in self.pipeline.on_host:
                first.event(back.name, iteration - back.by).synchronize()

    def _launches(self, block: tuple[Issue, ...], iteration: int, item: Mapping[str, torch.Tensor]) -> None:
        """One iteration launch by launch. All lanes are behind the one a period before it, whose tensors go."""
        self._follow(iteration, (*self.pipeline.lanes.values(), self.main))
        self._forget(iteration)
        self.eager[iteration] = self._first.issue(block, iteration, {**self.bound, **item})
        self.behind[iteration % self.pipeline.period] = self._first.ends(iteration)

    def _forget(self, iteration: int) -> None:
        """Let go of iterations whose results have been taken and behind which everything is that comes now."""
        for old in [number for number in self.items if number <= iteration - self.pipeline.period and number < self.taken]:
            self.eager.pop(old, None)
            self.items.pop(old)

    def _follow(self, iteration: int, streams: Sequence[Stream]) -> None:
        for event in self.behind.get(iteration % self.pipeline.period, ()):
            for stream in streams:
                self.device.wait(event, stream)

    # --- graphs ---

    def _graphs(self, iteration: int, item: Mapping[str, torch.Tensor]) -> None:
        pipeline, phases = self.pipeline, self.pipeline.phases
        assert phases is not None
        place = iteration % pipeline.period
        behind = self.behind.get(place, [])
        if iteration - pipeline.period in self.eager:
            # Its tensors go now, and the streams that they were made on are behind all their uses.
            self._follow(iteration, (*pipeline.lanes.values(), self.main))
        self._forget(iteration)
        self._check(phases.phase(iteration), item, iteration)
        phases.wait_first(iteration)
        after = [*behind, pipeline.event(ENTRY)] if self.launched < pipeline.period else behind
        self.launched += 1

        def cells() -> Cells:
            static = {name: self._static_like(tensor) for name, tensor in item.items() if name in pipeline.on_device}
            return pipeline.slots.cells(iteration, {**self.bound, **item, **static})

        def bring(phase: Phase) -> None:
            for number, name in pipeline.inputs:
                if name not in pipeline.on_device:
                    phase.cells[number] = item[name]

        def copy(phase: Phase) -> None:
            for number, name in pipeline.inputs:
                if name in pipeline.on_device:
                    target = phase.cells[number]
                    assert target is not None
                    pipeline.captures.copy(target, item[name])

        phase = phases.issue(iteration, after, cells, bring, (self.main, copy) if pipeline.on_device else None)
        self.behind[place] = list(phase.ended)
        due = iteration - self.loop.inflight + 1
        if due >= 0 and due not in self.eager:
            self._get_memory(due)
        phases.wait_last(iteration)

    def _get_memory(self, iteration: int) -> None:
        """Memory for the results in host memory that are due next, got while the device is at work."""
        pipeline, phases = self.pipeline, self.pipeline.phases
        assert phases is not None
        phase = phases.phase(iteration)
        assert phase is not None
        for name, number in pipeline.host_outputs:
            tensor = phase.cells[number]
            assert tensor is not None
            if name not in pipeline.pinned:
                pipeline.pinned[name] = tensor.is_pinned()
            self.fresh[name] = empty_like(tensor, pipeline.pinned[name])

    def _static_like(self, tensor: torch.Tensor) -> torch.Tensor:
        self.device.set_stream(self.main)
        with torch.inference_mode(False):
            return torch.empty_like(tensor)

    def _check(self, phase: Phase | None, item: Mapping[str, torch.Tensor], iteration: int) -> None:
        """SG613 for an item of another shape than the captured one."""
        for number, name in self.pipeline.inputs:
            held = phase.cells[number] if phase is not None else None
            if held is not None and (held.shape, held.dtype) != (item[name].shape, item[name].dtype):
                found, wanted = type_text(item[name]), type_text(held)
                message = f"item {iteration}: input '{name}' is {found}, but the CUDA graph was captured with {wanted}"
                raise BindingError(Problem("SG613", message, None, "compile a second runner for other shapes"))

    # --- results ---

    def _copied_out(self, iteration: int) -> Outputs:
        """The outputs of an iteration, copied on the caller's stream: what they lie in is written again."""
        pipeline, device, phases = self.pipeline, self.device, self.pipeline.phases
        assert phases is not None
        accesses, program = pipeline.memory.accesses, self.loop.program
        cells = self.eager.get(iteration)
        phase = None if cells is not None else phases.phase(iteration)
        if cells is None:
            assert phase is not None
            cells = phase.cells
        if not self.ended:
            for task in pipeline.makers:
                device.wait(phases.event(task, iteration), self.main)
        device.set_stream(self.main)
        outputs: Outputs = {}
        for name, number in accesses.outputs:
            tensor, storage = cells[number], accesses.storages[number]
            assert tensor is not None, f"bug in streamgraph: output '{name}' was not made, or was released"
            if not storage.host:
                outputs[name] = pipeline.captures.clone(tensor)
            elif storage.producer is not None and program.tasks[storage.producer].host:
                outputs[name] = tensor
            else:
                fresh = self.fresh.pop(name, None)
                outputs[name] = (empty_like(tensor, tensor.is_pinned()) if fresh is None else fresh).copy_(tensor)
        if phase is not None:
            for number, name in pipeline.changed:
                source = cells[number]
                assert source is not None
                pipeline.captures.copy(self.items[iteration][name], source)
        if not self.ended:
            # The next iteration in this memory follows the copies.
            event = pipeline.event(f"taken {iteration % pipeline.period}")
            device.record(event, self.main)
            self.behind.setdefault(iteration % pipeline.period, []).append(event)
        self.taken = iteration + 1
        return outputs

    @contextmanager
    def _issuing(self) -> Iterator[None]:
        """Issue work; the caller's stream and device are current again afterwards, and after an error every lane is at rest."""
        with on_stream(self.device, self.main):
            try:
                with task_mode():
                    yield
            except BaseException as error:
                self.end()
                raised = in_item(error, max(self.items, default=0))
                if raised is error:
                    raise
                raise raised from raised.__cause__

    def end(self) -> None:
        """Join every stream to the caller's, let the host wait for it, and drop what is left inside."""
        if self.ended:
            return
        self.ended = True
        phases = self.pipeline.phases
        if phases is None:
            return
        phases.join(self.main)
        last = self.pipeline.event(MAIN)
        self.device.record(last, self.main)
        last.synchronize()
        self.eager = {number: cells for number, cells in self.eager.items() if number >= self.taken}
        self.items = {number: item for number, item in self.items.items() if number >= self.taken}


