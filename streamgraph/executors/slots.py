"""Slots: the memory of a loop. Each iteration gets a list of tensors by storage, as a single run has, with its rings turned on.

The lists are made once and take turns: iteration i has list `i % length`, so what is issued for it can hold the list itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, lcm

import torch

from streamgraph.executors.memory import Cells, Memory
from streamgraph.iterations import groups
from streamgraph.loop import Back, Loop
from streamgraph.model import Kind


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
        # A thread may be `inflight` iterations ahead of another, which still looks `reach` iterations back.
        self.length = ring_length(loop.reach + loop.inflight + 1, self.period())
        self._cells: tuple[Cells, ...] = tuple([None] * len(accesses.storages) for _ in range(self.length))
        inputs = loop.program.tensor_named
        self.brought = tuple(
            (number, storage.tensor)
            for number, storage in enumerate(accesses.storages)
            if storage.kind is Kind.INPUT and storage.tensor in loop.per_item
        )
        self.on_host = tuple(number for number, name in self.brought if inputs[name].device == "cpu")
        self._forgotten = 0  # iterations whose host tensors have been let go

    def prepare(self) -> None:
        """Make buffers and rings, on the current stream, if they are not there."""
        self.memory.prepare()
        self._buffers = [self.memory.ring(slots, count) for slots, count in self.rings]

    def enter(self, bound: Mapping[str, torch.Tensor]) -> None:
        """Begin a loop with these inputs bound for good. `prepare` has been called."""
        given = dict.fromkeys(name for _, name in self.brought) | dict(bound)
        for cells in self._cells:
            cells[:] = self.memory.begin(given)  # type: ignore[arg-type]
        self._forgotten = 0

    def begin(self, iteration: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """The cells of an iteration get its inputs, and its places in the rings."""
        self.bring(iteration, tensors)
        cells = self.of(iteration)
        for storage in self.seats:
            cells[storage] = self.buffer(storage, iteration)

    def bring(self, iteration: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Only its inputs, for functions that have the rings bound to them."""
        cells = self.of(iteration)
        for number, name in self.brought:
            cells[number] = tensors[name]

    def buffer(self, storage: int, iteration: int) -> torch.Tensor:
        """The memory that a buffer, or a member of a ring, has in an iteration."""
        seat = self.seats.get(storage)
        if seat is None:
            return self.memory.buffer(storage)
        ring = self._buffers[seat.ring]
        return ring[(seat.place + iteration * seat.step) % len(ring)]

    def cells(self, iteration: int, tensors: Mapping[str, torch.Tensor]) -> Cells:
        """Cells of an iteration for somebody else to hold."""
        cells = self.memory.begin(tensors)
        for storage in self.seats:
            cells[storage] = self.buffer(storage, iteration)
        return cells

    def period(self) -> int:
        """After how many iterations all rings stand as they stood."""
        counts = (self.rings[seat.ring][1] // gcd(self.rings[seat.ring][1], seat.step) for seat in self.seats.values())
        return lcm(*counts)

    def of(self, iteration: int) -> Cells:
        """The cells of an iteration, until the one `length` later begins."""
        return self._cells[iteration % self.length]

    def drop(self, values: tuple[Back, ...], iteration: int) -> None:
        """Drop what a step of `iteration` releases."""
        for value in values:
            self.of(iteration - value.by)[self.number[value.name]] = None

    def take(self, iteration: int) -> dict[str, torch.Tensor]:
        """The outputs of an iteration, which are the caller's from here on."""
        cells = self.of(iteration)
        outputs = self.memory.outputs(cells)
        for number in self.memory.accesses.output_storages:
            cells[number] = None
        return outputs

    def forget(self, iteration: int) -> None:
        """Let go of the host tensors of items up to this one, which nobody reads any more."""
        for old in range(self._forgotten, iteration + 1):
            for number in self.on_host:
                self.of(old)[number] = None
        self._forgotten = max(self._forgotten, iteration + 1)

    def clear(self, untaken: range) -> None:
        """Let go of everything but the outputs of these iterations. Nothing may be running."""
        kept = {iteration % self.length for iteration in untaken}
        for place, cells in enumerate(self._cells):
            for number in range(len(cells)):
                if place not in kept or number not in self.memory.accesses.output_storages:
                    cells[number] = None

    def held(self) -> tuple[object, ...]:
        """The tensors of buffers and rings, to see whether they are still the same ones."""
        return (*(tensor for _, tensor in self.memory.buffers()), *(tensor for ring in self._buffers for tensor in ring))

    def close(self) -> None:
        """Let go of everything. The rings' memory is the executor's."""
        self._buffers = []
        self.clear(range(0))


def ring_length(least: int, turns: int) -> int:
    """How long a ring is, at least `least`, beside others that stand as they stood after `turns` steps: so that all of them do soonest."""
    return min(range(least, 2 * least), key=lambda length: (lcm(length, turns), length))
