"""Every executor computes what the reference computes, bit for bit, however threads and streams are delayed; and survives failures."""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import streamgraph as sg
from streamgraph.builder import Graph
from streamgraph.errors import RunnerError, TaskError
from streamgraph.executors import Executor, launch
from streamgraph.executors.device import Device, HostDevice
from streamgraph.executors.eager import EagerExecutor
from streamgraph.executors.lanes import LanesExecutor
from streamgraph.executors.sequential import SequentialExecutor
from streamgraph.model import Program
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Wait, parse_steps
from tests.fake_device import FakeDevice, ensure_nothing_held
from tests.programs import mix_for, seeded
from tests.running import (
    CHAINS,
    Fault,
    Tensors,
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


def lanes(schedule: Schedule, ops: Any = None, delay: Any = None) -> LanesExecutor:
    return LanesExecutor(schedule, resolve(schedule.program, ops or mix_for(schedule.program)), delay=delay)


def eager(schedule: Schedule, device: Device | None = None, ops: Any = None) -> EagerExecutor:
    if isinstance(device, FakeDevice):
        ops = ops or device.operators(schedule.program)
    return EagerExecutor(schedule, resolve(schedule.program, ops or mix_for(schedule.program)), device or HostDevice())


def play(schedule: Schedule, seed: int, pace: float, runs: int = 3, overwrite: bool = True) -> list[bool]:
    """Whether each of several runs, back to back on a device that holds work back, gave what the reference gives."""
    of, device = schedule.program, FakeDevice(seed, pace)
    executor = eager(schedule, device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        results = run_after_run(executor, schedule, runs, overwrite)
        executor.close()
        device.drain()
    verdicts = [same(result, expected) for result, expected in zip(results, expected_of(of, runs), strict=True)]
    results.clear()
    ensure_nothing_held(device)
    return verdicts


# --- the same results --------------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(1, 4), early=st.booleans(), pace=st.sampled_from([0.0, 0.3, 0.9]), all=st.booleans())
def test_eager_gives_the_reference_however_the_device_holds_its_work_back(
    seed: int, streams: int, early: bool, pace: float, all: bool
) -> None:
    of = all_tensors(seeded(seed)) if all else seeded(seed)
    schedule = plan(of, streams=streams, release="early" if early else "default")
    assert play(schedule, seed, pace) == [True] * 3


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(1, 4), all=st.booleans())
def test_lanes_give_the_reference_however_threads_are_delayed(seed: int, streams: int, all: bool) -> None:
    of = all_tensors(seeded(seed)) if all else seeded(seed)
    draws = random.Random(seed)

    def delay(task: str, when: str) -> None:
        if draws.random() < 0.3:
            time.sleep(draws.random() * 0.002)

    executor = lanes(plan(of, streams=streams), delay=delay)
    try:
        results = [dict(executor.run(inputs_of(of, run)).outputs) for run in range(3)]
    finally:
        executor.close()
    assert [same(result, expected) for result, expected in zip(results, expected_of(of, 3), strict=True)] == [True] * 3


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_eager_on_the_cpu_gives_the_reference(seed: int) -> None:
    of = seeded(seed)
    executor = eager(plan(of, streams=3))
    results = [dict(executor.run(inputs_of(of, run)).outputs) for run in range(2)]
    executor.close()
    assert [same(result, expected) for result, expected in zip(results, expected_of(of, 2), strict=True)] == [True] * 2


def test_ring_members_have_memory_of_their_own_in_the_reference() -> None:
    made = Graph("ring")
    x = made.input("x", "i64[8]")
    ring = made.buffer("w", "i64[8]", each={"layer": 4}, slots=1, over="layer")
    for layer in range(4):
        made.task(f"fill{layer}", "mix", reads=x, writes=ring[layer], stream="copy")
        made.task(f"use{layer}", "mix", reads=ring[layer], writes=f"y{layer}", stream="main")
        made.output(f"y{layer}")
    of = made.program()
    assert len({s.label for s in reference(of).accesses.storages if s.tensor.startswith("w@")}) == 4
    schedule = plan(of, streams=3)
    assert play(schedule, 0, 0.2) == [True] * 3
    # The reference knows nothing of slots: a schedule whose members overwrite each other too early differs from it.
    assert not all_pass(steps_of(schedule, lambda step: not isinstance(step, Wait)), 20)


def all_pass(schedule: Schedule, seeds: int, runs: int = 2) -> bool:
    return all(all(play(schedule, seed, 0.1, runs)) for seed in range(seeds))


# --- the fake device can say no ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHAINS)
def test_taking_out_any_one_wait_gives_a_wrong_result(name: str) -> None:
    schedule = plan(CHAINS[name], streams=3)
    assert all_pass(schedule, 10)
    for dropped in [step for step in schedule.steps if isinstance(step, Wait | HostWait) and not shows_in_no_value(schedule, step)]:
        mutant = steps_of(schedule, lambda step, dropped=dropped: step is not dropped)
        assert not all_pass(mutant, 60), f"nobody noticed that this is missing: {dropped}"


def test_a_release_before_the_other_lane_is_done_gives_a_wrong_result() -> None:
    # `h` is made on lane one, read on main, and its block is the next one that lane one allocates.
    text = "a: x -> h @one | use: h -> y @main | more: x -> k @one | last: k y -> z @main"
    schedule = plan(graph(text, "x", outputs="y z"))
    assert all_pass(schedule, 20)
    position = next(i for i, step in enumerate(schedule.steps) if step == Launch("use", "main"))
    early = replace(
        schedule,
        steps=(*[s for s in schedule.steps[: position + 1] if not is_release_of(s, "h.1")], Release("h.1", "one"),
               *[s for s in schedule.steps[position + 1 :] if not is_release_of(s, "h.1")]),
    )  # fmt: skip
    assert not all_pass(early, 60)
    at = next(i for i, step in enumerate(early.steps) if is_release_of(step, "h.1"))
    recorded = replace(early, steps=(*early.steps[:at], RecordStream("h.1", "main"), *early.steps[at:]))
    assert all_pass(recorded, 30)


def is_release_of(step: Any, label: str) -> bool:
    return isinstance(step, Release) and step.storage == label


# --- only the planned calls --------------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_eager_issues_the_planned_calls_and_no_others(seed: int) -> None:
    schedule = plan(seeded(seed), streams=3)
    device = FakeDevice(seed)
    executor = eager(schedule, device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        for run in range(3):
            device.log.clear()
            executor.run(inputs_of(schedule.program, run))
            counts = schedule.counts
            assert device.log.count("record") == counts.events
            assert device.log.count("wait") == counts.waits
            assert device.log.count("record_stream") == counts.record_streams
            previous = sum(" previous" in str(step) and str(step).startswith("hostwait") for step in schedule.steps)
            assert device.log.count("synchronize") == counts.host_waits - (previous if run == 0 else 0)
            assert device.events == counts.events, "events are made once, in the first run"
        device.drain()


def test_side_lanes_have_streams_of_their_own_even_if_the_caller_comes_on_one_of_them() -> None:
    schedule = plan(graph("a: x -> y @one | b: y -> z @two | c: z -> r @main", "x", outputs="r y z"))
    device = FakeDevice(3, 0.2)
    executor, results = eager(schedule, device), []
    for run in range(6):
        results.append(executor.run(inputs_of(schedule.program, run)).outputs)
        handles = [stream.cuda_stream for lane, stream in executor.streams.items() if lane != "host"]
        assert len(set(handles)) == len(handles) == 3
        device.set_stream(device.streams[(run + 1) % len(device.streams)])
    executor.close()
    device.drain()
    assert [same(result, expected) for result, expected in zip(results, expected_of(schedule.program, 6), strict=True)] == [True] * 6


def test_the_stream_and_the_device_are_the_callers_again_after_a_run() -> None:
    schedule = plan(graph("a: x -> y @one | b: y -> z @two", "x", outputs="z"))
    device = FakeDevice()
    device.device_index = 1
    executor = eager(schedule, device)
    executor.run(inputs_of(schedule.program, 0))
    assert (device.current, device.device_index) == (device.default, 1)


def test_a_run_inside_a_capture_is_refused() -> None:
    schedule = plan(graph("a: x -> y", "x", outputs="y"))
    device = FakeDevice()
    device.capturing = True
    with pytest.raises(RunnerError, match="SG609"):
        eager(schedule, device).run(inputs_of(schedule.program, 0))


# --- waits on host threads ---------------------------------------------------------------------------------------------------------------


def test_a_wait_of_the_second_run_is_not_released_by_the_record_of_the_first() -> None:
    schedule = plan(graph("slow: x -> y @one | use: y -> z @main", "x", outputs="z"))
    slow = threading.Event()

    def delay(task: str, when: str) -> None:
        if (task, when) == ("slow", "before") and slow.is_set():
            time.sleep(0.05)

    executor = lanes(schedule, delay=delay)
    first = executor.run(inputs_of(schedule.program, 0)).outputs
    slow.set()
    second = executor.run(inputs_of(schedule.program, 1)).outputs
    executor.close()
    assert [same(first, expected_of(schedule.program, 2)[0]), same(second, expected_of(schedule.program, 2)[1])] == [True, True]


def test_lanes_take_over_the_callers_torch_state_at_each_run() -> None:
    seen: dict[str, tuple[Any, ...]] = {}

    def look(x: torch.Tensor) -> torch.Tensor:
        seen[threading.current_thread().name] = (
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(), torch.get_num_threads(),
        )  # fmt: skip
        return x.clone()

    made = Graph("look")
    x = made.input("x", "i64[8]")
    for lane in ("main", "one", "two"):
        made.output(made.task(f"on_{lane}", look, reads=x, writes=f"y_{lane}", stream=lane))
    made.task("on_host", lambda: len(look(torch.zeros(1))), host=True)
    schedule = plan(made)
    executor = LanesExecutor(schedule, resolve(schedule.program))
    threads = torch.get_num_threads()
    try:
        executor.run(inputs_of(schedule.program, 0))
        assert set(seen.values()) == {(False, False, False, torch.bfloat16, False, threads)}
        assert len(seen) == 4
        torch.set_num_threads(threads + 1)
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16):
            executor.run(inputs_of(schedule.program, 0))
        assert set(seen.values()) == {(False, True, True, torch.float16, False, threads + 1)}
        assert torch.is_autocast_cache_enabled()
        executor.run(inputs_of(schedule.program, 0))
        assert set(seen.values()) == {(False, False, False, torch.bfloat16, False, threads + 1)}
    finally:
        torch.set_num_threads(threads)
        executor.close()


@pytest.mark.parametrize("executor", ["sequential", "eager", "lanes"])
@pytest.mark.parametrize("how", ["call", "map", "a map closed early", "an error", "an error in map"])
def test_the_callers_torch_state_is_left_as_it_was(executor: Any, how: str) -> None:
    """Each time, not only the first; lane `main` is issued by the caller's own thread."""

    def double(x: torch.Tensor) -> torch.Tensor:
        if "error" in how:
            raise ValueError("no signal")
        return torch.mm(x, x)

    def state() -> tuple[Any, ...]:
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_cache_enabled(), torch.get_num_threads()
        return (*modes, *((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")))

    made = Graph("modes")
    made.copy("copy", made.input("x", "f32[2, 2]", device="cpu"), made.buffer("b", "f32[2, 2]", slots=2), stream="copy")
    made.output(made.task("double", double, reads="b", writes="y", stream="main"))
    made.task("on_host", lambda x: None, reads="x", host=True)
    x = torch.ones(2, 2)
    with sg.compile(made, device="cpu", executor=executor) as runner:
        for inference, autocast in ((False, True), (True, False), (True, True), (False, False)):
            with torch.inference_mode(inference), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                before = state()
                for _ in range(2):
                    results: list[sg.Result] = []
                    with suppress(sg.TaskError):
                        if "map" in how:
                            loop = cast("Generator[sg.Result, None, None]", runner.map([x] * 4))
                            results.append(next(loop))
                            results += [] if "early" in how else loop
                            loop.close()
                        else:
                            results.append(runner(x=x))
                    assert state() == before
                    wanted = torch.bfloat16 if autocast else torch.float32
                    assert {(result["y"].dtype, result["y"].is_inference()) for result in results} <= {(wanted, inference)}


def test_many_runs_on_many_lanes_with_threads_switching_all_the_time() -> None:
    made = Graph("braid")
    made.input("x", "i64[8]")
    for number in range(48):
        reads = ["x"] if number < 8 else [f"v{number - 8}", f"v{number - 8 + (1 if number % 8 < 7 else -7)}"]
        made.task(f"t{number}", "mix", reads=reads, writes=f"v{number}", stream=f"lane{number % 8}")
    for number in range(40, 48):
        made.output(f"v{number}")
    of = made.program()
    executor, right = lanes(plan(of)), expected_of(of, 1)[0]
    inputs, interval = inputs_of(of, 0), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        verdicts = [same(executor.run(inputs).outputs, right) for _ in range(50)]
    finally:
        sys.setswitchinterval(interval)
        executor.close()
    assert verdicts == [True] * 50


def test_buffers_made_in_inference_mode_can_be_updated_outside() -> None:
    of = program("a: x -> +b @one | c: b -> y", inputs="x", buffers="b", outputs="y")
    for executor in (lanes(plan(of)), eager(plan(of)), reference(of)):
        with torch.inference_mode():
            executor.run(inputs_of(of, 0))
        executor.run(inputs_of(of, 1))
        executor.close()


def test_threads_end_with_close_and_with_the_last_reference() -> None:
    schedule = plan(graph("a: x -> y @one | b: x -> z @two", "x", outputs="y z"))
    before = threading.active_count()
    executor = lanes(schedule)
    assert threading.active_count() == before + 2
    executor.close()
    executor.close()
    assert threading.active_count() == before
    dropped = lanes(schedule)
    threads = [thread for thread in threading.enumerate() if thread.name.endswith(("@one", "@two"))]
    dropped.run(inputs_of(schedule.program, 0))
    alive = weakref.ref(dropped)
    del dropped
    gc.collect()
    for thread in threads:
        thread.join(10)
    assert alive() is None
    assert threading.active_count() == before


# --- failures ----------------------------------------------------------------------------------------------------------------------------


WIDE = "a: x -> y @one | b: x -> z @two | c: y z -> v @main | p: h -> k ! | d: v k -> w @one | e: w -> +b @two"


@pytest.mark.parametrize("task", ["a", "b", "c", "p", "d", "e"])
@pytest.mark.parametrize("kind", ["lanes", "eager", "fake", "sequential"])
def test_a_task_that_raises_is_named_and_the_executor_runs_again(task: str, kind: str) -> None:
    of = program(WIDE, inputs="x", buffers="b", hosts="h k", outputs="w")
    schedule, device = plan(of), FakeDevice(1, 0.1)
    broken: dict[str, BaseException] = {}
    executor: Executor
    match kind:
        case "lanes":
            executor = lanes(schedule, failing(of, broken))
        case "eager":
            executor = eager(schedule, None, failing(of, broken))
        case "fake":
            executor = eager(schedule, device, failing(of, broken, device.operators(of)))
        case _:
            executor = SequentialExecutor(of, resolve(of, failing(of, broken)), HostDevice())
    good = expected_of(of, 3)
    assert same_after_drain(executor, of, 0, device, good[0])
    broken[task] = Fault("no more")
    with pytest.raises(TaskError, match=rf"task '{task}' @\w+: mix\(.*\) raised Fault: no more") as caught:
        executor.run(inputs_of(of, 1))
    assert caught.value.__cause__ is broken[task]
    assert caught.value.task == task
    assert caught.value.problems[0].code == "SG601"
    assert not any(stream.queue for stream in device.streams), "streams are drained"
    assert device.current is device.default
    del broken[task], caught
    assert same_after_drain(executor, of, 2, device, good[2])  # which does not depend on what the failed run did to `b`
    executor.close()


def same_after_drain(executor: Executor, of: Program, seed: int, device: FakeDevice, expected: Tensors) -> bool:
    outputs = executor.run(inputs_of(of, seed)).outputs
    device.drain()
    return same(outputs, expected)


@pytest.mark.parametrize("slow", ["a", "b"])
def test_of_several_failures_the_first_in_issue_order_is_raised(slow: str) -> None:
    of = program("a: x -> y @one | b: x -> z @two | c: y z -> v @main", inputs="x", outputs="v")
    broken: dict[str, BaseException] = {"a": Fault("a"), "b": Fault("b")}

    def delay(task: str, when: str) -> None:
        if task == slow:
            time.sleep(0.02)

    executor = lanes(plan(of, order="declared"), failing(of, broken), delay)
    with pytest.raises(TaskError) as caught:
        executor.run(inputs_of(of, 0))
    executor.close()
    assert caught.value.task == "a"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("task", ["a", "c"])
@pytest.mark.parametrize("kind", ["lanes", "fake"])
def test_an_interrupt_passes_as_it_is_and_leaves_nothing_stuck(error: BaseException, task: str, kind: str) -> None:
    of = program("a: x -> y @one | b: y -> z @two | c: z -> v @main", inputs="x", outputs="v")
    broken: dict[str, BaseException] = {task: error}
    device = FakeDevice(2, 0.1)
    executor: Executor
    if kind == "lanes":
        executor = lanes(plan(of), failing(of, broken))
    else:
        executor = eager(plan(of), device, failing(of, broken, device.operators(of)))
    with pytest.raises(type(error)):
        executor.run(inputs_of(of, 0))
    assert not any(stream.queue for stream in device.streams)
    broken.clear()
    assert same_after_drain(executor, of, 1, device, reference(of).run(inputs_of(of, 1)).outputs)
    executor.close()


def test_an_interrupt_while_main_waits_for_a_lane_ends_the_run_after_that_lanes_task() -> None:
    of = program("a: x -> y @one | b: y -> z @one | c: z -> v @main", inputs="x", outputs="v")
    ran: list[str] = []

    def delay(task: str, when: str) -> None:
        if (task, when) == ("a", "before"):
            interrupt_main()
            time.sleep(0.1)
        ran.append(f"{when} {task}")

    executor = lanes(plan(of), delay=delay)
    with pytest.raises(KeyboardInterrupt):
        executor.run(inputs_of(of, 0))
    assert ran[:2] == ["before a", "after a"]
    assert "after c" not in ran
    executor.delay = None
    assert same(executor.run(inputs_of(of, 1)).outputs, reference(of).run(inputs_of(of, 1)).outputs)
    executor.close()


def interrupt_main() -> None:
    signal.raise_signal(signal.SIGINT)


def test_a_failed_run_keeps_no_tensor_alive() -> None:
    made = Graph("leak")
    x = made.input("x", "i64[8]")
    kept: list[weakref.ref[torch.Tensor]] = []

    def produce(x: torch.Tensor) -> torch.Tensor:
        result = x.clone()
        kept.append(weakref.ref(result))
        return result

    def fail(y: torch.Tensor) -> torch.Tensor:
        raise Fault

    y = made.task("produce", produce, reads=x, writes="y", stream="one")
    made.task("fail", fail, reads=y, writes="z", stream="two")
    schedule = plan(made)
    for executor in (LanesExecutor(schedule, resolve(schedule.program)), EagerExecutor(schedule, resolve(schedule.program), HostDevice())):
        with pytest.raises(TaskError):
            executor.run(inputs_of(schedule.program, 0))
        gc.collect()
        assert [reference() for reference in kept] == [None] * len(kept)
        executor.close()


def test_a_value_that_shares_memory_is_found_on_the_first_run_only() -> None:
    made = Graph("alias")
    x = made.input("x", "i64[8]")
    made.output(made.task("view", lambda x: x[:4], reads=x, writes="y", stream="one"))
    schedule = plan(made)
    for executor in (LanesExecutor(schedule, resolve(schedule.program)), eager(schedule, ops={})):
        with pytest.raises(TaskError, match="SG603") as caught:
            executor.run(inputs_of(schedule.program, 0))
        assert caught.value.lane == "one"
        executor.close()


def test_a_stream_that_a_task_leaves_current_is_found_on_the_first_run() -> None:
    device = FakeDevice()
    other = device.new_stream("normal", ())

    def stray(x: torch.Tensor) -> torch.Tensor:
        device.set_stream(other)
        return device.allocate([8], torch.int64)

    made = Graph("stray")
    made.output(made.task("stray", stray, reads=made.input("x", "i64[8]"), writes="y"))
    schedule = plan(made)
    executor = EagerExecutor(schedule, resolve(schedule.program), device)
    with pytest.raises(TaskError, match="SG607"):
        executor.run(inputs_of(schedule.program, 0))
    assert device.current is device.default


def test_a_device_that_does_not_come_to_rest_is_not_used_again() -> None:
    of = program("a: x -> y @one", inputs="x", outputs="y")
    device = FakeDevice()
    executor = eager(plan(of), device, failing(of, {"a": Fault("first")}))

    def sticky(event: Any, stream: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    device.record, healthy = sticky, device.record  # type: ignore[method-assign]
    with pytest.raises((TaskError, RuntimeError)):
        executor.run(inputs_of(of, 0))
    device.record = healthy  # type: ignore[method-assign]
    with pytest.raises(RunnerError, match="cannot run again"):
        executor.run(inputs_of(of, 0))
    executor.close()


def test_steps_given_as_text_run_like_planned_ones() -> None:
    of = program("a: x -> y @one | b: y -> z @main", inputs="x", outputs="z")
    schedule = plan(of)
    again = replace(schedule, steps=parse_steps(str(schedule).splitlines()))
    assert any(isinstance(step, Record) for step in again.steps)
    assert play(again, 5, 0.3) == [True] * 3
