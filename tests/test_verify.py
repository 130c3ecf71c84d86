"""The verifier: what it must say about labelled schedules, and its agreement with a search of all interleavings."""

from __future__ import annotations

import ast
import itertools
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamgraph.verify
from streamgraph.errors import Location, VerificationError
from streamgraph.model import Box, Program
from streamgraph.schedule import HostWait, Lane, Launch, Record, RecordStream, Release, Schedule, Step, Wait
from streamgraph.storages import meets
from streamgraph.verify import Violation, ensure, verify
from streamgraph.verify.conflicts import _touching
from tests.exploration import Broken, explore
from tests.labelled import CLEAN, FORKED, RACY, REFILL, REFILL_STEPS, Story, facts, fork, program, schedule, story, without

PAIRED = {"SG703", "SG705"}


def named(violation: Violation) -> Broken:
    """A violation as the exploration names a broken pair."""
    if violation.later:
        return Broken(violation.earlier, violation.later, violation.across_runs)
    return Broken(violation.earlier, f"release {violation.subject}", violation.across_runs)


def pairs(found: tuple[Violation, ...]) -> set[Broken]:
    """The pairs among the violations; faults of single steps have no earlier side."""
    return {named(violation) for violation in found if violation.code in PAIRED and violation.earlier}


def agree(of: Schedule) -> tuple[bool, int]:
    """Assert that clocks and exploration agree; returns whether the schedule is racy, and the states visited."""
    found = pairs(verify(of))
    explored = explore(of)
    assert found <= explored.broken, f"not broken in any interleaving: {sorted(found - explored.broken)}\n{of}"
    assert bool(found) == bool(explored.broken), f"missed: {sorted(explored.broken)}\n{of}"
    # What is reported is enough: with those edges added, nothing else is broken.
    mended = explore(of, found)
    assert mended.stuck or not mended.broken, f"implied by nothing reported: {sorted(mended.broken)} of {sorted(found)}\n{of}"
    return bool(found), explored.states


@pytest.mark.parametrize("story", CLEAN, ids=lambda story: story.name)
def test_clean_story_has_no_violation_and_no_bad_interleaving(story: Story) -> None:
    assert [str(violation) for violation in verify(story.schedule)] == []
    explored = explore(story.schedule)
    assert explored.broken == set()
    assert not explored.stuck


@pytest.mark.parametrize("story", RACY, ids=lambda story: story.name)
def test_faulty_story_has_exactly_its_violations(story: Story) -> None:
    assert {facts(violation) for violation in verify(story.schedule)} == story.expected


@pytest.mark.parametrize("story", RACY, ids=lambda story: story.name)
def test_faulty_story_agrees_with_all_interleavings(story: Story) -> None:
    agree(story.schedule)


@pytest.mark.parametrize("story", CLEAN, ids=lambda story: story.name)
def test_every_story_with_one_step_removed_moved_or_sent_to_another_lane_agrees_with_all_interleavings(story: Story) -> None:
    steps, lanes = story.schedule.steps, story.schedule.lanes
    for index, step in enumerate(steps):
        rest = steps[:index] + steps[index + 1 :]
        mutants = [rest, *((*rest[:place], step, *rest[place:]) for place in range(len(steps)) if place != index)]
        if isinstance(step, Wait | Record | RecordStream):
            mutants += [(*steps[:index], replace(step, lane=lane.name), *steps[index + 1 :]) for lane in lanes if not lane.is_host]
        for mutant in mutants:
            if not any(isinstance(s, Wait) and s.lane == "host" for s in mutant):
                agree(replace(story.schedule, steps=mutant))


# Random schedules: a few tasks over a few tensors, on random lanes, with a random part of the waits that would make them safe.

TENSORS = (
    "input a, input h cpu, buffer b[4], buffer s cpu, buffer m[2;2], resource r, ring w[3]/2, value v, value u cpu, "
    "view left=b[0:2], view mid=b[1:3], view right=b[2:4], view row=m[0;0:2], view column=m[0:2;1]"
)


