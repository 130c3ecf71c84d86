"""Loops by generated functions: taken once the loop repeats, the loop's steps and no others, errors with their task and item."""

from __future__ import annotations

import dis
import gc
import linecache
import random
import re
import time
import weakref
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from math import lcm
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import streamgraph as sg
from streamgraph.errors import TaskError
from streamgraph.executors import flat, launch, loop_code
from streamgraph.executors.device import Device, HostDevice
from streamgraph.executors.direct import CudaDirect
from streamgraph.executors.generate_loop import generate_loop
from streamgraph.executors.lanes_pipeline import LanesPipeline, threads_of
from streamgraph.executors.memory import Memory
from streamgraph.executors.pipeline import Pipeline
from streamgraph.executors.slots import Slots, ring_length
from streamgraph.executors.stepwise import Stepwise
from streamgraph.iterations import PSEUDO, SOURCE
from streamgraph.loop import Issue, Loop
from streamgraph.model import MAIN, Program
from streamgraph.operators import resolve
from streamgraph.plan_loop import plan_loop
from streamgraph.storages import trace
from tests.fake_device import FakeDevice, Mark
from tests.programs import mix_for, seeded, turning
from tests.running import Fault, expected_of, failing, inputs_of, same
from tests.test_pipeline import brought, delays, expected, items_of, pipeline, play, source
from tests.threaded_device import ThreadedDevice

THREADS = ["none", "host and issuer", "lanes"]


def device_for(threads: str, seed: int = 0, pace: float = 0.3) -> FakeDevice:
    return (FakeDevice if threads == "none" else ThreadedDevice)(seed, pace)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Copies go to a fake device."""

    def use(device: FakeDevice) -> FakeDevice:
        monkeypatch.setattr(launch, "run_copy", device.run_copy)
        monkeypatch.setattr(launch, "copy_call", device.copy_call)
        return device

    return use


def loop_of(seed: int, inflight: int = 2, apart: bool | None = True) -> Loop:
    of = turning(seeded(seed), seed)
    return plan_loop(of, items_of(of, seed), inflight=inflight, apart=apart)


def items(loop: Loop, count: int) -> Iterator[dict[str, torch.Tensor]]:
    return source(loop.program, loop.per_item, count, loop.inflight)


# --- the same results --------------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6), inflight=st.integers(1, 4), count=st.integers(6, 20), part=st.sampled_from([1, 2, 3, 400]),
    threads=st.sampled_from(THREADS), most=st.sampled_from([1, 2, 256]), slow=st.booleans(),
)  # fmt: skip
def test_a_loop_gives_the_reference_in_functions_of_any_length(
    seed: int, inflight: int, count: int, part: int, threads: str, most: int, slow: bool
) -> None:
    loop = loop_of(seed, inflight, None if threads == "none" else True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat, "PART", part)
        patch.setattr(loop_code, "MOST", most)
        assert play(loop, seed, 0.3, count, threads, delays(seed) if slow and threads != "none" else None) == [True] * count


def two_rings(first: int, second: int) -> Program:
    graph = sg.Graph("rings")
    x = graph.input("x", "i64[8]", device="cpu", pinned=True)
    graph.buffer("one", "i64[8]", slots=first)
    graph.buffer("two", "i64[8]", slots=second)
    graph.view("low", "two", (slice(0, 4),))
    graph.copy("load", x, "one", stream="copy")
    graph.task("move", "mix", reads="one", writes="two", stream="side")
    graph.task("more", "mix", reads="one", updates="low", stream="side")
    graph.output(graph.task("use", "mix", reads=["two", "low"], writes="y", stream="main"))
    return graph.program()


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 2), (2, 3), (3, 4), (5, 7)])
@pytest.mark.parametrize("inflight", [1, 2, 3, 4])
def test_rings_of_different_lengths_turn_together(first: int, second: int, inflight: int) -> None:
    loop = plan_loop(two_rings(first, second), inflight=inflight)
    made = pipeline(loop, FakeDevice())
    assert isinstance(made, Pipeline)
    assert made.code.period % lcm(first, second) == 0
    count = 2 * made.code.period + 3
    assert play(loop, inflight, 0.2, count) == [True] * count


def test_as_many_sets_of_functions_are_kept_as_is_said_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A period can be long; a set that was dropped is made anew."""
    monkeypatch.setattr(loop_code, "MOST", 3)
    loop = plan_loop(two_rings(3, 4), inflight=2)
    device = FakeDevice()
    made = pipeline(loop, device)
    assert isinstance(made, Pipeline)
    assert made.code.period > 3
    bound: set[int] = set()
    for number, _ in enumerate(made.run(items(loop, 2 * made.code.period), inputs_of(loop.program, 0))):
        bound |= set(made.code._phases)
        assert len(made.code._phases) <= 3, f"at result {number}"
    assert len(bound) == made.code.period
    device.drain()


