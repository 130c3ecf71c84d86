"""The virtual clock: what may not overlap does not, what bounds a makespan bounds it, and the critical path adds up."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterable
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.contention import YIELDED
from streamgraph.cost import Costs, TaskCost, task_costs
from streamgraph.errors import ScheduleError
from streamgraph.hazards import task_graph
from streamgraph.machine import as_machine
from streamgraph.model import HOST, Program, Task
from streamgraph.plan import Issue, plan
from streamgraph.portfolio import Policy
from streamgraph.schedule import HostWait, Lane, Launch, Record, Schedule, Wait, parse_steps
from streamgraph.simulate import TaskTime, Timeline, simulate
from tests.drawn import cameras, host_tasks, prefetch
from tests.programs import random_devices, seeded
from tests.running import hurried
from tests.support import graph

SEEDS = st.integers(0, 10**6)
GPU = as_machine()


def close(one: float, two: float) -> bool:
    return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-6)


def apart(times: Iterable[TaskTime]) -> bool:
    """Whether no two of them overlap."""
    ordered = sorted(times, key=lambda time: (time.start, time.end))
    return all(first.end <= second.start + 1e-6 for first, second in itertools.pairwise(ordered))


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_lanes_and_copy_engines_do_one_thing_at_a_time_and_waits_are_kept(seed: int) -> None:
    schedule = plan(seeded(seed, tasks=16, lanes=4))
    timeline = simulate(schedule)
    assert [time.task for time in timeline.tasks] == [step.task for step in schedule.steps if isinstance(step, Launch)]
    for lane in schedule.lanes:
        assert apart(time for time in timeline.tasks if time.lane == lane.name)
    for engine in ("h2d", "d2h"):
        assert apart(time for time in timeline.tasks if time.engine == engine)
    for earlier, later in task_graph(schedule.program).edges:
        first, second = (timeline.time_of[schedule.program.tasks[number].name] for number in (earlier, later))
        assert first.end <= second.start + 1e-6


def crowded(schedule: Schedule, seed: int) -> Costs:
    """Costs with random shares of the device, so that tasks really get into each other's way."""
    draw = random.Random(seed)
    found = task_costs(schedule.program, schedule.accesses)
    device = [engine != "host" for engine in found.engine]
    shares = [tuple(draw.random() if on_device else 0.0 for on_device in device) for _ in range(2)]
    return replace(found, fill=shares[0], bandwidth=shares[1])


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from(["eager", "captured"]))
def test_the_makespan_lies_between_the_largest_lower_bound_and_everything_one_after_another(seed: int, issue: str) -> None:
    schedule = plan(seeded(seed, tasks=16, lanes=4))
    timeline = simulate(schedule, crowded(schedule, seed), issue=issue)
    assert timeline.bound[1] == max(timeline.bounds.values())
    assert timeline.bound[1] <= timeline.makespan + 1e-6
    calls = 10.0 * len(schedule.steps)  # more than the calls of all steps and their handovers take
    assert timeline.makespan <= timeline.work + calls
    assert all(time.alone <= time.duration + 1e-6 for time in timeline.tasks)


@settings(max_examples=80, deadline=None)
@given(SEEDS, st.integers(1, 3), st.sampled_from(["auto", "urgent"]), st.sampled_from(["eager", "captured"]))
def test_with_two_priorities_and_several_devices_nothing_beats_the_bounds_or_the_critical_path(
    seed: int, devices: int, policy: Policy, issue: Issue
) -> None:
    program = seeded(seed, tasks=16, lanes=4) if devices == 1 else random_devices(random.Random(seed).randrange, devices)
    schedule = plan(program, policy=policy, issue=issue)
    timeline = simulate(schedule, crowded(schedule, seed), issue=issue)
    for name, bound in timeline.bounds.items():
        assert bound <= timeline.makespan + 1e-6, name
    assert timeline.bounds["lanes"] >= max((time.alone for time in timeline.tasks), default=0.0)
    path = timeline.critical_path
    assert sum(time.duration for time in path) <= timeline.makespan + 1e-6
    assert all(first.end <= second.start + 1e-6 for first, second in itertools.pairwise(path))
    assert all(time.alone <= time.duration + 1e-6 for time in timeline.tasks)


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from(["eager", "captured"]))
def test_contention_never_shortens_a_run(seed: int, issue: str) -> None:
    # With copy engines it may: they serve who comes first (Graham's anomalies), as on the machine itself.
    schedule = plan(seeded(seed, tasks=16, lanes=4, hosts=False))
    contended = crowded(schedule, seed)
    assert "h2d" not in contended.engine
    free = simulate(schedule, replace(contended, fill=(), bandwidth=()), issue=issue)
    assert free.makespan <= simulate(schedule, contended, issue=issue).makespan + 1e-6


