"""The virtual clock: what may not overlap does not, what bounds a makespan bounds it, and the critical path adds up."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.cost import task_costs
from streamgraph.errors import ScheduleError
from streamgraph.hazards import task_graph
from streamgraph.model import HOST, Program, Task
from streamgraph.plan import plan
from streamgraph.schedule import HostWait, Lane, Launch, Record, Schedule, Wait, parse_steps
from streamgraph.simulate import ISSUE_LAUNCH, ISSUE_SWITCH, ISSUE_WAIT, TaskTime, Timeline, simulate
from tests.drawn import cameras, host_tasks, prefetch
from tests.programs import seeded

SEEDS = st.integers(0, 10**6)


def close(one: float, two: float) -> bool:
    return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-6)


def apart(times: Iterable[TaskTime]) -> bool:
    """Whether no two of them overlap."""
    ordered = sorted(times, key=lambda time: (time.start, time.end))
    return all(first.end <= second.start + 1e-6 for first, second in itertools.pairwise(ordered))


@settings(max_examples=150)
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


@settings(max_examples=150)
@given(SEEDS, st.sampled_from(["declared", "auto"]))
def test_the_makespan_lies_between_the_longest_path_of_hazards_and_everything_one_after_another(seed: int, order: str) -> None:
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


@settings(max_examples=150)
@given(SEEDS)
def test_the_critical_path_is_a_chain_in_which_each_task_holds_the_next(seed: int) -> None:
    timeline = simulate(plan(seeded(seed, tasks=16, lanes=4)))
    path = timeline.critical_path
    assert not path or path[0].after is None
    for earlier, later in itertools.pairwise(path):
        assert later.after == earlier.task
        assert earlier.end <= later.start + 1e-6
        if later.held_by in ("wait", "FIFO", "engine") and later.lane != HOST:
            assert close(earlier.end, later.start)
    for time in timeline.tasks:
        assert (time.after is None) <= (time.held_by in ("issue", "start"))


@settings(max_examples=100)
@given(SEEDS, st.integers(0, 15), st.floats(0, 100))
def test_without_copy_engines_a_longer_task_never_shortens_the_run(seed: int, index: int, more: float) -> None:
    # With shared copy engines it may (Graham's anomalies), as on the machine itself.
    schedule = plan(seeded(seed, tasks=16, lanes=4, hosts=False))
    task = schedule.program.tasks[index % len(schedule.program.tasks)]
    base = task_costs(schedule.program, schedule.accesses).microseconds[index % len(schedule.program.tasks)]
    assert "h2d" not in task_costs(schedule.program, schedule.accesses).engine
    assert simulate(schedule).makespan <= simulate(schedule, {task.name: base + more}).makespan + 1e-6


@settings(max_examples=100)
@given(SEEDS)
def test_there_is_one_entry_for_every_wait_and_it_never_runs_backwards(seed: int) -> None:
    schedule = plan(seeded(seed, tasks=16, lanes=4))
    timeline = simulate(schedule)
    assert [wait.step for wait in timeline.waits] == [n for n, s in enumerate(schedule.steps) if isinstance(s, Wait | HostWait)]
    for wait in timeline.waits:
        assert wait.since <= wait.until
        assert wait.until == max(wait.since, wait.event_time)


def test_one_lane_of_long_tasks_takes_their_sum_and_the_first_launch() -> None:
    graph = Graph("chain")
    h = graph.input("x", "f32[8]")
    for number in range(5):
        h = graph.task(f"t{number}", "op", reads=h, writes="h", cost=100.0)
    timeline = simulate(plan(graph))
    assert close(timeline.makespan, 500.0 + ISSUE_LAUNCH)
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
    assert timeline.tasks[-1].start >= 5 * ISSUE_LAUNCH


def by_hand(text: str, *names: str, lanes: str = "main a b", cost: float = 100.0, host: str = "") -> Timeline:
    tasks = tuple(Task(name, "op", cost=cost, host=name in host.split()) for name in names)
    return simulate(Schedule(Program("by hand", tasks=tasks), tuple(Lane(name) for name in lanes.split()), parse_steps(text.splitlines())))


def test_a_wait_holds_its_lane_until_the_event_and_independent_lanes_overlap() -> None:
    timeline = by_hand(
        "launch x @main\nrecord e0 @main # after x\nlaunch y @a\nwait e0 @b\nlaunch z @b\nlaunch free @b", "x", "y", "z", "free"
    )
    x, y, z, free = timeline.tasks
    assert y.start < x.end
    assert (z.start, z.held_by, z.after) == (x.end, "wait", "x")
    assert (free.held_by, free.after) == ("FIFO", "z")
    assert [time.task for time in timeline.critical_path] == ["x", "z", "free"]


def test_a_wait_before_its_record_is_no_wait_as_in_cuda() -> None:
    timeline = by_hand("wait e0 @a\nlaunch y @a\nlaunch x @main\nrecord e0 @main # after x", "x", "y")
    assert timeline.time_of["y"].start == ISSUE_WAIT + ISSUE_LAUNCH
    assert timeline.waits[0].event_lane == ""


def test_a_host_wait_holds_what_is_issued_after_it() -> None:
    timeline = by_hand(
        "launch x @main\nrecord e0 @main # after x\nhostwait e0\nlaunch y @a", "x", "y", lanes="main a host"
    )
    x, y = timeline.tasks
    assert close(y.start, x.end + ISSUE_LAUNCH + ISSUE_SWITCH)
    assert (y.held_by, y.after) == ("issue", "x")


def test_a_host_event_costs_nothing_and_a_host_task_holds_the_issuing_thread() -> None:
    timeline = by_hand(
        "launch fill @host\nrecord e0 @host # after fill\nwait e0 @main\nlaunch x @main", "fill", "x", lanes="main host", host="fill"
    )
    assert timeline.time_of["x"].start == 100.0 + ISSUE_LAUNCH
    assert timeline.waits[0].since == timeline.waits[0].until


def test_an_event_of_the_run_before_holds_nothing_in_a_first_run() -> None:
    timeline = by_hand("hostwait e0 previous\nlaunch x @main\nrecord e0 @main # after x", "x", lanes="main host")
    assert timeline.time_of["x"].start == ISSUE_LAUNCH
    assert close(timeline.makespan, 100.0 + ISSUE_LAUNCH)


def test_a_copy_that_is_ready_overtakes_one_that_waits_for_its_event() -> None:
    graph = Graph("overtake")
    host = graph.input("host", "f32[1000000]", each={"i": 2}, device="cpu", pinned=True)
    w = graph.buffer("w", "f32[1000000]", each={"i": 2})
    graph.task("slow", "op", reads=w[0], cost=1000.0)
    graph.copy("late", host[0], w[0], stream="a")  # must wait for `slow`
    graph.copy("early", host[1], w[1], stream="b")
    timeline = simulate(plan(graph))
    assert timeline.time_of["early"].end < timeline.time_of["slow"].end
    assert timeline.time_of["late"].start == timeline.time_of["slow"].end


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
