"""Progress of what takes long, on stderr: how far it is, and how long the rest may take.

On a terminal one line, rewritten, once two seconds have passed, and gone in the end. Elsewhere a line of its own every ten seconds. Nothing
with `--json` or `--quiet`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TextIO

from streamgraph.commands.report import Report

QUIET_FOR, REWRITE, EVERY = 2.0, 0.5, 10.0  # seconds
CLEAR = "\r\x1b[K"


class Progress:
    """`with progress(report, "measuring", "run") as step: ... step(3, 20)`. A thread of its own writes, so one long call is no silence."""

    def __init__(self, what: str, unit: str, stream: TextIO | None, now: Callable[[], float] = time.monotonic) -> None:
        self.what, self.unit, self.stream, self._now = what, unit, stream, now
        self._rewrites = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._begun = now()
        self._next = self._begun + (QUIET_FOR if self._rewrites else EVERY)
        self._at: tuple[int, int] = (0, 0)
        self._shown = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, done: int, total: int) -> None:
        """So many of so many are done. Cheap: it only takes note."""
        self._at = (done, total)

    def poll(self) -> None:
        """Write a line if it is time for one."""
        now = self._now()
        if self.stream is None or now < self._next:
            return
        self._next = now + (REWRITE if self._rewrites else EVERY)
        self._shown = True
        self.stream.write(f"{CLEAR}{self.line()}" if self._rewrites else f"{self.line()}\n")
        self.stream.flush()

    def line(self) -> str:
        """How far it is, in words."""
        passed, (done, total) = self._now() - self._begun, self._at
        if not total:
            return f"{self.what}: {_seconds(passed)}"
        text = f"{self.what}: {done:,} of {total:,} {self.unit}s, {_seconds(passed)}"
        if not done or passed <= 0:
            return text
        return f"{text}, {done / passed:.3g} {self.unit}s/s, {_seconds(passed / done * (total - done))} left"

    def __enter__(self) -> Progress:
        if self.stream is not None:
            self._thread = threading.Thread(target=self._watch, name="streamgraph progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self.stream is not None and self._shown and self._rewrites:
            with suppress(OSError, ValueError):
                self.stream.write(CLEAR)
                self.stream.flush()

    def _watch(self) -> None:
        with suppress(OSError, ValueError):  # nobody reads stderr any more
            while not self._ended.wait(REWRITE / 2):
                self.poll()


def progress(report: Report, what: str, unit: str = "") -> Progress:
    """The progress of what a command does next; silent with `--json` and `--quiet`."""
    return Progress(what, unit, None if report.as_json or report.quiet else sys.stderr)


def _seconds(time: float) -> str:
    return f"{time:.0f} s" if time < 120 else f"{time / 60:.0f} min"
