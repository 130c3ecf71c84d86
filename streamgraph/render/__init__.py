"""Pictures: a Schedule becomes text, SVG, HTML, Mermaid, DOT, a trace or JSON. Pure functions of the schedule and its simulated Timeline.

The same schedule gives the same bytes. Names are shown as text in every format, whatever they hold.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from streamgraph.errors import Problem, ScheduleError, StreamgraphError, quoted
from streamgraph.render.dot import draw_dot
from streamgraph.render.mermaid import draw_mermaid
from streamgraph.render.report import draw_html
from streamgraph.render.resource_svg import draw_resources
from streamgraph.render.svg import draw_svg
from streamgraph.render.text import draw_text
from streamgraph.render.trace import draw_trace
from streamgraph.schedule import Schedule
from streamgraph.simulate import Timeline, simulate

__all__ = [
    "FORMATS", "draw", "draw_dot", "draw_html", "draw_mermaid", "draw_resources", "draw_svg", "draw_text", "draw_trace", "format_of",
    "python_of", "render",
]  # fmt: skip

FORMATS = ("svg", "resources.svg", "html", "mmd", "dot", "txt", "trace.json", "json")


def draw(
    schedule: Schedule, path: str | os.PathLike[str], timeline: Timeline | None = None, *,
    spec: str | None = None, python: str | None = None, measured: Timeline | None = None,
) -> Path:  # fmt: skip
    """Write a picture and return its path. The suffix decides.

    `.svg` (lanes along time), `.resources.svg` (resources × lanes), `.html` (the report: one file, all views), `.mmd` (Mermaid), `.dot`,
    `.txt`, `.trace.json` (for Perfetto), `.json` (the saved schedule). `spec` and `python` are texts for the report: see `draw_html`.
    `measured` is a run that took place, which the report and the trace show beside the simulated one.

    Raises:
        ScheduleError: SG707, for another suffix, or a schedule that the format cannot show.
    """
    target = Path(path)
    text = render(schedule, format_of(target.name), timeline, spec=spec, python=python, measured=measured)
    target.write_text(text, encoding="utf-8", newline="\n")
    return target


def format_of(name: str) -> str:
    """The format that a file's name asks for: the longest of `FORMATS` that it ends with, else what stands behind its last dot."""
    lower = name.lower()
    known = [format for format in FORMATS if lower.endswith(f".{format}")]
    return max(known, key=len) if known else os.path.splitext(lower)[1].removeprefix(".")


def render(
    schedule: Schedule, format: str, timeline: Timeline | None = None, *,
    spec: str | None = None, python: str | None = None, measured: Timeline | None = None,
) -> str:  # fmt: skip
    """The picture as text, in one of `FORMATS`. Without a timeline, the schedule is simulated with its declared and guessed costs.

    Raises:
        ScheduleError: SG707, for another format, or a schedule that the format cannot show.
    """
    match format.lower():
        case "svg":
            return draw_svg(schedule, timeline or simulate(schedule))
        case "resources.svg":
            return draw_resources(schedule)
        case "html":
            return draw_html(schedule, timeline or simulate(schedule), spec, python, measured)
        case "txt":
            return draw_text(schedule, timeline or simulate(schedule))
        case "mmd":
            return draw_mermaid(schedule)
        case "dot":
            return draw_dot(schedule)
        case "trace.json":
            return draw_trace(schedule, timeline or simulate(schedule), measured)
        case "json":
            from streamgraph.saved import to_json

            return to_json(schedule)
        case other:
            raise ScheduleError(_unknown(other))


def python_of(schedule: Schedule) -> str | None:
    """The schedule as torch code for the report, or None where it has no such form. Imports torch."""
    try:
        return schedule.to_python()
    except StreamgraphError:
        return None


def _unknown(format: str) -> Problem:
    known = ", ".join(f".{name}" for name in FORMATS)
    close = difflib.get_close_matches(format, FORMATS, 1)
    near = {"htm": "html", "mermaid": "mmd", "gv": "dot", "text": "txt", "png": "svg"}.get(format, close[0] if close else "")
    said = f"'.{quoted(format, 20)}'" if format else "a path without a suffix"
    remedy = f"the suffix decides: one of {known}" + (f"; did you mean .{near}?" if near else "")
    return Problem("SG707", f"cannot draw to {said}", None, remedy)
