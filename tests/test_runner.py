"""run, compile, Runner and Result as a user meets them."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from streamgraph.builder import Graph
from streamgraph.errors import BindingError, DeviceError, OperatorError, RunnerError, SpecError, TaskError, VerificationError
from streamgraph.plan import plan
from streamgraph.run import compile, run
from streamgraph.runner import Runner
from streamgraph.schedule import Wait
from tests.running import steps_of

EXECUTORS = ["sequential", "lanes", "eager"]


def layers() -> Graph:
    made = Graph("layers")
    x = made.input("x", "f32[2, 2]", init="random")
    w = made.input("w", "f32[2, 2]", each={"layer": 2})
    seen = made.buffer("seen", "f32[2, 2]")
    h = made.task("first", torch.mm, reads=[x, w[0]], writes="h", stream="one")
    h = made.task("second", torch.mm, reads=[h, w[1]], writes="h", stream="two")
    made.task("count", torch.Tensor.add_, updates=seen, reads=h)
    made.output(h)
    made.output(seen)
    return made


EYE = torch.eye(2)


@pytest.fixture(params=EXECUTORS)
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    with compile(layers(), {"w": [EYE, EYE]}, device="cpu", executor=request.param) as made:
        yield made


def test_a_run_returns_its_outputs_by_name_and_says_what_it_made_up() -> None:
    result = run(layers(), {"w": [EYE, 2 * EYE]}, device="cpu", seed=3)
    assert list(result) == ["h", "seen"]
    assert len(result) == 2
    assert result.made_up == ("x",)
    assert torch.equal(result["h"], result["seen"])
    assert torch.equal(result["h"], run(layers(), {"w": [EYE, 2 * EYE]}, device="cpu", seed=3)["h"])
    assert not torch.equal(result["h"], run(layers(), {"w": [EYE, 2 * EYE]}, device="cpu", seed=4)["h"])


@pytest.mark.parametrize(("asked", "device", "found"), [("auto", "cpu", "lanes"), ("eager", "cpu", "eager"), ("auto", "sim", "sim")])
def test_a_runner_says_which_executor_it_has(asked: Any, device: str, found: str) -> None:
    with compile(layers(), device=device, executor=asked) as made:
        assert made.executor == found
        assert f'executor "{found}"' in repr(made)


def test_run_never_makes_up_an_input_that_does_not_ask_for_it() -> None:
    with pytest.raises(BindingError, match=r"inputs 'w@\*' were not bound"):
        run(layers(), device="cpu")


def test_a_runner_makes_nothing_up(runner: Runner) -> None:
    with pytest.raises(BindingError, match="input 'x'"):
        runner()


def test_buffers_last_from_call_to_call_and_results_are_the_callers(runner: Runner) -> None:
    first = runner(x=EYE)
    second = runner({"x": EYE}, x=2 * EYE)  # keywords are last, as in dict(...)
    assert torch.equal(first["seen"], EYE)
    assert torch.equal(second["seen"], 3 * EYE)
    first["h"].zero_()
    first["seen"].zero_()
    assert torch.equal(runner(x=EYE)["seen"], 4 * EYE)


def test_what_a_call_binds_counts_for_that_call(runner: Runner) -> None:
    assert torch.equal(runner(x=EYE)["h"], EYE)
    assert torch.equal(runner({"w@1": 5 * EYE}, x=EYE)["h"], 5 * EYE)
    assert torch.equal(runner(x=EYE)["h"], EYE)


def test_a_closed_runner_says_so_and_closes_again(runner: Runner) -> None:
    runner(x=EYE)
    runner.close()
    runner.close()
    with pytest.raises(RunnerError, match="SG604"):
        runner(x=EYE)
    assert "closed" in repr(runner)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("lane", ["main", "side"])
def test_a_task_can_neither_run_nor_close_its_own_runner(executor: Any, lane: str) -> None:
    box: list[Runner] = []

    def again(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(RunnerError, match="SG605"):
            box[0](x=x)
        with pytest.raises(RunnerError, match="SG605"):
            box[0].close()
        return x + 1

    made = Graph("again")
    made.output(made.task("again", again, reads=made.input("x", "f32[2, 2]"), writes="y", stream=lane))
    with compile(made, device="cpu", executor=executor) as runner:
        box.append(runner)
        assert torch.equal(runner(x=EYE)["y"], EYE + 1)


def test_a_second_call_at_the_same_time_is_refused_and_close_waits_for_the_first() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(x: torch.Tensor) -> torch.Tensor:
        inside.set()
        assert go_on.wait(20)
        return x + 1

    made = Graph("slow")
    made.output(made.task("slow", slow, reads=made.input("x", "f32[2, 2]"), writes="y"))
    runner = compile(made, device="cpu")
    results: list[Any] = []
    calling = threading.Thread(target=lambda: results.append(runner(x=EYE)))
    calling.start()
    assert inside.wait(20)
    with pytest.raises(RunnerError, match="SG605"):
        runner(x=EYE)
    closing = threading.Thread(target=runner.close)
    closing.start()
    go_on.set()
    for thread in (calling, closing):
        thread.join(20)
    assert torch.equal(results[0]["y"], EYE + 1)
    with pytest.raises(RunnerError, match="SG604"):
        runner(x=EYE)


def test_after_close_nothing_holds_the_buffers_or_the_bound_inputs() -> None:
    for executor in EXECUTORS:
        weights = [EYE.clone(), EYE.clone()]
        bound = [weakref.ref(weight) for weight in weights]
        runner = compile(layers(), {"w": weights}, device="cpu", executor=executor)  # type: ignore[arg-type]
        runner(x=EYE)
        assert runner._executor is not None
        buffers = [weakref.ref(buffer) for buffer in runner._executor.memory._buffers.values()]  # type: ignore[attr-defined]
        assert len(buffers) == 1
        runner.close()
        del weights
        gc.collect()
        assert [reference() for reference in (*bound, *buffers)] == [None] * 3


def test_a_runner_that_is_dropped_ends_its_threads() -> None:
    before = threading.active_count()
    runner = compile(layers(), {"w": [EYE, EYE]}, device="cpu")
    runner(x=EYE)
    assert threading.active_count() > before
    del runner
    gc.collect()
    assert threading.active_count() == before


# --- outputs -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
def test_outputs_can_be_any_tensor(executor: Any) -> None:
    result = run(layers(), {"x": EYE, "w": [EYE, 3 * EYE]}, device="cpu", executor=executor, outputs=["w@*", "x", "seen", "h"])
    assert list(result) == ["w@0", "w@1", "x", "seen", "h"]
    assert torch.equal(result["w@1"], 3 * EYE)
    assert torch.equal(result["x"], EYE)
    assert result["x"].data_ptr() != EYE.data_ptr(), "an output is never the caller's own input"


def test_an_output_that_is_nothing_is_refused_with_a_near_name() -> None:
    with pytest.raises(SpecError, match="SG210") as caught:
        run(layers(), {"w": [EYE, EYE]}, device="cpu", outputs=["sen", "output:seen"])
    assert "did you mean 'seen'?" in str(caught.value)
    assert len(caught.value.problems) == 2


def test_a_result_names_its_outputs_when_asked_for_another() -> None:
    result = run(layers(), {"w": [EYE, EYE]}, device="cpu")
    with pytest.raises(KeyError, match="the outputs are: h, seen"):
        result["y"]
    result.inputs_free()
    assert result.timeline.makespan > 0


# --- schedules, devices, executors -------------------------------------------------------------------------------------------------------


def test_a_schedule_is_verified_and_run_as_it_is() -> None:
    schedule = plan(layers(), streams=2)
    assert run(schedule, {"w": [EYE, EYE], "x": EYE}, device="cpu").schedule is schedule
    racy = steps_of(schedule, lambda step: not isinstance(step, Wait))
    with pytest.raises(VerificationError):
        run(racy, {"w": [EYE, EYE], "x": EYE}, device="cpu")
    with pytest.raises(SpecError, match="SG212"):
        run(schedule, device="cpu", outputs=["h"])


def test_the_simulated_device_needs_no_operator_and_no_input() -> None:
    made = Graph("named")
    made.output(made.task("unknown", "nobody.brings.this", reads=made.input("x", "f32[2]"), writes="y", cost="5us"))
    result = run(made, device="sim")
    assert dict(result) == {}
    assert result.timeline.makespan >= 5
    with pytest.raises(RunnerError, match="SG608"):
        result.inputs_free()
    with compile(made, device="sim") as runner:
        assert runner().timeline == result.timeline
    with pytest.raises(OperatorError):
        run(made, device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"device": "cuda:x"}, "unknown device 'cuda:x'"),
        ({"device": "cpu", "executor": "fast"}, "unknown executor 'fast'"),
        ({"device": "cpu", "executor": "graph"}, "'graph'"),
    ],
)
def test_a_device_or_executor_that_is_not_here_is_refused(options: Any, message: str) -> None:
    with pytest.raises(DeviceError, match="SG606") as caught:
        run(layers(), {"w": [EYE, EYE]}, **options)
    assert message in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_cuda_says_what_to_do() -> None:
    with pytest.raises(DeviceError, match="device='cpu' runs the same schedule"):
        run(layers(), {"w": [EYE, EYE]}, device="cuda:1")


# --- tasks -------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
def test_tasks_run_without_gradients_and_may_differentiate_inside(executor: Any) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad((leaf**2).sum(), leaf)[0].detach()

    made = Graph("gradient")
    made.output(made.task("gradient", gradient, reads=made.input("x", "f32[2, 2]"), writes="g", stream="side"))
    result = run(made, {"x": EYE.clone().requires_grad_()}, device="cpu", executor=executor)
    assert torch.equal(result["g"], 2 * EYE)
    assert not result["g"].requires_grad


@pytest.mark.parametrize("executor", EXECUTORS)
def test_returned_values_are_checked_on_the_first_call(executor: Any) -> None:
    made = Graph("wrong")
    made.task("wrong", lambda x: None, reads=made.input("x", "f32[2, 2]"), writes="y")
    with pytest.raises(TaskError, match="SG602"):
        run(made, {"x": EYE}, device="cpu", executor=executor)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_updated_input_is_the_callers_own_tensor(executor: Any) -> None:
    made = Graph("update")
    x = made.input("x", "f32[2, 2]")
    made.task("double", torch.Tensor.mul_, updates=x, const={"other": 2.0}, stream="side")
    mine = EYE.clone()
    run(made, {"x": mine}, device="cpu", executor=executor)
    assert torch.equal(mine, 2 * EYE)
    with pytest.raises(BindingError, match="SG504"):
        run(made, {"x": torch.zeros(1).expand(2, 2)}, device="cpu", executor=executor)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_empty_program_runs(executor: Any) -> None:
    assert dict(run(Graph("empty"), device="cpu", executor=executor)) == {}


@pytest.mark.parametrize("inputs", [torch.zeros(4), torch.zeros(1), [torch.zeros(4)], [], (torch.zeros(4),)])
def test_inputs_that_are_no_mapping_are_refused_with_the_names_that_are_meant(inputs: Any) -> None:
    graph = Graph("named")
    graph.output(graph.task("double", torch.add, reads=[graph.input("x", "f32[4]"), graph.input("y", "f32[4]")], writes="z"))
    with compile(graph, device="cpu") as made:
        for pass_on in (made, lambda given: run(graph, given, device="cpu"), lambda given: compile(graph, given, device="cpu")):
            with pytest.raises(BindingError, match=f"'named' are bound by name, and this is a {type(inputs).__name__}") as caught:
                pass_on(inputs)
            (problem,) = caught.value.problems
            assert problem.code == "SG502"
            assert "{'x': ..., 'y': ...}" in (problem.help or "")


def test_a_device_may_be_a_torch_device() -> None:
    graph = Graph("copied")
    graph.output(graph.task("copy", torch.clone, reads=graph.input("x", "f32[2]"), writes="y"))
    device: Any = torch.device("cpu")
    assert run(graph, {"x": torch.ones(2)}, device=device)["y"].tolist() == [1, 1]
    with pytest.raises(DeviceError, match="unknown device 'meta'"):
        compile(graph, device=torch.device("meta"))  # type: ignore[arg-type]
