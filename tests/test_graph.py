"""The graph executor on a device that captures and replays in any order that the captured waits allow."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.errors import BindingError, DeviceError, RunnerError, TaskError
from streamgraph.executors.compiled import CompiledExecutor
from streamgraph.executors.device import HostDevice
from streamgraph.executors.graph import GraphExecutor
from streamgraph.model import Program
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.portfolio import Policy
from streamgraph.schedule import Launch, Schedule, Wait
from tests.fake_device import FakeDevice, Item, ensure_nothing_held, fake, standing_in
from tests.programs import seeded
from tests.running import (
    CHAINS,
    Fault,
    Tensors,
    all_tensors,
    expected_of,
    failing,
    hurried,
    inputs_of,
    reference,
    run_after_run,
    same,
    steps_of,
)  # fmt: skip
from tests.support import graph, program

pytestmark = pytest.mark.usefixtures("copies")


def captured(schedule: Schedule, device: FakeDevice, ops: Any = None, bound: Tensors | None = None) -> GraphExecutor:
    operators = resolve(schedule.program, ops or device.operators(schedule.program))
    return GraphExecutor(schedule, operators, device, 0, bound or {})


_captured: list[tuple[list[tuple[int, Item]], list[int]]] = []  # of the latest play: items, and those of high priority


def play(schedule: Schedule, seed: int, pace: float, runs: int = 5) -> list[bool]:
    """Whether each of several runs, one eager and the others replayed, gave what the reference gives."""
    of, device = schedule.program, fake(seed, pace)
    executor = captured(schedule, device)
    results = run_after_run(executor, schedule, runs)
    assert executor.captured or not schedule.lane_of
    _captured[:] = [(list(made.items), list(made.high)) for made in device.graphs]
    executor.close()
    device.drain()
    standing_in.clear()
    verdicts = [same(result, expected) for result, expected in zip(results, expected_of(of, runs), strict=True)]
    results.clear()
    ensure_nothing_held(device)
    return verdicts


def without_host_tasks(seed: int) -> Program:
    """A random program that a graph can hold."""
    while True:
        of = seeded(seed)
        if not any(task.host for task in plan(of, streams=1).program.tasks):
            return of
        seed += 10**6


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6), streams=st.integers(1, 4), early=st.booleans(), pace=st.sampled_from([0.0, 0.3, 0.9]), all=st.booleans(),
    policy=st.sampled_from(["auto", "urgent"]),
)  # fmt: skip
def test_replays_give_the_reference_however_the_device_orders_them(
    seed: int, streams: int, early: bool, pace: float, all: bool, policy: Policy
) -> None:
    of = without_host_tasks(seed)
    of = all_tensors(of) if all else of
    schedule = plan(of, streams=streams, release="early" if early else "default", policy=policy, issue="captured")
    if any(task.host for task in schedule.program.tasks):
        return  # a copy of a host output
    assert play(schedule, seed, pace) == [True] * 5


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(1, 4), pace=st.sampled_from([0.0, 0.3, 0.9]))
def test_urgent_launches_change_nothing_of_a_capture_but_their_priority(seed: int, streams: int, pace: float) -> None:
    schedule = plan(without_host_tasks(seed), streams=streams, issue="captured")
    if any(task.host for task in schedule.program.tasks):
        return
    kinds = []
    for share in (0.0, 0.5):
        assert play(hurried(schedule, seed, share), seed, pace) == [True] * 5
        for items, high in _captured:
            kinds.append([(handle, type(item)) for handle, item in items])
            assert all(callable(items[number][1]) for number in high), "work, and nothing that orders"
            assert share or not high
    assert all(items == kinds[0] for items in kinds), "the same lanes, the same edges"


def test_what_an_urgent_task_does_on_its_lane_has_high_priority_and_nothing_else_has() -> None:
    of = program("a: x -> y @one | b: x -> z @two | c: y z -> v @one | d: v -> w @main", inputs="x", outputs="w")
    device = fake(1)
    schedule = hurried(plan(of, issue="captured"), share=0.0)
    schedule = replace(schedule, steps=tuple(replace(s, urgent=s.task in "ac") if isinstance(s, Launch) else s for s in schedule.steps))
    executor = captured(schedule, device)
    for run in range(3):
        executor.run(inputs_of(of, run))
    device.drain()
    (made,) = device.graphs
    work = [number for number, (_, item) in enumerate(made.items) if callable(item)]
    assert made.high == [work[0], work[2]]
    assert made.items[work[0]][0] == made.items[work[2]][0] != made.items[work[1]][0], "the lane is one stream"
    executor.close()


@pytest.mark.parametrize("name", ["RAW", "WAR", "updates"])
def test_taking_out_any_one_wait_is_noticed(name: str) -> None:
    schedule = plan(CHAINS[name], streams=3)
    assert not noticed(schedule, 10)
    for dropped in [step for step in schedule.steps if isinstance(step, Wait)]:
        mutant = steps_of(schedule, lambda step, dropped=dropped: step is not dropped)
        assert noticed(mutant, 60), f"nobody noticed that this is missing: {dropped}"


def noticed(schedule: Schedule, seeds: int) -> bool:
    """Whether a replay gives a wrong result, or the capture is refused: for a lane that never joined it, or never came back."""
    try:
        return not all(all(play(schedule, seed, 0.1)[1:]) for seed in range(seeds))
    except RunnerError as error:
        return error.problems[0].code == "SG614"


def test_bound_inputs_are_read_where_they_lie_and_others_are_copied_in() -> None:
    of = program("a: x w -> y @one | b: y w -> z @main", inputs="x w", outputs="z")
    schedule, device = plan(of), fake()
    inputs = inputs_of(of, 0)
    executor = captured(schedule, device, bound={"w": inputs["w"]})
    for run in range(4):
        inputs["w"].copy_(inputs_of(of, run)["w"])  # a bound tensor may change between calls, its place may not
        x = inputs_of(of, run)["x"]
        result = executor.run({"x": x, "w": inputs["w"]}).outputs
        device.drain()
        assert same(result, expected_of(of, run + 1)[run])
    with pytest.raises(BindingError, match=r"SG613.*'w' was bound for good"):
        executor.run({"x": x, "w": x})
    executor.close()


def test_an_updated_input_is_the_callers_own_tensor() -> None:
    of = program("a: y -> +x @one | b: x -> z @main", inputs="x y", outputs="z")
    device = fake(1, 0.1)
    executor = captured(plan(of), device)
    for run in range(4):
        mine, right = inputs_of(of, run), inputs_of(of, run)
        expected = reference(of).run(right).outputs
        result = executor.run(mine).outputs
        device.drain()
        assert same(result, expected)
        assert torch.equal(mine["x"], right["x"])
    executor.close()


def test_results_of_a_replay_stay_when_later_ones_run() -> None:
    of = CHAINS["RAW"].program()
    device = fake(4, 0.1)
    executor = captured(plan(of), device)
    results = [executor.run(inputs_of(of, run)).outputs for run in range(6)]
    device.drain()
    assert [same(result, right) for result, right in zip(results, expected_of(of, 6), strict=True)] == [True] * 6
    executor.close()


def test_the_caller_may_come_on_any_stream() -> None:
    of = program("a: x -> +b @one | c: b -> y @two | d: y -> z @main", inputs="x", buffers="b", outputs="z")
    device = fake(5, 0.1)
    executor, results = captured(plan(of), device), []
    for run in range(9):
        came_on = device.current
        results.append(executor.run(inputs_of(of, run)).outputs)
        assert device.current is came_on
        device.set_stream(device.streams[(run + 1) % 5])
    executor.close()
    device.drain()
    assert [same(result, right) for result, right in zip(results, expected_of(of, 9), strict=True)] == [True] * 9


def test_other_shapes_than_the_captured_ones_are_refused() -> None:
    made = Graph("shapes")
    made.output(made.task("a", torch.neg, reads=made.input("x"), writes="y"))
    executor = captured(plan(made), fake(), ops={})
    for _ in range(2):
        executor.run({"x": torch.zeros(3)})
    with pytest.raises(BindingError, match=r"SG613.*f32\[4\].*captured with f32\[3\]"):
        executor.run({"x": torch.zeros(4)})


@pytest.mark.parametrize("task", ["a", "b", "c"])
def test_a_task_that_raises_while_it_is_captured_is_named_and_the_next_call_captures_again(task: str) -> None:
    of = program("a: x -> y @one | b: y -> z @two | c: z -> v @main", inputs="x", outputs="v")
    device = fake(2, 0.1)
    broken: dict[str, BaseException] = {}
    executor = captured(plan(of), device, failing(of, broken, device.operators(of)))
    executor.run(inputs_of(of, 0))
    broken[task] = Fault("not now")
    with pytest.raises(TaskError, match=f"task '{task}'.*raised Fault: not now") as caught:
        executor.run(inputs_of(of, 1))
    assert "being captured" in str(caught.value)
    assert device.graph is None
    assert device.current is device.default
    broken.clear()
    del caught
    for run in range(2, 5):
        result = executor.run(inputs_of(of, run)).outputs
        device.drain()
        assert same(result, expected_of(of, run + 1)[run])
    executor.close()
    del result
    gc.collect()
    assert len(device.free) == len(device.blocks)


def teststanding_in_that_capture_nothing_are_refused_before_anything_runs() -> None:
    schedule = plan(CHAINS["RAW"])
    device = fake()
    with pytest.raises(DeviceError, match=r"SG606.*captures CUDA graphs"):
        GraphExecutor(schedule, resolve(schedule.program, device.operators(schedule.program)), HostDevice(), 0, {})


# --- inside the caller's own capture -----------------------------------------------------------------------------------------------------


def test_a_run_joins_the_callers_capture_and_replays_with_it() -> None:
    of = program("a: x -> y @one | b: y -> +s @two | c: s y -> v @main", inputs="x", buffers="s", outputs="v")
    schedule, device = plan(of), fake(3, 0.1)
    executor = CompiledExecutor(schedule, resolve(of, device.operators(of)), device)
    x = inputs_of(of, 0)["x"]
    executor.run({"x": x})
    device.drain()
    mine = device.new_graph()
    lanes = {stream.cuda_stream for stream in executor.streams.values()}
    device.set_stream(device.new_stream("normal", lanes))
    mine.capture_begin(capture_error_mode="global")
    events, device.log[:] = device.events, []
    result = executor.run({"x": x}).outputs["v"]
    assert "record_stream" not in device.log
    assert "synchronize" not in device.log
    assert device.events > events, "no event is shared with eager runs"
    mine.capture_end()
    device.set_stream(device.default)
    right = expected_of(of, 6)
    for run in range(1, 6):
        if run == 3:  # an eager run in between
            found = executor.run({"x": inputs_of(of, run)["x"]}).outputs["v"]
        else:
            device.put(device.default, lambda run=run: x.copy_(inputs_of(of, run)["x"]))
            mine.replay()
            found = result
        device.drain()
        assert torch.equal(found, right[run]["v"])
    executor.close()


def test_what_cannot_join_a_capture_is_refused_before_its_first_step() -> None:
    hosted = graph("a: x -> h @one | p: h -> k ! | c: k -> y @two", "x", hosts="h k", outputs="y").program()
    fetched = Graph("fetched")
    fetched.value("r", "i64[8]", device="cpu", pinned=True)
    fetched.copy("down", fetched.input("x", "i64[8]"), "r")
    fetched.output("r")
    new = CHAINS["RAW"].program()
    cases = ((hosted, "SG611", True), (fetched.program(), "SG609.*task 'down'", True), (new, "SG609.*not run before", False))
    for of, message, ran in cases:
        device = fake()
        executor = CompiledExecutor(plan(of), resolve(of, device.operators(of)), device)
        if ran:
            executor.run(inputs_of(of, 0))
        device.drain()
        device.set_stream(device.new_stream("normal", [s.cuda_stream for s in executor.streams.values()]))
        mine = device.new_graph()
        mine.capture_begin(capture_error_mode="global")
        with pytest.raises(RunnerError, match=message):
            executor.run(inputs_of(of, 0))
        mine.capture_end()
        assert mine.items == []
        executor.close()