def counted(add: Any) -> Program:
    graph = sg.Graph("counted")
    x = graph.input("x", "i64[8]", device="cpu", pinned=True)
    frame = graph.buffer("frame", "i64[8]", slots=2)
    total = graph.buffer("total", "i64[8]")
    graph.copy("load", x, frame)
    graph.task("add", add, updates=total, reads=frame)
    graph.output(graph.task("look", torch.clone, reads=total, writes="seen"))
    return graph.program()


def counting(add: Any, device: Device) -> Pipeline:
    loop = plan_loop(counted(add), apart=False)
    operators = resolve(loop.program)
    return Pipeline(loop, operators, device, Memory(loop.program, trace(loop.program)[0], device.location, 0))


def test_functions_have_the_buffers_that_there_are_when_a_loop_begins() -> None:
    """Buffers that were dropped in between are made anew, with their first bytes."""
    made = counting(torch.Tensor.add_, HostDevice())
    for _ in range(2):
        found = [int(outputs["seen"][0]) for outputs in made.run(({"x": torch.ones(8, dtype=torch.int64)} for _ in range(9)), {})]
        assert found == list(range(1, 10))
        made.slots.memory.close()


def test_host_tensors_of_items_are_let_go_as_soon_as_nothing_reads_them() -> None:
    made = counting(torch.Tensor.add_, HostDevice())
    brought: list[weakref.ref[torch.Tensor]] = []

    def source() -> Iterator[dict[str, torch.Tensor]]:
        for number in range(20):
            x = torch.full((8,), number)
            brought.append(weakref.ref(x))
            yield {"x": x}
            del x

    for _ in made.run(source(), {}):
        assert sum(of() is not None for of in brought) <= made.loop.inflight + 1
    assert len(brought) == 20


def test_nothing_holds_a_result_that_the_caller_has_dropped_once_the_next_is_there() -> None:
    made = counting(torch.Tensor.add_, HostDevice())
    given: list[weakref.ref[torch.Tensor]] = []
    for outputs in made.run(({"x": torch.ones(8, dtype=torch.int64)} for _ in range(20)), {}):
        assert [result() for result in given[:-1]] == [None] * len(given[:-1])
        given.append(weakref.ref(outputs["seen"]))
        del outputs
    assert len(given) == 20


def test_a_value_whose_part_was_read_is_let_go_where_the_loop_says() -> None:
    """The text has a name for the part too, which would keep the memory until the function ends."""
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def make(x: torch.Tensor) -> torch.Tensor:
        value = x + 1
        made.append(weakref.ref(value))
        return value

    def see(half: torch.Tensor) -> torch.Tensor:
        alive.append(made[-1]() is not None)
        return half.clone()

    graph = sg.Graph("parts")
    x = graph.input("x", "i64[8]", device="cpu", pinned=True)
    whole = graph.value("whole", "i64[8]")
    graph.task("make", make, reads=x, writes=whole)
    half = graph.task("half", lambda part: part * 2, reads=graph.view("part", "whole", (slice(0, 4),)), writes="half")
    graph.output(graph.task("see", see, reads=half, writes="seen"))
    loop = plan_loop(graph.program(), apart=False)
    memory = Memory(loop.program, trace(loop.program)[0], torch.device("cpu"), 0)
    list(Pipeline(loop, resolve(loop.program), HostDevice(), memory).run(({"x": torch.arange(8)} for _ in range(12)), {}))
    assert alive[len(loop.prologue) + 1 :] == [False] * (11 - len(loop.prologue))


