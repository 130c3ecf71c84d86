"""Frontier: finds exactly the boxes that meet another one, and cuts them exactly, whatever was put in before."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.frontier import Entry, Frontier, Layout
from streamgraph.model import Box
from streamgraph.storages import meets

SIZE = 40


def spans(size: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).map(lambda ends: (min(ends), max(ends) + 1))


boxes = st.one_of(
    st.lists(st.tuples(spans(SIZE)), min_size=1, max_size=60), st.lists(st.tuples(spans(3), spans(SIZE)), min_size=1, max_size=60)
)


def points(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(start, stop) for start, stop in box)))


@settings(max_examples=200, deadline=None)
@given(given_boxes=boxes)
def test_the_boxes_that_meet_another_are_all_found_and_no_other(given_boxes: list[Box]) -> None:
    frontier = Frontier(Layout.of(given_boxes))
    for number, box in enumerate(given_boxes):
        assert [entry.task for entry in frontier.meeting(box)] == [n for n, other in enumerate(given_boxes[:number]) if meets(other, box)]
        frontier.add(Entry(box, number, 0))


@settings(max_examples=200, deadline=None)
@given(given_boxes=boxes)
def test_what_is_cut_out_belongs_to_the_last_and_nothing_else_is_lost(given_boxes: list[Box]) -> None:
    """Against a picture: for each element, the last box that was put over it."""
    frontier = Frontier(Layout.of(given_boxes))
    owner: dict[tuple[int, ...], int] = {}
    for number, box in enumerate(given_boxes):
        found = frontier.meeting(box)
        assert {entry.task for entry in found} == {owner[point] for point in points(box) if point in owner}
        frontier.replace(found, box)
        frontier.add(Entry(box, number, 0))
        owner |= dict.fromkeys(points(box), number)


def test_a_scalar_is_one_box_without_dimensions() -> None:
    frontier = Frontier(Layout.of([()]))
    frontier.add(Entry((), 0, 0))
    found = frontier.meeting(())
    assert [entry.task for entry in found] == [0]
    frontier.replace(found, ())
    assert frontier.meeting(()) == []


def test_answers_come_by_turn_and_then_by_task() -> None:
    frontier = Frontier(Layout.of([((0, 8),), ((0, 4),), ((4, 8),)]))
    for box, task, turn in ((((4, 8),), 1, 1), (((0, 8),), 3, 0), (((0, 4),), 2, 0)):
        frontier.add(Entry(box, task, turn))
    assert [(entry.turn, entry.task) for entry in frontier.meeting(((0, 8),))] == [(0, 2), (0, 3), (1, 1)]
