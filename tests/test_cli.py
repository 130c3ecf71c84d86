"""The command line: what goes to stdout, what to stderr, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from streamgraph.cli import cli
from streamgraph.commands.report import Report, aligned, coloured
from streamgraph.errors import CATALOGUE
from tests.support import TWO_LANES

DOCS = Path(__file__).resolve().parents[1] / "docs"
ROOT = Path(__file__).resolve().parents[1]
Invoke = Callable[..., Result]

TEN_MISTAKES = """\
streamgraph: 1
name: ten
tensors:
  x: {type: "f32[8]", kind: input, init: randm}
  b: f33[8]
  fam: {type: "f32[4]", each: {i: 4}}
tasks:
  a: {run: aten.relu, raeds: [x], writes: h}
  b: {run: aten.relu, reads: [x], writes: g, cost: 120}
  c: {run: aten.add, reads: [xx, x], writes: k}
  d: {run: aten.add, reads: [fam@7, x], writes: l}
  e: {run: aten.relu, reads: [x], writes: m, after: [bb]}
  f: {run: aten.relu, reads: [x], writes: n, stream: 3}
  g: {run: aten.relu, reads: [x], wirtes: [o]}
outputs: [nothing]
"""
PLANTED = {  # line: (code, a word of the help)
    4: ("SG105", "random"), 5: ("SG106", "f16"), 8: ("SG101", "reads"), 9: ("SG104", "120us"), 10: ("SG201", "'x'"),
    11: ("SG202", "fam@3"), 12: ("SG203", "'b'"), 13: ("SG103", "quote"), 14: ("SG101", "writes"), 15: ("SG210", "tensors"),
}  # fmt: skip
SMALL_RING = """\
streamgraph: 1
name: small
tensors:
  w: {type: "f32[8]", each: {i: 3}, slots: 1, over: i}
tasks:
  fill: {each: {i: 3}, run: aten.zeros, const: {size: [8]}, writes: w@$i}
  use: {run: aten.add, reads: [w@0, w@1], writes: y}
