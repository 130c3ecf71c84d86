"""Loops on a GPU: right under delays, no memory that grows with the number of items, and real overlap."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import DataLoader, TensorDataset

import streamgraph as sg
from streamgraph.cli import cli
from streamgraph.plan import as_program
from streamgraph.prefetch import prefetch
from tests.cuda.support import MILLISECOND, delayed, inputs_on_gpu
from tests.programs import mix_for, seeded, turning
from tests.running import expected_of, inputs_of, same, skip_without_gpus

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_give_in_a_loop_what_calls_give_under_random_delays(seed: int) -> None:
    of = turning(seeded(seed, tasks=10), seed)
    draws = random.Random(seed)
    slow = {task.name: MILLISECOND * draws.randrange(1, 6) for task in of.tasks if draws.random() < 0.3}
    inputs = [inputs_on_gpu(of, inputs_of(of, number)) for number in range(12)]
    with sg.compile(of, ops=delayed(mix_for(of, "cuda"), slow), device="cuda") as runner:
        found = []
        for result in runner.map(inputs, inflight=1 + seed % 3):
            found.append({name: t.clone() if t.device.type == "cpu" else t for name, t in result.items()})
        torch.cuda.synchronize()
    assert [same(one, right) for one, right in zip(found, expected_of(of, 12), strict=True)] == [True] * 12


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


@pytest.mark.parametrize("executor", ["eager", "lanes", "graph"])
def test_with_one_in_flight_the_body_may_change_what_the_program_reads(executor: Any) -> None:
    """Nothing that the caller is given depends on `add`, which is slow and on a lane of its own: only the end of a call is behind it."""
    graph = sg.Graph("body")
    x, step, total = graph.input("x", "i64[8]"), graph.input("step", "i64[8]"), graph.input("total", "i64[8]")

    def add(total: torch.Tensor, step: torch.Tensor) -> None:
        torch.cuda._sleep(10 * MILLISECOND)
        total.add_(step)

    graph.task("add", add, updates=total, reads=step, stream="side")
    graph.output(graph.task("look", torch.clone, reads=x, writes="seen", stream="main"))
    bound = {"step": torch.ones(8, dtype=torch.int64, device="cuda"), "total": torch.zeros(8, dtype=torch.int64, device="cuda")}
    with sg.compile(graph, bound, device="cuda", executor=executor) as runner:
        for _ in runner.map((torch.ones(8, dtype=torch.int64, device="cuda") for _ in range(6)), inflight=1):
            bound["step"].mul_(2)
        assert bound["total"].tolist() == [63] * 8


@pytest.mark.parametrize("executor", ["eager", "lanes", "graph"])
def test_with_one_in_flight_a_source_may_refill_its_only_tensor(executor: Any) -> None:
    graph, _ = frames(MILLISECOND, size=1 << 22)
    staging = torch.empty(1 << 22).pin_memory()
    with sg.compile(graph, device="cuda", executor=executor) as runner:
        found = [result["done"] for result in runner.map((staging.fill_(number) for number in range(8)), inflight=1)]
        assert [(float(one.min()), float(one.max())) for one in found] == [(2.0 * number, 2.0 * number) for number in range(8)]


def test_the_callers_autocast_is_carried_to_lanes_and_left_as_it_was() -> None:
    graph = sg.Graph("casts")
    graph.output(graph.task("mm", lambda x: x @ x, reads=graph.input("x", "f32[16, 16]"), writes="y", stream="side"))
    x = torch.ones(16, 16, device="cuda")
    with sg.compile(graph, device="cuda", executor="lanes") as runner, torch.autocast("cuda", torch.bfloat16):
        for _ in range(2):
            assert runner(x=x)["y"].dtype == torch.bfloat16
            assert {result["y"].dtype for result in runner.map([x] * 4)} == {torch.bfloat16}
            assert torch.is_autocast_enabled("cuda")


def test_an_early_end_leaves_nothing_running() -> None:
    graph, _ = frames(50 * MILLISECOND)
    with sg.compile(graph, device="cuda") as runner:
        loop = runner.map(torch.randn(1 << 20).pin_memory() for _ in range(50))
        next(loop)
        loop.close()  # type: ignore[attr-defined]
        assert torch.cuda.current_stream().query()


# --- host tasks on a thread of their own, device items behind the caller's work alone ----------------------------------------------


@pytest.mark.parametrize("executor", ["eager", "lanes"])
@pytest.mark.parametrize("seed", range(12))
def test_loops_on_threads_give_what_calls_give_under_random_delays(executor: Any, seed: int) -> None:
    of = turning(seeded(seed + 100, tasks=10), seed)
    draws = random.Random(seed)
    slow = {task.name: MILLISECOND * draws.randrange(1, 6) for task in of.tasks if draws.random() < 0.3}
    inputs = [inputs_on_gpu(of, inputs_of(of, number)) for number in range(12)]
    with sg.compile(of, ops=delayed(mix_for(of, "cuda"), slow), device="cuda", executor=executor) as runner:
        found = []
        for result in runner.map(inputs, inflight=1 + seed % 3):
            found.append({name: t.clone() if t.device.type == "cpu" else t for name, t in result.items()})
        torch.cuda.synchronize()
    assert [same(one, right) for one, right in zip(found, expected_of(of, 12), strict=True)] == [True] * 12


def decoding(decode: Any, size: int = 1 << 16) -> sg.Graph:
    graph = sg.Graph("decoding")
    raw = graph.input("raw", f"f32[{size}]", device="cpu")
    staged = graph.buffer("staged", f"f32[{size}]", device="cpu", pinned=True, slots=2)
    frame = graph.buffer("frame", f"f32[{size}]", slots=2)
    graph.task("decode", decode, reads=raw, writes=staged, host=True)
    graph.copy("upload", staged, frame)

    def work(frame: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(MILLISECOND)
        return frame * 2

    graph.output(graph.task("work", work, reads=frame, writes="done"))
    return graph


@pytest.mark.parametrize("executor", ["eager", "lanes"])
@pytest.mark.parametrize("inflight", [1, 2, 3])
def test_staging_is_refilled_only_when_the_upload_before_is_done(executor: Any, inflight: int) -> None:
    items = [torch.randn(1 << 16) for _ in range(12)]
    with sg.compile(decoding(lambda raw, out: out.copy_(raw)), device="cuda", executor=executor) as runner:
        found = [result["done"].clone() for result in runner.map(items, inflight=inflight)]
        assert [torch.equal(one.cpu(), 2 * item) for one, item in zip(found, items, strict=True)] == [True] * 12
        del found


@pytest.mark.parametrize("executor", ["eager", "lanes"])
def test_an_item_is_decoded_while_the_caller_has_a_result(executor: Any) -> None:
    given = [threading.Event() for _ in range(8)]
    threads: set[int] = set()

    def decode(raw: torch.Tensor, out: torch.Tensor) -> None:
        threads.add(threading.get_ident())
        number = int(raw[0])
        assert number == 0 or given[number - 1].wait(20), "the caller had to wait for an item to be decoded"
        out.copy_(raw)

    items = [torch.full((1 << 16,), float(number)) for number in range(8)]
    with sg.compile(decoding(decode), device="cuda", executor=executor) as runner:
        for number, result in enumerate(runner.map(items, inflight=2)):
            given[number].set()
            assert float(result["done"][0]) == 2 * number
            del result
    assert len(threads - {threading.get_ident()}) == 1


def test_an_error_of_a_host_task_names_the_item_and_leaves_nothing_running() -> None:
    def decode(raw: torch.Tensor, out: torch.Tensor) -> None:
        if float(raw[0]) == 3:
            raise ValueError("no signal")
        out.copy_(raw)

    items = [torch.full((1 << 16,), float(number)) for number in range(8)]
    with sg.compile(decoding(decode), device="cuda") as runner:
        given = []
        with pytest.raises(sg.TaskError, match=r"item 3: task 'decode'.*no signal") as caught:
            given.extend(float(result["done"][0]) for result in runner.map(items))
        assert given == [2.0 * number for number in range(len(given))]
        assert torch.cuda.current_stream().query()
        del caught
        assert len(list(runner.map(items[:2]))) == 2


def test_a_device_items_first_task_does_not_wait_for_what_the_loop_has_on_main() -> None:
    """Two lanes, an item for each: with items taken on the loop's own main, `first` of an item would follow `second` of the one before."""
    begun: dict[tuple[str, int], torch.cuda.Event] = {}
    ended: dict[tuple[str, int], torch.cuda.Event] = {}
    numbers = {"first": 0, "second": 0}

    def timed(name: str) -> Any:
        def call(value: torch.Tensor) -> torch.Tensor:
            at = (name, numbers[name])
            numbers[name] += 1
            begun[at], ended[at] = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun[at].record()
            torch.cuda._sleep(20 * MILLISECOND)
            result = value * 2
            ended[at].record()
            return result

        return call

    graph = sg.Graph("items")
    x = graph.input("x", "f32[1024]")
    graph.task("first", timed("first"), reads=x, writes="y", stream="side")
    graph.output(graph.task("second", timed("second"), reads="y", writes="z", stream="main"))
    items = [torch.randn(1024, device="cuda") for _ in range(6)]
    with sg.compile(graph, device="cuda") as runner:
        found = [result["z"] for result in runner.map(items, inflight=3)]
        torch.cuda.synchronize()
    assert [torch.equal(one, 4 * item) for one, item in zip(found, items, strict=True)] == [True] * 6
    assert begun["first", 4].elapsed_time(ended["second", 3]) > 0  # `first` of item 4 began before `second` of item 3 was done


