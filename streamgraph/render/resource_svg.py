"""The drawing that one makes on paper before writing code with streams: lanes side by side, and under them, resource by resource, who
reads (R), writes (W) and updates (U) it, in the order that the program asks for, with the events between them.
"""

from __future__ import annotations

from streamgraph.render.arrows import CHARACTER, coordinate
from streamgraph.render.fit import cells, fitted, shown
from streamgraph.render.markup import element, text, title
from streamgraph.render.resources import Order, Resource, resources
from streamgraph.schedule import Schedule
from streamgraph.storages import Mode

MOST_RESOURCES = 60
LINE, HEAD, COLUMN, SIDE, PAD = 24.0, 96.0, 230.0, 20.0, 9.0
LETTERS = {Mode.READ: "R", Mode.WRITE: "W", Mode.UPDATE: "U"}
WORDS = {Mode.READ: "reads", Mode.WRITE: "writes", Mode.UPDATE: "updates"}
STYLE = """
.sgr text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:11px;fill:#24292f}
.sgr .page{fill:#fff}.sgr .title{font-size:17px;font-weight:700}.sgr .quiet{fill:#57606a}.sgr .small{font-size:10px}
.sgr .strong{font-weight:700}.sgr .band{fill:#f3f5f7}.sgr .lane{stroke:#d0d7de;stroke-width:1}.sgr .rule{stroke:#d0d7de}
.sgr .R rect{fill:#fff;stroke:#57606a}.sgr .W rect{fill:#E69F00;stroke:#8a5a00}.sgr .U rect{fill:#F3CF80;stroke:#8a5a00}
.sgr .R text{fill:#24292f}.sgr .W text,.sgr .U text{fill:#111}
.sgr .wait{fill:none;stroke:#0b66b0;stroke-width:1.7}.sgr .tip{fill:#0b66b0}.sgr .implied{fill:none;stroke:#8b949e;stroke-dasharray:3 3}
.sgr .itip{fill:#8b949e}.sgr .event{font-size:10px;fill:#0b66b0;paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}
.sgr .b .event{stroke:#f3f5f7}
@media (prefers-color-scheme:dark){
.sgr text{fill:#e6edf3}.sgr .page{fill:#0d1117}.sgr .quiet{fill:#9aa4af}.sgr .band{fill:#171d25}.sgr .lane,.sgr .rule{stroke:#3d4651}
.sgr .R rect{fill:#0d1117;stroke:#9aa4af}.sgr .R text{fill:#e6edf3}.sgr .W text,.sgr .U text{fill:#111}.sgr .wait{stroke:#56B4E9}
.sgr .tip{fill:#56B4E9}.sgr .event{fill:#8fc7ea;stroke:#0d1117}.sgr .b .event{stroke:#171d25}.sgr .implied{stroke:#6b7580}
.sgr .itip{fill:#6b7580}}
"""


def draw_resources(schedule: Schedule) -> str:
    """The SVG text. At most 60 resources, and 24 lines of each: beyond that the picture says what is left out."""
    return _Paper(schedule).svg()


