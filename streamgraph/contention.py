"""Contention: how fast the kernels run that run side by side. The model stands in `simulate`; this is its bookkeeping.

All kernels of one priority slow down alike, so one virtual time for each of the two is enough: it runs `slow` times as slowly as real time,
and a kernel ends when its virtual time has advanced by the kernel's own time. A start or an end costs one heap operation, however many
kernels run.
"""

from __future__ import annotations

from heapq import heappop, heappush

from streamgraph.cost import COMPUTE, Costs

YIELDED = 0.67  # what a kernel of lower priority counts for, beside one of high priority (fitted: benchmarks/RESULTS.md)
SLOWEST = 6.0  # a kernel of lower priority keeps the blocks that it has begun: it slows down to no more than so many times what equals do


class _Class:
    """The kernels of one priority that run now: their virtual time, how slowly it runs, and what they fill together."""

    __slots__ = ("ends", "filled", "kernels", "slow", "virtual")

    def __init__(self) -> None:
        self.slow, self.virtual, self.filled, self.kernels = 1.0, 0.0, 0.0, 0
        self.ends: list[tuple[float, int, str]] = []  # (virtual time of its end, launch number, lane)


class Contention:
    """What runs on the device now."""

    def __init__(self, costs: Costs, interference: float) -> None:
        self.costs, self.interference = costs, interference
        self._normal, self._high = _Class(), _Class()
        self._next = self._normal
        self._moved = 0.0  # the sum of the shares of the memory's bandwidth
        self._running = 0

    def next_end(self, now: float) -> float | None:
        """When the next kernel ends, if nothing starts or ends before; None if no kernel runs."""
        found: float | None = None
        for one in (self._normal, self._high):
            if one.ends:
                end = max(now, now + (one.ends[0][0] - one.virtual) * one.slow)
                if found is None or end < found:
                    found, self._next = end, one
        return found

    def pop(self, time: float) -> tuple[int, str]:
        """The launch number and lane of the kernel that ends next; `time` passes until `next_end`."""
        self.pass_time(time)
        self._next.virtual, number, lane = heappop(self._next.ends)
        return number, lane

    def pass_time(self, time: float) -> None:
        """So much real time goes by."""
        self._normal.virtual += time / self._normal.slow
        self._high.virtual += time / self._high.slow

    def begin(self, task: int, number: int, lane: str, high: bool) -> None:
        """A kernel or a copy starts, of high priority or not; when a copy ends is the caller's business."""
        one = self._high if high else self._normal
        self._change(task, 1, one)
        if self.costs.engine[task] == COMPUTE:
            heappush(one.ends, (one.virtual + self.costs.microseconds[task], number, lane))

    def end(self, task: int, high: bool) -> None:
        """It is done."""
        self._change(task, -1, self._high if high else self._normal)

    def _change(self, task: int, sign: int, one: _Class) -> None:
        self._running += sign
        one.kernels += sign if self.costs.engine[task] == COMPUTE else 0
        if self._running == 0:
            # Sums start afresh, so that rounding does not add up over a long run.
            self._moved = 0.0
            for each in (self._normal, self._high):
                each.filled = each.virtual = 0.0
        else:
            one.filled += sign * self.costs.fill[task] if self.costs.fill else 0.0
            self._moved += sign * self.costs.bandwidth[task] if self.costs.bandwidth else 0.0
        normal, high = self._normal, self._high
        filled, kernels = normal.filled + high.filled, normal.kernels + high.kernels
        normal.slow = high.slow = equal = self._slow(filled, kernels, 0.0)
        if normal.kernels and high.kernels:
            alone = min(equal, self._slow(high.filled, high.kernels, YIELDED * max(0.0, normal.filled)))
            # Together they get as much done as if all had one priority: what those of high priority gain the others lose, up to SLOWEST.
            done = filled / equal
            kept = max(done - high.filled / alone, normal.filled / (SLOWEST * equal))
            if 0 < kept < normal.filled / equal and high.filled > 0:
                normal.slow = normal.filled / kept
                high.slow = high.filled / (done - kept)

    def _slow(self, filled: float, kernels: int, beside: float) -> float:
        others = filled * (1.0 - 1.0 / kernels) if kernels else 0.0  # what fills the device beside a kernel, on average
        return max(1.0, filled, self._moved, 1.0 + self.interference * (others + beside))