def test_closing_takes_the_text_out_of_pythons_line_cache() -> None:
    made = counting(torch.Tensor.add_, HostDevice())
    list(made.run(({"x": torch.ones(8, dtype=torch.int64)} for _ in range(9)), {}))
    (file,) = {line_file for line_file in linecache.cache if line_file == made.code._file}
    assert linecache.getline(file, 1).startswith("def ")
    made.close()
    assert file not in linecache.cache


def test_an_error_says_what_its_task_was_given_also_from_rings_and_buffers() -> None:
    def add(total: torch.Tensor, frame: torch.Tensor) -> None:
        if int(frame[0]) == 6:
            raise Fault("no more")
        total.add_(frame)

    made = counting(add, HostDevice())
    with pytest.raises(TaskError, match=re.escape("item 6: task 'add' @main: add(total: i64[8], frame: i64[8]) raised Fault: no more")):
        list(made.run(({"x": torch.full((8,), number)} for number in range(9)), {}))


@given(least=st.integers(1, 12), turns=st.integers(1, 60))
def test_rings_beside_the_buffers_lengthen_the_period_as_little_as_they_can(least: int, turns: int) -> None:
    length = ring_length(least, turns)
    assert least <= length < 2 * least
    assert lcm(length, turns) == min(lcm(other, turns) for other in range(least, 2 * least))


CHAIN = two_rings(2, 2)


def reached(loop: Loop) -> list[tuple[int, int]]:
    return [(place, number) for place, issue in enumerate(loop.steady) for number in range(len(issue.waits))]


def without(loop: Loop, place: int, number: int) -> Loop:
    issue = loop.steady[place]
    waits = issue.waits[:number] + issue.waits[number + 1 :]
    return replace(loop, steady=(*loop.steady[:place], replace(issue, waits=waits), *loop.steady[place + 1 :]))


@pytest.mark.parametrize("apart", [False, True])
def test_taking_out_any_one_wait_that_repeats_gives_a_wrong_result(apart: bool) -> None:
    loop = plan_loop(CHAIN, inflight=2, apart=apart)
    assert all(all(play(loop, seed, 0.05, 10)) for seed in range(6))
    for place, number in reached(loop):
        wait = loop.steady[place].waits[number]
        if wait.name in loop.host_events or (loop.steady[place].task == SOURCE and wait.name != "load"):
            continue  # the thread is past it; or it bounds the memory of results, and no value shows it
        mutant = without(loop, place, number)
        assert not all(all(play(mutant, seed, 0.05, 10)) for seed in range(60)), f"nobody noticed: {loop.steady[place]}: {wait}"


# --- which way is taken --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("seed", range(6))
def test_only_the_first_iterations_are_issued_step_by_step(threads: str, seed: int, on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of(seed)
    device = on(device_for(threads, seed))
    stepped: list[int] = []
    issue = Stepwise.issue

    def noted(self: Stepwise, iteration: int, *, check: bool) -> bool:
        stepped.append(iteration)
        return issue(self, iteration, check=check)

    monkeypatch.setattr(Stepwise, "issue", noted)
    made = pipeline(loop, device, threads)
    for _ in range(2):  # a later loop begins again
        stepped.clear()
        given = brought(device, loop.program, items(loop, 12))
        assert len(list(made.run(given, inputs_of(loop.program, 0)))) == 12
        assert set(stepped) == set(range(max(1, len(loop.prologue))))
    device.drain()
    made.close()


def wanted(loop: Loop, lanes: Collection[str] | None = None, block: tuple[Issue, ...] | None = None) -> Counter[str]:
    """The calls of the device layer that one iteration makes, by the loop's steps. `lanes`: those of one thread among several."""
    found: Counter[str] = Counter()
    current = MAIN if lanes is None else None
    for issue in loop.steady if block is None else block:
        on_host = issue.lane in loop.host_lanes
        waits = [back for back in issue.waits if back.name not in loop.host_events]
        found["synchronize" if on_host else "wait"] += len(waits)
        found["record"] += issue.record and not on_host
        found["record_stream"] += len(issue.record_streams)
        if issue.task not in PSEUDO and (lanes is None or (issue.lane in lanes and len(lanes) > 1)) and issue.lane != current:
            found["set_stream"] += 1
            current = issue.lane
    found["set_stream"] += lanes is None and current != MAIN
    return +found


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), inflight=st.integers(1, 4), apart=st.sampled_from([None, False, True]))
def test_an_iteration_that_repeats_makes_the_loops_calls_and_no_others(seed: int, inflight: int, apart: bool | None) -> None:
    of = turning(seeded(seed, hosts=False), seed)
    loop = plan_loop(of, items_of(of, seed), inflight=inflight, apart=apart)
    device = FakeDevice(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        patch.setattr(launch, "copy_call", device.copy_call)
        made = pipeline(loop, device)
        # Longer than a period, in which events and functions are made.
        begun = max(1, len(loop.prologue), inflight) + made.slots.length  # type: ignore[union-attr]
        running = made.run(items(loop, begun + 9), inputs_of(of, 0))
        for _ in range(begun):
            next(running)
        for _ in range(3):
            device.log.clear()
            next(running)
            assert Counter(device.log) == wanted(loop)
        running.close()  # type: ignore[attr-defined]
        device.drain()
        made.close()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), inflight=st.integers(1, 3), threads=st.sampled_from(THREADS[1:]))
