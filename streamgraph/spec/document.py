"""A spec's data, and where each piece of it stands in the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from streamgraph.errors import Location

Path: TypeAlias = "tuple[str | int, ...]"
Spot: TypeAlias = "tuple[int, int, int]"
"""0-based line, 0-based column, width."""


class Plain(str):
    """A scalar that was written without quotes."""

    __slots__ = ()


class Map(dict[str, Any]):
    """A mapping with the spots of its keys and values."""

    __slots__ = ("spots",)

    def __init__(self) -> None:
        self.spots: dict[str, tuple[Spot, Spot]] = {}


class Seq(list[Any]):
    """A list with the spots of its items."""

    __slots__ = ("spots",)

    def __init__(self) -> None:
        self.spots: list[Spot] = []


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says, or a part of it, and where. Data that did not come from a file has no places, and `spot` is None."""

    data: Any
    file: str
    lines: tuple[str, ...] = field(default=(), repr=False)
    spot: Spot | None = None

    def at(self, path: Path) -> Document:
        """The part at `path`. Places are found from there by shorter paths, which counts where there are many."""
        data, spot = self._find(path, 1)
        return Document(data, self.file, self.lines, spot)

    def place(self, path: Path) -> Location | None:
        """Where the value at `path` stands, or the nearest thing around it that has a place."""
        return self._place(path, 1)

    def key_place(self, path: Path) -> Location | None:
        """Where the key of the value at `path` stands, or the nearest thing around it that has a place."""
        return self._place(path, 0)

    def places(self, key: str, paths: Sequence[Path]) -> list[Location | None]:
        """Where several things below one key stand: `place` of each, for little more than one."""
        outer, around = self._find((key,), 1)
        found: list[Location | None] = []
        for path in paths:
            node, spot = outer, around
            for part in path:
                if type(node) is Seq and isinstance(part, int) and part < len(node.spots):
                    spot = node.spots[part]
                elif type(node) is Map and part in node.spots:
                    spot = node.spots[part][1]
                else:
                    break
                node = node[part]
            found.append(None if spot is None else location(self.file, self.lines, spot))
        return found

    def _place(self, path: Path, side: int) -> Location | None:
        spot = self._find(path, side)[1]
        return None if spot is None else location(self.file, self.lines, spot)

    def _find(self, path: Path, side: int) -> tuple[Any, Spot | None]:
        """What stands at `path`, None if nothing does, and the spot of it or of the nearest thing around it."""
        node, spot = self.data, self.spot
        for part in path:
            if type(node) is Map and part in node.spots:
                spot = node.spots[part][side]
            elif type(node) is Seq and isinstance(part, int) and part < len(node.spots):
                spot = node.spots[part]
            else:
                return None, spot
            node = node[part]
        return node, spot


def location(file: str, lines: tuple[str, ...], spot: Spot) -> Location:
    """The place that a spot is for a reader: lines and columns count from 1."""
    line, column, width = spot
    return Location(file, line + 1, column + 1, width, lines[line] if line < len(lines) else "")
