"""The report of a measured run in a real browser: a switch between planned times, measured ones and both, and what the panel says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from streamgraph.render import draw
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate
from tests.browser.chromium import Browser, Page, find
from tests.browser.test_report import CONTRAST
from tests.drawn import cameras, host_tasks, hostile, prefetch
from tests.test_measured import took_place

pytestmark = pytest.mark.skipif(find() is None, reason="no Chromium here: install one, or name it in STREAMGRAPH_CHROMIUM")
DRAWN = {"cameras": cameras, "prefetch": prefetch, "host tasks": host_tasks, "hostile": hostile}
VIEWS = ("timeline", "graph", "memory", "resources", "waits", "plan", "spec")


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    fresh = browser.page()
    yield fresh
    assert fresh.errors == []
    assert [address for address in fresh.requests if not address.startswith("file:")] == []


def opened(page: Page, schedule: Schedule, folder: Path) -> Page:
    page.open(draw(schedule, folder / "report.html", measured=took_place(schedule)))
    assert page.data("error") is None
    return page


@pytest.mark.parametrize("name", DRAWN)
def test_the_switch_shows_either_run_or_both_and_every_view_draws_in_each(name: str, page: Page, tmp_path: Path) -> None:
    schedule = DRAWN[name]()
    predicted, measured = simulate(schedule), took_place(schedule)
    opened(page, schedule, tmp_path)
    assert page.data("times") == "both"
    shown_in = {"planned": predicted, "measured": measured, "both": predicted}
    for mode in ("planned", "measured", "both", "measured", "planned"):
        shown = shown_in[mode]
        page.click_on(f"#times [data-mode={mode}]")
        assert page.data("times") == mode
        assert page.js("[...document.querySelectorAll('#times [aria-pressed=true]')].map(b => b.dataset.mode)") == [mode]
        assert page.js("D.makespan") == round(shown.makespan, 3)
        assert page.js("T.start") == [round(time.start, 3) for time in shown.tasks]
        assert page.js("W.until") == [round(wait.until, 3) for wait in shown.waits]
        assert page.js("[...T.critical]") == [[time.task for time in shown.tasks].index(time.task) for time in shown.critical_path]
        assert page.js("view.to") >= page.js("Math.max(D.makespan, mode === 'both' ? M.makespan : 0)")
        for view in VIEWS:
            page.js(f"show({view!r})")
            assert page.data("error") is None
        page.js("show('timeline')")


def test_the_panel_tells_planned_from_measured(page: Page, tmp_path: Path) -> None:
    schedule = cameras()
    opened(page, schedule, tmp_path)
    assert "Planned and measured" in page.js("$('panel').textContent")
    page.js("select({task: 5})")
    assert page.js("[...$('apart').querySelectorAll('dt')].map(d => d.textContent)") == ["planned", "measured", "time", "start"]
    time = simulate(schedule).tasks[5]
    told = page.js("[...$('apart').querySelectorAll('dd')].map(d => d.textContent)")
    assert told[0].startswith(page.js(f"span({time.duration})"))
    assert told[1].startswith(page.js(f"span({2 * time.duration})"))
    assert told[2] == "+" + page.js(f"span({time.duration})") + ", 2.00×"


def test_m_steps_through_the_times_and_a_screen_reader_hears_it(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    seen = []
    for _ in range(3):
        page.press("m")
        seen.append(page.data("times"))
    assert seen == ["planned", "measured", "both"]
    assert page.js("$('live').textContent").startswith("Times: ")


def test_both_rows_are_drawn_and_the_second_only_in_both(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    look = """(() => { const r = devicePixelRatio || 1, n = 5;
        const dot = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
        dot.drawImage(stage, (x(M.task.start[n]) + x(M.task.end[n])) / 2 * r, (laneTop(T.lane[n]) + BAR + 10) * r, 1, 1, 0, 0, 1, 1);
        return [...dot.getImageData(0, 0, 1, 1).data] })()"""
    paint = page.js("T.paints[T.paint[5]][1]")
    wanted = [int(paint[at : at + 2], 16) for at in (1, 3, 5)]
    assert page.js(look)[:3] == wanted
    page.press("m")
    assert page.js(look)[:3] != wanted


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: str, page: Page, tmp_path: Path) -> None:
    page.media(scheme)
    opened(page, cameras(), tmp_path)
    for thing in ("{}", "{task: 3}"):
        page.js(f"select({thing})")
        assert page.js(CONTRAST) == []


def test_a_page_without_measured_times_has_no_switch(page: Page, tmp_path: Path) -> None:
    page.open(draw(cameras(), tmp_path / "plain.html"))
    assert page.js("$('times')") is None
    assert page.data("times") is None
