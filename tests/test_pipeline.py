"""Loops give, item by item, what the reference gives call by call, however the device holds its work back."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.executors import launch
from streamgraph.executors.device import Device
from streamgraph.executors.lanes_pipeline import LanesPipeline
from streamgraph.executors.memory import Memory
from streamgraph.executors.pipeline import Pipeline
from streamgraph.loop import Loop
from streamgraph.model import Program
from streamgraph.operators import resolve
from streamgraph.plan_loop import plan_loop
from streamgraph.storages import trace
from tests.fake_device import FakeDevice
from tests.programs import mix_for, seeded
from tests.running import Tensors, inputs_of, reference, same


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


def pipeline(loop: Loop, device: Device) -> Pipeline:
    of = loop.program
    ops = device.operators(of) if isinstance(device, FakeDevice) else mix_for(of)
    return Pipeline(loop, resolve(of, ops), device, Memory(of, trace(of)[0], device.location, 0))


def play(loop: Loop, seed: int, pace: float, count: int) -> list[bool]:
    of, device = loop.program, FakeDevice(seed, pace)
    host = {tensor.name for tensor in of.tensors if tensor.device == "cpu"}
    made = pipeline(loop, device)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        for outputs in made.run(source(of, loop.per_item, count, loop.inflight), inputs_of(of, 0)):
            of_host = {o.name for o in of.outputs if o.tensor in host}
            found.append({name: tensor.clone() if name in of_host else tensor for name, tensor in outputs.items()})
            del outputs
        device.drain()
        made.slots.memory.close()
        made.close()
    verdicts = [same(result, right) for result, right in zip(found, expected(of, loop.per_item, count), strict=True)]
    return verdicts


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), inflight=st.integers(1, 3), pace=st.sampled_from([0.0, 0.3, 0.9]), count=st.integers(0, 9))
def test_a_loop_gives_the_reference_however_the_device_holds_its_work_back(seed: int, inflight: int, pace: float, count: int) -> None:
    of = seeded(seed)
    loop = plan_loop(of, items_of(of, seed), inflight=inflight)
    assert play(loop, seed, pace, count) == [True] * count


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), inflight=st.integers(1, 3), count=st.integers(0, 9))
def test_a_loop_on_host_threads_gives_the_reference_however_they_are_delayed(seed: int, inflight: int, count: int) -> None:
    of = seeded(seed)
    loop = plan_loop(of, items_of(of, seed), inflight=inflight)
    draws = random.Random(seed)

    def delay(task: str, when: str) -> None:
        if draws.random() < 0.3:
            time.sleep(draws.random() * 0.002)

    made = LanesPipeline(loop, resolve(of, mix_for(of)), Memory(of, trace(of)[0], torch.device("cpu"), 0), delay)
    found = [
        {name: tensor.clone() for name, tensor in outputs.items()}
        for outputs in made.run(source(of, loop.per_item, count, loop.inflight), inputs_of(of, 0))
    ]
    assert [same(one, right) for one, right in zip(found, expected(of, loop.per_item, count), strict=True)] == [True] * count
    made.close()
