"""The policies: each keeps pins, host and bound, does what its source says, and the matching is a maximum one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning import exact_waits, waits_by_rule
from streamgraph.cost import task_costs
from streamgraph.hazards import build_dag, find_hazards
from streamgraph.model import Program
from streamgraph.passes.assign import assign_work, fold
from streamgraph.passes.policies import POLICIES, PolicyName
from streamgraph.passes.policies.max_concurrency import maximum_matching, minimum_equivalent_graph
from streamgraph.passes.work import FREE, ON_HOST, Placement, Work, work_of
from streamgraph.plan import Release, plan
from streamgraph.schedule import Launch
from streamgraph.storages import trace
from streamgraph.verify import verify
from tests.programs import random_program
from tests.support import program

NAMES = tuple(POLICIES)


def work(of: Program | str, order: str = "declared", **declared: object) -> Work:
    made = program(of, **declared) if isinstance(of, str) else of  # type: ignore[arg-type]
    accesses = trace(made)[0]
    return work_of(made, build_dag(made, find_hazards(made, accesses)), accesses, task_costs(made, accesses).microseconds, order)  # type: ignore[arg-type]


def dag(edges: list[tuple[int, int]], costs: list[float], order: str = "declared") -> Work:
    """Work of free tasks with these costs and edges."""
    from streamgraph.builder import Graph

    graph = Graph("dag")
    for task, cost in enumerate(costs):
        graph.task(f"t{task}", "f", after=[f"t{earlier}" for earlier, later in edges if later == task], cost=cost)
    return work(graph.program(), order)


@settings(max_examples=150)
@given(data=st.data(), name=st.sampled_from(NAMES), order=st.sampled_from(["declared", "auto"]), limit=st.integers(1, 5))
def test_every_policy_keeps_pins_host_bound_and_hazards(data: st.DataObject, name: str, order: str, limit: int) -> None:
    of = random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=12)
    job = work(of, order)
    made = assign_work(job, limit, name)  # type: ignore[arg-type]
    place = {task: index for index, task in enumerate(made.order)}
    assert sorted(place) == list(range(len(of.tasks)))
    for task, group in enumerate(job.earlier):
        for earlier in group:
            assert place[earlier] < place[task]
            assert made.finish[earlier] <= made.start[task]
    pinned = range(1, len(job.lanes))
    for task, home in enumerate(job.home):
        if home == FREE:
            assert made.lane_of[task] not in (*pinned, len(made.lanes) - 1)
        else:
            assert made.lane_of[task] == (len(made.lanes) - 1 if home == ON_HOST else home)
    assert len({made.lane_of[task] for task in job.free}) <= limit
    if order == "declared":
        assert made.order == job.declared


@pytest.mark.parametrize("name", NAMES)
def test_a_deep_chain_stays_on_main(name: str) -> None:
    count = 5_000
    job = dag([(task, task + 1) for task in range(count - 1)], [1.0] * count)
    assert set(assign_work(job, 8, name).lane_of) == {0}  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_wide_fan_keeps_within_the_bound(name: str) -> None:
    job = dag([(0, task) for task in range(1, 999)] + [(task, 999) for task in range(1, 999)], [5.0] * 1000)
    assert len(set(assign_work(job, 3, name).lane_of)) <= 3  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_program_is_an_empty_placement(name: str) -> None:
    from streamgraph.builder import Graph

    made = assign_work(work(Graph("nothing").program()), 4, name)  # type: ignore[arg-type]
    assert (made.order, made.lane_of, made.makespan) == ((), (), 0.0)


def test_every_policy_gives_the_same_under_every_hash_seed() -> None:
    code = (
        "from tests.test_policies import *\nfrom tests.programs import seeded\n"
        "orders = ('declared', 'auto')\n"
        "print([assign_work(work(seeded(seed, 40), order), 3, name) for seed in range(6) for name in NAMES for order in orders])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


def test_the_command_line_offers_every_policy() -> None:
    from streamgraph.commands.source import POLICY_NAMES

    assert ("auto", *POLICIES) == POLICY_NAMES


# --- single policies ------------------------------------------------------------------------------------------------------------------


def test_single_leaves_pinned_and_host_tasks_alone() -> None:
    job = work("a: -> x | b: -> y @copy | h: -> p ! | c: x y -> z", hosts="p")
    assert POLICIES["single"](job, 4).stream == (0, -1, -1, 0)


def test_critical_path_follows_the_data_that_comes_last() -> None:
    job = dag([(0, 2), (1, 2)], [100.0, 50.0, 10.0])
    assert POLICIES["critical_path"](job, 4).stream == (0, 1, 0)


def test_earliest_free_takes_the_first_stream_that_is_free_in_time() -> None:
    job = dag([(0, 3), (1, 3)], [10.0, 20.0, 40.0, 5.0])
    assert POLICIES["earliest_free"](job, 4).stream == (0, 1, 2, 0)


def test_earliest_free_issues_runs_stream_by_stream() -> None:
    # t0 and t3 on stream 0, t1 and t2 on stream 1; t3 needs t1.
    job = dag([(0, 3), (1, 2), (1, 3)], [30.0, 10.0, 10.0, 5.0], "auto")
    made = POLICIES["earliest_free"](job, 2)
    lanes = {stream: [task for task in made.order if made.stream[task] == stream] for stream in (0, 1)}
    assert lanes == {0: [0, 3], 1: [1, 2]}
    assert made.order == (0, 1, 3, 2)  # stream 0 stops at t3, stream 1 issues t1, and stream 0 is looked at again first


def test_opara_continues_the_first_predecessor_that_nobody_continued() -> None:
    job = dag([(0, 1), (0, 2), (1, 3), (2, 3)], [1.0] * 4)
    assert POLICIES["opara"](job, 1).stream == (0, 0, 1, 0)


def test_longest_path_counts_tasks_and_deals_out_the_rest() -> None:
    job = dag([(0, 1), (1, 2)], [1.0, 1.0, 1.0, 900.0, 900.0, 900.0])
    assert POLICIES["longest_path"](job, 3).stream == (0, 0, 0, 1, 2, 1)
    assert POLICIES["longest_path"](job, 1).stream == (0,) * 6


def test_levels_number_the_tasks_of_each_level() -> None:
    job = dag([(0, 3), (1, 4), (2, 4)], [1.0] * 5)
    assert POLICIES["levels"](job, 8).stream == (0, 1, 2, 0, 1)
    assert POLICIES["levels"](job, 2).stream == (0, 1, 0, 0, 1)


@settings(max_examples=100)
@given(data=st.data())
def test_max_concurrency_keeps_independent_tasks_apart_at_the_price_that_its_theorem_names(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 9))
    edges = [(a, b) for b in range(count) for a in range(b) if data.draw(st.integers(0, 2)) == 0]
    job = dag(edges, [1.0] * count)
    stream = POLICIES["max_concurrency"](job, 1).stream
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(range(count))
    for a in range(count):
        for b in range(a + 1, count):
            assert stream[a] != stream[b] or nx.has_path(graph, a, b)
    reduced = nx.transitive_reduction(graph)
    kept, reach = minimum_equivalent_graph(job)
    assert {(a, b) for a, group in enumerate(kept) for b in group} == set(reduced.edges)
    assert all(bool(reach[a] >> b & 1) == (a != b and nx.has_path(graph, a, b)) for a in range(count) for b in range(count))
    left = {f"l{a}" for a in range(count)}
    bipartite = nx.Graph([(f"l{a}", f"r{b}") for a, b in reduced.edges])
    bipartite.add_nodes_from(left)
    largest = len(nx.bipartite.maximum_matching(bipartite, top_nodes=left)) // 2
    assert sum(stream[a] != stream[b] for a, b in reduced.edges) == reduced.number_of_edges() - largest


def test_the_matching_is_a_maximum_one_and_does_not_recurse() -> None:
    # Greedily, left i takes right i, and left n finds nothing: one augmenting path through all of them mends that.
    count = 3_000
    edges = [[index, index + 1] for index in range(count)] + [[0]]
    matched = maximum_matching(edges, count + 1)
    assert sorted(matched) == list(range(count + 1))


@settings(max_examples=100)
@given(data=st.data(), name=st.sampled_from(NAMES), limit=st.integers(2, 4))
def test_no_known_rule_of_synchronisation_emits_fewer_waits_than_ours(data: st.DataObject, name: str, limit: int) -> None:
    of = random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=14, hosts=False)
    accesses = trace(of)[0]
    hazards = build_dag(of, find_hazards(of, accesses))
    job = work_of(of, hazards, accesses, task_costs(of, accesses).microseconds, "declared")
    made = assign_work(job, limit, name)  # type: ignore[arg-type]
    exact = exact_waits(job, made, hazards, accesses)
    waits = waits_by_rule(job, made, exact)
    assert exact <= min(waits["reduced"], waits["remembered"])
    assert waits["remembered"] <= waits["latest"] <= waits["naive"]
    assert waits["reduced"] <= waits["naive"]
    with_fifo = nx.DiGraph((earlier, later) for later, group in enumerate(hazards.earlier) for earlier in group)
    for lane in set(made.lane_of):
        nx.add_path(with_fifo, [task for task in made.order if made.lane_of[task] == lane])
    assert exact == sum(made.lane_of[a] != made.lane_of[b] for a, b in nx.transitive_reduction(with_fifo).edges)


# --- the bound on lanes ---------------------------------------------------------------------------------------------------------------


def test_folding_puts_streams_behind_each_other_that_do_not_overlap() -> None:
    job = dag([(0, 1), (1, 2)], [10.0, 10.0, 10.0, 30.0])
    assert fold(job, Placement(job.order, (0, 1, 2, 3)), 2).stream == (0, 0, 0, 1)


def test_folding_changes_nothing_within_the_bound() -> None:
    placement = Placement((0, 1), (1, 0))
    assert fold(dag([], [1.0, 1.0]), placement, 2) is placement


def test_urgent_tasks_are_those_that_may_not_be_late() -> None:
    job = dag([(0, 1), (1, 3), (2, 3)], [10.0, 10.0, 5.0, 10.0])
    assert job.urgent == (0, 1, 3)
    assert dag([(0, 1)], [0.0, 0.0]).urgent == ()


def test_urgent_puts_them_on_lanes_of_high_priority_and_the_others_on_others() -> None:
    job = dag([(0, 1), (1, 3), (2, 3)], [10.0, 10.0, 5.0, 10.0])
    made = assign_work(job, 4, "urgent")
    high = {made.lanes[lane].name for lane in made.lane_of if made.lanes[lane].priority == "high"}
    assert {made.lanes[made.lane_of[task]].priority for task in (0, 1)} == {"high"} or "main" in {
        made.lanes[made.lane_of[task]].name for task in (0, 1)
    }
    assert made.lanes[made.lane_of[2]].name not in high
    assert len({made.lane_of[0], made.lane_of[2]}) == 2


@settings(max_examples=100)
@given(
    data=st.data(), policy=st.sampled_from(sorted(set(NAMES) - {"urgent"})), limit=st.integers(1, 5),
    release=st.sampled_from(["default", "early"]),
)  # fmt: skip
def test_a_captured_plan_is_the_eager_one_with_priorities_of_launches_instead_of_lanes(
    data: st.DataObject, policy: PolicyName, limit: int, release: Release
) -> None:
    of = random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=12)
    options = {"policy": policy, "streams": limit, "release": release}
    eager, captured = plan(of, **options), plan(of, issue="captured", **options)  # type: ignore[arg-type]
    assert not eager.urgent
    assert [replace(step, urgent=False) if isinstance(step, Launch) else step for step in captured.steps] == list(eager.steps)
    job = work(captured.program)
    free = {captured.program.tasks[task].name for task in job.free}
    on_streams = [lane for lane in captured.lanes if not lane.is_host]
    wanted = free & {captured.program.tasks[task].name for task in job.urgent}
    assert captured.urgent == (wanted if len(on_streams) > 1 else set())
    if captured.urgent:
        declared = {lane.name: lane.priority for lane in job.lanes}
        assert all(lane.priority == declared.get(lane.name, "normal") for lane in captured.lanes)
    assert verify(captured) == ()


def test_a_captured_plan_of_urgent_is_that_of_critical_path() -> None:
    of = program("a: -> x | b: x -> y | c: -> z | d: y z -> w", outputs="w")
    found, plain = (plan(of, policy=policy, streams=8, issue="captured") for policy in ("urgent", "critical_path"))
    assert (found.steps, found.lanes) == (plain.steps, plain.lanes)
    assert found.urgent


@settings(max_examples=60)
@given(data=st.data(), limit=st.integers(1, 9))
def test_lanes_of_high_priority_hold_no_task_with_slack(data: st.DataObject, limit: int) -> None:
    job = work(random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=12))
    made = assign_work(job, limit, "urgent")
    if made.high:
        for task in job.free:
            if made.lanes[made.lane_of[task]].priority == "high":
                assert task in job.urgent
