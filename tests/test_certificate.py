"""Certificate: each wait with what goes wrong without it, found by the verifier and not by the planner."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.certificate import certificate, ordering_steps
from streamgraph.errors import ScheduleError
from streamgraph.plan import plan
from streamgraph.schedule import HostWait, RecordStream, Wait
from tests.programs import random_program
from tests.support import graph


def test_each_wait_comes_with_the_race_that_it_prevents() -> None:
    schedule = plan(graph("load: -> b @copy | gemm: b -> y @main", buffers="b"))
    entry, load = schedule.certificate()
    assert entry.violation is not None
    assert (entry.violation.kind, entry.violation.later) == ("entry", "load")
    assert load.violation is not None
    assert (load.violation.kind, load.violation.subject, load.violation.earlier, load.violation.later) == ("RAW", "b", "load", "gemm")
    assert load.to_dict()["without"]["message"] == load.violation.message


def test_a_record_stream_comes_with_the_release_that_it_delays() -> None:
    schedule = plan(graph("a: -> x @main | b: x -> y @side", outputs="y"))
    (last,) = [needed for needed in schedule.certificate() if isinstance(needed.step, RecordStream)]
    assert last.violation is not None
    assert last.violation.code == "SG705"


def test_a_wait_that_nobody_needs_is_said_to_be_dispensable() -> None:
    schedule = plan(graph("load: -> b @copy | gemm: b -> y @main", buffers="b"))
    number = next(n for n, step in enumerate(schedule.steps) if isinstance(step, Wait) and step.lane == "main")
    twice = replace(schedule, steps=(*schedule.steps[:number], schedule.steps[number], *schedule.steps[number:]))
    found = {needed.number: needed for needed in certificate(twice)}
    assert found[number].violation is None
    assert found[number].to_dict()["needed"] is False


def test_it_can_be_asked_for_one_wait_and_refuses_other_steps() -> None:
    schedule = plan(graph("load: -> b @copy | gemm: b -> y @main", buffers="b"))
    number = ordering_steps(schedule)[-1]
    assert [needed.number for needed in schedule.certificate([number])] == [number]
    launch = next(n for n in range(len(schedule.steps)) if n not in ordering_steps(schedule))
    with pytest.raises(ScheduleError, match=f"step {launch} orders nothing"):
        schedule.certificate([launch, number])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), release=st.sampled_from(["default", "early"]))
def test_no_plan_has_a_wait_that_nobody_needs(data: st.DataObject, release: str) -> None:
    schedule = plan(random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=9), release=release)
    found = list(schedule.certificate())
    assert [needed.step for needed in found] == [s for s in schedule.steps if isinstance(s, Wait | HostWait | RecordStream)]
    assert all(needed.violations for needed in found)
