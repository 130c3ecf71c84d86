"""The compiled executor: the same results from one flat function, the planned calls and no others, failures as the interpreter has them."""

from __future__ import annotations

import dis
import re
import types
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.errors import RunnerError, TaskError
from streamgraph.executors import flat as flat_module
from streamgraph.executors import launch
from streamgraph.executors.compiled import CompiledExecutor
from streamgraph.executors.device import Device, HostDevice
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.run import compile
from streamgraph.schedule import HostWait, Launch, RecordStream, Release, Schedule, Wait
from tests.fake_device import FakeDevice, ensure_nothing_held
from tests.programs import mix_for, seeded
from tests.running import (
    CHAINS,
    Fault,
    all_tensors,
    expected_of,
    failing,
    inputs_of,
    reference,
    run_after_run,
    same,
    shows_in_no_value,
    steps_of,
)
from tests.support import graph, program


def compiled(schedule: Schedule, device: Device | None = None, ops: Any = None) -> CompiledExecutor:
    if isinstance(device, FakeDevice):
        ops = ops or device.operators(schedule.program)
    return CompiledExecutor(schedule, resolve(schedule.program, ops or mix_for(schedule.program)), device or HostDevice())


def play(schedule: Schedule, seed: int, pace: float, runs: int = 4) -> list[bool]:
    """Whether each of several runs, back to back on a device that holds work back, gave what the reference gives."""
    of, device = schedule.program, FakeDevice(seed, pace)
    executor = compiled(schedule, device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        patch.setattr(launch, "copy_call", device.copy_call)
        results = run_after_run(executor, schedule, runs)
        executor.close()
        device.drain()
    verdicts = [same(result, expected) for result, expected in zip(results, expected_of(of, runs), strict=True)]
    results.clear()
    ensure_nothing_held(device)
    return verdicts


# --- the same results --------------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6), streams=st.integers(1, 4), early=st.booleans(), pace=st.sampled_from([0.0, 0.3, 0.9]), all=st.booleans(),
    part=st.sampled_from([1, 2, 3, 400]),
)  # fmt: skip
def test_compiled_gives_the_reference_however_the_device_holds_its_work_back(
    seed: int, streams: int, early: bool, pace: float, all: bool, part: int
) -> None:
    of = all_tensors(seeded(seed)) if all else seeded(seed)
    schedule = plan(of, streams=streams, release="early" if early else "default")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat_module, "PART", part)
        assert play(schedule, seed, pace) == [True] * 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400))
def test_many_seeded_programs_give_the_reference(seed: int) -> None:
    assert play(plan(seeded(seed, tasks=16), streams=1 + seed % 4, release="early" if seed % 3 else "default"), seed, 0.3) == [True] * 4


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_compiled_on_the_cpu_gives_the_reference(seed: int) -> None:
    of = seeded(seed)
    executor = compiled(plan(of, streams=3))
    results = [dict(executor.run(inputs_of(of, run)).outputs) for run in range(3)]
    executor.close()
    assert [same(result, expected) for result, expected in zip(results, expected_of(of, 3), strict=True)] == [True] * 3


@pytest.mark.parametrize("name", CHAINS)
def test_taking_out_any_one_wait_gives_a_wrong_result(name: str) -> None:
    schedule = plan(CHAINS[name], streams=3)
    for dropped in [step for step in schedule.steps if isinstance(step, Wait | HostWait) and not shows_in_no_value(schedule, step)]:
        mutant = steps_of(schedule, lambda step, dropped=dropped: step is not dropped)
        # The first run is the interpreter's: only what the compiled runs give counts.
        assert not all(all(play(mutant, seed, 0.1)[1:]) for seed in range(60)), f"nobody noticed that this is missing: {dropped}"


