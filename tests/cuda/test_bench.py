"""`bench` on a GPU: every executor is measured, with memory, and gives the same results."""

from __future__ import annotations

import pytest
import torch

from streamgraph.bench import bench
from streamgraph.builder import Graph
from streamgraph.plan import plan

pytestmark = pytest.mark.cuda

MEBI = 1 << 20


def test_every_executor_is_measured_with_the_memory_it_takes() -> None:
    made = Graph("forks")
    x = made.input("x", f"f32[{MEBI}]", init="random")
    total = made.buffer("total", f"f32[{MEBI}]")
    for lane in ("one", "two", "main"):
        y = made.task(f"on_{lane}", torch.sin, reads=x, writes=f"y_{lane}", stream=lane)
        made.task(f"sum_{lane}", torch.Tensor.add_, updates=total, reads=y, stream="main")
    made.output(total)
    stream = torch.cuda.current_stream()
    found = bench(plan(made), device="cuda", repeats=3)
    assert [row.reason for row in found.rows] == [""] * 4
    for row in found.rows:
        assert row.equal
        assert len(row.times) == 3
        assert row.memory is not None
        assert row.memory >= 4 * MEBI  # the buffer, at least
        assert (row.overlap is None) == (row.executor == "graph")
    assert torch.cuda.current_stream() == stream
