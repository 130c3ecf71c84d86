"""A thread per lane on a GPU: the same bytes, only the planned calls, no thread held up by another, and nothing left after a failure."""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from streamgraph.builder import Graph
from streamgraph.errors import RunnerError, TaskError
from streamgraph.executors.device import CudaDevice
from streamgraph.executors.lanes import LanesExecutor
from streamgraph.operators import resolve
from streamgraph.plan import as_program, plan
from streamgraph.run import compile
from streamgraph.schedule import HostWait, Record, Schedule, Wait
from tests.cuda.support import MILLISECOND, counted, delayed, inputs_on_gpu
from tests.programs import mix_for, seeded
from tests.running import CHAINS, Fault, all_tensors, expected_of, failing, inputs_of, same, shows_in_no_value, steps_of
from tests.support import program

pytestmark = pytest.mark.cuda

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.yaml"))
_seeds = itertools.count(5000, 10)


def lanes(schedule: Schedule, ops: Any = None) -> LanesExecutor:
    """An executor of a schedule that nobody has verified."""
    device = CudaDevice()
    operators = resolve(schedule.program, ops or mix_for(schedule.program, "cuda"), str(device.location), schedule.accesses)
    return LanesExecutor(schedule, operators, device=device)


def gives_the_reference(schedule: Schedule, runs: int = 3, delays: dict[str, int] | None = None, first_seed: int = 0) -> bool:
    """Whether runs back to back give what the CPU gives. Results are looked at only after the last run."""
    of = schedule.program
    executor = lanes(schedule, delayed(mix_for(of, "cuda"), delays or {}))
    inputs = [inputs_on_gpu(of, inputs_of(of, first_seed + run)) for run in range(runs)]
    host = {name for name, number in schedule.accesses.outputs if schedule.accesses.storages[number].host}
    results = []
    try:
        for tensors in inputs:
            outputs = executor.run(tensors).outputs
            results.append({name: tensor.clone() if name in host else tensor for name, tensor in outputs.items()})
    except TaskError:
        return False  # a value was not there yet
    finally:
        torch.cuda.synchronize()
        executor.close()
    return all(same(result, expected) for result, expected in zip(results, expected_of(of, runs, first_seed), strict=True))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_acceptance_cases_give_the_reference_with_each_task_delayed_in_turn(path: Path) -> None:
    schedule = plan(all_tensors(as_program(path)), streams=3)
    assert gives_the_reference(schedule)
    for task in schedule.program.tasks:
        assert gives_the_reference(schedule, 2, {task.name: 5 * MILLISECOND}), f"wrong when '{task.name}' is slow"


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_give_the_reference_under_random_delays(seed: int) -> None:
    of = seeded(seed)
    of = all_tensors(of) if seed % 2 else of
    draws = random.Random(seed)
    delays = {task.name: draws.randrange(3) * MILLISECOND for task in of.tasks}
    assert gives_the_reference(plan(of, streams=1 + seed % 4, release="early" if seed % 3 == 0 else "default"), delays=delays)


@pytest.mark.parametrize("name", CHAINS)
def test_each_wait_taken_out_gives_a_wrong_answer_and_put_back_the_right_one(name: str) -> None:
    schedule = plan(CHAINS[name], streams=3)
    assert gives_the_reference(schedule, 2, first_seed=next(_seeds)), "warm-up"
    tried = 0
    for dropped in schedule.steps:
        if not isinstance(dropped, Wait | HostWait) or shows_in_no_value(schedule, dropped):
            continue
        slow = {schedule.event_task[dropped.event]: 50 * MILLISECOND}
        mutant = steps_of(schedule, lambda step, dropped=dropped: step is not dropped)
        assert not gives_the_reference(mutant, 2, slow, next(_seeds)), f"nobody noticed that this is missing: {dropped}"
        assert gives_the_reference(schedule, 2, slow, next(_seeds)), f"wrong with every wait in place, under {slow}"
        tried += 1
    assert tried >= 1


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_record_and_wait_as_planned_and_create_nothing(seed: int) -> None:
    schedule = plan(seeded(seed), streams=3)
    on_host = {step.event for step in schedule.steps if isinstance(step, Record) and step.lane == "host"}
    executor = lanes(schedule)
    kept = []
    for run in range(4):
        inputs = inputs_on_gpu(schedule.program, inputs_of(schedule.program, run))
        with counted() as calls:
            kept.append(executor.run(inputs))
        address = {name: event.cuda_event for name, event in executor.lanes.events.items()}  # type: ignore[attr-defined]
        records = Counter(address[s.event] for s in schedule.steps if isinstance(s, Record) and s.event not in on_host)
        waits = Counter(address[s.event] for s in schedule.steps if isinstance(s, Wait) and s.event not in on_host)
        # Copies from pinned memory and the allocator record events of their own.
        assert Counter(event for event in calls.recorded if event in records) == records
        assert Counter(calls.waited) == waits
    torch.cuda.synchronize()
    executor.close()


