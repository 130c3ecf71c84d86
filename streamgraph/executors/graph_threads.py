"""Graph threads: the two threads of a loop of graphs that has host tasks. One issues iterations, the other calls host tasks.

The caller's thread pulls items and takes results; meanwhile iterations are issued in order, and host tasks run in order on a thread of
their own. So a picture is decoded, and an answer encoded, while the caller works on a result and graphs are launched that need neither.
A thread waits for another one where the loop has a wait between their lanes, and for nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from streamgraph.executors.launch import in_item
from streamgraph.executors.modes import CallerState


class HostTasks(Protocol):
    """Where host tasks are called."""

    def call(self, task: str, iteration: int, call: Callable[[], None]) -> None:
        """Call a host task, after those before it: at once, or soon."""
        ...

    def wait(self, task: str, iteration: int) -> None:
        """Wait until the call has returned."""
        ...


class AtOnce:
    """On the thread that issues."""

    def call(self, task: str, iteration: int, call: Callable[[], None]) -> None:
        """Call it."""
        call()

    def wait(self, task: str, iteration: int) -> None:
        """Nothing: it has returned."""


AT_ONCE = AtOnce()


class Stopped(BaseException):
    """Something failed, and nothing new is begun; what failed is in `GraphThreads.error`."""


class GraphThreads:
    """The threads of one loop under way. `state` is what they take over from the caller's thread."""

    def __init__(self, name: str, state: CallerState) -> None:
        self.state = state
        self._issuer = ThreadPoolExecutor(1, f"streamgraph loop {name} @graphs", self._begin)
        self._host = ThreadPoolExecutor(1, f"streamgraph loop {name} @host", self._begin)
        self._own: set[int] = set()
        self._issued: dict[int, Future[None]] = {}
        self._called: dict[tuple[str, int], Future[None]] = {}
        self._errors: list[tuple[int, BaseException]] = []
        self.stopping = False

    @property
    def error(self) -> BaseException | None:
        """What failed, in the earliest iteration in which something did."""
        return min(self._errors, key=lambda entry: entry[0])[1] if self._errors else None

    def runs_on(self, thread: int) -> bool:
        """Whether that thread, by its ident, is one of the two."""
        return thread in self._own

    def issue(self, iteration: int, call: Callable[[], None]) -> None:
        """Issue an iteration by `call`, after those before it."""
        self._issued[iteration] = self._issuer.submit(self._job, iteration, call)

    def wait_issued(self, iteration: int) -> None:
        """Wait until an iteration has been issued, and all its host tasks are in line.

        Raises:
            Stopped: it will not be.
        """
        self._result(self._issued.get(iteration))

    def call(self, task: str, iteration: int, call: Callable[[], None]) -> None:
        """See `HostTasks.call`."""
        self._called[task, iteration] = self._host.submit(self._job, iteration, call)

    def wait(self, task: str, iteration: int) -> None:
        """See `HostTasks.wait`.

        Raises:
            Stopped: it failed, or will not be called.
        """
        self._result(self._called.get((task, iteration)))

    def forget(self, iteration: int) -> None:
        """Nobody asks any more for an iteration or one before it; its host tasks have returned.

        Raises:
            Stopped: one of them has not.
        """
        for key in [key for key in self._called if key[1] <= iteration]:
            self._result(self._called[key])
            del self._called[key]
        for number in list(self._issued):  # the caller's thread adds to it
            if number <= iteration:
                del self._issued[number]

    def stop(self) -> None:
        """Begin nothing new, as after an error."""
        self.stopping = True

    def end(self) -> BaseException | None:
        """Wait for what has been begun, and end the threads. An interrupt that came meanwhile: each thread then ends with the task that it
        is in. A second one gives up on it."""
        try:
            self._join()
        except BaseException as interrupt:
            self.stop()
            self._join()
            return interrupt
        return None

    def _join(self) -> None:
        for waiting in (self._issued, self._called):
            for future in list(waiting.values()):
                with suppress(Stopped):
                    self._result(future)
        self._issuer.shutdown()
        self._host.shutdown()

    def _begin(self) -> None:
        self._own.add(threading.get_ident())

    def _result(self, future: Future[None] | None) -> None:
        if future is not None:
            future.result()

    def _job(self, iteration: int, call: Callable[[], None]) -> None:
        if self.stopping:
            raise Stopped
        try:
            with self.state.applied():
                call()
        except Stopped:
            raise
        except BaseException as error:
            self._errors.append((iteration, in_item(error, iteration)))
            self.stopping = True
            raise Stopped from None
