"""The garbage collector rests while a function runs, and is left as it was found."""

from __future__ import annotations

import gc
import inspect
import weakref

import pytest

from streamgraph.collector import uncollected
from streamgraph.plan import plan


def test_it_rests_while_the_function_runs_and_works_again_after_it() -> None:
    assert gc.isenabled()
    assert uncollected(gc.isenabled)() is False
    assert gc.isenabled()


def test_it_works_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        uncollected(lambda: 1 / 0)()
    assert gc.isenabled()


def test_a_collector_that_was_switched_off_stays_off() -> None:
    gc.disable()
    try:
        assert uncollected(uncollected(gc.isenabled))() is False
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_function_keeps_its_signature_and_words() -> None:
    assert list(inspect.signature(plan).parameters)[:2] == ["spec", "params"]
    assert (plan.__doc__ or "").startswith("The race-free schedule of a spec")


def test_what_was_made_is_old_at_once() -> None:
    """Else the collector's first act would be to go through all of it."""
    made = uncollected(lambda: [[number] for number in range(100)])()
    young = {id(thing) for thing in gc.get_objects(generation=0)}
    assert young.isdisjoint(map(id, made))


def test_what_someone_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        uncollected(list)()
        assert gc.get_freeze_count() >= frozen > 0
    finally:
        gc.unfreeze()


def test_rubbish_with_references_to_itself_is_still_found() -> None:
    class Node:
        pass

    def make() -> weakref.ref[Node]:
        node = Node()
        node.me = node  # type: ignore[attr-defined]
        return weakref.ref(node)

    seen = uncollected(make)()
    gc.collect()
    assert seen() is None
