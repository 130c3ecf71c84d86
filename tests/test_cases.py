"""The acceptance graphs: patterns of real races from public bug reports, each with what a correct plan must show under `x-expect`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import streamgraph
from streamgraph.binding import made_up
from streamgraph.model import Kind, Output, Program
from streamgraph.plan import plan
from streamgraph.schedule import Launch, RecordStream, Release, Schedule
from streamgraph.spec import load
from streamgraph.validate import finish
from streamgraph.verify import verify
from tests.programs import mix_for
from tests.support import recorded, waits

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
REMEDY = re.compile(r"record_stream\((?P<lane>\w+)\) or (?P<owner>\w+)\.wait\((?P<use>\w+)\)")


def expected(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text())["x-expect"])


def with_all_outputs(program: Program) -> Program:
    """Every final value, buffer and input that a task touches becomes an output, so that results can be compared."""
    names = [t.name for t in program.tensors if t.kind in (Kind.VALUE, Kind.BUFFER, Kind.INPUT)]
    return finish(replace(program, outputs=tuple(Output(name, name) for name in names)))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case_gives_exactly_what_it_expects(path: Path) -> None:
    want = expected(path)
    schedule = plan(load(path).program, order="declared")
    assert waits(schedule) == sorted(want["waits"])
    assert recorded(schedule) == sorted(want["events"])
    assert [step for step in schedule.steps if isinstance(step, RecordStream)] == want["record_stream"] == []
    assert {lane.name for lane in schedule.lanes} == set(want["lanes"])
    assert list(schedule.lane_of) == [task.name for task in schedule.program.tasks]


def dropped_after(schedule: Schedule, tensor: str, task: str, lane: str, *records: str) -> Schedule:
    """The schedule with the value's release moved to right after `task`, behind the given record_stream calls."""
    storage = f"{tensor}.1"
    steps = [step for step in schedule.steps if not (isinstance(step, Release) and step.storage == storage)]
    place = next(index for index, step in enumerate(steps) if isinstance(step, Launch) and step.task == task) + 1
    steps[place:place] = [*(RecordStream(storage, record) for record in records), Release(storage, lane)]
    return replace(schedule, steps=tuple(steps))


@pytest.mark.parametrize(
    ("path", "release"),
    [(path, release) for path in CASES for release in expected(path).get("release", ())],
    ids=lambda value: value.stem if isinstance(value, Path) else f"{value['storage']} after {value['after']}",
)
def test_the_verdict_on_dropping_a_reference_early(path: Path, release: dict[str, str]) -> None:
    schedule = plan(load(path).program)
    where = (schedule, release["storage"], release["after"], release["allocated_on"])
    found = verify(dropped_after(*where))
    if release["verdict"] == "SAFE":
        assert found == ()
        return
    remedies = list(REMEDY.finditer(release["verdict"]))
    assert remedies
    assert {violation.code for violation in found} == {"SG705"}
    assert {violation.earlier for violation in found} <= {match["use"] for match in remedies}
    assert all(release["storage"] in violation.message for violation in found)
    assert verify(dropped_after(*where, *(match["lane"] for match in remedies))) == ()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case_runs_to_the_sequential_result(path: Path) -> None:
    """With every final value as an output; twice in a row, since buffers carry over."""
    program = with_all_outputs(load(path).program)
    ops = mix_for(program)
    results: dict[str, list[dict[str, torch.Tensor]]] = {}
    for executor in ("sequential", "lanes", "eager"):
        inputs = made_up(program, {}, torch.device("cpu"), 0)  # anew: one case updates an input
        with streamgraph.compile(program, inputs, ops=ops, device="cpu", executor=executor) as runner:
            results[executor] = [dict(runner()), dict(runner())]
    assert results["sequential"][0]
    for executor in ("lanes", "eager"):
        for right, found in zip(results["sequential"], results[executor], strict=True):
            assert right.keys() == found.keys()
            assert all(torch.equal(right[name], found[name]) for name in right)
