"""Frontier: boxes of one storage, found by what they meet.

Along the dimension that the accesses cut most, a tree of bins, eight to a bin, holds each box in the smallest bin that it fits into.
Finding the boxes that meet another one visits only bins that hold something and overlap it, so disjoint parts cost a logarithm each,
however many there are (the binning scheme of genome browsers: Kent et al. 2002, https://doi.org/10.1101/gr.229102).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from streamgraph.model import Box
from streamgraph.storages import meets, remainder

_BITS = 3  # of an interval's number per level of the tree
_WIDTH = 1 << _BITS  # bins that fit into one of the next level


class Entry(NamedTuple):
    """A task that touched `box` on its turn. `place` is the frontier's own: the level and number of its bin, and its key there."""

    box: Box
    task: int
    turn: int
    place: tuple[int, int, int] = (-1, -1, -1)


class Layout(NamedTuple):
    """The dimension by which boxes are told apart, and the number of the interval that begins at each coordinate there."""

    axis: int
    interval: dict[int, int]
    levels: int

    @classmethod
    def of(cls, boxes: Sequence[Box]) -> Layout:
        """The layout for boxes of one storage, and for all that is left of them when others are cut out."""
        dimensions = range(len(boxes[0]))
        cuts = [{coordinate for box in boxes for coordinate in box[dimension]} for dimension in dimensions]
        axis = max(dimensions, key=lambda dimension: len(cuts[dimension]), default=-1)
        interval = {coordinate: number for number, coordinate in enumerate(sorted(cuts[axis]))} if axis >= 0 else {}
        return cls(axis, interval, -(-len(interval).bit_length() // _BITS))


class Frontier:
    """A changing set of entries. The order of answers is the order of the tasks."""

    def __init__(self, layout: Layout) -> None:
        self._axis, self._interval, self._top = layout
        # Per level, by the bin's number: the entries in it, by a number of their own; and how many of the bin itself and the bins right in
        # it hold something. A bin that is not there, or whose count is, tells that nothing is to be found below.
        self._held: list[dict[int, dict[int, Entry]]] = [{} for _ in range(self._top + 1)]
        self._filled: list[dict[int, int]] = [{} for _ in range(self._top + 1)]
        self._added = 0

    def add(self, entry: Entry) -> None:
        """Put an entry in. Its box must not be empty."""
        level, number = self._bin(entry[0])
        entry = Entry(entry[0], entry[1], entry[2], (level, number, self._added))
        held = self._held[level].get(number)
        if held is None:
            held = self._held[level][number] = {}
            for up in range(level, self._top + 1):
                count = self._filled[up].get(number, 0)
                self._filled[up][number] = count + 1
                if count:
                    break  # the bins around this one know already
                number >>= _BITS
        held[self._added] = entry
        self._added += 1

    def meeting(self, box: Box) -> list[Entry]:
        """The entries that share an element with the box, by turn and task."""
        first, last = self._span(box)
        axis, found = self._axis, list[Entry]()
        start, stop = box[axis] if axis >= 0 else (0, 0)
        for held in self._near(first, last) if last - first < _WIDTH else self._within(first, last):
            for entry in held.values():
                # Mostly the first dimension tells already.
                if axis < 0 or (entry[0][axis][0] < stop and entry[0][axis][1] > start and meets(entry[0], box)):
                    found.append(entry)
        if len(found) > 1:
            found.sort(key=_by_turn)
        return found

    def _near(self, first: int, last: int) -> list[dict[int, Entry]]:
        """What the bins hold that overlap a few intervals: so few bins that each is simply looked up."""
        found = []
        for bins in self._held:
            if bins:
                for number in range(first, last + 1):
                    if number in bins:
                        found.append(bins[number])
            first >>= _BITS
            last >>= _BITS
        return found

    def _within(self, first: int, last: int) -> Iterator[dict[int, Entry]]:
        """What the bins hold that overlap many intervals, from the top: below a bin that is not filled nothing is looked for."""
        numbers = [0] if self._filled[self._top] else []
        for level in range(self._top, -1, -1):
            filled = self._filled[level]
            low, high = first >> (_BITS * level), last >> (_BITS * level)
            if high - low < _WIDTH * len(numbers):
                numbers = [number for number in range(low, high + 1) if number in filled]
            elif level < self._top:
                inner = (number for outer in numbers for number in range(outer << _BITS, (outer << _BITS) + _WIDTH))
                numbers = [number for number in inner if low <= number <= high and number in filled]
            if not numbers:
                break
            bins = self._held[level]
            yield from (bins[number] for number in numbers if number in bins)

    def replace(self, entries: Sequence[Entry], box: Box) -> None:
        """Cut the box out of these entries, which `meeting` found for it."""
        for entry in entries:
            level, number, key = entry[3]
            held = self._held[level][number]
            del held[key]
            if not held:
                del self._held[level][number]
                for up in range(level, self._top + 1):
                    count = self._filled[up].pop(number) - 1
                    if count:
                        self._filled[up][number] = count
                        break
                    number >>= _BITS
        for entry in entries:
            for rest in remainder(entry[0], box):
                self.add(Entry(rest, entry[1], entry[2]))

    def _span(self, box: Box) -> tuple[int, int]:
        axis = self._axis
        return (self._interval[box[axis][0]], self._interval[box[axis][1]] - 1) if axis >= 0 else (0, 0)

    def _bin(self, box: Box) -> tuple[int, int]:
        first, last = self._span(box)
        level = -(-(first ^ last).bit_length() // _BITS)
        return level, first >> (_BITS * level)


def _by_turn(entry: Entry) -> tuple[int, int]:
    return entry.turn, entry.task
