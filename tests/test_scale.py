"""Large programs: planned, verified, explained and written without recursion, with no more waits than lanes allow. No time is asserted."""

from __future__ import annotations

import subprocess
import sys

import networkx as nx
import pytest

from streamgraph.hazards import task_graph
from streamgraph.model import Argument, Kind, Program, Task, Tensor, TensorType
from streamgraph.plan import plan
from streamgraph.schedule import HostWait, Launch, Record, Schedule, Wait
from streamgraph.verify import verify
from tests.large import SHAPES, task
from tests.support import waited
from tests.test_minimal import oracle

DEEP = """
import sys
from streamgraph.plan import plan
from streamgraph.render import FORMATS, render
from streamgraph.saved import from_json, to_json
from streamgraph.schedule import parse_steps
from streamgraph.verify import verify
from streamgraph.difference import diff
from tests.large import SHAPES

def all_of_it(count):
    for shape in ("chain", "rings", "slices", "fan"):
        schedule = plan(SHAPES[shape](count))
        tasks = list(schedule.lane_of)
        assert verify(schedule) == ()
        assert parse_steps(str(schedule).splitlines()) == schedule.steps
        if shape == "chain":
            assert from_json(to_json(schedule)) == schedule
            schedule.explain(tasks[0], tasks[-1])
            schedule.explain(tasks[-1])
            schedule.to_python()
            assert diff(schedule, schedule).is_empty
            next(iter(schedule.certificate()))
            if count < 1000:
                for suffix in FORMATS:
                    render(schedule, suffix)
        render(schedule, "txt")

all_of_it(20)  # what is imported when it is needed may be nested as deeply as it likes
sys.setrecursionlimit(200)
all_of_it(240)
all_of_it(5000)
"""


def test_nothing_is_recursive_over_the_size_of_a_program() -> None:
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def waits_per_task(schedule: Schedule) -> dict[str, int]:
    """How many waits stand before each launch, on its lane."""
    found: dict[str, int] = {}
    pending: dict[str, int] = {}
    for step in schedule.steps:
        if isinstance(step, Wait):
            pending[step.lane] = pending.get(step.lane, 0) + 1
        elif isinstance(step, HostWait):
            pending["host"] = pending.get("host", 0) + (not step.previous)
        elif isinstance(step, Launch):
            found[step.task] = pending.pop(step.lane, 0)
    return found


def check(schedule: Schedule) -> None:
    assert verify(schedule) == ()
    assert max(waits_per_task(schedule).values()) <= len(schedule.lanes) - 1
    recorded = [step.task for step in schedule.steps if isinstance(step, Record)]
    assert len(recorded) == len(set(recorded))
    assert len(schedule.lane_of) == len(schedule.program.tasks)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_thousand_tasks_of_each_shape_have_the_waits_of_the_transitive_reduction(shape: str) -> None:
    schedule = plan(SHAPES[shape](300), streams=4, policy="critical_path")
    check(schedule)
    assert waited(schedule) == oracle(schedule)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_hundred_thousand_tasks_of_each_shape_are_planned_and_verified(shape: str) -> None:
    check(plan(SHAPES[shape](100_000)))


def test_state_that_is_written_in_halves_and_read_whole_does_not_keep_all_its_readers() -> None:
    """Found by the benchmark: no half covers a whole read by itself, so each reader once stayed for ever and edges grew as the square."""
    few, many = (task_graph(SHAPES["mixed"](count)).number_of_edges() for count in (1000, 2000))
    assert many <= 2 * few + 10


@pytest.mark.parametrize("count", [50, 200])
def test_edges_of_a_buffer_in_many_parts_grow_with_its_accesses(count: int) -> None:
    assert task_graph(SHAPES["slices"](count)).number_of_edges() <= 3 * count
    assert task_graph(SHAPES["windows"](count)).number_of_edges() <= 3 * count


def test_parts_written_before_a_whole_read_are_all_waited_for_through_one_event_per_lane() -> None:
    rows, lanes = 90, ("left", "middle", "right")
    tensors = [Tensor("batch", Kind.BUFFER, TensorType("f16", (rows, 4))), Tensor("sum", Kind.VALUE, TensorType("f16", (4,)))]
    tensors += [Tensor(f"row.{row}", Kind.VIEW, base="batch", index=((row, row + 1), (0, 4))) for row in range(rows)]
    tasks: list[Task] = [task(f"fill.{row}", (), (f"row.{row}",), lane=lanes[row % 3]) for row in range(rows)]
    tasks.append(task("all", ("batch",), ("sum",), lane="main"))
    schedule = plan(Program("rows", tuple(tensors), tuple(tasks)))
    assert waits_per_task(schedule)["all"] == 3
    assert nx.is_directed_acyclic_graph(schedule.graph)
    assert schedule.graph.in_degree(rows) == rows


def test_a_host_task_finds_what_the_run_before_used_among_many_parts() -> None:
    """The parts are found through an index; a host task that refills one waits for the copy of that part alone."""
    rows = 40
    tensors = [Tensor("staging", Kind.BUFFER, TensorType("f16", (rows, 4)), "cpu", True), Tensor("x", Kind.VALUE)]
    tensors += [Tensor(f"row.{row}", Kind.VIEW, TensorType("f16", (1, 4)), "cpu", True, base="staging", index=((row, row + 1), (0, 4)))
                for row in range(rows)]  # fmt: skip
    tasks: list[Task] = []
    for row in range(rows):
        tasks.append(task(f"fill.{row}", (), (f"row.{row}",), host=True))
        copy = Task(f"copy.{row}", "copy", (Argument((f"row.{row}",)),), (Argument(("x",)),), stream="copy")
        tasks.append(copy)
    schedule = plan(Program("staging", tuple(tensors), tuple(tasks)))
    across = [step for step in schedule.steps if isinstance(step, HostWait) and step.previous]
    assert verify(schedule) == ()
    assert [(reason.earlier, reason.later) for step in across for reason in step.reasons] == [
        (f"copy.{row}", f"fill.{row}") for row in range(rows)
    ]  # fmt: skip
