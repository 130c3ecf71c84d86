"""The waits of a loop in words: each with its distance and hazard, needed or for memory only; and what two loops do not share."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from streamgraph.cli import cli
from streamgraph.loop_waits import loop_difference, loop_waits, without
from streamgraph.plan_loop import plan_loop
from tests.programs import seeded

SPECS = Path(__file__).parents[1] / "specs"
STREAM, PINGPONG = (str(SPECS / f"{name}.streamgraph.yaml") for name in ("stream", "pingpong"))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.fixture
def one_slot(tmp_path: Path) -> str:
    path = tmp_path / "one.yaml"
    path.write_text(Path(PINGPONG).read_text(encoding="utf-8").replace("slots: 2", "slots: 1"), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("seed", range(12))
def test_every_wait_is_told_and_is_needed_or_bounds_memory(seed: int) -> None:
    of = seeded(seed, tasks=8)
    draws = random.Random(seed)
    loop = plan_loop(of, frozenset(t.name for t in of.inputs if draws.random() < 0.6), inflight=1 + seed % 3)
    told = loop_waits(loop)
    assert [(wait.later, wait.earlier) for wait in told] == [(issue.task, back) for issue in loop.steady for back in issue.waits]
    for wait in told:
        missed = without(loop, wait)
        if "memory does not grow" not in wait.why:
            assert missed, f"nobody misses {wait}"
            assert wait.why.startswith(("RAW", "WAR", "WAW", "after", "host order"))


def test_a_loop_differs_from_itself_in_nothing_and_from_one_with_fewer_slots_in_the_wait_that_serialises(one_slot: str) -> None:
    loop, one = plan_loop(PINGPONG, frozenset()), plan_loop(one_slot, frozenset())
    assert loop_difference(loop, loop).is_empty
    found = loop_difference(loop, one)
    assert [str(wait) for wait in found.added] == ["red[-1] -> bw"]
    assert [str(wait) for wait in found.removed] == ["red[-2] -> bw"]
    assert found.moved == ()
    assert not loop_difference(loop, replace(loop, inflight=3)).is_empty


def test_a_task_on_another_lane_is_told() -> None:
    loop = plan_loop(PINGPONG, frozenset())
    steady = tuple(replace(issue, lane="main") if issue.task == "norm" else issue for issue in loop.steady)
    assert loop_difference(loop, replace(loop, steady=steady)).moved == (("norm", "comm", "main"),)


def test_explain_tells_every_wait_of_the_steady_state_and_what_goes_wrong_without_it() -> None:
    done = invoke("explain", PINGPONG, "--iterations", "--waits")
    assert done.exit_code == 0, done.output
    assert "red[-2] -> bw @main\n    WAR bucket\n    without it: race: 'bw#2' (@main) writes" in done.stdout
    assert "download[-1] -> deliver @host" in done.stdout
    data = json.loads(invoke("explain", PINGPONG, "--iterations", "--waits", "--json").stdout)
    assert [(w["earlier"], w["iterations_back"], w["later"], w["why"]) for w in data["waits"]] == [
        ("red", 2, "bw", "WAR bucket"), ("bw", 0, "red", "RAW bucket"), ("download", 1, "deliver", "RAW size"),
    ]  # fmt: skip
    assert all("SG703" in wait["without"] for wait in data["waits"])


def test_where_looking_at_every_wait_would_take_long_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamgraph.commands.loop.MOST_LOOKED", 100)
    done = invoke("explain", STREAM, "--iterations", "--item", "packet", "--waits")
    assert done.exit_code == 0
    assert "without it" not in done.stdout
    assert "would take long to find: name a task or two" in done.stderr
    assert "plan " in done.stderr
    assert "--iterations --item packet" in done.stderr


def test_explain_takes_a_task_or_two() -> None:
    done = invoke("explain", STREAM, "upload", "--iterations", "--item", "packet")
    assert "follow[-2] -> upload" in done.stdout
    assert "upload -> compare" in done.stdout
    assert "deliver" not in done.stdout
    done = invoke("explain", STREAM, "upload", "follow", "--iterations", "--item", "packet")
    assert "1 wait in every iteration" in done.stdout
    done = invoke("explain", STREAM, "upload", "download", "--iterations", "--item", "packet")
    assert "No wait of the steady state is for upload and download." in done.stdout
    done = invoke("explain", STREAM, "uplod", "--iterations")
    assert done.exit_code == 1
    assert "did you mean 'upload'?" in done.stderr


def test_diff_compares_loops(one_slot: str) -> None:
    done = invoke("diff", PINGPONG, one_slot, "--iterations", "--exit-code")
    assert done.exit_code == 1
    assert "+ red[-1] -> bw @main    WAR bucket\n- red[-2] -> bw @main    WAR bucket\n" in done.stdout
    data = json.loads(invoke("diff", PINGPONG, one_slot, "--iterations", "--json").stdout)
    assert data["per_iteration"][1] > 1.7 * data["per_iteration"][0]
    done = invoke("diff", PINGPONG, PINGPONG, "--iterations", "--exit-code")
    assert done.exit_code == 0
    assert "same waits" in done.stdout


def test_a_saved_schedule_has_the_loop_of_its_spec(tmp_path: Path) -> None:
    """Nothing of a loop needs to be saved: it is planned from the program and the options, which a saved schedule holds."""
    saved = tmp_path / "plan.json"
    assert invoke("plan", STREAM, "-o", str(saved)).exit_code == 0
    done = invoke("diff", STREAM, str(saved), "--iterations", "--item", "packet", "--exit-code")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("explain", STREAM, "--item", "packet"), "--item only means something with --iterations"),
        (("explain", STREAM, "--iterations", "--lanes"), "--iterations goes with --waits"),
        (("diff", STREAM, PINGPONG, "--inflight", "2"), "--inflight only means something with --iterations"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(arguments: tuple[str, ...], said: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
