"""Contention: how fast the kernels run that run side by side. The model stands in `simulate`; this is its bookkeeping.

All kernels slow down alike, so one virtual time is enough: it runs `slow` times as slowly as real time, and a kernel ends when virtual time
has advanced by the kernel's own time. A start or an end costs one heap operation, however many kernels run.
"""

from __future__ import annotations

from heapq import heappop, heappush

from streamgraph.cost import COMPUTE, Costs


class Contention:
    """What runs on the device now."""

    def __init__(self, costs: Costs, interference: float) -> None:
        self.costs, self.interference = costs, interference
        self.slow = 1.0
        self._virtual = 0.0
        self._filled = self._moved = 0.0  # sums of the shares of what runs
        self._running = self._kernels = 0
        self._ends: list[tuple[float, int, str]] = []  # (virtual time of its end, launch number, lane)

    def next_end(self, now: float) -> float | None:
        """When the next kernel ends, if nothing starts or ends before; None if no kernel runs."""
        return max(now, now + (self._ends[0][0] - self._virtual) * self.slow) if self._ends else None

    def pop(self) -> tuple[int, str]:
        """The launch number and lane of the kernel that ends next; the time is `next_end`."""
        self._virtual, number, lane = heappop(self._ends)
        return number, lane

    def pass_time(self, time: float) -> None:
        """So much real time goes by."""
        self._virtual += time / self.slow

    def begin(self, task: int, number: int, lane: str) -> None:
        """A kernel or a copy starts; when a copy ends is the caller's business."""
        self._change(task, 1)
        if self.costs.engine[task] == COMPUTE:
            heappush(self._ends, (self._virtual + self.costs.microseconds[task], number, lane))

    def end(self, task: int) -> None:
        """It is done."""
        self._change(task, -1)

    def _change(self, task: int, sign: int) -> None:
        self._running += sign
        self._kernels += sign if self.costs.engine[task] == COMPUTE else 0
        if self._running == 0:
            # Sums start afresh, so that rounding does not add up over a long run.
            self._filled = self._moved = self._virtual = 0.0
        else:
            self._filled += sign * self.costs.fill[task] if self.costs.fill else 0.0
            self._moved += sign * self.costs.bandwidth[task] if self.costs.bandwidth else 0.0
        others = self._filled * (1.0 - 1.0 / self._kernels) if self._kernels else 0.0  # what fills the device beside a kernel, on average
        self.slow = max(1.0, self._filled, self._moved, 1.0 + self.interference * others)
