"""Loops give, item by item, what the reference gives call by call, however the device holds its work back."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.errors import TaskError
from streamgraph.executors import launch
from streamgraph.executors.device import Device
from streamgraph.executors.eager import EagerExecutor
from streamgraph.executors.lanes import Delay
from streamgraph.executors.lanes_pipeline import LanesPipeline
from streamgraph.executors.memory import Memory
from streamgraph.executors.pipeline import Pipeline
from streamgraph.loop import Loop
from streamgraph.model import Program
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.plan_loop import plan_loop
from streamgraph.storages import trace
from tests.fake_device import FakeDevice, FakeStream
from tests.programs import mix_for, seeded, turning
from tests.running import Tensors, inputs_of, reference, same
from tests.threaded_device import ThreadedDevice


def items_of(of: Program, seed: int) -> frozenset[str]:
    draws = random.Random(seed)
    return frozenset(tensor.name for tensor in of.inputs if draws.random() < 0.6)


def expected(of: Program, items: frozenset[str], count: int) -> list[dict[str, torch.Tensor]]:
    executor, bound = reference(of), inputs_of(of, 0)
    found = []
    for number in range(count):
        given = {name: tensor for name, tensor in inputs_of(of, number + 1).items() if name in items}
        found.append({name: tensor.clone() for name, tensor in executor.run({**bound, **given}).outputs.items()})
    return found


def source(of: Program, items: frozenset[str], count: int, inflight: int) -> Iterator[Tensors]:
    """Items whose host tensors are refilled: `inflight` of each take turns."""
    pinned = [inputs_of(of, 0) for _ in range(inflight)]
    for number in range(count):
        fresh = {name: tensor for name, tensor in inputs_of(of, number + 1).items() if name in items}
        for tensor in of.inputs:
            if tensor.name in fresh and tensor.device == "cpu":
                fresh[tensor.name] = pinned[number % inflight][tensor.name].copy_(fresh[tensor.name])
        yield fresh


def pipeline(loop: Loop, device: Device, threads: str = "none", delay: Delay | None = None) -> Pipeline | LanesPipeline:
    of = loop.program
    operators = resolve(of, device.operators(of) if isinstance(device, FakeDevice) else mix_for(of))
    memory = Memory(of, trace(of)[0], device.location, 0)
    if threads == "none":
        return Pipeline(loop, operators, device, memory)
    return LanesPipeline(loop, operators, memory, delay, device, one_issuer=threads == "host and issuer")


def brought(device: FakeDevice, of: Program, items: Iterator[Tensors]) -> Iterator[Tensors]:
    """Device tensors of items as a caller makes them: in memory of its own stream, by work on it that may still be under way."""
    host = {tensor.name for tensor in of.inputs if tensor.device == "cpu"}
    for item in items:
        made = {name: tensor if name in host else device.allocate(tensor.shape, tensor.dtype) for name, tensor in item.items()}
        for name in made.keys() - host:
            device.copy(made[name], item[name])
        yield made
        del made


def play(loop: Loop, seed: int, pace: float, count: int, threads: str = "none", delay: Delay | None = None) -> list[bool]:
    """Run a loop for a caller who makes each item on its stream, and uses each result there and drops it."""
    of, device = loop.program, (FakeDevice if threads == "none" else ThreadedDevice)(seed, pace)
    host = {tensor.name for tensor in of.tensors if tensor.device == "cpu"}
    made = pipeline(loop, device, threads, delay)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        patch.setattr(launch, "copy_call", device.copy_call)
        items = brought(device, of, source(of, loop.per_item, count, loop.inflight))
        for outputs in made.run(items, inputs_of(of, 0)):
            of_host = {o.name for o in of.outputs if o.tensor in host}
            found.append({name: tensor.clone() if name in of_host else device.clone(tensor) for name, tensor in outputs.items()})
            del outputs
        assert device.current is device.default
        device.drain()
        made.slots.memory.close()
        made.close()
    verdicts = [same(result, right) for result, right in zip(found, expected(of, loop.per_item, count), strict=True)]
    return verdicts


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    inflight=st.integers(1, 3),
    pace=st.sampled_from([0.0, 0.3, 0.9]),
    count=st.integers(0, 14),
    apart=st.sampled_from([None, True, False]),
    order=st.sampled_from(["declared", "auto"]),
)
@example(seed=9769, inflight=1, pace=0.0, count=1, apart=None, order="declared")  # a ring over a key moves a rewrite before a read
def test_a_loop_gives_the_reference_however_the_device_holds_its_work_back(
    seed: int, inflight: int, pace: float, count: int, apart: bool | None, order: str
) -> None:
    of = turning(seeded(seed), seed)
    loop = plan_loop(of, items_of(of, seed), inflight=inflight, apart=apart, order=order)
    assert play(loop, seed, pace, count) == [True] * count


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    inflight=st.integers(1, 3),
    pace=st.sampled_from([0.0, 0.3, 0.9]),
    count=st.integers(0, 14),
    threads=st.sampled_from(["host and issuer", "lanes"]),
)
def test_several_threads_give_the_reference_however_they_and_the_device_are_delayed(
    seed: int, inflight: int, pace: float, count: int, threads: str
) -> None:
    of = turning(seeded(seed), seed)
    loop = plan_loop(of, items_of(of, seed), inflight=inflight, apart=True)
    assert play(loop, seed, pace, count, threads, delays(seed)) == [True] * count


def delays(seed: int) -> Delay:
    draws = random.Random(seed)

    def delay(task: str, when: str) -> None:
        if draws.random() < 0.3:
            time.sleep(draws.random() * 0.002)

    return delay


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), inflight=st.integers(1, 3), count=st.integers(0, 14))
def test_a_loop_on_host_threads_gives_the_reference_however_they_are_delayed(seed: int, inflight: int, count: int) -> None:
    of = turning(seeded(seed), seed)
    loop = plan_loop(of, items_of(of, seed), inflight=inflight)
    made = LanesPipeline(loop, resolve(of, mix_for(of)), Memory(of, trace(of)[0], torch.device("cpu"), 0), delays(seed))
    found = [
        {name: tensor.clone() for name, tensor in outputs.items()}
        for outputs in made.run(source(of, loop.per_item, count, loop.inflight), inputs_of(of, 0))
    ]
    assert [same(one, right) for one, right in zip(found, expected(of, loop.per_item, count), strict=True)] == [True] * count
    made.close()


# --- memory: by the fake device's allocator, which never gives a block back to the system ---------------------------------------------


def layered(layers: int) -> Program:
    """Prefetch: weights from pinned memory through a ring of two slots, one layer after another."""
    graph = Graph("layers")
    h = graph.input("x", "i64[8]")
    host = graph.input("host", "i64[8]", each={"layer": layers}, device="cpu", pinned=True)
    ring = graph.buffer("ring", "i64[8]", each={"layer": layers}, slots=2, over="layer")
    graph.value("h", "i64[8]")
    for layer in range(layers):
        graph.copy(f"load@{layer}", host[layer], ring[layer], stream="copy")
        h = graph.task(f"mm@{layer}", "mm", reads=[h, ring[layer]], writes="h", stream="main")
    graph.output(h)
    return graph.program()


def taken(device: FakeDevice, memory: Memory) -> int:
    """The most bytes of device memory that were ever taken: the allocator's blocks, and buffers."""
    blocks = sum(block.memory.size for block in device.blocks if block.owner)
    rings = [tensor for further in memory._further.values() for tensor in further]
    return blocks + sum(tensor.nbytes for tensor in (*(tensor for _, tensor in memory.buffers()), *rings))


