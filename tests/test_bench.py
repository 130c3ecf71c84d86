"""`bench` measures every executor that is there, compares results, recommends the simplest that is worth it, and says what is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from streamgraph.bench import EXECUTORS, Bench, Measured, bench, turns
from streamgraph.builder import Graph
from streamgraph.cli import cli
from streamgraph.errors import BindingError, TaskError
from streamgraph.plan import plan
from streamgraph.runner import Runner
from tests.support import TWO_LANES


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`streamgraph ...` in a folder of its own with two.yaml."""
    (tmp_path / "two.yaml").write_text(TWO_LANES)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli, list(arguments))


def counter() -> Graph:
    made = Graph("counter")
    x = made.input("x", "i64[8]", init="random")
    total = made.buffer("total", "i64[8]")
    y = made.task("double", lambda x: x * 2, reads=x, writes="y", stream="side")
    made.task("add", _add, updates=total, reads=y)
    made.output(total)
    return made


def _add(total: torch.Tensor, y: torch.Tensor) -> None:
    total.add_(y)


def test_every_executor_of_the_cpu_is_measured_and_the_others_have_a_reason() -> None:
    found = bench(plan(counter()), device="cpu", repeats=3)
    assert [row.executor for row in found.rows] == list(EXECUTORS)
    for row in found.rows:
        if row.executor == "graph":
            assert "cpu" in row.reason
        else:
            assert row.reason == ""
            assert len(row.times) == 3
            assert 0 < min(row.times) <= row.median <= max(row.times)
            assert row.host > 0
            assert row.equal
            assert row.memory is None
            assert row.overlap is not None
            assert 0 < row.overlap <= (1.0001 if row.executor != "lanes" else 2)
    assert found.made_up == ("x",)
    assert found.best in found.rows


def test_inputs_stay_as_they_are_although_the_program_changes_them() -> None:
    made = Graph("in place")
    x = made.input("x", "i64[8]")
    made.task("add", lambda x: _add(x, torch.ones_like(x)), updates=x)
    mine = torch.arange(8)
    found = bench(plan(made), {"x": mine}, device="cpu", repeats=2, overlap=False)
    assert torch.equal(mine, torch.arange(8))
    assert all(row.equal for row in found.rows if not row.reason)
    assert all(row.overlap is None for row in found.rows)


def test_torchs_generators_are_as_before() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    bench(plan(counter()), device="cpu", repeats=1, overlap=False)
    assert torch.equal(torch.rand(3), expected)


def test_an_executor_with_other_results_is_never_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = Runner.__call__

    def wrong(self: Runner, *arguments: Any, **named: Any) -> Any:
        result = healthy(self, *arguments, **named)
        if type(self._executor).__name__ == "LanesExecutor":
            result._outputs["total"] = result["total"] + 1
        return result

    monkeypatch.setattr(Runner, "__call__", wrong)
    found = bench(plan(counter()), device="cpu", repeats=2, overlap=False)
    assert {row.executor: row.equal for row in found.rows if not row.reason} == {"sequential": True, "eager": True, "lanes": False}
    fastest = replace(found, rows=tuple(replace(row, times=(0.001, 0.001)) if row.executor == "lanes" else row for row in found.rows))
    assert fastest.best.executor != "lanes"


def best(**times: tuple[float, ...]) -> str:
    rows = tuple(Measured(name, times[name]) if name in times else Measured(name, reason="not here") for name in EXECUTORS)
    return Bench(plan(counter()), "cpu", 1, rows, ()).best.executor


@given(count=st.integers(3, 12))
def test_in_each_repeat_everyone_has_a_turn_and_nobody_always_follows_the_same_one(count: int) -> None:
    orders = list(turns(count, 40))
    assert orders == list(turns(count, 40))
    assert all(sorted(order) == list(range(count)) for order in orders)
    before = [{order[order.index(way) - 1] for order in orders if order.index(way)} for way in range(count)]
    assert all(len(others) > 1 for others in before)


def test_a_setting_that_is_less_simple_must_save_two_percent() -> None:
    assert best(sequential=(100.0,), eager=(99.0,), lanes=(98.5,)) == "sequential"
    assert best(sequential=(100.0,), eager=(97.0,), lanes=(96.0,)) == "eager"
    assert best(sequential=(100.0,), eager=(97.0,), lanes=(90.0,)) == "lanes"
    assert best(sequential=(100.0,), eager=(60.0,), graph=(50.0,)) == "graph"


