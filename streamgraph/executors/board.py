"""The board of one run on several host threads: what has been issued so far, which lanes have begun and ended, and the earliest error.

A wait is let through only by a mark of its own run, since each run has a board of its own: a stale event cannot pass for a fresh one, and
an event that nobody has recorded yet, for which a CUDA wait would do nothing, cannot pass at all. Every wait's mark stands before it in
issue order, so some lane can always go on; and no thread sleeps with a lock held.

After an error at some step no lane issues a step that stands later in the schedule, but those before it are still run: so the error that is
raised is the first one in issue order, whatever the threads' timing. An interrupt stops every lane at its next step.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence

from streamgraph.executors.memory import Cells
from streamgraph.executors.modes import CallerState

AT_ONCE = -1
"""Before the first step."""
_END = "end"


class Board:
    """One run. `cells` are its tensors; `state` is what its threads take over from the caller."""

    def __init__(self, steps: int, cells: Cells, state: CallerState) -> None:
        self.cells, self.state = cells, state
        self.limit = steps  # no step from this one on is run
        self.error: BaseException | None = None
        self.launched: dict[str, None] = {}  # the lanes that have been given work
        self._lock = threading.Lock()
        self._marks: set[Hashable] = set()
        self._asleep: dict[Hashable, list[_Sleeper]] = {}  # by what they wait for
        self._begun: set[str] = set()

    def mark(self, what: Hashable) -> None:
        """Let through who waits for it, now and later."""
        with self._lock:
            self._marks.add(what)
            for sleeper in self._asleep.pop(what, ()):
                sleeper.missing -= 1
                if sleeper.missing == 0:
                    sleeper.lock.release()

    def wait(self, all_of: Sequence[Hashable], step: int) -> bool:
        """Wait for all of these marks. False: an error stands before `step`, which is not to be run.

        A thread that waits for several marks is woken once: waking one takes longer than issuing some tasks does.
        """
        while not self._marks.issuperset(all_of):
            with self._lock:
                missing = [what for what in all_of if what not in self._marks]
                if not missing:
                    return True
                if step >= self.limit:
                    return False
                mine = _Sleeper(len(missing))
                for what in missing:
                    self._asleep.setdefault(what, []).append(mine)
            mine.lock.acquire()
            # Whoever woke this thread has put up the last mark, or an error; if the error stands later, it goes back to sleep.
        return True

    def fail(self, step: int, error: BaseException) -> None:
        """Note an error; the earliest one wins."""
        with self._lock:
            if step < self.limit:
                self.limit, self.error = step, error
            asleep = {id(sleeper): sleeper for sleepers in self._asleep.values() for sleeper in sleepers}
            self._asleep.clear()
        for sleeper in asleep.values():
            sleeper.lock.release()

    def begin(self, lane: str) -> bool:
        """False if the lane has begun this run already."""
        with self._lock:
            fresh = lane not in self._begun
            self._begun.add(lane)
            return fresh

    def end(self, lane: str) -> None:
        """The lane issues nothing more."""
        self.mark((_END, lane))

    def join(self, lanes: Sequence[str]) -> None:
        """Wait until these lanes have ended, whatever errors there are."""
        self.wait([(_END, lane) for lane in lanes], AT_ONCE - 1)


class _Sleeper:
    """A thread that sleeps on a lock of its own, until nothing is missing."""

    __slots__ = ("lock", "missing")

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self.lock = threading.Lock()
        self.lock.acquire()
