"""Costs: measured before declared before guessed, engines of copies, and guesses that grow with the bytes."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.cost import (
    NOMINAL,
    NOMINAL_HOST,
    UNKNOWN_FILL,
    Costs,
    TaskCost,
    costs_json,
    load_costs,
    parse_costs,
    task_costs,
)
from streamgraph.errors import SpecError
from streamgraph.machine import SHIPPED, Machine, as_machine, parse_machine
from streamgraph.model import Program
from streamgraph.storages import trace
from tests.programs import seeded

GPU = as_machine()


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
    assert up == down == GPU.smallest + 4_000_000 / GPU.h2d
    # `other` has no declared type, so only the read is known; the nominal time is the floor.
    assert across == max(NOMINAL, GPU.smallest + 4_000_000 / GPU.memory)
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
    whole, twice, tenth = (time - GPU.smallest for time in costs_of(graph.program()).microseconds)
    assert math.isclose(twice, 2 * whole)
    assert math.isclose(tenth, whole / 10)


def test_unknown_types_take_the_nominal_time_and_resources_take_none() -> None:
    graph = Graph("unknown")
    rng = graph.resource("rng")
    x = graph.input("x")
    graph.task("a", "op", reads=x)
    graph.task("b", "op", updates=rng)
    assert costs_of(graph.program()).microseconds == (NOMINAL, GPU.smallest)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "5us", True, None])
def test_a_cost_that_is_no_time_is_refused(bad: object) -> None:
    with pytest.raises(SpecError, match=r"SG104.*cost of task 'up'"):
        costs_of(transfer(8), {"up": bad})  # type: ignore[dict-item]


def test_all_wrong_costs_are_reported_at_once_with_the_near_name() -> None:
    with pytest.raises(SpecError) as caught:
        costs_of(transfer(8), {"upp": 1.0, "zzz": 1.0, "up": -1.0})
    assert [problem.code for problem in caught.value.problems] == ["SG104", "SG213", "SG213"]
    assert "did you mean 'up'?" in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_bytes_never_cost_less(one: int, two: int) -> None:
    small, large = (costs_of(transfer(size)).microseconds for size in sorted((one, two)))
    assert all(first <= second for first, second in zip(small, large, strict=True))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_every_task_gets_a_finite_time_an_engine_and_a_source(seed: int) -> None:
    program = seeded(seed, tasks=12)
    found = costs_of(program)
    assert len(found.microseconds) == len(found.source) == len(found.engine) == len(program.tasks)
    assert all(math.isfinite(time) and time >= 0 for time in found.microseconds)
    assert all((engine == "host") == task.host for engine, task in zip(found.engine, program.tasks, strict=True))


def test_a_larger_tensor_fills_more_of_the_device_and_no_more_than_all_of_it() -> None:
    graph = Graph("fills")
    for number, size in enumerate((8, 100_000, 10_000_000)):
        graph.task(f"t{number}", "op", reads=graph.input(f"x{number}", f"f32[{size}]"))
    graph.task("unknown", "op", reads=graph.input("y"))
    small, middle, large, unknown = costs_of(graph.program()).fill
    assert 0 < small < middle < large == 1.0
    assert unknown == UNKNOWN_FILL
    assert middle == 100_000 / (GPU.multiprocessors * GPU.elements)


def test_copies_fill_nothing_and_take_the_links_share_of_the_bandwidth() -> None:
    found = costs_of(transfer(1_000_000))
    assert found.fill[0] == found.fill[2] == found.fill[3] == 0.0
    assert found.bandwidth[0] == GPU.h2d / GPU.memory
    assert found.bandwidth[3] == 0.0


def test_a_machine_changes_the_guesses_and_not_what_was_measured() -> None:
    program = transfer(1_000_000)
    fast = task_costs(program, trace(program)[0], {"down": 3.0}, "h200")
    slow = task_costs(program, trace(program)[0], {"down": 3.0})
    assert fast.microseconds[0] < slow.microseconds[0]
    assert fast.microseconds[2] == slow.microseconds[2] == 3.0


def test_measured_costs_bring_their_own_share_and_issue_time_and_can_be_read_back(tmp_path: Path) -> None:
    measured = {"up": TaskCost(12.5, None, 3.25), "across": TaskCost(7.0, 0.5)}
    file = tmp_path / "costs.json"
    file.write_text(costs_json(measured, "a card", {"repeats": 3}))
    assert load_costs(file) == measured
    program = transfer(8)
    found = task_costs(program, trace(program)[0], file)
    assert found == task_costs(program, trace(program)[0], measured)
    assert (found.microseconds[:2], found.fill[1], found.issue[:2]) == ((12.5, 7.0), 0.5, (3.25, None))
    assert found.source == ("measured", "measured", "default", "default")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "SG009"), ("[" * 100_000, "SG009"), ("[]", "SG009"), ("{}", "SG009"), ('{"streamgraph_costs": 2}', "SG108"),
        ('{"streamgraph_costs": 1}', "SG102"), ('{"streamgraph_costs": 1, "tasks": {"a": 3}}', "SG103"),
        ('{"streamgraph_costs": 1, "tasks": {"a": {"us": -3}}}', "SG104"), ('{"streamgraph_costs": 1, "tasks": {"a": {}}}', "SG102"),
        ('{"streamgraph_costs": 1, "tasks": {"a": {"us": NaN}}}', "SG104"),
        ('{"streamgraph_costs": 1, "tasks": {"a": {"us": 1, "fill": 2}}}', "SG105"),
        ('{"streamgraph_costs": 1, "tasks": {"a": {"us": 1, "fil": 1}}}', "SG101"),
        ('{"streamgraph_costs": 1, "tasks": {"a": {"us": true}}}', "SG104"),
    ],
)  # fmt: skip
def test_a_costs_file_that_is_wrong_says_what_is_wrong(text: str, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_costs(text, "costs.json")
    assert [problem.code for problem in caught.value.problems] == [code]


def test_everything_wrong_with_a_costs_file_is_said_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        parse_costs('{"streamgraph_costs": 1, "tasks": {"a": {"us": "1"}, "b": 7, "c": {"us": 1, "x": 1}}}')
    assert [problem.code for problem in caught.value.problems] == ["SG101", "SG103", "SG104"]


def test_a_costs_file_that_is_not_there_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"SG006.*no such file[\s\S]*streamgraph profile"):
        load_costs(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match="SG010"):
        load_costs(tmp_path / "bytes.json")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_machines_load_and_machines_can_be_read_back(name: str, tmp_path: Path) -> None:
    machine = as_machine(name)
    assert machine.name == name
    file = tmp_path / "mine.json"
    file.write_text(machine.to_json())
    assert as_machine(file) == as_machine(str(file)) == machine
    assert as_machine(machine) is machine


def test_everything_wrong_with_a_machine_is_said_at_once() -> None:
    text = as_machine("gpu").to_json()
    for right, wrong in (('"launch"', '"lunch"'), ('"wait": 0.9', '"wait": -1'), ('"h2d": 25000.0', '"h2d": 0')):
        assert right in text
        text = text.replace(right, wrong)
    with pytest.raises(SpecError) as caught:
        parse_machine(text)
    assert [problem.code for problem in caught.value.problems] == ["SG101", "SG102", "SG105", "SG105"]
    assert "did you mean 'launch'?" in str(caught.value)


def test_a_machine_that_is_unknown_lists_those_that_are_known() -> None:
    with pytest.raises(SpecError, match=r"SG006[\s\S]*one of: gpu, h200, cpu"):
        as_machine("h2000")
    with pytest.raises(SpecError, match="SG108"):
        parse_machine(as_machine().to_json().replace('"streamgraph_machine": 1', '"streamgraph_machine": 7'))


def test_no_rate_of_a_machine_is_zero_and_every_field_is_a_number_or_a_text() -> None:
    assert {type(getattr(as_machine(name), field.name)) for name in SHIPPED for field in fields(Machine)} == {str, float}


def test_costs_simulation_and_pictures_do_without_torch() -> None:
    code = (
        "import sys; import tests.drawn as d; from streamgraph.render import render\n"
        "s = d.cameras(); [render(s, f) for f in ('svg', 'txt', 'mmd', 'dot')]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
