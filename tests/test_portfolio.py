"""`policy="auto"`: never slower than one stream or any policy in the simulator, near the optimum where that is known, and it says why."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.optimum import Optimum, random_dag
from benchmarks.shapes import sharded
from streamgraph import portfolio
from streamgraph.builder import Graph
from streamgraph.cost import TaskCost
from streamgraph.machine import as_machine
from streamgraph.passes.assign import settle
from streamgraph.passes.moves import Link, all_moves, moves
from streamgraph.passes.policies import POLICIES
from streamgraph.passes.work import Placement
from streamgraph.plan import plan
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate
from tests.programs import random_program
from tests.running import hurried
from tests.support import graph
from tests.test_policies import dag

GPU = as_machine("gpu")


@settings(max_examples=60)
@given(data=st.data(), order=st.sampled_from(["declared", "auto"]), streams=st.sampled_from(["auto", 2]))
def test_auto_is_never_slower_than_any_policy(data: st.DataObject, order: str, streams: object) -> None:
    program = random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=12)
    options = {"order": order, "streams": streams}
    timeline = simulate(plan(program, **options))  # type: ignore[arg-type]
    chosen = timeline.makespan
    assert timeline.bound[1] <= chosen + 1e-6
    times = {name: simulate(plan(program, policy=name, **options)).makespan for name in POLICIES}  # type: ignore[arg-type]
    assert chosen <= times["single"] + 1e-6
    # What the guard lets pass: a gain so small that it is not to be trusted.
    assert chosen <= min(times.values()) + portfolio.LEAST_GAIN * times["single"] + 1e-6


@pytest.mark.parametrize("tasks", [3, 4])
def test_the_search_for_the_optimum_finds_what_trying_everything_finds(tasks: int) -> None:
    for seed in range(8):
        program = random_dag(seed, tasks, long=40.0)
        search = Optimum(program, GPU, float("inf"))
        work, shortest = search.work, float("inf")
        for order in itertools.permutations(range(tasks)):
            place = {task: index for index, task in enumerate(order)}
            if any(place[p] > place[task] for task in range(tasks) for p in work.earlier[task]):
                continue
            for stream in itertools.product(range(tasks), repeat=tasks):
                schedule = search.draft(settle(work, Placement(order, stream)))
                shortest = min(shortest, simulate(schedule, search.times, machine=GPU).makespan)
        assert search.search() == pytest.approx(shortest)


@pytest.mark.parametrize("order", ["declared", "auto"])
def test_auto_is_close_to_the_optimum_of_small_programs(order: str) -> None:
    gaps = []
    for seed in range(120):
        program = random_dag(seed, 2 + seed % 4)
        made = simulate(plan(program, order=order), machine=GPU).makespan  # type: ignore[arg-type]
        gaps.append(made / Optimum(program, GPU, made, order).search() - 1)  # type: ignore[arg-type]
    assert max(gaps) < 0.10
    assert sum(gaps) / len(gaps) < 0.01


def test_what_does_not_pay_stays_on_one_stream_and_the_notes_say_why() -> None:
    schedule = plan(graph("a: -> x | b: -> y | c: x y -> z", cost=1.0))
    assert [lane.name for lane in schedule.lanes] == ["main"]
    assert schedule.notes[0].startswith("one stream for all tasks without a pin")


def test_the_guard_believes_no_gain_smaller_than_the_error_of_the_model() -> None:
    made = graph("a: -> x | b: -> y | c: x y -> z", cost=40.0)
    assert len(plan(made).lanes) == 2
    doubtful = plan(made, machine=replace(GPU, model_error=0.5))
    assert len(doubtful.lanes) == 1
    assert "may be off" in doubtful.notes[0]


def test_notes_name_the_policy_and_what_the_others_gave() -> None:
    note = plan(graph("a: -> x | b: -> y | c: x y -> z", cost=100.0)).notes[0]
    assert all(name in note for name in POLICIES if name != "single")
    assert "with one stream" in note


def test_a_schedule_with_notes_equals_one_without() -> None:
    schedule = plan(graph("a: -> x | b: -> y", cost=100.0))
    assert replace(schedule, notes=()) == schedule


def test_a_program_that_is_pinned_as_a_whole_has_nothing_to_choose() -> None:
    assert plan(graph("a: -> x @s | b: x -> y @main")).notes == ()


def test_large_programs_are_compared_by_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "LARGE", 2)
    wide = plan(graph("a: -> x | b: -> y | c: -> z | d: x y z -> o", cost=100.0))
    assert len(wide.lanes) == 3
    assert "by estimate" in wide.notes[0]
    assert len(plan(graph("a: -> x | b: -> y | c: -> z | d: x y z -> o", cost=1.0)).lanes) == 1
    assert len(plan(graph("a: -> x | b: -> y | c: x y -> z", cost=100.0), policy="levels").lanes) == 2


def test_few_trials_still_try_one_stream_and_the_critical_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "TRIALS", 0)
    monkeypatch.setattr(portfolio, "MOVES", 0)
    note = plan(graph("a: -> x | b: -> y | c: x y -> z", cost=100.0), order="auto").notes[0]
    assert [name for name in POLICIES if name in note] == ["critical_path"]
    assert "one stream" in note


def test_captured_steps_cost_the_host_nothing_so_short_tasks_may_fork() -> None:
    made = graph("a: -> x | b: x -> y | c: -> z | d: z -> w | e: y w -> o", cost=6.0)
    assert len(plan(made).lanes) == 1
    assert len(plan(made, issue="captured").lanes) == 2


def test_urgent_launches_gain_where_kernels_fill_the_device_together() -> None:
    """A long chain beside other kernels: what the chain gains is more than what they lose behind it."""
    made = Graph("hurry")
    x = made.input("x", "f32[8]")
    y, ends = x, []
    for number in range(6):
        y = made.task(f"long{number}", "op", reads=y, writes=f"y{number}")
        ends.append(made.task(f"short{number}", "op", reads=x, writes=f"v{number}"))
    made.output(made.task("end", "op", reads=[y, ends], writes="w"))
    program = made.program()
    costs = {task.name: TaskCost(100.0 if "long" in task.name else 60.0, fill=0.8) for task in program.tasks}
    found = plan(program, costs=costs, issue="captured", machine="h200")
    assert found.urgent == {"end", *(f"long{number}" for number in range(6))}
    times = [simulate(each, costs, machine="h200", issue="captured").makespan for each in (found, hurried(found, share=0.0))]
    assert times[0] < times[1]


def test_auto_leaves_priorities_to_lanes_where_urgent_launches_would_cost_more() -> None:
    program, costs = sharded()
    found, by_launch, by_lane = (
        plan(program, order="auto", policy=policy, costs=costs, issue=issue)
        for policy, issue in (("auto", "captured"), ("opara", "captured"), ("opara", "eager"))
    )
    assert by_launch.urgent
    assert not found.urgent
    times = [simulate(each, costs, issue="captured").makespan for each in (found, by_launch, by_lane)]
    assert times[0] <= times[2] < times[1]


def priorities(schedule: Schedule) -> dict[str, str]:
    return {lane.name: lane.priority for lane in schedule.lanes}


def test_the_lane_of_the_critical_path_has_high_priority_unless_it_is_the_callers() -> None:
    # The output of b is made on main, so the longer path runs on a side lane.
    side = graph("a: -> x | b: x -> y | c: -> z | d: z -> u | e: u -> v | f: v -> w", outputs="y", cost=100.0)
    found = plan(side)
    assert found.lane_of["b"] == "main"
    assert priorities(found) == {"main": "normal", found.lane_of["d"]: "high"}
    on_main = graph("a: -> x | b: x -> y | c: -> z | d: z -> u | e: u -> v | f: v -> w", outputs="w", cost=100.0)
    assert set(priorities(plan(on_main)).values()) == {"normal"}


def test_a_lane_of_its_own_for_all_free_tasks_needs_no_priority() -> None:
    assert priorities(plan(graph("p: -> w @side | a: -> x | b: x -> y", cost=100.0))) == {"main": "normal", "side": "normal"}


def test_a_link_of_the_critical_path_suggests_the_moves_that_could_break_it() -> None:
    work = dag([(0, 2)], [10.0, 10.0, 10.0], "auto")
    placement = Placement((0, 1, 2), (0, 0, 0))
    in_the_way = [*moves(work, placement, [Link(2, "lane", 1)], 2)]
    assert Placement((0, 2, 1), (0, 0, 0)) in in_the_way  # issued before it
    assert Placement((0, 1, 2), (0, 0, 1)) in in_the_way  # on another lane
    assert Placement((0, 1, 2), (0, 1, 0)) in in_the_way  # or the other one there
    handover = [*moves(work, Placement((0, 1, 2), (0, 0, 1)), [Link(2, "wait", 0)], 2)]
    assert Placement((0, 1, 2), (0, 0, 0)) in handover


@settings(max_examples=60)
@given(data=st.data())
def test_every_move_is_a_placement_in_topological_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7))
    edges = [(a, b) for b in range(count) for a in range(b) if data.draw(st.booleans())]
    work = dag(edges, [1.0] * count, "auto")
    placement = Placement(work.order, tuple(data.draw(st.integers(0, 2)) for _ in range(count)))
    seen = [*all_moves(work, placement, 3)]
    assert placement not in seen
    for move in seen:
        place = {task: index for index, task in enumerate(move.order)}
        assert sorted(place) == list(range(count))
        assert all(place[a] < place[b] for a, b in edges)
        assert all(0 <= stream < 3 for stream in move.stream)
