"""Lanes pipeline: host threads run a Loop, one per lane; the caller's thread is the host lane. The CPU's way to overlap iterations.

The caller pulls an item, runs the host tasks of its iteration, and takes the result that is then due; meanwhile each lane's thread runs its
own part of every iteration that has begun, as fast as the events of the loop allow. The threads live as long as the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import torch

from streamgraph.executors.lanes import Delay
from streamgraph.executors.launch import failure, launch
from streamgraph.executors.memory import Memory
from streamgraph.executors.modes import CallerState
from streamgraph.executors.pipeline import Items, Outputs, in_item
from streamgraph.executors.slots import Slots
from streamgraph.iterations import DELIVER, ITEM, RESULT, SOURCE
from streamgraph.loop import Issue, Loop
from streamgraph.model import ENTRY, HOST
from streamgraph.operators import Operator

_EVERYTHING = (1 << 62, 0)


class LanesPipeline:
    """Runs a loop on the CPU, one loop at a time. `delay` is a hook for tests, as in `LanesExecutor`."""

    def __init__(self, loop: Loop, operators: Sequence[Operator], memory: Memory, delay: Delay | None = None) -> None:
        self.loop, self.delay = loop, delay
        self.slots = Slots(loop, memory)
        self.operators = {operator.call.task: operator for operator in operators}
        self.first = True

    def run(self, items: Items, bound: Mapping[str, torch.Tensor]) -> Iterator[Outputs]:
        """The outputs of each item, in order; see `Pipeline.run`."""
        run = _Run(self, bound)
        try:
            yield from run.results(items)
        finally:
            run.end()

    def close(self) -> None:
        """Drop the rings. No loop may be under way."""
        self.slots.close()


class _Run:
    """One loop under way: how far each event has come, how many items there are, and the earliest error by (item, place in its block)."""

    def __init__(self, pipeline: LanesPipeline, bound: Mapping[str, torch.Tensor]) -> None:
        self.pipeline, self.bound, self.slots = pipeline, bound, pipeline.slots
        self.changed = threading.Condition()
        self.recorded: dict[str, int] = {}  # event -> iterations recorded
        self.begun = 0
        self.more = True
        self.limit = _EVERYTHING
        self.error: BaseException | None = None
        self.taken = 0
        self.state = CallerState.take()
        lanes = [lane.name for lane in pipeline.loop.lanes if not lane.is_host]
        self.done = dict.fromkeys(lanes, 0)  # iterations that each lane has been through
        self.threads = [threading.Thread(target=self._lane, args=(lane,), name=f"streamgraph loop @{lane}", daemon=True) for lane in lanes]

    def results(self, items: Items) -> Iterator[Outputs]:
        loop = self.pipeline.loop
        self.slots.prepare()
        for thread in self.threads:
            thread.start()
        iteration = 0
        while True:
            block = loop.block(iteration)
            if not self._waits(block[0], iteration, 0):
                break
            try:
                item = next(items)
            except StopIteration:
                break
            except BaseException as error:
                self._fail((iteration, 0), error)
                break
            self.slots.forget(min(self.taken, *self.done.values(), iteration - loop.inflight + 1) - 1)
            self.slots.begin(iteration, {**self.bound, **item})
            with self.changed:
                self.begun = iteration + 1
                self.changed.notify_all()
            self._record(block[0], iteration)
            with self.state.applied():
                self._issue_lane(HOST, iteration, block[1:], 1)
            iteration += 1
            if iteration >= loop.inflight:
                if not self._wait_for_all(iteration - loop.inflight):
                    break
                self.pipeline.first = False
                yield self._take(iteration - loop.inflight)
        self.end()
        if self.error is not None:
            raise self.error
        for rest in range(self.taken, iteration):
            yield self._take(rest)

    def _take(self, iteration: int) -> Outputs:
        self.taken = iteration + 1
        return self.slots.take(iteration)

    def _lane(self, lane: str) -> None:
        try:
            with self.state.applied():
                for iteration in count():
                    with self.changed:
                        while self.begun <= iteration and self.more and self.error is None:
                            self.changed.wait()
                        if self.begun <= iteration:
                            return
                    if not self._issue_lane(lane, iteration, self.pipeline.loop.block(iteration), 0):
                        return
                    with self.changed:
                        self.done[lane] = iteration + 1
                        self.changed.notify_all()
        except BaseException as error:
            self._fail((-1, 0), error)

    def _issue_lane(self, lane: str, iteration: int, block: tuple[Issue, ...], offset: int) -> bool:
        """Run a lane's part of an iteration. False: an error stands before some of it."""
        for place, issue in enumerate(block, offset):
            if issue.lane != lane:
                continue
            at = (iteration, place)
            if not self._waits(issue, iteration, place) or at >= self.limit:
                return False
            self.slots.drop(issue.releases_before, iteration)
            if issue.task not in (SOURCE, ITEM, RESULT, DELIVER):
                try:
                    self._launch(issue, iteration)
                except BaseException as error:
                    self._fail(at if isinstance(error, Exception) else (-1, 0), error)
                    return False
            self._record(issue, iteration)
            self.slots.drop(issue.releases_after, iteration)
        return True

    def _launch(self, issue: Issue, iteration: int) -> None:
        operator, cells = self.pipeline.operators[issue.task], self.slots.of(iteration)
        try:
            if self.pipeline.delay is not None:
                self.pipeline.delay(issue.task, "before")
            launch(operator, cells, self.slots.memory.location, issue.lane, check=self.pipeline.first)
            if self.pipeline.delay is not None:
                self.pipeline.delay(issue.task, "after")
        except BaseException as error:
            raised = in_item(failure(error, operator, cells, issue.lane), iteration)
            if raised is error:
                raise
            raise raised from error

    def _waits(self, issue: Issue, iteration: int, place: int) -> bool:
        return all(back.name == ENTRY or self._wait(back.name, iteration - back.by, (iteration, place)) for back in issue.waits)

    def _wait(self, event: str, iteration: int, at: tuple[int, int]) -> bool:
        """Wait for the event of an iteration. False: an error stands before `at`."""
        with self.changed:
            while self.recorded.get(event, 0) <= iteration and at < self.limit:
                self.changed.wait()
        return at < self.limit

    def _wait_for_all(self, iteration: int) -> bool:
        """Wait until every lane has been through an iteration, so that none falls behind without bound. False: there was an error."""
        with self.changed:
            while min(self.done.values()) <= iteration and self.error is None:
                self.changed.wait()
        return self.error is None

    def _record(self, issue: Issue, iteration: int) -> None:
        if issue.record:
            with self.changed:
                self.recorded[issue.task] = self.pipeline.loop.own(issue.task, iteration) + 1
                self.changed.notify_all()

    def _fail(self, at: tuple[int, int], error: BaseException) -> None:
        """Note an error; the earliest one in issue order wins."""
        with self.changed:
            if at < self.limit:
                self.limit, self.error = at, error
            self.changed.notify_all()

    def end(self) -> None:
        """Let the lanes finish the items that have begun, or stop at the error, and end their threads."""
        with self.changed:
            self.more = False
            self.changed.notify_all()
        for thread in self.threads:
            if thread.ident is not None:
                thread.join()
        self.slots.clear(self.taken)
