"""Host tasks between captured parts: the same results, graphs launched instead of tasks, and every way out."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.errors import BindingError, TaskError
from streamgraph.executors.choose import make_executor
from streamgraph.executors.split import SplitExecutor
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.portfolio import Policy
from streamgraph.schedule import HostWait, Schedule, Wait
from tests.fake_device import FakeDevice, ensure_nothing_held, fake, standing_in
from tests.programs import seeded
from tests.running import (
    CHAINS,
    Fault,
    Tensors,
    all_tensors,
    expected_of,
    failing,
    hurried,
    inputs_of,
    reference,
    run_after_run,
    same,
    shows_in_no_value,
    steps_of,
)
from tests.support import graph, program

pytestmark = pytest.mark.usefixtures("copies")




def split(schedule: Schedule, device: FakeDevice, ops: Any = None, bound: Tensors | None = None) -> SplitExecutor:
    return SplitExecutor(schedule, resolve(schedule.program, ops or device.operators(schedule.program)), device, 0, bound or {})


def play(schedule: Schedule, seed: int, pace: float, runs: int = 6) -> list[bool]:
    """Whether each of several runs, one eager, one that captures, and the others replayed, gave what the reference gives."""
    of, device = schedule.program, fake(seed, pace)
    executor = split(schedule, device)
    results = run_after_run(executor, schedule, runs)
    assert executor.captured or not schedule.lane_of
    # Each part was captured once, and launched in every run but the first.
    assert [made.replays for made in device.graphs] == [runs - 1] * executor.cut.graphs
    executor.close()
    device.drain()
    standing_in.clear()
    verdicts = [same(result, expected) for result, expected in zip(results, expected_of(of, runs), strict=True)]
    results.clear()
    ensure_nothing_held(device)
    return verdicts


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6), streams=st.integers(1, 4), early=st.booleans(), pace=st.sampled_from([0.0, 0.3, 0.9]), all=st.booleans(),
    policy=st.sampled_from(["auto", "urgent"]),
)  # fmt: skip
def test_host_tasks_between_replayed_parts_give_the_reference(
    seed: int, streams: int, early: bool, pace: float, all: bool, policy: Policy
) -> None:
    of = seeded(seed, tasks=10)
    of = all_tensors(of) if all else of
    schedule = plan(of, streams=streams, release="early" if early else "default", policy=policy, issue="captured")
    assert play(hurried(schedule, seed) if seed % 2 else schedule, seed, pace) == [True] * 6


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400))
def test_many_seeded_programs_give_the_reference(seed: int) -> None:
    schedule = plan(seeded(seed, tasks=16), streams=1 + seed % 4, release="early" if seed % 3 else "default")
    assert play(schedule, seed, 0.3) == [True] * 6


@pytest.mark.parametrize("name", ["RAW", "WAR", "updates", "host"])
def test_taking_out_any_one_wait_is_noticed(name: str) -> None:
    of = CHAINS[name].program()
    # A host task in front makes parts of any program.
    schedule = plan(of, streams=3)
    assert not noticed(schedule, 10)
    for dropped in [step for step in schedule.steps if isinstance(step, Wait | HostWait) and not shows_in_no_value(schedule, step)]:
        mutant = steps_of(schedule, lambda step, dropped=dropped: step is not dropped)
        assert noticed(mutant, 60), f"nobody noticed that this is missing: {dropped}"


def noticed(schedule: Schedule, seeds: int) -> bool:
    """Whether a run in parts gives a wrong result. The first run is the interpreter's, and does not count."""
    return not all(all(play(schedule, seed, 0.1)[1:]) for seed in range(seeds))


def around(ops: Any = None) -> Schedule:
    """Device work, a host task on its result, device work with that one's: and some that has nothing to do with it."""
    text = "a: x -> y @one | b: x -> z @two | c: y -> h @one | p: h -> k ! | d: k z -> w @two | e: w -> +b @one"
    return plan(graph(text, "x", "b", hosts="h k", outputs="w"))


def test_parts_are_launched_and_tasks_are_not() -> None:
    schedule, device = around(), fake(1)
    calls: list[str] = []
    working = device.operators(schedule.program)

    def noting(task: Any) -> Any:
        healthy = working(task)

        def call(*positional: Any, **keywords: Any) -> Any:
            calls.append(task.name)
            return healthy(*positional, **keywords)

        return call

    executor = split(schedule, device, noting)
    for run in range(2):
        executor.run(inputs_of(schedule.program, run))
    assert str(executor.cut).splitlines() == ["part   a, b, c", "host   p", "part   d, e"]
    calls.clear()
    for run in range(2, 5):
        executor.run(inputs_of(schedule.program, run))
    assert calls == ["p"] * 3
    assert [made.replays for made in device.graphs] == [4, 4]
    executor.close()
    assert all(made.gone for made in device.graphs)


@pytest.mark.parametrize("task", ["p", "a", "d"])
@pytest.mark.parametrize("when", [1, 2, 3])
def test_a_task_that_raises_leaves_everything_at_rest_and_the_next_run_is_right(task: str, when: int) -> None:
    """In the first run, while it is captured, or between replays; a captured task is not called again."""
    schedule, device = around(), fake(2, 0.1)
    of = schedule.program
    broken: dict[str, BaseException] = {}
    executor = split(schedule, device, failing(of, broken, device.operators(of)))
    for run in range(when):
        executor.run(inputs_of(of, run))
    broken[task] = Fault("not now")
    if task == "p" or when == 1:
        with pytest.raises(TaskError, match=f"task '{task}'.*raised Fault: not now"):
            executor.run(inputs_of(of, when))
        assert not any(stream.queue for stream in device.streams), "something is still under way"
    assert device.graph is None
    assert device.current is device.default
    broken.clear()
    for run in range(5, 8):
        result = executor.run(inputs_of(of, run)).outputs["w"]
        device.drain()
        assert torch.equal(result, expected_of(of, 1, run)[0]["w"])  # which does not depend on what the failed run did to `b`
    executor.close()
    del result
    gc.collect()
    assert len(device.free) == len(device.blocks)


