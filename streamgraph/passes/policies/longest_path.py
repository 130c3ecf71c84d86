"""apex's `torchsched`: the longest path on one stream, everything else in turn over the others.

From its description (https://github.com/NVIDIA/apex, apex/contrib/torchsched): the longest path by number of tasks, not by cost, takes
stream 0; all other tasks go round-robin over streams 1 to K-1 in program order, with K = 8.
"""

from __future__ import annotations

from streamgraph.passes.work import FREE, Placement, Work

STREAMS = 8


def longest_path(work: Work, limit: int) -> Placement:
    """The free tasks of the longest path on `main`, the others in turn over the side streams."""
    depth = [1] * len(work.costs)
    for task in reversed(work.order):
        depth[task] += max([depth[other] for other in work.later[task]], default=0)
    onward = max(range(len(depth)), key=lambda task: (depth[task], -task), default=None)
    path: set[int] = set()
    while onward is not None:
        path.add(onward)
        onward = max(work.later[onward], key=lambda task: (depth[task], -task), default=None)
    sides = min(limit, STREAMS) - 1
    stream, turn = [-1] * len(depth), 0
    for task, home in enumerate(work.home):
        if home != FREE:
            continue
        if task in path or sides == 0:
            stream[task] = 0
        else:
            stream[task] = 1 + turn % sides
            turn += 1
    return Placement(work.order, tuple(stream))
