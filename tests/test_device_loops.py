"""Loops of programs over several devices give, item by item, what the reference gives call by call, however the devices hold work back.

As in `test_device_runs`, with fake devices of one machine; the caller makes items and uses results on the streams that it has on each.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import streamgraph as sg
from streamgraph.builder import Graph
from streamgraph.devices import crosses, of_tasks
from streamgraph.errors import TaskError
from streamgraph.executors import flat
from streamgraph.executors.compiled import CompiledExecutor
from streamgraph.executors.direct import CudaDirect
from streamgraph.executors.generate_loop import generate_loop
from streamgraph.executors.lanes import LanesExecutor
from streamgraph.executors.lanes_pipeline import LanesPipeline, threads_of
from streamgraph.executors.loop_streams import LoopStreams
from streamgraph.executors.memory import Memory
from streamgraph.executors.pipeline import Pipeline
from streamgraph.executors.slots import Slots
from streamgraph.executors.stepwise import Stepwise
from streamgraph.iterations import PSEUDO, at, kind_of
from streamgraph.loop import Loop
from streamgraph.looping import Looper
from streamgraph.model import HOST, MAIN, Program
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.plan_loop import plan_loop
from streamgraph.render.bands import is_caller
from streamgraph.storages import trace
from streamgraph.switches import targets_of
from streamgraph.verify import verify
from tests.fake_device import FakeDevice, ensure_nothing_held, standing_in
from tests.programs import mix_for, random_devices, there_and_back, turning, two_stages
from tests.running import Fault, failing, inputs_of, same
from tests.test_device_runs import Caller, standing
from tests.test_pipeline import expected, items_of
from tests.threaded_device import ThreadedDevice

pytestmark = pytest.mark.usefixtures("copies")
THREADS = ("none", "host and issuer", "lanes")


def drawn(seed: int, devices: int = 2) -> Program:
    return turning(random_devices(random.Random(seed).randrange, devices), seed)


def loop_of(seed: int, devices: int, inflight: int, apart: bool | None = None) -> Loop:
    of = drawn(seed, devices)
    return plan_loop(of, items_of(of, seed), inflight=inflight, apart=apart)


def pipeline(loop: Loop, device: FakeDevice, threads: str, ops: Any = None) -> Pipeline | LanesPipeline:
    of = loop.program
    operators = resolve(of, ops or device.operators(of))
    memory = Memory(of, trace(of)[0], device.location, 0)
    if threads == "none":
        return Pipeline(loop, operators, device, memory)
    return LanesPipeline(loop, operators, memory, None, device, one_issuer=threads == "host and issuer")


def on(loop: Loop, seed: int, pace: float, threads: str) -> FakeDevice:
    """The first device of a fake machine with all that the program names."""
    device = (FakeDevice if threads == "none" else ThreadedDevice)(seed, pace)
    for name in loop.program.devices[1:]:
        device.sibling(name)
    standing_in.append(device)
    return device


def brought(loop: Loop, caller: Caller, count: int) -> Iterator[dict[str, torch.Tensor]]:
    """Items as a caller makes them: on the stream of each device, by work that may be under way; pinned tensors are refilled in turn."""
    of = loop.program
    pinned = [inputs_of(of, 0) for _ in range(loop.inflight)]
    for number in range(count):
        item = {name: tensor for name, tensor in caller.inputs(number + 1).items() if name in loop.per_item}
        for name in item:
            if of.tensor_named[name].device == "cpu":
                item[name] = pinned[number % loop.inflight][name].copy_(item[name])
        yield item
        del item


def drop_all(results: Iterator[Any]) -> int:
    """Take each result and drop it; how many there were."""
    count = 0
    for outputs in results:
        count += 1
        del outputs
    return count


def play(
    loop: Loop, seed: int, pace: float, count: int, threads: str = "none", reach: bool = True, shared: bool = False, slow: str = ""
) -> list[bool]:
    """Whether each item's results, which the caller uses on the stream of their device, changes and drops, are what the reference gives.
    The lane `slow` runs only where no other one can."""
    device = on(loop, seed, pace, threads)
    for other in device.family.values():
        other.reach, other.shared = reach, shared
    caller, made = Caller(loop.program, device), pipeline(loop, device, threads)
    device.slow = lambda: made.streams.streams.get(slow)
    before, found = standing(device), []
    bound = {name: tensor for name, tensor in caller.inputs(0).items() if name not in loop.per_item}
    for outputs in made.run(brought(loop, caller, count), bound):
        assert standing(device) == before
        found.append({name: caller.read(name, tensor) for name, tensor in outputs.items()})
        caller.change(outputs)
        del outputs
    assert standing(device) == before
    device.drain()
    made.slots.memory.close()
    made.close()
    del bound
    standing_in.clear()
    verdicts = [same(result, right) for result, right in zip(found, expected(loop.program, loop.per_item, count), strict=True)]
    ensure_nothing_held(device)
    return verdicts


# --- the same results --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", THREADS)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), devices=st.integers(2, 3), inflight=st.integers(1, 3), pace=st.sampled_from([0.0, 0.3, 0.9]),
    count=st.integers(0, 12), reach=st.booleans(), shared=st.booleans(), part=st.sampled_from([1, 3, 400]),
    apart=st.sampled_from([None, True, False]),
)  # fmt: skip
def test_random_loops_over_devices_give_the_reference_however_streams_hold_their_work_back(
    threads: str, seed: int, devices: int, inflight: int, pace: float, count: int, reach: bool, shared: bool, part: int,
    apart: bool | None,
) -> None:  # fmt: skip
    loop = loop_of(seed, devices, inflight, apart if threads == "none" else True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat, "PART", part)
        assert play(loop, seed, pace, count, threads, reach, shared) == [True] * count


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("items", [{"hx"}, {"hx", "w0", "w1"}, {"w1"}, set()])
def test_a_pipeline_over_two_devices_gives_the_reference(threads: str, items: set[str]) -> None:
    loop = plan_loop(two_stages(2), frozenset(items), inflight=2, apart=None if threads == "none" else True)
    for seed in range(4):
        assert play(loop, seed, 0.2, 9, threads) == [True] * 9


# --- the fake machine can say no ---------------------------------------------------------------------------------------------------------


def staged() -> Program:
    """Two stages with a ring between them on the second device, a way back, state on the first, and results on both and on the host."""
    graph = Graph("staged")
    graph.input("hx", "i64[8]", device="cpu", pinned=True)
    graph.input("x", "i64[8]", device="cuda:1")
    graph.input("w", "i64[8]", device="cuda:0")
    graph.buffer("inbox", "i64[8]", slots=2, device="cuda:1")
    graph.buffer("state", "i64[8]", device="cuda:0")
    graph.value("back", "i64[8]", device="cuda:0")
    graph.value("y", "i64[8]", device="cpu", pinned=True)
    graph.copy("load", "hx", "a")
    graph.task("first", "mix", reads=["a", "w"], writes="b", stream="one")
    graph.copy("hop", "b", "inbox")
    graph.task("second", "mix", reads=["inbox", "x"], writes="c", stream="two")
    graph.copy("home", "c", "back")
    graph.task("third", "mix", updates="state", reads="back", writes="d", stream="three")
    graph.copy("store", "c", "y")
    for name in ("c", "d", "y"):
        graph.output(name)
    return graph.program()


def all_pass(loop: Loop, seeds: int, threads: str = "none", **machine: bool) -> bool:
    """Whether all is right, whichever lane is slow."""
    lanes = ["", *loop.device_of]
    return all(all(play(loop, seed, 0.1, 10, threads, slow=lanes[seed % len(lanes)], **machine)) for seed in range(seeds))


def less(loop: Loop, task: str, **changes: Any) -> Loop:
    return replace(loop, steady=tuple(replace(issue, **changes) if issue.task == task else issue for issue in loop.steady))


def test_any_one_wait_taken_out_of_the_steady_state_is_missed_by_the_verifier_and_gives_a_wrong_result() -> None:
    loop = plan_loop(staged(), frozenset({"hx", "x"}), inflight=2)
    assert all_pass(loop, 20)
    on_host, tried, count = loop.host_events, [], len(loop.prologue) + 2 * (loop.reach + 1) + loop.inflight
    delivered = next(issue.waits for issue in loop.steady if issue.task == "deliver")
    for issue in loop.steady:
        for back in issue.waits:
            mutant = less(loop, issue.task, waits=tuple(other for other in issue.waits if other != back))
            missed = bool(verify(mutant.schedule(count)))
            if back.name in on_host:
                continue  # the one issuing thread is past it
            assert missed or issue.task == "source", f"nobody misses {back} of {issue.task}"
            if missed:
                tried.append((back.name, issue.task))
                if kind_of(issue.task) == "result" and back in delivered:
                    continue  # the host has waited for it when the caller gets the results
                assert not all_pass(mutant, 80), f"nobody noticed that {issue.task} no longer waits for {back}"
    assert {("first", "hop"), ("hop", "second"), ("home", "third"), ("item:1", "second"), ("third", "home")} <= set(tried)
    assert {"result", "result:1"} <= {later for _, later in tried}


def test_a_task_is_launched_on_a_lane_of_its_device_in_every_iteration() -> None:
    loop = plan_loop(staged(), frozenset({"hx", "x"}))
    moved = less(loop, "second", lane=next(issue.lane for issue in loop.steady if issue.task == "first"))
    assert any("belongs to cuda:1" in violation.message for violation in verify(moved.schedule(6)))


@pytest.mark.parametrize("task", ["result", "result:1"])
def test_a_result_that_is_not_recorded_for_the_callers_stream_of_its_device_is_overwritten(task: str) -> None:
    loop = plan_loop(staged(), frozenset({"hx"}))
    assert next(issue.record_streams for issue in loop.steady if issue.task == task) == (("d.1",) if task == "result" else ("c.1",))
    mutant = less(loop, task, record_streams=())
    assert verify(mutant.schedule(8))
    assert not all_pass(mutant, 60)


@pytest.mark.parametrize(("method", "machine"), [("fork", {}), ("arrived", {"reach": False}), ("give_back", {"shared": True})])
def test_what_copies_and_further_streams_of_the_caller_need_is_done(method: str, machine: dict[str, bool], monkeypatch: Any) -> None:
    loop = plan_loop(staged(), frozenset({"hx"}), inflight=2)
    assert all_pass(loop, 10, **machine)
    monkeypatch.setattr(LoopStreams, method, lambda *arguments: None)
    assert not all_pass(loop, 60, **machine)


def test_results_that_are_due_when_a_loop_has_ended_are_kept_for_the_callers_streams_too(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = plan_loop(staged(), frozenset({"hx"}), inflight=3)
    assert all_pass(loop, 20, shared=True)
    monkeypatch.setattr(Stepwise, "hand_over", lambda steps, iteration: None)
    assert not all_pass(loop, 60, shared=True)


# --- what CUDA is asked for --------------------------------------------------------------------------------------------------------------


class Thread:
    """Stands in for what a thread has current in CUDA: a stream on each device, called by its lane and device, and a device."""

    def __init__(self, loop: Loop, now: dict[str, Any], active: str) -> None:
        self.loop, self.now, self.active, self.home = loop, now, active, loop.device_of
        self.lane_of = {issue.task: issue.lane for issue in loop.steady}
        self.called: list[str] = []

    def value(self, symbol: tuple[str, ...], slots: Slots, tasks: Any) -> Any:
        match symbol:
            case ("function", number):
                return partial(self.task, tasks[int(number)])
            case ("set_stream",):
                return self.set_stream
            case ("current",):
                return lambda device: (self.now[device],)
            case ("current_device",):
                return lambda: self.active
            case ("device",):
                return self.loop.program.devices[0]
            case ("device", name):
                return name
            case ("id", lane):
                return (lane, self.home[lane])
            case ("id", lane, device):
                return (lane, device)
            case ("astray",):
                return self.astray
            case ("cells", _):
                return defaultdict(lambda: torch.zeros(8))
            case ("buffer" | "view" | "constant", *_):
                return torch.zeros(8)
            case _:
                return lambda *arguments: None

    def set_stream(self, stream: Any, device: str, kind: Any) -> None:
        self.now[device], self.active = stream, device

    def task(self, task: Any, *arguments: Any, **named: Any) -> Any:
        lane = MAIN if task.host else self.lane_of[task.name]
        assert (self.active, self.now[self.active]) == (self.home[lane], (lane, self.home[lane])), f"{task.name} found another stream"
        ends = crosses(task, self.loop.program)
        assert ends is None or self.now[ends[1]] == (lane, ends[1]), f"{task.name} found another stream where it writes"
        self.called.append(task.name)
        returned = sum(len(entry.tensors) for entry in task.writes) if "out" not in named else 0
        return torch.zeros(8) if returned < 2 else (torch.zeros(8),) * returned

    def astray(self, first: int, last: int) -> None:
        raise AssertionError("every stream is where it was left")


@pytest.mark.parametrize("threads", THREADS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 3), part=st.sampled_from([1, 3, 400]), apart=st.booleans())
def test_on_cuda_tasks_and_copies_find_the_streams_of_their_lane_current_on_both_devices(
    threads: str, seed: int, devices: int, part: int, apart: bool
) -> None:
    loop = loop_of(seed, devices, 2, apart or threads != "none")
    of = loop.program
    slots = Slots(loop, Memory(of, trace(of)[0], torch.device("cpu"), 0))
    operators = resolve(of, mix_for(of))
    named = {name: SimpleNamespace(location=SimpleNamespace(index=name)) for name in of.devices}
    cuda = CudaDirect(named[of.devices[0]], SimpleNamespace(devices=named, home=loop.device_of))  # type: ignore[arg-type]
    alone, called, callers = threads == "none", [], {device: (MAIN, device) for device in of.devices}
    for lanes in [tuple(lane.name for lane in loop.lanes)] if alone else threads_of(loop, threads != "lanes"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flat, "PART", part)
            made = generate_loop(slots, operators, cuda, lanes, None if alone else frozenset())
        thread = Thread(loop, dict(callers), of.devices[0])
        if not alone and len(lanes) == 1 and lanes[0] in loop.device_of:
            (lane,) = lanes
            thread.now.update({target: (lane, target) for task, target in targets_of(of).items() if thread.lane_of[task] == lane})
            thread.active = loop.device_of[lane]
            thread.now[thread.active] = (lane, thread.active)
        elif not alone and HOST not in lanes:
            thread.now, thread.active = dict.fromkeys(of.devices), of.devices[-1]  # nobody knows
        names = {name: thread.value(symbol, slots, of.tasks) for name, symbol in made.symbols}
        exec(compile(made.text, "text", "exec"), names)
        for number in range(made.parts):
            item = dict.fromkeys(loop.per_item, torch.zeros(8))
            names[f"part{number}"](*((item,) if alone else (9, SimpleNamespace(limit=(99, 0)))))
        called += thread.called
        if alone:
            assert (thread.now, thread.active) == (callers, of.devices[0])
    assert sorted(called) == sorted(task.name for task in of.tasks)


# --- only the planned calls, and steady memory -------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 3))
def test_an_iteration_records_and_waits_as_planned_and_follows_what_it_drops(seed: int, devices: int) -> None:
    loop = loop_of(seed, devices, 2)
    if any(task.host for task in loop.program.tasks):
        return
    device = on(loop, seed, 0.3, "none")
    caller, made = Caller(loop.program, device), pipeline(loop, device, "none")
    bound = {name: tensor for name, tensor in caller.inputs(0).items() if name not in loop.per_item}
    received = {number for number in made.streams.received}
    steady = [issue for issue in loop.steady if issue.lane not in loop.host_lanes]
    drops = [value for issue in steady for value in (*issue.releases_before, *issue.releases_after)]
    further = sum(made.slots.number[value.name] in received for value in drops)
    first = len(loop.prologue) + 2
    items = brought(loop, caller, first + 6)
    logs: list[dict[str, int]] = []

    def pulled() -> Iterator[dict[str, torch.Tensor]]:
        for item in items:
            device.log.clear()
            yield item

    for outputs in made.run(pulled(), bound):
        logs.append({call: device.log.count(call) for call in ("record", "wait", "record_stream")})
        del outputs
    for found in logs[first : -loop.inflight]:
        assert found["record"] == sum(issue.record for issue in steady) + further
        assert found["wait"] == sum(back.name not in loop.host_events for issue in steady for back in issue.waits) + further
        assert found["record_stream"] == sum(len(issue.record_streams) for issue in steady)
    device.drain()
    made.slots.memory.close()
    made.close()


@pytest.mark.parametrize("threads", THREADS)
def test_memory_of_all_devices_streams_and_events_do_not_grow_with_the_number_of_items_or_loops(threads: str) -> None:
    loop = plan_loop(staged(), frozenset({"hx", "x"}), inflight=2, apart=True)
    device = on(loop, 1, 0.0, threads)  # nothing runs before the host waits for it
    caller, made = Caller(loop.program, device), pipeline(loop, device, threads)
    counts = []
    for count in (8, 40, 40):
        bound = {"w": caller.inputs(0)["w"]}
        drop_all(made.run(brought(loop, caller, count), bound))
        del bound
        counts.append((device.events, len(device.streams), len([block for block in device.blocks if block.owner is not None])))
    assert counts[0][:2] == counts[1][:2] == counts[2][:2]
    assert counts[2][2] <= 30  # some ten for the caller's items and bound inputs, and up to four of each value
    device.drain()
    made.close()


# --- ways out ----------------------------------------------------------------------------------------------------------------------------


def at_rest(device: FakeDevice, made: Any) -> bool:
    """Whether no work of the loop is queued on any device."""
    callers = {id(other.current) for other in device.family.values()}
    return not any(callable(item) for stream in made.streams.at.values() if id(stream) not in callers for item in stream.queue)


@pytest.mark.parametrize("threads", THREADS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 3), number=st.integers(0, 9), data=st.data())
def test_after_an_error_in_an_item_all_devices_are_at_rest_and_the_callers_streams_are_current(
    threads: str, seed: int, devices: int, number: int, data: st.DataObject
) -> None:
    loop = loop_of(seed, devices, 2, None if threads == "none" else True)
    tasks = [task.name for task in loop.program.tasks if not task.is_copy]
    if not tasks:
        return
    broken: dict[str, BaseException] = {}
    device = on(loop, seed, 0.2, threads)
    caller = Caller(loop.program, device)
    made = pipeline(loop, device, threads, failing(loop.program, broken, device.operators(loop.program)))
    before, task = standing(device), data.draw(st.sampled_from(tasks))
    bound = {name: tensor for name, tensor in caller.inputs(0).items() if name not in loop.per_item}

    def breaking() -> Iterator[dict[str, torch.Tensor]]:
        for place, item in enumerate(brought(loop, caller, 10)):
            if place == number:
                broken[task] = Fault("broken")
            yield item
            del item

    with pytest.raises(TaskError, match=rf"item \d+: task '{task}'"):
        drop_all(made.run(breaking(), bound))
    assert at_rest(device, made)
    assert standing(device) == before
    broken.clear()
    assert drop_all(made.run(brought(loop, caller, 9), bound)) == 9
    device.drain()
    made.slots.memory.close()
    made.close()
    del bound
    ensure_nothing_held(device)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("taken", [1, 4, 9])
def test_a_loop_that_is_closed_early_leaves_all_devices_at_rest_and_nothing_held(threads: str, taken: int) -> None:
    loop = plan_loop(staged(), frozenset({"hx", "x"}), inflight=3, apart=True)
    device = on(loop, 3, 0.1, threads)
    caller, made = Caller(loop.program, device), pipeline(loop, device, threads)
    bound, before = {"w": caller.inputs(0)["w"]}, standing(device)
    running = made.run(brought(loop, caller, 20), bound)
    for _ in range(taken):
        next(running)
    running.close()  # type: ignore[attr-defined]
    assert at_rest(device, made)
    assert standing(device) == before
    device.drain()
    made.slots.memory.close()
    made.close()
    del bound, running
    ensure_nothing_held(device)


STRAYS = [(threads, item, leaves) for threads in THREADS for item in (0, 7) for leaves in ("device", "own stream")]
# Step by step, and on a thread per lane, who issues next on that device makes its own stream current: only generated code has to look.
STRAYS += [("none", 7, "other stream"), ("host and issuer", 7, "other stream")]


@pytest.mark.parametrize(("threads", "item", "leaves"), STRAYS)
def test_a_task_that_leaves_another_device_or_stream_current_is_named_with_its_item(threads: str, item: int, leaves: str) -> None:
    loop = plan_loop(staged(), frozenset({"hx", "x"}), apart=True)
    device = on(loop, 1, 0.3, threads)
    caller, working, calls = Caller(loop.program, device), device.operators(loop.program), []
    stray = {number: other.new_stream("normal", {s.cuda_stream for s in other.streams}) for number, other in device.family.items()}

    def operators(task: Any) -> Any:
        healthy = working(task)

        def call(*arguments: Any, **named: Any) -> Any:
            result = healthy(*arguments, **named)
            if task.name == "second":
                calls.append(1)
                if len(calls) == item + 1:
                    if leaves == "device":
                        device.set_device(0)
                    else:
                        device.set_stream(stray[int(leaves == "own stream")])
                        device.set_device(1)
            return result

        return call

    made, before = pipeline(loop, device, threads, operators), standing(device)
    bound = {"w": caller.inputs(0)["w"]}
    with pytest.raises(TaskError, match=f"SG607.*item {item}: task 'second'"):
        drop_all(made.run(brought(loop, caller, 12), bound))
    assert standing(device) == before
    device.drain()
    made.close()


def test_the_caller_may_be_on_any_stream_and_device_at_any_item_and_gets_them_back() -> None:
    loop = plan_loop(staged(), frozenset({"hx"}))
    device = on(loop, 3, 0.2, "none")
    caller, made, draws = Caller(loop.program, device), pipeline(loop, device, "none"), random.Random(3)
    inputs = caller.inputs(0)
    places = [
        other.new_stream("normal", {s.cuda_stream for s in device.streams}) for other in device.family.values() for _ in range(2)
    ]  # fmt: skip
    for _ in range(3):
        for stream in draws.sample(places, 2):
            device.set_stream(stream)
        items = ({"hx": torch.full((8,), number)} for number in range(9))
        for outputs in made.run(items, {"x": inputs["x"], "w": inputs["w"]}):
            device.set_stream(draws.choice(places))
            device.set_device(draws.randrange(2))
            left = standing(device)
            del outputs
            assert standing(device) == left
    device.drain()
    made.close()


def test_pseudo_tasks_lie_on_the_devices_of_what_they_bring_and_take() -> None:
    loop = plan_loop(staged(), frozenset({"hx", "x"}))
    written = loop.schedule(4)
    device_of = dict(zip((task.name for task in written.program.tasks), of_tasks(written.program), strict=True))
    assert {kind_of(name.partition("#")[0]) for name in device_of} >= PSEUDO - {"item"}
    assert device_of[at("item:1", 0)] == device_of[at("result:1", 0)] == "cuda:1"
    assert device_of[at("result", 0)] == "cuda:0"
    assert all(is_caller(task) == (kind_of(task.name.partition("#")[0]) in PSEUDO) for task in written.program.tasks)
    assert loop.callers == (("cuda:1", "main.1"),)
    assert written.device_of["main.1"] == "cuda:1"


@pytest.mark.parametrize("count", range(1, 6))
def test_what_a_host_task_makes_on_each_device_is_handed_over_behind_it(count: int) -> None:
    graph = Graph("made")
    graph.input("hx", "i64[8]", device="cpu")
    for number in range(2):
        graph.value(f"y{number}", "i64[8]", device=f"cuda:{number}")
        graph.task(f"make{number}", "mix", reads="hx", writes=f"y{number}", host=True)
        graph.output(f"y{number}")
    assert verify(plan_loop(graph, inflight=3).schedule(count)) == ()


def test_the_loop_of_there_and_back_has_a_lane_for_each_way() -> None:
    of = there_and_back()
    lanes = {issue.task: issue.lane for issue in plan_loop(of).steady}
    assert (lanes["there"], lanes["again"]) == ("out", "home")
    free = replace(of.program(), tasks=tuple(replace(task, stream=None) for task in of.program().tasks))
    loop = plan_loop(free)
    lanes = {issue.task: issue.lane for issue in loop.steady}
    assert (lanes["there"], lanes["again"]) == ("p2p.0.1", "p2p.1.0")
    assert (loop.device_of["p2p.0.1"], loop.device_of["p2p.1.0"]) == ("cuda:0", "cuda:1")


# --- on the CPU --------------------------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 3), inflight=st.integers(1, 3))
def test_on_the_cpu_the_same_loop_gives_the_reference_on_every_executor(seed: int, devices: int, inflight: int) -> None:
    of = drawn(seed, devices)
    items, bound = items_of(of, seed), inputs_of(of, 0)
    right = expected(of, items, 9)
    for executor in ("lanes", "eager", "sequential"):
        known = {name: tensor.clone() for name, tensor in bound.items() if name not in items}
        with sg.compile(of, known, ops=mix_for(of), device="cpu", executor=executor) as runner:  # type: ignore[arg-type]
            given = [{name: tensor for name, tensor in inputs_of(of, number + 1).items() if name in items} for number in range(9)]
            found = [{name: tensor.clone() for name, tensor in result.items()} for result in runner.map(given, inflight=inflight)]
        assert [same(one, other) for one, other in zip(found, right, strict=True)] == [True] * 9


# --- runners -----------------------------------------------------------------------------------------------------------------------------


def test_loops_and_calls_of_a_runner_in_turn_are_one_row_of_runs_over_devices() -> None:
    of = staged()
    for executor in ("eager", "lanes"):
        device = on(plan_loop(of), 4, 0.2, "none" if executor == "eager" else "lanes")
        made = make(of, executor, device)
        looper = Looper(made.schedule, made, device.operators(of), device.location, ())
        caller, names, found = Caller(of, device), tuple(tensor.name for tensor in of.inputs), []
        pipeline = looper.pipeline(frozenset(names), 2)
        for count in (7, 0, 1, 8):
            begun = len(found)
            for outputs in looper.results(pipeline, (caller.inputs(begun + number + 1) for number in range(count)), {}, names):
                found.append({name: caller.read(name, tensor) for name, tensor in outputs.items()})
                del outputs
            outputs = made.run(caller.inputs(len(found) + 1)).outputs
            found.append({name: caller.read(name, tensor) for name, tensor in outputs.items()})
            del outputs
        device.drain()
        looper.close()
        made.close()
        standing_in.clear()
        right = expected(of, frozenset(names), len(found))
        assert [same(one, other) for one, other in zip(found, right, strict=True)] == [True] * 20
        ensure_nothing_held(device)


def make(of: Program, executor: str, device: FakeDevice) -> CompiledExecutor | LanesExecutor:
    schedule, operators = plan(of), resolve(of, device.operators(of))
    return CompiledExecutor(schedule, operators, device) if executor == "eager" else LanesExecutor(schedule, operators, device=device)
