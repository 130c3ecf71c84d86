"""Two priorities: the lanes of `critical_path`; the kernels of tasks that nothing may delay go first.

A GPU begins the blocks of a kernel of high priority before those of others that wait. So where kernels slow each other down, the tasks
without slack (the critical path method of Kelley and Walker, 1959) should be the last to be slowed.

    captured    each launch has a priority of its own: the urgent ones are marked, and nothing else of the plan changes
    eager       a stream has one priority: each lane is two, and urgent tasks run on the half of high priority; the waits between the halves
                cost host time, and the order between them is lost where no hazard asks for it

What it gains and loses on an H200 stands in benchmarks/RESULTS.md.
"""

from __future__ import annotations

from dataclasses import replace

from streamgraph.passes.policies.critical_path import critical_path
from streamgraph.passes.work import Placement, Work

SLACK = 0.02  # of the longest path: what has less than that is urgent


def urgent(work: Work, limit: int) -> Placement:
    """The free tasks on at most `limit` streams, with two priorities. Eager, with fewer than four, that is what `critical_path` does."""
    if work.captured:
        return marked(work, critical_path(work, limit))
    return split(work, critical_path(work, limit // 2)) if limit >= 4 else critical_path(work, limit)


def marked(work: Work, placement: Placement) -> Placement:
    """The same placement with its urgent tasks marked. Pinned tasks keep the priority that their stream declares."""
    return replace(placement, urgent=tuple(task for task in without_slack(work) if placement.stream[task] >= 0))


def split(work: Work, placement: Placement) -> Placement:
    """The same placement with a twin of high priority for each stream, where its urgent tasks run."""
    count = max(placement.stream, default=-1) + 1
    no_slack = frozenset(without_slack(work))
    stream = tuple(number + count if number >= 0 and task in no_slack else number for task, number in enumerate(placement.stream))
    return Placement(placement.order, stream, tuple(range(count, 2 * count)))


def without_slack(work: Work) -> tuple[int, ...]:
    """The tasks that could not be later by SLACK of the longest path without making it longer, in declaration order."""
    longest = max(work.bottom, default=0.0)
    top = [0.0] * len(work.costs)
    for task in work.declared:
        for other in work.later[task]:
            top[other] = max(top[other], top[task] + work.costs[task])
    return tuple(task for task, bottom in enumerate(work.bottom) if longest - top[task] - bottom < SLACK * longest)
