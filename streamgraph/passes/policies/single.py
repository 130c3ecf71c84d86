"""One stream for all free tasks, which is what plain PyTorch does, and what every other policy has to beat."""

from __future__ import annotations

from streamgraph.passes.work import FREE, Placement, Work


def single(work: Work, limit: int) -> Placement:
    """Every free task on `main`."""
    return Placement(work.order, tuple(0 if home == FREE else -1 for home in work.home))
