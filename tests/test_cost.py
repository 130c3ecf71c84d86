"""Costs: measured before declared before guessed, engines of copies, and guesses that grow with the bytes."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.cost import (
    LINK_BYTES_PER_MICROSECOND,
    MEMORY_BYTES_PER_MICROSECOND,
    NOMINAL,
    NOMINAL_HOST,
    OVERHEAD,
    Costs,
    task_costs,
)
from streamgraph.errors import SpecError
from streamgraph.model import Program
from streamgraph.storages import trace
from tests.programs import seeded


def costs_of(program: Program, measured: dict[str, float] | None = None) -> Costs:
    return task_costs(program, trace(program)[0], measured)


def transfer(size: int) -> Program:
    graph = Graph("transfer")
    host = graph.input("host", f"f32[{size}]", device="cpu", pinned=True)
    weights = graph.buffer("weights", f"f32[{size}]")
    graph.value("back", device="cpu", pinned=True)
    graph.copy("up", host, weights)
    graph.copy("across", weights, "other")
    graph.copy("down", weights, "back")
    graph.task("note", "note", reads=host, host=True)
    return graph.program()


def test_engines_follow_from_where_a_copy_reads_and_writes() -> None:
    assert costs_of(transfer(8)).engine == ("h2d", "compute", "d2h", "host")


def test_a_copy_over_the_link_takes_its_bytes_once_and_a_device_copy_reads_and_writes_them() -> None:
    up, across, down, note = costs_of(transfer(1_000_000)).microseconds
    assert up == down == OVERHEAD + 4_000_000 / LINK_BYTES_PER_MICROSECOND
    # `other` has no declared type, so only the read is known; the nominal time is the floor.
    assert across == max(NOMINAL, OVERHEAD + 4_000_000 / MEMORY_BYTES_PER_MICROSECOND)
    assert note == NOMINAL_HOST


def test_measured_comes_before_declared_before_guessed() -> None:
    graph = Graph("three")
    x = graph.input("x", "f32[8]")
    for name, cost in (("a", 3.0), ("b", 4.0), ("c", None)):
        graph.task(name, "op", reads=x, writes=name + ".out", cost=cost)
    found = costs_of(graph.program(), {"a": 7})
    assert found.source == ("measured", "declared", "default")
    assert found.microseconds[:2] == (7.0, 4.0)


def test_an_update_counts_twice_and_a_view_only_its_part() -> None:
    graph = Graph("parts")
    b = graph.buffer("b", "f32[1000, 1000]")
    graph.task("whole", "op", reads=b)
    graph.task("twice", "op", updates=b)
    graph.task("tenth", "op", reads=b[0:100])
    whole, twice, tenth = (time - OVERHEAD for time in costs_of(graph.program()).microseconds)
    assert math.isclose(twice, 2 * whole)
    assert math.isclose(tenth, whole / 10)


def test_unknown_types_take_the_nominal_time_and_resources_take_none() -> None:
    graph = Graph("unknown")
    rng = graph.resource("rng")
    x = graph.input("x")
    graph.task("a", "op", reads=x)
    graph.task("b", "op", updates=rng)
    assert costs_of(graph.program()).microseconds == (NOMINAL, OVERHEAD)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "5us", True, None])
def test_a_cost_that_is_no_time_is_refused(bad: object) -> None:
    with pytest.raises(SpecError, match=r"SG104.*cost of task 'up'"):
        costs_of(transfer(8), {"up": bad})  # type: ignore[dict-item]


def test_all_wrong_costs_are_reported_at_once_with_the_near_name() -> None:
    with pytest.raises(SpecError) as caught:
        costs_of(transfer(8), {"upp": 1.0, "zzz": 1.0, "up": -1.0})
    assert [problem.code for problem in caught.value.problems] == ["SG104", "SG213", "SG213"]
    assert "did you mean 'up'?" in str(caught.value)


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_bytes_never_cost_less(one: int, two: int) -> None:
    small, large = (costs_of(transfer(size)).microseconds for size in sorted((one, two)))
    assert all(first <= second for first, second in zip(small, large, strict=True))


@settings(max_examples=100)
@given(st.integers(0, 10**6))
def test_every_task_gets_a_finite_time_an_engine_and_a_source(seed: int) -> None:
    program = seeded(seed, tasks=12)
    found = costs_of(program)
    assert len(found.microseconds) == len(found.source) == len(found.engine) == len(program.tasks)
    assert all(math.isfinite(time) and time >= 0 for time in found.microseconds)
    assert all((engine == "host") == task.host for engine, task in zip(found.engine, program.tasks, strict=True))


def test_costs_simulation_and_pictures_do_without_torch() -> None:
    code = (
        "import sys; import tests.drawn as d; from streamgraph.render import render\n"
        "s = d.cameras(); [render(s, f) for f in ('svg', 'txt', 'mmd', 'dot')]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
