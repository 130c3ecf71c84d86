"""A run as plain text: one strip per lane, then what happens in time order with a column per lane, each wait with its hazard under it.

    time      main                      copy
    7 us                                upload@0  249 us *
    257 us    < upload@0 @copy
                RAW frame@0
              preprocess@0  180 us *

Plain characters only; the command line may colour them, and no meaning is in the colour.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamgraph.model import ENTRY, EXIT, HOST, MAIN
from streamgraph.render.fit import cells, cut, duration, fitted, padded, shown
from streamgraph.render.scene import Arrow, Bar, Scene, make_scene
from streamgraph.schedule import Schedule
from streamgraph.simulate import Timeline

MOST_BARS = 60
NARROWEST = 20  # cells of a lane's column; with less, a single column names the lane
TIME = 10  # cells of the column of times


@dataclass(frozen=True, slots=True)
class _Signs:
    """The characters that lines are drawn with."""

    edge: str
    rule: str
    idle: str
    wait: str
    dots: str


_UNICODE = _Signs("│", "─", "·", "◂", "…")
_ASCII = _Signs("|", "-", ".", "<", "..")


def draw_text(schedule: Schedule, timeline: Timeline, *, width: int = 100, ascii_only: bool = False) -> str:
    """The text of a run for a terminal of `width` cells. Beyond 60 tasks, consecutive ones of a lane share a line, and the text says so."""
    scene = make_scene(schedule, timeline, MOST_BARS)
    signs = _ASCII if ascii_only else _UNICODE
    width = max(40, width)
    gain = f"{timeline.speed_up:.2f}x as fast as on one stream ({duration(timeline.one_stream)})"
    lines = [
        f"{shown(schedule.program.name)}: {schedule.counts}",
        f"makespan {duration(timeline.makespan)} (simulated), {gain}",
        *([scene.note] if scene.note else []),
        "",
        *_strips(scene, width, signs),
        "",
        *_columns(scene, width, signs),
    ]
    if any(bar.critical for bar in scene.bars):
        lines += ["", f"* on the critical path, which sets the makespan.  {signs.wait} waits for that task; its hazard stands under it."]
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return text.encode("ascii", "backslashreplace").decode() if ascii_only else text


def _strips(scene: Scene, width: int, signs: _Signs) -> list[str]:
    """A bar chart: every lane one line, times to scale."""
    margin = min(20, max([4, *(cells(row.name) for row in scene.rows)])) + 1
    room = width - margin - 2
    scale = room / scene.end if scene.end > 0 else 0.0
    lines: list[str] = []
    for index, row in enumerate(scene.rows):
        reached = 0
        pieces: list[str] = []
        for bar in sorted((bar for bar in scene.bars if bar.row == index), key=lambda bar: (bar.start, bar.end)):
            start, end = round(bar.start * scale), round(bar.end * scale)
            if end <= reached:
                continue  # too short to be seen beside what stands there already
            start = max(start, reached)
            pieces.append(signs.idle * (start - reached) + _block(bar.label, end - start, signs))
            reached = end
        pieces.append(signs.idle * (room - reached))
        lines.append(f"{padded(fitted(shown(row.name), margin - 1, signs.dots), margin)}{signs.edge}{''.join(pieces)}{signs.edge}")
        if any(band.row == index for band in scene.bands):
            lines.append(" " * (margin + 1) + _iterations(scene, index, scale, signs))
    lines.append(f"{' ' * margin} 0{duration(scene.end).rjust(room - 1)}")
    return lines


def _iterations(scene: Scene, row: int, scale: float, signs: _Signs) -> str:
    """Under a strip: which iteration stands where, `#2────`."""
    line = ""
    for band in scene.bands:
        if band.row == row:
            start, end = max(len(line), round(band.start * scale)), round(band.end * scale)
            name = f"#{band.iteration}"
            if end - start >= len(name):
                line = line.ljust(start) + name.ljust(end - start - 1, signs.rule).ljust(end - start)
    return line


def _block(label: str, width: int, signs: _Signs) -> str:
    if width < 3:
        return "[]"[:width] if width != 1 else "|"
    return f"[{padded(fitted(label, width - 2, signs.dots), width - 2)}]"


def _columns(scene: Scene, width: int, signs: _Signs) -> list[str]:
    """What happens, in time order. A column per lane while there is room, else one column that names the lane."""
    count = max(1, len(scene.rows))
    column = (width - TIME) // count - 2
    if column < NARROWEST:
        names = ["lane", "what"]
        sizes = [min(16, max([4, *(cells(row.name) for row in scene.rows)]))]
        sizes.append(width - TIME - sizes[0] - 4)
    else:
        names = [shown(row.name) for row in scene.rows]
        sizes = [column] * count
    lines = [_line("time", [fitted(name, size, signs.dots) for name, size in zip(names, sizes, strict=True)], sizes)]
    lines.append(_line(signs.rule * (TIME - 2), [signs.rule * size for size in sizes], sizes))
    for time, row, texts in _happenings(scene, signs):
        for number, text in enumerate(texts):
            stamp = duration(time) if number == len(texts) - 1 else ""
            if column < NARROWEST:
                parts = [fitted(shown(scene.rows[row].name), sizes[0], signs.dots), _short(text, sizes[1], signs)]
            else:
                parts = ["" if index != row else _short(text, column, signs) for index in range(count)]
            lines.append(_line(stamp, parts, sizes))
    return lines


def _line(stamp: str, parts: list[str], sizes: list[int]) -> str:
    return padded(stamp, TIME) + "  ".join(padded(part, size) for part, size in zip(parts, sizes, strict=True))


def _short(text: str, room: int, signs: _Signs) -> str:
    return text if cells(text) <= room else cut(text, room - cells(signs.dots)) + signs.dots


def _happenings(scene: Scene, signs: _Signs) -> list[tuple[float, int, list[str]]]:
    """(time, row, lines), in time order: a task under the waits before it, and at the end the waits before exit."""
    before: dict[int, list[Arrow]] = {}
    ending: dict[int, list[Arrow]] = {}
    for arrow in scene.arrows:
        if arrow.target is not None:
            before.setdefault(arrow.target, []).append(arrow)
        else:
            ending.setdefault(arrow.target_row, []).append(arrow)
    found: list[tuple[float, int, list[str]]] = []
    for index, bar in enumerate(scene.bars):
        texts = [text for arrow in before.get(index, ()) for text in _wait(scene, arrow, signs)]
        found.append((bar.start, bar.row, [*texts, _task(bar)]))
    found.sort(key=lambda item: (item[0], item[1]))
    for row, arrows in ending.items():
        texts = [text for arrow in arrows for text in _wait(scene, arrow, signs)]
        last = EXIT if scene.rows[row].name == MAIN else "the run ends"
        found.append((max(arrow.target_time for arrow in arrows), row, [*texts, last]))
    return found


def _task(bar: Bar) -> str:
    more = f" ({len(bar.tasks)} tasks)" if len(bar.tasks) > 1 else ""
    return f"{bar.label}{more}  {duration(bar.end - bar.start)}{' *' if bar.critical else ''}"


def _wait(scene: Scene, arrow: Arrow, signs: _Signs) -> list[str]:
    verb = "host waits: " if scene.rows[arrow.target_row].name == HOST else ""
    if arrow.source_row is None:
        source = "the run before"
    elif arrow.source is None:
        source = ENTRY
    else:
        source = f"{scene.bars[arrow.source].label} @{shown(scene.rows[arrow.source_row].name)}"
    return [f"{signs.wait} {verb}{source}", *([f"  {arrow.label}"] if arrow.label else [])]
