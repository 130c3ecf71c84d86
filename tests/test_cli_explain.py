"""`explain --waits`, `--critical-path`, `--lanes`, and `diff`, as a user meets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgraph.schedule import Schedule
from tests.running import hurried
from tests.test_cli import TWO_LANES, Invoke, data_of
from tests.test_cli import invoke as invoke  # a fixture


def test_explain_waits_shows_the_race_that_each_wait_prevents(invoke: Invoke) -> None:
    shown = invoke("explain", "two.yaml", "--waits").stdout
    race = "    without it: race: 'work' (@main) reads 'b' while 'load' (@copy) may still write it"
    assert f"    RAW b: load -> work (two.yaml:8)\n{race}" in shown
    assert shown.rstrip().endswith("Each of the 2 is needed.")
    data = data_of(invoke("explain", "two.yaml", "--waits", "--json"))
    assert [entry["without"]["kind"] for entry in data["certificate"]] == ["entry", "RAW"]
    assert len(data["waits"]) == 2


def test_explain_waits_takes_one_task(invoke: Invoke) -> None:
    shown = invoke("explain", "two.yaml", "work", "--waits").stdout
    assert "RAW b: load -> work" in shown
    assert "entry -> load" not in shown
    assert shown.rstrip().endswith("It is needed.")
    assert invoke("explain", "two.yaml", "wrok", "--waits").exit_code == 1


def test_explain_waits_of_a_large_plan_asks_for_a_task(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamgraph.commands.explain.LOOKS", 3)
    result = invoke("explain", "two.yaml", "--waits")
    assert "RAW b: load -> work" in result.stdout
    assert "without it" not in result.stdout
    assert "name a task" in result.stderr
    assert data_of(invoke("explain", "two.yaml", "--waits", "--json"))["certificate"] is None


def test_explain_critical_path_names_what_held_each_task(invoke: Invoke) -> None:
    Path("slow.yaml").write_text(TWO_LANES.replace("stream: copy", "stream: copy, cost: 200us"), encoding="utf-8")
    shown = invoke("explain", "slow.yaml", "--critical-path").stdout
    assert "load was done: a wait" in shown
    assert "No run on these lanes could take less than" in shown
    data = data_of(invoke("explain", "slow.yaml", "--critical-path", "--json"))
    assert [step["task"] for step in data["critical_path"]] == ["load", "work"]
    assert data["makespan"] >= data["on_path"] > 0


def test_a_long_critical_path_is_shortened_in_text_and_complete_as_data(invoke: Invoke) -> None:
    tasks = "\n".join(f"  t{n}: {{run: aten.relu, reads: {'x' if n == 0 else 'h'}, writes: h, cost: 50us}}" for n in range(100))
    head = 'streamgraph: 1\ntensors: {x: {type: "f32[8]", kind: input}}\ntasks:\n'
    Path("long.yaml").write_text(f"{head}{tasks}\n", encoding="utf-8")
    assert "... 60 more (--json lists all)" in invoke("explain", "long.yaml", "--critical-path").stdout
    assert len(data_of(invoke("explain", "long.yaml", "--critical-path", "--json"))["critical_path"]) == 100


def test_explain_lanes_says_how_busy_each_is_and_why_there_are_that_many(invoke: Invoke) -> None:
    result = invoke("explain", "two.yaml", "--lanes")
    assert result.stdout.startswith("two: 2 lanes")
    data = data_of(invoke("explain", "two.yaml", "--lanes", "--json"))
    rows = [(lane["lane"], lane["tasks"], lane["pinned"], lane["waits"]) for lane in data["lanes"]]
    assert rows == [("main", 1, 0, 1), ("copy", 1, 1, 1)]
    assert all(0 < lane["busy_share"] <= 1 for lane in data["lanes"])


def test_explain_lanes_counts_urgent_launches_where_there_are_some(invoke: Invoke) -> None:
    assert "urgent" not in invoke("explain", "two.yaml", "--lanes").stdout
    invoke("plan", "two.yaml", "--executor", "graph", "-o", "plan.json")
    schedule = hurried(Schedule.from_json(Path("plan.json").read_text(encoding="utf-8")), share=1.0)
    Path("plan.json").write_text(schedule.to_json(), encoding="utf-8")
    assert invoke("explain", "plan.json", "--lanes").stdout.splitlines()[2].endswith("priority  urgent")
    lanes = data_of(invoke("explain", "plan.json", "--lanes", "--json"))["lanes"]
    assert [(lane["lane"], lane["urgent"]) for lane in lanes] == [("main", 1), ("copy", 1)]


@pytest.mark.parametrize(
    "arguments",
    [("two.yaml", "--waits", "--lanes"), ("two.yaml", "work", "--lanes"), ("two.yaml", "load", "work", "--waits"),
     ("two.yaml", "work", "--critical-path")],
)  # fmt: skip
def test_what_does_not_go_together_is_wrong_usage(arguments: tuple[str, ...], invoke: Invoke) -> None:
    assert invoke("explain", *arguments).exit_code == 2


@pytest.fixture
def moved(invoke: Invoke) -> str:
    Path("moved.yaml").write_text(TWO_LANES.replace(", stream: copy", ", stream: main"), encoding="utf-8")
    return "moved.yaml"


def test_diff_says_what_changed_and_exits_with_1_if_asked_to(invoke: Invoke, moved: str) -> None:
    result = invoke("diff", "two.yaml", moved)
    assert result.exit_code == 0
    assert "lanes:\n  load: copy -> main" in result.stdout
    assert "- load -> work @main (RAW b)" in result.stdout
    assert invoke("diff", "two.yaml", moved, "--exit-code").exit_code == 1
    assert invoke("diff", "two.yaml", "two.yaml", "--exit-code").exit_code == 0


def test_diff_takes_saved_schedules_and_stdin(invoke: Invoke, moved: str) -> None:
    assert invoke("plan", "two.yaml", "-o", "two.json").exit_code == 0
    assert "two: the same plan" in invoke("diff", "two.json", "two.yaml").stdout
    assert "two: the plans differ" in invoke("diff", "two.json", "-", input=Path(moved).read_text(encoding="utf-8")).stdout
    assert invoke("diff", "-", "-").exit_code == 2


def test_diff_as_markdown_and_as_data(invoke: Invoke, moved: str) -> None:
    shown = invoke("diff", "two.yaml", moved, "--format", "markdown").stdout
    assert "| lanes | 2 | 1 | -1 |" in shown
    assert "- load: copy -\\> main" in shown
    data = data_of(invoke("diff", "two.yaml", moved, "--json"))
    assert data["same"] is False
    assert data["moved"] == [{"task": "load", "before": "copy", "after": "main"}]
    assert data["waits"]["removed"][1]["why"] == ["RAW b"]
    assert data["figures"]["waits"] == {"before": 2, "after": 0, "unit": "count"}


def test_diff_tells_the_errors_of_either_side(invoke: Invoke) -> None:
    Path("wrong.yaml").write_text(TWO_LANES.replace("reads: b", "reads: bb"), encoding="utf-8")
    result = invoke("diff", "two.yaml", "wrong.yaml")
    assert result.exit_code == 1
    assert "SG201" in result.stderr
