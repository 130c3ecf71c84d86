"""Profile: every task gets a time, what it changed in place is put back, and the file it writes is one that `--costs` reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from streamgraph.builder import Graph
from streamgraph.calibration import measure_machine
from streamgraph.cli import cli
from streamgraph.cost import TaskCost, load_costs
from streamgraph.executors import profile as module
from streamgraph.executors.measure import CAPTURED, CLOCK, LOOP, Timing, share
from streamgraph.executors.profile import Profile, profile_tasks
from streamgraph.machine import as_machine
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.simulate import simulate

CPU = torch.device("cpu")


def profiled(graph: Graph, inputs: dict[str, torch.Tensor], *, reuse: bool = True, rounds: int = 2) -> Profile:
    schedule = plan(graph, streams=1, policy="single")
    return profile_tasks(schedule, resolve(schedule.program, None, "cpu", schedule.accesses), inputs, CPU, rounds=rounds, reuse=reuse)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def count(seen: list[float]) -> Callable[[torch.Tensor], None]:
    def add_one(total: torch.Tensor) -> None:
        seen.append(float(total))
        total.add_(1.0)

    return add_one


def chain(length: int) -> Graph:
    graph = Graph("chain")
    h = graph.input("x", "f32[64]")
    for number in range(length):
        h = graph.task(f"t{number}", doubled, reads=h, writes="h")
    graph.output(h)
    return graph


def test_every_task_gets_a_time_and_equal_calls_are_timed_once() -> None:
    found = profiled(chain(4), {"x": torch.ones(64)})
    assert list(found.timings) == ["t0", "t1", "t2", "t3"]
    assert [timing.reused for timing in found.timings.values()] == [False, True, True, True]
    assert all(cost.us > 0 and cost.fill is None and cost.issue is None for cost in found.costs.values())
    assert not any(timing.reused for timing in profiled(chain(3), {"x": torch.ones(64)}, reuse=False).timings.values())


def test_other_constants_shapes_and_functions_are_other_calls() -> None:
    graph = Graph("others")
    x, y = graph.input("x", "f32[64]"), graph.input("y", "f32[32]")
    graph.task("a", torch.sum, reads=x, writes="a.out", const={"dim": 0})
    graph.task("b", torch.sum, reads=x, writes="b.out", const={"dim": -1})
    graph.task("c", torch.sum, reads=y, writes="c.out", const={"dim": 0})
    graph.task("d", doubled, reads=x, writes="d.out")
    graph.task("e", torch.sum, reads=x, writes="e.out", const={"dim": 0})
    found = profiled(graph, {"x": torch.ones(64), "y": torch.ones(32)})
    assert [timing.reused for timing in found.timings.values()] == [False, False, False, False, True]


def test_what_a_task_updates_is_put_back_before_the_next_one_sees_it() -> None:
    first: list[float] = []
    second: list[float] = []
    graph = Graph("counter")
    total = graph.input("total", "f32[]")
    graph.task("first", count(first), updates=total)
    graph.task("second", count(second), updates=total)
    profiled(graph, {"total": torch.zeros(())}, rounds=3)
    assert len(first) > 3
    assert second[0] == 1.0, "the calls that were timed must leave no trace but one"


def test_rings_values_and_host_tasks_can_be_profiled() -> None:
    graph = Graph("all kinds")
    host = graph.input("host", "f32[8]", each={"layer": 4}, device="cpu", pinned=True)
    w = graph.buffer("w", "f32[8]", each={"layer": 4}, slots=2, over="layer")
    h = graph.input("x", "f32[8]")
    for layer in range(4):
        graph.copy(f"load@{layer}", host[layer], w[layer])
        h = graph.task(f"add@{layer}", torch.add, reads=[h, w[layer]], writes="h")
    graph.task("log", lambda values: None, reads=graph.copy("down", h, "result"), host=True)
    graph.output(h)
    found = profiled(graph, {"x": torch.ones(8), **{f"host@{layer}": torch.ones(8) for layer in range(4)}})
    assert len(found.timings) == 10
    assert {timing.how for timing in found.timings.values()} == {CLOCK}


def test_profiled_costs_are_what_a_simulation_takes() -> None:
    graph = chain(3)
    found = profiled(graph, {"x": torch.ones(64)})
    timeline = simulate(plan(graph, streams=1), found.costs, machine="cpu")
    assert {time.source for time in timeline.tasks} == {"measured"}
    assert timeline.basis == "measured costs of 3 of 3 tasks on 'cpu'"


@pytest.mark.parametrize(("together", "fill"), [(10.0, 0.25), (40.0, 1.0), (25.0, 0.625), (90.0, 1.0), (1.0, 0.25)])
def test_the_share_lies_between_one_of_the_streams_and_the_whole_device(together: float, fill: float) -> None:
    assert share(10.0, 4, together) == fill


def test_issue_times_are_scaled_to_the_time_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 30e-6] * module.GOES)
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda location: None)
    issue = {"a": [7.0, 10.0], "b": [20.0]}
    window = [("a", lambda: None), ("b", lambda: None)]
    module._in_one_go(window, issue, CPU)
    assert issue["a"] == pytest.approx([7.0, 10.0])
    assert issue["b"] == pytest.approx([20.0])
    assert window == []


def mixed() -> tuple[Graph, dict[str, torch.Tensor]]:
    """Copies over the link, a ring, values that are used up, and a buffer that is changed in place."""
    graph = Graph("mixed")
    host = graph.input("host", "f32[8]", each={"layer": 3}, device="cpu", pinned=True)
    w = graph.buffer("w", "f32[8]", each={"layer": 3}, slots=2, over="layer")
    total = graph.buffer("total", "f32[]")
    h = graph.input("x", "f32[8]")
    for layer in range(3):
        graph.copy(f"load@{layer}", host[layer], w[layer])
        h = graph.task(f"add@{layer}", torch.add, reads=[h, w[layer]], writes="h")
    graph.task("count", count([]), updates=total)
    graph.copy("down", h, "result")
    graph.value("there", device="cpu")
    graph.copy("back", graph.task("last", torch.neg, reads=h, writes="z"), "there")
    graph.task("log", lambda values: None, reads="there", host=True)
    return graph, {"x": torch.ones(8), **{f"host@{layer}": torch.ones(8) for layer in range(3)}}


@pytest.mark.parametrize(("replays", "each"), [([100.0, 190.0], 10.0 + 30 / 6), ([100.0, 120.0], 10.0 * 20 / 60), ([0.0, 0.0], 10.0)])
def test_what_the_whole_takes_above_the_sum_is_laid_on_all_captured_tasks(
    monkeypatch: pytest.MonkeyPatch, replays: list[float], each: float
) -> None:
    captures: list[int] = []

    def capture(body: Callable[[object], None], streams: int, location: torch.device) -> str:
        if replays == [0.0, 0.0]:
            raise RuntimeError("not permitted while capturing")
        body(None)
        captures.append(streams)
        return "graph"

    monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(module, "replay_times", lambda graphs, rounds: replays)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda location: None)
    monkeypatch.setattr(module, "WINDOW", 4)
    graph, inputs = mixed()
    schedule = plan(graph, streams=1, policy="single")
    sequence = module._Sequence(schedule, resolve(schedule.program, None, "cpu", schedule.accesses), inputs, CPU, 0)
    timings = {
        name: Timing(TaskCost(10.0, 0.5, 1.0), CLOCK if name == "log" else LOOP if sequence.is_over_link(name) else CAPTURED)
        for name in sequence.order
    }
    sequence.lasting_values.update(name for name, timing in timings.items() if timing.how != CAPTURED)
    sequence.walk(lambda name, call: call())
    labels = [storage.label for storage in schedule.accesses.storages]
    total = sequence.memory.begin(inputs)[labels.index("total")]
    assert total is not None
    before = total.clone()
    found = module._in_place(sequence, timings, 3)
    assert torch.equal(before, total), "what was changed in place must be put back"
    assert {timing.cost.us for name, timing in found.timings.items() if timing.how == LOOP} == {10.0}
    assert {round(timing.cost.us, 6) for timing in found.timings.values() if timing.how == CAPTURED} == {round(each, 6)}
    assert all((timing.cost.issue is None) == (timing.how == CLOCK) for timing in found.timings.values())
    assert captures == ([] if replays == [0.0, 0.0] else [1, 1])


SPEC = """
streamgraph: 1
name: small
tensors:
  x: {type: "f32[64]", kind: input, init: random}