@pytest.mark.parametrize("pace", [0.0, 0.3])
def test_a_run_of_sixty_four_layers_takes_as_much_memory_as_one_of_four(pace: float) -> None:
    found = []
    for layers in (4, 64):
        of, device = layered(layers), FakeDevice(1, pace)
        executor = EagerExecutor(plan(of), resolve(of, device.operators(of)), device)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "run_copy", device.run_copy)
            patch.setattr(launch, "copy_call", device.copy_call)
            for seed in range(3):
                outputs = executor.run(inputs_of(of, seed)).outputs
                device.drain()
                del outputs
        found.append(taken(device, executor.memory))
    assert found[0] == found[1]


@pytest.mark.parametrize("layers", [4, 64])
@pytest.mark.parametrize("threads", ["none", "host and issuer", "lanes"])
def test_memory_of_a_loop_is_bounded_whatever_the_number_of_iterations_and_layers(layers: int, threads: str) -> None:
    """Results included: a caller that drops each one holds no more after sixty-four than after eight, though the device lags behind."""
    of = layered(layers)
    loop = plan_loop(of, frozenset({"x"}), inflight=2, apart=True)
    found = []
    for count in (8, 64 if layers == 4 else 12):
        device = (FakeDevice if threads == "none" else ThreadedDevice)(1, 0.0)  # nothing runs before the host waits for it
        made = pipeline(loop, device, threads)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "run_copy", device.run_copy)
            patch.setattr(launch, "copy_call", device.copy_call)
            for outputs in made.run(brought(device, of, source(of, loop.per_item, count, 2)), inputs_of(of, 0)):
                del outputs
        found.append(taken(device, made.slots.memory))
    values = 8 * 8  # bytes of a value, of an item, of a slot
    assert max(found) <= 16 * values
    if threads == "none":
        assert found[0] == found[1]


