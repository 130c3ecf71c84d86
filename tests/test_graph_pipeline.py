"""Loops whose iterations are graphs give, item by item, what the reference gives call by call."""

from __future__ import annotations

import gc
import random
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import streamgraph as sg
from streamgraph.errors import BindingError, RunnerError, TaskError
from streamgraph.executors import device as device_module
from streamgraph.executors import launch
from streamgraph.executors.first_iterations import begins_steadily
from streamgraph.executors.graph_pipeline import GraphPipeline
from streamgraph.executors.memory import Memory
from streamgraph.loop import Back, Loop
from streamgraph.model import HOST, Program
from streamgraph.operators import resolve
from streamgraph.plan_loop import plan_loop
from streamgraph.storages import trace
from tests.fake_device import FakeDevice, ensure_nothing_held
from tests.programs import seeded
from tests.running import inputs_of, reference, same
from tests.support import program
from tests.test_pipeline import expected, items_of, source
from tests.threaded_device import ThreadedDevice


def planned(of: Program, items: frozenset[str], inflight: int, threads: bool = False) -> Loop:
    """A loop as it is planned for graphs: with all lanes the loop's own, and results that are copied."""
    return plan_loop(of, items, inflight=inflight, apart="thread" if threads else False, copied=True)


def dawdling(of: Program, device: FakeDevice, seed: int) -> Any:
    """The device's operators; host tasks take a moment now and then, so that other threads get ahead."""
    working, moments = device.operators(of), random.Random(seed)

    def make(task: Any) -> Any:
        healthy = working(task)

        def call(*positional: Any, **keywords: Any) -> Any:
            time.sleep(moments.choice([0, 0, 0.0002, 0.002]))
            made = healthy(*positional, **keywords)
            time.sleep(moments.choice([0, 0, 0.0002]))
            return made

        return call if task.host else healthy

    return make


def looped(loop: Loop, device: FakeDevice, ops: Any = None) -> GraphPipeline:
    of = loop.program
    operators = resolve(of, ops or device.operators(of))
    bound = {name: tensor for name, tensor in inputs_of(of, 0).items() if name not in loop.per_item}
    return GraphPipeline(loop, operators, device, Memory(of, trace(of)[0], device.location, 0), bound, {})


def play(loop: Loop, seed: int, pace: float, counts: tuple[int, ...]) -> list[bool]:
    """Whether each result of several loops, one after another, is right."""
    threads = loop.caller != HOST
    of, device = loop.program, (ThreadedDevice if threads else FakeDevice)(seed, pace)
    host = {tensor.name for tensor in of.tensors if tensor.device == "cpu"}
    of_host = {o.name for o in of.outputs if o.tensor in host}
    made = looped(loop, device, dawdling(of, device, seed) if threads else None)
    bound = {name: tensor for name, tensor in inputs_of(of, 0).items() if name not in loop.per_item}
    found: list[dict[str, torch.Tensor]] = []
    items = source(of, loop.per_item, sum(counts), loop.inflight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        for count in counts:
            for outputs in made.run((next(items) for _ in range(count)), bound):
                found.append({name: tensor.clone() if name in of_host else tensor for name, tensor in outputs.items()})
                del outputs
        eager = max([min(sum(counts), 1), sum(min(count, made.prologue) for count in counts)])  # one at least warms up
        assert sum(graph.replays for graph in device.graphs) == (sum(counts) - eager) * made.cut.graphs
        assert len(device.graphs) <= made.period * made.cut.graphs
        device.drain()
        made.slots.memory.close()
        made.close()
    right = expected(of, loop.per_item, sum(counts))
    verdicts = [same(result, wanted) for result, wanted in zip(found, right, strict=True)]
    found.clear()
    ensure_nothing_held(device)
    return verdicts


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6), inflight=st.integers(1, 3), pace=st.sampled_from([0.0, 0.3, 0.9]), count=st.integers(0, 14),
    again=st.integers(0, 5), threads=st.booleans(), share=st.sampled_from([0.0, 0.5]),
)  # fmt: skip
def test_a_loop_of_graphs_gives_the_reference_however_the_device_orders_them(
    seed: int, inflight: int, pace: float, count: int, again: int, threads: bool, share: float
) -> None:
    of = seeded(seed)
    loop = planned(of, items_of(of, seed), inflight, threads)
    draws = random.Random(seed)
    blocks = [
        tuple(replace(issue, urgent=issue.lane not in loop.host_lanes and draws.random() < share) for issue in block)
        for block in (*loop.prologue, loop.steady)
    ]
    loop = replace(loop, prologue=tuple(blocks[:-1]), steady=blocks[-1])
    assert play(loop, seed, pace, (count, again)) == [True] * (count + again)


