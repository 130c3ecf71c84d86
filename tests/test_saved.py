"""Saved schedules: the same after a round trip, and refused when changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.errors import ScheduleError, SpecError, VerificationError
from streamgraph.plan import plan
from streamgraph.saved import _digest, from_json, to_dict, to_json
from streamgraph.schedule import Schedule
from tests.programs import random_program
from tests.support import graph


@settings(max_examples=100)
@given(data=st.data())
def test_a_schedule_is_the_same_after_a_round_trip(data: st.DataObject) -> None:
    schedule = plan(random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=10))
    again = from_json(to_json(schedule))
    assert again == schedule
    assert str(again) == str(schedule)
    assert again.notes == schedule.notes  # which `==` leaves out


def saved() -> dict[str, Any]:
    return to_dict(plan(graph("a: -> x @s1 | b: x -> y @s2 | c: y -> z @main", outputs="z")))


def resealed(data: dict[str, Any]) -> str:
    body = {key: value for key, value in data.items() if key != "digest"}
    return json.dumps({**body, "digest": _digest(body)})


def test_a_schedule_of_the_first_version_is_read_and_has_no_notes() -> None:
    data = saved()
    del data["notes"]
    again = from_json(resealed({**data, "streamgraph_schedule": 1}))
    assert again == from_json(json.dumps(saved()))
    assert again.notes == ()


def test_a_schedule_of_the_second_version_is_read() -> None:
    assert from_json(resealed({**saved(), "streamgraph_schedule": 2})) == from_json(json.dumps(saved()))


def test_what_the_other_policies_gave_is_saved() -> None:
    schedule = plan(graph("a: -> x | b: -> y | c: x y -> z", outputs="z"))
    assert schedule.notes
    assert from_json(to_json(schedule)).notes == schedule.notes


def test_a_dropped_wait_is_refused_even_with_a_right_digest() -> None:
    data = saved()
    data["steps"] = [step for step in data["steps"] if not step.startswith("wait e0")]
    with pytest.raises(VerificationError, match=r"'b' .* 'a'|'a' .* 'b'"):
        from_json(resealed(data))


def test_an_edited_file_is_refused_by_its_digest() -> None:
    data = saved()
    data["options"]["order"] = "auto"
    with pytest.raises(ScheduleError, match="digest does not match"):
        from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ("[]", "does not begin with"),
        ('{"streamgraph_schedule": 4}', "does not begin with"),
        ('{"streamgraph_schedule": true}', "does not begin with"),
        ('{"streamgraph_schedule": [1]}', "does not begin with"),
        ('{"streamgraph_schedule": 2, "program": {}, "lanes": [], "steps": [], "options": {}, "digest": ""}', "keys are not those"),
        ('{"streamgraph_schedule": 2, "program": {}, "lanes": [], "steps": [], "options": {}, "notes": [3], "digest": ""}', "wrong kind"),
        ('{"streamgraph_schedule": 1}', "keys are not those"),
        ('{"a": 1, "a": 2}', "stands twice"),
        ('{"a": NaN}', "NaN is not a number"),
        ("[" * 100_000, "nested too deeply"),
        ('{"streamgraph_schedule": 1, "program": {}, "lanes": [], "steps": [3], "options": {}, "digest": ""}', "of the wrong kind"),
        ('{"streamgraph_schedule": 1, "program": [], "lanes": 7, "steps": [], "options": {}, "digest": ""}', "of the wrong kind"),
    ],
)
def test_what_is_not_a_schedule_is_refused_with_a_reason(text: str, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        from_json(text)


def test_a_line_that_is_no_step_is_named() -> None:
    data = saved()
    data["steps"][1] = "wait for it"
    with pytest.raises(ScheduleError, match="line 2 is not a step"):
        from_json(resealed(data))


def test_a_lane_that_the_steps_do_not_have_is_refused() -> None:
    data = saved()
    data["lanes"] = data["lanes"][:1]
    with pytest.raises(VerificationError):
        from_json(resealed(data))


def test_a_program_that_is_wrong_is_refused() -> None:
    data = saved()
    data["program"]["tasks"]["b"]["reads"] = "nothing"
    with pytest.raises(SpecError, match="nothing"):
        from_json(resealed(data))


def test_schedule_offers_both_directions() -> None:
    schedule = plan(graph("a: -> x | b: x -> y"))
    assert Schedule.from_json(schedule.to_json()) == schedule
