"""Names become storages: versions of values, boxes of views, seats in rings."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.model import Family
from streamgraph.seats import seats
from streamgraph.storages import Mode, contains, meets, remainder, trace
from tests.support import program

boxes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).map(lambda p: (min(p), max(p))), min_size=2, max_size=2).map(tuple)


def cells(box: tuple[tuple[int, int], ...]) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(start, stop) for start, stop in box)))


@given(first=boxes, second=boxes)
def test_boxes_meet_exactly_when_they_share_an_element(first: tuple, second: tuple) -> None:
    assert meets(first, second) == bool(cells(first) & cells(second))


@given(first=boxes, second=boxes)
def test_boxes_meet_exactly_when_numpy_says_that_views_share_memory(first: tuple, second: tuple) -> None:
    base = np.zeros((4, 4))
    a, b = (base[tuple(slice(start, stop) for start, stop in box)] for box in (first, second))
    assert meets(first, second) == np.shares_memory(a, b)


@given(outer=boxes, inner=boxes)
def test_what_a_box_leaves_of_another_is_exactly_the_rest(outer: tuple, inner: tuple) -> None:
    rest = list(remainder(outer, inner))
    assert set().union(*map(cells, rest)) == cells(outer) - cells(inner)
    assert sum(len(cells(part)) for part in rest) == len(cells(outer) - cells(inner))


@given(outer=boxes, inner=boxes)
def test_a_box_that_contains_another_leaves_nothing_of_it(outer: tuple, inner: tuple) -> None:
    if contains(outer, inner):
        assert not cells(inner) - cells(outer)


def test_each_write_of_a_value_is_a_new_storage() -> None:
    accesses = trace(program("a: -> h | b: h -> h | c: h -> y"))[0]
    assert [storage.label for storage in accesses.storages] == ["h.1", "h.2", "y.1"]
    assert [(a.storage, a.mode) for a in accesses.of_task[1]] == [(0, Mode.READ), (1, Mode.WRITE)]


def test_an_update_keeps_the_storage() -> None:
    accesses = trace(program("a: -> h | b: -> +h"))[0]
    assert [storage.label for storage in accesses.storages] == ["h.1"]


def test_writing_an_input_makes_a_value_and_leaves_the_callers_tensor() -> None:
    accesses = trace(program("a: x -> x | b: x -> y", inputs="x"))[0]
    assert [storage.label for storage in accesses.storages] == ["x", "x.1", "y.1"]


def test_views_follow_the_newest_version() -> None:
    graph = Graph("views")
    h = graph.value("h", "f32[4]")
    graph.view("front", h, (slice(0, 2),))
    for name in ("a", "b"):
        graph.task(name, "f", writes="h")
        graph.task(f"read_{name}", "f", reads="front")
    accesses = trace(graph.program())[0]
    assert [accesses.storages[touched[0].storage].label for touched in accesses.of_task] == ["h.1", "h.1", "h.2", "h.2"]


def test_ring_members_take_turns_in_their_slots() -> None:
    family = Family("w", (("layer", (0, 1, 2, 3, 4)),), tuple(f"w@{i}" for i in range(5)), 2, "layer")
    found = seats([family])
    assert [(found[f"w@{i}"].slot, found[f"w@{i}"].turn) for i in range(5)] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


def test_a_ring_over_one_of_two_keys_is_a_ring_for_each_item_of_the_other() -> None:
    members = tuple(f"w@{cam}@{layer}" for cam in range(2) for layer in range(4))
    found = seats([Family("w", (("cam", (0, 1)), ("layer", (0, 1, 2, 3))), members, 2, "layer")])
    assert {found[f"w@{cam}@{layer}"].slot for cam in range(2) for layer in range(4)} == {0, 1, 2, 3}
    assert found["w@0@0"].group == ("w@0@0", "w@0@2")
    turned = tuple(f"w@{layer}@{cam}" for layer in range(4) for cam in range(2))
    other = seats([Family("w", (("layer", (0, 1, 2, 3)), ("cam", (0, 1))), turned, 2, "layer")])
    assert other["w@0@1"].group == ("w@0@1", "w@2@1")


def test_a_ring_member_must_be_written_before_it_is_read() -> None:
    graph = Graph("ring")
    w = graph.buffer("w", "f32[4]", each={"i": 2}, slots=1, over="i")
    graph.view("low", w[0], (slice(0, 2),))
    graph.view("high", w[0], (slice(2, 4),))
    graph.task("a", "f", writes="low")
    graph.task("b", "f", writes="high")
    graph.task("c", "f", reads=w[0])
    graph.program()  # both halves together are all of it
    half = Graph("half")
    w = half.buffer("w", "f32[4]", each={"i": 2}, slots=1, over="i")
    half.view("low", w[0], (slice(0, 2),))
    half.task("a", "f", writes="low")
    half.task("c", "f", reads=w[0])
    import pytest

    from streamgraph.errors import SpecError

    with pytest.raises(SpecError, match="task 'c' reads 'w@0', which nothing before it writes"):
        half.program()
