"""Loops over two GPUs give what the reference gives, whoever is slow; stages overlap; every way out leaves both devices as they were."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import streamgraph as sg
from streamgraph.errors import TaskError
from streamgraph.executors.device import find
from streamgraph.executors.memory import Memory
from streamgraph.executors.pipeline import Pipeline
from streamgraph.iterations import kind_of
from streamgraph.loop import Loop
from streamgraph.model import Program
from streamgraph.operators import resolve
from streamgraph.plan_loop import plan_loop
from streamgraph.storages import trace
from streamgraph.verify import verify
from tests.cuda.support import MILLISECOND, at_rest, delayed, inputs_on_gpu
from tests.cuda.test_devices import two  # noqa: F401 (a fixture)
from tests.programs import mix_for, random_devices, turning, two_stages
from tests.running import Fault, expected_of, failing, inputs_of, same
from tests.test_device_loops import staged
from tests.test_pipeline import expected

pytestmark = pytest.mark.cuda

EXECUTORS = ("eager", "lanes")


def taken(of: Program, results: Iterator[Any]) -> list[dict[str, torch.Tensor]]:
    """Results as a caller keeps them: host memory is there, the rest is copied by the caller's streams."""
    found = []
    for result in results:
        found.append({name: tensor.clone() for name, tensor in result.items()})
        del result
    at_rest(of)
    return found


def right(of: Program, found: list[dict[str, torch.Tensor]]) -> bool:
    return [same(one, other) for one, other in zip(found, expected_of(of, len(found)), strict=True)] == [True] * len(found)


# --- results -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
def test_random_programs_give_in_a_loop_what_calls_give_under_random_delays(executor: Any) -> None:
    tried = 0
    for seed in range(40):
        of = turning(random_devices(random.Random(seed).randrange), seed)
        if len(of.devices) < 2:
            continue
        draws = random.Random(seed)
        slow = {task.name: MILLISECOND * draws.randrange(1, 4) for task in of.tasks if draws.random() < 0.3}
        inputs = [inputs_on_gpu(of, inputs_of(of, number)) for number in range(10)]
        with sg.compile(of, ops=delayed(mix_for(of, "cuda"), slow), device="cuda", executor=executor) as runner:
            found = taken(of, iter(runner.map(inputs, inflight=1 + seed % 3)))
        assert right(of, found), f"wrong with seed {seed}"
        del inputs, found
        tried += 1
    assert tried > 30


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_pipeline_gives_the_reference_with_each_task_delayed_in_turn_in_loops_and_calls(executor: Any) -> None:
    of = staged()
    for task in ["none", *(task.name for task in of.tasks if not task.is_copy)]:
        inputs = [inputs_on_gpu(of, inputs_of(of, number)) for number in range(13)]
        with sg.compile(of, ops=delayed(mix_for(of, "cuda"), {task: 5 * MILLISECOND}), device="cuda", executor=executor) as runner:
            found = taken(of, iter(runner.map(inputs[:9], inflight=3)))
            found += taken(of, (runner(given) for given in inputs[9:11]))
            found += taken(of, iter(runner.map(inputs[11:])))
        assert right(of, found), f"wrong when '{task}' is slow"
        del inputs, found


def given_by(loop: Loop, slow: dict[str, int]) -> bool:
    """Whether a loop that nobody has verified gives the right answers."""
    of, count = loop.program, 12
    device = find("cuda", of)
    accesses = trace(of)[0]
    operators = resolve(of, delayed(mix_for(of, "cuda"), slow), str(device.location), accesses)
    made = Pipeline(loop, operators, device, Memory(of, accesses, device.location, 0))
    bound, *inputs = (inputs_on_gpu(of, inputs_of(of, number)) for number in range(count + 1))
    bound = {name: tensor for name, tensor in bound.items() if name not in loop.per_item}
    found = []
    for outputs in made.run(({name: given[name] for name in loop.per_item} for given in inputs), bound):
        found.append({name: tensor.clone() for name, tensor in outputs.items()})
        del outputs
    at_rest(of)
    made.slots.memory.close()
    made.close()
    del inputs, bound
    return [same(one, other) for one, other in zip(found, expected(of, loop.per_item, count), strict=True)] == [True] * count


