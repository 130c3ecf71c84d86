"""Progress: on a terminal one line after two seconds, elsewhere one every ten seconds, nothing with --json or -q."""

from __future__ import annotations

import io

import pytest

from streamgraph.commands.progress import CLEAR, Progress, progress
from streamgraph.commands.report import Report


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def after(step: Progress, clock: Hand, *moments: float) -> None:
    for moment in moments:
        clock.time = 100.0 + moment
        step.poll()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_gets_one_line_after_two_seconds_and_loses_it_in_the_end() -> None:
    clock, stream = Hand(), Terminal()
    with Progress("timing", "round", None, clock) as step:
        step.stream, step._rewrites, step._next = stream, True, clock() + 2.0
        after(step, clock, 1.0, 1.9)
        assert stream.getvalue() == ""
        step(3, 20)
        after(step, clock, 2.0, 2.1)
        assert stream.getvalue() == f"{CLEAR}timing: 3 of 20 rounds, 2 s, 1.5 rounds/s, 11 s left"
    assert stream.getvalue().endswith(CLEAR)
    assert "\n" not in stream.getvalue()


def test_what_is_no_terminal_gets_a_line_every_ten_seconds() -> None:
    clock, stream = Hand(), io.StringIO()
    step = Progress("comparing", "", stream, clock)
    after(step, clock, 2.0, 9.9)
    assert stream.getvalue() == ""
    after(step, clock, 10.0, 11.0, 19.0, 20.5)
    assert stream.getvalue() == "comparing: 10 s\ncomparing: 20 s\n"


def test_a_dumb_terminal_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    clock, stream = Hand(), Terminal()
    step = Progress("running", "", stream, clock)
    after(step, clock, 5.0, 130.0)
    assert stream.getvalue() == "running: 2 min\n"


def test_a_short_run_says_nothing_at_all() -> None:
    stream = Terminal()
    with Progress("running", "", stream) as step:
        step(1, 2)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("quiet", [{"as_json": True}, {"quiet": True}])
def test_json_and_quiet_have_no_progress_and_no_thread(quiet: dict[str, bool]) -> None:
    with progress(Report("run", **quiet), "running") as step:  # type: ignore[arg-type]
        assert step.stream is None
        assert step._thread is None
        step.poll()


def test_the_thread_ends_when_the_work_fails() -> None:
    step = Progress("running", "", io.StringIO())
    with pytest.raises(ValueError, match="no"), step:
        raise ValueError("no")
    assert step._thread is not None
    assert not step._thread.is_alive()
