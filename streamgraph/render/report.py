"""The HTML report: a Schedule and its Timeline become one file that opens anywhere and loads nothing.

Data is JSON in a block that is no script, with `<` escaped, and the page shows names as text only. The content security policy forbids
every request and every script but the page's own, which it names by its hash. See `report.html`, `report.css` and `report.js`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html import escape
from importlib import resources as package_files

from streamgraph.render.facts import facts_of
from streamgraph.render.fit import shown
from streamgraph.render.resource_svg import draw_resources
from streamgraph.schedule import Schedule
from streamgraph.simulate import Timeline

# Texts in quotes; signs that end no statement; signs that may; signs between two operands, unless that would make `++` or `--`.
_DENSE = re.compile(
    r"""("[^"\n]*"|'[^'\n]*'|`[^`]*`)| *([=<>!&|?:;,{(\[*]+)\s*|\s*([)}\]]+) *|(?<![+-]) ([+/%-]) (?![+-])""",
)  # fmt: skip


def draw_html(
    schedule: Schedule, timeline: Timeline, spec: str | None = None, python: str | None = None, measured: Timeline | None = None
) -> str:
    """The text of the page. `spec` is what the user wrote, shown as it is; without it the page shows the program in canonical form.

    `python` is the schedule as torch code. It is the caller's to give (`python_of`): making it imports torch, and drawing does not.
    With `measured`, a run that took place, the page has a switch between the simulated times, the measured ones, and both.
    """
    # What shows measured times stands in a script of its own, so that other pages do not carry it.
    script = _compact(_part("report.js") + (_part("report.measured.js") if measured is not None else ""))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = json.dumps(facts_of(schedule, timeline, spec, python, measured), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    parts = {
        "hash": f"sha256-{digest}",
        "title": f"{escape(shown(schedule.program.name) or 'program')}: schedule",
        "css": _part("report.css"),
        "js": script,
        "data": data.replace("<", "\\u003c"),
        "resources": draw_resources(schedule),
    }
    # One pass, so that nothing in a part is taken for a place of another part.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _part("report.html"))


def _part(name: str) -> str:
    return package_files.files("streamgraph.render").joinpath(name).read_text(encoding="utf-8")


def _compact(script: str) -> str:
    """The script without comments, indentation, and space that parts nothing. What stands in quotes stays as it is.

    It relies on how `report.js` is written: ` // ` only begins comments, and there are no regular expressions and no nested templates.
    """
    lines = (re.sub(r"(^| )// .*", "", line.strip()) for line in script.splitlines())
    return _DENSE.sub(lambda match: "".join(part for part in match.groups() if part), "\n".join(line for line in lines if line))