def random_program(rng: random.Random) -> Program:
    tasks: list[str] = []
    made: list[str] = []
    ring = 0
    sliced = rng.random() < 0.3  # mostly boxes of one buffer
    for number in range(rng.randint(1, 6)):
        host = rng.random() < 0.2
        existing = ["a", "h", "b", "s", "m", "left", "mid", "right", "row", "column", *made]
        if ring:
            existing.append(f"w@{rng.randrange(ring)}")
        if sliced:
            existing = ["b", "left", "mid", "right"]
        chosen = rng.sample(existing, min(len(existing), rng.randint(0, 2)))
        reads = [name if rng.random() < 0.6 else f"+{name}" for name in chosen]
        if rng.random() < 0.2:
            reads.append("+r")
        writes = []
        if rng.random() < 0.6 and not sliced:
            name = rng.choice(["v", "u"])
            writes.append(name)
            made = [*dict.fromkeys([*made, name])]
        elif rng.random() < 0.3 and ring < 3:
            writes.append(f"w@{ring}")
            ring += 1
        elif rng.random() < 0.5:
            writes += [name for name in [rng.choice(["b", "left", "right", "s"])] if name not in [read.lstrip("+") for read in reads]]
        after = [f"after=t{rng.randrange(number)}"] if number and rng.random() < 0.15 else []
        tasks.append(f"t{number}{'!' if host else ''}: {' '.join([*reads, *after])} -> {' '.join(writes)}")
    outputs = " ".join(name for name in made if rng.random() < 0.5)
    return program("|".join(tasks), TENSORS, outputs)


def random_schedule(rng: random.Random) -> Schedule:
    of = random_program(rng)
    names = ["main", "s1", "s2"][: rng.randint(1, 3)]
    kept = rng.choice([0.5, 0.9, 1.0])  # how many of the waits are there that may be needed; few of the others
    order = list(of.tasks)
    if rng.random() < 0.3:
        first, second = rng.randrange(len(order)), rng.randrange(len(order))
        order[first], order[second] = order[second], order[first]
    lane = {task.name: "host" if task.host else rng.choice(names) for task in of.tasks}
    steps: list[Step] = [Record("e", "main", "entry")]
    steps += [HostWait(f"e{task.name}", previous=True) for task in order if not task.host and rng.random() < kept / 2]
    entered = len(steps)
    steps += [Wait("e", name) for name in names[1:] if rng.random() < max(kept, 0.9)]
    bare = Schedule(of, tuple(Lane(name) for name in [*names, "host"]), ())
    touched = {task.name: {access.storage for access in bare.accesses.of_task[of.index_of_task[task.name]]} for task in of.tasks}
    storages = bare.accesses.storages
    labels = []
    for number, storage in enumerate(storages):
        if storage.producer is not None:
            home = "host" if storage.host else lane[of.tasks[storage.producer].name]
            labels.append((storage.label, home, number in bare.accesses.output_storages))
    early = {label for label, _, _ in labels if rng.random() < 0.6}
    left = [Release(label, home, previous=True) for label, home, output in labels if not output and label not in early]
    place = entered if rng.random() < 0.3 else len(steps)
    steps[place:place] = left
    issued: list[str] = []
    for task in order:
        for name in issued:
            if rng.random() < (kept if touched[name] & touched[task.name] or name in task.after else 0.1):
                steps.append(HostWait(f"e{name}") if task.host else Wait(f"e{name}", lane[task.name]))
        steps += [Launch(task.name, lane[task.name]), Record(f"e{task.name}", lane[task.name], task.name)]
        issued.append(task.name)
    for name in issued:
        steps += [Wait(f"e{name}", target) for target in names[1:] if rng.random() < 0.1]
        if rng.random() < max(kept, 0.9):
            steps.append(Wait(f"e{name}", "main"))
        if rng.random() < kept / 2:
            steps.append(HostWait(f"e{name}"))
    for label, home, output in labels:
        others = [name for name in names if name != home and home != "host"]
        steps += [RecordStream(label, name) for name in others if rng.random() < (0.9 if output else 0.3)]
        if label in early and not output:
            steps.append(Release(label, home))
    if rng.random() < 0.3:  # one more fault, anywhere
        step = steps.pop(rng.randrange(len(steps)))
        steps.insert(rng.randrange(len(steps) + 1), step)
    return replace(bare, steps=tuple(steps))


@pytest.mark.parametrize("block", range(10))
def test_clocks_agree_with_all_interleavings_of_random_schedules(block: int) -> None:
    racy = states = 0
    for seed in range(block * 200, block * 200 + 200):
        is_racy, visited = agree(random_schedule(random.Random(seed)))
        racy, states = racy + is_racy, states + visited
    assert 20 <= racy <= 190, "both kinds must occur, or the agreement says little"
    assert states > 1000