@pytest.mark.parametrize("pace", [0.0, 0.1])
def test_a_host_value_of_the_first_iteration_outlives_the_device_tasks_that_read_it(pace: float) -> None:
    of = seeded(10536, tasks=14)  # its `hv` is read by a task that the host waits for one iteration later
    assert play(planned(of, items_of(of, 10536), inflight=1), 10536, pace, (3, 2)) == [True] * 5


@pytest.mark.slow
@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("seed", range(300))
def test_many_seeded_loops_give_the_reference(seed: int, threads: bool) -> None:
    of = seeded(seed, tasks=14)
    loop = planned(of, items_of(of, seed), 1 + seed % 3, threads)
    assert play(loop, seed, 0.3, (15, 4)) == [True] * 19


# --- by way of a runner ------------------------------------------------------------------------------------------------------------------


COPIES_HERE = launch.run_copy


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    made = ThreadedDevice(3, 0.1)
    monkeypatch.setattr(device_module, "find", lambda name, program=None: made)
    monkeypatch.setattr(launch, "run_copy", made.run_copy)
    return made


def frames(slots: int = 2, hosted: bool = False) -> sg.Graph:
    """Uploads into a ring, state, and a result; with a host task in the middle if asked."""
    graph = sg.Graph("frames")
    graph.input("packet", "i64[8]", device="cpu", pinned=True)
    graph.buffer("frame", "i64[8]", slots=slots)
    graph.buffer("state", "i64[8]")
    graph.copy("upload", "packet", "frame", stream="copy")
    graph.task("work", "mix", reads=["frame", "state"], writes="done", stream="main")
    if hosted:
        graph.value("seen", "i64[8]", device="cpu", pinned=True)
        graph.value("answer", "i64[8]", device="cpu", pinned=True)
        graph.copy("down", "done", "seen", stream="main")
        graph.task("ask", "mix", reads="seen", writes="answer", host=True)
        graph.copy("up", "answer", "back", stream="copy")
        graph.task("follow", "mix", reads=["done", "back"], updates="state", stream="main")
    else:
        graph.task("follow", "mix", reads="done", updates="state", stream="main")
    graph.task("last", "mix", reads=["done", "state"], writes="result", stream="main")
    graph.output("result")
    return graph


def packets(count: int) -> list[torch.Tensor]:
    return [torch.arange(8) + 10 * number for number in range(count)]


def one_by_one(graph: sg.Graph, given: list[torch.Tensor]) -> list[list[int]]:
    runner = reference(graph.program())
    return [runner.run({"packet": packet}).outputs["result"].tolist() for packet in given]


def taken(device: FakeDevice, results: Any) -> list[list[int]]:
    found = [result["result"] for result in results]
    device.drain()
    return [result.tolist() for result in found]


@pytest.mark.parametrize("hosted", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_runner_maps_on_graphs_and_goes_on_with_calls(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, slots: int, hosted: bool
) -> None:
    graph = frames(slots, hosted)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "run_copy", COPIES_HERE)
        right = one_by_one(graph, packets(20))
    with sg.compile(graph, ops=device.operators(graph.program()), device="cuda", executor="graph") as runner:
        found = taken(device, runner.map(packets(12)))
        found += taken(device, [runner(packet=packet) for packet in packets(15)[12:]])
        found += taken(device, runner.map(packets(20)[15:]))
        (pipeline,) = runner._looper._made.values()  # type: ignore[union-attr]
        assert isinstance(pipeline, GraphPipeline)
        assert pipeline.period == max(slots, 2)
    assert found == right


