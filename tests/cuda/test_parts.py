"""Captured parts with host tasks between them, and loops of graphs: right under delays, overlapping, and nothing left behind."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
import torch

import streamgraph as sg
from streamgraph.errors import TaskError
from streamgraph.executors.device import CudaDevice
from streamgraph.executors.graph_pipeline import GraphPipeline
from streamgraph.executors.split import SplitExecutor
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.schedule import Schedule
from tests.cuda.support import MILLISECOND, delayed, inputs_on_gpu
from tests.programs import mix_for, seeded
from tests.running import Fault, all_tensors, expected_of, failing, hurried, inputs_of, same
from tests.support import graph

pytestmark = pytest.mark.cuda


def split(schedule: Schedule, ops: Any = None) -> SplitExecutor:
    device = CudaDevice()
    operators = resolve(schedule.program, ops or mix_for(schedule.program, "cuda"), str(device.location), schedule.accesses)
    return SplitExecutor(schedule, operators, device, 0, {})


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_in_parts_give_the_reference_under_random_delays(seed: int) -> None:
    of = all_tensors(seeded(seed)) if seed % 2 else seeded(seed)
    schedule = hurried(plan(of, streams=1 + seed % 4, release="early" if seed % 3 else "default"), seed, seed % 4 / 4)
    of = schedule.program
    draws = random.Random(seed)
    # What sleeps while it is captured sleeps in every replay.
    slow = {task.name: MILLISECOND * draws.randrange(1, 4) for task in of.tasks if draws.random() < 0.5}
    executor = split(schedule, delayed(mix_for(of, "cuda"), slow))
    host = {name for name, number in schedule.accesses.outputs if schedule.accesses.storages[number].host}
    inputs = [inputs_on_gpu(of, inputs_of(of, run)) for run in range(5)]
    results = []
    for tensors in inputs:
        outputs = executor.run(tensors).outputs
        results.append({name: tensor.clone() if name in host else tensor for name, tensor in outputs.items()})
    torch.cuda.synchronize()
    executor.close()
    assert [same(one, right) for one, right in zip(results, expected_of(of, 5), strict=True)] == [True] * 5


@pytest.mark.parametrize("seed", range(6))
def test_parts_captured_in_inference_mode_are_replayed_outside_of_it(seed: int) -> None:
    of = seeded(seed)
    executor = split(plan(of, streams=3))
    host = {name for name, number in executor.schedule.accesses.outputs if executor.schedule.accesses.storages[number].host}
    results = []
    for run in range(5):
        with torch.inference_mode(run < 3):
            outputs = executor.run(inputs_on_gpu(of, inputs_of(of, run))).outputs
            results.append({name: tensor.clone() if name in host else tensor for name, tensor in outputs.items()})
    torch.cuda.synchronize()
    executor.close()
    assert [same(one, right) for one, right in zip(results, expected_of(of, 5), strict=True)] == [True] * 5


@pytest.mark.parametrize("seed", range(60))
def test_random_loops_of_graphs_give_what_calls_give_under_random_delays(seed: int) -> None:
    of = seeded(seed, tasks=10)
    draws = random.Random(seed)
    slow = {task.name: MILLISECOND * draws.randrange(1, 4) for task in of.tasks if draws.random() < 0.3}
    inputs = [inputs_on_gpu(of, inputs_of(of, number)) for number in range(14)]
    policy = "urgent" if seed % 2 else "auto"
    with sg.compile(of, ops=delayed(mix_for(of, "cuda"), slow), device="cuda", executor="graph", policy=policy) as runner:
        found = []
        for items in (inputs[:11], inputs[11:]):
            for result in runner.map(items, inflight=1 + seed % 3):
                found.append({name: t.clone() if t.device.type == "cpu" else t for name, t in result.items()})
        torch.cuda.synchronize()
    assert [same(one, right) for one, right in zip(found, expected_of(of, 14), strict=True)] == [True] * 14


WIDE = "a: x -> y @one | b: x -> z @two | c: y z -> v @main | p: h -> k ! | d: v k -> w @one | e: w -> +b @two"


@pytest.mark.parametrize("task", ["p", "d"])
def test_a_task_that_raises_between_parts_leaves_streams_drained_and_the_runner_usable(task: str) -> None:
    """`p` is a host task; `d` is issued eagerly, since what it reads of the host's is a value and lies elsewhere each time."""
    made = graph(WIDE, inputs="x", buffers="b", hosts="h", outputs="w")
    made.value("k", "i64[8]", device="cpu")
    of = made.program()
    broken: dict[str, BaseException] = {}
    slow = {other.name: 10 * MILLISECOND for other in of.tasks}
    executor = split(plan(of), failing(of, broken, delayed(mix_for(of, "cuda"), slow)))
    inputs = [inputs_on_gpu(of, inputs_of(of, run)) for run in range(5)]
    right = expected_of(of, 5)
    for run in range(3):
        assert same(executor.run(inputs[run]).outputs, right[run])
    broken[task] = Fault("no more")
    with pytest.raises(TaskError, match=f"task '{task}'") as caught:
        executor.run(inputs[3])
    assert isinstance(caught.value.__cause__, Fault)
    assert torch.cuda.current_stream().query(), "something is still under way"
    del broken[task], caught
    assert same(executor.run(inputs[4]).outputs, right[4])  # which does not depend on what the failed run did to `b`
    executor.close()
    gc.collect()


