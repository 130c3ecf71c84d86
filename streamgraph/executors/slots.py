"""Slots: the memory of a loop. Each iteration gets a list of tensors by storage, as a single run has, with its rings turned on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, lcm

import torch

from streamgraph.executors.memory import Cells, Memory
from streamgraph.iterations import groups
from streamgraph.loop import Back, Loop


@dataclass(frozen=True, slots=True)
class _Seat:
    """A ring storage of the single program: its ring, where its first occupant sits, and how far an iteration turns the ring."""

    ring: int
    place: int
    step: int


class Slots:
    """Cells for iteration after iteration. Buffers are the executor's own, so that state goes on from call to loop and back; rings carry
    nothing over, and have the memory that a single run gives them, with further slots where the loop has more.
    """

    def __init__(self, loop: Loop, memory: Memory) -> None:
        self.loop, self.memory = loop, memory
        self.number: dict[str, int] = {}
        accesses = memory.accesses
        for index, storage in enumerate(accesses.storages):
            self.number[storage.label] = index
        for name in loop.per_item:
            # Written out, an item's tensor is version 1 of its name, where a single run has an input and counts from there.
            versions = sorted(s.version for s in accesses.storages if s.tensor == name)
            written_out = {f"{name}.{version + 1}": self.number[f"{name}.{version}" if version else name] for version in versions}
            self.number.update(written_out)
        self.seats: dict[int, _Seat] = {}
        self.rings: list[tuple[tuple[int, ...], int]] = []  # per ring: the storages that are its slots in a single run; slots in the loop
        at = {storage.members[0]: index for index, storage in enumerate(accesses.storages) if storage.producer is None}
        for family in loop.program.families:
            if family.slots is None:
                continue
            for group in groups(family):
                for place, member in enumerate(group):
                    if member in at:
                        self.seats[at[member]] = _Seat(len(self.rings), place, len(group))
                self.rings.append((tuple(at[member] for member in group[: family.slots] if member in at), family.slots))
        self._buffers: list[list[torch.Tensor]] = []
        self._held: dict[int, Cells] = {}
        # What an iteration must have dropped before its cells may go: its values, and the device tensors that its item brought.
        inputs = loop.program.tensor_named
        self._inside = tuple(
            number
            for number, storage in enumerate(accesses.storages)
            if number not in accesses.output_storages
            and (storage.producer is not None or (storage.tensor in loop.per_item and inputs[storage.tensor].device != "cpu"))
        )

    def prepare(self) -> None:
        """Make buffers and rings, on the current stream, if they are not there."""
        self.memory.prepare()
        self._buffers = [self.memory.ring(slots, count) for slots, count in self.rings]

    def begin(self, iteration: int, tensors: Mapping[str, torch.Tensor]) -> Cells:
        """The cells of an iteration, with its inputs in them."""
        cells = self._held[iteration] = self.cells(iteration, tensors)
        return cells

    def cells(self, iteration: int, tensors: Mapping[str, torch.Tensor]) -> Cells:
        """The same, for somebody else to hold."""
        cells = self.memory.begin(tensors)
        for storage, seat in self.seats.items():
            ring = self._buffers[seat.ring]
            cells[storage] = ring[(seat.place + iteration * seat.step) % len(ring)]
        return cells

    def period(self) -> int:
        """After how many iterations all rings stand as they stood."""
        counts = (self.rings[seat.ring][1] // gcd(self.rings[seat.ring][1], seat.step) for seat in self.seats.values())
        return lcm(*counts)

    def of(self, iteration: int) -> Cells:
        """The cells of an iteration that has begun."""
        return self._held[iteration]

    def drop(self, values: tuple[Back, ...], iteration: int) -> None:
        """Drop what a step of `iteration` releases."""
        for value in values:
            cells = self._held.get(iteration - value.by)
            if cells is not None:
                cells[self.number[value.name]] = None

    def take(self, iteration: int) -> dict[str, torch.Tensor]:
        """The outputs of an iteration, which are the caller's from here on."""
        cells = self._held[iteration]
        outputs = self.memory.outputs(cells)
        for number in self.memory.accesses.output_storages:
            cells[number] = None
        return outputs

    def forget(self, iteration: int) -> None:
        """Let go of iterations up to this one, whose host tensors nobody reads any more, if their values have been dropped."""
        for old in [number for number in self._held if number <= iteration]:
            if all(self._held[old][number] is None for number in self._inside):
                del self._held[old]

    def clear(self, untaken: int) -> None:
        """Let go of everything but the outputs of iterations from `untaken` on. Nothing may be running."""
        self._held = {number: cells for number, cells in self._held.items() if number >= untaken}

    def close(self) -> None:
        """Let go of the rings, whose memory is the executor's."""
        self._buffers = []

    def left(self) -> int:
        """How many iterations are held."""
        return len(self._held)