def test_each_wait_between_devices_taken_out_of_the_steady_state_gives_a_wrong_answer() -> None:
    loop = plan_loop(staged(), frozenset({"hx"}), inflight=2)
    # What keeps a stream busy: a copy is as late as the task before it.
    behind = {"first": "first", "hop": "first", "second": "second", "home": "second", "third": "third"}
    copies, tried = {"hop", "home", "store"}, []
    assert given_by(loop, {}), "warm-up"
    for issue in loop.steady:
        for back in issue.waits:
            if back.name not in behind or issue.lane in loop.host_lanes:
                continue
            if kind_of(issue.task) == "result" and back.name in copies:
                continue  # the caller's changes are to come after a copy that reads, and cannot be made to come before it
            less = replace(issue, waits=tuple(other for other in issue.waits if other != back))
            mutant = replace(loop, steady=tuple(less if other is issue else other for other in loop.steady))
            if not verify(mutant.schedule(10)):
                continue
            slow = {behind[back.name]: 20 * MILLISECOND}
            if any(drop.by for drop in issue.releases_before):
                continue  # it guards memory, whose next owner need not come in time
            assert given_by(loop, slow)
            assert not given_by(mutant, slow), f"nobody noticed that {issue.task} no longer waits for {back}"
            tried.append((back.name, issue.task))
    assert {("first", "hop"), ("hop", "second"), ("home", "third"), ("third", "result")} <= set(tried)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_items_of_both_devices_may_be_under_way_and_results_on_both_used_and_dropped_at_once(executor: Any) -> None:
    size = 65536
    graph = sg.Graph("both")
    for number in range(2):
        graph.input(f"x{number}", f"f32[{size}]", device=f"cuda:{number}")
    graph.value("far", f"f32[{size}]", device="cuda:1")
    graph.task("one", lambda x: x + 1, reads="x0", writes="a", stream="one")
    graph.copy("hop", "a", "far")
    graph.task("two", lambda far, x: far * 2 + x, reads=["far", "x1"], writes="b", stream="two")
    graph.output("a")
    graph.output("b")

    def source() -> Iterator[tuple[torch.Tensor, ...]]:
        for number in range(40):
            made = []
            for index in range(2):
                with torch.cuda.device(index):
                    torch.cuda._sleep(MILLISECOND // 4)
                    made.append(torch.full((size,), float(number + index), device=f"cuda:{index}"))
            yield tuple(made)
            del made
            for index in range(2):
                torch.empty(size, device=f"cuda:{index}").fill_(-1)  # what takes the item's memory next

    sides = [torch.cuda.Stream(index) for index in range(2)]
    with sg.compile(graph, device="cuda", executor=executor) as runner, torch.cuda.stream(sides[0]), torch.cuda.stream(sides[1]):
        sums = []
        for result in runner.map(source(), inflight=2):
            for index, name in enumerate("ab"):
                with torch.cuda.device(index):
                    torch.cuda._sleep(MILLISECOND // 4)
                    sums.append(result[name].sum())
                    result[name].fill_(-5)
            del result
            assert torch.cuda.current_device() == 1
            assert (torch.cuda.current_stream(0), torch.cuda.current_stream(1)) == tuple(sides)
        values = [float(value) for value in sums]
        del sums
    assert values == [size * value for number in range(40) for value in (number + 1.0, 2.0 * (number + 1) + number + 1)]


# --- overlap -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("slow", ["first", "second"])
def test_while_one_device_works_on_an_item_the_other_works_on_another(executor: Any, slow: str) -> None:
    done: dict[tuple[str, int], torch.cuda.Event] = {}
    long = {("second", 3): 400 * MILLISECOND} if slow == "second" else {("first", 4): 400 * MILLISECOND}
    numbers = {"first": 0, "second": 0}

    def timed(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(x: torch.Tensor) -> torch.Tensor:
            at = (name, numbers[name])
            numbers[name] += 1
            torch.cuda._sleep(long.get(at, 1))
            result = x + 1
            done[at] = torch.cuda.Event()
            done[at].record()
            return result

        return call

    graph = sg.Graph("stages")
    graph.input("x", "i64[8]", device="cuda:0")
    graph.buffer("inbox", "i64[8]", slots=3, device="cuda:1")
    graph.task("first", timed("first"), reads="x", writes="a")
    graph.copy("hop", "a", "inbox")
    graph.output(graph.task("second", timed("second"), reads="inbox", writes="y"))
    items = [torch.full((8,), number, device="cuda:0") for number in range(6)]
    with sg.compile(graph, device="cuda", executor=executor) as runner:
        found = []
        for number, result in enumerate(runner.map(items, inflight=3)):
            found.append(result["y"])
            if number == 3:
                # Items 0 to 5 have been issued.
                fast, behind = (("first", 5), ("second", 3)) if slow == "second" else (("second", 3), ("first", 4))
                while not {fast, behind} <= done.keys():  # threads may be a little behind
                    time.sleep(0.001)
                done[fast].synchronize()
                assert not done[behind].query(), f"{fast} waited for {behind}"
        at_rest(graph.program())
        assert [int(tensor[0]) for tensor in found] == [number + 2 for number in range(6)]
        del found, result, items


# --- memory, ways out --------------------------------------------------------------------------------------------------------------------


def allocated() -> tuple[int, ...]:
    return tuple(torch.cuda.memory_allocated(device) for device in range(2))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_memory_of_both_devices_does_not_grow_with_the_number_of_items(executor: Any) -> None:
    size, peaks = 1 << 20, []
    graph = sg.Graph("large")
    graph.input("hx", f"f32[{size}]", device="cpu", pinned=True)
    graph.buffer("inbox", f"f32[{size}]", slots=2, device="cuda:1")
    graph.copy("load", "hx", "x")
    graph.task("first", lambda x: x + 1, reads="x", writes="a")
    graph.copy("hop", "a", "inbox")
    graph.output(graph.task("second", lambda x: x * 2, reads="inbox", writes="y"))
    items = [torch.ones(size).pin_memory() for _ in range(4)]
    for count in (8, 64):
        for device in range(2):
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        before = allocated()
        with sg.compile(graph, device="cuda", executor=executor) as runner:
            for result in runner.map((items[number % 4] for number in range(count)), inflight=2):
                assert result["y"].device.index == 1
                del result
            at_rest(graph.program())
            now = [torch.cuda.memory_stats(device)["active_bytes.all.peak"] for device in range(2)]
        peaks.append([(peak - start) / (4 * size) for peak, start in zip(now, before, strict=True)])
        gc.collect()
        at_rest(graph.program())
        assert allocated() == before
    # On each device some values of up to four iterations; on the second one the ring, and results whose memory the caller has not let go.
    assert max(max(peak) for peak in peaks) <= 12


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("current", [0, 1])
def test_after_an_error_in_an_item_or_an_early_end_both_devices_are_at_rest_and_as_they_were(executor: Any, current: int) -> None:
    of = two_stages(2)
    broken: dict[str, BaseException] = {}
    slow = {task.name: 5 * MILLISECOND for task in of.tasks}
    sides = [torch.cuda.Stream(device) for device in range(2)]
    inputs = [inputs_on_gpu(of, inputs_of(of, number)) for number in range(9)]
    before = allocated()

    def items(task: str, number: int) -> Iterator[Any]:
        for place, given in enumerate(inputs):
            if task and place == number:
                broken[task] = Fault("broken")
            yield given

    def as_found(made: Any) -> None:
        assert all(stream.query() for stream in made.streams.at.values()), "something is still under way"
        assert torch.cuda.current_device() == current
        assert (torch.cuda.current_stream(0), torch.cuda.current_stream(1)) == tuple(sides)

    ops = delayed(failing(of, broken, mix_for(of, "cuda")), slow)
    with sg.compile(of, ops=ops, device="cuda", executor=executor) as runner:
        with torch.cuda.stream(sides[1 - current]), torch.cuda.stream(sides[current]):
            for task, number in (("", 0), ("first1", 6), ("second0", 0), ("second1", 7)):
                broken.clear()
                running = runner.map(items(task, number), inflight=3)
                if task:
                    with pytest.raises(TaskError, match=rf"item \d+: task '{task}'"):
                        taken(of, iter(running))
                else:
                    for _ in range(3):
                        next(running)  # type: ignore[call-overload]
                    running.close()  # type: ignore[attr-defined]
                (made,) = runner._looper._made.values()
                as_found(made)
            broken.clear()
            found = taken(of, iter(runner.map(inputs, inflight=3)))
            as_found(made)
        assert right(of, found)
        del found, running, made
        gc.collect()
    gc.collect()
    at_rest(of)
    assert allocated() == before


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("item", [0, 7])
def test_a_task_that_leaves_another_device_current_is_named_with_its_item(executor: Any, item: int) -> None:
    calls: list[int] = []

    def wander(x: torch.Tensor) -> torch.Tensor:
        result = x + 1
        calls.append(1)
        if len(calls) == item + 1:
            torch.cuda.set_device(0)
        return result

    graph = sg.Graph("stray")
    for number in range(2):
        graph.input(f"x{number}", "i64[8]", device=f"cuda:{number}")
    graph.output(graph.task("stay", lambda x: x + 1, reads="x0", writes="y0"))
    graph.output(graph.task("wander", wander, reads="x1", writes="y1"))
    items = [tuple(torch.zeros(8, dtype=torch.int64, device=f"cuda:{number}") for number in range(2)) for _ in range(10)]
    with sg.compile(graph, device="cuda", executor=executor) as runner:
        with pytest.raises(TaskError, match=rf"SG607.*item {item}: task 'wander'"):
            taken(graph.program(), iter(runner.map(items)))
        assert torch.cuda.current_device() == 0
        assert len(taken(graph.program(), iter(runner.map(items)))) == 10
    del items