def test_a_setting_must_win_repeat_by_repeat_too() -> None:
    assert best(sequential=(100.0, 10.0, 100.0, 10.0, 100.0), eager=(20.0, 20.0, 20.0, 20.0, 20.0)) == "sequential"
    assert best(sequential=(100.0, 10.0, 100.0, 100.0, 100.0), eager=(20.0, 20.0, 20.0, 20.0, 20.0)) == "eager"


def test_what_is_wrong_with_inputs_and_tasks_is_told() -> None:
    with pytest.raises(BindingError):
        bench(plan(counter()), {"x": torch.zeros(3)}, device="cpu")
    made = Graph("raises")

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no more")

    made.output(made.task("fail", fail, reads=made.input("x", "i64[8]", init="zeros"), writes="y"))
    with pytest.raises(TaskError, match="no more"):
        bench(plan(made), device="cpu")


# --- the command -------------------------------------------------------------------------------------------------------------------------


def test_the_table_names_settings_the_best_one_and_what_is_left_out(invoke: Callable[..., Any]) -> None:
    done = invoke("bench", "two.yaml", "--device", "cpu", "--repeats", "3")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "two on the CPU: 2 tasks on 2 lanes; 3 runs each, in turn"
    assert lines[2].split() == ["executor", "median", "fastest", "slowest", "speed-up", "overlap"]
    assert [line.split()[0] for line in lines[3:6]] == ["sequential", "eager", "lanes"]
    assert "1.00x" in lines[3]
    assert any(line.startswith("graph is left out: ") for line in lines)
    assert any(line.startswith("Best:  --executor ") for line in lines)
    assert "Check: every executor gave the same results, bit for bit" in lines
    assert "streamgraph run two.yaml --executor " in done.stderr


def test_as_json_it_is_one_object(invoke: Callable[..., Any]) -> None:
    done = invoke("bench", "two.yaml", "--device", "cpu", "--repeats", "2", "--json", "--no-overlap")
    data = json.loads(done.stdout)
    assert data["ok"]
    assert data["command"] == "bench"
    assert data["best"] in ("sequential", "eager", "lanes")
    assert [setting["executor"] for setting in data["settings"]] == list(EXECUTORS)
    assert data["settings"][0]["speedup"] == 1.0
    assert data["settings"][0]["overlap"] is None
    assert data["settings"][-1]["reason"]
    assert data["made_up"] == ["x"]


def test_a_simulated_bench_is_refused(invoke: Callable[..., Any]) -> None:
    done = invoke("bench", "two.yaml", "--device", "sim")
    assert done.exit_code == 2
    assert "no time that could be measured" in done.stderr


def test_results_that_differ_give_exit_code_one(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import streamgraph.bench

    whole = streamgraph.bench.bench

    def differing(*arguments: Any, **named: Any) -> Bench:
        found = whole(*arguments, **named)
        return replace(found, rows=tuple(replace(row, equal=row.executor != "eager") for row in found.rows))

    monkeypatch.setattr(streamgraph.bench, "bench", differing)
    done = invoke("bench", "two.yaml", "--device", "cpu", "--repeats", "2", "--no-overlap")
    assert done.exit_code == 1
    assert "results DIFFER: do not use" in done.stdout
    assert "Check: DIFFERS from the tasks one after another: eager" in done.stdout


def test_a_device_that_is_not_here_gives_exit_code_four(invoke: Callable[..., Any]) -> None:
    done = invoke("bench", "two.yaml", "--device", "cuda:99")
    assert done.exit_code == 4


@pytest.mark.slow
@pytest.mark.parametrize("script", ["overhead", "prefetch", "cameras"])
def test_the_scripts_under_benchmarks_run(script: str) -> None:
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, str(root / "benchmarks" / f"{script}.py"), "--small", "--device", "cpu", "--repeats", "2"],
        env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 'streamgraph, "eager" |' in done.stdout
    assert "Error" not in done.stdout
    assert "DIFFERENT" not in done.stdout
