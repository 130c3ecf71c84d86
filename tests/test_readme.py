"""What the README and the documentation promise is what happens."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import streamgraph
from streamgraph.hazards import find_hazards
from streamgraph.plan import plan
from streamgraph.plan_loop import plan_loop
from streamgraph.render import format_of, render
from streamgraph.simulate import Timeline
from streamgraph.spec import load, loads
from streamgraph.storages import trace

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SPEC = "specs/prefetch.streamgraph.yaml"
DRAWN_LOOPS = {"pingpong": (5, ()), "prefetch": (2, ()), "stream": (5, ("packet",))}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_spec_is_the_one_that_is_shown_and_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (text,) = blocks("yaml")
    assert loads(text).program == load(SPEC).program


def test_the_figures_are_those_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    schedule = plan(SPEC)
    hazards = len(find_hazards(schedule.program, trace(schedule.program)[0]))
    counts = schedule.counts
    said = f"{hazards} hazards → **{counts.waits} waits, {counts.events} events, {counts.record_streams} `record_stream`**"
    assert said in README


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "docs" / "pictures").glob("*.svg")))
def test_the_pictures_are_fresh(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mend with: streamgraph draw specs/NAME.streamgraph.yaml -o docs/pictures/NAME.svg (or .resources.svg).

    NAME.iterations.svg: draw with --iterations and --item as `DRAWN_LOOPS` says.
    """
    monkeypatch.chdir(ROOT)
    spec = f"specs/{name.partition('.')[0]}.streamgraph.yaml"
    if name.endswith(".iterations.svg"):
        count, items = DRAWN_LOOPS[name.partition(".")[0]]
        schedule = plan_loop(spec, frozenset(items)).schedule(count)
    else:
        schedule = plan(spec)
    assert render(schedule, format_of(name)) == (ROOT / "docs" / "pictures" / name).read_text()


def test_console_blocks_print_what_they_show() -> None:
    shown = blocks("console")
    assert shown
    for block in shown:
        command, _, output = block.partition("\n")
        assert command.startswith("$ streamgraph ")
        arguments = shlex.split(command.removeprefix("$ "))
        done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == output.strip()


def test_python_blocks_run_and_the_hand_written_one_is_python() -> None:
    by_hand, ours = blocks("python")
    ast.parse(by_hand)
    names: dict[str, object] = {}
    exec(compile(ours, "README.md", "exec"), names)
    runner_result = names["second"]
    assert isinstance(runner_result, torch.Tensor)
    assert tuple(runner_result.shape) == (64, 256)


def test_the_test_command_is_what_ci_runs() -> None:
    _, test = blocks("sh")
    assert test.strip().endswith("&& pytest")
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert "pytest" in lines


def test_the_first_command_runs_the_main_job() -> None:
    command = blocks("sh")[0].strip().split(" && ")[1]
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)], cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "equal to the tasks one after another" in done.stdout


def test_the_page_on_costs_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its Python block, for a schedule with a task `detect`; and its costs file is one."""
    text = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (costs,) = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"schedule": plan(ROOT / "specs" / "cameras.streamgraph.yaml")}
    (tmp_path / "costs.json").write_text(costs, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "costs.md", "exec"), names)
    assert isinstance(timeline := names["timeline"], Timeline)
    assert timeline.time_of["detect"].duration == pytest.approx(412.6, rel=0.01)


def test_the_waits_that_the_page_on_iterations_names_are_those_of_the_loop() -> None:
    """Of two slots and of one: the waits of `pingpong` that reach back."""
    text = (ROOT / "docs" / "iterations.md").read_text(encoding="utf-8")
    spec = (ROOT / "specs" / "pingpong.streamgraph.yaml").read_text(encoding="utf-8")
    for slots, wait in ((2, "red[-2]"), (1, "red[-1]")):
        loop = plan_loop(loads(spec.replace("slots: 2", f"slots: {slots}")).program, frozenset())
        (bw,) = (issue for issue in loop.steady if issue.task == "bw")
        assert [str(back) for back in bw.waits] == [wait]
        assert f"`{wait}" in text


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_links_to_a_section_lead_to_one() -> None:
    def sections(page: Path) -> set[str]:
        titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

    found = 0
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target, section in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            found += 1
            assert section in sections(page.parent / target if target else page), f"{page.name} links to {target}#{section}"
    assert found > 10


def test_versions_agree() -> None:
    assert f'version = "{streamgraph.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## {streamgraph.__version__}" in (ROOT / "CHANGELOG.md").read_text()
