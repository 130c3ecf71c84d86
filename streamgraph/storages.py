"""Names become storages: a Program becomes, for each task, which bytes of which storage it reads and writes.

A name is not memory. A value written twice is two storages; two views of a buffer are one; members of a ring share slots. This module
settles that once, from the meaning in docs/design.md section 1. It finds no hazards: the planner and the verifier each do that
for themselves from these accesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from streamgraph.errors import Location, Problem
from streamgraph.model import Box, Kind, Program, Task, Tensor
from streamgraph.seats import seats


class Mode(Enum):
    """READ leaves the bytes alone; WRITE overwrites all of them without looking; UPDATE reads and changes them in place."""

    READ = "read"
    WRITE = "write"
    UPDATE = "update"


class Storage(NamedTuple):
    """One allocation. `version` counts the values of a name from 1; memory that exists before the tasks has version 0.

    `producer` is the task whose launch allocates it (a value), or None. `members` are the tensors that take turns in it: one name,
    or every occupant of a ring slot in order. `host` says that it is host memory when the run's device is a GPU.
    """

    label: str
    tensor: str
    version: int
    kind: Kind
    host: bool
    producer: int | None
    members: tuple[str, ...]

    def __str__(self) -> str:
        return self.label


class Access(NamedTuple):
    """`tensor`, as a task names it, is `box` of `storage` (None: all of it). `turn` is the occupant's number in a ring slot, else 0.

    Accesses to one storage happen in the order (turn, declaration): a ring's later occupants come after all of its earlier ones.
    """

    storage: int
    box: Box | None
    mode: Mode
    tensor: str
    turn: int = 0


@dataclass(frozen=True)
class Accesses:
    """Storages of a program and what each task does to them. `of_task` is in declaration order; `outputs` maps result keys to storages."""

    storages: tuple[Storage, ...]
    of_task: tuple[tuple[Access, ...], ...]
    outputs: tuple[tuple[str, int], ...]

    @cached_property
    def output_storages(self) -> frozenset[int]:
        """The storages that are handed to the caller."""
        return frozenset(storage for _, storage in self.outputs)


def meets(first: Box | None, second: Box | None) -> bool:
    """Whether two boxes of one storage share an element: they must overlap in every dimension."""
    if first is None or second is None:
        return _has_elements(first) and _has_elements(second)
    for (a0, a1), (b0, b1) in zip(first, second, strict=True):  # noqa: SIM110 (`all` takes twice as long)
        if a0 >= b1 or b0 >= a1 or a0 >= a1 or b0 >= b1:
            return False
    return True


def contains(outer: Box | None, inner: Box | None) -> bool:
    """Whether every element of `inner` is in `outer`."""
    if outer is None:
        return True
    if inner is None:
        return False
    for (a0, a1), (b0, b1) in zip(outer, inner, strict=True):  # noqa: SIM110 (likewise)
        if b0 < a0 or a1 < b1:
            return False
    return True


def remainder(box: Box, taken: Box) -> Iterator[Box]:
    """`box` without `taken`, as boxes that do not overlap each other: at most two per dimension."""
    if not meets(box, taken):
        yield box
        return
    if contains(taken, box):
        return
    inside = list(box)
    for dimension, ((start, stop), (cut_start, cut_stop)) in enumerate(zip(box, taken, strict=True)):
        if start < cut_start:
            yield (*inside[:dimension], (start, cut_start), *inside[dimension + 1 :])
        if cut_stop < stop:
            yield (*inside[:dimension], (cut_stop, stop), *inside[dimension + 1 :])
        inside[dimension] = (max(start, cut_start), min(stop, cut_stop))


def _has_elements(box: Box | None) -> bool:
    return box is None or all(start < stop for start, stop in box)


class _Part:
    """What a name stands for: a box of what its base stands for now, which may have to be written first (a ring's)."""

    __slots__ = ("base", "box", "must_write", "read", "turn")

    def __init__(self, base: str, box: Box | None, must_write: bool, turn: int) -> None:
        self.base, self.box, self.must_write, self.turn = base, box, must_write, turn
        self.read: Access | None = None  # the newest: tasks that read the same share it


class _Tracer:
    """Walks the tasks once, keeping the storage that each name stands for now."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.known = program.tensor_named
        self.storages: list[Storage] = []
        self.problems: list[Problem] = []
        self.current: dict[str, int] = {}  # base name -> storage of its newest version
        self.version: dict[str, int] = {}
        self.turn: dict[str, int] = {}
        self.written: dict[str, dict[Box | None, None]] = {}  # ring members: boxes known to have been written so far
        self.parts: dict[str, _Part] = {}  # by name
        self.must_write = {
            member for family in program.families if family.slots is not None for member in family.members
        }
        by_slot: dict[tuple[str, int], int] = {}
        ring = seats(program.families)
        for tensor in program.tensors:
            if tensor.kind is Kind.VALUE or tensor.kind is Kind.VIEW:
                continue
            seat = ring.get(tensor.name)
            if seat is None:
                self.current[tensor.name] = self._add(tensor, tensor.name, 0, None, (tensor.name,))
                continue
            self.turn[tensor.name] = seat.turn
            if (seat.family, seat.slot) not in by_slot:
                label = f"{seat.family}[slot {seat.slot}]"
                by_slot[seat.family, seat.slot] = self._add(tensor, label, 0, None, seat.group)
            self.current[tensor.name] = by_slot[seat.family, seat.slot]

    def _add(self, tensor: Tensor, label: str, version: int, producer: int | None, members: tuple[str, ...]) -> int:
        kind = Kind.VALUE if version else tensor.kind
        self.storages.append(Storage(label, tensor.name, version, kind, tensor.device == "cpu", producer, members))
        return len(self.storages) - 1

    def task(self, index: int, task: Task) -> tuple[Access, ...]:
        """The accesses of one task: first what it reads and updates of the versions before it, then what it writes."""
        found: list[Access] = []
        for mode, entries in ((Mode.UPDATE, task.updates), (Mode.READ, task.reads)):
            for entry in entries:
                for name in entry.tensors:
                    self._existing(task, name, mode, entry.location, found)
        for entry in task.writes:
            for name in entry.tensors:
                tensor = self.known.get(name)
                if tensor is None:
                    continue
                if tensor.kind is Kind.VALUE or tensor.kind is Kind.INPUT:
                    version = self.version[name] = self.version.get(name, 0) + 1
                    self.current[name] = self._add(tensor, f"{name}.{version}", version, index, self._alone(name))
                self._existing(task, name, Mode.WRITE, entry.location, found)
        return tuple(found)

    def _alone(self, name: str) -> tuple[str, ...]:
        """The members of a value's storage: one tuple for all versions of a name."""
        newest = self.current.get(name)
        return (name,) if newest is None else self.storages[newest].members

    def _existing(self, task: Task, name: str, mode: Mode, place: Location | None, found: list[Access]) -> None:
        part = self.parts.get(name) or self._part(name)
        if part is None:
            return
        box = part.box
        storage = self.current.get(part.base)
        if storage is None:
            self._too_early(task, name, mode, place)
            return
        if part.must_write:
            pieces = self.written.setdefault(part.base, {})
            if mode is not Mode.WRITE and not self._covered(part.base, box, pieces):
                self._too_early(task, name, mode, place)
            pieces[box] = None  # now it is written, or at least reported
        if mode is not Mode.READ:
            found.append(Access(storage, box, mode, name, part.turn))
            return
        if part.read is None or part.read[0] != storage:
            part.read = Access(storage, box, mode, name, part.turn)
        found.append(part.read)

    def _part(self, name: str) -> _Part | None:
        tensor = self.known.get(name)
        if tensor is None:
            return None
        base = tensor.base if tensor.base is not None else name
        part = self.parts[name] = _Part(base, self._box(tensor), base in self.must_write, self.turn.get(base, 0))
        return part

    def _box(self, tensor: Tensor) -> Box | None:
        if tensor.kind is Kind.VIEW:
            if all(isinstance(part, tuple) for part in tensor.index):
                return tensor.index  # type: ignore[return-value]  # as it stands: there may be millions of them
            return tuple((part, part + 1) if isinstance(part, int) else part for part in tensor.index)
        if tensor.type is not None and tensor.type.elements == 0:
            return tuple((0, size) for size in tensor.type.shape)  # holds no element, so it meets nothing
        return None

    def _covered(self, base: str, box: Box | None, written: dict[Box | None, None]) -> bool:
        if None in written or box in written or any(contains(piece, box) for piece in written):
            return True
        kind = self.program.tensor_named[base].type
        left = [box if box is not None else tuple((0, size) for size in kind.shape)] if kind is not None else []
        for piece in written:
            if piece is not None:
                left = [rest for part in left for rest in remainder(part, piece)]
        return kind is not None and not any(_has_elements(part) for part in left)

    def _too_early(self, task: Task, name: str, mode: Mode, place: Location | None) -> None:
        verb = {Mode.READ: "reads", Mode.UPDATE: "updates", Mode.WRITE: "writes a part of"}[mode]
        base = self.program.tensor_named[name].base or name
        later = self._first_writer.get(base)
        remedy = f"'{later}' writes it, but only later: move it up" if later else f"write '{base}' first, or declare it as an input"
        if later and self._alphabetical:
            remedy += ". The tasks stand in alphabetical order: were the keys sorted? The order of the file is the order of the program"
        self.problems.append(
            Problem("SG301", f"task '{task.name}' {verb} '{name}', which nothing before it writes", place or task.location, remedy)
        )

    @cached_property
    def _first_writer(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for task in self.program.tasks:
            for entry in task.writes:
                for name in entry.tensors:
                    found.setdefault(self._base(name) or name, task.name)
        return found

    @cached_property
    def _alphabetical(self) -> bool:
        names = [task.name for task in self.program.tasks if not task.name.startswith("output:")]
        return len(names) > 2 and names == sorted(names)

    def _base(self, name: str) -> str | None:
        tensor = self.program.tensor_named.get(name)
        return tensor.base if tensor is not None else None


def trace(program: Program) -> tuple[Accesses, tuple[Problem, ...]]:
    """The storages and accesses of a program, and every access that comes before there is anything to access (SG301).

    The program keeps the answer: it is frozen, and the checks, the planner, the verifier and `explain` all begin with this.
    """
    known: tuple[Accesses, tuple[Problem, ...]] | None = program.__dict__.get(_TRACED)
    if known is None:
        tracer = _Tracer(program)
        of_task = tuple(tracer.task(index, task) for index, task in enumerate(program.tasks))
        outputs = tuple((o.name, tracer.current[o.tensor]) for o in program.outputs if o.tensor in tracer.current)
        known = program.__dict__[_TRACED] = Accesses(tuple(tracer.storages), of_task, outputs), tuple(tracer.problems)
    return known


_TRACED = "_traced"  # beside the program's own cached properties