outputs: [y]
"""


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs a command in an empty folder that holds `two.yaml`."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    Path("two.yaml").write_text(TWO_LANES, encoding="utf-8")
    runner = CliRunner()

    def run(*arguments: str, input: str | None = None) -> Result:
        result = runner.invoke(cli, list(arguments), input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


def data_of(result: Result) -> dict[str, Any]:
    assert result.stderr == ""
    data: dict[str, Any] = json.loads(result.stdout)
    assert data["streamgraph"] == 1
    assert data["exit_code"] == result.exit_code
    assert data["ok"] == (result.exit_code == 0)
    return data


# --- the whole of it ----------------------------------------------------------------------------------------------------------------


def test_a_stranger_gets_from_nothing_to_an_explained_run(invoke: Invoke) -> None:
    assert invoke("init", "demo").stdout.splitlines() == ["demo.streamgraph.yaml", "demo.py", "streamgraph.schema.json"]
    assert "fine, 9 tasks" in invoke("check", "demo.streamgraph.yaml").stderr
    ran = invoke("run", "demo.streamgraph.yaml")
    assert ran.exit_code == 0
    assert "results are real, times are simulated" in ran.stdout
    assert "equal to the tasks one after another, bit for bit" in ran.stdout
    assert "made up by `init`, seed 0: packet@*, weight" in ran.stdout
    assert "rectify@0" in invoke("draw", "demo.streamgraph.yaml").stdout
    assert "wait" in invoke("explain", "demo.streamgraph.yaml", "join").stdout


def test_without_a_command_the_path_is_shown(invoke: Invoke) -> None:
    shown = invoke().stdout
    places = [shown.index(f"streamgraph {word}") for word in ("init", "check", "run", "draw", "explain")]
    assert places == sorted(places)


@pytest.mark.parametrize("name", list(cli.commands))
def test_every_command_has_two_examples_and_a_place_in_the_documentation(name: str, invoke: Invoke) -> None:
    shown = invoke(name, "--help").stdout
    examples = re.search(r"Examples:\n((?:  streamgraph .*\n)+)", shown)
    assert examples is not None
    assert examples[1].count("\n") == 2
    assert all(line.startswith(f"  streamgraph {name}") for line in examples[1].splitlines())
    assert shown.index("Examples:") < shown.index("Usage:") < shown.index("Common options:")
    assert invoke(name, "-h").stdout == shown
    documented = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert f"## {name}\n" in documented
    section = documented.partition("\n## init")[0] + documented.partition(f"## {name}\n")[2].partition("\n## ")[0]
    for parameter in cli.commands[name].params:
        if isinstance(parameter, click.Option):
            assert all(f"`{word}" in section for word in parameter.opts), parameter.opts


@pytest.mark.parametrize("word", ["--json", "--quiet", "--verbose", "--color", "--traceback"])
def test_every_command_takes_the_common_options(word: str) -> None:
    for command in cli.commands.values():
        assert any(word in parameter.opts for parameter in command.params)


@pytest.mark.parametrize(
    "arguments",
    [("check", "two.yaml"), ("plan", "two.yaml"), ("explain", "two.yaml"), ("explain", "two.yaml", "work"), ("draw", "two.yaml"),
     ("draw", "two.yaml", "-o", "two.svg"), ("run", "two.yaml"), ("compare", "two.yaml"), ("expand", "two.yaml"), ("init", "mine"),
     ("doctor",), ("schema",), ("run", "two.yaml", "--device", "sim")],
)  # fmt: skip
def test_every_command_ends_with_what_to_do_next_and_quiet_leaves_it_out(arguments: tuple[str, ...], invoke: Invoke) -> None:
    loud = invoke(*arguments)
    assert loud.exit_code == 0
    assert "Next:" in loud.stderr or "editor" in loud.stderr
    assert "Next:" not in loud.stdout
    quiet = invoke(*arguments, "-q", *(["--force"] if arguments[0] == "init" else []))
    assert quiet.stderr == ""
    assert quiet.stdout == loud.stdout


@pytest.mark.parametrize("name", list(cli.commands))
def test_json_is_one_object_and_nothing_else(name: str, invoke: Invoke) -> None:
    arguments = {"init": [], "doctor": [], "schema": [], "diff": ["two.yaml"] * 2}.get(name, ["two.yaml"])
    data = data_of(invoke(name, *arguments, "--json"))
    assert data["command"] == name
    assert data["problems"] == []
    assert len(data) > 5


def test_json_errors_are_objects_too(invoke: Invoke) -> None:
    for arguments in (("plan", "none.yaml"), ("check", "none.yaml"), ("run", "none.yaml")):
        data = data_of(invoke(*arguments, "--json"))
        assert [problem["code"] for problem in data["problems"]] == ["SG006"]
        assert data["exit_code"] == 1
    assert data_of(invoke("plan", "--json"))["error"].startswith("Missing argument")


# --- exit codes ---------------------------------------------------------------------------------------------------------------------


def test_exit_code_2_is_wrong_usage_and_the_near_word_is_named(invoke: Invoke) -> None:
    result = invoke("plna", "two.yaml")
    assert result.exit_code == 2
    assert "'plan'" in result.stderr
    assert result.stdout == ""
    for arguments in (("plan", "two.yaml", "--stream", "2"), ("plan", "two.yaml", "--streams", "0"), ("run", "two.yaml", "--device", "tpu"),
                      ("plan", "two.yaml", "--param", "x"), ("explain", "SG999"), ("explain", "two.yaml", "a", "b", "c"),
                      ("init", "no/name"), ("compare", "two.yaml", "--device", "sim")):  # fmt: skip
        assert invoke(*arguments).exit_code == 2, arguments


def test_exit_code_3_is_a_task_that_failed(invoke: Invoke) -> None:
    Path("ops.py").write_text("def work(x):\n    raise ValueError('too bad')\n", encoding="utf-8")
    Path("own.yaml").write_text(TWO_LANES.replace("aten.relu", "work"), encoding="utf-8")
    result = invoke("run", "own.yaml", "--ops", "ops.py")
    assert result.exit_code == 3
    assert "too bad" in result.stderr
    assert "ops.py:2" in result.stderr
    assert "Traceback" not in result.stderr


def test_exit_code_4_is_a_device_that_is_not_here(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = invoke("run", "two.yaml", "--device", "cuda")
    assert result.exit_code == 4
    assert "SG606" in result.stderr
    assert data_of(invoke("run", "two.yaml", "--device", "cuda", "--json"))["exit_code"] == 4
    assert invoke("doctor", "--require-cuda").exit_code == 4


def test_exit_code_130_is_an_interrupt(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["streamgraph.plan"], "plan", interrupted)
    result = invoke("plan", "two.yaml")
    assert result.exit_code == 130
    assert result.stderr == "error: interrupted\n"


def test_a_defect_is_one_line_and_a_file_with_the_traceback(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(sys.modules["streamgraph.plan"], "plan", broken)
    result = invoke("plan", "two.yaml")
    assert result.exit_code == 70
    assert "error[SG901]: streamgraph itself failed: ZeroDivisionError: by nothing" in result.stderr
    assert "Traceback" not in result.stderr
    path = Path(re.search(r"the traceback is in (\S+):", result.stderr)[1])  # type: ignore[index]
    assert "ZeroDivisionError: by nothing" in path.read_text(encoding="utf-8")
    path.unlink()
    assert "Traceback (most recent call last)" in invoke("plan", "two.yaml", "--traceback").stderr


# --- check --------------------------------------------------------------------------------------------------------------------------


def test_ten_mistakes_are_ten_errors_each_at_its_place_with_a_remedy(invoke: Invoke) -> None:
    Path("ten.yaml").write_text(TEN_MISTAKES, encoding="utf-8")
    data = data_of(invoke("check", "ten.yaml", "--json"))
    assert data["exit_code"] == 1
    found = {problem["line"]: problem for problem in data["problems"]}
    assert len(data["problems"]) == len(PLANTED)
    for line, (code, word) in PLANTED.items():
        assert found[line]["code"] == code, line
        assert word in found[line]["help"], line
    text = invoke("check", "ten.yaml")
    heads = re.findall(r"^ten\.yaml:(\d+):\d+: error\[(SG\d+)\]", text.stderr, re.MULTILINE)
    assert heads == [(str(line), code) for line, (code, _) in PLANTED.items()]
    assert text.stdout == ""
    annotations = invoke("check", "ten.yaml", "--format", "github").stdout.splitlines()
    assert [re.match(r"::error file=ten\.yaml,line=(\d+),col=\d+,title=SG\d+::", line)[1] for line in annotations] == [  # type: ignore[index]
        str(line) for line in PLANTED
    ]


def test_annotations_escape_what_would_end_them(invoke: Invoke) -> None:
    Path("a,b.yaml").write_text("streamgraph: 1\ntasks:\n  a: {run: aten.relu, reads: ['50%'], writes: h}\n", encoding="utf-8")
    shown = invoke("check", "a,b.yaml", "--format", "github").stdout
    assert "file=a%2Cb.yaml,line=3" in shown
    assert "50%25" in shown


def test_check_finds_what_only_planning_finds(invoke: Invoke) -> None:
    Path("ring.yaml").write_text(SMALL_RING, encoding="utf-8")
    result = invoke("check", "ring.yaml")
    assert result.exit_code == 1
    assert "SG303" in result.stderr
    assert "slots: 3" in result.stderr or "slots: 2" in result.stderr


def test_warnings_are_told_and_do_not_change_the_exit_code(invoke: Invoke) -> None:
    unpinned = TWO_LANES.replace("init: random}", "init: random, device: cpu}")
    Path("warn.yaml").write_text(unpinned, encoding="utf-8")
    result = invoke("check", "warn.yaml")
    assert result.exit_code == 0
    assert "warning[SG306]" in result.stderr
    assert "(1 warning)" in result.stderr
    assert "warning" not in invoke("check", "warn.yaml", "-q").stderr
    assert invoke("check", "warn.yaml", "--format", "github").stdout.startswith("::warning ")


def test_several_specs_are_all_checked_and_one_bad_one_is_enough(invoke: Invoke) -> None:
    Path("ten.yaml").write_text(TEN_MISTAKES, encoding="utf-8")
    data = data_of(invoke("check", "ten.yaml", "two.yaml", "--format", "json"))
    assert [(file["file"], file["ok"]) for file in data["files"]] == [("ten.yaml", False), ("two.yaml", True)]
    assert data["exit_code"] == 1


def test_check_with_operators_finds_missing_ones_and_wrong_signatures(invoke: Invoke) -> None:
    Path("own.yaml").write_text(TWO_LANES.replace("aten.relu", "work"), encoding="utf-8")
    assert invoke("check", "own.yaml").exit_code == 0
    Path("ops.py").write_text("def work(x):\n    return x + 1\n", encoding="utf-8")
    assert invoke("check", "own.yaml", "--ops", "ops.py").exit_code == 0
    Path("ops2.py").write_text("def work(x, y):\n    return x + y\n", encoding="utf-8")
    assert "SG402" in invoke("check", "own.yaml", "--ops", "ops2.py").stderr
    Path("ops3.py").write_text("def wrok(x):\n    return x\n", encoding="utf-8")
    missing = invoke("check", "own.yaml", "--ops", "ops3.py")
    assert missing.exit_code == 1
    assert "SG401" in missing.stderr
    Path("ops4.py").write_text("1 / 0\n", encoding="utf-8")
    for path in ("ops4.py", "ops5.py"):
        broken = invoke("check", "own.yaml", "--ops", path)
        assert broken.exit_code == 1
        assert "SG407" in broken.stderr
        assert "Traceback" not in broken.stderr


def test_more_than_twenty_errors_are_counted_and_verbose_shows_them(invoke: Invoke) -> None:
    lines = "".join(f"  t{i}: {{run: aten.relu, reads: [none{i}], writes: h{i}}}\n" for i in range(25))
    Path("many.yaml").write_text(f"streamgraph: 1\ntasks:\n{lines}", encoding="utf-8")
    assert "... and 5 more" in invoke("check", "many.yaml").stderr
    assert invoke("check", "many.yaml", "-v").stderr.count("error[SG201]") == 25


# --- plan, explain, draw ------------------------------------------------------------------------------------------------------------


def test_plan_shows_lanes_and_figures(invoke: Invoke) -> None:
    shown = invoke("plan", "two.yaml").stdout
    assert re.search(r"^main +work$", shown, re.MULTILINE)
    assert re.search(r"^copy +load$", shown, re.MULTILINE)
    assert "1 hazard (1 between lanes) is kept by" in shown
    assert re.search(r"^ +2 waits", shown, re.MULTILINE)
    assert re.search(r"^ +2 events", shown, re.MULTILINE)
    assert re.search(r"^ +0 record_stream", shown, re.MULTILINE)
    assert "launch load @copy" not in shown
    assert "launch load @copy" in invoke("plan", "two.yaml", "--steps").stdout


def test_figures_by_hand_are_never_below_those_of_the_schedule(invoke: Invoke) -> None:
    invoke("init", "demo")
    for cams in (1, 2, 5):
        figures = data_of(invoke("plan", "demo.streamgraph.yaml", "--param", f"cams={cams}", "--json"))["figures"]
        for name in ("waits", "events", "record_streams"):
            assert 0 <= figures[name] <= figures[f"{name}_by_hand"]


def test_planning_options_reach_the_planner(invoke: Invoke) -> None:
    data = data_of(invoke("plan", "two.yaml", "--streams", "1", "--order", "auto", "--release", "early", "--json"))
    assert data["options"] == {"streams": "1", "order": "auto", "release": "early", "policy": "auto"}
    data = data_of(invoke("plan", "two.yaml", "--policy", "opara", "--json"))
    assert data["options"]["policy"] == "opara"


def test_a_parameter_is_overridden_and_an_unknown_one_is_an_error(invoke: Invoke) -> None:
    invoke("init", "demo")
    assert "detect@3" in invoke("plan", "demo.streamgraph.yaml", "--param", "cams=4").stdout
    assert invoke("plan", "demo.streamgraph.yaml", "--param", "cmas=4").exit_code == 1


def test_a_saved_schedule_takes_the_place_of_the_spec(invoke: Invoke) -> None:
    assert invoke("plan", "two.yaml", "-o", "plan.json").exit_code == 0
    for arguments in (("plan",), ("draw",), ("run",)):
        assert invoke(*arguments, "plan.json").stdout == invoke(*arguments, "two.yaml").stdout
    assert invoke("explain", "plan.json", "work").exit_code == 0
    assert invoke("plan", "two.yaml", "-o", "-").stdout == Path("plan.json").read_text(encoding="utf-8")
    assert invoke("plan", "plan.json", "--param", "a=1").exit_code == 2
    assert invoke("compare", "plan.json", "--outputs", "b").exit_code == 2
    text = Path("plan.json").read_text(encoding="utf-8")
    Path("edited.json").write_text(re.sub(r'\n *"wait e0[^\n]*', "", text), encoding="utf-8")
    edited = invoke("run", "edited.json")
    assert edited.exit_code == 1
    assert "SG701" in edited.stderr


@pytest.mark.parametrize("command", ["check", "plan", "draw", "explain", "expand", "run"])
def test_a_spec_may_come_from_stdin(command: str, invoke: Invoke) -> None:
    assert invoke(command, "-", input=TWO_LANES).exit_code == 0
    broken = invoke(command, "-", input=TWO_LANES.replace("reads", "raeds"))
    assert broken.exit_code == 1
    assert "<stdin>:8:" in broken.stderr


def test_a_saved_schedule_is_taken_as_it_is_and_what_was_asked_for_besides_is_named(invoke: Invoke) -> None:
    invoke("init", "demo")
    assert invoke("plan", "demo.streamgraph.yaml", "-o", "plan.json").exit_code == 0
    same = invoke("plan", "plan.json", "--policy", "single", "--streams", "1")
    assert "taken as it is, without --streams 1, --policy single" in same.stderr
    assert same.stdout == invoke("plan", "plan.json").stdout
    assert "taken as it is" not in invoke("plan", "plan.json").stderr


@pytest.mark.parametrize("command", ["check", "expand", "profile", "tune"])
def test_commands_that_work_on_a_spec_say_so_where_they_get_a_saved_schedule(command: str, invoke: Invoke) -> None:
    invoke("init", "demo")
    invoke("plan", "demo.streamgraph.yaml", "-o", "plan.json")
    refused = invoke(command, "plan.json")
    assert refused.exit_code == 1
    assert "'plan.json' is a saved schedule" in refused.stderr
    assert "name the spec" in refused.stderr


def test_the_documentation_shows_what_plan_prints(invoke: Invoke) -> None:
    invoke("init", "demo")
    shown = invoke("plan", "demo.streamgraph.yaml").stdout
    assert shown in (Path(__file__).parents[1] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_after_a_loop_the_next_commands_are_about_the_loop(invoke: Invoke) -> None:
    invoke("init", "demo")
    ran = invoke("run", "demo.streamgraph.yaml", "--iterations", "2", "--device", "cpu")
    assert "draw demo.streamgraph.yaml --iterations 2" in ran.stderr
    assert "One call on its own is planned like this" in ran.stdout
    drawn = invoke("draw", "demo.streamgraph.yaml", "--iterations", "2")
    assert "--iterations 2 -o demo.html" in drawn.stderr


def test_a_loop_over_several_devices_shows_the_lanes_of_each(invoke: Invoke) -> None:
    spec = str(Path(__file__).parents[1] / "specs" / "two_gpus.streamgraph.yaml")
    options = (spec, "--iterations", "--item", "batch")
    assert "On cuda:0: @main, @load, @hop; on cuda:1: @second, @store." in invoke("plan", *options).stdout
    lanes = {lane["lane"]: lane["device"] for lane in json.loads(invoke("plan", *options, "--json").stdout)["lanes"]}
    assert lanes == {"main": "cuda:0", "load": "cuda:0", "hop": "cuda:0", "second": "cuda:1", "store": "cuda:1", "host": None}
    drawn = invoke("draw", spec, "--iterations", "3", "--item", "batch", "-o", "loop.svg")
    assert drawn.exit_code == 0
    assert all(device in Path("loop.svg").read_text() for device in ("cuda:0", "cuda:1"))


@pytest.mark.parametrize("command", [("plan",), ("plan", "--iterations"), ("draw",), ("explain",), ("run",)])
def test_what_no_cuda_graph_can_be_is_not_planned_as_one(command: tuple[str, ...], invoke: Invoke) -> None:
    spec = str(Path(__file__).parents[1] / "specs" / "two_gpus.streamgraph.yaml")
    refused = invoke(*command, spec, "--executor", "graph")
    assert refused.exit_code == 4
    assert "SG611" in refused.stderr
    assert "cuda:0 and cuda:1" in refused.stderr


def test_a_saved_schedule_may_come_from_stdin(invoke: Invoke) -> None:
    saved = invoke("plan", "two.yaml", "-o", "-").stdout
    assert invoke("plan", "-", input=saved).stdout == invoke("plan", "two.yaml").stdout


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes in the file system")
@pytest.mark.parametrize("command", ["check", "plan", "draw", "explain", "expand", "run", "compare"])
def test_what_is_no_regular_file_is_told_and_never_waited_for(command: str, invoke: Invoke) -> None:
    os.mkfifo("pipe.yaml")
    Path("folder.yaml").mkdir()
    for spec in ("pipe.yaml", "folder.yaml", "none.yaml"):
        result = invoke(command, spec)
        assert result.exit_code == 1, spec
        assert "SG006" in result.stderr


def test_explain_answers_for_one_task_for_two_and_for_all_waits(invoke: Invoke) -> None:
    assert "load (RAW b): wait" in invoke("explain", "two.yaml", "work").stdout
    assert "work waits for load" in invoke("explain", "two.yaml", "work", "load").stdout
    assert "RAW b: load -> work (two.yaml:8)" in invoke("explain", "two.yaml").stdout
    unknown = invoke("explain", "two.yaml", "wrok")
    assert unknown.exit_code == 1
    assert "did you mean 'work'?" in unknown.stderr
    assert "Nothing waits" in invoke("explain", "two.yaml", "--streams", "1").stdout or "wait" in invoke("explain", "two.yaml").stdout


def test_explain_knows_every_code_and_lists_groups(invoke: Invoke) -> None:
    for code, text in CATALOGUE.items():
        assert invoke("explain", code).stdout == f"{code}: {text}\n"
    assert invoke("explain", "sg301").stdout.startswith("SG301: ")
    assert len(invoke("explain", "SG").stdout.splitlines()) == len(CATALOGUE)
    assert set(data_of(invoke("explain", "SG7", "--json"))["codes"]) == {code for code in CATALOGUE if code.startswith("SG7")}


@pytest.mark.parametrize("suffix", ["svg", "mmd", "dot", "txt", "json"])
def test_the_suffix_decides_how_to_draw(suffix: str, invoke: Invoke) -> None:
    result = invoke("draw", "two.yaml", "-o", f"two.{suffix}")
    assert result.exit_code == 0
    assert result.stdout == f"two.{suffix}\n"
    assert "load" in Path(f"two.{suffix}").read_text(encoding="utf-8")


def test_a_picture_that_cannot_be_made_or_written_is_an_error(invoke: Invoke) -> None:
    assert "SG707" in invoke("draw", "two.yaml", "-o", "two.png").stderr
    assert not Path("two.png").exists()
    result = invoke("draw", "two.yaml", "-o", "nowhere/two.svg")
    assert result.exit_code == 1
    assert "SG012" in result.stderr


def test_lanes_have_colours_where_colour_is_wanted_and_the_text_is_the_same(invoke: Invoke) -> None:
    plain, coloured = invoke("draw", "two.yaml").stdout, invoke("draw", "two.yaml", "--color", "always").stdout
    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert re.search(r"^\x1b\[36mmain *[│|]", coloured, re.MULTILINE)


def test_the_report_shows_the_spec_as_it_was_written(invoke: Invoke) -> None:
    for arguments in (["draw", "two.yaml", "-o", "two.html"], ["run", "two.yaml", "--device", "sim", "--report", "two.html"]):
        Path("two.html").unlink(missing_ok=True)
        result = invoke(*arguments)
        assert result.exit_code == 0, result.stderr
        assert "one file" in result.stderr
        text = Path("two.html").read_text(encoding="utf-8")
        assert json.dumps(Path("two.yaml").read_text().splitlines()[0])[1:-1] in text
    assert json.loads(invoke("run", "two.yaml", "--device", "sim", "--report", "two.html", "--json").stdout)["report"] == "two.html"


def test_long_lanes_are_shortened_and_json_lists_all(invoke: Invoke) -> None:
    lines = "".join(f"  t{i}: {{run: aten.relu, reads: x, writes: h{i}, stream: main}}\n" for i in range(60))
    spec = f'streamgraph: 1\ntensors:\n  x: {{type: "f32[1]", kind: input}}\ntasks:\n{lines}'
    Path("long.yaml").write_text(spec, encoding="utf-8")
    shown = invoke("plan", "long.yaml").stdout
    assert "... and 36 more" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert len(data_of(invoke("plan", "long.yaml", "--json"))["lanes"][0]["tasks"]) == 60
    Path("family.yaml").write_text(
        'streamgraph: 1\ntensors:\n  x: {type: "f32[1]", kind: input}\n'
        "tasks:\n  t: {each: {i: 60}, run: aten.relu, reads: x, writes: h@$i, stream: main}\n", encoding="utf-8",
    )  # fmt: skip
    assert "t@0 .. t@59 (60)" in invoke("plan", "family.yaml").stdout


# --- init, expand, schema -----------------------------------------------------------------------------------------------------------


def test_init_refuses_to_overwrite_unless_forced(invoke: Invoke) -> None:
    assert invoke("init", "demo").exit_code == 0
    Path("demo.py").write_text("mine", encoding="utf-8")
    refused = invoke("init", "demo")
    assert refused.exit_code == 1
    assert "'demo.py' is already there" in refused.stderr
    assert Path("demo.py").read_text(encoding="utf-8") == "mine"
    assert invoke("init", "demo", "--force").exit_code == 0
    assert Path("demo.py").read_text(encoding="utf-8") != "mine"


def test_init_writes_a_second_spec_beside_the_first(invoke: Invoke) -> None:
    assert invoke("init", "demo").exit_code == 0
    assert invoke("init", "cameras").exit_code == 0


def test_the_skeleton_checks_runs_and_compares(invoke: Invoke) -> None:
    assert invoke("init", "cameras").stdout.splitlines() == ["cameras.streamgraph.yaml", "cameras_ops.py", "streamgraph.schema.json"]
    spec = ("cameras.streamgraph.yaml", "--ops", "cameras_ops.py")
    assert invoke("check", *spec).exit_code == 0
    assert "bit for bit" in invoke("run", *spec).stdout
    assert invoke("compare", *spec).exit_code == 0
    assert "__NAME__" not in Path("cameras.streamgraph.yaml").read_text(encoding="utf-8")


def test_the_demo_in_python_is_the_demo_in_yaml(invoke: Invoke) -> None:
    from streamgraph.plan import plan
    from streamgraph.spec import load

    invoke("init", "demo")
    names: dict[str, Any] = {"__name__": "demo"}
    exec(compile(Path("demo.py").read_text(encoding="utf-8"), "demo.py", "exec"), names)
    mine, its = plan(names["graph"]), plan(load("demo.streamgraph.yaml").program)

    def plain(text: str) -> str:
        return re.sub(r" \(demo\S*:\d+\)", "", text)

    assert plain(str(mine)) == plain(str(its))


def test_the_demo_under_another_name_is_called_so(invoke: Invoke) -> None:
    assert invoke("init", "mine", "--template", "demo").exit_code == 0
    assert "name: mine" in Path("mine.streamgraph.yaml").read_text(encoding="utf-8")
    assert invoke("run", "mine.streamgraph.yaml").exit_code == 0


def test_what_init_writes_carries_both_modelines_and_fits_the_schema(invoke: Invoke) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    for name in ("demo", "cameras"):
        invoke("init", name)
        text = Path(f"{name}.streamgraph.yaml").read_text(encoding="utf-8")
        assert text.startswith("# yaml-language-server: $schema=./streamgraph.schema.json\n# $schema: ./streamgraph.schema.json\n")
        schema = json.loads(Path("streamgraph.schema.json").read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(text))


def test_the_schema_is_printed_or_written(invoke: Invoke) -> None:
    printed = json.loads(invoke("schema").stdout)
    assert "tasks" in printed["properties"]
    assert invoke("schema", "--output", "s.json").stdout == "s.json\n"
    assert json.loads(Path("s.json").read_text(encoding="utf-8")) == printed == data_of(invoke("schema", "--json"))["schema"]


def test_an_expanded_spec_is_a_spec_with_the_same_schedule(invoke: Invoke) -> None:
    invoke("init", "demo")
    Path("long.yaml").write_text(invoke("expand", "demo.streamgraph.yaml").stdout, encoding="utf-8")
    mine, its = (data_of(invoke("plan", name, "--json"))["steps"] for name in ("demo.streamgraph.yaml", "long.yaml"))
    assert [step.partition("#")[0] for step in mine] == [step.partition("#")[0] for step in its]


# --- run ----------------------------------------------------------------------------------------------------------------------------


def test_run_writes_its_results_and_reads_inputs_from_files(invoke: Invoke) -> None:
    numpy = pytest.importorskip("numpy")
    numpy.save("x.npy", numpy.array([-1, 2, -3, 4, 5, 6, 7, 8], dtype=numpy.float32))
    result = invoke("run", "two.yaml", "--input", "x=x.npy", "--output", "out")
    assert result.exit_code == 0
    assert "made up" not in result.stdout
    assert numpy.load("out/y.npy").tolist() == [0, 2, 0, 4, 5, 6, 7, 8]
    assert str(Path("out/y.npy")) in result.stdout


def test_an_input_that_fits_nothing_is_told(invoke: Invoke) -> None:
    result = invoke("run", "two.yaml", "--input", "z=none.npy")
    assert result.exit_code == 1
    assert "SG502" in result.stderr


def test_an_input_without_init_must_be_given(invoke: Invoke) -> None:
    Path("open.yaml").write_text(TWO_LANES.replace(", init: random", ""), encoding="utf-8")
    result = invoke("run", "open.yaml")
    assert result.exit_code == 1
    assert "SG501" in result.stderr


def test_the_seed_decides_what_is_made_up(invoke: Invoke) -> None:
    first, again, other = (data_of(invoke("run", "two.yaml", "--seed", seed, "--json"))["outputs"]["y"] for seed in ("1", "1", "2"))
    assert first == again != other


def test_no_check_leaves_the_comparison_out(invoke: Invoke) -> None:
    assert "Check:" not in invoke("run", "two.yaml", "--no-check").stdout
    assert data_of(invoke("run", "two.yaml", "--no-check", "--json"))["checked"] is None


def test_an_input_changed_in_place_is_compared_as_well(invoke: Invoke) -> None:
    spec = TWO_LANES.replace("stream: copy}\n", "stream: copy}\n  scale: {run: aten.neg_, updates: x}\n")
    Path("place.yaml").write_text(spec, encoding="utf-8")
    assert data_of(invoke("run", "place.yaml", "--json"))["checked"] == 2


@pytest.mark.parametrize("executor", ["sequential", "lanes", "eager"])
def test_every_executor_can_be_asked_for(executor: str, invoke: Invoke) -> None:
    data = data_of(invoke("run", "two.yaml", "--device", "cpu", "--executor", executor, "--json"))
    assert data["executor"] == executor
    assert data["differing"] == []


FORKS = """\
streamgraph: 1
tasks:
  a: {run: f, writes: x, cost: 6us}
  b: {run: f, reads: x, writes: y, cost: 6us}
  c: {run: f, writes: z, cost: 6us}
  d: {run: f, reads: z, writes: w, cost: 6us}
  e: {run: f, reads: [y, w], writes: o, cost: 6us}
