"""Two priorities: the lanes of `critical_path`, each in two halves; tasks that nothing may delay run on the half of high priority.

A GPU begins the blocks of a kernel on a stream of high priority before those of others that wait. So where kernels slow each other down,
the tasks without slack (the critical path method of Kelley and Walker, 1959) should be the last to be slowed. Between the halves of a lane
there are waits, which cost nothing in a captured graph, and host time elsewhere.

On an H200 captured PNASNet-5 large became 4 % faster than on the same lanes without priorities, NASNet-A large and Inception-v3 1 %,
GoogLeNet 2 % slower (benchmarks/RESULTS.md).
"""

from __future__ import annotations

from streamgraph.passes.policies.critical_path import critical_path
from streamgraph.passes.work import Placement, Work

SLACK = 0.02  # of the longest path: what has less than that is urgent


def urgent(work: Work, limit: int) -> Placement:
    """The free tasks on at most `limit` streams, half of them of high priority. With fewer than four that is what `critical_path` does."""
    return split(work, critical_path(work, limit // 2)) if limit >= 4 else critical_path(work, limit)


def split(work: Work, placement: Placement) -> Placement:
    """The same placement with a twin of high priority for each stream, where its urgent tasks run."""
    count = max(placement.stream, default=-1) + 1
    no_slack = without_slack(work)
    stream = tuple(number + count if number >= 0 and task in no_slack else number for task, number in enumerate(placement.stream))
    return Placement(placement.order, stream, tuple(range(count, 2 * count)))


def without_slack(work: Work) -> frozenset[int]:
    """The tasks that could not be later by SLACK of the longest path without making it longer."""
    longest = max(work.bottom, default=0.0)
    top = [0.0] * len(work.costs)
    for task in work.declared:
        for other in work.later[task]:
            top[other] = max(top[other], top[task] + work.costs[task])
    return frozenset(task for task, bottom in enumerate(work.bottom) if longest - top[task] - bottom < SLACK * longest)
