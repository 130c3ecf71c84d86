"""Resources by lanes: every use once, every wait between tasks that share a resource as an arrow, and inert whatever the names are."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.plan import plan
from streamgraph.render import render
from streamgraph.render.resource_svg import LETTERS
from streamgraph.render.resources import MOST_LINES, resources
from streamgraph.schedule import Launch, Schedule, Wait
from streamgraph.storages import Mode
from tests.drawn import cameras, host_tasks, hostile, prefetch
from tests.programs import seeded

NAMESPACE = "{http://www.w3.org/2000/svg}"


def groups(schedule: Schedule, name: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(render(schedule, "resources.svg"))
    return [group for group in root.iter(f"{NAMESPACE}g") if name in (group.get("class") or "").split()]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000))
def test_uses_stand_in_the_order_that_the_program_asks_for(seed: int) -> None:
    schedule = plan(seeded(seed, 14))
    found, alone = resources(schedule)
    used = {access.storage for touched in schedule.accesses.of_task for access in touched}
    labels = [storage.label for number, storage in enumerate(schedule.accesses.storages) if number in used]
    assert sorted([*alone, *(resource.label for resource in found)]) == sorted(labels)
    place = {task.name: number for number, task in enumerate(schedule.program.tasks)}
    steps = [place[name] for name in schedule.lane_of]
    for resource in found:
        for order in resource.orders:
            earlier, later = resource.uses[order.earlier], resource.uses[order.later]
            assert earlier.line < later.line
            assert earlier.lane != later.lane
        tasks = [use for use in resource.uses if use.task < len(place)]
        for lane in {use.lane for use in tasks}:
            its = [use for use in tasks if use.lane == lane]
            assert [use.line for use in its] == sorted(use.line for use in its)
        assert {use.task for use in tasks} <= set(steps)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10_000))
def test_orders_are_the_hazards_of_that_resource_and_no_wait_for_memory_is_missing(seed: int) -> None:
    schedule = plan(seeded(seed, 12))
    found, _ = resources(schedule)
    names = [*(task.name for task in schedule.program.tasks), "the caller"]
    number_of = {storage.label: number for number, storage in enumerate(schedule.accesses.storages)}
    drawn: set[tuple[str, str, str]] = set()
    for resource in found:
        storage = number_of[resource.label]
        for order in resource.orders:
            earlier, later = resource.uses[order.earlier], resource.uses[order.later]
            drawn |= {(names[earlier.task], names[later.task], order.event)} if order.event is not None else set()
            if later.task == len(names) - 1:
                continue
            pairs = itertools.product(*(
                [access for access in schedule.accesses.of_task[use.task] if access.storage == storage] for use in (earlier, later)
            ))
            assert any((one.mode, two.mode) != (Mode.READ, Mode.READ) for one, two in pairs)
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Wait) and step.reasons and step.reasons[0].kind in ("RAW", "WAR", "WAW"):
            source = schedule.event_task[step.event]
            target = next(later.task for later in schedule.steps[number:] if isinstance(later, Launch) and later.lane == step.lane)
            assert (source, target, step.event) in drawn


def test_reading_the_same_input_orders_nothing() -> None:
    found, _ = resources(plan(seeded(5, 40, lanes=5)))
    inputs = next(resource for resource in found if resource.label == "x")
    assert {use.mode for use in inputs.uses} == {Mode.READ}
    assert inputs.orders == ()


def test_a_wait_between_two_uses_is_an_arrow_with_its_event() -> None:
    schedule = prefetch()
    found, _ = resources(schedule)
    slot = next(resource for resource in found if resource.label == "w[slot 0]")
    names = [task.name for task in schedule.program.tasks]
    told = [(names[slot.uses[o.earlier].task], names[slot.uses[o.later].task], o.kind, o.event is not None) for o in slot.orders]
    assert told[:3] == [("load@0", "mm@0", "RAW", True), ("mm@0", "load@2", "WAR", True), ("load@2", "mm@2", "RAW", True)]
    assert slot.about.startswith("ring slot, f32[1024, 1024]")
    said = [group.findtext(f"{NAMESPACE}title") or "" for group in groups(schedule, "order")]
    assert any(line.startswith("WAR: mm@0 -> load@2: wait e") for line in said)


def test_what_the_caller_reads_on_the_host_is_a_use_of_its_own() -> None:
    schedule = host_tasks()
    found, _ = resources(schedule)
    result = next(resource for resource in found if resource.label == "result.1")
    assert [use.task for use in result.uses] == [3, 4, 5]  # download, log, and the caller behind the last task
    assert "the caller reads result.1 on lane host" in {group.findtext(f"{NAMESPACE}title") for group in groups(schedule, "use")}


def test_what_one_lane_alone_touches_is_listed_and_not_drawn() -> None:
    text = render(cameras(), "resources.svg")
    assert "on one lane only, no event needed" in text
    assert "packet@0" in text
    assert "packet@0" not in {group.findtext(f"{NAMESPACE}text") for group in groups(cameras(), "resource")}


def test_boxes_of_one_line_do_not_overlap() -> None:
    for schedule in (cameras(), prefetch(30), host_tasks(), plan(seeded(11, 40))):
        rects: dict[str, list[tuple[float, float]]] = {}
        for group in groups(schedule, "use"):
            rect = next(group.iter(f"{NAMESPACE}rect"))
            x, width = float(rect.get("x", "nan")), float(rect.get("width", "nan"))
            rects.setdefault(rect.get("y", ""), []).append((x, x + width))
        for spans in rects.values():
            spans.sort()
            assert all(right <= left for (_, right), (left, _) in itertools.pairwise(spans))


def test_long_resources_say_what_is_left_out() -> None:
    schedule = prefetch(200)
    found, _ = resources(schedule)
    assert all(use.line < MOST_LINES for resource in found for use in resource.uses)
    assert f"and {found[-1].left_out:,} more" in render(schedule, "resources.svg")


@pytest.mark.parametrize("drawn", [cameras, host_tasks, hostile], ids=lambda drawn: drawn.__name__)
def test_the_picture_is_inert_and_the_same_each_time(drawn: object) -> None:
    schedule = drawn()  # type: ignore[operator]
    text = render(schedule, "resources.svg")
    assert text == render(schedule, "resources.svg")
    root = ElementTree.fromstring(text)
    tags = {element.tag.removeprefix(NAMESPACE) for element in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "text", "line", "g", "path", "polygon"}
    assert all(not key.startswith("on") and "href" not in key for element in root.iter() for key in element.attrib)


def test_every_mode_has_a_letter() -> None:
    assert len(set(LETTERS.values())) == 3