outputs: o
"""


def test_a_plan_for_a_cuda_graph_is_costed_as_captured_and_says_so(invoke: Invoke) -> None:
    Path("forks.yaml").write_text(FORKS, encoding="utf-8")
    eager, graph = (data_of(invoke("plan", "forks.yaml", "--executor", name, "--json")) for name in ("eager", "graph"))
    assert [len(data["lanes"]) for data in (eager, graph)] == [1, 2]
    assert [data["estimate"]["issue"] for data in (eager, graph)] == ["eager", "captured"]
    assert "as a CUDA graph" in invoke("plan", "forks.yaml", "--executor", "graph", "-o", "graph.json").stdout
    assert "CUDA graph" not in invoke("plan", "forks.yaml").stdout
    assert data_of(invoke("plan", "graph.json", "--json"))["estimate"] == graph["estimate"]  # a saved plan knows what it is for
    assert data_of(invoke("plan", "graph.json", "--executor", "eager", "--json"))["estimate"]["issue"] == "eager"
    assert "as a CUDA graph" in invoke("plan", "graph.json", "--iterations").stdout
    simulated = data_of(invoke("run", "forks.yaml", "--device", "sim", "--executor", "graph", "--json"))
    assert simulated["timeline"]["issue"] == "captured"
    assert len(set(simulated["lanes"].values())) == 2


def test_results_that_are_not_numbers_are_remarked(invoke: Invoke) -> None:
    Path("ops.py").write_text("def work(x):\n    return (x - x) / (x - x)\n", encoding="utf-8")
    Path("own.yaml").write_text(TWO_LANES.replace("aten.relu", "work"), encoding="utf-8")
    result = invoke("run", "own.yaml", "--ops", "ops.py")
    assert result.exit_code == 0
    assert "8 elements not finite" in result.stdout
    assert "bit for bit" in result.stdout


def test_a_simulated_run_needs_no_operators(invoke: Invoke) -> None:
    Path("own.yaml").write_text(TWO_LANES.replace("aten.relu", "nowhere"), encoding="utf-8")
    result = invoke("run", "own.yaml", "--device", "sim")
    assert result.exit_code == 0
    assert "nothing was run" in result.stdout
    assert data_of(invoke("run", "own.yaml", "--device", "sim", "--json"))["timeline"]["unit"] == "us"


# --- colour, terminals, pipes -------------------------------------------------------------------------------------------------------


class _Terminal:
    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(
    ("environment", "terminal", "expected"),
    [({}, True, True), ({}, False, False), ({"NO_COLOR": "1"}, True, False), ({"FORCE_COLOR": "1"}, False, True),
     ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False), ({"TERM": "dumb"}, True, False), ({"NO_COLOR": ""}, True, True)],
)  # fmt: skip
def test_colour_follows_the_environment(
    environment: dict[str, str], terminal: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream: Any = _Terminal(terminal)
    assert coloured("auto", stream) is expected
    assert coloured("always", stream) is True
    assert coloured("never", stream) is False


def test_colour_changes_nothing_but_colour(invoke: Invoke) -> None:
    plain = invoke("check", "none.yaml")
    bright = invoke("check", "none.yaml", "--color", "always")
    assert "\x1b[" in bright.stderr
    assert "\x1b[" not in plain.stderr
    assert re.sub(r"\x1b\[[0-9;]*m", "", bright.stderr) == plain.stderr


def test_nothing_in_a_name_reaches_the_terminal_as_a_control_character(invoke: Invoke, capsys: pytest.CaptureFixture[str]) -> None:
    Report("").result("a\x1b[31mb\u202ec\rd\x9be")
    assert capsys.readouterr().out == "a\\x1b[31mb\\u202ec\\rd\\x9be\n"
    result = invoke("explain", "two.yaml", "a\x1b[2Jb")
    assert "\x1b" not in result.stderr


def test_columns_are_aligned_by_cells_not_characters() -> None:
    assert aligned([("日本", "x"), ("abc", "y")]) == "日本  x\nabc   y"


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    spec = tmp_path / "big.yaml"
    spec.write_text(
        'streamgraph: 1\ntensors:\n  x: {type: "f32[1]", kind: input}\n'
        "tasks:\n  t: {each: {i: 3000}, run: aten.relu, reads: x, writes: h@$i}\n", encoding="utf-8",
    )  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "streamgraph", "expand", str(spec)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait() == 0
    assert "Traceback" not in said
    assert "Broken" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_real_interrupt_ends_with_130(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(
        "import pathlib, time\ndef work(x):\n    pathlib.Path('here').touch()\n    time.sleep(60)\n    return x\n", encoding="utf-8"
    )
    (tmp_path / "own.yaml").write_text(TWO_LANES.replace("aten.relu", "work"), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-m", "streamgraph", "run", "own.yaml", "--ops", "ops.py"], cwd=tmp_path, text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        while not (tmp_path / "here").exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