def test_a_task_that_blocks_its_thread_does_not_hold_up_the_other_lanes() -> None:
    reached = threading.Event()

    def blocks(x: torch.Tensor) -> torch.Tensor:
        assert reached.wait(30), "the other lane's task was never issued"
        return x + 1

    def goes_on(x: torch.Tensor) -> torch.Tensor:
        reached.set()
        return x + 2

    made = Graph("blocking")
    x = made.input("x", "i64[8]")
    made.output(made.task("first", blocks, reads=x, writes="y", stream="one"))
    made.output(made.task("second", goes_on, reads=x, writes="z", stream="two"))
    with compile(made, device="cuda", executor="lanes") as runner:
        source = torch.arange(8, device="cuda")
        for _ in range(3):
            reached.clear()
            results = runner(x=source)
            assert results["y"].tolist() == list(range(1, 9))
            assert results["z"].tolist() == list(range(2, 10))
        del results, source


def test_pageable_copies_both_ways_are_right() -> None:
    made = Graph("pageable")
    source = made.input("source", f"f32[{1 << 20}]", device="cpu")
    made.copy("upload", source, "there", stream="in")
    made.value("back", f"f32[{1 << 20}]", device="cpu")
    made.task("work", torch.neg, reads="there", writes="y", stream="main")
    made.copy("download", "y", "back", stream="out")
    made.output("back")
    with compile(made, device="cuda", executor="lanes") as runner:
        for run in range(3):
            mine = torch.full((1 << 20,), float(run + 1))
            assert torch.equal(runner(source=mine)["back"], -mine)


@pytest.mark.parametrize("lane", ["main", "one"])
def test_a_task_that_leaves_another_stream_current_is_named_in_any_run(lane: str) -> None:
    other = torch.cuda.Stream()
    stray: list[bool] = []

    def task(x: torch.Tensor) -> torch.Tensor:
        if stray:
            torch.cuda.set_stream(other)
        return x + 1

    made = Graph("stray")
    made.output(made.task("stray", task, reads=made.input("x", "i64[8]"), writes="y", stream=lane))
    with compile(made, device="cuda", executor="lanes") as runner:
        x = torch.arange(8, device="cuda")
        before = torch.cuda.current_stream()
        runner(x=x)
        stray.append(True)
        with pytest.raises(TaskError, match=r"SG607.*'stray'"):
            runner(x=x)
        assert torch.cuda.current_stream() == before
        stray.clear()
        assert runner(x=x)["y"].tolist() == list(range(1, 9))
        del x


WIDE = "a: x -> y @one | b: x -> z @two | c: y z -> v @main | p: h -> k ! | d: v k -> w @one | e: w -> +b @two"


@pytest.mark.parametrize("task", ["a", "b", "c", "p", "d", "e"])
def test_a_task_that_raises_leaves_streams_drained_and_memory_free(task: str) -> None:
    of = program(WIDE, inputs="x", buffers="b", hosts="h k", outputs="w")
    schedule = plan(of)
    broken: dict[str, BaseException] = {}
    slow = {other.name: 10 * MILLISECOND for other in of.tasks}
    executor = lanes(schedule, failing(of, broken, delayed(mix_for(of, "cuda"), slow)))
    inputs = [inputs_on_gpu(of, inputs_of(of, run)) for run in range(3)]
    right = expected_of(of, 3)
    assert same(executor.run(inputs[0]).outputs, right[0])
    torch.cuda.synchronize()
    broken[task] = Fault("no more")
    with pytest.raises(TaskError, match=f"task '{task}'") as caught:
        executor.run(inputs[1])
    assert isinstance(caught.value.__cause__, Fault)
    assert all(stream.query() for stream in executor.lanes.streams.values()), "something is still under way"  # type: ignore[attr-defined]
    assert executor.lanes.pending == {}
    del broken[task], caught
    assert same(executor.run(inputs[2]).outputs, right[2])
    executor.close()
    gc.collect()


def test_memory_in_use_is_the_same_after_every_steady_run_and_back_after_close() -> None:
    before = torch.cuda.memory_allocated()
    made = Graph("chain")
    h = made.input("x", f"f32[{1 << 18}]")
    for number in range(8):
        w = made.task(f"load{number}", torch.neg, reads=h if number == 0 else "x", writes=f"w{number}", stream="copy")
        h = made.task(f"use{number}", torch.add, reads=[h, w], writes="h", stream="main")
    made.output(h)
    threads = threading.active_count()
    with compile(made, device="cuda", executor="lanes") as runner:
        x = torch.ones(1 << 18, device="cuda")
        for _ in range(3):
            result = runner(x=x)
        torch.cuda.synchronize()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for _ in range(2000):
            result = runner(x=x)
            assert torch.cuda.memory_allocated() == allocated
        torch.cuda.synchronize()
        assert torch.cuda.memory_reserved() == reserved
        assert result["h"].unique().tolist() == [-7.0]  # 1 - 1, then - 1 seven times
    del result, x
    assert threading.active_count() == threads
    assert torch.cuda.memory_allocated() == before


def test_a_run_inside_a_capture_is_refused_and_the_capture_lives_on() -> None:
    of = CHAINS["RAW"].program()
    with compile(of, ops=mix_for(of, "cuda"), device="cuda", executor="lanes") as runner:
        x = inputs_of(of, 0)["x"].cuda()
        runner(x=x)
        graph, y = torch.cuda.CUDAGraph(), torch.zeros(8, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y.add_(x)
            with pytest.raises(RunnerError, match="SG609"):
                runner(x=x)
        graph.replay()
        assert torch.equal(y, x)
        assert torch.equal(runner(x=x)["r"].cpu(), expected_of(of, 1)[0]["r"])
        del graph
