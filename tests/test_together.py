"""What each module's tests look at alone, together: devices, loops, two priorities, pins, host tasks, saved plans, pictures, tune."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamgraph as sg
from streamgraph.devices import of_tasks
from streamgraph.loop_waits import loop_waits, without
from streamgraph.model import MAIN, Program
from streamgraph.plan import Issue, Release, plan
from streamgraph.plan_loop import plan_loop
from streamgraph.render import render
from streamgraph.saved import from_json, to_json
from streamgraph.simulate import simulate
from streamgraph.tune import tune
from tests.programs import mix_for, random_devices
from tests.running import inputs_of, same

TWO_GPUS = Path(__file__).parents[1] / "specs" / "two_gpus.streamgraph.yaml"
SEEDS = st.integers(0, 10**6)
ISSUES = st.sampled_from(["eager", "captured"])
RELEASES = st.sampled_from(["default", "early"])
FORMS = ("html", "svg", "resources.svg", "mmd", "dot", "txt", "trace.json")


def drawn(seed: int, devices: int = 2) -> Program:
    return random_devices(random.Random(seed).randrange, devices)


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, devices=st.integers(2, 3), inflight=st.integers(1, 3), executor=st.sampled_from(["lanes", "eager"]))
def test_a_loop_over_devices_gives_on_the_cpu_what_calls_give(seed: int, devices: int, inflight: int, executor: Any) -> None:
    of = drawn(seed, devices)
    items = [inputs_of(of, number) for number in range(4)]
    with sg.compile(of, ops=mix_for(of), device="cpu", executor="sequential") as runner:
        right = [{name: value.clone() for name, value in runner(item).items()} for item in items]
    with sg.compile(of, ops=mix_for(of), device="cpu", executor=executor) as runner:
        found = [{name: value.clone() for name, value in result.items()} for result in runner.map(items, inflight=inflight)]
    assert [same(one, other) for one, other in zip(found, right, strict=True)] == [True] * 4


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, devices=st.integers(2, 3), streams=st.integers(1, 4), issue=ISSUES, release=RELEASES)
def test_two_priorities_leave_pins_devices_and_outputs_as_they_are(
    seed: int, devices: int, streams: int, issue: Issue, release: Release
) -> None:
    schedule = plan(drawn(seed, devices), policy="urgent", streams=streams, issue=issue, release=release)  # which verifies
    program, lane_of, device_of = schedule.program, schedule.lane_of, schedule.device_of
    for task, device in zip(program.tasks, of_tasks(program), strict=True):
        assert task.host or device_of[lane_of[task.name]] == device
        assert task.stream is None or lane_of[task.name] == task.stream
    assert next(lane for lane in schedule.lanes if lane.name == MAIN).priority == "normal", "the caller's stream keeps its priority"
    assert from_json(to_json(schedule)) == schedule
    free = [lane for lane in schedule.lanes if not lane.is_host and lane.name not in {task.stream for task in program.tasks}]
    for device in dict.fromkeys(device_of.values()):
        for priority in ("normal", "high"):
            assert sum(lane.priority == priority and device_of[lane.name] == device for lane in free) <= streams


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, policy=st.sampled_from(["auto", "urgent", "opara"]), issue=ISSUES, release=RELEASES)
def test_a_saved_plan_over_devices_is_the_same_with_its_notes_and_its_prediction(
    seed: int, policy: Any, issue: Issue, release: Release
) -> None:
    schedule = plan(drawn(seed), policy=policy, issue=issue, release=release)
    again = from_json(to_json(schedule))
    assert (again, again.notes, again.issue, again.device_of) == (schedule, schedule.notes, issue, schedule.device_of)
    assert simulate(again, issue=again.issue).makespan == simulate(schedule, issue=schedule.issue).makespan
    assert to_json(again) == to_json(schedule)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 3))
def test_every_picture_can_be_drawn_of_a_plan_over_devices_and_of_its_loop(seed: int, count: int) -> None:
    of = drawn(seed)
    single, loop = plan(of), plan_loop(of)
    for schedule in (single, loop.schedule(count)):
        timeline = simulate(schedule)
        for form in FORMS:
            text = render(schedule, form, timeline)
            assert text == render(schedule, form, timeline)
            if form == "trace.json":
                slices = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
                assert {task.name for task in schedule.program.tasks} <= {event["name"] for event in slices}


@settings(max_examples=8, deadline=None)
@given(seed=SEEDS, executor=st.sampled_from(["lanes", "eager"]))
def test_programs_with_host_tasks_over_devices_can_be_tuned(seed: int, executor: Any) -> None:
    of = drawn(seed)
    found = tune(of, inputs_of(of, 0), ops=mix_for(of), device="cpu", executor=executor, plans=2, repeats=1)
    assert all(row.equal for row in found.rows)
    assert found.best in found.rows


def test_no_wait_of_the_spec_for_two_gpus_can_be_left_out_in_a_run_or_a_loop() -> None:
    assert [str(needed.step) for needed in plan(TWO_GPUS).certificate() if needed.violation is None] == []
    loop = plan_loop(TWO_GPUS, frozenset())
    assert [str(wait) for wait in loop_waits(loop) if not without(loop, wait) and "memory does not grow" not in wait.why] == []


def test_a_loop_with_the_caller_apart_says_of_every_wait_why_it_is_there() -> None:
    graph = sg.Graph("apart")
    item = graph.input("item", "i64[8]", init="random")
    raw = graph.input("raw", "i64[8]", device="cpu", init="random")
    staged = graph.buffer("staged", "i64[8]", device="cpu", pinned=True, slots=2)
    frame = graph.buffer("frame", "i64[8]", slots=2)
    graph.task("stage", "mix", reads=raw, writes=staged, host=True)
    graph.copy("upload", staged, frame, stream="copy")
    graph.output(graph.task("work", "mix", reads=[item, frame], writes="found"))
    loop = plan_loop(graph)
    assert {"main", "caller", "host", "copy", "loop"} <= {lane.name for lane in loop.lanes}
    for wait in loop_waits(loop):
        assert "memory does not grow" in wait.why or without(loop, wait), str(wait)
        assert wait.why.startswith(("RAW", "WAR", "WAW", "after", "host order", "last use", "the next item")), str(wait)


@pytest.mark.parametrize("executor", ["lanes", "eager"])
def test_a_measured_run_over_devices_stands_beside_the_predicted_one(executor: Any, tmp_path: Path) -> None:
    operators = sg.run(TWO_GPUS, ops={"stage": lambda x, w: (x @ w).tanh()}, device="cpu", executor=executor, profile=True)
    assert operators.measured is not None
    assert {time.task for time in operators.measured.tasks} == {task.name for task in operators.schedule.program.tasks}
    operators.report(tmp_path / "both.html")
    operators.trace(tmp_path / "both.trace.json")
    assert '"second",", cuda:1"' in (tmp_path / "both.html").read_text(encoding="utf-8")
    assert len({event["pid"] for event in json.loads((tmp_path / "both.trace.json").read_text(encoding="utf-8"))["traceEvents"]}) == 2
