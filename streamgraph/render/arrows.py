"""Where arrows go, and which of their labels fit: geometry only. Labels stand in the gaps between rows, never on bars or on each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from streamgraph.render.fit import cells

Point: TypeAlias = tuple[float, float]
Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right, bottom."""
Segment: TypeAlias = tuple[Point, Point]
LABEL_ROWS = 3  # lines of labels that one gap holds
LINE = 11.5  # height of one, in pixels
CHARACTER = 6.02  # width of a character of a label, in pixels: 10 px, monospaced


@dataclass(frozen=True, slots=True)
class Route:
    """An arrow's way: the SVG path, its points at close steps, and the gap (by the row under it) where it bends from one side to the other.

    `tip` is where it ends; `down` says that it comes from above.
    """

    path: str
    points: tuple[Point, ...]
    gap: int
    bend: tuple[Point, Point]
    tip: Point
    down: bool


@dataclass(frozen=True, slots=True)
class Place:
    """A label that fits: the point of its first line, whether it begins, ends or has its middle there, and its lines, one to three."""

    x: float
    y: float
    anchor: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The rows of a picture: top of the first, height of a row, and the gap between two."""

    top: float
    row: float
    gap: float
    left: float
    right: float

    def gaps(self, high: float, low: float) -> range:
        """The gaps that the stretch from y = `high` down to `low` touches, each by the row under it."""
        step = self.row + self.gap
        return range(math.floor((high - self.top - self.row) / step) + 1, math.floor((low - self.top - self.row) / step) + 2)

    def row_top(self, row: int) -> float:
        """The upper edge of a row."""
        return self.top + row * (self.row + self.gap)

    def row_bottom(self, row: int) -> float:
        """The lower edge of a row."""
        return self.row_top(row) + self.row


def coordinate(value: float) -> str:
    """A coordinate with one decimal at most, the same on every machine."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def route(grid: Grid, source_row: int, source_x: float, target_row: int, target_x: float, columns: dict[int, list[Point]]) -> Route:
    """The way from a row to a row. It bends in one gap, next to the source or to the target: wherever it crosses fewer bars.

    `columns` are the bars of every row, as (left, right).
    """
    if source_row == target_row:
        return _arc(grid, source_row, source_x, target_x)
    down = target_row > source_row
    start = (source_x, grid.row_bottom(source_row) if down else grid.row_top(source_row))
    tip = (target_x, grid.row_top(target_row) if down else grid.row_bottom(target_row))
    between = range(source_row + 1, target_row) if down else range(target_row + 1, source_row)
    late = _crossed(columns, between, source_x) <= _crossed(columns, between, target_x)
    if down:
        gap = target_row if late else source_row + 1
        high, low = grid.row_bottom(gap - 1), grid.row_top(gap)
    else:
        gap = target_row + 1 if late else source_row
        high, low = grid.row_top(gap), grid.row_bottom(gap - 1)
    bend = ((source_x, high), (target_x, low))
    reach = (low - high) * 0.6
    one, two = (source_x, high + reach), (target_x, low - reach)
    path = f"M{_p(start)}L{_p(bend[0])}C{_p(one)} {_p(two)} {_p(bend[1])}L{_p(tip)}"
    points = [start, *_curve(bend[0], one, two, bend[1]), tip]
    return Route(path, tuple(points), gap, bend, tip, down)


def stub(grid: Grid, target_row: int, target_x: float) -> Route:
    """A short arrow from above, for an event of the run before."""
    tip = (target_x, grid.row_top(target_row))
    start = (target_x, tip[1] - grid.gap * 0.45)
    return Route(f"M{_p(start)}L{_p(tip)}", (start, tip), target_row, (start, tip), tip, True)


def ticks(end: float) -> list[float]:
    """Round times from 0 up to the end, about eight of them."""
    if end <= 0:
        return [0.0]
    step = 10.0 ** math.floor(math.log10(end / 8))
    step = next(step * factor for factor in (1, 2, 5, 10, 20) if end / (step * factor) <= 9)
    return [count * step for count in range(math.floor(end / step * (1 + 1e-9)) + 1)]


