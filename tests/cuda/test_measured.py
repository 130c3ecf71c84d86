"""Measured runs on a GPU: real starts and ends, by timing events on each lane's stream, and no such event in a run that nobody watches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import streamgraph as sg
from streamgraph.executors.device import CudaDevice
from streamgraph.measured import MeasuredTimeline
from streamgraph.measuring import RUNS, measure
from streamgraph.plan import plan
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate
from tests.cuda.support import MILLISECOND, counted, delayed, inputs_on_gpu
from tests.programs import mix_for, seeded
from tests.running import inputs_of
from tests.support import graph

pytestmark = pytest.mark.cuda
SLACK = 3.0  # microseconds: what the clocks of two events may be apart


def measured(schedule: Schedule, ops: Any = None, executor: str = "eager") -> MeasuredTimeline:
    of = schedule.program
    tensors = inputs_on_gpu(of, inputs_of(of, 0))
    return measure(schedule, tensors, simulate(schedule), device=CudaDevice(), ops=ops or mix_for(of, "cuda"), executor=executor, runs=3)


@pytest.mark.parametrize("executor", ["eager", "lanes"])
@pytest.mark.parametrize("seed", range(4))
def test_every_task_begins_and_ends_within_the_run_and_after_what_it_depends_on(seed: int, executor: str) -> None:
    schedule = plan(seeded(seed))
    found = measured(schedule, executor=executor)
    assert [time.task for time in found.tasks] == list(schedule.lane_of)
    for time in found.tasks:
        assert 0 <= time.start <= time.end <= found.makespan
        assert time.lane == schedule.lane_of[time.task]
    tasks, of = schedule.program.tasks, found.time_of
    for earlier, later in schedule.graph.edges:
        first, second = tasks[earlier], tasks[later]
        # The host's clock and the device's begin within the time of one call; device tasks have one clock.
        slack = SLACK if first.host == second.host else 200.0
        assert of[first.name].end <= of[second.name].start + slack
    assert found.device == torch.cuda.get_device_name()


def test_two_delayed_independent_tasks_overlap_and_two_dependent_ones_do_not() -> None:
    apart = plan(graph("a: x -> y @one | b: x -> z @two | c: y z -> r @main", "x", outputs="r"))
    slow = {"a": 4 * MILLISECOND, "b": 4 * MILLISECOND}
    found = measured(apart, delayed(mix_for(apart.program, "cuda"), slow))
    a, b, c = (found.time_of[name] for name in "abc")
    assert max(a.start, b.start) < min(a.end, b.end)
    assert c.start + SLACK >= max(a.end, b.end)
    assert a.duration > 1000
    assert b.duration > 1000
    assert found.overlap > 1.3
    assert found.speed_up > 1.3

    chain = plan(graph("a: x -> y @one | b: y -> r @two", "x", outputs="r"))
    found = measured(chain, delayed(mix_for(chain.program, "cuda"), slow))
    assert found.time_of["a"].end <= found.time_of["b"].start + SLACK
    assert found.overlap < 1.05


def test_the_result_is_that_of_one_run_and_goes_into_report_and_trace(tmp_path: Path) -> None:
    made = sg.Graph("counting")
    x = made.input("x", "f32[4]", init="random")
    total = made.buffer("total", "f32[4]")
    side = made.task("side", torch.sin, reads=x, writes="y", stream="side")
    made.task("add", torch.Tensor.add_, updates=total, reads=side)
    made.output(total)
    result = sg.run(made, {"x": torch.ones(4, device="cuda")}, device="cuda", profile=True)
    assert torch.equal(result["total"].cpu(), torch.ones(4, device="cuda").sin().cpu())
    assert result.measured is not None
    assert result.measured.runs == RUNS
    assert [time.task for time in result.measured.tasks][:2] == ["side", "add"]
    assert "drawMeasured" in result.report(tmp_path / "x.html").read_text(encoding="utf-8")
    events = json.loads(result.trace(tmp_path / "x.trace.json").read_text(encoding="utf-8"))["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}


def test_a_later_unwatched_run_makes_no_event() -> None:
    schedule = plan(graph("a: x -> y @one | b: x -> z @two | c: y z -> r @main", "x", outputs="r"))
    of = schedule.program
    tensors = inputs_on_gpu(of, inputs_of(of, 0))
    with sg.compile(schedule, tensors, ops=mix_for(of, "cuda"), device="cuda") as runner:
        runner()
        runner()
        with counted() as before:
            runner()
        with counted() as measuring:
            measured(schedule)
        with counted() as after:
            runner()
    assert not before.created
    assert not after.created
    assert len(before.recorded) == len(after.recorded)
    assert len(before.waited) == len(after.waited)
    assert len(measuring.created) >= 2 * len(of.tasks)


def test_tasks_show_under_their_names_in_torchs_profiler() -> None:
    of = seeded(2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
        measured(plan(of))
    assert {task.name for task in of.tasks} <= {event.name for event in profiler.events()}
