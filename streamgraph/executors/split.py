"""Split: a schedule with host tasks as CUDA graphs and, between them, what no graph can hold.

    call 1      an eager run, checked, on the streams that will be captured
    call 2      parts are captured one by one where the run comes to them, and launched at once; host tasks run in between
    call 3 ...  graphs are launched, host tasks run

`parts` says what becomes a graph, `phases` keeps them. Calls follow each other, so there is one phase: entry and exit order its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from streamgraph.binding import written_in_place
from streamgraph.errors import Problem, TaskError
from streamgraph.executors import Finished
from streamgraph.executors.device import Device, Stream
from streamgraph.executors.graph import GraphExecutor
from streamgraph.executors.memory import Cells
from streamgraph.executors.modes import task_mode
from streamgraph.executors.parts import Cut, cut, issues_of, moving
from streamgraph.executors.phases import Phase, Phases
from streamgraph.model import HOST, MAIN, Kind
from streamgraph.operators import Operator
from streamgraph.schedule import RecordStream, Schedule


class SplitExecutor(GraphExecutor):
    """Runs a schedule with host tasks as a row of CUDA graphs. See `GraphExecutor`."""

    def __init__(
        self, schedule: Schedule, operators: Sequence[Operator], device: Device, seed: int, bound: Mapping[str, torch.Tensor]
    ) -> None:
        super().__init__(schedule, operators, device, seed, bound)
        program, accesses = schedule.program, schedule.accesses
        self.cut: Cut = cut(issues_of(schedule), moving(program, accesses, bound), 1)
        self._phases: Phases | None = None
        self._entry = device.new_event()
        storages = enumerate(accesses.storages)
        self._inputs = tuple((n, storage.tensor) for n, storage in storages if storage.kind is Kind.INPUT)
        # Host tensors of a call are used where they lie.
        self._each_call = tuple(t.name for t in program.inputs if t.name not in bound and t.device != "cpu")
        written = written_in_place(program, accesses)
        self._back = tuple(name for name in self._each_call if name in written)
        # Outputs that are made anew each time, and that no part reads, are handed over as they are.
        apart = {m.issue.task for piece in self.cut.pieces if piece.kind != "part" for m in piece.members}
        in_parts = {a.storage for t, of in zip(program.tasks, accesses.of_task, strict=True) if t.name not in apart for a in of}
        self._handed = frozenset(
            number
            for number in accesses.output_storages
            if (maker := accesses.storages[number].producer) is not None and program.tasks[maker].name in apart and number not in in_parts
        )

    @property
    def captured(self) -> bool:
        """Whether the next call launches graphs, and captures none."""
        return self._phases is not None and self._phases.whole

    def _ready(self) -> bool:
        return False  # no short cut: a call has host tasks to run anyway

    def _capture(self, main: Stream, inputs: Mapping[str, torch.Tensor]) -> None:
        """Make ready to capture while the next run goes on."""
        if self._phases is not None:
            return
        device, eager = self.device, self._eager
        assert self._stream is not None
        self._static = {name: self._static_like(name, inputs[name]) for name in self._each_call}
        # What the eager run left over goes now, and what its device tasks read on the host is free from here on.
        eager.drop_left_over()
        device.record(self._entry, main)
        self._entry.synchronize()
        held = {eager.number[step.storage] for step in self.schedule.steps if isinstance(step, RecordStream)}
        lanes = {**eager.streams, MAIN: self._stream, HOST: self._stream}
        schedule = self.schedule
        self._phases = Phases(
            self.cut, self._operators, device, self._captures, schedule.program, schedule.accesses, eager.number, lanes, held
        )

    def _replay(self, main: Stream, inputs: Mapping[str, torch.Tensor]) -> Finished:
        self._check(inputs)
        assert self._phases is not None
        device, phases = self.device, self._phases
        try:
            with task_mode():
                for name in self._each_call:
                    self._captures.copy(self._static[name], inputs[name])
                device.record(self._entry, main)
                phases.wait_first(1)
                phase = phases.issue(1, [self._entry], self._cells, lambda phase: self._bring(phase, inputs))
                device.set_stream(main)
                for event in phase.ended:
                    device.wait(event, main)
                fresh = self._fresh(phase)
                phases.wait_last(1)
                outputs = self._take(phase, main, fresh)
                for name in self._back:
                    self._captures.copy(inputs[name], self._static[name])
        except BaseException as error:
            try:
                self._at_rest(main)
            except BaseException as second:
                # A device that reports errors for good: nothing is known to be idle.
                self._eager.broken = error if isinstance(error, TaskError) else TaskError(Problem("SG601", str(error)))
                raise error from second
            raise
        return Finished(outputs, self._inputs_free(main))

    def _cells(self) -> Cells:
        return self.memory.begin({name: self._static.get(name, self._bound.get(name)) for _, name in self._inputs})  # type: ignore[misc]

    def _bring(self, phase: Phase, inputs: Mapping[str, torch.Tensor]) -> None:
        for number, name in self._inputs:
            phase.cells[number] = self._static.get(name, inputs[name])

    def _fresh(self, phase: Phase) -> dict[str, torch.Tensor]:
        """Memory for the outputs in host memory that a part makes, got while the device is at work."""
        found: dict[str, torch.Tensor] = {}
        for name, number in self.schedule.accesses.outputs:
            tensor = phase.cells[number]
            if name in self._host_outputs and number not in self._handed and tensor is not None:
                found[name] = self._result_memory.like(name, tensor)
        return found

    def _take(self, phase: Phase, main: Stream, fresh: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The outputs, which are the caller's: what the next run writes again is copied."""
        found: dict[str, torch.Tensor] = {}
        for name, number in self.schedule.accesses.outputs:
            tensor = phase.cells[number]
            assert tensor is not None, f"bug in streamgraph: output '{name}' was not made, or was released"
            if number in self._handed:
                found[name] = tensor
                if name not in self._host_outputs:
                    self.device.record_stream(tensor, main)
            else:
                found[name] = fresh[name].copy_(tensor) if name in fresh else self._captures.clone(tensor)
        for number in self._handed:
            phase.cells[number] = None
        return found

    def _at_rest(self, main: Stream) -> None:
        """After an error: the caller's stream follows all others, and the host follows it."""
        assert self._phases is not None
        self.device.set_stream(main)
        self._phases.join(main)
        self.device.record(self._entry, main)
        self._entry.synchronize()

    def _inputs_free(self, main: Stream) -> Callable[[], None]:
        """Host tensors are read where they lie, until the run has ended."""
        device, on_host = self.device, bool(self._host)

        def wait() -> None:
            if on_host:
                tail = device.new_event()
                device.record(tail, main)
                tail.synchronize()

        return wait

    def close(self) -> None:
        """See `GraphExecutor.close`."""
        if self._phases is not None:
            if self._last is not None and self._eager.broken is None:
                self._at_rest(self._last)
            self._phases.close()
            self._phases = None
        super().close()
