"""What tasks are coloured by, and with which colours: the same in every picture."""

from __future__ import annotations

from collections.abc import Iterable

from streamgraph.cost import D2H, H2D
from streamgraph.devices import crosses
from streamgraph.model import Program, Task
from streamgraph.render.bands import CALLER, is_caller

TO_DEVICE, TO_HOST, BETWEEN, COPY, HOST_TASK = "copy to device", "copy to host", "copy between GPUs", "copy", "host task"

# Okabe and Ito's colours, told apart by all common kinds of colour vision (https://jfly.uni-koeln.de/color/). Vermilion is kept for the
# critical path; the paler ones after the first four are the same hues mixed with white.
PALETTE = ("#E69F00", "#009E73", "#CC79A7", "#F0E442", "#F3CF80", "#80CFB9", "#E6BCD3", "#F8F2A1")
FIXED = {TO_DEVICE: "#56B4E9", TO_HOST: "#8FC7EA", BETWEEN: "#C6E5F7", COPY: "#AAD9F4", HOST_TASK: "#C9CDD2", CALLER: "#9AA4AF"}
OTHERS, OTHERS_COLOUR = "other operators", "#DDDDDD"
# Copies are hatched as well, so that no meaning is in the colour alone: 1 leans forward, 2 backward.
HATCHES = {TO_DEVICE: 1, TO_HOST: 2, BETWEEN: 2, COPY: 1}


def paint_of(task: Task, engine: str, program: Program) -> str:
    """What a task of the program is coloured by: its operator, or for copies and host tasks what they are."""
    if is_caller(task):
        return CALLER
    if task.host:
        return HOST_TASK
    if task.is_copy:
        if program.devices and crosses(task, program):
            return BETWEEN
        return {H2D: TO_DEVICE, D2H: TO_HOST}.get(engine, COPY)
    return task.operator


def colours_of(paints: Iterable[str]) -> dict[str, str]:
    """A colour for every paint, in order of first appearance; what the palette cannot tell apart is 'other operators'."""
    free = iter(PALETTE)
    found: dict[str, str] = {}
    for paint in paints:
        if paint not in found:
            found[paint] = FIXED.get(paint) or next(free, OTHERS_COLOUR)
    return found