def test_iterations_on_several_threads_make_the_loops_calls_and_no_others(seed: int, inflight: int, threads: str) -> None:
    loop = loop_of(seed, inflight)
    logs = []
    for count in (len(loop.prologue) + inflight, len(loop.prologue) + inflight + 5):
        device = ThreadedDevice(seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "run_copy", device.run_copy)
            patch.setattr(launch, "copy_call", device.copy_call)
            made = pipeline(loop, device, threads)
            list(made.run(items(loop, count), inputs_of(loop.program, 0)))
            device.drain()
            made.close()
        logs.append(Counter(device.log))
    assert isinstance(made, LanesPipeline)
    each: Counter[str] = wanted(loop, [])
    for lanes in made.threads[1:]:
        each["set_stream"] += wanted(loop, list(lanes))["set_stream"]
    assert logs[1] - logs[0] == +Counter({call: 5 * number for call, number in each.items()})
    assert not logs[0] - logs[1]


def test_what_repeats_looks_nothing_up_and_names_its_iterations() -> None:
    loop = plan_loop(CHAIN, inflight=2, apart=False)
    made = pipeline(loop, FakeDevice())
    assert isinstance(made, Pipeline)
    made.slots.prepare()
    made.slots.enter({})
    made.streams.enter(made.streams.now())
    phase = made.code.phase(5)
    for function in (*phase.parts, *([phase.source] if phase.source else [])):
        assert isinstance(function, FunctionType)
        names = {instruction.opname for instruction in dis.get_instructions(function)}
        assert not {name for name in names if any(part in name for part in ("GLOBAL", "LOAD_NAME", "DEREF", "ATTR", "SETUP"))}
    assert "# wait use[-2] @side" in made.source
    assert "# load @copy" in made.source
    assert made.code.phase(5 + made.code.period) is phase
    assert made.code.phase(6) is not phase


