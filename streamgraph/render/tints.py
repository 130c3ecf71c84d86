"""A tint behind the tasks of each iteration in a run's SVG, with its number under them."""

from __future__ import annotations

from collections.abc import Callable

from streamgraph.render.bands import STRENGTH
from streamgraph.render.fit import duration, shown
from streamgraph.render.markup import element, text, title
from streamgraph.render.scene import Scene

MARGIN = 6.0  # pixels that a tint stands out above and below the bars
NARROWEST = 24.0  # pixels that a number needs


def tints(scene: Scene, x: Callable[[float], float], row_top: Callable[[int], float], height: float) -> list[str]:
    """The elements, in order of rows; none for a single run. `x` places a time, `row_top` a row of bars that are `height` high."""
    parts: list[str] = []
    for band in scene.bands:
        left, top = x(band.start), row_top(band.row)
        width = max(2.0, x(band.end) - left)
        said = f"iteration {band.iteration} on lane {shown(scene.rows[band.row].name)}"
        content = [
            title(f"{said}: {duration(band.start)} to {duration(band.end)}"),
            element(
                "rect", x=left, y=top - MARGIN, width=width, height=height + 2 * MARGIN, fill=band.tint, fill_opacity=str(STRENGTH)
            ),
        ]  # fmt: skip
        if width >= NARROWEST:
            content.append(text(f"#{band.iteration}", left + 2, top + height + 15, "quiet small"))
        parts.append(element("g", "".join(content), class_="iteration"))
    return parts