def test_device_items_may_be_made_by_work_that_is_under_way_and_results_used_and_dropped_at_once() -> None:
    graph = sg.Graph("items")
    x = graph.input("x", "f32[65536]")
    graph.task("one", lambda x: x + 1, reads=x, writes="a", stream="side")
    graph.output(graph.task("two", lambda a: a * 2, reads="a", writes="b", stream="main"))

    def source() -> Iterator[torch.Tensor]:
        for number in range(40):
            torch.cuda._sleep(MILLISECOND // 4)
            item = torch.full((65536,), float(number), device="cuda")
            yield item
            del item
            torch.empty(65536, device="cuda").fill_(-1)  # what takes the item's memory next

    with sg.compile(graph, device="cuda") as runner:
        taken = []
        for result in runner.map(source(), inflight=2):
            torch.cuda._sleep(MILLISECOND // 4)
            taken.append(result["b"].sum())
            del result
        sums = [float(value) for value in taken]
        del taken
    assert sums == [65536.0 * 2 * (number + 1) for number in range(40)]


# --- memory -------------------------------------------------------------------------------------------------------------------------


def _peak(run: Callable[[], None]) -> int:
    """Bytes at the peak, those included that were dropped while another stream might still use them."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    run()
    torch.cuda.synchronize()
    return int(torch.cuda.memory_stats()["active_bytes.all.peak"]) - before


def _layers(layers: int, size: int) -> tuple[sg.Graph, list[torch.Tensor]]:
    graph = sg.Graph("layers")
    h = graph.input("x", f"f32[{size}]")
    host = graph.input("host", f"f32[{size}]", each={"layer": layers}, device="cpu", pinned=True)
    ring = graph.buffer("ring", f"f32[{size}]", each={"layer": layers}, slots=2, over="layer")
    for layer in range(layers):
        graph.copy(f"load@{layer}", host[layer], ring[layer], stream="copy")
        h = graph.task(f"add@{layer}", torch.add, reads=[h, ring[layer]], writes="h", stream="main")
    graph.output(h)
    return graph, [torch.ones(size).pin_memory()] * layers


def test_memory_does_not_grow_with_the_number_of_layers() -> None:
    size, peaks = 1 << 20, []
    x = torch.zeros(size, device="cuda")
    for layers in (4, 64):
        graph, host = _layers(layers, size)
        with sg.compile(graph, {"host": host}, device="cuda") as runner:

            def run(runner: sg.Runner = runner, layers: int = layers) -> None:
                for _ in range(3):
                    assert float(runner(x=x)["h"][0]) == layers

            peaks.append(_peak(run))
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("layers", [4, 64])
def test_memory_of_a_loop_is_bounded_whatever_the_number_of_items_and_layers(layers: int) -> None:
    size, peaks = 1 << 20, []
    graph, host = _layers(layers, size)
    items = [torch.zeros(size, device="cuda") for _ in range(4)]
    for count in (4, 64):
        with sg.compile(graph, {"host": host}, device="cuda") as runner:

            def run(runner: sg.Runner = runner, count: int = count) -> None:
                for result in runner.map((items[number % 4] for number in range(count)), inflight=2):
                    del result

            peaks.append(_peak(run) / (4 * size))
    # Two slots, two or three values of a layer chain, and results: at most inflight + 2 whose memory the caller's stream has not let go.
    assert max(peaks) <= 10


def test_a_runner_that_only_maps_holds_its_rings_once() -> None:
    size = 1 << 20
    graph, host = _layers(8, size)
    with sg.compile(graph, {"host": host}, device="cuda") as runner:
        x = torch.zeros(size, device="cuda")
        before = torch.cuda.memory_allocated()
        for result in runner.map([x] * 5):
            del result
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() - before
        assert held == 2 * 4 * size
        del x
        assert float(runner(x=torch.zeros(size, device="cuda"))["h"][0]) == 8


# --- specs, the command line, DataLoader --------------------------------------------------------------------------------------------

SPECS = Path(__file__).parents[2] / "specs"
NAMES = sorted(path.name.removesuffix(".streamgraph.yaml") for path in SPECS.glob("*.streamgraph.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_iterations_of_every_spec_equal_calls_one_after_another_on_the_command_line(name: str) -> None:
    """`run --iterations` compares all results with those of the tasks one after another, bit for bit."""
    beside = SPECS / f"{name}.py"
    ops = ("--ops", str(beside)) if beside.exists() else ()
    spec = str(SPECS / f"{name}.streamgraph.yaml")
    skip_without_gpus(as_program(spec))
    done = CliRunner().invoke(cli, ["run", spec, *ops, "--iterations", "5", "--device", "cuda", "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data["differing"] == []
    assert data["iterations"] == 5
    assert data["checked"] > 0


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")  # the loader's workers fork; they use no GPU
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_with_pinned_memory_is_uploaded_ahead(workers: int) -> None:
    images, labels = torch.arange(64 * 16.0).reshape(64, 16), torch.arange(64)
    loader: Any = DataLoader(TensorDataset(images, labels), batch_size=8, pin_memory=True, num_workers=workers)
    graph = sg.Graph("training")
    image = graph.input("image", "f32[8, 16]", device="cpu", pinned=True)
    label = graph.input("label", "i64[8]", device="cpu", pinned=True)
    batch = graph.buffer("batch", "f32[8, 16]", slots=2)
    target = graph.buffer("target", "i64[8]", slots=2)
    total = graph.buffer("total", "f32[]")
    graph.value("loss", "f32[]", device="cpu", pinned=True)
    graph.copy("upload", image, batch)
    graph.copy("upload_label", label, target)

    def step(total: torch.Tensor, batch: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(MILLISECOND)
        return total.add_((batch.mean(1) * target).sum()).clone()

    graph.task("step", step, updates=total, reads=[batch, target], writes="sum")
    graph.copy("report", "sum", "loss")
    graph.output("loss")
    with sg.compile(graph, device="cuda") as runner:
        found = [float(result["loss"]) for _ in range(2) for result in runner.map(loader)]
    expected, so_far = [], torch.zeros(())
    for _ in range(2):
        for start in range(0, 64, 8):
            so_far = so_far + (images[start : start + 8].mean(1) * labels[start : start + 8]).sum()
            expected.append(float(so_far))
    assert found == pytest.approx(expected)


def test_the_documented_training_loop_with_a_pageable_loader_learns() -> None:
    """Staging as a host task, on its own thread: what docs/iterations.md shows."""
    graph = sg.Graph("training")
    image = graph.input("image", "f32[16, 64]", device="cpu")
    label = graph.input("label", "i64[16]", device="cpu")
    staged = graph.buffer("staged", "f32[16, 64]", device="cpu", pinned=True, slots=2)
    batch = graph.buffer("batch", "f32[16, 64]", slots=2)
    target = graph.buffer("target", "i64[16]", slots=2)
    weight = graph.buffer("weight", "f32[64, 4]")

    def step(weight: torch.Tensor, batch: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores = batch @ weight
        error = torch.softmax(scores, 1) - torch.nn.functional.one_hot(target, 4)
        weight -= 0.1 * batch.T @ error / len(target)
        return torch.nn.functional.cross_entropy(scores, target)

    graph.task("stage", lambda image, out: out.copy_(image), reads=image, writes=staged, host=True)
    graph.copy("upload", staged, batch)
    graph.copy("upload_label", label, target)
    graph.task("step", step, updates=weight, reads=[batch, target], writes="loss")
    graph.output("loss")
    torch.manual_seed(0)
    images = torch.randn(128, 64)
    data = TensorDataset(images, (images @ torch.randn(64, 4)).argmax(1))
    results = []
    for executor in ("sequential", "eager", "lanes"):
        with sg.compile(graph, device="cuda", executor=executor) as runner:  # type: ignore[arg-type]
            losses = [result["loss"] for _ in range(8) for result in runner.map(DataLoader(data, batch_size=16))]
            results.append([float(loss) for loss in losses])
            del losses
    assert results[1] == pytest.approx(results[0])
    assert results[2] == pytest.approx(results[0])
    assert results[0][-1] < 0.5 * results[0][0]
