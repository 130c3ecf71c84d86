"""`tune` measures one stream, `auto` and the plans that are simulated to be fastest, and keeps the fastest that gives the right results."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from streamgraph.bench import bench
from streamgraph.builder import Graph
from streamgraph.cli import cli
from streamgraph.errors import DeviceError, SpecError, TaskError
from streamgraph.plan import plan
from streamgraph.portfolio import LANES
from streamgraph.tune import FINALISTS, PLANNED, Candidate, Tuning, _in_turns, _promising, tune

SPEC = """\
streamgraph: 1
name: forks
tensors:
  x: {type: "f32[8]", kind: input, init: random}
tasks:
  a: {run: aten.relu, reads: x, writes: p, cost: 200us}
  b: {run: aten.neg, reads: x, writes: q, cost: 200us}
  c: {run: aten.add.Tensor, reads: [p, q], writes: y, cost: 100us}
outputs: [y]
"""


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`streamgraph ...` in a folder of its own with forks.yaml."""
    (tmp_path / "forks.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli, list(arguments))


def forks(run: Callable[..., torch.Tensor] = torch.neg) -> Graph:
    made = Graph("forks")
    x = made.input("x", "f32[64]", init="random")
    total = made.buffer("total", "f32[64]")
    parts = [made.task(f"t{number}", run, reads=x, writes=f"y{number}", cost=100.0) for number in range(4)]
    made.task("sum", torch.Tensor.add_, updates=total, reads=parts[0], cost=50.0)
    made.output(made.task("join", lambda parts: torch.stack(parts).sum(0), reads=[parts], writes="z", cost=50.0))
    made.output(total)
    return made


def test_one_stream_and_auto_come_first_and_no_plan_is_measured_twice() -> None:
    found = tune(forks(), device="cpu", plans=3, repeats=3, costs={f"t{n}": 500.0 for n in range(4)}, machine="gpu")
    assert [row.policy for row in found.rows[:2]] == ["single", "auto"]
    assert 3 <= len(found.rows) <= 5
    plans = [(row.schedule.steps, row.schedule.lanes) for row in found.rows]
    assert all(plans.count(one) == 1 for one in plans)
    predicted = [row.predicted for row in found.rows[2:]]
    assert predicted == sorted(predicted)
    assert all(row.equal for row in found.rows)
    assert found.made_up == ("x",)


def test_the_last_round_has_one_stream_auto_and_the_fastest() -> None:
    found = tune(forks(), device="cpu", plans=8, repeats=7, costs={f"t{n}": 500.0 for n in range(4)}, machine="gpu")
    final = [row for row in found.rows if row.final]
    assert found.rows[0].final
    assert found.rows[1].final
    assert len(final) <= 2 + FINALISTS
    assert all(len(row.times) == 7 for row in final)
    assert found.best.final


def test_the_best_is_the_fastest_with_right_results_and_one_stream_where_that_is_about_as_fast() -> None:
    schedule = plan(forks())

    def row(policy: Any, *times: float, final: bool = True, equal: bool = True) -> Candidate:
        return Candidate(policy, 2, schedule, 1.0, times, final, equal)

    alone, fast, wrong = row("single", 100.0, 100.0), row("opara", 50.0, 50.0), row("auto", 10.0, 10.0, equal=False)
    early = row("levels", 1.0, final=False)
    assert Tuning("cpu", "auto", 2, (alone, wrong, fast, early), ()).best is fast
    assert Tuning("cpu", "auto", 2, (alone, wrong, early), ()).best is alone
    assert Tuning("cpu", "auto", 2, (alone, replace(fast, times=(99.0, 99.0))), ()).best is alone


def test_plans_take_turns_at_being_first() -> None:
    """Who comes first in a round finds another device than who comes last."""
    order: list[int] = []

    class Noting:
        def __init__(self, number: int) -> None:
            self.number = number

        def timed(self) -> tuple[None, float]:
            order.append(self.number)
            return None, float(self.number)

    running: Any = [Noting(number) for number in range(3)]
    assert _in_turns(running, 12, None, 0, 12) == [[0.0] * 12, [1.0] * 12, [2.0] * 12]
    rounds = [order[start : start + 3] for start in range(0, 36, 3)]
    assert [sorted(one) for one in rounds] == [[0, 1, 2]] * 12
    assert len({one[0] for one in rounds}) > 1


def test_random_tasks_draw_the_same_under_every_plan() -> None:
    made = forks()
    noise, rng = made.buffer("noise", "f32[64]"), made.resource("rng")
    made.task("draw", torch.Tensor.normal_, updates=[noise, rng], cost=100.0)
    made.output(noise)
    found = tune(made, device="cpu", plans=3, repeats=1, costs={f"t{n}": 500.0 for n in range(4)}, machine="gpu")
    assert len(found.rows) > 2
    assert all(row.equal for row in found.rows)


@pytest.mark.parametrize(("tasks", "counts"), [(10, LANES), (PLANNED // 2, LANES[:2]), (PLANNED * 3, LANES[:1])])
def test_a_large_program_is_planned_with_fewer_numbers_of_lanes(tasks: int, counts: tuple[int, ...]) -> None:
    schedule = plan(forks())
    asked: list[tuple[str, Any]] = []

    def candidate(policy: Any, count: Any) -> Candidate:
        asked.append((policy, count))
        return Candidate(policy, count, schedule, 1.0)

    _promising(candidate, "auto", 8, tasks)
    assert asked[:2] == [("single", 1), ("auto", "auto")]
    assert {count for _, count in asked[2:]} == set(counts)


def test_a_task_that_always_gives_something_else_is_found_out() -> None:
    calls = iter(range(10_000))
    costs = {f"t{n}": 500.0 for n in range(4)}
    found = tune(forks(lambda x: x + next(calls)), device="cpu", plans=2, repeats=1, costs=costs, machine="gpu")
    assert not all(row.equal for row in found.rows)
    assert found.best is found.rows[0]


def test_what_the_program_changes_is_left_alone() -> None:
    made = Graph("updates")
    x = made.input("x", "f32[8]")
    made.task("grow", torch.Tensor.add_, updates=x, const={"other": 1.0})
    x = torch.zeros(8)
    tune(made, {"x": x}, device="cpu", repeats=1)
    assert x.sum() == 0


def test_a_failing_task_fails_the_tuning() -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    with pytest.raises(TaskError, match="no"):
        tune(forks(fail), device="cpu", repeats=1)


def test_a_program_over_several_devices_is_tuned_where_it_lies() -> None:
    made = forks()
    for number in (1, 2):
        made.output(made.copy(f"hop{number}", f"y{number}", made.value(f"far{number}", "f32[64]", device=f"cuda:{number}")))
    found = tune(made, device="cpu", plans=1, repeats=1)
    assert all(row.equal for row in found.rows)
    with pytest.raises(DeviceError, match="lies on cuda:1 and cuda:2"):
        tune(made, device="cuda:3", repeats=1)


@pytest.mark.parametrize("device", ["sim", "gpu", "cuda:x", "cuda:"])
def test_what_is_no_device_to_run_on_is_refused_as_such(device: str) -> None:
    for measured in (lambda: tune(forks(), device=device), lambda: bench(plan(forks()), device=device)):
        with pytest.raises(DeviceError, match=f"nothing runs on device '{device}'"):
            measured()


@pytest.mark.parametrize("repeats", [0, -1, True, 1.5])
def test_repeats_are_a_whole_number_from_1(repeats: Any) -> None:
    for measured in (lambda: tune(forks(), device="cpu", repeats=repeats), lambda: bench(plan(forks()), device="cpu", repeats=repeats)):
        with pytest.raises(SpecError, match="repeats must be a whole number from 1"):
            measured()


def test_the_next_command_brings_the_same_operators(invoke: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text("import torch\n\ndef half(x):\n    return x / 2\n")
    (tmp_path / "own.yaml").write_text(SPEC.replace("aten.relu", "half"))
    for command in ("tune", "profile"):
        options = ["--repeats", "1", "--plans", "1", "--executor", "eager"] if command == "tune" else ["--rounds", "1"]
        done = invoke(command, "own.yaml", "--ops", "ops.py", "--device", "cpu", *options)
        assert done.exit_code == 0, done.output
        assert f"{command} own.yaml --ops ops.py" in done.stderr.partition("Next:")[2]


@pytest.mark.parametrize("command", ["tune", "profile"])
def test_a_file_that_cannot_be_written_is_named_before_anything_is_measured(invoke: Callable[..., Any], command: str) -> None:
    done = invoke(command, "forks.yaml", "--device", "cpu", "-o", "missing/found.json")
    assert done.exit_code == 1
    assert "SG012" in done.stderr
    assert "make its folder first" in done.stderr
    assert done.stdout == ""


def test_the_command_saves_a_plan_that_runs(invoke: Callable[..., Any], tmp_path: Path) -> None:
    done = invoke("tune", "forks.yaml", "--repeats", "2", "--plans", "2", "--device", "cpu", "-o", "plan.json")
    assert done.exit_code == 0, done.output
    assert "one stream" in done.output
    assert "Best:" in done.output
    ran = invoke("run", "plan.json", "--device", "cpu")
    assert ran.exit_code == 0, ran.output


def test_the_command_prints_json_and_refuses_a_simulated_device(invoke: Callable[..., Any]) -> None:
    done = invoke("tune", "forks.yaml", "--repeats", "1", "--json")
    data = json.loads(done.stdout)
    assert data["plans"][0]["policy"] == "single"
    assert data["best"]
    assert invoke("tune", "forks.yaml", "--device", "sim").exit_code == 2
