"""The HTML report without a browser: one file, nothing to fetch, data that is no code, and all of the plan in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from streamgraph.plan import plan
from streamgraph.render import draw, format_of, render
from streamgraph.render.notebook import show
from streamgraph.schedule import HostWait, Schedule, Wait
from streamgraph.simulate import simulate
from tests.drawn import cameras, host_tasks, hostile, prefetch

SPECS = Path(__file__).parents[1] / "specs"
BUDGET = 60 * 1024  # bytes of the page without data


class Reader(HTMLParser):
    """Tags with their attributes, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts.append(data)


def data_of(text: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    found: dict[str, Any] = json.loads(match[1])
    return found


@pytest.mark.parametrize("drawn", [cameras, prefetch, host_tasks, hostile], ids=lambda drawn: drawn.__name__)
def test_the_page_asks_for_nothing_and_runs_one_script_that_its_policy_names(drawn: Any) -> None:
    page = Reader(render(drawn(), "html"))
    for tag, attributes in page.tags:
        assert tag not in ("iframe", "object", "embed", "form action", "base", "img", "video", "audio")
        assert not [key for key in attributes if key.startswith("on") or key == "src"]
        if "href" in attributes:
            assert str(attributes["href"]).startswith(("#", "data:,"))
    kinds = [attributes.get("type") for tag, attributes in page.tags if tag == "script"]
    assert kinds == ["application/json", None]
    (policy,) = [str(attributes["content"]) for tag, attributes in page.tags if attributes.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(page.scripts[-1].encode()).digest()).decode()
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", "".join(page.scripts[1:]))


def test_data_holds_no_markup_and_reads_back() -> None:
    schedule = hostile()
    text = render(schedule, "html")
    block = text.split('id="data">', 1)[1].split("</script>", 1)[0]
    assert "<" not in block
    data = data_of(text)
    assert data["task"]["name"][0] == "</script><script>hacked=1</script>"
    assert "<script>hacked" not in text


@pytest.mark.parametrize("drawn", [cameras, prefetch, host_tasks, hostile], ids=lambda drawn: drawn.__name__)
def test_data_is_the_plan(drawn: Any) -> None:
    schedule: Schedule = drawn()
    data, timeline = data_of(render(schedule, "html")), simulate(schedule)
    assert len(data["task"]["name"]) == schedule.counts.tasks
    assert len(data["wait"]["event"]) == sum(isinstance(step, (Wait, HostWait)) for step in schedule.steps)
    assert data["makespan"] == pytest.approx(timeline.makespan, abs=1e-3)
    assert [data["task"]["start"][n] for n in range(len(timeline.tasks))] == [round(time.start, 3) for time in timeline.tasks]
    shorter = {"pinned", "urgent", "critical", "notes", "files", "paints", "previous", "host", "output"}
    for table in ("task", "wait", "use", "hazard", "storage"):
        assert len({len(values) for name, values in data[table].items() if name not in shorter}) == 1, table
    assert len(data["steps"]) == len(schedule.steps)


def test_the_spec_is_shown_as_it_was_written_or_in_canonical_form() -> None:
    own = data_of(render(cameras(), "html", spec="# mine\nstreamgraph: 1\n"))
    assert (own["spec"], own["specIsOwn"]) == ("# mine\nstreamgraph: 1", True)
    canonical = data_of(render(cameras(), "html"))
    assert canonical["specIsOwn"] is False
    assert canonical["spec"].startswith("streamgraph: 1")


def test_no_folder_of_the_machine_is_in_the_page() -> None:
    data = data_of(render(plan(SPECS / "cameras.streamgraph.yaml"), "html"))
    assert data["task"]["files"] == ["cameras.streamgraph.yaml"]


def test_the_same_schedule_gives_the_same_bytes() -> None:
    assert render(cameras(), "html") == render(cameras(), "html")


def test_the_page_itself_is_small() -> None:
    text = render(cameras(), "html")
    data = text.split('id="data">', 1)[1].split("</script>", 1)[0]
    resources = text.split('aria-label="Resources and lanes">', 1)[1].split("</svg>", 1)[0]
    assert len(text.encode()) - len(data.encode()) - len(resources.encode()) < BUDGET


@pytest.mark.parametrize(
    ("name", "format"),
    [("x.html", "html"), ("a.b.svg", "svg"), ("x.resources.svg", "resources.svg"), ("X.TRACE.JSON", "trace.json"), ("x.json", "json"),
     ("trace.json", "json"), ("resources.svg", "svg"), ("x.png", "png"), ("x", "")],
)  # fmt: skip
def test_the_longest_known_suffix_decides(name: str, format: str) -> None:
    assert format_of(name) == format


# --- notebooks ---------------------------------------------------------------------------------------------------------------------------


def test_a_notebook_shows_the_svg_and_text_where_that_is_all_there_is() -> None:
    schedule = cameras()
    bundle = schedule._repr_mimebundle_()
    assert bundle == {"image/svg+xml": render(schedule, "svg"), "text/plain": render(schedule, "txt")}
    assert set(schedule._repr_mimebundle_(include={"text/plain"})) == {"text/plain"}
    assert set(schedule._repr_mimebundle_(exclude={"text/plain"})) == {"image/svg+xml"}


def test_the_frame_holds_the_report_as_one_attribute() -> None:
    schedule = hostile()
    frame = schedule.show(height=500)
    page = Reader(frame._repr_html_())
    ((tag, attributes),) = page.tags
    assert (tag, attributes["sandbox"], attributes["height"]) == ("iframe", "allow-scripts", "500")
    assert attributes["srcdoc"] == render(schedule, "html") == show(schedule).page
    assert len(repr(frame)) < 100


def test_a_result_writes_its_report_with_the_code(tmp_path: Path) -> None:
    from streamgraph.result import Result

    schedule = plan(SPECS / "diamond.streamgraph.yaml")
    result = Result({}, schedule, predict=lambda: simulate(schedule))
    data = data_of(result.report(tmp_path / "run.html").read_text(encoding="utf-8"))
    assert data["python"] == result.schedule.to_python().rstrip("\n")
    assert data["makespan"] == pytest.approx(result.timeline.makespan, abs=1e-3)
    other = cameras()
    written = Result({}, other, predict=lambda: simulate(other)).report(tmp_path / "other.html")
    assert data_of(written.read_text(encoding="utf-8"))["python"] is None  # its operators are not here


def test_drawing_to_a_file_writes_what_is_rendered(tmp_path: Path) -> None:
    assert draw(cameras(), tmp_path / "plan.html").read_text(encoding="utf-8") == render(cameras(), "html")
