"""On a GPU: plans with two priorities are captured, tuned, and give the same results."""

from __future__ import annotations

import pytest
import torch

from streamgraph.builder import Graph
from streamgraph.plan import Issue, plan
from streamgraph.run import compile
from streamgraph.tune import tune

pytestmark = pytest.mark.cuda


def branches() -> tuple[Graph, dict[str, float]]:
    """Three blocks of three branches of unequal length."""
    made, costs = Graph("branches"), {}
    x = made.input("x", "f32[4096]", init="random")
    for block in range(3):
        ends = []
        for branch in range(3):
            y = x
            for number in range(1 + branch):
                name = f"b{block}.{branch}.{number}"
                y = made.task(name, torch.sin, reads=y, writes=name)
                costs[name] = 20.0
            ends.append(y)
        x = made.task(f"join{block}", _total, reads=[ends], writes=f"j{block}")
        costs[f"join{block}"] = 5.0
    made.output(x, "y")
    return made, costs


def _total(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).sum(0)


@pytest.mark.parametrize("issue", ["eager", "captured"])
def test_two_priorities_are_captured_and_change_no_bit(issue: Issue) -> None:
    made, costs = branches()
    schedule = plan(made, policy="urgent", streams=8, costs=costs, issue=issue, machine="h200")
    assert schedule.urgent if issue == "captured" else "high" in {lane.priority for lane in schedule.lanes}
    x = torch.randn(4096, device="cuda")
    with compile(schedule, {"x": x}, device="cuda", executor="sequential") as one_by_one:
        expected = one_by_one()["y"]
    with compile(schedule, {"x": x}, device="cuda", executor="graph") as runner:
        for _ in range(3):
            assert torch.equal(runner()["y"], expected)


@pytest.mark.parametrize("executor", ["eager", "graph"])
def test_tune_measures_several_plans_with_the_same_results(executor: str) -> None:
    made, costs = branches()
    found = tune(made, device="cuda", executor=executor, costs=costs, machine="h200", plans=3, repeats=5)  # type: ignore[arg-type]
    assert all(row.equal for row in found.rows)
    assert found.best in found.rows