class _Paper:
    """One drawing."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        found, self.alone = resources(schedule)
        self.names = [*(task.name for task in schedule.program.tasks), "the caller"]
        self.found, self.more = found[:MOST_RESOURCES], len(found) - MOST_RESOURCES
        names = [cells(fitted(shown(resource.label), 34)) * 1.1 for resource in self.found]
        self.left = SIDE + max([16.0, *names, *(cells(fitted(resource.about, 46)) * 0.92 for resource in self.found)]) * CHARACTER + 16
        self.column = max(150.0, COLUMN - 12 * max(0, len(schedule.lanes) - 4))
        self.width = self.left + self.column * len(schedule.lanes) + SIDE
        self.width, self.used = max(self.width, 760.0), self.width - SIDE

    def middle(self, lane: int) -> float:
        return self.left + self.column * (lane + 0.5)

    def svg(self) -> str:
        y = HEAD + 30
        body: list[str] = []
        for number, resource in enumerate(self.found):
            part, height = self._resource(resource, y, number)
            body.append(part)
            y += height
        lanes = []
        for number, lane in enumerate(self.schedule.lanes):
            x = self.middle(number)
            lanes.append(text(fitted(shown(lane.name), int(self.column / 7.4)), x, HEAD + 10, "strong", "middle"))
            lanes.append(element("line", class_="lane", x1=x, y1=HEAD + 18, x2=x, y2=y))
        foot, height = self._foot(y + 24)
        name = shown(self.schedule.program.name) or "program"
        legend = "W writes, R reads, U updates in place; solid arrow: the lane waits for that event; dashed: other waits imply the order"
        bands = "".join(part for part in (self._bands()))
        return element(
            "svg",
            "\n".join([
                "", title(f"Resources and lanes of {name}"), element("style", STYLE),
                element("rect", class_="page", width=self.width, height=height),
                text(fitted(f"{name}: resources × lanes", int(self.width / 11)), SIDE, 30, "title"),
                text(f"each block is one resource, read downwards: {self.schedule.counts}", SIDE, 49, "quiet"),
                text(legend, SIDE, 65, "quiet small"), bands, *lanes, *body, *foot, "",
            ]),
            xmlns="http://www.w3.org/2000/svg", class_="sgr", role="img", aria_label=f"Resources and lanes of {name}",
            viewBox=f"0 0 {coordinate(self.width)} {coordinate(height)}", width=self.width, height=height,
        ) + "\n"  # fmt: skip

    def _height(self, resource: Resource) -> float:
        lines = max((use.line for use in resource.uses), default=0) + 1
        return max(2.2, lines) * LINE + 2 * PAD + (14 if resource.left_out else 0)

    def _bands(self) -> list[str]:
        y, parts = HEAD + 30, []
        for number, resource in enumerate(self.found):
            height = self._height(resource)
            if number % 2 == 0:
                parts.append(element("rect", class_="band", x=SIDE - 8, y=y, width=self.used - SIDE + 16, height=height, rx=4))
            y += height
        return parts

    def _resource(self, resource: Resource, y: float, number: int) -> tuple[str, float]:
        parts = [
            text(fitted(shown(resource.label), 34), SIDE, y + PAD + 12, "strong"),
            text(fitted(resource.about, 46), SIDE, y + PAD + 26, "quiet small"),
        ]
        boxes: list[tuple[float, float, float]] = []  # left, right, middle height
        uses = []
        for use in resource.uses:
            width = min(self.column - 38, cells(self.names[use.task]) * CHARACTER + 34)
            x = self.middle(use.lane) - width / 2
            top = y + PAD + use.line * LINE + 2
            label = f"{LETTERS[use.mode]} {fitted(shown(self.names[use.task]), max(1, int((width - 26) / (1.1 * CHARACTER))))}"
            lane = shown(self.schedule.lanes[use.lane].name)
            said = f"{shown(self.names[use.task])} {WORDS[use.mode]} {shown(use.tensor)} on lane {lane}"
            boxes.append((x, x + width, top + LINE / 2 - 2))
            content = title(said) + element("rect", x=x, y=top, width=width, height=LINE - 4, rx=4)
            content += text(label.rstrip(), x + width / 2, top + 14, "", "middle")
            uses.append(element("g", content, class_=f"use {LETTERS[use.mode]}"))
        arrows = [self._arrow(resource, order, boxes) for order in self._needed(resource)]
        if resource.left_out:
            parts.append(text(f"and {resource.left_out:,} more", SIDE, y + self._height(resource) - 8, "quiet small"))
        class_ = "resource b" if number % 2 == 0 else "resource"
        return element("g", "".join([*parts, *arrows, *uses]), class_=class_), self._height(resource)

    def _needed(self, resource: Resource) -> list[Order]:
        """Orders to draw: those with an event, and of the others the ones that no order in between makes plain."""
        direct = [order for order in resource.orders if order.event is not None]
        reached = {order.later for order in direct}
        nearest: dict[int, Order] = {}
        for order in resource.orders:
            if order.event is None and order.later not in reached:
                other = nearest.get(order.later)
                if other is None or resource.uses[order.earlier].line > resource.uses[other.earlier].line:
                    nearest[order.later] = order
        return [*direct, *nearest.values()]

    def _arrow(self, resource: Resource, order: Order, boxes: list[tuple[float, float, float]]) -> str:
        first, second = boxes[order.earlier], boxes[order.later]
        to_right = second[0] > first[0]
        start = (first[1] if to_right else first[0], first[2])
        tip = (second[0] if to_right else second[1], second[2])
        reach = max(24.0, abs(tip[0] - start[0]) / 2) * (1 if to_right else -1)
        back = -7.0 if to_right else 7.0
        earlier, later = (shown(self.names[resource.uses[n].task]) for n in (order.earlier, order.later))
        how = f"wait {order.event}" if order.event is not None else "no wait of its own: other waits imply it"
        line, end = ("wait", "tip") if order.event is not None else ("implied", "itip")
        path = f"M{_p(*start)}C{_p(start[0] + reach, start[1])} {_p(tip[0] - reach, tip[1])} {_p(tip[0] + back, tip[1])}"
        parts = [title(f"{order.kind}: {earlier} -> {later}: {how}"), element("path", class_=line, d=path)]
        corners = (tip, (tip[0] + back, tip[1] - 3.6), (tip[0] + back, tip[1] + 3.6))
        points = " ".join(f"{coordinate(x)},{coordinate(y)}" for x, y in corners)
        parts.append(element("polygon", class_=end, points=points))
        if order.event is not None:
            middle = ((start[0] + tip[0]) / 2, (start[1] + tip[1]) / 2 + 3.5)
            parts.append(text(f"{fitted(shown(order.event), 12)} {order.kind}", *middle, "event", "middle"))
        return element("g", "".join(parts), class_="order")

    def _foot(self, y: float) -> tuple[list[str], float]:
        lines = []
        if self.more > 0:
            lines.append(f"and {self.more:,} more resources that several lanes touch")
        if not self.found:
            lines.append("No resource is touched by more than one lane: nothing here needs an event.")
        if self.alone:
            room = int((self.width - 2 * SIDE) / CHARACTER)
            names = ", ".join(shown(label, 40) for label in self.alone[:40])
            lines.append(fitted(f"on one lane only, no event needed ({len(self.alone):,}): {names}", room))
        parts = [text(line, SIDE, y + 15 * n, "quiet small") for n, line in enumerate(lines)]
        return parts, y + 15 * len(lines) + 12


def _p(x: float, y: float) -> str:
    return f"{coordinate(x)} {coordinate(y)}"
