"""Memory over time, and the layered graph: each against a slow and obvious way to find the same."""

from __future__ import annotations

import itertools
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.model import Kind
from streamgraph.plan import plan
from streamgraph.render.layers import layered
from streamgraph.render.memory import curve, lives, places, size
from streamgraph.schedule import Release
from streamgraph.simulate import simulate
from tests.drawn import host_tasks, prefetch
from tests.programs import seeded


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["device", "host"]))
def test_the_curve_is_the_sum_of_what_lives(seed: int, place: str) -> None:
    schedule = plan(seeded(seed, 12))
    found = lives(schedule, simulate(schedule))
    steps = curve(found, place)
    for time, live in zip(steps.times, steps.bytes, strict=True):
        assert live == sum(life.bytes or 0 for life in found if life.place == place and life.start <= time < life.end)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_a_storage_lives_through_all_its_uses(seed: int) -> None:
    schedule = plan(seeded(seed, 12))
    timeline = simulate(schedule)
    found = {life.storage: life for life in lives(schedule, timeline)}
    for task, touched in zip(schedule.program.tasks, schedule.accesses.of_task, strict=True):
        time = timeline.time_of[task.name]
        for access in touched:
            if schedule.accesses.storages[access.storage].kind is not Kind.RESOURCE:
                life = found[access.storage]
                assert life.start <= time.start
                assert time.end <= life.end


def test_a_value_lives_from_its_task_to_its_release() -> None:
    graph = Graph("short")
    x = graph.input("x", "f32[1024]")
    graph.value("a", "f32[1024]")
    graph.value("b", "f32[1024]")
    a = graph.task("make", "aten.relu", reads=x, writes="a", cost=100.0)
    b = graph.task("use", "aten.relu", reads=a, writes="b", cost=50.0)
    graph.task("more", "aten.neg", reads=b, writes="c", cost=70.0)
    graph.output("c")
    schedule = plan(graph)
    timeline = simulate(schedule)
    assert any(isinstance(step, Release) and step.storage == "a.1" for step in schedule.steps)
    life = next(life for life in lives(schedule, timeline) if schedule.accesses.storages[life.storage].label == "a.1")
    assert (life.start, life.end, life.bytes) == (timeline.time_of["make"].start, timeline.time_of["use"].end, 4096)
    unknown = next(life for life in lives(schedule, timeline) if schedule.accesses.storages[life.storage].label == "c.1")
    assert (unknown.bytes, unknown.end) == (None, timeline.makespan)


def test_host_and_device_are_counted_apart() -> None:
    schedule = host_tasks()
    found = lives(schedule, simulate(schedule))
    assert curve(found, "host").peak[1] == 2 * 4 * 1024 * 1024  # staging, and result at the end
    assert curve(found, "device").peak[1] == 4 * 1024 * 1024


def test_each_gpu_and_the_host_are_counted_apart() -> None:
    schedule = plan(Path(__file__).parents[1] / "specs" / "two_gpus.streamgraph.yaml")
    found, named = lives(schedule, simulate(schedule)), schedule.program.tensor_named
    assert places(schedule.program) == ("cuda:0", "cuda:1", "host")
    storages = schedule.accesses.storages
    lie = {storages[life.storage].label: life.place for life in found}
    assert {place for label, place in lie.items() if label.startswith("inbox")} == {"cuda:1"}
    assert {place for label, place in lie.items() if label.startswith(("batch", "result"))} == {"host"}
    for place in ("cuda:0", "cuda:1"):
        mine = [life for life in found if life.place == place]
        assert {named[storages[life.storage].tensor].device for life in mine} == {place}
        assert 0 < curve(found, place).peak[1] <= sum(life.bytes or 0 for life in mine)


def test_an_empty_curve_has_no_peak() -> None:
    assert curve((), "device").peak == (0.0, 0)


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (512, "512 B"), (2048, "2 KiB"), (432_013_312, "412 MiB"), (1 << 60, "1,048,576 TiB")]
)
def test_sizes_have_binary_units(count: int, said: str) -> None:
    assert size(count) == said


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000))
def test_the_layers_show_the_transitive_reduction(seed: int) -> None:
    schedule = plan(seeded(seed, 16))
    layers = layered(schedule)
    tasks = [box.tasks[0] for box in layers.boxes]
    assert sorted(tasks) == list(range(len(schedule.program.tasks)))
    reduced = nx.transitive_reduction(schedule.graph)
    assert {(tasks[earlier], tasks[later]) for earlier, later in layers.edges} == set(reduced.edges)
    assert layers.hidden == schedule.graph.number_of_edges() - reduced.number_of_edges()
    assert all(layers.boxes[earlier].layer < layers.boxes[later].layer for earlier, later in layers.edges)


def test_boxes_of_a_layer_do_not_overlap_and_stand_around_the_middle() -> None:
    layers = layered(prefetch(40))
    rows: dict[int, list[float]] = {}
    for box in layers.boxes:
        rows.setdefault(box.layer, []).append(box.place)
    for row in rows.values():
        row.sort()
        assert all(right - left >= 1 - 1e-9 for left, right in itertools.pairwise(row))
        assert sum(row) == pytest.approx(0, abs=1e-6)


def test_large_programs_share_boxes_by_family_and_layer() -> None:
    layers = layered(prefetch(2_500))
    assert "boxes" in layers.note
    assert sum(len(box.tasks) for box in layers.boxes) == 5_000
    assert all(layers.boxes[earlier].layer < layers.boxes[later].layer for earlier, later in layers.edges)