def test_graphs_are_captured_once_for_each_phase_and_no_task_of_a_part_is_called_again(device: FakeDevice) -> None:
    graph, calls = frames(2), list[str]()
    working = device.operators(graph.program())

    def noting(task: Any) -> Any:
        healthy = working(task)

        def call(*positional: Any, **keywords: Any) -> Any:
            calls.append(task.name)
            return healthy(*positional, **keywords)

        return call

    with sg.compile(graph, ops=noting, device="cuda", executor="graph") as runner:
        list(runner.map(packets(30)))
        (pipeline,) = runner._looper._made.values()  # type: ignore[union-attr]
        assert isinstance(pipeline, GraphPipeline)
        assert pipeline.prologue == 0, "the first iterations wait for nothing that later ones do not"
        once = 1 + pipeline.period
        assert [calls.count(name) for name in ("work", "follow", "last")] == [once] * 3
        assert [str(piece.kind) for piece in pipeline.cut.pieces] == ["eager", "part"]  # `upload` reads what the item brings
        assert len(device.graphs) == pipeline.period
        list(runner.map(packets(30)))
        assert calls.count("work") == once
        assert len(device.graphs) == pipeline.period


@pytest.mark.parametrize("at", [1, 4, 9])
def test_an_error_names_the_item_and_the_runner_can_go_on(device: FakeDevice, at: int) -> None:
    graph = frames(2, hosted=True)
    working, calls = device.operators(graph.program()), [0]

    def failing(task: Any) -> Any:
        healthy = working(task)

        def call(*positional: Any, **keywords: Any) -> Any:
            calls[0] += 1
            if calls[0] == at + 1:
                raise ValueError("no signal")
            return healthy(*positional, **keywords)

        return call if task.name == "ask" else healthy

    with sg.compile(graph, ops=failing, device="cuda", executor="graph") as runner:
        given = []
        with pytest.raises(TaskError, match=rf"item {at}: task 'ask'.*no signal") as caught:
            given.extend(runner.map(packets(12)))
        assert isinstance(caught.value.__cause__, ValueError)
        assert len(given) <= at
        assert not any(stream.queue for stream in device.streams), "something is still under way"
        assert len(list(runner.map(packets(12)))) == 12
        assert runner(packet=packets(1)[0])["result"] is not None
        del caught, given
    gc.collect()
    device.drain()
    assert len(device.free) == len(device.blocks)


def failing_when_captured(graph: sg.Graph, device: FakeDevice, broken: list[bool]) -> Any:
    """Operators of which `follow` raises while it is captured, if `broken` says so."""
    working = device.operators(graph.program())

    def make(task: Any) -> Any:
        healthy = working(task)

        def call(*positional: Any, **keywords: Any) -> Any:
            if broken[0] and device.graph is not None:
                raise ValueError("not while I am captured")
            return healthy(*positional, **keywords)

        return call if task.name == "follow" else healthy

    return make


def test_a_task_that_raises_while_its_iteration_is_captured_is_named(device: FakeDevice) -> None:
    graph, broken = frames(2), [True]
    with sg.compile(graph, ops=failing_when_captured(graph, device, broken), device="cuda", executor="graph") as runner:
        with pytest.raises(TaskError, match=r"(?s)item \d: task 'follow'.*not while I am captured.*being captured"):
            list(runner.map(packets(12)))
        assert device.graph is None
        broken[0] = False
        assert len(list(runner.map(packets(12)))) == 12


def test_what_was_captured_before_a_part_failed_is_given_back_and_captured_anew(device: FakeDevice) -> None:
    graph, broken = frames(2, hosted=True), [True]
    with sg.compile(graph, ops=failing_when_captured(graph, device, broken), device="cuda", executor="graph") as runner:
        with pytest.raises(TaskError, match="'follow'"):
            list(runner.map(packets(12)))
        assert len(device.graphs) > 1, "no part was captured before the one that failed"
        assert [made.gone for made in device.graphs[:-1]] == [True] * (len(device.graphs) - 1)
        before, broken[0] = len(device.graphs), False
        assert len(list(runner.map(packets(12)))) == 12
        (pipeline,) = runner._looper._made.values()  # type: ignore[union-attr]
        assert isinstance(pipeline, GraphPipeline)
        assert len(device.graphs) - before == pipeline.period * pipeline.cut.graphs


