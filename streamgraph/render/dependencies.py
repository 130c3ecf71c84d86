"""A schedule as a graph of tasks: per lane its tasks in order, and every wait as an edge. Mermaid and DOT write it down.

Nodes are what the steps launch, with `entry`, `exit` and `host` where a wait touches them. Families of tasks can share one node.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamgraph.model import ENTRY, EXIT, HOST, MAIN
from streamgraph.render.fit import shown
from streamgraph.render.scene import family_of, reason_label
from streamgraph.schedule import HostWait, Launch, Record, Schedule, Wait


@dataclass(frozen=True, slots=True)
class Node:
    """A box: its text and the lane that it stands in; `end` marks entry, exit and the host's end."""

    text: str
    lane: str
    end: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """`earlier` comes before `later` (numbers of nodes): by a wait, with its hazard as `text`, or (`fifo`) by the lane's own order."""

    earlier: int
    later: int
    text: str = ""
    fifo: bool = False


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Nodes, edges, the lanes in order; `note` says what was put together."""

    lanes: tuple[str, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    note: str = ""


def dependencies(schedule: Schedule) -> Dependencies:
    """Every task as a node, every wait and every lane's own order as edges. Waits for the run before have no node here and are left out."""
    builder = _Builder()
    for each in schedule.lanes:
        builder.lane(each.name)
    for step in schedule.steps:
        match step:
            case Launch(task, lane):
                builder.node(task, lane)
            case Record(event, lane, task):
                builder.recorded[event] = builder.node(ENTRY, lane, end=True) if task == ENTRY else builder.last.get(lane)
            case Wait(event, lane, reasons):
                builder.pending.setdefault(lane, []).append((event, reason_label(reasons)))
            case HostWait(event, previous, reasons):
                if not previous:
                    builder.pending.setdefault(HOST, []).append((event, reason_label(reasons)))
    for lane_name in list(builder.pending):
        name = EXIT if lane_name == MAIN else "the run ends" if lane_name == HOST else f"end of {lane_name}"
        builder.close(lane_name, name)
    return Dependencies(tuple(builder.lanes), tuple(builder.nodes), tuple(builder.edges))


def collapsed(full: Dependencies) -> Dependencies:
    """The same with one node per lane and family (`upload@*`), and one edge per pair of nodes."""
    numbers: dict[tuple[str, str], int] = {}
    counts: dict[int, int] = {}
    nodes: list[Node] = []
    new: list[int] = []
    for node in full.nodes:
        key = (node.lane, node.text if node.end else family_of(node.text))
        if key not in numbers:
            numbers[key] = len(nodes)
            nodes.append(node)
        new.append(numbers[key])
        counts[numbers[key]] = counts.get(numbers[key], 0) + 1
    for number, node in enumerate(nodes):
        if counts[number] > 1:
            nodes[number] = Node(f"{family_of(node.text)}@* ({counts[number]} tasks)", node.lane, node.end)
    pairs: dict[tuple[int, int, bool], list[Edge]] = {}
    for edge in full.edges:
        pair = (new[edge.earlier], new[edge.later], edge.fifo)
        if pair[0] != pair[1]:
            pairs.setdefault(pair, []).append(edge)
    edges = tuple(
        Edge(earlier, later, "" if fifo else group[0].text if len(group) == 1 else f"{len(group)} waits", fifo)
        for (earlier, later, fifo), group in pairs.items()
    )
    note = f"{len(full.nodes):,} tasks and {len(full.edges):,} edges are too many to read: members of a family share a box"
    return Dependencies(full.lanes, tuple(nodes), edges, note)


class _Builder:
    """Walks the steps once."""

    def __init__(self) -> None:
        self.lanes: dict[str, None] = {}
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.last: dict[str, int] = {}  # lane -> its newest node
        self.recorded: dict[str, int | None] = {}
        self.pending: dict[str, list[tuple[str, str]]] = {}  # lane -> waits since its newest launch

    def lane(self, name: str) -> None:
        self.lanes.setdefault(name)

    def node(self, text: str, lane: str, end: bool = False) -> int:
        self.lane(lane)
        self.nodes.append(Node(shown(text), lane, end))
        self._arrive(lane, len(self.nodes) - 1)
        return len(self.nodes) - 1

    def close(self, lane: str, name: str) -> None:
        if self.pending.get(lane):
            self.node(name, lane, end=True)

    def _arrive(self, lane: str, number: int) -> None:
        earlier = self.last.get(lane)
        if earlier is not None:
            self.edges.append(Edge(earlier, number, fifo=True))
        for event, text in self.pending.pop(lane, ()):
            source = self.recorded.get(event)
            if source is not None:
                self.edges.append(Edge(source, number, text))
        self.last[lane] = number
