"""The public `plan`: every form of a spec, and options that have no meaning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamgraph.builder import Graph
from streamgraph.errors import SpecError, VerificationError
from streamgraph.passes.policies import POLICIES
from streamgraph.plan import plan
from streamgraph.schedule import Schedule
from tests.support import graph

SPEC = {"streamgraph": 1, "name": "two", "tasks": {"a": {"run": "f", "writes": "x"}, "b": {"run": "f", "reads": "x", "writes": "y"}}}


def test_every_form_of_a_spec_gives_the_same_plan(tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(SPEC, sort_keys=False))
    made = Graph("two")
    made.task("a", "f", writes="x")
    made.task("b", "f", reads="x", writes="y")
    plans = [plan(form) for form in (str(path), path, SPEC, made, made.program())]
    assert len({"\n".join(str(step).split(" (")[0] for step in p.steps) for p in plans}) == 1
    assert plan(plans[0]) is plans[0]


def test_options_without_meaning_are_reported_together() -> None:
    with pytest.raises(SpecError) as caught:
        plan(SPEC, streams=0, order="random", release="late")  # type: ignore[arg-type]
    assert [problem.message for problem in caught.value.problems] == ["order is 'random'", "release is 'late'", "streams is 0"]
    for streams in (True, 1.5, -1, "two"):
        with pytest.raises(SpecError, match="must be 'auto' or a whole number from 1"):
            plan(SPEC, streams=streams)  # type: ignore[arg-type]


def test_policy_and_issue_are_among_the_options_that_are_checked() -> None:
    with pytest.raises(SpecError) as caught:
        plan(SPEC, policy="fastest", issue="later")  # type: ignore[arg-type]
    assert [problem.message for problem in caught.value.problems] == ["issue is 'later'", "policy is 'fastest'"]
    assert "critical_path" in str(caught.value)


@pytest.mark.parametrize("policy", ["auto", *POLICIES])
def test_every_policy_gives_a_proved_schedule_that_names_it(policy: Any) -> None:
    schedule = plan(graph("a: -> x | b: -> y | c: x -> z | d: y z -> o @main", outputs="o", cost=50.0), policy=policy)
    assert dict(schedule.options)["policy"] == policy


def test_a_machine_and_costs_decide_what_is_worth_a_lane() -> None:
    made = graph("a: -> x | b: -> y | c: x y -> z", cost=40.0)
    assert len(plan(made).lanes) == 2
    assert len(plan(made, machine="cpu").lanes) == 2
    assert len(plan(made, costs={"a": 1.0, "b": 1.0}).lanes) == 1


def test_running_passes_the_policy_on_and_a_graph_is_planned_as_captured() -> None:
    from streamgraph.run import compile

    made = graph("a: -> x | b: x -> y | c: -> z | d: z -> w | e: y w -> o", cost=6.0)
    assert dict(compile(made, device="sim", policy="opara").schedule.options)["policy"] == "opara"
    assert len(compile(made, device="sim").schedule.lanes) == 1
    assert len(compile(made, device="sim", executor="graph").schedule.lanes) == 2


def test_all_verbs_take_the_planners_options_in_the_same_way() -> None:
    import inspect

    from streamgraph.compare import compare
    from streamgraph.run import compile, run

    planners = {name: (p.default, p.annotation) for name, p in inspect.signature(plan).parameters.items() if name not in ("spec", "issue")}
    for verb in (run, compile, compare):
        own = {name: (p.default, p.annotation) for name, p in inspect.signature(verb).parameters.items()}
        assert {name: own.get(name) for name in planners} == planners, verb.__name__
    running = [set(inspect.signature(verb).parameters) for verb in (compile, compare)]
    assert running[0] == running[1]


def test_a_schedule_knows_what_it_was_planned_for() -> None:
    made = graph("a: -> x | b: x -> y | c: -> z | d: z -> w | e: y w -> o", cost=6.0)
    assert plan(made).issue == "eager"
    assert plan(made, issue="captured").issue == "captured"
    assert Schedule.from_json(plan(made, issue="captured").to_json()).issue == "captured"


def test_something_else_is_not_a_spec() -> None:
    with pytest.raises(SpecError, match="a spec cannot be a int"):
        plan(3)  # type: ignore[arg-type]


def test_a_schedule_is_verified_before_it_is_given_back() -> None:
    schedule = plan(graph("a: -> x @s1 | b: x -> y @s2"))
    broken = Schedule(schedule.program, schedule.lanes, tuple(s for s in schedule.steps if not str(s).startswith("wait e0")))
    with pytest.raises(VerificationError, match="RAW x: a -> b"):
        plan(broken)


def test_params_for_a_graph_are_an_error() -> None:
    with pytest.raises(SpecError, match="has none"):
        plan(graph("a: -> x"), params={"n": 1})


def test_planning_imports_no_torch() -> None:
    code = f"import sys, streamgraph\nstreamgraph.plan({SPEC!r})\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