@given(st.integers(0, 2**32), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_adding_a_wait_to_a_safe_schedule_keeps_it_safe(seed: int, rng: random.Random) -> None:
    of = random_schedule(random.Random(seed))
    events = [(number, step.event) for number, step in enumerate(of.steps) if isinstance(step, Record)]
    before = pairs(verify(of))
    place, event = rng.choice(events)
    at = rng.randint(place + 1, len(of.steps))
    more = Wait(event, rng.choice([lane.name for lane in of.lanes if not lane.is_host]))
    after = replace(of, steps=(*of.steps[:at], more, *of.steps[at:]))
    assert before or not pairs(verify(after))


boxes = st.lists(st.tuples(*[st.tuples(st.integers(0, 4), st.integers(0, 4))] * 2), max_size=8, unique=True)


@given(boxes, st.booleans())
def test_the_sweep_over_boxes_finds_exactly_those_that_meet(shapes: list[Box], whole: bool) -> None:
    all_boxes: list[Box | None] = [*shapes, *([None] if whole else [])]
    touching = _touching(all_boxes)
    for first, second in itertools.product(all_boxes, repeat=2):
        assert (second in touching[first]) == meets(first, second)
    assert all(len(found) == len(set(found)) for found in touching.values())


# Single rules.


def test_a_release_is_safe_where_a_recorded_lane_has_seen_the_use() -> None:
    text = next(s for s in CLEAN if s.name.startswith("record_stream of one lane")).text
    fine = story("", "make: p -> x | far: x -> f | near: x f -> g", text, "input p")
    assert verify(fine.schedule) == ()
    blind = story("", "make: p -> x | far: x -> f | near: x f -> g", without(text, "record_stream"), "input p")
    assert {facts(violation) for violation in verify(blind.schedule)} == {("SG705", "release", "near", "x.1")}


def test_record_stream_guards_the_tail_of_a_lane_and_not_only_what_stood_there_when_it_was_called() -> None:
    steps = "launch a @main; record e0 @main # after a\nrecord_stream x.1 @s1; wait e0 @s1; launch b @s1; record e1 @s1 # after b\n"
    of = program("a: p -> x | b: x ->", "input p")
    assert verify(schedule(of, steps + "release x.1 @main; wait e1 @main")) == ()
    assert verify(schedule(of, without(steps, "record_stream") + "\nrecord_stream x.1 @s1; release x.1 @main; wait e1 @main")) == ()


def test_a_hostwait_for_the_previous_run_does_nothing_in_the_first_run() -> None:
    of = program("up: p -> x | down/copy: x -> r | show!: r ->", "input p, value r cpu")
    steps = """
    launch up @main; record e0 @main # after up
    {} ; wait e0 @copy; launch down @copy; record e1 @copy # after down
    {} ; launch show @host; release r.1 @host; record e2 @host # after show
    wait e1 @main; release x.1 @main; wait e2 @main
    """
    assert verify(schedule(of, steps.format("hostwait e1 previous", "hostwait e1"))) == ()
    found = verify(schedule(of, steps.format("hostwait e1 previous", "hostwait e0")))
    assert {facts(violation) for violation in found} == {("SG703", "RAW", "down", "show")}


def test_a_ring_does_not_change_the_order_of_host_tasks() -> None:
    of = program("a!: -> w@0 | b!: -> w@1 | c!: w@0 -> | d!: w@1 ->", "ring w[2]/1 cpu")
    inverted = "launch a @host; launch c @host; launch b @host; launch d @host; record e @host # after d\nwait e @main"
    assert {facts(v) for v in verify(schedule(of, inverted))} == {("SG703", "host order", "b", "c")}
    declared = "launch a @host; launch b @host; launch c @host; launch d @host; record e @host # after d\nwait e @main"
    assert {facts(v) for v in verify(schedule(of, declared))} == {("SG703", "WAR", "c", "b")}


def test_every_race_of_a_lane_is_one_missing_edge() -> None:
    of = program("make: p -> x | " + " | ".join(f"r{n}: x ->" for n in range(20)), "input p", "x")
    steps = ["record e9 @main # after entry", "wait e9 @s1", "launch make @main", *(f"launch r{n} @s1" for n in range(20))]
    found = verify(schedule(of, "; ".join(steps).replace("entry;", "entry\n")))
    assert [facts(v) for v in found] == [("SG703", "RAW", "make", "r0"), ("SG703", "exit", "r19", "exit")]


def test_a_schedule_that_is_wrong_all_over_reports_at_most_a_thousand() -> None:
    of = program(" | ".join(f"t{n}: -> x{n}" for n in range(3000)))
    assert len(verify(schedule(of, ""))) == 1000


def test_lanes_are_checked() -> None:
    of = program("a: p -> x", "input p", "x")
    steps = schedule(of, "launch a @main").steps
    for lanes in [(), ("s1", "main"), ("main", "main"), ("main", "host", "s1")]:
        assert "SG702" in {v.code for v in verify(Schedule(of, tuple(map(Lane, lanes)), steps))}
    assert verify(Schedule(of, (Lane("main"), Lane("s1")), steps)) == ()


def test_a_host_wait_needs_the_host_lane_in_the_list() -> None:
    of = schedule(program(*REFILL), REFILL_STEPS)
    assert verify(of) == ()
    assert {v.subject for v in verify(replace(of, lanes=of.lanes[:-1]))} == {"host"}


def test_the_host_cannot_wait_as_a_stream_does() -> None:
    found = verify(schedule(program(*REFILL), REFILL_STEPS + "\nwait e1 @host"))
    assert {facts(v) for v in found} == {("SG704", "event", "", "e1")}


def test_another_program_can_be_checked_against() -> None:
    of = schedule(program("a: p -> x", "input p", "x"), "launch a @main")
    other = program("a: p -> x | b: p -> y", "input p", "x")
    assert {facts(v) for v in verify(of, other)} == {("SG702", "structure", "b", "b"), ("SG705", "release", "", "y.1")}


def test_a_race_reads_as_a_sentence_in_the_users_names() -> None:
    (found,) = verify(fork("", without(FORKED, "wait e0")).schedule)
    assert found.message == (
        "race: 'norm' (@s1) reads 'x' while 'load' (@main) may still write it: no wait between step 3 and step 5 (RAW x: load -> norm)"
    )
    assert found.help == "record an event after 'load' on @main, and let @s1 wait for it before 'norm'"
    assert (found.subject, found.lanes, found.steps, found.across_runs) == ("x", ("main", "s1"), (3, 5), False)


def test_a_race_from_run_to_run_says_so() -> None:
    (found,) = verify(schedule(program(*REFILL), without(REFILL_STEPS, "hostwait e1")))
    assert found.message == (
        "race: 'fill' (@host) of the next run writes 'st' while 'upload' (@copy) may still read it: "
        "no wait between step 6 and step 1 of the next run (WAR st: upload -> fill)"
    )
    assert found.across_runs


def test_ensure_returns_a_safe_schedule_itself() -> None:
    fine = fork("", FORKED).schedule
    assert ensure(fine) is fine


def test_ensure_raises_all_violations_at_the_places_of_their_tasks() -> None:
    racy = fork("", without(FORKED, "wait e0", "release x.1")).schedule
    place = Location("story.yaml", 7)
    tasks = tuple(replace(task, location=place) if task.name == "norm" else task for task in racy.program.tasks)
    with pytest.raises(VerificationError, match=re.escape("story.yaml:7:1: error[SG703]: race: 'norm'")) as caught:
        ensure(replace(racy, program=replace(racy.program, tasks=tasks)))
    assert [problem.code for problem in caught.value.problems] == ["SG703", "SG705"]


def test_violations_come_in_issue_order_whatever_the_hash_seed() -> None:
    code = """
import random
from streamgraph.verify import verify
from tests.test_verify import random_schedule
for seed in range(60):
    print(*verify(random_schedule(random.Random(seed))), sep="\\n")
"""
    texts = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert texts[0].stdout == texts[1].stdout
    assert "SG703" in texts[0].stdout


def test_the_verifier_imports_no_planner_and_nothing_heavy() -> None:
    allowed = {"collector", "devices", "errors", "model", "schedule", "steps", "storages", "verify"}
    for path in sorted(Path(streamgraph.verify.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                parts = (node.module or "").split(".")
                assert parts[0] != "streamgraph" or parts[1] in allowed, f"{path.name} imports {node.module}"
                assert node.level == 0
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"torch", "networkx", "pydantic", "yaml"}


def test_an_urgent_launch_needs_a_kernel_and_a_task_of_the_program() -> None:
    of = program("a: p -> x", "input p", "x")
    assert verify(schedule(of, "launch a @main urgent")) == ()
    unknown = verify(schedule(of, "launch a @main urgent; launch nobody @main urgent"))
    assert {facts(v) for v in unknown} == {("SG702", "structure", "nobody", "nobody")}
    on_host = verify(schedule(program(*REFILL), REFILL_STEPS.replace("launch fill @host", "launch fill @host urgent")))
    assert {facts(v) for v in on_host} == {("SG702", "structure", "fill", "fill")}
    assert "only kernels have a priority" in on_host[0].message