def frames(slots: int, work: Any, size: int = 1 << 18) -> sg.Graph:
    graph = sg.Graph("frames")
    graph.input("packet", f"f32[{size}]", device="cpu", pinned=True)
    graph.buffer("frame", f"f32[{size}]", slots=slots)
    graph.buffer("total", f"f32[{size}]")
    graph.copy("upload", "packet", "frame", stream="copy")
    graph.task("work", work, reads="frame", writes="done", stream="main")
    graph.task("sum", torch.Tensor.add_, updates="total", reads="done", stream="main")
    graph.task("out", lambda total, done: total + done, reads=["total", "done"], writes="both", stream="main")
    graph.output("both")
    return graph


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_iterations_of_every_parity_are_right_and_none_is_issued_task_by_task(slots: int) -> None:
    calls = [0]

    def work(frame: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        torch.cuda._sleep(MILLISECOND // 4)
        return frame * 2

    with sg.compile(frames(slots, work), device="cuda", executor="graph") as runner:
        items = [torch.full((1 << 18,), float(number)).pin_memory() for number in range(40)]
        results = [result["both"] for result in runner.map(items, inflight=max(slots, 2))]  # one is a call each
        (pipeline,) = runner._looper._made.values()  # type: ignore[union-attr]
        assert isinstance(pipeline, GraphPipeline)
        assert calls[0] <= len(pipeline.loop.prologue) + pipeline.period + 1
        expected = [sum(2.0 * n for n in range(number + 1)) + 2.0 * number for number in range(40)]
        assert [float(result[0]) for result in results] == expected
        assert [float(result[-1]) for result in results] == expected


def test_memory_of_a_loop_of_graphs_does_not_grow_and_is_back_after_close() -> None:
    before = torch.cuda.memory_allocated()
    runner = sg.compile(frames(2, lambda frame: frame * 2), device="cuda", executor="graph")
    items = [torch.randn(1 << 18).pin_memory() for _ in range(4)]
    for result in runner.map(items[n % 4] for n in range(16)):
        del result
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for result in runner.map(items[n % 4] for n in range(256)):
        del result
    assert torch.cuda.memory_allocated() == allocated
    assert torch.cuda.memory_reserved() == reserved
    runner.close()
    torch.cuda.synchronize()
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    torch.cuda.empty_cache()


def test_random_numbers_of_overlapping_graphs_are_those_of_eager_runs() -> None:
    made = sg.Graph("dropout")
    rng = made.resource("rng")
    x = made.input("x", "f32[65536]")
    made.task("drop", lambda x: torch.nn.functional.dropout(x, 0.5), reads=x, writes="y", updates=rng, stream="one")
    made.output("y")
    items = [torch.full((65536,), float(number), device="cuda") for number in range(1, 13)]
    found = {}
    for kind in ("eager", "graph"):
        torch.manual_seed(7)
        with sg.compile(made, device="cuda", executor=kind) as runner:  # type: ignore[arg-type]
            found[kind] = [result["y"] for result in runner.map(items, inflight=3)]
    assert [torch.equal(first, second) for first, second in zip(*found.values(), strict=True)] == [True] * 12


def test_the_next_upload_runs_while_a_graph_is_at_work() -> None:
    uploads: list[torch.cuda.Event] = []  # the begin of each
    works: list[torch.cuda.Event] = []  # the end of each that is issued task by task, then of each phase: graphs record those again

    def upload(packet: torch.Tensor, out: torch.Tensor) -> None:
        uploads.append(torch.cuda.Event(enable_timing=True))
        uploads[-1].record()
        torch.cuda._sleep(20 * MILLISECOND)
        out.copy_(packet, non_blocking=True)

    def work(frame: torch.Tensor) -> torch.Tensor:
        works.append(torch.cuda.Event(enable_timing=True, external=torch.cuda.is_current_stream_capturing()))
        torch.cuda._sleep(20 * MILLISECOND)
        done = frame * 2
        works[-1].record()
        return done

    graph = sg.Graph("overlap")
    graph.input("packet", "f32[1024]", device="cpu", pinned=True)
    graph.buffer("frame", "f32[1024]", slots=2)
    graph.task("upload", upload, reads="packet", writes="frame", stream="copy")
    graph.output(graph.task("work", work, reads="frame", writes="done", stream="main"))
    count = 12
    with sg.compile(graph, device="cuda", executor="graph") as runner:
        list(runner.map([torch.randn(1024).pin_memory() for _ in range(count)]))
        torch.cuda.synchronize()
        (pipeline,) = runner._looper._made.values()  # type: ignore[union-attr]
        assert isinstance(pipeline, GraphPipeline)
        graphs_from = len(works) - pipeline.period
        last_but_one = works[graphs_from + (count - 2 - graphs_from) % pipeline.period]
        # Points in time in order, not lengths: the last upload began before the work before it was done.
        assert uploads[count - 1].elapsed_time(last_but_one) > 0