def side_by_side(*shares: tuple[float, float], cost: float = 100.0, interference: float = 0.0, high: Iterable[int] = ()) -> Timeline:
    """Tasks on lanes of their own, issued at once, each with a fill and a share of the bandwidth; those in `high` have high priority."""
    names = [f"t{number}" for number in range(len(shares))]
    tasks = tuple(Task(name, "op", cost=cost) for name in names)
    lanes = tuple(
        Lane("main" if number == 0 else f"s{number}", "high" if number in set(high) else "normal") for number in range(len(shares))
    )
    steps = tuple(Launch(name, lane.name) for name, lane in zip(names, lanes, strict=True))
    schedule = Schedule(Program("side by side", tasks=tasks), lanes, steps)
    fill, bandwidth = zip(*shares, strict=True)
    costs = replace(task_costs(schedule.program, schedule.accesses), fill=fill, bandwidth=bandwidth)
    return simulate(schedule, costs, issue="captured", machine=replace(GPU, interference=interference))


def test_tasks_that_fill_the_device_together_do_not_slow_each_other_and_more_than_that_do() -> None:
    assert close(side_by_side((0.5, 0.1), (0.5, 0.1)).makespan, 100.0)
    assert close(side_by_side((1.0, 0.1), (1.0, 0.1)).makespan, 200.0)
    assert close(side_by_side((0.6, 0.1), (0.6, 0.1)).makespan, 120.0)
    assert close(side_by_side((0.1, 0.8), (0.1, 0.8)).makespan, 160.0)
    assert close(side_by_side(*[(0.25, 0.0)] * 8).makespan, 200.0)


def test_tasks_meet_by_chance_below_that_in_proportion_to_what_the_others_fill() -> None:
    assert close(side_by_side((0.4, 0.0), (0.4, 0.0), interference=0.5).makespan, 120.0)
    assert close(side_by_side(*[(0.2, 0.0)] * 3, interference=0.5).makespan, 120.0)
    assert close(side_by_side((1.0, 0.0), (1.0, 0.0), interference=0.5).makespan, 200.0)
    assert close(side_by_side((0.9, 0.0), interference=0.5).makespan, 100.0)
    assert close(side_by_side((0.0, 0.0), (0.0, 0.0), interference=0.5).makespan, 100.0)


def test_tasks_of_high_priority_go_first_and_the_others_get_what_is_left() -> None:
    # Together the two have 120 us of work for the device: the first is not slowed, the other does the rest of it.
    ends = side_by_side((0.6, 0.0), (0.6, 0.0), high=[0]).time_of
    assert close(ends["t0"].end, 100.0)
    assert close(ends["t1"].end, 100.0 + 100.0 * (1.0 - 0.4 / 0.6))
    met = side_by_side((0.3, 0.0), (0.3, 0.0), interference=0.5, high=[0]).time_of
    assert close(met["t0"].end, 100.0 * (1.0 + 0.5 * YIELDED * 0.3))
    assert met["t0"].end < met["t1"].end


