"""The tasks as a layered graph: a place for every task, and only the edges that no other edges imply.

Layers are `networkx.topological_generations` of the hazards; the order inside a layer follows the middle of each task's neighbours, a few
sweeps up and down (Sugiyama, Tagawa and Toda's barycentre heuristic). Beyond `MOST_BOXES` tasks of one layer, family and lane share a box.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamgraph.render.fit import shown
from streamgraph.render.scene import family_of
from streamgraph.schedule import Schedule

if TYPE_CHECKING:
    import networkx as nx

MOST_BOXES = 4_000
MOST_REDUCED = 12_000  # tasks; a set of ancestors for each takes n² / 8 bytes
SWEEPS = 4


@dataclass(frozen=True, slots=True)
class Box:
    """One task, or several of a family (program indices), at a layer and a place in it."""

    label: str
    tasks: tuple[int, ...]
    layer: int
    place: float


@dataclass(frozen=True, slots=True)
class Layers:
    """Boxes by layer, edges as pairs of boxes; `hidden` counts edges that others imply; `note` says what was put together."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int], ...]
    hidden: int
    note: str = ""


def layered(schedule: Schedule) -> Layers:
    """The layout of the program's hazards. A program whose tasks go round in a circle has none: no boxes, and a note."""
    import networkx as nx

    graph = schedule.graph
    if not nx.is_directed_acyclic_graph(graph):
        return Layers((), (), 0, "the tasks go round in a circle, which has no layers")
    generations = [sorted(generation) for generation in nx.topological_generations(graph)]
    names, lane_of = [task.name for task in schedule.program.tasks], schedule.lane_of
    reduced = len(names) <= MOST_REDUCED
    edges = _without_implied(graph, generations) if reduced else sorted(graph.edges)
    hidden = graph.number_of_edges() - len(edges)
    groups: dict[tuple[int, int | str, str], list[int]] = {}
    together = len(names) > MOST_BOXES
    for layer, generation in enumerate(generations):
        for task in generation:
            groups.setdefault((layer, family_of(names[task]) if together else task, lane_of.get(names[task], "")), []).append(task)
    box_of = {task: number for number, tasks in enumerate(groups.values()) for task in tasks}
    joined = sorted({(box_of[earlier], box_of[later]) for earlier, later in edges})
    layers = [key[0] for key in groups]
    places = _places(layers, joined)
    boxes = tuple(
        Box(
            shown(names[tasks[0]]) if len(tasks) == 1 else f"{shown(family_of(names[tasks[0]]))}@* ({len(tasks)} tasks)",
            tuple(tasks), layers[number], places[number],
        )
        for number, tasks in enumerate(groups.values())
    )  # fmt: skip
    notes = []
    if together:
        notes.append(f"{len(names):,} tasks as {len(boxes):,} boxes: tasks of one family in one layer and lane share a box")
    if not reduced:
        notes.append("edges that others imply are shown as well")
    return Layers(boxes, tuple(joined), hidden, "; ".join(notes))


def _without_implied(graph: nx.DiGraph[int], generations: list[list[int]]) -> list[tuple[int, int]]:
    """The transitive reduction, with every task's ancestors as the bits of one integer."""
    ancestors: dict[int, int] = {}
    kept: list[tuple[int, int]] = []
    for generation in generations:
        for task in generation:
            earlier = sorted(graph.predecessors(task))
            further = 0
            for other in earlier:
                further |= ancestors[other]
            kept += [(other, task) for other in earlier if not further >> other & 1]
            for other in earlier:
                further |= 1 << other
            ancestors[task] = further
    return sorted(kept)


def _places(layers: list[int], edges: list[tuple[int, int]]) -> list[float]:
    """A vertical place for each box, around 0. Boxes of one layer are at least 1 apart."""
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for number, layer in enumerate(layers):
        rows[layer].append(number)
    before: dict[int, list[int]] = {}
    after: dict[int, list[int]] = {}
    for earlier, later in edges:
        before.setdefault(later, []).append(earlier)
        after.setdefault(earlier, []).append(later)
    place = [0.0] * len(layers)
    for row in rows:
        _spread(row, place)
    for sweep in range(SWEEPS):
        neighbours = before if sweep % 2 == 0 else after
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {box: sum(place[other] for other in near) / len(near) for box in row if (near := neighbours.get(box))}
            for box, middle in wanted.items():
                place[box] = middle
            row.sort(key=lambda box: (place[box], box))
            _spread(row, place, around=True)
    for row in rows:  # level: long programs would drift away
        middle = sum(place[box] for box in row) / len(row)
        for box in row:
            place[box] -= middle
    return place


def _spread(row: list[int], place: list[float], *, around: bool = False) -> None:
    """Boxes in their order, at least 1 apart; `around` keeps the middle of the layer where it was."""
    middle = sum(place[box] for box in row) / len(row) if around else 0.0
    wanted = [place[box] for box in row] if around else [0.0] * len(row)
    reached = float("-inf")
    for number, box in enumerate(row):
        reached = max(wanted[number], reached + 1)
        place[box] = reached
    shift = middle - sum(place[box] for box in row) / len(row)
    for box in row:
        place[box] += shift
