"""The garbage collector rests while a function runs, and is left as it was found."""

from __future__ import annotations

import gc
import inspect

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
