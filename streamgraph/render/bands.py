"""Iterations in a picture: where each one of a loop written out stands, lane by lane.

The program of such a picture was written out by `iterations.py`: `mm@0#3` is task `mm@0` of iteration 3, and no declared name holds a `#`.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamgraph.model import Task
from streamgraph.simulate import Timeline

MARK = "#"
CALLER = "the caller"  # what its pseudo-tasks are coloured and listed as
PSEUDO = ("item", "source", "result", "deliver")
# Blue, green, yellow and purple of Okabe and Ito's colours, as a tint behind the tasks: neighbours differ, the numbers tell which is which.
TINTS = ("#0072B2", "#009E73", "#B59B00", "#CC79A7")
STRENGTH = 0.38


@dataclass(frozen=True, slots=True)
class Band:
    """The time in microseconds for which a row is busy with an iteration, or holds it between two of its tasks."""

    row: int
    iteration: int
    start: float
    end: float

    @property
    def tint(self) -> str:
        """The colour behind its tasks."""
        return TINTS[self.iteration % len(TINTS)]


def iteration_of(task: str) -> int:
    """The iteration that a task belongs to; -1 if the schedule is that of a single run."""
    _, mark, number = task.rpartition(MARK)
    return int(number) if mark and number.isdecimal() else -1


def is_caller(task: Task) -> bool:
    """Whether a task only stands for the caller, who brings an item or takes a result (`item:1#3`: on cuda:1)."""
    name, mark, _ = task.name.rpartition(MARK)
    return bool(mark) and task.operator in PSEUDO and name.partition(":")[0] == task.operator


def bands_of(timeline: Timeline, row_of: dict[str, int], tasks: dict[str, Task]) -> tuple[Band, ...]:
    """A band for each row and iteration, in order of rows; none for a single run. Iterations of a lane do not overlap: it is a queue."""
    found: dict[tuple[int, int], tuple[float, float]] = {}
    for time in timeline.tasks:
        iteration = iteration_of(time.task)
        if iteration < 0 or is_caller(tasks[time.task]):
            continue
        key = (row_of[time.lane], iteration)
        start, end = found.get(key, (time.start, time.end))
        found[key] = (min(start, time.start), max(end, time.end))
    return tuple(Band(row, iteration, start, end) for (row, iteration), (start, end) in sorted(found.items()))