def test_constants_lists_views_and_keywords_reach_the_operator_as_the_interpreter_passes_them() -> None:
    seen: list[Any] = []

    def note(*positional: Any, **keywords: Any) -> torch.Tensor:
        seen.append((positional, keywords))
        return torch.zeros(2)

    made = Graph("calls")
    x = made.input("x", "f32[4, 3]")
    b = made.buffer("b", "f32[4, 3]")
    low = made.view("low", b, (slice(0, 2), 1))
    top = made.view("top", x, (slice(1, 3),))
    const = {"alpha": 0.5, "nothing": None, "sizes": [1, 2], "big": float("inf"), "text": "it's", "class": True}
    other = made.input("other", "f32[2]")
    y = made.task("one", note, reads=[[x, top], other], writes="y", const=const, stream="side")
    made.task("two", note, reads={"from": y, "low": low}, writes=["z"], const={"n": 3})
    schedule = plan(made)
    executor = compiled(schedule, ops={})
    inputs = {"x": torch.arange(12.0).reshape(4, 3), "other": torch.ones(2)}
    for _ in range(2):
        executor.run(inputs)
    interpreted, flat = seen[:2], seen[2:]
    assert len(flat) == 2
    for (first, first_named), (second, second_named) in zip(interpreted, flat, strict=True):
        assert list(first_named) == list(second_named)
        assert repr((first, first_named)) == repr((second, second_named))
        assert [type(argument) for argument in first] == [type(argument) for argument in second]
    assert flat[1][1]["low"].data_ptr() == next(iter(dict(executor.memory.buffers()).values())).data_ptr() + 4
    executor.close()


# --- what the function is made of --------------------------------------------------------------------------------------------------------


def functions(executor: CompiledExecutor) -> tuple[types.FunctionType, ...]:
    bound = executor._bound
    assert bound is not None
    return bound.parts  # type: ignore[return-value]


