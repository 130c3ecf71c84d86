"""A schedule as a Mermaid flowchart: a box per lane, an arrow with its hazard per wait, dotted lines for a lane's own order."""

from __future__ import annotations

from streamgraph.errors import Problem, ScheduleError
from streamgraph.render.dependencies import Dependencies, collapsed, dependencies
from streamgraph.render.fit import shown
from streamgraph.schedule import Schedule

# Mermaid refuses a diagram of more than 500 edges, and GitHub one of more than 50,000 characters.
MOST_EDGES, MOST_NODES, MOST_CHARACTERS = 500, 280, 50_000


def draw_mermaid(schedule: Schedule) -> str:
    """The flowchart. A schedule too large for Mermaid gets one box per lane and family (`upload@*`), and a comment says so.

    Raises:
        ScheduleError: SG707, it is too large even then.
    """
    text = _fitting(dependencies(schedule))
    if text is None:
        small = collapsed(dependencies(schedule))
        text = _fitting(small)
        if text is None:
            message = f"{len(small.nodes):,} groups of tasks and {len(small.edges):,} edges are more than Mermaid draws"
            remedy = "draw it as .svg or .dot, or give tasks of one kind one name: load@0, load@1"
            raise ScheduleError(Problem("SG707", message, None, remedy))
    return text


def _fitting(found: Dependencies) -> str | None:
    if len(found.edges) > MOST_EDGES or len(found.nodes) > MOST_NODES:
        return None
    lines = ["flowchart LR"]
    if found.note:
        lines.append(f"  %% {found.note}")
    for index, lane in enumerate(found.lanes):
        inside = [number for number, node in enumerate(found.nodes) if node.lane == lane]
        if not inside:
            continue
        lines.append(f'  subgraph lane{index}["{safe(shown(lane))}"]')
        for number in inside:
            node = found.nodes[number]
            left, right = ('(["', '"])') if node.end else ('["', '"]')
            lines.append(f"    n{number}{left}{safe(node.text)}{right}")
        lines.append("  end")
    for edge in found.edges:
        if edge.fifo:
            lines.append(f"  n{edge.earlier} -.-> n{edge.later}")
        else:
            label = f'|"{safe(edge.text)}"|' if edge.text else ""
            lines.append(f"  n{edge.earlier} -->{label} n{edge.later}")
    text = "\n".join(lines) + "\n"
    return text if len(text) <= MOST_CHARACTERS else None


def safe(text: str) -> str:
    """Any text inside Mermaid's double quotes: all but letters, digits and a few plain signs becomes an entity (`#34;` for a quote)."""
    if not text.strip():
        return "#32;"  # empty quotes are a syntax error
    return "".join(character if character.isalnum() or character in " _.,:@*()" else f"#{ord(character)};" for character in text)
