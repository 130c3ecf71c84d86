"""Sequential: the reference. One task after another in declaration order, on the stream that is current; the steps are not read.

It keeps the as-if rule by construction, and with it the meaning of rings: every member has memory of its own, as if no slots were shared,
from its first use to its last. What a schedule computes must be what this computes, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from streamgraph.devices import first_device, of_tasks
from streamgraph.executors import Finished
from streamgraph.executors.device import Device, Stream, same
from streamgraph.executors.launch import failure, launch
from streamgraph.executors.memory import Cells, Memory
from streamgraph.executors.modes import task_mode
from streamgraph.model import HOST, MAIN, Kind, Program
from streamgraph.operators import Operator
from streamgraph.storages import trace


def without_rings(program: Program) -> Program:
    """The same program with a storage for every ring member."""
    families = tuple(replace(family, slots=None) if family.slots is not None else family for family in program.families)
    return replace(program, families=families)


class SequentialExecutor:
    """Runs a program's tasks in declaration order. `operators` must be those of `without_rings(program)`."""

    def __init__(self, program: Program, operators: tuple[Operator, ...], device: Device, seed: int = 0) -> None:
        self.program, self.device, self.operators = program, device, operators
        members = frozenset(member for family in program.families if family.slots is not None for member in family.members)
        self.accesses = trace(without_rings(program))[0]
        self.memory = Memory(program, self.accesses, device.location, seed, lazy=members)
        self._last_use, self._member_of = self._lifetimes(members)
        self._touches_host = tuple(
            not task.host and any(self.accesses.storages[access.storage].host for access in found)
            for task, found in zip(program.tasks, self.accesses.of_task, strict=True)
        )
        self._first = True
        self._device_of = of_tasks(program)
        first = first_device(program)
        self._devices = {first: device} | {name: device.sibling(name) for name in program.devices if name != first}
        self._streams: dict[str, Stream] = {}  # the caller's, by device
        self._latest = first  # the device of the latest task; its stream follows those of all tasks before

    def _lifetimes(self, members: frozenset[str]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Per task: the device storages to drop after it, and the ring members to make before it."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for task, found in enumerate(self.accesses.of_task):
            for access in found:
                storage = self.accesses.storages[access.storage]
                is_member = storage.tensor in members and storage.kind is not Kind.VALUE
                if is_member:
                    first.setdefault(access.storage, task)
                if (is_member or storage.kind is Kind.VALUE) and access.storage not in self.accesses.output_storages:
                    last[access.storage] = task
        after: dict[int, list[int]] = {}
        before: dict[int, list[int]] = {}
        for storage_number, task in last.items():
            # On one stream a device value may go once its last use is issued; host memory stays until the run is over.
            if not self.accesses.storages[storage_number].host:
                after.setdefault(task, []).append(storage_number)
        for storage_number, task in first.items():
            before.setdefault(task, []).append(storage_number)
        return after, before

    def run(self, inputs: Mapping[str, torch.Tensor]) -> Finished:
        """Run every task. See `Executor.run`."""
        first, index, last = next(iter(self._devices)), self.device.current_device(), self._streams
        self._streams = {name: device.current_stream() for name, device in self._devices.items()}
        self._latest = first
        if last and not same(last[first], self._streams[first]):
            self._follow(self._streams[first], last[first])  # buffers are the runner's own
        if len(self._devices) > 1:
            self.device.set_stream(self._streams[first])
        try:
            with task_mode():
                finished = self._run(inputs)
            self._go_to(first)
            return finished
        finally:
            if len(self._devices) > 1:
                self.device.set_stream(self._streams[first])
                self.device.set_device(index)

    def _go_to(self, name: str) -> None:
        """Make a device current; its stream follows that of the device before."""
        if name != self._latest:
            self._follow(self._streams[name], self._streams[self._latest])
            self.device.set_stream(self._streams[name])
            self._latest = name

    def _follow(self, later: Stream, earlier: Stream) -> None:
        event = self.device.new_event()
        self.device.record(event, earlier)
        self.device.wait(event, later)

    def _run(self, inputs: Mapping[str, torch.Tensor]) -> Finished:
        cells = self.memory.begin(inputs)
        busy = False  # device work that touches host memory may be under way
        for index, operator in enumerate(self.operators):
            is_host = operator.call.host
            if is_host and busy:
                self._wait()
                busy = False
            for number in self._member_of.get(index, ()):
                cells[number] = self.memory.make(number)
            lane = HOST if is_host else MAIN
            if not is_host:
                self._go_to(self._device_of[index])
            try:
                launch(operator, cells, self.device.location, lane, check=self._first)
            except BaseException as error:
                self._wait()
                raised = failure(error, operator, cells, lane)
                cells.clear()
                if raised is error:
                    raise
                raise raised from error
            busy |= self._touches_host[index]
            self._drop(cells, index)
        if busy:
            self._wait()
        self._first = False
        return Finished(self.memory.outputs(cells), _nothing)

    def _drop(self, cells: Cells, index: int) -> None:
        for number in self._last_use.get(index, ()):
            cells[number] = None

    def _wait(self) -> None:
        """Block the host until the current stream has done what it holds: as if every task had ended before the next began."""
        event = self.device.new_event()
        self.device.record(event, self._streams[self._latest])
        event.synchronize()

    def runs_on(self, thread: int) -> bool:
        """Never: tasks run on the caller's thread. See `Executor.runs_on`."""
        return False

    def close(self) -> None:
        """Drop the buffers."""
        if self._streams and self.memory.has_host_buffers:
            self._wait()
        self.memory.close()


def _nothing() -> None:
    """Host inputs are free at once: the run has waited for its work on host memory."""
