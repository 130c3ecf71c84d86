"""Pictures: a Schedule becomes text, SVG, Mermaid, DOT or JSON. Pure functions of the schedule and its simulated Timeline.

The same schedule gives the same bytes. Names are shown as text in every format, whatever they hold.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from streamgraph.errors import Problem, ScheduleError, quoted
from streamgraph.render.dot import draw_dot
from streamgraph.render.mermaid import draw_mermaid
from streamgraph.render.svg import draw_svg
from streamgraph.render.text import draw_text
from streamgraph.schedule import Schedule
from streamgraph.simulate import Timeline, simulate

__all__ = ["FORMATS", "draw", "draw_dot", "draw_mermaid", "draw_svg", "draw_text", "render"]

FORMATS = ("svg", "mmd", "dot", "txt", "json")


def draw(schedule: Schedule, path: str | os.PathLike[str], timeline: Timeline | None = None) -> Path:
    """Write a picture and return its path. The suffix decides: `.svg`, `.mmd` (Mermaid), `.dot`, `.txt`, `.json` (the saved schedule).

    Raises:
        ScheduleError: SG707, for another suffix, or a schedule that the format cannot show.
    """
    target = Path(path)
    text = render(schedule, target.suffix.removeprefix("."), timeline)
    target.write_text(text, encoding="utf-8", newline="\n")
    return target


def render(schedule: Schedule, format: str, timeline: Timeline | None = None) -> str:
    """The picture as text, in one of `FORMATS`. Without a timeline, the schedule is simulated with its declared and guessed costs.

    Raises:
        ScheduleError: SG707, for another format, or a schedule that the format cannot show.
    """
    match format.lower():
        case "svg":
            return draw_svg(schedule, timeline or simulate(schedule))
        case "txt":
            return draw_text(schedule, timeline or simulate(schedule))
        case "mmd":
            return draw_mermaid(schedule)
        case "dot":
            return draw_dot(schedule)
        case "json":
            from streamgraph.saved import to_json

            return to_json(schedule)
        case other:
            raise ScheduleError(_unknown(other))


def _unknown(format: str) -> Problem:
    known = ", ".join(f".{name}" for name in FORMATS)
    close = difflib.get_close_matches(format, FORMATS, 1)
    near = {"html": "svg", "mermaid": "mmd", "gv": "dot", "text": "txt"}.get(format, close[0] if close else "")
    said = f"'.{quoted(format, 20)}'" if format else "a path without a suffix"
    remedy = f"the suffix decides: one of {known}" + (f"; did you mean .{near}?" if near else "")
    return Problem("SG707", f"cannot draw to {said}", None, remedy)
