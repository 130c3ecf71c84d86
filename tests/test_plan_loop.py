"""Loops: the steady state has the waits that planning all iterations at once gives, and none that can be spared."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import pytest

from streamgraph.builder import Graph
from streamgraph.errors import BindingError, SpecError
from streamgraph.hazards import build_dag, find_hazards
from streamgraph.iterations import SOURCE, split, unroll
from streamgraph.loop import Issue, Loop
from streamgraph.looping import planner_options
from streamgraph.passes.assign import Assignment
from streamgraph.passes.sync import synchronize
from streamgraph.plan import plan
from streamgraph.plan_loop import plan_loop
from streamgraph.schedule import HostWait, Launch, Schedule, Wait
from streamgraph.storages import trace
from streamgraph.verify import verify
from tests.programs import reporting, seeded, turning
from tests.support import graph


def buckets() -> Graph:
    graph = Graph("buckets")
    graph.buffer("bucket", "f32[16]", slots=2)
    graph.task("bw", "bw", writes="bucket", stream="main")
    graph.task("red", "red", updates="bucket", stream="comm")
    return graph


def steady(loop: Loop, task: str) -> Issue:
    return next(issue for issue in loop.steady if issue.task == task)


def test_gradient_buckets_keep_distance_two() -> None:
    """A plan in which bw waits for the reduction just before it has lost all overlap (DeepSpeed#5545)."""
    loop = plan_loop(buckets())
    assert [str(wait) for wait in steady(loop, "bw").waits] == ["red[-2]"]
    assert [str(wait) for wait in steady(loop, "red").waits] == ["bw"]


def test_one_slot_is_the_plain_loop() -> None:
    graph = Graph("buckets")
    graph.buffer("bucket", "f32[16]", slots=1)
    graph.task("bw", "bw", writes="bucket", stream="main")
    graph.task("red", "red", updates="bucket", stream="comm")
    assert [str(wait) for wait in steady(plan_loop(graph), "bw").waits] == ["red[-1]"]


def test_a_loop_for_graphs_has_the_urgent_launches_of_a_single_run() -> None:
    of = graph("a: x -> y | b: y -> z | c: x -> v | d: z v -> w", inputs="x", outputs="w", cost=100.0)
    loop = plan_loop(of, policy="urgent", issue="captured")
    assert plan(of, policy="urgent", issue="captured").urgent == {"a", "b", "d"}
    for block in (*loop.prologue, loop.steady):
        assert {issue.task for issue in block if issue.urgent} == {"a", "b", "d"} & {issue.task for issue in block}
    written = loop.schedule(3)
    assert {split(task)[0] for task in written.urgent} == {"a", "b", "d"}
    assert verify(written) == ()


@pytest.mark.parametrize("slots", [5, 60, 130])
def test_a_deep_ring_reaches_as_far_back_as_it_is_deep(slots: int) -> None:
    graph = Graph("deep")
    graph.buffer("bucket", "f32[16]", slots=slots)
    graph.task("bw", "bw", writes="bucket", stream="main")
    graph.task("red", "red", updates="bucket", stream="comm")
    assert [str(wait) for wait in steady(plan_loop(graph), "bw").waits] == [f"red[-{slots}]"]


def test_state_orders_iteration_after_iteration() -> None:
    graph = Graph("state")
    graph.buffer("state", "f32[4]")
    graph.task("a", "f", updates="state", stream="one")
    graph.task("b", "f", updates="state", stream="two")
    loop = plan_loop(graph)
    assert [str(wait) for wait in steady(loop, "a").waits] == ["b[-1]"]


def test_a_ring_over_a_key_goes_on_turning_across_iterations() -> None:
    """Three layers in two slots: layer 0 of an iteration takes the slot that layer 1 of the one before had."""
    graph = Graph("layers")
    host = graph.input("host", "f32[4]", each={"layer": 3}, device="cpu", pinned=True)
    w = graph.buffer("w", "f32[4]", each={"layer": 3}, slots=2, over="layer")
    for layer in range(3):
        graph.copy(f"load@{layer}", host[layer], w[layer], stream="copy")
        graph.task(f"use@{layer}", "f", reads=w[layer], stream="main")
    loop = plan_loop(graph, frozenset())
    assert [str(wait) for wait in steady(loop, "load@0").waits] == ["use@1[-1]"]
    assert [str(wait) for wait in steady(loop, "load@2").waits] == ["use@0"]


def test_an_item_that_is_no_input_is_named_with_those_that_are() -> None:
    graph = Graph("items")
    graph.output(graph.task("t", "f", reads=graph.input("x", "f32[4]"), writes="y"))
    with pytest.raises(BindingError, match=r"is to bring 'z', which is no input\n.*the inputs are: x"):
        plan_loop(graph, frozenset({"x", "z"}))


@pytest.mark.parametrize("name", ["item", "source", "result", "deliver"])
def test_a_task_with_the_name_of_what_the_caller_does_is_told_to_have_another(name: str) -> None:
    graph = Graph("names")
    graph.output(graph.task(name, "f", reads=graph.input("x", "f32[4]"), writes="y"))
    with pytest.raises(SpecError, match=f"SG204.*a loop cannot have a task '{name}'"):
        plan_loop(graph)


def test_a_value_that_nothing_would_let_go_is_waited_for_inflight_iterations_later() -> None:
    """Else its lane would never learn of the use, and memory would grow with every item."""
    graph = Graph("prefetch")
    graph.input("c", "f32[4]", device="cpu", pinned=True)
    graph.copy("on", "c", "w", stream="copy")
    graph.task("fw", "f", reads="w", stream="main")
    loop = plan_loop(graph, frozenset(), inflight=3)
    assert [str(drop) for drop in steady(loop, "on").releases_before] == ["w.1[-3]"]
    assert [str(wait) for wait in steady(loop, "on").waits] == ["fw[-3]"]


def written_out(loop: Loop, count: int) -> set[tuple[str, str]]:
    """(earlier, later) of every wait inside the loop when all iterations are planned at once, on the same lanes in the same order."""
    written = unroll(loop.program, count, loop.per_item, loop.inflight, loop.main, loop.caller)
    made = written.program
    lane = {issue.task: issue.lane for issue in loop.steady}
    index = {each.name: number for number, each in enumerate(loop.lanes)}
    places = tuple(
        index["host"] if task.host else index[lane.get(split(task.name)[0], "main")] for task in made.tasks
    )  # fmt: skip
    rank = {issue.task: number for number, issue in enumerate(loop.steady)}
    issued = [name for block in written.blocks for name in sorted(block, key=lambda name: rank[split(name)[0]])]
    order = tuple(made.index_of_task[name] for name in issued)
    accesses = trace(made)[0]
    zeros = (0.0,) * len(made.tasks)
    assignment = Assignment(order, places, loop.lanes, zeros, zeros)
    # What the caller is given by record_stream is bounded: an item is pulled when the outputs of inflight + 1 before exist.
    position = {name: place for place, name in enumerate(issued, 1)}
    handed = [(accesses.storages[number].producer, number) for number in accesses.output_storages if not accesses.storages[number].host]
    paced = [
        (position[made.tasks[producer].name], position[source], number)
        for producer, number in handed
        if producer is not None
        and places[producer] not in (0, index["host"])
        and (source := f"source#{split(made.tasks[producer].name)[1] + loop.inflight + 1}") in position
    ]
    sync = synchronize(assignment, build_dag(made, find_hazards(made, accesses)), accesses, tuple(paced))
    names = ["entry", *issued]
    return {(names[e], names[n]) for n in range(1, len(names)) for e in sync.waits[n]}


def waits_of(schedule: Schedule, upto: int) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    steps = schedule.steps
    for number, step in enumerate(steps):
        if isinstance(step, Wait | HostWait):
            lane = step.lane if isinstance(step, Wait) else "host"
            later = next((s.task for s in steps[number:] if isinstance(s, Launch) and s.lane == lane), "exit")
            if 0 <= split(later)[1] < upto:
                found.add((step.event, later))
    return found


@pytest.mark.parametrize("block", range(4))
def test_a_loop_has_the_waits_of_the_program_written_out_and_those_that_bound_memory(block: int) -> None:
    for seed in range(block * 15, block * 15 + 15):
        of = turning(seeded(seed, tasks=8), seed) if seed % 2 else seeded(seed, tasks=8)
        draws = random.Random(seed)
        items = frozenset(tensor.name for tensor in of.inputs if draws.random() < 0.6)
        loop = plan_loop(of, items, inflight=1 + seed % 3)
        count = len(loop.prologue) + loop.reach + 6
        found, right = waits_of(loop.schedule(count), count - 3), {w for w in written_out(loop, count) if split(w[1])[1] < count - 3}
        if right == found:
            continue
        # More waits, and others in their place, only where a value would be held too long.
        held = any(drop.by for issue in loop.steady for drop in (*issue.releases_before, *issue.releases_after))
        assert held, f"seed {seed}: {sorted(right ^ found)}"


@pytest.mark.parametrize("block", range(4))
def test_no_wait_of_a_loop_can_be_spared(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        loop = plan_loop(turning(seeded(seed, tasks=8), seed) if seed % 2 else seeded(seed, tasks=8), inflight=2)
        count = len(loop.prologue) + 2 * (loop.reach + 1) + 2
        for place, issue in enumerate(loop.steady):
            for number, back in enumerate(issue.waits):
                if issue.task == SOURCE and back.by == loop.inflight + 1:
                    continue  # it bounds the memory of results, and orders nothing that has to be ordered
                less = replace(issue, waits=issue.waits[:number] + issue.waits[number + 1 :])
                mutant = replace(loop, steady=(*loop.steady[:place], less, *loop.steady[place + 1 :]))
                assert verify(mutant.schedule(count)), f"seed {seed}: nobody misses {back} of {issue.task}"


def test_more_iterations_than_were_proved_are_proved_too() -> None:
    for seed in range(30):
        loop = plan_loop(turning(seeded(seed, tasks=8), seed))
        assert verify(loop.schedule(loop.proved + 7)) == ()
        for count in range(1, 5):
            assert verify(loop.schedule(count)) == ()


@pytest.mark.parametrize("device", ["device", "cpu"])
@pytest.mark.parametrize("apart", [None, True, False])
def test_results_that_a_host_task_makes_are_behind_it_to_the_last(device: str, apart: bool | None) -> None:
    """Those that are left when the items end, too: main joins the lane of host tasks before it hands them over."""
    for seed in range(30):
        of = reporting(turning(seeded(seed), seed), device)
        loop = plan_loop(of, frozenset({"x"} if seed % 2 else ()), inflight=1 + seed % 3, apart=apart)
        for count in range(1, 5):
            assert verify(loop.schedule(count)) == ()


def test_as_many_are_in_flight_as_the_largest_ring_over_iterations_has_slots_and_at_least_two() -> None:
    def depth(iterations: int, layers: int) -> int:
        graph = Graph("depths")
        x = graph.input("x", "f32[4]")
        ring = graph.buffer("ring", "f32[4]", slots=iterations)
        graph.buffer("other", "f32[4]", each={"layer": 6}, slots=layers, over="layer")
        graph.task("fill", "f", reads=x, writes=ring)
        graph.output(graph.task("work", "f", reads=ring, writes="y"))
        return plan_loop(graph).inflight

    assert [depth(iterations, 5) for iterations in (1, 2, 3, 5)] == [2, 2, 3, 5]


@pytest.mark.parametrize("inflight", [1, 2, 3, 4])
def test_an_item_is_pulled_when_nothing_reads_the_host_tensors_of_the_one_inflight_before_it(inflight: int) -> None:
    graph = Graph("refilled")
    x = graph.input("x", "f32[4]", device="cpu", pinned=True)
    graph.copy("upload", x, graph.buffer("frame", "f32[4]", slots=8), stream="copy")
    graph.output(graph.task("work", "f", reads="frame", writes="y", stream="main"))
    loop = plan_loop(graph, inflight=inflight)
    assert [str(wait) for wait in steady(loop, "source").waits if wait.name == "upload"] == [f"upload[-{inflight}]"]


def test_free_copies_have_a_lane_for_each_direction_and_pinned_ones_stay_where_they_are() -> None:
    graph = Graph("copies")
    for name, stream in (("free", None), ("pinned", "main")):
        x = graph.input(name, "f32[4]", device="cpu", pinned=True)
        up = graph.copy(f"up_{name}", x, f"on_{name}", stream=stream)
        graph.value(f"back_{name}", device="cpu", pinned=True)
        graph.output(graph.copy(f"down_{name}", up, f"back_{name}", stream=stream))
    loop = plan_loop(graph)
    lanes = {issue.task: issue.lane for issue in loop.steady}
    assert (lanes["up_free"], lanes["down_free"]) == ("h2d", "d2h")
    assert {lanes["up_pinned"], lanes["down_pinned"]} == {loop.main}


def test_the_caller_is_apart_where_items_are_on_the_device_or_the_host_has_tasks() -> None:
    def lanes(*, items: bool, host: bool, **options: bool) -> tuple[list[str], str, str]:
        graph = Graph("apart")
        x = graph.input("x", "f32[4]")
        raw = graph.input("raw", "f32[4]", device="cpu", pinned=True)
        if host:
            staged = graph.buffer("staged", "f32[4]", device="cpu", pinned=True)
            graph.task("stage", "f", reads=raw, writes=staged, host=True)
        graph.output(graph.task("work", "f", reads=x, writes="y", stream="main"))
        loop = plan_loop(graph, frozenset({"x", "raw"} if items else {"raw"}), **options)
        assert steady(loop, "work").lane == loop.main
        return [lane.name for lane in loop.lanes], loop.main, loop.caller

    assert lanes(items=False, host=False) == (["main", "host"], "main", "host")
    assert lanes(items=True, host=False) == (["main", "loop", "host"], "loop", "host")
    assert lanes(items=False, host=True) == (["main", "loop", "caller", "host"], "loop", "caller")
    assert lanes(items=True, host=True, apart=False) == (["main", "host"], "main", "host")
    assert lanes(items=False, host=False, apart=True) == (["main", "loop", "host"], "loop", "host")


def test_lanes_of_the_loop_have_names_of_their_own() -> None:
    graph = Graph("named")
    graph.output(graph.task("a", "f", reads=graph.input("x", "f32[4]"), writes="y", stream="loop"))
    loop = plan_loop(graph)
    assert (loop.main, steady(loop, "a").lane) == ("loop_", "loop")


def test_results_that_are_handed_over_are_bounded_and_copied_ones_need_no_wait() -> None:
    graph = Graph("results")
    graph.output(graph.task("a", "f", reads=graph.input("x", "f32[4]"), writes="y", stream="side"))
    assert [str(wait) for wait in steady(plan_loop(graph, inflight=2), "source").waits] == ["a[-3]"]
    assert steady(plan_loop(graph, inflight=2, copied=True), "source").waits == ()


@pytest.mark.parametrize("policy", ["single", "critical_path"])
def test_a_runners_loop_is_planned_with_the_options_of_its_schedule(policy: str) -> None:
    graph = Graph("wide")
    x = graph.input("x", "f32[8]")
    parts = [graph.task(f"t{number}", "mix", reads=x, writes=f"y{number}", cost=100.0) for number in range(4)]
    graph.output(graph.task("join", "mix", reads=parts, writes="z", cost=100.0))
    schedule = plan(graph, policy=policy, streams=3)  # type: ignore[arg-type]
    loop = plan_loop(schedule.program, frozenset(), **planner_options(schedule))
    assert {issue.lane for issue in loop.steady if issue.task in loop.program.index_of_task} == {*schedule.lane_of.values()}
    assert len({*schedule.lane_of.values()}) == (1 if policy == "single" else 3)


@pytest.mark.parametrize("apart", [True, False, "thread"])
def test_the_last_results_wait_for_the_host_task_that_makes_them(apart: bool | Literal["thread"]) -> None:
    """A value that a host task makes on the device is handed over on main, which nothing else would let wait for the host."""
    made = Graph("made")
    x = made.input("x", "f32[4]", device="cpu")
    made.output(made.task("make", lambda x: x, reads=x, writes="y", host=True))
    loop = plan_loop(made, inflight=3, apart=apart)
    assert not verify(loop.schedule(7))
