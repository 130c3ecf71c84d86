"""TensorRT-LLM's `auto_multi_stream`: list scheduling by distance to the end, then runs issued stream by stream.

From its description (https://github.com/NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/compilation/multi_stream): tasks become ready by longest
remaining path; a task starts when its last predecessor ends, on the first stream that is free by then, else on the one that is free
earliest; no handover is counted. The host then scans the streams from 0, issues the first one's tasks until one has to wait for a task that
is not issued yet, and starts again. Its constants for weights are replaced by our costs; a task without cost stays with its last
predecessor.
"""

from __future__ import annotations

from streamgraph.passes.work import FREE, ON_HOST, Placement, Work


def earliest_free(work: Work, limit: int) -> Placement:
    """Each free task on the first of `limit` streams that is free when its predecessors have ended."""
    costs, home = work.costs, work.home
    free_at: dict[int, float] = {0: 0.0}  # by lane: -1 is the host, declared lanes, then side streams
    side = range(len(work.lanes), len(work.lanes) + limit - 1)
    lane_of, finish, stream = [0] * len(costs), [0.0] * len(costs), [-1] * len(costs)
    for task in work.order:
        start = max([finish[p] for p in work.earlier[task]], default=0.0)
        if home[task] == FREE:
            lane = _first_free(start, free_at, side)
            if costs[task] == 0 and work.earlier[task]:
                last = max(work.earlier[task], key=lambda p: (finish[p], -p))
                lane = lane_of[last] if home[last] == FREE else lane
            stream[task] = lane - side.start + 1 if lane else 0
        else:
            lane = -1 if home[task] == ON_HOST else home[task]
        lane_of[task] = lane
        free_at[lane] = finish[task] = max(start, free_at.get(lane, 0.0)) + costs[task]
    return Placement(_by_runs(work, lane_of) if work.may_reorder else work.order, tuple(stream))


def _first_free(start: float, free_at: dict[int, float], side: range) -> int:
    """The first lane of 0 and `side` that is free at `start`, else the one that is free earliest."""
    best, best_time = 0, free_at[0]
    for lane in side:
        if best_time <= start:
            break
        time = free_at.get(lane, 0.0)
        if time < best_time:
            best, best_time = lane, time
    return best


def _by_runs(work: Work, lane_of: list[int]) -> tuple[int, ...]:
    """The issue order that scans lanes from the first, and issues as much of each as has no predecessor left that is not issued.

    A lane that could not go on is looked at again only when the task that it waited for has been issued, so this is linear in edges.
    """
    from heapq import heappop, heappush

    queues: dict[int, list[int]] = {}
    for task in work.order:
        queues.setdefault(lane_of[task], []).append(task)
    for queue in queues.values():
        queue.reverse()
    issued = [False] * len(work.costs)
    asleep: dict[int, list[int]] = {}
    awake = sorted(queues)
    order: list[int] = []
    while awake:
        lane = heappop(awake)
        queue = queues[lane]
        while queue:
            missing = next((p for p in work.earlier[queue[-1]] if not issued[p]), None)
            if missing is not None:
                asleep.setdefault(missing, []).append(lane)
                break
            task = queue.pop()
            issued[task] = True
            order.append(task)
            for other in asleep.pop(task, ()):
                heappush(awake, other)
            if awake and awake[0] < lane:
                heappush(awake, lane)
                break
    return tuple(order)
