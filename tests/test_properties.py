"""The laws, on random programs: the plan is safe, every step of it is needed, and the verifier can say no."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamgraph.hazards import Hazard, find_hazards, task_graph
from streamgraph.model import Program
from streamgraph.plan import plan
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Step, Wait, parse_steps
from streamgraph.verify import Violation, verify
from tests.programs import random_program, seeded


@st.composite
def programs(draw: st.DrawFn, tasks: int = 9) -> Program:
    return random_program(lambda n: draw(st.integers(0, n - 1)), tasks=tasks)


@st.composite
def schedules(draw: st.DrawFn, tasks: int = 9) -> Schedule:
    order = draw(st.sampled_from(["declared", "auto"]))
    release = draw(st.sampled_from(["default", "early"]))
    streams = draw(st.sampled_from(["auto", 1, 2, 3]))
    return plan(draw(programs(tasks)), order=order, release=release, streams=streams)  # plan() verifies


def without(schedule: Schedule, index: int) -> Schedule:
    return replace(schedule, steps=schedule.steps[:index] + schedule.steps[index + 1 :])


def names(violations: tuple[Violation, ...]) -> set[tuple[str, str]]:
    return {(violation.earlier, violation.later) for violation in violations}


@settings(max_examples=400)
@given(schedule=schedules())
def test_every_plan_is_safe(schedule: Schedule) -> None:
    assert verify(schedule) == ()


@settings(max_examples=300)
@given(schedule=schedules())
def test_without_any_one_wait_the_verifier_names_the_pair_that_it_kept_apart(schedule: Schedule) -> None:
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Wait | HostWait):
            found = verify(without(schedule, index))
            assert found, f"nobody misses {step}"
            wanted = {(reason.earlier, reason.later) for reason in step.reasons}
            if not all(reason.kind == "last use" for reason in step.reasons):
                assert wanted & names(found), f"{step}: {[str(v) for v in found]}"
            else:
                assert any(violation.code == "SG705" for violation in found)


@settings(max_examples=200)
@given(schedule=schedules())
def test_without_any_one_event_its_waits_wait_for_nothing(schedule: Schedule) -> None:
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Record):
            codes = {violation.code for violation in verify(without(schedule, index))}
            assert codes & {"SG704", "SG702"}, step


@settings(max_examples=200)
@given(schedule=schedules())
def test_without_any_one_release_or_record_stream_a_lifetime_is_wrong(schedule: Schedule) -> None:
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Release | RecordStream):
            assert "SG705" in {violation.code for violation in verify(without(schedule, index))}, step


@settings(max_examples=200)
@given(schedule=schedules())
def test_a_release_moved_to_right_after_the_last_use_is_refused_unless_it_stood_there(schedule: Schedule) -> None:
    for index, step in enumerate(schedule.steps):
        if not isinstance(step, Release) or step.previous or step.reasons[0].earlier == step.reasons[0].later:
            continue
        last = next(i for i, s in enumerate(schedule.steps) if isinstance(s, Launch) and s.task == step.reasons[0].earlier)
        between = schedule.steps[last + 1 : index]
        if not any(isinstance(s, Wait) and s.lane == step.lane for s in between):
            continue
        moved = list(schedule.steps)
        del moved[index]
        moved.insert(last + 1, step)
        assert "SG705" in {violation.code for violation in verify(replace(schedule, steps=tuple(moved)))}


@settings(max_examples=200)
@given(schedule=schedules(), data=st.data())
def test_swapping_two_ordered_tasks_is_refused(schedule: Schedule, data: st.DataObject) -> None:
    tasks = schedule.program.tasks
    pairs = [(tasks[a].name, tasks[b].name) for a, b in schedule.graph.edges]
    assume(pairs)
    first, second = data.draw(st.sampled_from(pairs))
    swapped: list[Step] = []
    lane = schedule.lane_of
    for step in schedule.steps:
        if isinstance(step, Launch) and step.task in (first, second):
            other = second if step.task == first else first
            step = Launch(other, lane[step.task])
        swapped.append(step)
    found = verify(replace(schedule, steps=tuple(swapped)))
    assert found


@settings(max_examples=200)
@given(program=programs(), data=st.data())
def test_a_planner_that_overlooks_one_hazard_is_caught(program: Program, data: st.DataObject) -> None:
    """The verifier takes its accesses from the program, so a wrong hazard set cannot hide."""
    graph = task_graph(program)
    pairs = list(graph.edges)
    assume(pairs)
    gone = data.draw(st.sampled_from(pairs))

    def blind(of: Program, accesses: object) -> tuple[Hazard, ...]:
        return tuple(h for h in find_hazards(of, accesses) if (h.earlier, h.later) != gone)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        planner = importlib.import_module("streamgraph.plan")  # the package's own `plan` is the function
        patch.setattr(planner, "find_hazards", blind)
        patch.setattr(planner, "ensure", lambda schedule: schedule)
        schedule = plan(program)
    sound = plan(program)
    if [s for s in schedule.steps if isinstance(s, Wait | HostWait | Launch)] == [
        s for s in sound.steps if isinstance(s, Wait | HostWait | Launch)
    ]:
        return  # another hazard, or a lane, kept the order all the same
    kept = {(step.event, lane) for step in schedule.steps if isinstance(step, Wait) for lane in [step.lane]}
    ordered = schedule.explain(program.tasks[gone[0]].name, program.tasks[gone[1]].name).relations[0].verdict != "may overlap"
    assert ordered or verify(schedule), kept


@settings(max_examples=200)
@given(schedule=schedules())
def test_the_text_of_a_schedule_reads_back(schedule: Schedule) -> None:
    assert parse_steps(str(schedule).splitlines()) == schedule.steps
    again = Schedule.from_text(str(schedule), schedule.program)
    assert {lane.name for lane in again.lanes} <= {lane.name for lane in schedule.lanes}
    assert verify(again) == ()


@settings(max_examples=100)
@given(program=programs())
def test_renaming_the_tasks_renames_the_text_and_nothing_else(program: Program) -> None:
    names = {task.name: f"z{len(program.tasks) - index:03}" for index, task in enumerate(program.tasks) if ":" not in task.name}
    tasks = tuple(
        replace(task, name=names.get(task.name, task.name), after=tuple(names.get(a, a) for a in task.after)) for task in program.tasks
    )
    before, after = plan(program), plan(replace(program, tasks=tasks))

    def shape(schedule: Schedule) -> list[tuple[object, ...]]:
        place = schedule.program.index_of_task
        return [
            (type(step), *(place.get(getattr(step, key, ""), getattr(step, key, None)) for key in ("task", "event", "lane", "storage")))
            for step in schedule.steps
        ]

    assert shape(before) == shape(after)


@settings(max_examples=100)
@given(program=programs())
def test_planning_changes_nothing_of_the_program(program: Program) -> None:
    before = repr(program)
    plan(program)
    assert repr(program) == before


@settings(max_examples=100)
@given(program=programs(), streams=st.integers(1, 4))
def test_adding_a_task_that_touches_nothing_shared_removes_no_wait(program: Program, streams: int) -> None:
    pinned = tuple(replace(task, stream=task.stream or "main") if not task.host else task for task in program.tasks)
    lonely = replace(pinned[0], name="lonely", reads=(), writes=(), updates=(), after=(), host=False, stream="apart", operator="mix")
    before = plan(replace(program, tasks=pinned), streams=streams)
    after = plan(replace(program, tasks=(*pinned, lonely)), streams=streams)

    def waits(schedule: Schedule) -> set[tuple[str, str]]:
        task = schedule.event_task
        return {(task[s.event], s.lane) for s in schedule.steps if isinstance(s, Wait) and s.lane != "apart" and task[s.event] != "lonely"}

    assert waits(before) == waits(after)


def dispensable(program: Program) -> list[str]:
    """The steps that nobody would miss, or whose loss is blamed on the wrong pair, in the plans of a program."""
    found = []
    for order in ("declared", "auto"):
        for release in ("default", "early"):
            schedule = plan(program, order=order, release=release)
            for index, step in enumerate(schedule.steps):
                if isinstance(step, Launch):
                    continue
                violations = verify(without(schedule, index))
                wanted = {(r.earlier, r.later) for r in getattr(step, "reasons", ()) if r.kind != "last use"}
                if not violations or (isinstance(step, Wait | HostWait) and wanted and not wanted & names(violations)):
                    found.append(f"{order} {release}: {step}")
    return found


@pytest.mark.parametrize("block", range(6))
def test_no_step_of_a_seeded_plan_can_be_spared(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        assert dispensable(seeded(seed, tasks=14)) == [], f"seed {seed}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", range(4))
def test_no_step_of_thousands_of_plans_can_be_spared(block: int) -> None:
    for seed in range(1000 + block * 500, 1000 + block * 500 + 500):
        assert dispensable(seeded(seed, tasks=20, lanes=4)) == [], f"seed {seed}"
