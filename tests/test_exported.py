"""The benchmarks' converter: what `torch.export` traced becomes a program that gives the module's results, bit for bit, planned or not."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import streamgraph as sg
from benchmarks.exported import Converted, convert

X = torch.randn(2, 4, 6, 6)


class Of(nn.Module):
    """A module that calls a function, with two convolutions and a normalisation to use."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.one, self.two, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def converted(function: Callable[..., torch.Tensor], chains: bool = True) -> tuple[Converted, torch.Tensor]:
    """The program, and what the module gives for X."""
    torch.manual_seed(0)
    module = Of(function).eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export's own, of what it uses inside
        exported = torch.export.export(module, (X.clone(),))
        return convert(exported, "module", chains), module(X.clone())


def branches(m: Of, x: torch.Tensor) -> torch.Tensor:
    a = torch.relu_(m.norm(m.one(x)))
    return torch.cat([a, m.two(x), m.two(a) + x], 1)


def in_place_with_another_reader(m: Of, x: torch.Tensor) -> torch.Tensor:
    y = m.one(x)
    before = y * 2.0
    y.relu_()
    return before + m.two(y) + y


def changed_through_a_view(m: Of, x: torch.Tensor) -> torch.Tensor:
    y = m.one(x)
    y[:, 1:].mul_(3.0)
    return y + m.two(x)


def views(m: Of, x: torch.Tensor) -> torch.Tensor:
    y = torch.flatten(m.one(x), 2).transpose(1, 2)
    return y @ y.transpose(1, 2) + nn.functional.dropout(y, 0.5, m.training).sum()


def read_before_it_is_changed(m: Of, x: torch.Tensor) -> torch.Tensor:
    y = m.one(x)
    early = m.two(torch.sigmoid(y))  # a chain that reads y: it may not slip past the change
    y.add_(1.0)
    return early + y


CASES = (branches, in_place_with_another_reader, changed_through_a_view, views, read_before_it_is_changed)


@pytest.mark.parametrize("chains", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_results_are_the_module_s_bit_for_bit(case: Callable[..., torch.Tensor], chains: bool) -> None:
    found, expected = converted(case, chains)
    inputs = {**found.weights, found.inputs[0]: X.clone()}
    for executor in ("sequential", "lanes"):
        for policy, streams in (("single", 1), ("critical_path", 3), ("urgent", 8)):
            schedule = sg.plan(found.program, policy=policy, streams=streams, issue="captured")  # type: ignore[arg-type]
            (value,) = sg.run(schedule, inputs, ops=found.ops, device="cpu", executor=executor).values()  # type: ignore[call-overload]
            assert torch.equal(value, expected)


def test_chains_take_fewer_tasks_and_leave_branches_apart() -> None:
    whole, parts = converted(branches)[0].program, converted(branches, chains=False)[0].program
    assert len(whole.tasks) < len(parts.tasks)
    assert {"cat", "add"} <= {task.name.rstrip("_0123456789") for task in whole.tasks}


def test_what_is_changed_in_place_is_an_update() -> None:
    program = converted(in_place_with_another_reader)[0].program
    assert [task.name for task in program.tasks if task.updates] == ["relu_"]


def test_tasks_that_do_the_same_share_an_operator() -> None:
    found, _ = converted(lambda m, x: m.norm(m.one(x)) + m.norm(m.one(x)))
    assert (len(found.ops), len(found.program.tasks)) == (2, 3)


def test_random_numbers_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="random"):
        converted(lambda m, x: m.one(x) + torch.rand_like(x))


def test_several_results_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="several"):
        converted(lambda m, x: torch.max(m.one(x), 1)[0])
