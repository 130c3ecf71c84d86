"""Errors: the form in which a person meets them, and one catalogue for all codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamgraph
from streamgraph import errors
from streamgraph.errors import CATALOGUE, Location, Problem, SpecError, StreamgraphError, collapsed, quoted

PACKAGE = Path(streamgraph.__file__).parent


def test_a_problem_shows_place_line_caret_and_remedy() -> None:
    place = Location("cameras.yaml", 14, 5, 5, "    raeds: [frame]")
    text = str(Problem("SG101", "unknown key 'raeds'", place, "did you mean 'reads'?"))
    assert text.splitlines() == [
        "cameras.yaml:14:5: error[SG101]: unknown key 'raeds'",
        "   |",
        "14 |     raeds: [frame]",
        "   |     ^^^^^",
        "   = help: did you mean 'reads'?",
    ]


def test_a_second_place_is_shown_as_a_note() -> None:
    first = Location("a.yaml", 3, 1, 4, "name: a")
    text = str(Problem("SG002", "the key 'name' stands twice", Location("a.yaml", 4, 1, 4, "name: b"), None, (("first here", first),)))
    assert "   = note: first here: a.yaml:3:1" in text


def test_problems_come_in_the_order_of_the_file_each_once_and_at_most_twenty() -> None:
    problems = [Problem("SG101", f"number {line}", Location("a.yaml", line)) for line in range(30, 0, -1)]
    text = str(SpecError(*problems, problems[0]))
    assert text.startswith("a.yaml:1:1: error[SG101]: number 1")
    assert text.endswith("... and 10 more")


def test_a_long_line_is_shown_around_the_caret() -> None:
    line = "x" * 500 + "HERE" + "y" * 500
    lines = str(Problem("SG101", "m", Location("a.yaml", 1, 501, 4, line))).splitlines()
    caret = lines[3].index("^")
    assert lines[2][caret : caret + 4] == "HERE"


@given(text=st.text(max_size=200))
def test_quoted_text_cannot_move_the_cursor_or_reorder_the_line(text: str) -> None:
    shown = quoted(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]", shown)


def test_many_problems_of_one_place_become_one() -> None:
    place = Location("a.yaml", 1)
    alike = [Problem("SG401", f"task 'work@{n}' runs 'f'", place) for n in range(10)]
    (one,) = collapsed(alike)
    assert one.message == "task 'work@0' runs 'f' (and 9 more like it)"
    assert collapsed(alike[:3]) == alike[:3]


def test_every_code_that_is_raised_is_in_the_catalogue_and_every_one_in_it_is_raised() -> None:
    used = set()
    for path in PACKAGE.rglob("*.py"):
        if path.name != "errors.py":
            used |= set(re.findall(r"SG\d{3}", path.read_text()))
    assert used - set(CATALOGUE) == set()
    assert set(CATALOGUE) - used == set()


def test_every_exception_is_in_the_tree_of_the_docstring() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, StreamgraphError)]
    for one in classes:
        assert one.__name__ in str(errors.__doc__)
        assert one.__doc__


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_code_is_explained_in_a_sentence(code: str) -> None:
    assert CATALOGUE[code].rstrip(")").endswith((".", "warning", "`"))