@settings(max_examples=80, deadline=None)
@given(SEEDS, st.integers(2, 4))
def test_an_urgent_launch_has_the_priority_of_such_a_lane_in_a_captured_graph_and_none_outside(seed: int, lanes: int) -> None:
    schedule = hurried(plan(seeded(seed, tasks=12, lanes=lanes, hosts=False), streams=lanes, issue="captured"), seed, 0.0)
    schedule = replace(schedule, lanes=tuple(replace(lane, priority="normal") for lane in schedule.lanes))
    costs = crowded(schedule, seed)
    high = {lane.name for lane in schedule.lanes[::2]}
    by_lane = replace(schedule, lanes=tuple(replace(lane, priority="high" if lane.name in high else "normal") for lane in schedule.lanes))
    steps = (replace(step, urgent=step.lane in high) if isinstance(step, Launch) else step for step in schedule.steps)
    by_launch = replace(schedule, steps=tuple(steps))
    assert simulate(by_launch, costs, issue="captured").tasks == simulate(by_lane, costs, issue="captured").tasks
    assert simulate(by_launch, costs, issue="eager").tasks == simulate(schedule, costs, issue="eager").tasks


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.05, 1.0), min_size=2, max_size=6), st.floats(0.0, 1.0), st.data())
def test_priorities_keep_the_work_that_the_device_gets_done(fills: list[float], interference: float, data: st.DataObject) -> None:
    high = data.draw(st.sets(st.integers(0, len(fills) - 1)))
    shares = [(fill, 0.0) for fill in fills]
    equal = side_by_side(*shares, interference=interference)
    found = side_by_side(*shares, interference=interference, high=high)
    if len(high) in (0, len(fills)):
        assert found.makespan == equal.makespan
    for number in high:
        assert found.time_of[f"t{number}"].end <= equal.time_of[f"t{number}"].end + 1e-6
    assert found.makespan >= max(100.0, 100.0 * sum(fills) - 1e-6)


def test_a_task_runs_faster_again_when_the_one_beside_it_is_done() -> None:
    tasks = (Task("short", "op", cost=50.0), Task("long", "op", cost=100.0))
    schedule = Schedule(Program("two", tasks=tasks), (Lane("main"), Lane("s1")), (Launch("short", "main"), Launch("long", "s1")))
    costs = replace(task_costs(schedule.program, schedule.accesses), fill=(1.0, 1.0), bandwidth=(0.0, 0.0))
    timeline = simulate(schedule, costs, issue="captured")
    assert close(timeline.time_of["short"].end, 100.0)  # at half speed
    assert close(timeline.time_of["long"].end, 150.0)  # 50 at half speed until 100, then alone
    assert (timeline.time_of["long"].alone, timeline.work) == (100.0, 150.0)


def test_a_copy_keeps_its_speed_and_takes_bandwidth_from_kernels() -> None:
    graph = Graph("beside")
    host = graph.input("host", "f32[1000000]", device="cpu", pinned=True)
    w = graph.buffer("w", "f32[1000000]")
    graph.copy("up", host, w, stream="copy", cost=100.0)
    graph.task("kernel", "op", reads=graph.input("x", "f32[8]"), cost=100.0)
    schedule = plan(graph)
    costs = replace(task_costs(schedule.program, schedule.accesses), fill=(0.0, 1.0), bandwidth=(0.5, 1.0))
    times = simulate(schedule, costs, issue="captured").time_of
    assert close(times["up"].duration, 100.0)
    assert close(times["kernel"].duration, 100.0 + 100.0 / 3)  # two thirds done when the copy ends


def test_captured_graphs_have_no_calls_but_pay_for_each_branch_of_a_join() -> None:
    def joined(width: int) -> Timeline:
        graph = Graph("join")
        x = graph.input("x", "f32[8]")
        parts = [graph.task(f"p{n}", "op", reads=x, writes=f"v{n}", cost=100.0, stream=f"s{n}") for n in range(width)]
        graph.task("all", "op", reads=[parts], writes="y", cost=100.0, stream="main")
        return simulate(plan(graph), issue="captured", machine=replace(GPU, interference=0.0))

    assert close(joined(1).makespan, 200.0 + GPU.captured_handover)
    assert close(joined(4).makespan, joined(1).makespan + 3 * GPU.captured_branch)
    assert joined(4).bounds["host"] == 0.0


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_on_one_lane_a_captured_run_takes_the_sum_of_its_tasks(seed: int) -> None:
    program = seeded(seed, tasks=16, lanes=1, hosts=False)
    schedule = plan(replace(program, tasks=tuple(replace(task, stream=None) for task in program.tasks)), streams=1)
    timeline = simulate(schedule, crowded(schedule, seed), issue="captured")
    assert close(timeline.makespan, timeline.work)
    assert close(timeline.one_stream, timeline.makespan)
    assert all(close(idle, 0.0) for lane, idle in timeline.idle if lane != HOST)