# --- guards -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", ["none", "host and issuer", "lanes"])
@pytest.mark.parametrize("item", [0, 3])
def test_a_task_that_leaves_another_stream_current_is_named_with_its_item(threads: str, item: int) -> None:
    device = (FakeDevice if threads == "none" else ThreadedDevice)(1)
    calls: list[int] = []

    def stray(x: torch.Tensor) -> torch.Tensor:
        result = device.allocate([8], torch.int64)
        calls.append(1)
        if len(calls) == item + 1:
            device.set_stream(FakeStream(999))
        return result

    graph = Graph("stray")
    graph.output(graph.task("stray", stray, reads=graph.input("x", "i64[8]"), writes="y", stream="one"))
    loop = plan_loop(graph)
    memory = Memory(loop.program, trace(loop.program)[0], device.location, 0)
    operators = resolve(loop.program, None)
    made: Pipeline | LanesPipeline = Pipeline(loop, operators, device, memory)
    if threads != "none":
        made = LanesPipeline(loop, operators, memory, None, device, one_issuer=threads != "lanes")
    with pytest.raises(TaskError, match=f"SG607.*item {item}: task 'stray' @one left another stream"):
        list(made.run(({"x": torch.zeros(8, dtype=torch.int64)} for _ in range(6)), {}))
    assert device.current is device.default
    device.drain()
    assert len(list(made.run(({"x": torch.zeros(8, dtype=torch.int64)} for _ in range(3)), {}))) == 3


@pytest.mark.parametrize("threads", ["none", "host and issuer", "lanes"])
def test_streams_and_events_are_made_in_the_first_loop_and_never_again(threads: str) -> None:
    of = turning(seeded(3), 3)
    loop = plan_loop(of, items_of(of, 3), inflight=2, apart=True)
    device = (FakeDevice if threads == "none" else ThreadedDevice)(3)
    made = pipeline(loop, device, threads)
    counts = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        patch.setattr(launch, "copy_call", device.copy_call)
        for _ in range(3):
            for outputs in made.run(brought(device, of, source(of, loop.per_item, 2 * loop.proved, 2)), inputs_of(of, 0)):
                del outputs
            counts.append((device.events, len(device.streams)))
        device.drain()
    assert counts[0] == counts[1] == counts[2]
    assert counts[0][0] > 0