def test_a_run_ends_behind_launches_that_no_graph_holds_and_no_graph_follows() -> None:
    """`up` reads what the call brings in host memory, comes last, and changes what the next run's graph reads first."""
    made = graph("p: -> +turn ! | look: x b -> y @main | up: hx -> +b @side", inputs="x", buffers="b", outputs="y")
    made.resource("turn")
    made.input("hx", "i64[8]", device="cpu", pinned=True)
    schedule = plan(made)
    assert [piece.kind for piece in split(schedule, fake()).cut.pieces] == ["part", "eager", "host"]
    for seed in range(40):
        assert play(schedule, seed, 0.0) == [True] * 6


def test_an_input_of_a_call_that_a_task_changes_is_the_callers_own_tensor() -> None:
    of = program("a: w -> +x @one | p: h -> k ! | b: x k -> z @main", inputs="x w", hosts="h k", outputs="z")
    executor, device = split(plan(of), fake()), standing_in[-1]
    for run in range(5):
        inputs, wanted = inputs_of(of, run), inputs_of(of, run)
        executor.run(inputs)
        device.drain()
        standing_in.clear()  # the reference copies here
        reference(of).run(wanted)
        standing_in.append(device)
        assert torch.equal(inputs["x"], wanted["x"]), f"run {run}"
    executor.close()


def handing() -> Schedule:
    """`up` reads what the call brings in host memory, and makes an output that no graph reads, on a lane of its own."""
    made = graph("p: -> +turn ! | look: x -> y @main | up: hx -> z @side", inputs="x", outputs="y z")
    made.resource("turn")
    made.input("hx", "i64[8]", device="cpu", pinned=True)
    return plan(made)


def test_an_output_that_no_graph_makes_is_handed_over_and_held_no_longer() -> None:
    schedule, device = handing(), fake(0, 0.0)
    executor = split(schedule, device)
    assert len(executor._handed) == 1
    for run in range(4):
        outputs = executor.run(inputs_of(schedule.program, run)).outputs
        device.drain()
        assert same(outputs, expected_of(schedule.program, 1, run)[0])
        seen = weakref.ref(outputs["z"])
        del outputs
        assert run == 0 or seen() is None
    executor.close()


@pytest.mark.parametrize("seed", range(5))
def test_what_is_handed_over_may_be_used_and_dropped_on_the_callers_stream(seed: int) -> None:
    """Its memory was got on the lane that made it, which would get it again while the caller's stream is busy."""
    schedule, device = handing(), fake(seed, 0.0)
    executor, used = split(schedule, device), []
    for run in range(8):
        outputs = executor.run(inputs_of(schedule.program, run)).outputs
        for _ in range(100):
            device.put(device.default, lambda: None)
        used.append(device.clone(outputs["z"]))
        del outputs
    device.drain()
    assert [torch.equal(one, right["z"]) for one, right in zip(used, expected_of(schedule.program, 8), strict=True)] == [True] * 8
    executor.close()


def test_inputs_bound_for_good_stay_and_other_shapes_are_refused() -> None:
    of = program("a: x w -> y @one | p: h -> k ! | b: y k -> z @main", inputs="x w", hosts="h k", outputs="z")
    schedule, device = plan(of), fake()
    first = inputs_of(of, 0)
    executor = split(schedule, device, bound={"w": first["w"]})
    for run in range(4):
        inputs = inputs_of(of, run)
        first["w"].copy_(inputs["w"])
        result = executor.run({**inputs, "w": first["w"]}).outputs
        device.drain()
        assert same(result, expected_of(of, run + 1)[run])
    with pytest.raises(BindingError, match=r"SG613.*'w' was bound for good"):
        executor.run(inputs)
    with pytest.raises(BindingError, match=r"SG613.*captured with"):
        executor.run({**inputs, "w": first["w"], "x": torch.zeros(3, dtype=torch.int64)})
    executor.close()


def test_the_caller_may_come_on_any_stream() -> None:
    schedule, device = around(), fake(5, 0.1)
    executor, results = split(schedule, device), []
    for run in range(9):
        came_on = device.current
        results.append(executor.run(inputs_of(schedule.program, run)).outputs)
        assert device.current is came_on
        device.set_stream(device.streams[(run + 1) % 5])
    executor.close()
    device.drain()
    assert [same(result, right) for result, right in zip(results, expected_of(schedule.program, 9), strict=True)] == [True] * 9


def test_a_runner_takes_the_executor_that_its_host_tasks_need() -> None:
    made = Graph("none")
    made.output(made.task("a", "mix", reads=made.input("x", "i64[8]"), writes="y"))
    device = fake()
    for schedule, kind in ((around(), "SplitExecutor"), (plan(made), "GraphExecutor")):
        executor = make_executor(schedule, device.operators(schedule.program), "graph", device, 0, {})
        assert type(executor).__name__ == kind
        executor.close()