def test_a_measured_issue_time_takes_the_place_of_the_machines_launch() -> None:
    schedule = Schedule(Program("one", tasks=(Task("t", "op", cost=10.0),)), (Lane("main"),), (Launch("t", "main"),))
    assert simulate(schedule, {"t": TaskCost(10.0, issue=100.0)}).tasks[0].start == 100.0 + GPU.step
    assert simulate(schedule, {"t": 10.0}).tasks[0].start == GPU.launch
    assert simulate(schedule, machine="h200").machine.name == "h200"


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.sampled_from(["declared", "auto"]))
def test_the_makespan_lies_between_the_longest_path_of_hazards_and_all_tasks_after_each_other(seed: int, order: str) -> None:
    schedule = plan(seeded(seed, tasks=16, lanes=4), order=order)
    timeline = simulate(schedule)
    times = task_costs(schedule.program, schedule.accesses).microseconds
    graph = task_graph(schedule.program)
    longest = 0.0
    finish: dict[int, float] = {}
    for node in nx.topological_sort(graph):
        finish[node] = times[node] + max((finish[earlier] for earlier in graph.predecessors(node)), default=0.0)
        longest = max(longest, finish[node])
    issue = 10.0 * len(schedule.steps)  # more than any step costs the host
    assert longest <= timeline.makespan + 1e-6
    assert max(busy for _, busy in timeline.busy) <= timeline.makespan + 1e-6
    assert timeline.makespan <= timeline.work + issue
    assert close(timeline.work, sum(times))


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_the_critical_path_is_a_chain_in_which_each_task_holds_the_next(seed: int) -> None:
    timeline = simulate(plan(seeded(seed, tasks=16, lanes=4)))
    path = timeline.critical_path
    assert not path or path[0].after is None
    for earlier, later in itertools.pairwise(path):
        assert later.after == earlier.task
        assert earlier.end <= later.start + 1e-6
        if later.held_by in ("FIFO", "engine") and later.lane != HOST:
            assert close(earlier.end, later.start)
        if later.held_by == "wait" and later.lane != HOST:
            assert later.start - earlier.end <= GPU.handover * len(timeline.waits) + 1e-6
    for time in timeline.tasks:
        assert (time.after is None) <= (time.held_by in ("issue", "start"))


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(0, 15), st.floats(0, 100))
def test_without_copy_engines_a_longer_task_never_shortens_the_run(seed: int, index: int, more: float) -> None:
    # With shared copy engines it may (Graham's anomalies), as on the machine itself; and where it keeps others apart, so may it too.
    schedule = plan(seeded(seed, tasks=16, lanes=4, hosts=False))
    found = task_costs(schedule.program, schedule.accesses)
    free = replace(found, fill=(), bandwidth=())
    assert "h2d" not in found.engine
    longer = tuple(time + more if number == index % len(found.microseconds) else time for number, time in enumerate(found.microseconds))
    assert simulate(schedule, free).makespan <= simulate(schedule, replace(free, microseconds=longer)).makespan + 1e-6


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_there_is_one_entry_for_every_wait_and_it_never_runs_backwards(seed: int) -> None:
    schedule = plan(seeded(seed, tasks=16, lanes=4))
    timeline = simulate(schedule)
    assert [wait.step for wait in timeline.waits] == [n for n, s in enumerate(schedule.steps) if isinstance(s, Wait | HostWait)]
    for wait in timeline.waits:
        assert wait.since <= wait.until
        assert max(wait.since, wait.event_time) <= wait.until <= max(wait.since, wait.event_time + GPU.handover)


