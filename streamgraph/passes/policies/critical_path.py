"""List scheduling by longest remaining path, with affinity to the lane that the data comes from.

Tasks are placed one after another in issue order (with `order="auto"` that is by longest remaining path: bottom-level list scheduling, Kwok
and Ahmad, "Static scheduling algorithms for allocating directed task graphs to multiprocessors", ACM Computing Surveys 31(4), 1999), each
on the lane where it starts first, counting what a handover between lanes costs. Ties go to a lane that is in use, then to the lane of the
predecessor that finishes last, so that no handover is needed.
"""

from __future__ import annotations

from streamgraph.passes.work import FREE, HANDOVER, ON_HOST, Placement, Work


def critical_path(work: Work, limit: int) -> Placement:
    """Each free task on the stream where it could start first, of at most `limit`."""
    costs, home, first_side = work.costs, work.home, len(work.lanes)
    # Lanes by number: the host is -1, declared ones come first, then those that are opened here.
    available = [0.0] * first_side
    opened = [0]  # lanes of free tasks
    host_free = 0.0
    lane_of, finish, stream = [0] * len(costs), [0.0] * len(costs), [-1] * len(costs)
    for task in work.order:
        earlier = work.earlier[task]
        if home[task] == ON_HOST:
            lane_of[task] = -1
            start = max([host_free, *[finish[p] for p in earlier]])
            host_free = finish[task] = start + costs[task]
            continue
        # When its data is there: on the lane that the last of it comes from, and on any other, which needs a handover.
        last_time, top = 0.0, 0
        for p in earlier:
            if finish[p] > last_time:
                last_time, top = finish[p], lane_of[p]
        at_top, elsewhere = last_time, last_time
        if earlier:
            elsewhere += HANDOVER
            at_top = max([last_time, *[finish[p] + HANDOVER for p in earlier if lane_of[p] != top]])
        if home[task] == FREE:
            is_result = task in work.results
            preferred = 0 if is_result else top
            best, best_key = 0, (float("inf"), True, 0)
            for lane in opened:
                time = max(available[lane], at_top if lane == top else elsewhere)
                if lane == 0 and is_result:
                    time = max(time - HANDOVER, 0.0)  # an output made on main needs no record_stream
                key = (time, lane != preferred, lane)
                if key < best_key:
                    best, best_key = lane, key
            if len(opened) < limit and max(HANDOVER, elsewhere) < best_key[0]:
                best = len(available)  # a new lane begins with a wait for entry
                available.append(HANDOVER)
                opened.append(best)
            stream[task] = best - first_side + 1 if best else 0
        else:
            best = home[task]
        lane_of[task] = best
        start = max(available[best], at_top if best == top else elsewhere)
        available[best] = finish[task] = start + costs[task]
    return Placement(work.order, tuple(stream))
