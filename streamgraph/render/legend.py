"""What the colours and lines of a run's SVG mean."""

from __future__ import annotations

from collections.abc import Mapping

from streamgraph.render.arrows import CHARACTER, coordinate
from streamgraph.render.bands import STRENGTH, TINTS
from streamgraph.render.colours import HATCHES, OTHERS, OTHERS_COLOUR
from streamgraph.render.fit import cells, shown
from streamgraph.render.markup import element, text
from streamgraph.render.scene import Scene

SIDE = 20.0  # pixels to the left and right of all that is drawn
PATTERNS = {paint: ("sg-down", "sg-up")[hatch - 1] for paint, hatch in HATCHES.items()}


def legend(scene: Scene, paints: Mapping[str, str], right: float, y: float) -> tuple[list[str], float]:
    """What colours and lines mean, in as many lines as needed, and the height of the picture with it."""
    arrows = scene.arrows
    known = [(paint, colour) for paint, colour in paints.items() if colour != OTHERS_COLOUR]
    entries = [(shown(paint, 40), _swatch(colour, PATTERNS.get(paint))) for paint, colour in known]
    if OTHERS_COLOUR in paints.values():
        entries.append((OTHERS, _swatch(OTHERS_COLOUR, None)))
    if scene.bands:
        tints = (element("rect", x=5 * n, y=-10, width=5, height=12, fill=tint, fill_opacity=str(STRENGTH)) for n, tint in enumerate(TINTS))
        entries.append(("iterations, in turn", "".join(tints)))
    entries.append(("idle lane", element("rect", x=0, y=-10, width=20, height=12, fill="url(#sg-rest)")))
    if any(bar.critical for bar in scene.bars):
        outline = element("rect", class_="critical-key", x=0, y=-10, width=20, height=12, rx=2)
        entries.append(("critical path: these tasks set the makespan", outline))
    if any(arrow.held > 0 for arrow in arrows):
        entries.append(("a wait: from the event to the task that it held back", _line_swatch("held", "tip")))
    if any(arrow.held <= 0 for arrow in arrows):
        entries.append(("a wait for an event that was done by then", _line_swatch("free", "tip-free")))
    parts: list[str] = []
    x = SIDE
    for label, drawing in entries:
        width = 27 + cells(label) * CHARACTER + 20
        if x > SIDE and x + width > right:
            x, y = SIDE, y + 18
        parts.append(element("g", drawing + text(label, 27, 0, "small"), transform=f"translate({coordinate(x)} {coordinate(y)})"))
        x += width
    return [element("g", "".join(parts), class_="legend")], y + 18


def _swatch(colour: str, pattern: str | None) -> str:
    plain = element("rect", x=0, y=-10, width=20, height=12, rx=2, fill=colour)
    return plain + (element("rect", x=0, y=-10, width=20, height=12, rx=2, fill=f"url(#{pattern})") if pattern else "")


def _line_swatch(style: str, tip: str) -> str:
    return element("path", class_=style, d="M0 -4H14") + element("polygon", class_=tip, points="21,-4 14.5,-7.5 14.5,-0.5")
