"""The HTML report in a real browser: what it shows is the plan, keys alone are enough, and it asks the network for nothing."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamgraph.explain import explain
from streamgraph.hazards import find_hazards
from streamgraph.plan import plan
from streamgraph.render import draw
from streamgraph.schedule import HostWait, Schedule, Wait
from tests.browser.chromium import Browser, Page, find
from tests.drawn import cameras, host_tasks, hostile, prefetch
from tests.programs import seeded
from tests.test_measured import took_place

pytestmark = pytest.mark.skipif(find() is None, reason="no Chromium here: install one, or name it in STREAMGRAPH_CHROMIUM")
SPECS = Path(__file__).parents[2] / "specs"
VIEWS = ("timeline", "graph", "memory", "resources", "waits", "plan", "spec")
DRAWN = {"cameras": cameras, "prefetch": prefetch, "host tasks": host_tasks, "hostile": hostile}


def axe() -> Path | None:
    """Axe-core (https://github.com/dequelabs/axe-core): the file that the variable names, or that the package axe-core-python brings."""
    if named := os.environ.get("STREAMGRAPH_AXE"):
        return Path(named)
    package = importlib.util.find_spec("axe_core_python")
    return Path(package.origin).with_name("axe.min.js") if package and package.origin else None


AXE = axe()
FINDINGS = "axe.run().then(r => [r.violations.map(v => [v.id, v.impact, v.nodes.map(n => n.html.slice(0, 120))]), r.passes.length])"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    fresh = browser.page()
    yield fresh
    assert fresh.errors == []
    assert [address for address in fresh.requests if not address.startswith("file:")] == []
    assert len(fresh.requests) == 1


def opened(page: Page, schedule: Schedule, folder: Path) -> Page:
    page.open(draw(schedule, folder / "report.html"))
    assert page.data("error") is None
    return page


def bar(page: Page, task: str) -> list[float]:
    """The middle of a task's bar, in the window."""
    return page.js(
        f"(() => {{ const n = T.name.indexOf({task!r}), b = stage.getBoundingClientRect();"
        "return [b.left + (x(T.start[n]) + x(T.end[n])) / 2, b.top + laneTop(T.lane[n]) + BAR / 2] })()"
    )


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_counts_are_those_of_the_plan_and_every_view_draws(name: str, scheme: str, page: Page, tmp_path: Path) -> None:
    schedule = DRAWN[name]()
    page.media(scheme)
    opened(page, schedule, tmp_path)
    assert page.data("tasks") == str(schedule.counts.tasks)
    assert page.data("waits") == str(sum(isinstance(step, (Wait, HostWait)) for step in schedule.steps))
    for view in VIEWS:
        page.click_on(f"#tab-{view}")
        assert page.data("view") == view
        assert page.js("[...document.querySelectorAll('[role=tabpanel]')].filter(p => !p.hidden).map(p => p.id)") == [view]
    assert page.js("document.querySelectorAll('#waits-table tbody tr').length") == int(page.data("waits") or -1)
    assert page.js("$('steps').textContent.split('\\n').length") == len(schedule.steps)


def test_names_stay_text_whatever_they_hold(page: Page, tmp_path: Path) -> None:
    opened(page, hostile(), tmp_path)
    assert page.js("typeof hacked") == "undefined"
    assert page.js("document.querySelectorAll('#panel script, #resources script, #resources a').length") == 0
    page.js("select({task: 0})")
    assert page.js("$('panel').querySelector('h2').textContent").startswith("</script><script>hacked=1")


@pytest.mark.parametrize("which", ["cameras", "host tasks", "fsdp", "offload", "random 3", "random 8"])
def test_what_it_says_of_every_hazard_is_what_explain_says(which: str, page: Page, tmp_path: Path) -> None:
    kind, _, seed = which.partition(" ")
    if kind == "random":
        schedule = plan(seeded(int(seed), 30))
    else:
        schedule = DRAWN[which]() if which in DRAWN else plan(SPECS / f"{which}.streamgraph.yaml")
    opened(page, schedule, tmp_path)
    pairs = {(hazard.earlier, hazard.later) for hazard in find_hazards(schedule.program, schedule.accesses)}
    for into in ("true", "false"):
        shown = page.js(
            f"T.name.map((name, task) => [name, streamgraph.relations(task, {into}).map(r => [T.name[r.other], r.verdict,"
            " r.hazards.map(why), r.links.map(l => [who(l[0]), who(l[1]), l[2] < 0 ? null : N[W.event[l[2]]]])])])"
        )
        assert sum(len(others) for _, others in shown) == len(pairs) >= 5
        for task, others in shown:
            told = {relation.earlier if into == "true" else relation.later: relation for relation in explain(schedule, task).relations}
            for other, verdict, hazards, links in others:
                relation = told[other]
                assert relation.verdict == verdict
                assert sorted(f"{reason.kind} {reason.tensor}".strip() for reason in relation.hazards) == sorted(hazards)
                assert [[link.earlier, link.later, link.event] for link in relation.path] == links


def test_a_click_on_a_task_tells_its_waits_and_the_hazards_that_need_none(page: Page, tmp_path: Path) -> None:
    opened(page, prefetch(), tmp_path)
    page.click(*bar(page, "mm@2"))
    assert page.data("selected") == "mm@2"
    said = page.js("$('panel').innerText")
    assert re.search(r"Waits for 1\s+wait\s*load@2\s*RAW w@2", said)
    assert re.search(r"Ordered without a wait: \d+\s+no wait\s*mm@1\s*RAW h", said)
    assert "both are on main, which runs its tasks in order" in said
    assert page.js("$('live').textContent").startswith("mm@2")


def test_an_implied_hazard_names_the_way_that_implies_it(page: Page, tmp_path: Path) -> None:
    opened(page, plan(SPECS / "fsdp.streamgraph.yaml"), tmp_path)
    page.js("select({task: T.name.indexOf('reduce@2')})")
    said = ("backward@2 → again@0 (wait e12 @gather)", "again@0 → reduce@3 (wait e13 @reduce)", "reduce@3 → reduce@2 (same lane @reduce)")
    assert f"implied by {', '.join(said)}" in page.js("$('panel').innerText")


def test_a_click_on_an_arrow_selects_the_wait(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    point = page.js(
        "(() => { const r = drawnArrows.find(r => W.to[r.wait] >= 0 && W.from[r.wait] >= 0), b = stage.getBoundingClientRect(),"
        " p = along4(r.points, .5); return [b.left + p[0], b.top + p[1], r.wait] })()"
    )
    page.click(point[0], point[1])
    assert page.data("selected") == f"wait {point[2]}"
    assert "Why" in page.js("$('panel').innerText")


def test_the_pointer_over_a_task_says_what_it_is(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    page.click(*bar(page, "detect"), kind="move")
    assert page.js("$('tip').hidden") is False
    assert "420 us" in page.js("$('tip').textContent")
    page.click(5, 5, kind="move")
    assert page.js("$('tip').hidden") is True


def test_search_counts_matches_and_goes_through_them(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    page.press("/")
    assert page.js("document.activeElement.id") == "find"
    page.press(*"upload")
    assert page.js("$('found').textContent") == "4 matches"
    page.press("Enter")
    assert page.data("selected") == "upload@0"
    page.press("Enter")
    assert (page.data("selected"), page.js("$('found').textContent")) == ("upload@1", "2 of 4")
    page.press("Escape")
    assert page.js("$('found').textContent") == ""


def test_zoom_and_pan_by_keys_and_buttons(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    width = "view.to - view.from"
    whole, start = page.js(width), page.js("view.from")
    page.press("+", "+")
    near = page.js(width)
    assert near < whole / 2
    left = page.js("view.from")
    page.press("ArrowRight")
    assert page.js("view.from") > left
    page.press("-")
    assert near < page.js(width) < whole
    page.press("0")
    assert page.js(width) == pytest.approx(whole)
    page.click_on("#in")
    assert page.js(width) < whole
    page.click_on("#fit")
    assert page.js("view.from") == pytest.approx(start)
    page.js("document.activeElement.blur()")
    box = bar(page, "detect")
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=box[0], y=box[1], deltaX=0, deltaY=-100, modifiers=2)
    page.until(f"{width} < {whole}")
    assert bar(page, "detect")[0] == pytest.approx(box[0], abs=1.5)  # what is under the pointer stays there


def test_dragging_moves_and_does_not_select(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    page.press("+", "+")
    x, y = page.js("(b => [b.left + 500, b.top + 60])(stage.getBoundingClientRect())")
    before = page.js("view.from")
    page.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", clickCount=1)
    for shift in (40, 80, 120):
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x - shift, y=y, button="left", buttons=1)
    page.call("Input.dispatchMouseEvent", type="mouseReleased", x=x - 120, y=y, button="left", clickCount=1)
    assert page.js("view.from") > before
    assert not page.data("selected")


def test_keys_alone_reach_everything(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    reached = []
    for _ in range(60):
        page.press("Tab")
        reached.append(page.js("document.activeElement.id || document.activeElement.className || document.activeElement.tagName"))
        if reached[-1] == "BODY":
            break
    assert reached[0] == "skip"
    assert {"tab-timeline", "find", "out", "in", "fit", "help", "stage", "tensors-scroll", "link"} <= set(reached)
    assert "tab-graph" not in reached  # one stop for all tabs: arrows go from tab to tab
    page.js("$('tab-timeline').focus()")
    for view in (*VIEWS[1:], VIEWS[0]):
        page.press("ArrowRight")
        assert (page.data("view"), page.js("document.activeElement.id")) == (view, f"tab-{view}")
    page.press("5")
    assert page.data("view") == "waits"
    page.press("1", "?")
    assert page.js("$('keys').hidden") is False
    page.js("document.querySelector('.skip').focus()")
    page.press("Enter")
    assert page.data("view") == "waits"
    assert page.js("document.activeElement.getAttribute('aria-label')") == "Table of waits"


def test_j_and_k_step_through_all_waits_and_n_and_p_through_a_lane(page: Page, tmp_path: Path) -> None:
    schedule = cameras()
    opened(page, schedule, tmp_path)
    seen = []
    for _ in range(int(page.data("waits") or 0)):
        page.press("j")
        seen.append(page.data("selected"))
    assert seen == [f"wait {number}" for number in range(len(seen))]
    page.press("k")
    assert page.data("selected") == seen[-2]
    page.js("select({task: T.name.indexOf('upload@0')})")
    page.press("n", "n")
    assert page.data("selected") == "upload@2"
    page.press("p")
    assert page.data("selected") == "upload@1"
    page.press("ArrowUp")
    assert page.js("laneName(T.lane[selected.task])") == "main"
    page.press("Escape")
    assert page.data("selected") == ""


def test_the_table_of_waits_sorts_and_filters(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    page.press("5")
    cells = "[...document.querySelectorAll('#waits-table tbody tr')].map(r => +r.dataset.wait)"
    page.js("[...document.querySelectorAll('#waits-table th button')].find(b => b.textContent === 'Held').click()")
    order = page.js(cells)
    held = page.js("W.until.map((until, n) => until - W.since[n])")
    assert [held[wait] for wait in order] == sorted(held, reverse=True)
    assert page.js("document.querySelectorAll('th[aria-sort=descending]').length") == 1
    page.click_on("#filter")
    page.press(*"raw")
    assert all("RAW" in text for text in page.js("[...document.querySelectorAll('#waits-table tbody tr')].map(r => r.innerText)"))
    page.js("document.querySelector('#waits-table tbody .link').click()")
    assert page.data("selected").startswith("wait ")  # type: ignore[union-attr]


def test_the_memory_view_names_the_owners_at_any_moment(page: Page, tmp_path: Path) -> None:
    opened(page, plan(SPECS / "offload.streamgraph.yaml"), tmp_path)
    page.press("3")
    title = page.js("$('owners-title').textContent")
    assert "(the peak)" in title
    assert f": {page.js('bytes(sampled(D.memory.device)[0] + sampled(D.memory.host)[0])')} in " in title  # both peaks meet here
    page.js("curveCanvas.focus()")
    page.press("ArrowLeft")
    assert "(the peak)" not in page.js("$('owners-title').textContent")
    page.press("0")
    assert page.js("$('owners-title').textContent") == title


def test_the_spec_shows_the_line_of_the_selected_task(browser: Browser, page: Page, tmp_path: Path) -> None:
    path = SPECS / "cameras.streamgraph.yaml"
    page.open(draw(plan(path), tmp_path / "own.html", spec=path.read_text()))
    page.js("select({task: T.name.indexOf('stack')}); show('spec')")
    assert page.js("document.querySelector('#source .here').textContent").strip().startswith("stack:")


def test_colours_follow_light_and_dark_at_once(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    probe = "[colour.page, [...stage.getContext('2d').getImageData(stage.width - 4, 120, 1, 1).data].join()]"
    light = page.js(probe)
    page.media("dark")
    page.until(f"colour.page !== {light[0]!r}")
    assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"


def test_nothing_animates(page: Page, tmp_path: Path) -> None:
    page.media(motion="reduce")
    opened(page, cameras(), tmp_path)
    page.press("+", "j", "5")
    assert page.js("document.getAnimations().length") == 0


def test_the_printed_page_has_the_table_of_waits(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    page.media(kind="print")
    assert page.js("getComputedStyle($('waits')).display") == "block"
    assert page.js("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert len(page.call("Page.printToPDF")["data"]) > 10_000


def test_ten_thousand_tasks_are_drawn_and_found(page: Page, tmp_path: Path) -> None:
    opened(page, prefetch(5_000), tmp_path)
    assert page.data("tasks") == "10000"
    assert page.js("drawnArrows.length") <= 300
    page.press("/", *"mm@4999", "Enter")
    assert page.data("selected") == "mm@4999"
    assert page.js("view.from < T.start[selected.task] && view.to > T.end[selected.task]")
    page.press("Escape")
    page.press("2")
    assert page.data("view") == "graph"


def test_a_script_that_someone_adds_does_not_run(browser: Browser, tmp_path: Path) -> None:
    page = browser.page()
    opened(page, cameras(), tmp_path)
    page.js("document.body.append(Object.assign(document.createElement('script'), {textContent: 'globalThis.hacked = 1'}))")
    page.js("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"globalThis.hacked = 1\">')")
    assert page.js("fetch('https://example.org/').then(() => 'sent', () => 'refused')") == "refused"
    assert page.js("typeof hacked") == "undefined"
    assert any("Content Security Policy" in error for error in page.errors)


# --- accessibility --------------------------------------------------------------------------------------------------------------------

# The contrast of every text with the nearest ground behind it, by the formula of WCAG 2.1; 4.5 is what level AA asks for.
CONTRAST = """(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number), style = node => getComputedStyle(node);
  const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const bad = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some(c => c.nodeType === 3 && c.textContent.trim());
    if (!own || !node.checkVisibility() || node.closest('svg, noscript, .skip, .quiet-live')) continue;
    let back = node;
    while (back && parse(style(back).backgroundColor)[3] === 0) back = back.parentElement;
    const a = light(parse(style(node).color)), b = light(back ? parse(style(back).backgroundColor) : [255, 255, 255]);
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push(node.tagName + '.' + node.className + ' ' + node.textContent.slice(0, 30) + ' ' + ratio.toFixed(2));
  }
  return bad;
})()"""
REFERENCES = ("aria-controls", "aria-labelledby", "aria-describedby", "for")
INTERACTIVE = {
    "button", "tab", "searchbox", "textbox", "application", "table", "img", "tabpanel", "region", "link", "complementary",
}  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: str, page: Page, tmp_path: Path) -> None:
    page.media(scheme)
    opened(page, cameras(), tmp_path)
    for view in VIEWS:
        page.js(f"show({view!r}); select({{task: 5}})")
        assert page.js(CONTRAST) == [], view


def test_roles_names_and_landmarks(page: Page, tmp_path: Path) -> None:
    opened(page, cameras(), tmp_path)
    assert page.js("document.documentElement.lang") == "en"
    assert page.js("document.title").endswith("schedule")
    assert page.js("document.querySelectorAll('main').length") == 1
    assert page.js("document.querySelectorAll('h1').length") == 1
    assert page.js("(ids => ids.filter((id, n) => ids.indexOf(id) !== n))([...document.querySelectorAll('[id]')].map(e => e.id))") == []
    for key in REFERENCES:
        wanted = page.js(f"[...document.querySelectorAll('[{key}]')].flatMap(e => e.getAttribute('{key}').split(' '))")
        assert [name for name in wanted if not page.js(f"!!$({name!r})")] == []
    for view in VIEWS:
        page.js(f"show({view!r})")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
        assert [role for role, name in found if role in INTERACTIVE and not name] == [], view
        assert {"main", "tablist", "navigation", "complementary", "search", "status"} <= {role for role, _ in found}


@pytest.mark.skipif(AXE is None, reason="no axe-core here: install the extra `browser`, or name an axe.min.js in STREAMGRAPH_AXE")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(scheme: str, page: Page, tmp_path: Path) -> None:
    page.media(scheme)
    schedule = cameras()
    page.open(draw(schedule, tmp_path / "report.html", measured=took_place(schedule)))
    assert AXE is not None
    page.js(AXE.read_text() + ";0")
    for mode, view in itertools.product(("planned", "measured", "both"), VIEWS):
        page.click_on(f"#times [data-mode={mode}]")
        page.js(f"show({view!r}); select({{task: 5}})")
        found, passed = page.js(FINDINGS)
        assert passed > 20  # an empty page has no findings either
        assert [entry for entry in found if entry[1] in ("serious", "critical")] == [], (mode, view)
