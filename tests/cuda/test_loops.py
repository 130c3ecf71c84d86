"""Loops on a GPU: right under delays, no memory that grows with the number of items, and real overlap."""

from __future__ import annotations

import random

import pytest
import torch

import streamgraph as sg
from streamgraph.prefetch import prefetch
from tests.cuda.support import MILLISECOND, delayed, inputs_on_gpu
from tests.programs import mix_for, seeded
from tests.running import expected_of, inputs_of, same

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_give_in_a_loop_what_calls_give_under_random_delays(seed: int) -> None:
    of = seeded(seed, tasks=10)
    draws = random.Random(seed)
    slow = {task.name: MILLISECOND * draws.randrange(1, 6) for task in of.tasks if draws.random() < 0.3}
    inputs = [inputs_on_gpu(of, inputs_of(of, number)) for number in range(6)]
    with sg.compile(of, ops=delayed(mix_for(of, "cuda"), slow), device="cuda") as runner:
        found = []
        for result in runner.map(inputs, inflight=1 + seed % 3):
            found.append({name: t.clone() if t.device.type == "cpu" else t for name, t in result.items()})
        torch.cuda.synchronize()
    assert [same(one, right) for one, right in zip(found, expected_of(of, 6), strict=True)] == [True] * 6


def frames(kernel_cycles: int, size: int = 1 << 20) -> tuple[sg.Graph, dict[str, object]]:
    graph = sg.Graph("frames")
    graph.input("packet", f"f32[{size}]", device="cpu", pinned=True)
    graph.buffer("frame", f"f32[{size}]", slots=2)
    graph.copy("upload", "packet", "frame", stream="copy")

    def work(frame: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(kernel_cycles)
        return frame * 2

    graph.output(graph.task("work", work, reads="frame", writes="done", stream="main"))
    return graph, {}


def test_memory_does_not_grow_with_the_number_of_items() -> None:
    graph, _ = frames(1000)
    peaks = []
    for count in (4, 64):
        items = [torch.randn(1 << 20).pin_memory() for _ in range(4)]
        torch.cuda.reset_peak_memory_stats()
        with sg.compile(graph, device="cuda") as runner:
            for result in runner.map((items[n % 4] for n in range(count)), inflight=3):
                del result
            peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[0] == peaks[1]


def test_the_next_upload_runs_while_an_item_is_worked_on() -> None:
    marks: dict[tuple[str, int], tuple[torch.cuda.Event, torch.cuda.Event]] = {}
    numbers = {"upload": 0, "work": 0}

    def timed(name: str, action: object) -> object:
        def call(*arguments: torch.Tensor, **keywords: torch.Tensor) -> object:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            torch.cuda._sleep(20 * MILLISECOND)
            made = action(*arguments, **keywords)  # type: ignore[operator]
            end.record()
            marks[name, numbers[name]] = (begin, end)
            numbers[name] += 1
            return made

        return call

    graph = sg.Graph("overlap")
    graph.input("packet", "f32[1024]", device="cpu", pinned=True)
    graph.buffer("frame", "f32[1024]", slots=2)
    upload = timed("upload", lambda p, out: out.copy_(p, non_blocking=True))
    graph.task("upload", upload, reads="packet", writes="frame", stream="copy")  # type: ignore[arg-type]
    graph.output(graph.task("work", timed("work", lambda f: f * 2), reads="frame", writes="done", stream="main"))  # type: ignore[arg-type]
    with sg.compile(graph, device="cuda") as runner:
        list(runner.map([torch.randn(1024).pin_memory() for _ in range(6)]))
        torch.cuda.synchronize()
    # Points in time in order, not lengths: upload 4 began before item 3 was done, and item 3 began before upload 4 was done.
    assert marks["upload", 4][0].elapsed_time(marks["work", 3][1]) > 0
    assert marks["work", 3][0].elapsed_time(marks["upload", 4][1]) > 0


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_prefetch_gives_what_the_layers_give(slots: int) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))).eval()
    x = torch.randn(16, 256, device="cuda")
    with torch.no_grad():
        right = net.to("cuda")(x)
        net.to("cpu")
        with prefetch(net, slots, device="cuda") as runner:
            assert torch.equal(runner(x=x)["h"], right)
            assert all(torch.equal(result["h"], right) for result in runner.map([x] * 5))


def test_an_early_end_leaves_nothing_running() -> None:
    graph, _ = frames(50 * MILLISECOND)
    with sg.compile(graph, device="cuda") as runner:
        loop = runner.map(torch.randn(1 << 20).pin_memory() for _ in range(50))
        next(loop)
        loop.close()  # type: ignore[attr-defined]
        assert torch.cuda.current_stream().query()
