"""Which streams are made current: each task finds its lane's, nothing is switched that is current already, and the caller's come back."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.devices import crosses, first_device
from streamgraph.model import HOST, MAIN
from streamgraph.plan import plan
from streamgraph.schedule import Launch, Schedule
from streamgraph.switches import Place, switches, user
from tests.programs import random_devices, seeded


def played(schedule: Schedule) -> None:
    table, first = switches(schedule), first_device(schedule.program)
    devices = schedule.program.devices or (first,)
    current: dict[str, Place] = {device: (MAIN, device) for device in devices}
    begun, active = dict(current), first
    for number, step in enumerate(schedule.steps):
        if not isinstance(step, Launch):
            assert number not in table.before
            continue
        before = active, dict(current)
        for place in table.before.get(number, ()):
            current[place[1]], active = place, place[1]
        lane = MAIN if step.lane == HOST else step.lane
        own = schedule.device_of[lane]
        assert (active, current[own]) == (own, (lane, own)), "a task finds its lane's stream and device current"
        task = schedule.program.tasks[schedule.program.index_of_task[step.task]]
        ends = crosses(task, schedule.program)
        assert table.targets.get(step.task) == (ends[1] if ends else None)
        if ends is not None:
            assert current[ends[1]] == (lane, ends[1]), "and a copy between devices the stream that its lane has over there"
        if before == (active, current):
            assert number not in table.before, "what is current already is not switched to"
    for place in table.at_end:
        current[place[1]], active = place, place[1]
    assert (active, current) == (first, begun)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 3), streams=st.integers(1, 3))
def test_over_several_devices(seed: int, devices: int, streams: int) -> None:
    played(plan(random_devices(random.Random(seed).randrange, devices), streams=streams))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_on_one_device_a_switch_is_a_change_of_lane(seed: int) -> None:
    schedule = plan(seeded(seed))
    played(schedule)
    lanes = [MAIN, *(MAIN if step.lane == HOST else step.lane for step in schedule.steps if isinstance(step, Launch)), MAIN]
    changes = sum(one != other for one, other in pairwise(lanes))
    table = switches(schedule)
    assert sum(map(len, table.before.values())) + len(table.at_end) == changes


def test_an_output_is_used_by_the_callers_stream_on_its_own_device() -> None:
    graph = Graph("two")
    for number in range(2):
        graph.input(f"x{number}", "i64[8]", device=f"cuda:{number}")
        graph.output(graph.task(f"t{number}", "mix", reads=f"x{number}", writes=f"y{number}", stream=f"lane{number}"))
    schedule = plan(graph)
    number = {storage.label: number for number, storage in enumerate(schedule.accesses.storages)}
    assert user(schedule, number["y0.1"], MAIN) == (MAIN, "cuda:0")
    assert user(schedule, number["y1.1"], MAIN) == (MAIN, "cuda:1")
    assert user(schedule, number["y1.1"], "lane0") == ("lane0", "cuda:0")