def stood_in(symbols: tuple[tuple[str, tuple[str, ...]], ...], slots: Slots, operators: Any, begins_on: str, log: Counter[str]) -> Any:
    """What names stand for, without a GPU: calls are counted, and a stream is its lane."""
    current = [begins_on]

    def counted(kind: str) -> Any:
        def call(*arguments: Any) -> Any:
            log[kind] += 1
            if kind == "set_stream":
                current[0] = arguments[0]
            return (current[0], 0, 1) if kind == "current" else 0 if kind == "current_device" else None

        return call

    def task(returns: int) -> Any:
        def call(*positional: Any, **named: Any) -> Any:
            log["task"] += 1
            return torch.zeros(8) if returns == 1 else [torch.zeros(8)] * returns

        return call

    def meaning(kind: str, *rest: str) -> Any:
        match kind:
            case "id" | "stream":
                return rest[0]
            case "device" | "type":
                return 0
            case "buffer" | "view":
                return torch.zeros(8)
            case "cells":
                return [None] * len(slots.memory.accesses.storages)
            case "function":
                return task(len(operators[int(rest[0])].call.returns))
            case _:
                return counted(kind)

    return {name: meaning(*symbol) for name, symbol in symbols}


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("seed", range(12))
def test_the_text_for_cuda_makes_the_same_calls(threads: str, seed: int) -> None:
    """By stand-ins for the functions beneath torch.cuda; that these are the right ones is seen on a GPU (tests/cuda)."""
    of = turning(seeded(seed, hosts=threads != "none"), seed)
    loop = plan_loop(of, items_of(of, seed), inflight=2, apart=True)
    slots, operators = Slots(loop, Memory(of, trace(of)[0], torch.device("cpu"), 0)), resolve(of, mix_for(of))
    cuda = CudaDirect(SimpleNamespace(location=torch.device("cuda", 0)), None)  # type: ignore[arg-type]
    alone, tasks = threads == "none", 0
    for lanes in [tuple(lane.name for lane in loop.lanes)] if alone else threads_of(loop, threads != "lanes"):
        made, log = generate_loop(slots, operators, cuda, lanes, None if alone else frozenset()), Counter[str]()
        names = stood_in(made.symbols, slots, operators, MAIN if alone else lanes[0], log)
        exec(compile(made.text, "text", "exec"), names)
        board = SimpleNamespace(limit=(99, 0))
        if made.has_source:
            names["source"](*(() if alone else (9, board)))
        for number in range(made.parts):
            names[f"part{number}"](*((dict.fromkeys(loop.per_item, torch.zeros(8)),) if alone else (9, board)))
        mine = tuple(issue for issue in loop.steady if issue.lane in lanes)
        calls = {kind: log[kind] for kind in ("record", "wait", "synchronize", "record_stream", "set_stream") if log[kind]}
        assert calls == wanted(loop, None if alone else lanes, mine)
        tasks += log["task"]
    assert tasks == len(of.tasks)


def test_a_runner_shows_the_source_of_its_loops() -> None:
    graph = sg.Graph("shown")
    graph.output(graph.task("work", lambda x: x + 1, reads=graph.input("x", "i64[8]", device="cpu"), writes="y"))
    with sg.compile(graph, device="cpu", executor="eager") as runner:
        assert "item" not in runner.source
        assert len(list(runner.map(torch.zeros(8, dtype=torch.int64) for _ in range(4)))) == 4
        assert "def part0(carry" in runner.source
        assert "def part0(item" in runner.source


# --- ways out, and in again ----------------------------------------------------------------------------------------------------------


def at_rest(device: FakeDevice) -> bool:
    """Whether no stream has work left. Marks of freed memory may be there."""
    return all(isinstance(item, Mark) for stream in device.streams for item in stream.queue)


WIDE = turning(seeded(11), 11)


def tasks_of(of: Program) -> list[str]:
    return [task.name for task in of.tasks if not task.is_copy]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("item", [0, 7])
@pytest.mark.parametrize("task", tasks_of(WIDE))
def test_a_task_that_raises_is_named_with_its_item_and_the_next_loop_is_right(task: str, item: int, threads: str, on: Any) -> None:
    loop = plan_loop(WIDE, items_of(WIDE, 11), inflight=2, apart=True)
    device, broken = on(device_for(threads, 1, 0.1)), {}
    calls = Counter[str]()
    base = failing(WIDE, broken, device.operators(WIDE))

    def operators(of: Any) -> Any:
        function = base(of)

        def call(*positional: Any, **keywords: Any) -> Any:
            calls[of.name] += 1
            broken.clear()
            if calls[of.name] == item + 1 and of.name == task:
                broken[task] = Fault("no more")
            return function(*positional, **keywords)

        return call

    memory = Memory(WIDE, trace(WIDE)[0], device.location, 0)
    resolved = resolve(WIDE, operators)
    made: Any = Pipeline(loop, resolved, device, memory)
    if threads != "none":
        made = LanesPipeline(loop, resolved, memory, None, device, one_issuer=threads != "lanes")
    given = []
    with pytest.raises(TaskError, match=rf"item {item}: task '{task}' @\S+: mix\((.*: \w+\[\d+\].*)?\) raised Fault: no more") as caught:
        given.extend(made.run(items(loop, 12), inputs_of(WIDE, 0)))
    assert isinstance(caught.value.__cause__, Fault)
    assert caught.value.task == task
    assert len(given) <= item
    assert at_rest(device)
    assert device.current is device.default
    assert torch.is_grad_enabled()
    del caught, given
    # State is unspecified now, so only that the loop runs through is to be seen.
    assert len(list(made.run(items(loop, 9), inputs_of(WIDE, 0)))) == 9
    made.close()


