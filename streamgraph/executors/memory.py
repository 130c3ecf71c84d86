"""Memory of an executor: buffers, which stay from run to run, and the list of tensors by storage that each run starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import torch

from streamgraph.binding import initial
from streamgraph.model import Kind, Program
from streamgraph.storages import Accesses

Cells: TypeAlias = list["torch.Tensor | None"]
"""The tensors of a run by storage number; None before a value is made and after it is dropped, and for resources."""


class Memory:
    """The storages of one program on one device. `lazy` names buffers that `begin` leaves out (`make` makes them)."""

    def __init__(
        self, program: Program, accesses: Accesses, location: torch.device, seed: int, lazy: frozenset[str] = frozenset()
    ) -> None:
        self.program, self.accesses, self.location, self.seed = program, accesses, location, seed
        self._values = tuple(
            number
            for number, storage in enumerate(accesses.storages)
            if storage.kind is Kind.VALUE and number not in accesses.output_storages
        )
        self._inputs = tuple((n, storage.tensor) for n, storage in enumerate(accesses.storages) if storage.kind is Kind.INPUT)
        self._lasting = tuple(
            number for number, storage in enumerate(accesses.storages) if storage.kind is Kind.BUFFER and storage.tensor not in lazy
        )
        self._buffers: dict[int, torch.Tensor] = {}
        self._further: dict[int, list[torch.Tensor]] = {}  # by the storage of a ring's first slot

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> Cells:
        """The cells of a new run. The first time it makes the buffers, whose first bytes are written on the current stream."""
        cells: Cells = [None] * len(self.accesses.storages)
        self.prepare()
        for number, buffer in self._buffers.items():
            cells[number] = buffer
        for number, name in self._inputs:
            cells[number] = inputs[name]
        return cells

    def prepare(self) -> None:
        """Make the buffers, if they are not there; their first bytes are written on the current stream."""
        if len(self._buffers) < len(self._lasting):
            self._buffers = {number: self.make(number) for number in self._lasting}

    def make(self, number: int) -> torch.Tensor:
        """New memory for a buffer, filled as its declaration says."""
        return initial(self.program.tensor_named[self.accesses.storages[number].tensor], self.location, self.seed)

    def buffer(self, number: int) -> torch.Tensor:
        """A buffer, which the first run has made."""
        return self._buffers[number]

    def ring(self, slots: tuple[int, ...], count: int) -> list[torch.Tensor]:
        """The memory of a ring that has `count` slots in a loop: that of its `slots` in a single run, and what a loop needs beyond them.

        `prepare` has been called. What is made is filled on the current stream, and stays for later loops.
        """
        further = self._further.get(slots[0], [])
        if len(slots) + len(further) < count:
            further = self._further[slots[0]] = [*further, *(self.make(slots[0]) for _ in range(count - len(slots) - len(further)))]
        return [*(self._buffers[number] for number in slots), *further][:count]

    def buffers(self) -> Iterable[tuple[int, torch.Tensor]]:
        """All buffers that have been made, by storage number."""
        return self._buffers.items()

    def outputs(self, cells: Cells) -> dict[str, torch.Tensor]:
        """The results of a run, by the key that the caller reads."""
        results: dict[str, torch.Tensor] = {}
        for name, number in self.accesses.outputs:
            tensor = cells[number]
            assert tensor is not None, f"bug in streamgraph: output '{name}' was not made, or was released"
            results[name] = tensor
        return results

    def left_over(self, cells: Cells) -> dict[int, torch.Tensor]:
        """The values that the run has not released, by storage number; outputs are the caller's and not among them."""
        return {number: tensor for number in self._values if (tensor := cells[number]) is not None}

    @property
    def has_host_buffers(self) -> bool:
        """Whether some buffer lies in host memory."""
        return any(self.accesses.storages[number].host for number in self._buffers)

    def close(self) -> None:
        """Drop the buffers."""
        self._buffers, self._further = {}, {}