tasks:
  double: {run: aten.abs, reads: x, writes: y}
  negate: {run: aten.neg, reads: y, writes: z}
outputs: z
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "small.streamgraph.yaml"
    file.write_text(SPEC)
    return str(file)


def invoke(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_the_command_writes_a_file_that_plan_draw_explain_and_run_take(spec: str, tmp_path: Path) -> None:
    file = str(tmp_path / "costs.json")
    code, out, _ = invoke("profile", spec, "-o", file, "--rounds", "2", "--device", "cpu")
    assert code == 0
    assert "2 tasks on cpu" in out
    assert set(load_costs(file)) == {"double", "negate"}
    code, out, _ = invoke("plan", spec, "--costs", file, "--machine", "cpu")
    assert code == 0
    assert "measured costs of 2 of 2 tasks on 'cpu'" in out
    for command in ("draw", "explain --critical-path", "explain --lanes", "run --device cpu", "run --device sim"):
        name, *options = command.split()
        code, out, err = invoke(name, spec, *options, "--costs", file)
        assert code == 0, out + err


def test_the_command_says_the_same_as_json_and_on_stdout(spec: str) -> None:
    code, out, _ = invoke("profile", spec, "--json", "--rounds", "1", "--device", "cpu")
    assert code == 0
    data = json.loads(out)
    assert {"us", "fill", "issue", "how", "reused"} == set(data["tasks"]["double"])
    code, out, _ = invoke("profile", spec, "-o", "-", "--rounds", "1", "--device", "cpu")
    assert code == 0
    assert json.loads(out)["streamgraph_costs"] == 1


def test_a_costs_file_of_another_program_is_an_error(spec: str, tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text('{"streamgraph_costs": 1, "tasks": {"duoble": {"us": 1}}}')
    code, _, err = invoke("plan", spec, "--costs", str(file))
    assert code == 1
    assert "SG213" in err
    assert "did you mean 'double'?" in err
    code, _, err = invoke("plan", spec, "--machine", "abacus")
    assert code == 1
    assert "SG006" in err


def test_nothing_is_measured_on_the_simulated_device(spec: str) -> None:
    code, _, err = invoke("profile", spec, "--device", "sim")
    assert code == 2
    assert "nothing can be measured" in err


def test_doctor_measures_this_machine_and_writes_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamgraph.calibration.TASKS", 8)
    monkeypatch.setattr("streamgraph.calibration.ROUNDS", 2)
    monkeypatch.setattr("streamgraph.executors.calibrate.CALLS", 2)
    file = tmp_path / "machine.json"
    code, out, _ = invoke("doctor", "--measure", "--device", "cpu", "-o", str(file))
    assert code == 0
    assert "memory" in out
    machine = as_machine(file)
    assert machine.memory > 0
    assert machine.launch > 0
    code, _, err = invoke("doctor", "-o", str(file))
    assert code == 2
    assert "belongs to --measure" in err
    assert measure_machine("cpu", "mine").name == "mine"