def test_a_failed_loop_keeps_no_tensor_alive() -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    def produce(x: torch.Tensor) -> torch.Tensor:
        result = x.clone()
        kept.append(weakref.ref(result))
        return result

    def fail(x: torch.Tensor) -> torch.Tensor:
        if len(kept) == 9:
            raise Fault
        return x + 1

    made = sg.Graph("leak")
    y = made.task("produce", produce, reads=made.input("x", "i64[8]"), writes="y", stream="one")
    made.task("hold", torch.neg, reads=y, writes="other", stream="one")
    made.output(made.task("fail", fail, reads="x", writes="z", stream="two"))
    made.task("last", torch.add, reads=["y", "z"], writes="end", stream="two")
    with sg.compile(made, device="cpu", executor="eager") as runner:
        running = runner.map(torch.zeros(8, dtype=torch.int64) for _ in range(12))
        with pytest.raises(TaskError, match="item 8: ") as caught:
            list(running)
        gc.collect()
        assert [reference() for reference in kept] == [None] * 9, "not even while the error is held"
        del caught


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("threads", THREADS)
def test_an_interrupt_passes_as_it_is(error: BaseException, threads: str, on: Any) -> None:
    loop = plan_loop(WIDE, items_of(WIDE, 11), inflight=2, apart=True)
    device, broken = on(device_for(threads, 2, 0.1)), dict[str, BaseException]()
    resolved = resolve(WIDE, failing(WIDE, broken, device.operators(WIDE)))
    memory = Memory(WIDE, trace(WIDE)[0], device.location, 0)
    made: Any = Pipeline(loop, resolved, device, memory)
    if threads != "none":
        made = LanesPipeline(loop, resolved, memory, None, device, one_issuer=threads != "lanes")

    def interrupted() -> Iterator[dict[str, torch.Tensor]]:
        for number, item in enumerate(items(loop, 12)):
            if number == 8:
                broken[tasks_of(WIDE)[-1]] = error
            yield item

    with pytest.raises(type(error)):
        list(made.run(interrupted(), inputs_of(WIDE, 0)))
    assert at_rest(device)
    broken.clear()
    assert len(list(made.run(items(loop, 9), inputs_of(WIDE, 0)))) == 9
    made.close()


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("seed", range(5))
def test_a_loop_that_is_closed_early_can_begin_again(threads: str, seed: int, on: Any) -> None:
    of = turning(seeded(seed), seed)
    stateless = not any(family.over != "iteration" for family in of.families) and len(of.families) == sum(
        tensor.kind.name == "BUFFER" for tensor in of.tensors
    )
    loop = plan_loop(of, items_of(of, seed), inflight=3, apart=True)
    device = on(device_for(threads, seed))
    made = pipeline(loop, device, threads)
    for taken in (1, 8, 4):
        running = made.run(items(loop, 20), inputs_of(of, 0))
        for _ in range(taken):
            next(running)
        running.close()  # type: ignore[attr-defined]
        assert at_rest(device)
    found = [{name: tensor.clone() for name, tensor in outputs.items()} for outputs in made.run(items(loop, 9), inputs_of(of, 0))]
    device.drain()
    made.close()
    assert len(found) == 9
    if stateless:
        assert [same(one, right) for one, right in zip(found, expected(of, loop.per_item, 9), strict=True)] == [True] * 9


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), counts=st.lists(st.integers(0, 12), min_size=2, max_size=4), inflight=st.integers(1, 4))
def test_loops_and_calls_in_turn_are_one_row_of_runs(seed: int, counts: list[int], inflight: int) -> None:
    of = turning(seeded(seed, hosts=False), seed)
    right = expected_of(of, sum(counts) + len(counts))
    inputs = [inputs_of(of, number) for number in range(len(right))]
    found: list[dict[str, torch.Tensor]] = []
    with sg.compile(of, ops=mix_for(of), device="cpu", executor="eager") as runner:
        for count in counts:
            for result in runner.map(inputs[len(found) : len(found) + count], inflight=inflight):
                found.append({name: tensor.clone() for name, tensor in result.items()})
            result = runner(inputs[len(found)])
            found.append({name: tensor.clone() for name, tensor in result.items()})
    assert [same(one, other) for one, other in zip(found, right, strict=True)] == [True] * len(right)


