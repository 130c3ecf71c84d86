"""The executor makes the CUDA calls of its schedule and no others; independent tasks really run at the same time."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from streamgraph.builder import Graph
from streamgraph.executors.device import CudaDevice
from streamgraph.executors.eager import EagerExecutor
from streamgraph.plan import plan
from streamgraph.run import compile
from streamgraph.schedule import Record, Schedule, Wait
from tests.cuda.support import MILLISECOND, counted, eager, inputs_on_gpu
from tests.programs import seeded
from tests.running import CHAINS, inputs_of

pytestmark = pytest.mark.cuda


def planned(schedule: Schedule, executor: EagerExecutor) -> tuple[Counter[int], Counter[int]]:
    """How often each event, by its address, is recorded and waited for."""
    on_host = {step.event for step in schedule.steps if isinstance(step, Record) and step.lane == "host"}
    address = {name: event.cuda_event for name, event in executor.events.items()}  # type: ignore[attr-defined]
    records = Counter(address[step.event] for step in schedule.steps if isinstance(step, Record) and step.event not in on_host)
    waits = Counter(address[step.event] for step in schedule.steps if isinstance(step, Wait) and step.event not in on_host)
    return records, waits


@pytest.mark.parametrize("name", ["RAW", "WAR", "updates"])
def test_a_steady_run_records_and_waits_as_planned_and_creates_nothing(name: str) -> None:
    schedule = plan(CHAINS[name], streams=3)
    executor = eager(schedule)
    inputs = [inputs_on_gpu(schedule.program, inputs_of(schedule.program, run)) for run in range(4)]
    kept = []  # the allocator records events of its own when a block with recorded streams is freed
    with counted() as first:
        kept.append(executor.run(inputs[0]))
    assert len(first.created) == schedule.counts.events
    for tensors in inputs[1:]:
        with counted() as calls:
            kept.append(executor.run(tensors))
        records, waits = planned(schedule, executor)
        assert calls.created == []
        assert Counter(calls.recorded) == records
        assert Counter(calls.waited) == waits
        assert len(calls.recorded) == schedule.counts.events
        assert len(calls.waited) == schedule.counts.waits
    torch.cuda.synchronize()
    executor.close()


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_record_and_wait_as_planned(seed: int) -> None:
    schedule = plan(seeded(seed), streams=3)
    executor = eager(schedule)
    for run in range(3):
        inputs = inputs_on_gpu(schedule.program, inputs_of(schedule.program, run))
        with counted() as calls:
            executor.run(inputs)
        records, waits = planned(schedule, executor)
        # Copies from pinned memory and the allocator record events of their own.
        assert Counter(event for event in calls.recorded if event in records) == records
        assert Counter(calls.waited) == waits
    torch.cuda.synchronize()
    executor.close()


def test_record_stream_is_called_as_planned_and_on_other_lanes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[int, int]] = []
    original = CudaDevice.record_stream

    def noted(self: CudaDevice, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        called.append((tensor.data_ptr(), stream.cuda_stream))
        original(self, tensor, stream)

    monkeypatch.setattr(CudaDevice, "record_stream", noted)
    made = Graph("sides")
    x = made.input("x", "i64[8]")
    for lane in ("one", "two", "main"):
        made.output(made.task(f"on_{lane}", torch.neg, reads=x, writes=f"y_{lane}", stream=lane))
    with compile(made, device="cuda") as runner:
        results = runner(x=torch.arange(8, device="cuda"))
        main = torch.cuda.current_stream().cuda_stream
        assert called == [(results["y_one"].data_ptr(), main), (results["y_two"].data_ptr(), main)]
        torch.cuda.synchronize()


def test_independent_tasks_overlap() -> None:
    marks: dict[str, tuple[torch.cuda.Event, torch.cuda.Event]] = {}

    def busy(name: str) -> object:
        def call(x: torch.Tensor) -> torch.Tensor:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            torch.cuda._sleep(50 * MILLISECOND)
            end.record()
            marks[name] = (begin, end)
            return x + 1

        return call

    made = Graph("overlap")
    x = made.input("x", "i64[8]")
    for name in ("one", "two", "main"):
        made.output(made.task(name + "_task", busy(name), reads=x, writes=f"y_{name}", stream=name))  # type: ignore[arg-type]
    with compile(made, device="cuda") as runner:
        runner(x=torch.arange(8, device="cuda"))
        torch.cuda.synchronize()
        runner(x=torch.arange(8, device="cuda"))
        torch.cuda.synchronize()
    for first in marks:
        for second in marks:
            # Each began before the other had ended: an order of points in time, not a length.
            assert marks[first][0].elapsed_time(marks[second][1]) > 0, f"{first} began after {second} had ended"
