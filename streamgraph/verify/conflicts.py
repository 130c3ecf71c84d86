"""Conflicts: the accesses of a program become the pairs of tasks that must be ordered and are not.

Two accesses to one storage conflict if they share an element and are not both reads; the earlier one, in the order (turn, declaration),
must happen before the later. Only neighbours are looked at: a later write that overwrites all that an earlier access touched stands for
it from there on, since whatever conflicts with the earlier one conflicts with the later one too, and order is transitive. So every
conflicting pair is ordered iff all neighbours are, at the cost of O(accesses) for accesses to whole storages.

Memory that outlives a run (inputs, buffers, resources, ring slots) is followed into the second run where a host task uses it. Tasks on
device lanes need no such look: each follows its run's entry, which follows the exit and so all of the run before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from streamgraph.model import HOST, Box
from streamgraph.storages import Access, Accesses, Mode, contains, meets
from streamgraph.verify.clocks import RUNS, Clocks

FEW = 8  # boxes that are looked through one by one


def unordered_conflicts(accesses: Accesses, clocks: Clocks) -> Iterator[tuple[int, int, int]]:
    """Each (storage, earlier task, later task) of neighbours that conflict and are not ordered; second run tasks are `t + tasks`."""
    special = _special(accesses, clocks)
    last_write = [-1] * len(accesses.storages)
    reads_since: list[list[int]] = [[] for _ in accesses.storages]
    gathered: dict[int, list[tuple[int, int, Access]]] = {storage: [] for storage, runs in enumerate(special) if runs}
    lane, ordered = clocks.lane, clocks.ordered
    for task, touched in enumerate(accesses.of_task):
        if lane[task] < 0:
            continue
        for access in touched:
            storage = access.storage
            if special[storage]:
                gathered[storage].append((access.turn, task, access))
                continue
            writer = last_write[storage]
            if writer >= 0 and writer != task and not ordered(writer, task):
                yield storage, writer, task
            if access.mode is Mode.READ:
                reads_since[storage].append(task)
                continue
            for reader in reads_since[storage]:
                if reader != task and not ordered(reader, task):
                    yield storage, reader, task
            last_write[storage] = task
            reads_since[storage] = []
    for storage, found in gathered.items():
        found.sort(key=lambda entry: entry[:2])
        for earlier, later in _neighbours(found, special[storage], clocks):
            yield storage, earlier, later


def _special(accesses: Accesses, clocks: Clocks) -> list[int]:
    """Per storage: 0 if all accesses are to the whole of it, in declaration order, in one run; else the number of runs to look at."""
    special = [0] * len(accesses.storages)
    host = clocks.lanes.index(HOST)
    for task, touched in enumerate(accesses.of_task):
        on_host = clocks.lane[task] == host
        for access in touched:
            if on_host and accesses.storages[access.storage].version == 0:
                special[access.storage] = RUNS
            elif special[access.storage] == 0 and (access.turn or access.box is not None):
                special[access.storage] = 1
    return special


class _Cells:
    """What is still to be respected of the accesses to one storage: of each box the last write, and the last read of each lane."""

    def __init__(self, boxes: list[Box | None]) -> None:
        self.boxes = boxes
        self.written: dict[Box | None, int] = {}
        self.read: dict[Box | None, dict[int, int]] = {}

    @cached_property
    def touching(self) -> dict[Box | None, list[Box | None]]:
        return _touching(self.boxes)

    def near(self, cells: Mapping[Box | None, object], box: Box | None) -> list[Box | None]:
        """The boxes of these cells that share an element with the box, at the cost of the smaller side."""
        if len(cells) <= FEW or len(cells) < len(self.touching[box]):
            return [other for other in cells if meets(other, box)]
        return [other for other in self.touching[box] if other in cells]


def _neighbours(found: list[tuple[int, int, Access]], runs: int, clocks: Clocks) -> Iterator[tuple[int, int]]:
    cells = _Cells(list(dict.fromkeys(access.box for _, _, access in found)))
    for run in range(runs):
        for _, number, access in found:
            task, box, writes = number + run * clocks.tasks, access.box, access.mode is not Mode.READ
            old = cells.near(cells.written, box)
            before = [cells.written[other] for other in old]
            read = cells.near(cells.read, box) if writes else []
            for other in read:
                before += cells.read[other].values()
            # Inside the second run everything is ordered as in the first, where it was looked at.
            for earlier in before:
                if earlier != task and not (run and earlier >= clocks.tasks) and not clocks.ordered(earlier, task):
                    yield earlier, task
            if writes:
                for other in old:
                    if contains(box, other):
                        del cells.written[other]
                for other in read:
                    if contains(box, other):
                        del cells.read[other]
                cells.written[box] = task
                continue
            lane = clocks.lane[number]
            readers = cells.read.setdefault(box, {})
            known = readers.get(lane)
            # Of two reads on one lane, the one that the lane runs last stands for both.
            if known is None or clocks.position[known] < clocks.position[task]:
                readers[lane] = task


def _touching(boxes: list[Box | None]) -> dict[Box | None, list[Box | None]]:
    """For each box, those that share an element with it, itself included; found by a sweep along the dimension that is cut most."""
    shapes = [box for box in boxes if box is not None]
    dimensions = len(shapes[0]) if shapes else 0
    axis = max(range(dimensions), key=lambda d: len({box[d] for box in shapes}), default=0)
    touching: dict[Box | None, list[Box | None]] = {box: [] for box in boxes}
    active: list[Box] = []
    for box in sorted(shapes) if dimensions == 0 else sorted(shapes, key=lambda box: (box[axis], box)):
        if dimensions:
            active = [other for other in active if other[axis][1] > box[axis][0]]
        for other in active:
            if meets(other, box):
                touching[box].append(other)
                touching[other].append(box)
        if meets(box, box):
            touching[box].append(box)
            active.append(box)
    if None in touching:
        touching[None] = [box for box in boxes if meets(None, box)]
        for box in shapes:
            if meets(None, box):
                touching[box].append(None)
    return touching
