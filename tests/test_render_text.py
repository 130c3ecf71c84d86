"""The terminal view: every task and every hazard in time order, inside the width, in plain characters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.plan import plan
from streamgraph.render import draw_text, render
from streamgraph.render.fit import cells, cut, duration, fitted, padded, shown
from streamgraph.simulate import simulate
from tests.drawn import cameras, host_tasks, hostile, prefetch
from tests.programs import seeded


def test_tasks_stand_in_time_order_under_their_lane_with_each_hazard_above() -> None:
    lines = render(cameras(2), "txt").splitlines()
    assert lines[0].startswith("cameras: 7 tasks, 3 lanes")
    assert lines[1].startswith("makespan ")
    at = next(number for number, line in enumerate(lines) if "preprocess@1  180 us" in line)
    assert "◂ upload@1 @copy" in lines[at - 2]
    assert lines[at - 1].strip() == "RAW frame@1"
    head = next(line for line in lines if line.startswith("time"))
    assert lines[at].index("preprocess@1") == head.index("main")
    assert next(line for line in lines if "upload@0  254 us" in line).index("upload@0") == head.index("copy")


def test_host_waits_and_the_end_of_the_run_are_there() -> None:
    text = render(host_tasks(), "txt")
    assert "host waits: download @copy" in text
    assert "fill  150 us *" in text
    assert "* on the critical path" in text


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(40, 160), st.booleans())
def test_any_schedule_fits_any_width(seed: int, tasks: int, width: int, plain: bool) -> None:
    schedule = plan(seeded(seed, tasks=tasks, lanes=5))
    timeline = simulate(schedule)
    text = draw_text(schedule, timeline, width=width, ascii_only=plain)
    _, _, *rest = text.splitlines()
    body = [line for line in rest if not line.startswith(("* on", "makespan"))]
    assert max(map(cells, body)) <= width
    assert not plain or text.isascii()
    if width == 160:
        assert all(time.task in text for time in timeline.tasks)


def test_more_than_sixty_tasks_share_lines_and_the_text_says_so() -> None:
    text = render(prefetch(100), "txt")
    assert "200 tasks as 58 bars" in text or "200 tasks as 50 bars" in text
    assert "load@0 … load@3 (4 tasks)" in text
    assert len(text.splitlines()) < 400


def test_hostile_names_move_no_cursor() -> None:
    text = render(hostile(), "txt")
    assert not any(ord(character) < 32 and character != "\n" for character in text)
    assert "\u202e" not in text
    assert len(text.splitlines()) == text.count("\n")


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [(0, "0 us"), (0.254, "0.25 us"), (8.7, "8.7 us"), (11.62, "11.6 us"), (99.96, "100 us"), (254.4, "254 us"), (999.6, "1 ms"),
     (1520, "1.52 ms"), (12_345, "12.3 ms"), (999_700, "1 s"), (2.5e6, "2.5 s"), (3.6e9, "3,600 s")],
)  # fmt: skip
def test_durations_have_a_unit_and_three_digits(microseconds: float, text: str) -> None:
    assert duration(microseconds) == text


@pytest.mark.parametrize(
    ("room", "text"), [(12, "preprocess@3"), (11, "preproce…@3"), (5, "pr…@3"), (4, "@3"), (2, "@3"), (1, "3"), (0, "")]
)
def test_a_name_that_is_cut_keeps_its_member(room: int, text: str) -> None:
    assert fitted("preprocess@3", room) == text


@given(st.text(), st.integers(0, 30))
def test_fitted_and_cut_keep_to_the_room_and_padded_fills_it(text: str, room: int) -> None:
    name = shown(text)
    assert cells(fitted(name, room)) <= room
    assert cells(cut(name, room)) <= room
    assert cells(padded(name, room)) == room
