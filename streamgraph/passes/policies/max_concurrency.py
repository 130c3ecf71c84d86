"""Nimble: as many streams as keep all independent tasks apart, with as few synchronisations as that allows.

From its description (Kwon et al., "Nimble: Lightweight and Parallel GPU Task Scheduling for Deep Learning", NeurIPS 2020, and
https://github.com/snuspl/nimble): (1) the minimum equivalent graph; (2) a bipartite graph with a left and a right copy of each task and an
edge from left u to right v for each of its edges; a maximum matching (Hopcroft and Karp, SIAM J. Comput. 2(4), 1973); (3) matched edges
glue tasks into chains, each a stream; (4) lanes are used again: of the DAG over chains, where A precedes B if A's end reaches B's
beginning, another maximum matching gives the fewest streams. Theorem of the paper: if no two independent tasks share a stream, that needs
at least edges minus matched edges synchronisations, and step 3 attains it.

The matching is ours and not networkx's, which recurses as deep as an augmenting path is long. It tries tasks in declaration order, so that
the result is always the same one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from streamgraph.passes.work import FREE, Placement, Work

MOST_TASKS = 20_000  # the minimum equivalent graph takes tasks squared bits; beyond this, the hazards themselves stand in for it
MOST_CHAINS = 1_000  # step 4 takes chains squared edges; beyond this it is left to `assign.fold`


def max_concurrency(work: Work, limit: int) -> Placement:
    """Chains of a maximum matching, independent tasks on streams of their own, however many."""
    edges, reach = minimum_equivalent_graph(work) if len(work.costs) <= MOST_TASKS else (work.later, None)
    free = [home == FREE for home in work.home]
    matched = maximum_matching([[v for v in edges[u] if free[v]] if free[u] else [] for u in range(len(free))], len(free))
    chain_of = [-1] * len(free)
    ends: list[int] = []
    begins: list[int] = []
    before = {v: u for u, v in enumerate(matched) if v >= 0}
    for task in work.order:
        if not free[task]:
            continue
        if task in before:
            chain_of[task] = chain_of[before[task]]
            ends[chain_of[task]] = task
        else:
            chain_of[task] = len(begins)
            begins.append(task)
            ends.append(task)
    if reach is None or len(begins) > MOST_CHAINS:
        return Placement(work.order, tuple(chain_of))
    # Chains are numbered by where they begin in a topological order, so an earlier chain never follows a later one.
    onward = [[b for b in range(a + 1, len(begins)) if reach[ends[a]] >> begins[b] & 1] for a in range(len(begins))]
    following = maximum_matching(onward, len(begins))
    stream_of = [-1] * len(begins)
    streams = 0
    for chain in range(len(begins)):
        if stream_of[chain] < 0:
            stream_of[chain] = streams
            streams += 1
        if following[chain] >= 0:
            stream_of[following[chain]] = stream_of[chain]
    return Placement(work.order, tuple(stream_of[chain] if chain >= 0 else -1 for chain in chain_of))


def minimum_equivalent_graph(work: Work) -> tuple[list[list[int]], list[int]]:
    """The transitive reduction as successors, and per task what it reaches, as bits. Of a DAG it is unique (Aho, Garey, Ullman 1972)."""
    place = [0] * len(work.order)
    for index, task in enumerate(work.order):
        place[task] = index
    reach = [0] * len(work.order)
    kept: list[list[int]] = [[] for _ in work.order]
    for task in reversed(work.order):
        found = 0
        for later in sorted(work.later[task], key=place.__getitem__):
            if not found >> later & 1:
                kept[task].append(later)
                found |= reach[later] | 1 << later
        reach[task] = found
    return kept, reach


def maximum_matching(edges: Sequence[Sequence[int]], rights: int) -> list[int]:
    """For each left node its right node or -1, as many as can be: Hopcroft and Karp, without recursion, in the order of the nodes."""
    right_of, left_of = [-1] * len(edges), [-1] * rights
    while True:
        distance = [0 if right < 0 and edges[left] else -1 for left, right in enumerate(right_of)]
        queue = deque(left for left, far in enumerate(distance) if far == 0)
        found = False
        while queue:
            left = queue.popleft()
            for right in edges[left]:
                other = left_of[right]
                if other < 0:
                    found = True
                elif distance[other] < 0:
                    distance[other] = distance[left] + 1
                    queue.append(other)
        if not found:
            return right_of
        tried = [0] * len(edges)  # edges of each left node that are known to lead nowhere in this phase
        for root in range(len(edges)):
            if right_of[root] < 0 and distance[root] == 0:
                _augment(root, edges, distance, tried, right_of, left_of)


def _augment(
    root: int, edges: Sequence[Sequence[int]], distance: list[int], tried: list[int], right_of: list[int], left_of: list[int]
) -> None:
    """Extend the matching along one shortest alternating path from `root`, if one is left."""
    path = [root]
    while path:
        left = path[-1]
        if tried[left] == len(edges[left]):
            path.pop()
            if path:
                tried[path[-1]] += 1
            continue
        right = edges[left][tried[left]]
        other = left_of[right]
        if other < 0:
            for step in reversed(path):
                right = edges[step][tried[step]]
                right_of[step], left_of[right] = right, step
            return
        if distance[other] == distance[left] + 1:
            path.append(other)
        else:
            tried[left] += 1
