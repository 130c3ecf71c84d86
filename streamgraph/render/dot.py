"""A schedule as DOT text, for Graphviz: a cluster per lane, solid edges with their hazard for waits, dotted ones for a lane's own order."""

from __future__ import annotations

from streamgraph.render.dependencies import Node, dependencies
from streamgraph.render.fit import shown
from streamgraph.schedule import Schedule


def draw_dot(schedule: Schedule) -> str:
    """The DOT text. It is complete whatever the size: Graphviz, not a reader's patience, sets the limit."""
    found = dependencies(schedule)
    lines = [
        f"digraph {_quoted(schedule.program.name)} {{",
        "  rankdir=LR; compound=true; newrank=true;",
        '  node [shape=box, style=rounded, fontname="monospace", fontsize=11];',
        '  edge [fontname="monospace", fontsize=9];',
    ]
    for index, lane in enumerate(found.lanes):
        inside = [f"    n{number} [label={_quoted(node.text)}{_END if node.end else ''}];" for number, node in _inside(found.nodes, lane)]
        if inside:
            lines += [f"  subgraph cluster_{index} {{", f"    label={_quoted(lane)};", *inside, "  }"]
    for edge in found.edges:
        style = "style=dotted" if edge.fifo else f"label={_quoted(edge.text)}" if edge.text else ""
        lines.append(f"  n{edge.earlier} -> n{edge.later}{f' [{style}]' if style else ''};")
    return "\n".join([*lines, "}"]) + "\n"


_END = ", shape=plaintext"


def _inside(nodes: tuple[Node, ...], lane: str) -> list[tuple[int, Node]]:
    return [(number, node) for number, node in enumerate(nodes) if node.lane == lane]


def _quoted(text: str) -> str:
    """A DOT string. A backslash begins an escape there and `&` an entity, so both are doubled up; there is nothing else but the quote."""
    return '"' + shown(text).replace("\\", "\\\\").replace("&", "&amp;").replace('"', '\\"') + '"'
