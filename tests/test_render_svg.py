"""The SVG: well-formed, complete, nothing on top of anything else, and inert whatever the names are."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.model import Program, Task
from streamgraph.plan import plan
from streamgraph.render import render
from streamgraph.render.arrows import CHARACTER, LINE
from streamgraph.render.colours import PALETTE
from streamgraph.render.fit import cells
from streamgraph.schedule import HostWait, Lane, Launch, Record, Schedule, Step, Wait
from streamgraph.simulate import simulate
from tests.drawn import HOSTILE, cameras, host_tasks, hostile, prefetch
from tests.programs import seeded

NAMESPACE = "{http://www.w3.org/2000/svg}"
Box = tuple[float, float, float, float]


def drawn(schedule: Schedule) -> ElementTree.Element:
    return ElementTree.fromstring(render(schedule, "svg"))


def groups(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [group for group in root.iter(f"{NAMESPACE}g") if group.get("class") == name]


def first_rect(group: ElementTree.Element) -> Box:
    rect = next(group.iter(f"{NAMESPACE}rect"))
    x, y, width, height = (float(rect.get(key, "nan")) for key in ("x", "y", "width", "height"))
    return (x, y, x + width, y + height)


def title(group: ElementTree.Element) -> str:
    return group.findtext(f"{NAMESPACE}title") or ""


def label_boxes(root: ElementTree.Element) -> list[list[Box]]:
    """Per arrow the boxes of its label's lines."""
    found = []
    for group in groups(root, "wait"):
        lines = [text for text in group.iter(f"{NAMESPACE}text") if text.get("class") == "why"]
        found.append([text_box(line, CHARACTER) for line in lines])
    return [boxes for boxes in found if boxes]


def text_box(text: ElementTree.Element, character: float) -> Box:
    width = cells(text.text or "") * character
    x, y = float(text.get("x", "nan")), float(text.get("y", "nan"))
    left = {"start": x, "middle": x - width / 2, "end": x - width}[text.get("text-anchor", "start")]
    return (left, y - LINE + 3.5, left + width, y + 2)


def meet(one: Box, two: Box) -> bool:
    slack = 0.25  # coordinates are rounded to a tenth
    return one[0] + slack < two[2] and two[0] + slack < one[2] and one[1] + slack < two[3] and two[1] + slack < one[3]


SCHEDULES = {"cameras": cameras(), "many cameras": cameras(12), "prefetch": prefetch(), "host": host_tasks(), "hostile": hostile()}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_there_is_a_bar_for_every_launch_and_an_arrow_for_every_wait(schedule: Schedule) -> None:
    root = drawn(schedule)
    assert len(groups(root, "bar")) == sum(isinstance(step, Launch) for step in schedule.steps)
    assert len(groups(root, "wait")) == sum(isinstance(step, Wait | HostWait) for step in schedule.steps)
    assert len(groups(root, "lane-row")) == len(schedule.lanes)
    assert all(title(group) for name in ("bar", "wait", "lane-row", "idle", "end") for group in groups(root, name))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_random_schedules_draw_complete_and_nothing_overlaps(seed: int, tasks: int) -> None:
    schedule = plan(seeded(seed, tasks=tasks, lanes=5))
    root = drawn(schedule)
    bars = [first_rect(bar) for bar in groups(root, "bar")]
    assert len(bars) == schedule.counts.tasks
    assert sum(int(wait.get("data-count", "0")) for wait in groups(root, "wait")) == len(simulate(schedule).waits)
    labels = label_boxes(root)
    width = float((root.get("viewBox") or "").split()[2])
    for one, two in itertools.combinations(bars, 2):
        assert not meet(one, two)
    for one, two in itertools.combinations(labels, 2):
        assert not any(meet(a, b) for a in one for b in two)
    for box in itertools.chain(*labels):
        assert not any(meet(box, bar) for bar in bars)
        assert box[0] >= 0
        assert box[2] <= width


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_names_stay_inside_their_bars(schedule: Schedule) -> None:
    for bar in groups(drawn(schedule), "bar"):
        left, _, right, _ = first_rect(bar)
        for text in bar.iter(f"{NAMESPACE}text"):
            start, _, end, _ = text_box(text, CHARACTER * (1.0 if text.get("class") == "small" else 1.1))
            assert left - 0.2 <= start
            assert end <= right + 0.2


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_names_of_lanes_end_before_their_rows_begin(schedule: Schedule) -> None:
    for row in groups(drawn(schedule), "lane-row"):
        for text in row.iter(f"{NAMESPACE}text"):
            assert text_box(text, CHARACTER * (1.2 if text.get("class") == "lane" else 1.0))[2] < first_rect(row)[0]


def test_labels_of_a_readable_picture_are_all_there() -> None:
    texts = [text for group in groups(drawn(cameras()), "wait") for text in group.iter(f"{NAMESPACE}text")]
    labels = [text.text for text in texts if text.get("class") == "why"]
    assert labels == ["RAW frame@0", "RAW frame@1", "RAW frame@2", "RAW frame@3", "RAW result.1"]


