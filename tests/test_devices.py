"""Which GPU tensors and tasks belong to: named ones stay, the rest follows from them, and what is spread over several is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.cli import cli
from streamgraph.commands.schedule import lanes_table
from streamgraph.devices import crosses, of_tasks, settled
from streamgraph.errors import SpecError, VerificationError
from streamgraph.model import CPU, DEVICE, Kind, Program
from streamgraph.plan import plan
from streamgraph.plan_loop import plan_loop
from streamgraph.render import render
from streamgraph.run import run
from streamgraph.schedule import Launch, Schedule
from streamgraph.simulate import simulate
from streamgraph.spec import load
from streamgraph.verify import ensure
from tests.programs import mix_for, random_devices, seeded
from tests.running import expected_of, inputs_of, same

TWO_GPUS = Path(__file__).parents[1] / "specs" / "two_gpus.streamgraph.yaml"


def two() -> Graph:
    """An input on each of two devices."""
    graph = Graph("two")
    for number in range(2):
        graph.input(f"x{number}", "i64[8]", device=f"cuda:{number}")
    return graph


def device_of(program: Program) -> dict[str, str]:
    return {tensor.name: tensor.device for tensor in program.tensors}


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 3))
def test_every_tensor_gets_a_device_and_settling_again_changes_nothing(seed: int, devices: int) -> None:
    program = random_devices(random.Random(seed).randrange, devices)
    assert settled(program) == program
    assert all(tensor.device in (CPU, *program.devices) for tensor in program.tensors if tensor.kind is not Kind.RESOURCE)
    for task, device in zip(program.tasks, of_tasks(program), strict=True):
        used = [device_of(program)[name] for name in task.names() if device_of(program)[name] != CPU]
        if task.host:
            assert device == CPU
        elif crosses(task, program):
            assert device == used[0] != used[1]
        else:
            assert {device, *used} == {device}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_program_that_names_no_device_is_left_alone(seed: int) -> None:
    program = seeded(seed)
    assert program.devices == ()
    assert settled(program) is program
    assert {*of_tasks(program)} <= {DEVICE, CPU}
    schedule = plan(program)
    assert {*schedule.device_of.values()} == {DEVICE}
    assert "# devices:" not in str(schedule)


def test_what_names_no_device_lies_on_the_lowest_and_a_value_where_its_task_runs() -> None:
    graph = Graph("inferred")
    graph.input("far", "i64[8]", device="cuda:3")
    graph.input("near", "i64[8]", device="cuda:1")
    graph.input("plain", "i64[8]")
    graph.task("a", "mix", reads="far", writes="p")
    graph.task("b", "mix", reads="plain", writes="q")
    graph.task("c", "mix", writes="r")
    graph.copy("clone", "p", "s")
    graph.value("w", "i64[8]", device="cuda:1")
    graph.copy("hop", "far", "w")
    graph.output("w")
    expected = {"far": "cuda:3", "p": "cuda:3", "s": "cuda:3", **dict.fromkeys(("near", "plain", "q", "r", "w"), "cuda:1")}
    assert device_of(graph.program()) == expected


def test_copies_run_on_the_gpu_concerned_and_between_two_on_the_one_that_they_read() -> None:
    graph = two()
    graph.input("host", "i64[8]", device="cpu", pinned=True)
    graph.value("back", device="cpu", pinned=True)
    graph.buffer("state", "i64[8]", device="cuda:1")
    graph.copy("up", "host", "state")
    graph.copy("hop", "x0", "state")
    graph.copy("clone", "x1", "same")
    graph.copy("down", "x1", "back")
    program = graph.program()
    assert of_tasks(program) == ("cuda:1", "cuda:0", "cuda:1", "cuda:1")
    assert [crosses(task, program) for task in program.tasks] == [None, ("cuda:0", "cuda:1"), None, None]


def refused(graph: Graph) -> str:
    with pytest.raises(SpecError) as caught:
        graph.program()
    assert {problem.code for problem in caught.value.problems} == {"SG214"}
    return str(caught.value)


def test_a_task_on_tensors_of_two_devices_is_refused() -> None:
    graph = two()
    graph.task("t", "mix", reads=["x0", "x1"], writes="y")
    assert "'x0' on cuda:0 and 'x1' on cuda:1" in refused(graph)


def test_a_value_that_two_devices_would_make_is_refused() -> None:
    graph = two()
    graph.task("first", "mix", reads="x0", writes="y")
    graph.task("second", "mix", reads="x1", writes="y")
    assert "task 'second'" in refused(graph)


def test_a_stream_belongs_to_one_device_and_main_to_the_first() -> None:
    graph = two()
    graph.task("a", "mix", reads="x0", writes="y", stream="side")
    graph.task("b", "mix", reads="x1", writes="z", stream="side")
    assert "task 'a' there runs on cuda:0" in refused(graph)
    graph = two()
    graph.task("b", "mix", reads="x1", writes="z", stream="main")
    assert "that is the caller's stream on cuda:0" in refused(graph)


def test_a_ring_slot_is_memory_of_one_device() -> None:
    spec = {
        "streamgraph": 1, "name": "ring",
        "tensors": {
            "x": {"type": "f32[8]", "kind": "input", "device": "cuda:$n", "each": {"n": 2}},
            "w": {"type": "f32[8]", "each": {"n": 2}, "slots": 1, "over": "n", "device": "cuda:$n"},
        },
        "tasks": {"t": {"each": {"n": 2}, "copy": "x@$n -> w@$n"}},
    }  # fmt: skip
    with pytest.raises(SpecError, match="memory of several devices"):
        load(spec)
    spec["tensors"]["w"]["slots"] = 2  # type: ignore[index]
    assert load(spec).program.devices == ("cuda:0", "cuda:1")


@pytest.mark.parametrize("device", ["cuda", "cuda:", "cuda:01", "cuda:x", "cuda:1000", "gpu:1", "CUDA:1", "cuda:-1"])
def test_what_names_no_gpu_is_refused(device: str) -> None:
    with pytest.raises(SpecError, match="SG105"):
        load({"streamgraph": 1, "name": "odd", "tensors": {"x": {"type": "f32[8]", "kind": "input", "device": device}}})


# --- plans -------------------------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), devices=st.integers(2, 3), streams=st.integers(1, 3), order=st.sampled_from(["declared", "auto"]),
    policy=st.sampled_from(["auto", "single", "critical_path", "levels", "max_concurrency"]),
)  # fmt: skip
def test_each_lane_is_of_one_device_and_the_bound_on_lanes_holds_for_each(
    seed: int, devices: int, streams: int, order: Any, policy: Any
) -> None:
    program = random_devices(random.Random(seed).randrange, devices)
    schedule = plan(program, streams=streams, order=order, policy=policy)
    device = dict(zip((task.name for task in program.tasks), of_tasks(program), strict=True))
    assert all(schedule.device_of.get(lane, CPU) == device[task] for task, lane in schedule.lane_of.items())
    pinned = {task.stream for task in program.tasks if task.stream is not None}
    for name in program.devices:
        lanes = {lane for lane, of in schedule.device_of.items() if of == name and lane not in pinned}
        assert len(lanes) <= streams + (name == program.devices[0] and "main" in pinned)
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert Schedule.from_text(str(schedule), program).steps == schedule.steps
    assert simulate(schedule) == simulate(schedule)


def test_a_launch_on_a_lane_of_another_device_is_found() -> None:
    graph = two()
    graph.output(graph.task("a", "mix", reads="x0", writes="y0"))
    graph.output(graph.task("b", "mix", reads="x1", writes="y1"))
    schedule = plan(graph)
    moved = tuple(replace(step, lane="main") if isinstance(step, Launch) else step for step in schedule.steps)
    with pytest.raises(VerificationError, match="'b' belongs to cuda:1"):
        ensure(replace(schedule, steps=moved))


def test_two_devices_compute_and_copy_at_the_same_time_in_the_simulation() -> None:
    def took(second: str) -> float:
        graph = Graph("pairs")
        for number, device in enumerate(("cuda:0", second)):
            graph.input(f"h{number}", "f32[1048576]", device="cpu", pinned=True)
            graph.value(f"x{number}", "f32[1048576]", device=device)
            graph.copy(f"up{number}", f"h{number}", f"x{number}", stream=f"up{number}", cost=100.0)
            graph.output(graph.task(f"t{number}", "mix", reads=f"x{number}", writes=f"y{number}", stream=f"lane{number}", cost=100.0))
        return simulate(plan(graph)).makespan

    # On one device the copies share an engine.
    assert took("cuda:1") < took("cuda:0") - 50
    graph = two()
    for number in range(2):
        graph.output(graph.task(f"t{number}", "mix", reads=f"x{number}", writes=f"y{number}", cost=100.0))
    timeline = simulate(plan(graph))
    assert timeline.bound[1] <= timeline.makespan


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_on_the_cpu_the_same_program_runs_on_every_executor(seed: int) -> None:
    program = random_devices(random.Random(seed).randrange, 3)
    expected = expected_of(program, 1)[0]
    for executor in ("lanes", "eager", "sequential"):
        assert same(dict(run(program, inputs_of(program, 0), ops=mix_for(program), device="cpu", executor=executor)), expected)  # type: ignore[arg-type]


def test_a_loop_has_lanes_of_each_device() -> None:
    graph = two()
    graph.value("far", "i64[8]", device="cuda:1")
    graph.copy("hop", "x0", "far")
    graph.output(graph.task("t", "mix", reads=["far", "x1"], writes="y"))
    loop = plan_loop(graph)
    on = {issue.task: loop.device_of[issue.lane] for issue in loop.steady if issue.task in ("hop", "t")}
    assert on == {"hop": "cuda:0", "t": "cuda:1"}


def test_tables_and_pictures_say_which_gpu_a_lane_is_of() -> None:
    schedule = plan(TWO_GPUS)
    assert "second (cuda:1)  second@0" in lanes_table(schedule)
    picture = render(schedule, "svg")
    assert "lane hop on cuda:0: busy" in picture
    assert all(f">{paint}<" in picture for paint in ("copy to device", "copy between GPUs", "copy to host"))
    assert '["second",", cuda:1",' in render(schedule, "html")
    assert "second (cuda:1) " in CliRunner().invoke(cli, ["explain", str(TWO_GPUS), "--lanes"]).stdout
    assert "# devices: @main on cuda:0, @load on cuda:0, @hop on cuda:0, @second on cuda:1" in str(schedule)