def place_labels(grid: Grid, routes: list[Route], labels: list[str], order: Iterable[int], taken: list[Box]) -> list[Place | None]:
    """A place for each label beside its arrow, or None where there is none. Those named first in `order` choose first.

    A label meets no other label, no arrow, nothing in `taken`, and stays inside the picture: what does not fit is left to the title.
    """
    lines_in: dict[int, list[Segment]] = {}
    for way in routes:
        for start, end in pairwise(way.points):
            for gap in grid.gaps(min(start[1], end[1]), max(start[1], end[1])):
                lines_in.setdefault(gap, []).append((start, end))
    boxes: dict[int, list[Box]] = {}
    places: list[Place | None] = [None] * len(routes)
    for arrow in order:
        if not labels[arrow]:
            continue
        gap = routes[arrow].gap
        for place in _candidates(grid, routes[arrow], labels[arrow]):
            box = _box(place)
            if box[0] < grid.left or box[2] > grid.right or any(_meet(box, other) for other in (*boxes.get(gap, ()), *taken)):
                continue
            clear = (box[0] - 1, box[1] - 2.5, box[2] + 1, box[3] + 2.5)
            if any(_crosses(segment, clear) for segment in lines_in.get(gap, ())):
                continue
            places[arrow] = place
            boxes.setdefault(gap, []).append(box)
            break
    return places


def crosses(way: Route, box: Box) -> bool:
    """Whether an arrow goes through the box."""
    return any(_crosses(segment, box) for segment in pairwise(way.points))


def _candidates(grid: Grid, way: Route, label: str) -> Iterator[Place]:
    """Places near the arrow in its gap, the best liked first: beside it, then over or under its level part; on one to three lines."""
    top = grid.row_top(way.gap) - grid.gap
    (source_x, _), (target_x, _) = way.bend
    kind, _, rest = label.partition(" ")
    name, _, slot = rest.partition("[")
    forms = ((label,), (kind, rest), (kind, name, f"[{slot}")) if slot else ((label,), (kind, rest)) if rest else ((label,),)
    for lines in forms:
        rows = [top + 15 + step * LINE for step in range(LABEL_ROWS + 1 - len(lines))]
        rows.sort(key=lambda y: (abs(y - top - 15 - LINE * (LABEL_ROWS - len(lines)) / 2), y))
        for anchor, offset in (("start", 6.0), ("end", -6.0)):
            for y in rows:
                # Beside the arrow means clear of it along the whole height of the text.
                near = [_x_at(way, y - 9 + height) for height in (0.0, 6.0, 11.5 + LINE * (len(lines) - 1))]
                yield Place((max(near) if anchor == "start" else min(near)) + offset, y, anchor, lines)
        for share in (0.5, 0.75, 0.25):
            for y in rows:
                yield Place(source_x + (target_x - source_x) * share, y, "middle", lines)


def _box(place: Place) -> Box:
    width = max(cells(line) for line in place.lines) * CHARACTER
    left = {"start": place.x, "middle": place.x - width / 2, "end": place.x - width}[place.anchor]
    return (left - 1, place.y - 9, left + width + 1, place.y + 2.5 + LINE * (len(place.lines) - 1))


def _x_at(way: Route, y: float) -> float:
    for (x0, y0), (x1, y1) in pairwise(way.points):
        if min(y0, y1) <= y <= max(y0, y1) and y0 != y1:
            return x0 + (x1 - x0) * (y - y0) / (y1 - y0)
    return min(way.points, key=lambda point: (abs(point[1] - y), point[0]))[0]


def _crosses(segment: Segment, box: Box) -> bool:
    """Whether a straight piece of an arrow enters the box (Liang and Barsky's clipping)."""
    (x0, y0), (x1, y1) = segment
    if max(x0, x1) <= box[0] or min(x0, x1) >= box[2] or max(y0, y1) <= box[1] or min(y0, y1) >= box[3]:
        return False
    enter, leave = 0.0, 1.0
    for origin, change, low, high in ((x0, x1 - x0, box[0], box[2]), (y0, y1 - y0, box[1], box[3])):
        if change != 0:
            first, last = sorted(((low - origin) / change, (high - origin) / change))
            enter, leave = max(enter, first), min(leave, last)
    return enter < leave


def _crossed(columns: dict[int, list[Point]], rows: range, x: float) -> int:
    return sum(left < x < right for row in rows for left, right in columns.get(row, ()))


def _meet(first: Box, second: Box) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


def _arc(grid: Grid, row: int, source_x: float, target_x: float) -> Route:
    start, tip = (source_x, grid.row_top(row)), (target_x, grid.row_top(row))
    one, two = (source_x, start[1] - grid.gap * 0.5), (target_x, tip[1] - grid.gap * 0.5)
    points = tuple(_curve(start, one, two, tip))
    return Route(f"M{_p(start)}C{_p(one)} {_p(two)} {_p(tip)}", points, row, (start, tip), tip, True)


def _curve(start: Point, one: Point, two: Point, end: Point, steps: int = 12) -> list[Point]:
    points: list[Point] = []
    for step in range(steps + 1):
        t = step / steps
        a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
        points.append((a * start[0] + b * one[0] + c * two[0] + d * end[0], a * start[1] + b * one[1] + c * two[1] + d * end[1]))
    return points


def _p(point: Point) -> str:
    return f"{coordinate(point[0])} {coordinate(point[1])}"
