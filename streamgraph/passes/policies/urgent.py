"""Two priorities: the lanes of `critical_path`, each in two halves; tasks that nothing may delay run on the half of high priority.

A GPU begins the blocks of a kernel of high priority before those of others that wait. So where kernels slow each other down, the tasks
without slack (`Work.urgent`) should be the last to be slowed. A stream has one priority, so a lane is two; the waits between the halves
cost host time, and the order between them is lost where no hazard asks for it.

In a captured graph each launch has a priority of its own, and under every policy the urgent ones have the high one (`assign.settle`). There
this policy is `critical_path`.
"""

from __future__ import annotations

from streamgraph.passes.policies.critical_path import critical_path
from streamgraph.passes.work import Placement, Work


def urgent(work: Work, limit: int) -> Placement:
    """The free tasks on at most `limit` streams, half of them of high priority. With fewer than four that is what `critical_path` does."""
    if work.captured or limit < 4:
        return critical_path(work, limit)
    return split(work, critical_path(work, limit // 2))


def split(work: Work, placement: Placement) -> Placement:
    """The same placement with a twin of high priority for each stream, where its urgent tasks run."""
    count = max(placement.stream, default=-1) + 1
    urgent = frozenset(work.urgent)
    stream = tuple(number + count if number >= 0 and task in urgent else number for task, number in enumerate(placement.stream))
    return Placement(placement.order, stream, tuple(range(count, 2 * count)))
