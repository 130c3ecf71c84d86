"""`prefetch`: layers streamed through slots give what the layers give, with memory for a few of them only."""

from __future__ import annotations

import pytest
import torch

import streamgraph as sg
from streamgraph.errors import SpecError
from streamgraph.prefetch import prefetch
from streamgraph.schedule import Launch


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16, bias=False), torch.nn.Dropout(), torch.nn.BatchNorm1d(16),
        torch.nn.Linear(16, 4, dtype=torch.float32),
    ).eval()  # fmt: skip


@pytest.mark.parametrize("slots", [1, 2, 3, 10])
def test_modules_of_different_shapes_give_what_they_give_in_a_row(slots: int) -> None:
    net = network()
    xs = [torch.randn(5, 8) for _ in range(3)]
    with torch.no_grad():
        right = [net(x) for x in xs]
    with prefetch(net, slots, device="cpu") as runner:
        assert all(torch.equal(runner(x=x)["h"], y) for x, y in zip(xs, right, strict=True))
        assert [torch.equal(result["h"], y) for result, y in zip(runner.map(xs), right, strict=True)] == [True] * 3


def test_the_modules_stay_usable_and_a_change_of_weights_is_seen_by_the_next_call() -> None:
    net = network()
    x = torch.randn(5, 8)
    with prefetch(net, device="cpu") as runner, torch.no_grad():
        net[0].weight.mul_(2)
        assert torch.equal(runner(x=x)["h"], net(x))


def test_tensors_go_with_a_function() -> None:
    weights = [torch.randn(6, 6) for _ in range(5)]
    x = torch.randn(2, 6)
    right = x
    for weight in weights:
        right = torch.tanh(right @ weight)
    with prefetch(weights, function=lambda x, w: torch.tanh(x @ w), device="cpu") as runner:
        assert torch.equal(runner(x=x)["h"], right)


def test_a_slot_is_filled_again_only_after_its_layer_has_run() -> None:
    with prefetch([torch.randn(4, 4) for _ in range(6)], function=torch.mm, device="cpu") as runner:
        order = [step.task for step in runner.schedule.steps if isinstance(step, Launch)]
        assert runner.schedule.explain("layer@1", "load@3").relations[0].verdict == "wait"
        assert runner.schedule.explain("layer@1", "load@2").relations[0].verdict == "may overlap"
        assert order.index("layer@0") < order.index("load@2")
        assert runner.schedule.counts.record_streams == 0


@pytest.mark.parametrize(
    ("layers", "options", "says"),
    [
        ([], {}, "takes modules, or tensors"),
        ([torch.zeros(2)], {}, "takes modules, or tensors"),
        ([torch.zeros(2), torch.zeros(3)], {"function": torch.mul}, "different types"),
        ([torch.nn.BatchNorm1d(3)], {}, "training mode"),
        ([torch.nn.ReLU()], {"slots": 0}, "slots is 0"),
    ],
)
def test_what_cannot_be_prefetched_says_why(layers: list[object], options: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        prefetch(layers, device="cpu", **options)  # type: ignore[arg-type]
    assert sg.Runner


def test_a_layer_that_returns_no_tensor_is_named_with_its_class() -> None:
    runner = prefetch([torch.nn.Identity(), torch.nn.LSTM(4, 4)], device="cpu")
    with runner, pytest.raises(sg.TaskError, match=r"layer 1 \(LSTM\) returned a tuple: a layer takes one tensor and returns one"):
        runner(x=torch.ones(2, 4))


def test_one_module_by_itself_is_refused() -> None:
    with pytest.raises(SpecError, match="takes modules"):
        prefetch(torch.nn.Linear(4, 4), device="cpu")  # type: ignore[arg-type]


def test_no_more_slots_are_made_than_there_are_layers() -> None:
    with prefetch([torch.nn.Linear(4, 4) for _ in range(3)], slots=8, device="cpu") as runner:
        (family,) = [family for family in runner.schedule.program.families if family.slots is not None]
        assert family.slots == 3
