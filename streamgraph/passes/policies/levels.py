"""Taskflow's cudaFlow capturer: a task's stream is its place in its level, modulo the number of streams.

From its description (https://github.com/taskflow/taskflow, round-robin capturing optimizer): levels by breadth-first search, so that a
task's level is one more than that of its last predecessor; within a level, the index modulo K, with K = 4.
"""

from __future__ import annotations

from streamgraph.passes.work import FREE, Placement, Work

STREAMS = 4


def levels(work: Work, limit: int) -> Placement:
    """Each free task on stream (index among the free tasks of its level) mod the number of streams."""
    level, stream = [0] * len(work.costs), [-1] * len(work.costs)
    count: dict[int, int] = {}
    for task in work.order:
        level[task] = max([level[p] + 1 for p in work.earlier[task]], default=0)
        if work.home[task] == FREE:
            index = count.get(level[task], 0)
            count[level[task]] = index + 1
            stream[task] = index % min(limit, STREAMS)
    return Placement(work.order, tuple(stream))