def test_one_lane_of_long_tasks_takes_their_sum_and_the_first_launch() -> None:
    graph = Graph("chain")
    h = graph.input("x", "f32[8]")
    for number in range(5):
        h = graph.task(f"t{number}", "op", reads=h, writes="h", cost=100.0)
    timeline = simulate(plan(graph))
    assert close(timeline.makespan, 500.0 + GPU.launch)
    assert timeline.speed_up == 1.0
    assert [time.held_by for time in timeline.tasks] == ["issue", "FIFO", "FIFO", "FIFO", "FIFO"]
    assert timeline.critical_path == timeline.tasks


def test_the_host_is_the_bottleneck_of_tiny_tasks() -> None:
    graph = Graph("tiny")
    h = graph.input("x", "f32[8]")
    for number in range(5):
        h = graph.task(f"t{number}", "op", reads=h, writes="h", cost=1.0)
    timeline = simulate(plan(graph))
    assert {time.held_by for time in timeline.tasks} == {"issue"}
    assert timeline.tasks[-1].start >= 5 * GPU.launch


def by_hand(text: str, *names: str, lanes: str = "main a b", cost: float = 100.0, host: str = "") -> Timeline:
    tasks = tuple(Task(name, "op", cost=cost, host=name in host.split()) for name in names)
    return simulate(Schedule(Program("by hand", tasks=tasks), tuple(Lane(name) for name in lanes.split()), parse_steps(text.splitlines())))


def test_a_wait_holds_its_lane_until_the_event_and_independent_lanes_overlap() -> None:
    timeline = by_hand(
        "launch x @main\nrecord e0 @main # after x\nlaunch y @a\nwait e0 @b\nlaunch z @b\nlaunch free @b", "x", "y", "z", "free"
    )
    x, y, z, free = timeline.tasks
    assert y.start < x.end
    assert (z.start, z.held_by, z.after) == (x.end + GPU.handover, "wait", "x")
    assert (free.held_by, free.after) == ("FIFO", "z")
    assert [time.task for time in timeline.critical_path] == ["x", "z", "free"]


def test_a_wait_before_its_record_is_no_wait_as_in_cuda() -> None:
    timeline = by_hand("wait e0 @a\nlaunch y @a\nlaunch x @main\nrecord e0 @main # after x", "x", "y")
    assert timeline.time_of["y"].start == GPU.wait + GPU.launch
    assert timeline.waits[0].event_lane == ""


def test_a_host_wait_holds_what_is_issued_after_it() -> None:
    timeline = by_hand(
        "launch x @main\nrecord e0 @main # after x\nhostwait e0\nlaunch y @a", "x", "y", lanes="main a host"
    )
    x, y = timeline.tasks
    assert close(y.start, x.end + GPU.host_wait + GPU.launch + GPU.switch)
    assert (y.held_by, y.after) == ("issue", "x")


def test_a_host_event_costs_nothing_and_a_host_task_holds_the_issuing_thread() -> None:
    timeline = by_hand(
        "launch fill @host\nrecord e0 @host # after fill\nwait e0 @main\nlaunch x @main", "fill", "x", lanes="main host", host="fill"
    )
    assert timeline.time_of["x"].start == 100.0 + GPU.launch
    assert timeline.waits[0].since == timeline.waits[0].until


def test_an_event_of_the_run_before_holds_nothing_in_a_first_run() -> None:
    timeline = by_hand("hostwait e0 previous\nlaunch x @main\nrecord e0 @main # after x", "x", lanes="main host")
    assert timeline.time_of["x"].start == GPU.launch
    assert close(timeline.makespan, 100.0 + GPU.launch)