def test_a_value_stays_where_a_part_lets_go_of_the_one_of_an_earlier_iteration() -> None:
    """`see` waits for `keep` of the iteration before, which was the last to use that one's `v`; this one's is there by then, and needed."""
    of = program(
        "make: x -> v @main | see: s -> y @main | keep: v -> +s @side | use: v -> z @main", inputs="x", buffers="s", outputs="y z"
    )
    loop = planned(of, frozenset({"x"}), inflight=2)
    issues = {issue.task: (place, issue) for place, issue in enumerate(loop.steady)}
    place, see = issues["see"]
    assert Back("v.1", 1) in see.releases_before
    assert issues["make"][0] < place < issues["use"][0]
    assert play(loop, 1, 0.3, (12,)) == [True] * 12


def test_closing_early_drains(device: FakeDevice) -> None:
    graph = frames()
    with sg.compile(graph, ops=device.operators(graph.program()), device="cuda", executor="graph") as runner:
        loop = runner.map(packets(100))
        for _ in range(9):
            next(loop)
        loop.close()  # type: ignore[attr-defined]
        assert not any(stream.queue for stream in device.streams), "something is still under way"
        assert len(list(runner.map(packets(5)))) == 5


def test_items_of_another_shape_than_the_captured_ones_are_refused(device: FakeDevice) -> None:
    made = sg.Graph("shapes")
    made.output(made.task("a", torch.neg, reads=made.input("x"), writes="y"))
    with sg.compile(made, device="cuda", executor="graph") as runner:
        assert len(list(runner.map([torch.zeros(3)] * 6))) == 6
        with pytest.raises(BindingError, match=r"SG613.*item 4.*f32\[4\].*captured with f32\[3\]"):
            list(runner.map([torch.zeros(3)] * 4 + [torch.zeros(4)]))
        with pytest.raises(BindingError, match=r"SG613.*item 2.*i64\[3\].*captured with f32\[3\]"):
            list(runner.map([torch.zeros(3)] * 2 + [torch.zeros(3, dtype=torch.int64)]))


def test_an_item_that_a_task_changes_is_the_callers_own_tensor(device: FakeDevice) -> None:
    graph = sg.Graph("changed")
    graph.task("add", "mix", updates=graph.input("total", "i64[8]"), reads=graph.input("step", "i64[8]"))
    graph.output(graph.task("look", "mix", reads="total", writes="seen"))
    of = graph.program()
    given = [{"total": torch.arange(8) + number, "step": torch.arange(8) * number} for number in range(12)]
    right = [{name: tensor.clone() for name, tensor in item.items()} for item in given]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", COPIES_HERE)
        runner = reference(of)
        for item in right:
            runner.run(item)
    with sg.compile(graph, ops=device.operators(of), device="cuda", executor="graph") as made:
        list(made.map(given))
        device.drain()
    assert [item["total"].tolist() for item in given] == [item["total"].tolist() for item in right]


def busy(device: FakeDevice) -> None:
    """The caller's own stream has a lot to do."""
    for _ in range(200):
        device.put(device.default, lambda: None)


def alone(of: Program, device: FakeDevice, bound: dict[str, torch.Tensor]) -> GraphPipeline:
    """A loop whose items bring nothing, so that little orders it and the caller's stream."""
    loop = planned(of, frozenset(), inflight=2)
    memory = Memory(of, trace(of)[0], device.location, 0)
    return GraphPipeline(loop, resolve(of, device.operators(of)), device, memory, bound, {})


@pytest.mark.parametrize("seed", range(5))
def test_memory_is_written_again_only_behind_the_copies_of_results(seed: int) -> None:
    """The copies are on the caller's stream, behind the caller's slow work, while graphs run ahead."""
    of, device = program("a: x -> +s @one", inputs="x", buffers="s", outputs="s"), FakeDevice(seed, 0.0)
    bound = inputs_of(of, 0)
    made, found = alone(of, device, bound), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        for outputs in made.run(({} for _ in range(14)), bound):
            found.append(outputs)
            busy(device)
        device.drain()
    assert [same(one, right) for one, right in zip(found, expected(of, frozenset(), 14), strict=True)] == [True] * 14
    made.close()


@pytest.mark.parametrize("seed", range(5))
def test_a_later_loop_follows_what_the_caller_has_done_in_between(seed: int) -> None:
    """Its first iterations are the first to be captured, on streams that were not there when it began."""
    of, device = program("a: x -> y @one", inputs="x", outputs="y"), FakeDevice(seed, 0.0)
    x = device.allocate([8], torch.int64)
    made, found = alone(of, device, {"x": x}), []
    for number, count in enumerate((1, 5, 5)):
        busy(device)
        device.copy(x, torch.arange(8) + number)
        found += [(number, outputs["y"]) for outputs in made.run(({} for _ in range(count)), {"x": x})]
    device.drain()
    by_loop = [{tuple(y.tolist()) for of, y in found if of == number} for number in range(3)]
    assert [len(values) for values in by_loop] == [1, 1, 1]
    assert len(set.union(*by_loop)) == 3
    made.close()


