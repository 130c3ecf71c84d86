"""A schedule in a notebook: the SVG beside plain text, and the whole report in a frame of its own.

No widget library: viewers that show notebooks without running them show the SVG all the same. The frame gets the page as `srcdoc`, in a
sandbox that lets its script run and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from html import escape

from streamgraph.render.report import draw_html
from streamgraph.render.svg import draw_svg
from streamgraph.render.text import draw_text
from streamgraph.schedule import Schedule
from streamgraph.simulate import Timeline, simulate


def mimebundle(schedule: Schedule, include: Collection[str] | None = None, exclude: Collection[str] | None = None) -> dict[str, str]:
    """What IPython asks for (`_repr_mimebundle_`): `image/svg+xml` and `text/plain`, less what it does not want."""
    timeline = simulate(schedule)
    forms = {"image/svg+xml": draw_svg, "text/plain": draw_text}
    wanted = [form for form in forms if (not include or form in include) and form not in (exclude or ())]
    return {form: forms[form](schedule, timeline) for form in wanted}


@dataclass(frozen=True, slots=True)
class Frame:
    """The report for a notebook cell: a notebook shows it, `page` is its HTML. `height` is in pixels."""

    page: str = field(repr=False)
    height: int

    def _repr_html_(self) -> str:
        style = "width:100%;border:1px solid #8b949e;border-radius:6px"
        return (
            f'<iframe title="streamgraph report" sandbox="allow-scripts" style="{style}" height="{self.height}" '
            f'srcdoc="{escape(self.page, quote=True)}"></iframe>'
        )


def show(schedule: Schedule, timeline: Timeline | None = None, height: int = 760) -> Frame:
    """The report of a schedule in a frame."""
    return Frame(draw_html(schedule, timeline or simulate(schedule)), height)