def test_a_copy_that_is_ready_overtakes_one_that_waits_for_its_event() -> None:
    graph = Graph("overtake")
    host = graph.input("host", "f32[1000000]", each={"i": 2}, device="cpu", pinned=True)
    w = graph.buffer("w", "f32[1000000]", each={"i": 2})
    graph.task("slow", "op", reads=w[0], cost=1000.0)
    graph.copy("late", host[0], w[0], stream="a")  # must wait for `slow`
    graph.copy("early", host[1], w[1], stream="b")
    timeline = simulate(plan(graph))
    assert timeline.time_of["early"].end < timeline.time_of["slow"].end
    assert timeline.time_of["late"].start == timeline.time_of["slow"].end + GPU.handover


def test_copies_in_one_direction_queue_and_the_other_direction_overlaps() -> None:
    graph = Graph("duplex")
    host = graph.input("host", "f32[1000000]", each={"i": 2}, device="cpu", pinned=True)
    w = graph.buffer("w", "f32[1000000]", each={"i": 3})
    graph.value("back", "f32[1000000]", device="cpu", pinned=True)
    graph.copy("up@0", host[0], w[0], stream="a")
    graph.copy("up@1", host[1], w[1], stream="b")
    graph.copy("down", w[2], "back", stream="c")
    time = simulate(plan(graph)).time_of
    assert (time["up@1"].start, time["up@1"].held_by, time["up@1"].after) == (time["up@0"].end, "engine", "up@0")
    assert time["down"].start < time["up@0"].end


@pytest.mark.parametrize("schedule", [cameras(), prefetch()], ids=["cameras", "prefetch"])
def test_copies_beside_compute_pay(schedule: Schedule) -> None:
    assert simulate(schedule).speed_up > 1.2


def test_a_timeline_is_plain_data_and_the_same_every_time() -> None:
    schedule = host_tasks()
    assert simulate(schedule) == simulate(schedule)
    data = json.loads(json.dumps(simulate(schedule).to_dict()))
    assert data["unit"] == "us"
    assert {entry["task"] for entry in data["tasks"]} == set(schedule.lane_of)
    assert simulate(schedule, task_costs(schedule.program, schedule.accesses)) == simulate(schedule)


def test_an_empty_program_takes_no_time() -> None:
    timeline = by_hand("", lanes="main")
    assert (timeline.makespan, timeline.speed_up, timeline.critical_path) == (0.0, 1.0, ())


def test_a_step_for_a_task_that_the_program_has_not_is_an_error() -> None:
    with pytest.raises(ScheduleError, match=r"SG702.*'ghost'"):
        by_hand("launch ghost @main", "x")


def test_a_schedule_of_many_steps_needs_no_recursion() -> None:
    count = 5_000
    tasks = tuple(Task(f"t{n}", "op", cost=1.0) for n in range(count))
    steps: list[object] = []
    for number, task in enumerate(tasks):
        lane = f"s{number % 2}"
        steps += [Wait(f"e{number - 1}", lane), Launch(task.name, lane), Record(f"e{number}", lane, task.name)]
    schedule = Schedule(Program("long", tasks=tasks), (Lane("main"), Lane("s0"), Lane("s1")), tuple(steps[1:]))  # type: ignore[arg-type]
    timeline = simulate(schedule)
    assert len(timeline.critical_path) >= 1
    assert timeline.makespan >= count


def test_a_prediction_says_what_its_times_rest_on() -> None:
    declared = graph("a: -> x | b: x -> y | c: y -> z").program()
    first, *rest = declared.tasks
    declared = replace(declared, tasks=(first, *(replace(task, cost=None) for task in rest)))
    schedule = plan(replace(declared, tasks=tuple(replace(task, cost=None) for task in declared.tasks)))
    assert simulate(schedule).basis == "sizes alone"
    assert simulate(plan(declared)).basis == "declared costs of 1 of 3 tasks, sizes for the rest"
    assert simulate(plan(declared), {"b": 2.0}).basis == "measured costs of 1 and declared costs of 1 of 3 tasks, sizes for the rest"
    everything = simulate(schedule, {"a": 1.0, "b": 2.0, "c": 3.0}, machine="h200", issue="captured")
    assert everything.basis == "measured costs of 3 of 3 tasks on 'h200', as a CUDA graph"
