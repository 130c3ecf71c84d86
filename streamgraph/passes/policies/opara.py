"""Opara: a task goes on where its first predecessor left off, if nobody has done so yet.

From its description (https://github.com/icloud-ecnu/Opara; its paper is "Opara: Exploiting Operator Parallelism for Expediting DNN
Inference on GPUs"): in topological order, a task takes the stream of its first predecessor whose stream no earlier successor has continued,
and marks that predecessor; otherwise it opens a new stream. There is no bound. Its launch order alternates between memory-bound and
compute-bound operators by the shared memory of their kernels, which we do not know: ours is the longest remaining path first.
"""

from __future__ import annotations

from streamgraph.passes.work import FREE, Placement, Work


def opara(work: Work, limit: int) -> Placement:
    """Chains of first unclaimed predecessors, one stream each, however many."""
    stream, streams = [-1] * len(work.costs), 0
    continued = [False] * len(work.costs)
    for task in work.order:
        if work.home[task] != FREE:
            continue
        onto = next((p for p in work.earlier[task] if stream[p] >= 0 and not continued[p]), None)
        if onto is None:
            stream[task] = streams
            streams += 1
        else:
            continued[onto] = True
            stream[task] = stream[onto]
    return Placement(work.order, tuple(stream))