@pytest.mark.parametrize("seed", range(5))
def test_results_in_host_memory_are_there_when_they_are_given(seed: int) -> None:
    """Nothing but the host's own wait makes the device come to the download."""
    made, device = sg.Graph("down"), FakeDevice(seed, 0.0)
    made.value("result", "i64[8]", device="cpu", pinned=True)
    made.task("a", "mix", reads=made.input("x", "i64[8]"), updates=made.buffer("s", "i64[8]"), stream="one")
    made.copy("down", "s", "result", stream="two")
    made.output("result")
    of, found = made.program(), []
    bound = inputs_of(of, 0)
    loop = alone(of, device, bound)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "run_copy", device.run_copy)
        found = [outputs["result"].tolist() for outputs in loop.run(({} for _ in range(12)), bound)]
        device.drain()
    assert found == [outputs["result"].tolist() for outputs in expected(of, frozenset(), 12)]
    loop.close()


def test_items_are_let_go_once_their_results_are_taken_and_their_memory_is_used_again(device: FakeDevice) -> None:
    graph, brought = frames(2), list[weakref.ref[torch.Tensor]]()

    def source() -> Iterator[torch.Tensor]:
        for number in range(30):
            packet = torch.arange(8) + number
            brought.append(weakref.ref(packet))
            yield packet
            del packet

    with sg.compile(graph, ops=device.operators(graph.program()), device="cuda", executor="graph") as runner:
        for number, _ in enumerate(runner.map(source())):
            (pipeline,) = runner._looper._made.values()  # type: ignore[union-attr]
            alive = [of() is not None for of in brought]
            assert not any(alive[: max(0, number - pipeline.loop.inflight - pipeline.period)])
    assert len(brought) == 30


def test_a_loop_follows_a_call_on_another_stream(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """State goes on from the call, whose stream has a lot to do."""
    graph = frames(2)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "run_copy", COPIES_HERE)
        right = one_by_one(graph, packets(12))
    device.pace = 0.0
    other = device.new_stream("normal", {stream.cuda_stream for stream in device.streams})
    with sg.compile(graph, ops=device.operators(graph.program()), device="cuda", executor="graph") as runner:
        found = []
        for packet in packets(3):
            device.set_stream(other)
            for _ in range(200):
                device.put(other, lambda: None)
            found.append(runner(packet=packet))
        device.set_stream(device.default)
        found += runner.map(packets(12)[3:])
        assert taken(device, found) == right


def test_loops_that_repeat_too_late_are_refused(device: FakeDevice) -> None:
    made = sg.Graph("late")
    for number, slots in enumerate((7, 11)):
        made.buffer(f"r{number}", "i64[8]", slots=slots)
        made.task(f"w{number}", "mix", reads=made.input(f"x{number}", "i64[8]"), writes=f"r{number}")
        made.output(made.task(f"u{number}", "mix", reads=f"r{number}", writes=f"y{number}"))
    with (
        sg.compile(made, ops=device.operators(made.program()), device="cuda", executor="graph") as runner,
        pytest.raises(RunnerError, match=r"SG615.*repeats after 77 iterations"),
    ):
        runner.map([])


def test_most_loops_need_no_other_first_iterations_and_those_that_do_are_told_apart() -> None:
    loops = [planned(of := seeded(seed), items_of(of, seed), inflight=1 + seed % 3) for seed in range(60)]
    assert sum(begins_steadily(loop) for loop in loops) >= 50
    (loop,) = [loop for loop in loops if len(loop.prologue) > 1 and begins_steadily(loop)][:1]
    first, *rest = loop.prologue
    needed = replace(first[-1], waits=(*first[-1].waits, Back(first[1].task, 0)))
    assert not begins_steadily(replace(loop, prologue=((*first[:-1], needed), *rest)))
    assert not begins_steadily(replace(loop, prologue=(first[:-1], *rest)))
