"""Loops whose iterations are graphs give, item by item, what the reference gives call by call."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.executors import launch
from streamgraph.executors.graph_pipeline import GraphPipeline
from streamgraph.executors.memory import Memory
from streamgraph.loop import Loop
from streamgraph.operators import resolve
from streamgraph.plan_loop import plan_loop
from streamgraph.storages import trace
from tests.fake_device import FakeDevice
from tests.programs import seeded
from tests.running import inputs_of, same
from tests.test_pipeline import expected, items_of, source


def looped(loop: Loop, device: FakeDevice, ops: Any = None) -> GraphPipeline:
    of = loop.program
    operators = resolve(of, ops or device.operators(of))
    bound = {name: tensor for name, tensor in inputs_of(of, 0).items() if name not in loop.per_item}
    return GraphPipeline(loop, operators, device, Memory(of, trace(of)[0], device.location, 0), bound, {})


def play(loop: Loop, seed: int, pace: float, counts: tuple[int, ...]) -> list[bool]:
    """Whether each result of several loops, one after another, is right."""
    of, device = loop.program, FakeDevice(seed, pace)
    host = {tensor.name for tensor in of.tensors if tensor.device == "cpu"}
    of_host = {o.name for o in of.outputs if o.tensor in host}
    made = looped(loop, device)
    bound = {name: tensor for name, tensor in inputs_of(of, 0).items() if name not in loop.per_item}
    found: list[dict[str, torch.Tensor]] = []
    items = source(of, loop.per_item, sum(counts), loop.inflight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        for count in counts:
            for outputs in made.run((next(items) for _ in range(count)), bound):
                found.append({name: tensor.clone() if name in of_host else tensor for name, tensor in outputs.items()})
                del outputs
        eager = max([min(sum(counts), 1), sum(min(count, len(loop.prologue)) for count in counts)])  # one at least warms up
        assert sum(graph.replays for graph in device.graphs) == (sum(counts) - eager) * made.cut.graphs
        assert len(device.graphs) <= made.period * made.cut.graphs
        device.drain()
        made.slots.memory.close()
        made.close()
    right = expected(of, loop.per_item, sum(counts))
    verdicts = [same(result, wanted) for result, wanted in zip(found, right, strict=True)]
    found.clear()
    gc.collect()
    assert len(device.free) == len(device.blocks), "memory is still held after close() and after the results are gone"
    return verdicts


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6), inflight=st.integers(1, 3), pace=st.sampled_from([0.0, 0.3, 0.9]), count=st.integers(0, 14),
    again=st.integers(0, 5),
)  # fmt: skip
def test_a_loop_of_graphs_gives_the_reference_however_the_device_orders_them(
    seed: int, inflight: int, pace: float, count: int, again: int
) -> None:
    of = seeded(seed)
    loop = plan_loop(of, items_of(of, seed), inflight=inflight)
    assert play(loop, seed, pace, (count, again)) == [True] * (count + again)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_many_seeded_loops_give_the_reference(seed: int) -> None:
    of = seeded(seed, tasks=14)
    loop = plan_loop(of, items_of(of, seed), inflight=1 + seed % 3)
    assert play(loop, seed, 0.3, (15, 4)) == [True] * 19
