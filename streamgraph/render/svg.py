"""A run as one SVG: a Scene becomes rows of bars at their simulated times, with an arrow for every wait.

The file is for READMEs, pull requests and notebooks: no script, no link, text as text, a `<title>` with all facts on everything, light and
dark by `prefers-color-scheme`, the same bytes for the same schedule. Whatever a name holds, it stays text.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from streamgraph.cost import DECLARED, DEFAULT, MEASURED
from streamgraph.model import HOST, MAIN
from streamgraph.render.arrows import CHARACTER, LINE, Box, Grid, Place, Point, Route, coordinate, crosses, place_labels, route, stub, ticks
from streamgraph.render.bands import CALLER
from streamgraph.render.colours import colours_of
from streamgraph.render.fit import cells, duration, fitted, shown
from streamgraph.render.legend import PATTERNS, SIDE, legend
from streamgraph.render.markup import element, text, title
from streamgraph.render.scene import Arrow, Bar, Row, Scene, make_scene
from streamgraph.render.tints import tints
from streamgraph.schedule import Schedule
from streamgraph.simulate import Timeline

MOST_BARS = 300
LANE_CELLS = 22  # of a lane's name
MOST_LABELS = 150  # arrows; beyond that their labels are in the titles only

SOURCES = ((MEASURED, "measured"), (DECLARED, "declared"), (DEFAULT, "guessed from sizes"))

BAR, GAP, QUIET_GAP, TOP, EDGE = 32.0, 48.0, 16.0, 98.0, 34.0
STYLE = """
.sg text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:11px;fill:#24292f}
.sg .page{fill:#ffffff}.sg .title{font-size:17px;font-weight:700}.sg .quiet{fill:#57606a}.sg .small{font-size:10px}
.sg .strong{font-weight:700}.sg .lane{font-size:12px;font-weight:700}
.sg .row{fill:#f3f5f7}.sg .grid{stroke:#d8dee4;stroke-width:1}.sg .axis{stroke:#57606a;stroke-width:1}
.sg .bar rect{stroke:#ffffff;stroke-width:1}.sg .bar text{fill:#111111}
.sg .hatch{stroke:#111111;stroke-opacity:.16;stroke-width:1.6}.sg .rest{stroke:#c3cad1;stroke-width:1}
.sg .bar .critical,.sg .critical-key{fill:none;stroke:#D55E00;stroke-width:2.5}
.sg .held,.sg .free,.sg .on-path{fill:none;stroke:#57606a;stroke-width:1.4}.sg .free{stroke:#9aa4af;stroke-dasharray:3 3}
.sg .on-path{stroke:#D55E00;stroke-width:2}.sg .tip{fill:#57606a}.sg .tip-free{fill:#9aa4af}.sg .tip-path{fill:#D55E00}
.sg .why{font-size:10px;paint-order:stroke;stroke:#ffffff;stroke-width:3px;stroke-linejoin:round}
.sg .mark{fill:none;stroke:#57606a;stroke-width:1.4}.sg .hold{fill:none;stroke:#57606a;stroke-width:1.2;stroke-dasharray:2 3}
@media (prefers-color-scheme:dark){
.sg text{fill:#e6edf3}.sg .page{fill:#0d1117}.sg .quiet{fill:#9aa4af}.sg .row{fill:#171d25}.sg .grid{stroke:#2b333d}
.sg .axis{stroke:#9aa4af}.sg .bar rect{stroke:#0d1117}.sg .bar text{fill:#111111}.sg .rest{stroke:#3d4651}
.sg .bar .critical,.sg .critical-key{stroke:#FF7A1A}.sg .held{stroke:#aab4bf}.sg .free{stroke:#6b7580}.sg .on-path{stroke:#FF7A1A}
.sg .tip{fill:#aab4bf}.sg .tip-free{fill:#6b7580}.sg .tip-path{fill:#FF7A1A}.sg .why{stroke:#0d1117}
.sg .mark{stroke:#aab4bf}.sg .hold{stroke:#aab4bf}}
"""


def draw_svg(schedule: Schedule, timeline: Timeline) -> str:
    """The SVG text of a run. At most 300 bars: beyond that consecutive tasks share one, and the picture says so."""
    return _Picture(schedule, timeline, make_scene(schedule, timeline, MOST_BARS)).svg()


class _Picture:
    """One drawing: where everything stands, and how each part is drawn."""

    def __init__(self, schedule: Schedule, timeline: Timeline, scene: Scene) -> None:
        self.schedule = schedule
        self.timeline = timeline
        self.scene = scene
        names = [cells(fitted(shown(row.name), LANE_CELLS)) * 1.2 for row in scene.rows]
        shares = [cells(self._share(row)) for row in scene.rows]
        self.left = SIDE + max([9.0, *names, *shares]) * CHARACTER + 14
        self.width = 1180.0 if len(scene.bars) <= 60 else min(2400.0, 1180.0 + (len(scene.bars) - 60) * 6)
        self.right = self.width - SIDE
        self.zero, self.finish = self.left + EDGE, self.right - EDGE
        self.scale = (self.finish - self.zero) / scene.end if scene.end > 0 else 0.0
        self.grid = Grid(TOP, BAR, GAP if scene.arrows else QUIET_GAP, self.left, self.right)
        self.bottom = self.grid.row_bottom(max(0, len(scene.rows) - 1))
        self.paints = colours_of(bar.paint for bar in self.scene.bars)
        self.boxes = self._boxes()
        self.routes = self._routes()

    # Where things stand.

    def x(self, time: float) -> float:
        return self.zero + time * self.scale

    def _boxes(self) -> list[Point]:
        """Left and right of every bar: at its times, at least two pixels wide where the next bar of the row leaves that room."""
        bars = self.scene.bars
        boxes = [(self.x(bar.start), self.x(bar.end)) for bar in bars]
        following: dict[int, float] = {}
        for index in sorted(range(len(bars)), key=lambda n: (bars[n].start, bars[n].end, n), reverse=True):
            left, right = boxes[index]
            limit = following.get(bars[index].row, self.finish + EDGE / 2)
            boxes[index] = (left, min(max(right, left + 2.0), max(limit, left)))
            following[bars[index].row] = left
        return boxes

    # What is drawn.

    def svg(self) -> str:
        key, height = legend(self.scene, self.paints, self.right, self.bottom + 62)
        behind = [*self._header(), *self._lanes(), *self._axis(), *tints(self.scene, self.x, self.grid.row_top, BAR), *self._rests()]
        body = [*behind, *self._bars(), *self._arrows(), *self._ends(), *key]
        name = shown(self.schedule.program.name) or "program"
        about = (
            f"Simulated run of {name}: {self.schedule.counts}. Makespan {duration(self.timeline.makespan)}, "
            f"{self.timeline.speed_up:.2f} times as fast as on one stream. Rows are lanes, bars are tasks, arrows are waits."
        )
        patterns = [
            element(
                "pattern", element("line", class_=class_, x1=0, y1=0, x2=0, y2=8), id=name, width=7, height=8,
                patternUnits="userSpaceOnUse", patternTransform=f"rotate({turn})",
            )
            for name, turn, class_ in (("sg-down", 45, "hatch"), ("sg-up", -45, "hatch"), ("sg-rest", 45, "rest"))
        ]  # fmt: skip
        parts = [
            element("title", f"Schedule of {escape(name)}", id="sg-title"),
            element("desc", escape(about), id="sg-desc"),
            element("style", STYLE),
            element("defs", "".join(patterns)),
            element("rect", class_="page", width=self.width, height=height),
            *body,
        ]
        return element(
            "svg", "\n".join(["", *parts, ""]), xmlns="http://www.w3.org/2000/svg", class_="sg", role="img",
            aria_labelledby="sg-title sg-desc", viewBox=f"0 0 {coordinate(self.width)} {coordinate(height)}",
            width=self.width, height=height,
        ) + "\n"  # fmt: skip

    def _header(self) -> list[str]:
        time = self.timeline
        room = int((self.width - 2 * SIDE) / (1.7 * CHARACTER))
        gain = f"makespan {duration(time.makespan)}, {time.speed_up:.2f}x as fast as on one stream ({duration(time.one_stream)})"
        found = [task.source for task in time.tasks]
        kinds = [f"{found.count(kind)} {word}" for kind, word in SOURCES if kind in found]
        origin = "simulated, times of tasks: " + ", ".join(kinds) if kinds else "nothing to run"
        reading = "rows are lanes (CUDA streams), bars are tasks, arrows are waits"
        facts = element("tspan", escape(gain), class_="strong") + element("tspan", escape(f" · {self.schedule.counts}"), class_="quiet")
        return [
            text(fitted(shown(self.schedule.program.name), room), SIDE, 30, "title"),
            element("text", facts, x=SIDE, y=49),
            text(" · ".join(part for part in (reading, origin, self.scene.note) if part), SIDE, 65, "quiet small"),
        ]

    def _share(self, row: Row) -> str:
        end = self.timeline.makespan
        level = "" if row.priority == "normal" else f", {row.priority}"
        where = f"{row.device}, " if row.device else ""
        return where + (f"{100 * row.busy / end:.0f}% busy" if end > 0 else "idle") + level

    def _lanes(self) -> list[str]:
        parts: list[str] = []
        end = self.timeline.makespan
        for index, row in enumerate(self.scene.rows):
            top = self.grid.row_top(index)
            priority = "" if row.priority == "normal" else f", {row.priority} priority"
            where = f" on {row.device}" if row.device else ""
            content = [
                title(f"lane {shown(row.name)}{where}{priority}: busy {duration(row.busy)} of {duration(end)}"),
                element("rect", class_="row", x=self.left, y=top, width=self.right - self.left, height=BAR, rx=3),
                text(fitted(shown(row.name), LANE_CELLS), SIDE, top + 14, "lane"),
                text(self._share(row), SIDE, top + 27, "quiet small"),
            ]
            parts.append(element("g", "".join(content), class_="lane-row"))
        return parts

    def _axis(self) -> list[str]:
        y = self.bottom + 14
        parts = [element("line", class_="axis", x1=self.zero, y1=y, x2=self.finish, y2=y)]
        for time in ticks(self.scene.end):
            x = self.x(time)
            parts.append(element("line", class_="grid", x1=x, y1=TOP - 4, x2=x, y2=y + 5))
            parts.append(text(duration(time) if time else "0", x, y + 18, "quiet small", "middle"))
        return [element("g", "".join(parts), class_="time-axis")]

    def _rests(self) -> list[str]:
        """Hatched where a stream stands idle before one of its tasks. The host is not: it issues the others' work meanwhile."""
        bars, parts = self.scene.bars, []
        reached = {row: (0.0, self.zero) for row in range(len(self.scene.rows))}
        for index in sorted(range(len(bars)), key=lambda n: (bars[n].start, bars[n].end, n)):
            bar, (left, right) = bars[index], self.boxes[index]
            since, edge = reached[bar.row]
            reached[bar.row] = (max(since, bar.end), max(edge, right))
            width = left - edge
            if width < 3 or self.scene.rows[bar.row].name == HOST:
                continue
            top, idle = self.grid.row_top(bar.row), f"idle {duration(bar.start - since)}"
            content = [
                title(f"lane {shown(self.scene.rows[bar.row].name)} is {idle}, before {bar.label}"),
                element("rect", x=edge, y=top, width=width, height=BAR, fill="url(#sg-rest)"),
            ]
            middle, half = (left + edge) / 2, cells(idle) * CHARACTER / 2 + 3
            if 2 * half + 6 <= width and not any(crosses(way, (middle - half, top, middle + half, top + BAR)) for way in self.routes):
                content.append(text(idle, middle, top + BAR / 2 + 3.5, "quiet why", "middle"))
            parts.append(element("g", "".join(content), class_="idle"))
        return parts

    def _bars(self) -> list[str]:
        parts: list[str] = []
        for bar, (left, right) in zip(self.scene.bars, self.boxes, strict=True):
            top, width = self.grid.row_top(bar.row), right - left
            if bar.paint == CALLER:
                mark = element("rect", x=left, y=top + 8, width=width, height=BAR - 16, fill=self.paints[CALLER])
                parts.append(element("g", title(*bar.facts) + mark, class_="bar", data_tasks=len(bar.tasks)))
                continue
            corner = 3.0 if width > 8 else 0.0
            content = [
                title(*bar.facts),
                element("rect", x=left, y=top, width=width, height=BAR, rx=corner, fill=self.paints[bar.paint]),
            ]
            if bar.paint in PATTERNS:
                content.append(element("rect", x=left, y=top, width=width, height=BAR, rx=corner, fill=f"url(#{PATTERNS[bar.paint]})"))
            if bar.critical:
                inner = max(0.4, width - 2.4)
                content.append(element("rect", class_="critical", x=left + 1.2, y=top + 1.2, width=inner, height=BAR - 2.4, rx=2))
            content += self._bar_text(bar, left, width, top)
            parts.append(element("g", "".join(content), class_="bar", data_tasks=len(bar.tasks)))
        return parts

    def _bar_text(self, bar: Bar, left: float, width: float, top: float) -> list[str]:
        middle = left + width / 2
        name = fitted(bar.label, int((width - 6) / (1.1 * CHARACTER)))
        if not name:
            return []
        time = duration(bar.end - bar.start)
        if cells(time) * CHARACTER + 8 > width:
            return [text(name, middle, top + BAR / 2 + 4, "", "middle")]
        return [text(name, middle, top + 14, "", "middle"), text(time, middle, top + 26, "small", "middle")]

    def _ends(self) -> list[str]:
        """Entry and exit: where the caller's own work on lane `main` ends and goes on."""
        rows = [index for index, row in enumerate(self.scene.rows) if row.name == MAIN]
        parts: list[str] = []
        for row in rows[:1]:
            top = self.grid.row_top(row)
            for name, x, anchor, sentence in (
                ("entry", self.left + 6, "start", "entry: the caller's work on this stream before the run; every lane starts after it"),
                ("exit", self.right - 6, "end", "exit: the caller's work on this stream after the run; it starts after every task"),
            ):
                mark = element("path", class_="mark", d=f"M{coordinate(x)} {coordinate(top - 3)}V{coordinate(top + BAR + 3)}")
                parts.append(element("g", title(sentence) + mark + text(name, x, top - 7, "quiet small", anchor), class_="end"))
        return parts

    # Arrows and their labels.

    def _routes(self) -> list[Route]:
        columns: dict[int, list[Point]] = {}
        for bar, box in zip(self.scene.bars, self.boxes, strict=True):
            columns.setdefault(bar.row, []).append(box)
        incoming: dict[tuple[int | None, int], int] = {}
        routes: list[Route] = []
        for arrow in self.scene.arrows:
            place = (arrow.target, arrow.target_row)
            turn = incoming[place] = incoming.get(place, -1) + 1
            target_x = self._target_x(arrow, turn)
            if arrow.source_row is None:
                routes.append(stub(self.grid, arrow.target_row, target_x))
            else:
                routes.append(route(self.grid, arrow.source_row, self._source_x(arrow), arrow.target_row, target_x, columns))
        return routes

    def _arrows(self) -> list[str]:
        parts: list[str] = []
        for arrow, way, at in zip(self.scene.arrows, self.routes, self._places(), strict=True):
            style, tip = ("on-path", "tip-path") if arrow.critical else ("held", "tip") if arrow.held > 0 else ("free", "tip-free")
            content = [
                title(*arrow.facts), *self._hold(arrow), element("path", class_=style, d=way.path), _tip(tip, way),
                *([text(line, at.x, at.y + LINE * step, "why", at.anchor) for step, line in enumerate(at.lines)] if at else []),
            ]  # fmt: skip
            parts.append(element("g", "".join(content), class_="wait", data_count=arrow.count))
        return parts

    def _places(self) -> list[Place | None]:
        arrows = self.scene.arrows
        labels = [arrow.label if len(arrows) <= MOST_LABELS else "" for arrow in arrows]
        order = sorted(range(len(arrows)), key=lambda n: (not arrows[n].critical, arrows[n].held <= 0, n))
        tops = [self.grid.row_top(index) for index, row in enumerate(self.scene.rows) if row.name == MAIN]
        taken: list[Box] = [(0.0, 0.0, self.width, TOP - 28), *((self.left, top - 18, self.left + 42, top) for top in tops)]
        taken += [(self.right - 36, top - 18, self.right, top) for top in tops]
        return place_labels(self.grid, self.routes, labels, order, taken)

    def _source_x(self, arrow: Arrow) -> float:
        if arrow.source is None:
            return self.left + 6 if arrow.source_time <= 0 else self.x(arrow.source_time)
        left, right = self.boxes[arrow.source]
        inset = min(4.0, (right - left) / 2)
        return max(left + inset / 4, min(right - inset, self.x(arrow.source_time)))

    def _target_x(self, arrow: Arrow, turn: int) -> float:
        if arrow.target is not None and not arrow.host:
            left, right = self.boxes[arrow.target]
            return min(left + 5.0 + 7 * turn, right - 3) if right - left > 10 else (left + right) / 2
        if arrow.target is None and self.scene.rows[arrow.target_row].name == MAIN:
            return self.right - 6 - 7 * turn
        return self.x(arrow.target_time)

    def _hold(self, arrow: Arrow) -> list[str]:
        """The time for which the host stands in a host wait."""
        if not arrow.host or arrow.held <= 0:
            return []
        left, width, top = self.x(arrow.since), arrow.held * self.scale, self.grid.row_top(arrow.target_row) + 6
        parts = [element("rect", class_="hold", x=left, y=top, width=width, height=BAR - 12, rx=3)]
        if cells("host waits") * CHARACTER + 10 <= width:
            parts.append(text("host waits", left + width / 2, top + 13.5, "quiet small", "middle"))
        return parts


def _tip(class_: str, way: Route) -> str:
    (x, y), back = way.tip, -6.5 if way.down else 6.5
    corners = ((x, y), (x - 3.5, y + back), (x + 3.5, y + back))
    return element("polygon", class_=class_, points=" ".join(f"{coordinate(a)},{coordinate(b)}" for a, b in corners))