def test_the_caller_may_be_on_any_stream_at_any_item_and_gets_it_back(on: Any) -> None:
    loop = loop_of(3, apart=False)
    device = on(FakeDevice(3, 0.2))
    made = pipeline(loop, device)
    elsewhere = [device.default, *(device.new_stream("normal", {s.cuda_stream for s in device.streams}) for _ in range(2))]
    draws = random.Random(3)
    for _ in range(3):
        device.set_stream(draws.choice(elsewhere))
        found = []
        began = device.current
        for outputs in made.run(items(loop, 9), inputs_of(loop.program, 0)):
            found.append(outputs)
            device.set_stream(draws.choice(elsewhere))
            left = device.current
            assert device.current is left
        device.set_stream(began)
        assert len(found) == 9
    device.drain()
    made.close()


def test_a_task_among_several_of_a_lane_that_leaves_another_stream_current_is_one_of_those_named(on: Any) -> None:
    device = on(FakeDevice(1))
    other = device.new_stream("normal", ())
    calls: list[int] = []

    def wander(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 8:
            device.set_stream(other)
        return device.allocate([8], torch.int64)

    def stay(x: torch.Tensor) -> torch.Tensor:
        return device.allocate([8], torch.int64)

    graph = sg.Graph("stray")
    graph.task("wander", wander, reads=graph.input("x", "i64[8]"), writes="y", stream="one")
    graph.output(graph.task("stay", stay, reads="y", writes="z", stream="one"))
    loop = plan_loop(graph)
    memory = Memory(loop.program, trace(loop.program)[0], device.location, 0)
    made = Pipeline(loop, resolve(loop.program, None), device, memory)
    with pytest.raises(TaskError, match=r"SG607.*item 7: one of the tasks 'wander', 'stay' @one left another stream"):
        list(made.run(({"x": torch.zeros(8, dtype=torch.int64)} for _ in range(12)), {}))
    assert device.current is device.default
    device.drain()
    assert len(list(made.run(({"x": torch.zeros(8, dtype=torch.int64)} for _ in range(9)), {}))) == 9
    made.close()


@pytest.mark.parametrize("threads", THREADS)
def test_every_look_at_the_current_stream_is_about_the_tasks_of_a_lane_since_the_last_one(threads: str) -> None:
    for seed in range(20):
        loop = loop_of(seed, apart=None if threads == "none" else True)
        made = pipeline(loop, device_for(threads, seed), threads)
        for code in [made.code] if isinstance(made, Pipeline) else made.codes:
            looks = [(int(first), int(last)) for first, last in re.findall(r"astray\((\d+), (\d+)\)", code.source)]
            assert all(before[1] < after[0] for before, after in pairwise(looks)), f"seed {seed}"
            mine = [issue for issue in loop.steady if issue.lane in code.lanes]
            for first, last in looks:
                between = {issue.lane for issue in mine if first <= loop.steady.index(issue) <= last and issue.task not in PSEUDO}
                assert len(between) == 1, f"seed {seed}: {between}"


def test_a_loop_that_begins_on_another_stream_runs_there(on: Any) -> None:
    loop = plan_loop(CHAIN, inflight=2, apart=False)
    right = expected(CHAIN, loop.per_item, 12)  # before copies go to the fake device
    device = on(FakeDevice(3, 0.0))
    made = pipeline(loop, device)
    for _ in range(3):
        found, began = [], device.current
        for outputs in made.run(items(loop, 12), inputs_of(CHAIN, 0)):
            assert device.current is began
            found.append({name: device.clone(tensor) for name, tensor in outputs.items()})  # on the stream that the loop began on
            del outputs
        device.drain()
        assert [same(one, other) for one, other in zip(found, right, strict=True)] == [True] * 12
        device.set_stream(device.new_stream("normal", {stream.cuda_stream for stream in device.streams}))
    made.close()


def test_a_stream_that_is_left_current_is_found_before_the_lane_changes(on: Any) -> None:
    device = on(FakeDevice(1))
    other = device.new_stream("normal", ())
    calls: list[str] = []

    def task(name: str) -> Any:
        def call(x: torch.Tensor) -> torch.Tensor:
            calls.append(name)
            if calls.count("wander") == 8:
                device.set_stream(other)
            return device.allocate([8], torch.int64)

        return call

    graph = sg.Graph("stray")
    graph.task("wander", task("wander"), reads=graph.input("x", "i64[8]"), writes="y", stream="one")
    graph.output(graph.task("stay", task("stay"), reads="y", writes="z", stream="two"))
    loop = plan_loop(graph)
    made = Pipeline(loop, resolve(loop.program, None), device, Memory(loop.program, trace(loop.program)[0], device.location, 0))
    with pytest.raises(TaskError, match=r"SG607.*item 7: task 'wander' @one left another stream"):
        list(made.run(({"x": torch.zeros(8, dtype=torch.int64)} for _ in range(12)), {}))
    assert calls.count("stay") == 7
    made.close()


@pytest.mark.parametrize("threads", [*THREADS[1:], "lanes of the CPU"])
def test_no_thread_begins_a_task_that_stands_behind_an_error(threads: str) -> None:
    device: Any = HostDevice() if threads == "lanes of the CPU" else ThreadedDevice(1)
    calls: list[str] = []

    def failing_host(h: torch.Tensor) -> None:
        calls.append("bad")
        if calls.count("bad") == 8:
            raise Fault

    def slow(x: torch.Tensor) -> torch.Tensor:
        calls.append("slow")
        while calls.count("slow") == 8 and made.under_way.board.error is None:
            time.sleep(0.001)
        return x.clone() if isinstance(device, HostDevice) else device.allocate([8], torch.int64)

    def after(y: torch.Tensor) -> torch.Tensor:
        calls.append("after")
        return y.clone() if isinstance(device, HostDevice) else device.allocate([8], torch.int64)

    graph = sg.Graph("behind")
    graph.task("bad", failing_host, reads=graph.input("h", "i64[8]", device="cpu"), host=True)
    graph.task("slow", slow, reads=graph.input("x", "i64[8]"), writes="y", stream="one")
    graph.output(graph.task("after", after, reads="y", writes="z", stream="one"))
    loop = plan_loop(graph)
    memory = Memory(loop.program, trace(loop.program)[0], device.location, 0)
    made: Any = LanesPipeline(loop, resolve(loop.program, None), memory, None, device, one_issuer=threads == "host and issuer")
    with pytest.raises(TaskError, match=r"item 7: task 'bad' @host"):
        list(made.run((dict.fromkeys("hx", torch.zeros(8, dtype=torch.int64)) for _ in range(12)), {}))
    assert calls.count("after") == 7
    made.close()


@pytest.mark.parametrize("threads", THREADS)
def test_a_task_that_leaves_another_device_current_is_found_in_its_item(threads: str, on: Any) -> None:
    device = on(device_for(threads, 1))
    device.sibling("cuda:1")
    calls: list[int] = []

    def wander(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        result = device.allocate([8], torch.int64)
        if len(calls) == 8:
            device.set_device(1)
        return result

    graph = sg.Graph("stray")
    graph.output(graph.task("wander", wander, reads=graph.input("x", "i64[8]"), writes="y", stream="one"))
    loop = plan_loop(graph)
    memory = Memory(loop.program, trace(loop.program)[0], device.location, 0)
    made: Any = Pipeline(loop, resolve(loop.program, None), device, memory)
    if threads != "none":
        made = LanesPipeline(loop, resolve(loop.program, None), memory, None, device, one_issuer=threads != "lanes")
    with pytest.raises(TaskError, match=r"SG607.*item 7: task 'wander' @one left another stream or device"):
        list(made.run(({"x": torch.zeros(8, dtype=torch.int64)} for _ in range(12)), {}))
    assert (device.current, device.current_device()) == (device.default, 0)
    made.close()


def test_events_of_every_issue_have_names_of_their_own() -> None:
    """A task called like the event of another keeps to its own."""
    graph = sg.Graph("names")
    x = graph.input("x", "i64[8]")
    graph.task("a", "mix", reads=x, writes="p", stream="one")
    graph.task("a_1", "mix", reads=x, writes="q", stream="two")
    graph.task("a_1_1", "mix", reads=["p", "q"], writes="r", stream="main")
    graph.output("r")
    loop = plan_loop(graph, inflight=2)
    assert play(loop, 5, 0.1, 9) == [True] * 9