def test_a_compiled_run_looks_nothing_up_and_switches_only_where_the_lane_changes() -> None:
    text = "a: x -> y @one | b: y -> z @one | c: z -> v @two | d: v -> w @main"
    schedule = plan(graph(text, "x", outputs="w"))
    device = FakeDevice()
    executor = compiled(schedule, device)
    for run in range(2):
        executor.run(inputs_of(schedule.program, run))
    (function,) = functions(executor)
    names = {instruction.opname for instruction in dis.get_instructions(function)}
    assert not {name for name in names if "GLOBAL" in name or "NAME" in name or "DEREF" in name or "ATTR" in name or "SETUP" in name}
    assert executor.source.count("    set_stream(stream_") == 3  # one, two, main
    assert [line.split("#")[1].strip() for line in executor.source.splitlines() if re.search(r"= f\d", line)] == [
        "a @one", "b @one", "c @two", "d @main",
    ]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_compiled_issues_the_planned_calls_and_no_others(seed: int) -> None:
    schedule = plan(seeded(seed), streams=3)
    device = FakeDevice(seed)
    executor = compiled(schedule, device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        patch.setattr(launch, "copy_call", device.copy_call)
        for _ in range(4):
            device.log.clear()
            executor.run(inputs_of(schedule.program, 0))
            counts = schedule.counts
            assert device.log.count("record") == counts.events
            assert device.log.count("wait") == counts.waits
            assert device.log.count("record_stream") == counts.record_streams
            assert device.events == counts.events, "events are made once, in the first run"
        assert device.log.count("synchronize") == counts.host_waits
        device.drain()


def test_values_are_dropped_where_the_plan_releases_them() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    seen: list[int] = []

    def produce(x: torch.Tensor) -> torch.Tensor:
        result = x + 1
        alive.append(weakref.ref(result))
        return result

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(sum(reference() is not None for reference in alive))
        return x + 1

    made = Graph("drop")
    made.task("a", produce, reads=made.input("x", "f32[2]"), writes="y")
    made.task("b", produce, reads="y", writes="z")
    made.task("c", look, reads="z", writes="w")
    made.task("d", look, reads="w", writes="v")
    made.output("v")
    executor = compiled(plan(made, streams=1), ops={})
    for _ in range(2):
        executor.run({"x": torch.zeros(2)})
    assert seen == [1, 0, 1, 0]
    executor.close()


@pytest.mark.parametrize("part", [1, 7, 400])
def test_long_schedules_become_several_functions(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_module, "PART", part)
    made = Graph("long")
    x = made.input("x", "i64[8]")
    h = made.input("start", "i64[8]")
    for number in range(60):
        h = made.task(f"t{number}", torch.add, reads=[h, x], writes="h", stream=f"lane{number % 3}")
    made.output(h)
    executor = compiled(plan(made), ops={})
    results = [executor.run({"x": torch.full((8,), value), "start": torch.zeros(8).long()}).outputs["h"] for value in (1, 2, 3)]
    assert [result[0].item() for result in results] == [60, 120, 180]
    assert len(functions(executor)) == -(-60 // part)
    executor.close()


def test_runners_show_their_source() -> None:
    with compile(CHAINS["RAW"], device="cpu", executor="eager", ops=mix_for(CHAINS["RAW"].program())) as runner:
        assert "def part0(carry" in runner.source
    runner = compile(CHAINS["RAW"], device="cpu", executor="lanes", ops=mix_for(CHAINS["RAW"].program()))
    with runner, pytest.raises(RunnerError, match="SG612"):
        _ = runner.source


# --- streams and failures ----------------------------------------------------------------------------------------------------------------


def test_the_caller_may_come_on_any_stream_and_gets_it_back() -> None:
    schedule = plan(graph("a: x -> y @one | b: y -> z @two | c: z -> r @main", "x", outputs="r y z"))
    device = FakeDevice(3, 0.2)
    executor, results = compiled(schedule, device), []
    for run in range(9):
        came_on = device.current
        device.device_index = run % 2
        results.append(executor.run(inputs_of(schedule.program, run)).outputs)
        assert (device.current, device.device_index) == (came_on, run % 2)
        handles = [stream.cuda_stream for lane, stream in executor.streams.items() if lane != "host"]
        assert len(set(handles)) == len(handles) == 3
        device.set_stream(device.streams[(run + 1) % len(device.streams)])
    executor.close()
    device.drain()
    assert [same(result, expected) for result, expected in zip(results, expected_of(schedule.program, 9), strict=True)] == [True] * 9


WIDE = "a: x -> y @one | b: x -> z @two | c: y z -> v @main | p: h -> k ! | d: v k -> w @one | e: w -> +b @two"


@pytest.mark.parametrize("task", ["a", "b", "c", "p", "d", "e"])
@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("part", [2, 400])
def test_a_task_that_raises_is_named_and_the_executor_runs_again(task: str, fake: bool, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_module, "PART", part)
    of = program(WIDE, inputs="x", buffers="b", hosts="h k", outputs="w")
    schedule, device = plan(of), FakeDevice(1, 0.1)
    broken: dict[str, BaseException] = {}
    base = device.operators(of) if fake else None
    executor = compiled(schedule, device if fake else None, failing(of, broken, base))
    right = expected_of(of, 4)
    for run in range(2):
        outputs = executor.run(inputs_of(of, run)).outputs
    broken[task] = Fault("no more")
    with pytest.raises(TaskError, match=rf"task '{task}' @\w+: mix\(.*: \w+\[8\].*\) raised Fault: no more") as caught:
        executor.run(inputs_of(of, 2))
    assert caught.value.__cause__ is broken[task]
    assert (caught.value.task, caught.value.lane) == (task, "host" if task == "p" else schedule.lane_of[task])
    assert not any(stream.queue for stream in device.streams), "streams are drained"
    assert device.current is device.default
    assert executor.pending == {}
    assert torch.is_grad_enabled()
    assert torch.is_autocast_cache_enabled()
    del broken[task], caught
    outputs = executor.run(inputs_of(of, 3)).outputs
    device.drain()
    assert same(outputs, right[3])
    executor.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=lambda error: type(error).__name__)
def test_an_interrupt_passes_as_it_is(error: BaseException) -> None:
    of = program("a: x -> y @one | b: y -> z @two | c: z -> v @main", inputs="x", outputs="v")
    broken: dict[str, BaseException] = {}
    device = FakeDevice(2, 0.1)
    executor = compiled(plan(of), device, failing(of, broken, device.operators(of)))
    executor.run(inputs_of(of, 0))
    broken["b"] = error
    with pytest.raises(type(error)):
        executor.run(inputs_of(of, 0))
    assert not any(stream.queue for stream in device.streams)
    broken.clear()
    outputs = executor.run(inputs_of(of, 1)).outputs
    device.drain()
    assert same(outputs, reference(of).run(inputs_of(of, 1)).outputs)
    executor.close()


def test_a_failed_run_keeps_no_tensor_alive() -> None:
    made = Graph("leak")
    x = made.input("x", "i64[8]")
    kept: list[weakref.ref[torch.Tensor]] = []
    fault: list[BaseException] = []

    def produce(x: torch.Tensor) -> torch.Tensor:
        result = x.clone()
        kept.append(weakref.ref(result))
        return result

    def fail(y: torch.Tensor) -> torch.Tensor:
        if fault:
            raise fault[0]
        return y + 1

    y = made.task("produce", produce, reads=x, writes="y", stream="one")
    made.task("hold", torch.neg, reads=y, writes="other", stream="one")
    made.task("fail", fail, reads="x", writes="z", stream="two")
    made.task("last", torch.add, reads=["y", "z"], writes="end", stream="two")
    executor = compiled(plan(made), ops={})
    executor.run({"x": torch.zeros(8)})
    fault.append(Fault())
    with pytest.raises(TaskError) as caught:
        executor.run({"x": torch.zeros(8)})
    assert [reference() for reference in kept] == [None] * 2, "not even while the error is held"
    del caught
    executor.close()


def test_a_stream_that_a_task_leaves_current_later_is_found_at_the_end_and_named_by_the_next_run() -> None:
    device = FakeDevice()
    other = device.new_stream("normal", ())
    stray = [False]

    def wander(x: torch.Tensor) -> torch.Tensor:
        if stray[0]:
            device.set_stream(other)
        return device.allocate([8], torch.int64)

    made = Graph("stray")
    made.output(made.task("wander", wander, reads=made.input("x", "i64[8]"), writes="y"))
    executor = CompiledExecutor(plan(made), resolve(made.program()), device)
    for _ in range(2):
        executor.run({"x": torch.zeros(8, dtype=torch.int64)})
    stray[0] = True
    for message in ("a task of 'stray' left another stream", "task 'wander' @main left another stream"):
        with pytest.raises(TaskError, match=message):
            executor.run({"x": torch.zeros(8, dtype=torch.int64)})
        assert device.current is device.default


def test_an_early_release_in_the_wrong_place_gives_a_wrong_result() -> None:
    text = "a: x -> h @one | use: h -> y @main | more: x -> k @one | last: k y -> z @main"
    schedule = plan(graph(text, "x", outputs="y z"))
    position = next(i for i, step in enumerate(schedule.steps) if step == Launch("use", "main"))
    kept = [[s for s in part if not (isinstance(s, Release) and s.storage == "h.1")]
            for part in (schedule.steps[: position + 1], schedule.steps[position + 1 :])]  # fmt: skip
    early = replace(schedule, steps=(*kept[0], Release("h.1", "one"), *kept[1]))
    assert not all(all(play(early, seed, 0.1)[1:]) for seed in range(60))
    recorded = replace(schedule, steps=(*kept[0], RecordStream("h.1", "main"), Release("h.1", "one"), *kept[1]))
    assert all(all(play(recorded, seed, 0.1)) for seed in range(30))
