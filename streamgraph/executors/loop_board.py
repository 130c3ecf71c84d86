"""The board of one loop on several host threads: how far each event and each thread has come, how many items there are, the earliest error.

A place is (iteration, number in its block). After an error no thread goes on at a later place, but those before it are still issued: so the
error that is raised is the first one in issue order, whatever the threads' timing. An interrupt stops every thread at its next step.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

Place: TypeAlias = tuple[int, int]

AT_ONCE: Place = (-1, 0)
"""Before the first place."""
_EVERYTHING: Place = (1 << 62, 0)


class LoopBoard:
    """What the caller's thread and `threads` others tell each other in one loop."""

    def __init__(self, threads: int) -> None:
        self.limit = _EVERYTHING  # nothing from this place on is issued
        self.error: BaseException | None = None
        self.done = [0] * threads  # iterations that each thread has been through
        self._changed = threading.Condition()
        self._recorded: dict[str, int] = {}  # event -> iterations recorded
        self._begun = 0
        self._more = True

    def begin(self, iteration: int) -> None:
        """The item of an iteration is there."""
        with self._changed:
            self._begun = iteration + 1
            self._changed.notify_all()

    def wait_for_item(self, iteration: int) -> bool:
        """Wait until an iteration begins. False: it never will."""
        with self._changed:
            while self._begun <= iteration and self._more and self.error is None:
                self._changed.wait()
        return self._begun > iteration

    def record(self, event: str, iteration: int) -> None:
        """An event of an iteration has been recorded, as those of all before it."""
        with self._changed:
            self._recorded[event] = iteration + 1
            self._changed.notify_all()

    def wait(self, event: str, iteration: int, place: Place) -> bool:
        """Wait until an event of an iteration has been recorded. False: an error stands before `place`."""
        if self._recorded.get(event, 0) > iteration and place < self.limit:
            return True  # mostly so; both only ever move one way, so no lock is needed to see it
        with self._changed:
            while self._recorded.get(event, 0) <= iteration and place < self.limit:
                self._changed.wait()
        return place < self.limit

    def through(self, thread: int, iteration: int) -> None:
        """A thread has been through an iteration."""
        with self._changed:
            self.done[thread] = iteration + 1
            self._changed.notify_all()

    def wait_for_all(self, iteration: int) -> bool:
        """Wait until every thread has been through an iteration, so that none falls behind without bound. False: there was an error."""
        with self._changed:
            while min(self.done) <= iteration and self.error is None:
                self._changed.wait()
        return self.error is None

    def fail(self, place: Place, error: BaseException) -> None:
        """Note an error; the earliest one in issue order wins."""
        with self._changed:
            if place < self.limit:
                self.limit, self.error = place, error
            self._changed.notify_all()

    def end(self) -> None:
        """There are no more items."""
        with self._changed:
            self._more = False
            self._changed.notify_all()
