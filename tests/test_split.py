"""Host tasks between captured parts: the same results, graphs launched instead of tasks, and every way out."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.executors import launch
from streamgraph.executors.split import SplitExecutor
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.schedule import Schedule
from tests.fake_device import FakeDevice
from tests.programs import seeded
from tests.running import Tensors, all_tensors, expected_of, inputs_of, same


@pytest.fixture(autouse=True)
def fake_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    copies_here = launch.run_copy
    monkeypatch.setattr(launch, "run_copy", lambda *arguments: (_devices[-1].run_copy if _devices else copies_here)(*arguments))
    _devices.clear()


_devices: list[FakeDevice] = []


def fake(seed: int = 0, pace: float = 0.3) -> FakeDevice:
    _devices.append(FakeDevice(seed, pace))
    return _devices[-1]


def split(schedule: Schedule, device: FakeDevice, ops: Any = None, bound: Tensors | None = None) -> SplitExecutor:
    return SplitExecutor(schedule, resolve(schedule.program, ops or device.operators(schedule.program)), device, 0, bound or {})


def play(schedule: Schedule, seed: int, pace: float, runs: int = 6) -> list[bool]:
    """Whether each of several runs, one eager, one that captures, and the others replayed, gave what the reference gives."""
    of, device = schedule.program, fake(seed, pace)
    host = {name for name, number in schedule.accesses.outputs if schedule.accesses.storages[number].host}
    executor = split(schedule, device)
    results = []
    for run in range(runs):
        inputs = inputs_of(of, run)
        finished = executor.run(inputs)
        results.append({name: t.clone() if name in host else t for name, t in finished.outputs.items()})
        finished.inputs_free()
        for tensor in of.inputs:
            if tensor.device == "cpu":
                inputs[tensor.name].fill_(-1)
    assert executor.captured or not schedule.lane_of
    # Each part was captured once, and launched in every run but the first.
    assert [made.replays for made in device.graphs] == [runs - 1] * executor.cut.graphs
    del finished, inputs
    executor.close()
    device.drain()
    _devices.clear()
    verdicts = [same(result, expected) for result, expected in zip(results, expected_of(of, runs), strict=True)]
    results.clear()
    if len(device.free) < len(device.blocks):
        gc.collect()
    assert len(device.free) == len(device.blocks), "memory is still held after close() and after the results are gone"
    return verdicts


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(1, 4), early=st.booleans(), pace=st.sampled_from([0.0, 0.3, 0.9]), all=st.booleans())
def test_host_tasks_between_replayed_parts_give_the_reference(seed: int, streams: int, early: bool, pace: float, all: bool) -> None:
    of = seeded(seed, tasks=10)
    of = all_tensors(of) if all else of
    assert play(plan(of, streams=streams, release="early" if early else "default"), seed, pace) == [True] * 6


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400))
def test_many_seeded_programs_give_the_reference(seed: int) -> None:
    schedule = plan(seeded(seed, tasks=16), streams=1 + seed % 4, release="early" if seed % 3 else "default")
    assert play(schedule, seed, 0.3) == [True] * 6