def arrow_points(root: ElementTree.Element) -> list[tuple[float, float]]:
    """Points along every arrow, at most a pixel or two apart: the paths are lines and cubic curves with absolute coordinates."""
    points: list[tuple[float, float]] = []
    for group in groups(root, "wait"):
        path = next(group.iter(f"{NAMESPACE}path")).get("d") or ""
        here = (0.0, 0.0)
        for letter, rest in re.findall(r"([MLC])([^MLC]*)", path):
            numbers = [float(number) for number in rest.split()]
            corners = [here, *zip(numbers[::2], numbers[1::2], strict=True)]
            here = corners[-1]
            if letter != "M":
                for step in range(401):
                    t = step / 400
                    weights = (1 - t, t) if letter == "L" else ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
                    x, y = (sum(w * corner[axis] for w, corner in zip(weights, corners, strict=True)) for axis in (0, 1))
                    points.append((x, y))
    return points


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 24))
def test_no_label_is_crossed_by_an_arrow(seed: int, tasks: int) -> None:
    for schedule in (cameras(12), plan(seeded(seed, tasks=tasks, lanes=5))):
        root = drawn(schedule)
        points = arrow_points(root)
        for left, top, right, bottom in itertools.chain(*label_boxes(root)):
            assert not any(left < x < right and top < y < bottom for x, y in points)


def test_titles_hold_all_the_facts_of_a_task_and_of_a_wait() -> None:
    root = drawn(cameras())
    bar = next(title(bar) for bar in groups(root, "bar") if title(bar).startswith("preprocess@3"))
    for fact in ("reads frame@3", "writes image@3", "180 us (declared)", "lane main", "started when 'upload@3' was done", "drawn.py:"):
        assert fact in bar
    wait = next(title(wait) for wait in groups(root, "wait") if "frame@3" in title(wait))
    assert "lane main waits for e3, recorded after upload@3 on lane copy, before preprocess@3" in wait
    assert "RAW frame@3: upload@3 -> preprocess@3" in wait
    assert "held it for" in wait


def test_the_header_has_the_figures() -> None:
    schedule, text = cameras(), " ".join(drawn(cameras()).itertext())
    for fact in (str(schedule.counts), "makespan 1.", "x as fast as on one stream", "5 declared, 6 guessed from sizes", "entry", "exit"):
        assert fact in text


def test_the_critical_path_is_outlined() -> None:
    schedule = cameras()
    outlined = {
        title(bar).split("\n")[0]
        for bar in groups(drawn(schedule), "bar")
        if any(rect.get("class") == "critical" for rect in bar.iter(f"{NAMESPACE}rect"))
    }
    assert outlined == {time.task for time in simulate(schedule).critical_path}


def test_a_large_schedule_is_put_together_and_says_so() -> None:
    schedule = prefetch(400)
    root = drawn(schedule)
    bars = groups(root, "bar")
    assert len(bars) <= 300
    assert sum(int(bar.get("data-tasks", "0")) for bar in bars) == 800
    assert "800 tasks as" in " ".join(root.itertext())
    boxes = sorted((first_rect(bar)[1], first_rect(bar)) for bar in bars)
    for (row, one), (other, two) in itertools.pairwise(boxes):
        assert row != other or not meet(one, two)


def test_a_large_tangle_keeps_the_arrows_that_matter_and_says_so() -> None:
    tasks = tuple(Task(f"t@{number}", "op", cost=20.0) for number in range(2_000))
    steps: list[Step] = []
    for number, task in enumerate(tasks):
        lane = f"s{number * 7 % 12}"
        steps += [Wait(f"e{number - jump}", lane) for jump in (2, 3, 11) if number >= jump]
        steps += [Launch(task.name, lane), Record(f"e{number}", lane, task.name)]
    lanes = (Lane("main"), *(Lane(f"s{number}") for number in range(12)))
    root = drawn(Schedule(Program("tangle", tasks=tasks), lanes, tuple(steps)))
    assert len(groups(root, "bar")) <= 300
    assert len(groups(root, "wait")) == 300
    assert "that held up most" in " ".join(root.itertext())


def test_hostile_names_are_text_and_nothing_else() -> None:
    text = render(hostile(), "svg")
    root = ElementTree.fromstring(text)
    tags = {element.tag.removeprefix(NAMESPACE) for element in root.iter()}
    assert tags == {"svg", "title", "desc", "style", "defs", "pattern", "line", "rect", "g", "text", "tspan", "path", "polygon"}
    keys = {key for element in root.iter() for key in element.attrib}
    assert not any(key.startswith("on") or "href" in key or key == "style" for key in keys)
    assert not re.search(r"<script|@import|http(?!://www.w3.org/2000/svg)", text)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff\u202e]", text)
    titles = "\n".join(title(bar) for bar in groups(root, "bar"))
    assert all(name[:60] in titles for name in HOSTILE if name.isprintable())


def test_it_is_an_accessible_picture_for_light_and_dark() -> None:
    root = drawn(cameras())
    assert root.get("role") == "img"
    ids = (root.get("aria-labelledby") or "").split()
    assert [next(root.iter(f"{NAMESPACE}{tag}")).get("id") for tag in ("title", "desc")] == ids
    style = root.findtext(f"{NAMESPACE}style") or ""
    assert "prefers-color-scheme:dark" in style
    for line in style.splitlines():
        rules = re.sub(r"@media[^{]*\{", "", line)
        assert all(rule.strip().startswith(".sg") for rule in re.findall(r"([^{}]+)\{", rules)), "a rule reaches beyond the picture"


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_on_every_bar_colour_has_the_contrast_that_readers_need() -> None:
    fills = {rect.get("fill", "") for schedule in SCHEDULES.values() for rect in drawn(schedule).iter(f"{NAMESPACE}rect")}
    for colour in {fill for fill in fills if fill.startswith("#")} | set(PALETTE):
        assert (luminance(colour) + 0.05) / (luminance("#111111") + 0.05) >= 4.5  # WCAG 2, level AA


def test_the_same_schedule_gives_the_same_bytes() -> None:
    assert render(cameras(), "svg") == render(cameras(), "svg")
    assert len(set(PALETTE)) == len(PALETTE)
