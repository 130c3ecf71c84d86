"""Drawing to a file: the suffix decides, anything else is an error that says what goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgraph.errors import ScheduleError
from streamgraph.render import FORMATS, draw, render
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate
from tests.drawn import cameras


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_is_written_as_it_is_rendered(suffix: str, tmp_path: Path) -> None:
    schedule = cameras()
    target = tmp_path / f"cameras.{suffix}"
    assert draw(schedule, target) == target
    assert target.read_bytes().decode() == render(schedule, suffix)
    assert schedule.draw(str(target)) == target


def test_the_suffix_may_be_in_capitals() -> None:
    assert render(cameras(), "SVG") == render(cameras(), "svg")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x.htm", r"'\.htm'(.|\n)*did you mean \.html"), ("x.png", r"did you mean \.svg"), ("x.mermaid", r"did you mean \.mmd"),
        ("x", "without a suffix"),
    ],
)  # fmt: skip
def test_another_suffix_is_an_error_that_names_those_there_are(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=said) as caught:
        draw(cameras(), tmp_path / name)
    assert ".svg, .resources.svg, .html, .mmd, .dot, .txt, .trace.json, .json" in str(caught.value)
    assert not (tmp_path / name).exists()


def test_a_timeline_with_other_costs_changes_the_picture() -> None:
    schedule = cameras()
    timeline = simulate(schedule, {"detect": 5000.0})
    assert render(schedule, "svg", timeline) != render(schedule, "svg")
    assert "1 measured" in render(schedule, "svg", timeline)


def test_json_reads_back_to_the_same_schedule() -> None:
    schedule = cameras()
    assert Schedule.from_json(render(schedule, "json")) == schedule
