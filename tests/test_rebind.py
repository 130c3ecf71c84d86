"""Binding again accepts and refuses what `bind` does, whatever was bound before."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.binding import bind, written_in_place
from streamgraph.builder import Graph
from streamgraph.errors import BindingError
from streamgraph.plan import plan
from streamgraph.rebind import Binder

CPU = torch.device("cpu")


def program(*, written: bool) -> Any:
    made = Graph("bound")
    x = made.input("x", "f32[2, 3]")
    free = made.input("free")
    w = made.input("w", "f32[4]", each={"layer": 2})
    made.task("use", lambda *tensors: tensors[0] + 1, reads=[x, free, list(w)], writes="y")
    if written:
        made.task("change", torch.Tensor.add_, updates=x, const={"other": 1})
    made.output("y")
    return plan(made)


def draw(draws: random.Random, pool: list[torch.Tensor]) -> object:
    kind = draws.randrange(12)
    if kind < 3 and pool:
        return draws.choice(pool)
    made: object = {
        0: torch.zeros(2, 3), 1: torch.zeros(4), 2: torch.zeros(2, 3), 3: torch.zeros(2, 3, dtype=torch.float64), 4: torch.zeros(3, 2),
        5: [torch.zeros(4), torch.zeros(4)], 6: [torch.zeros(4)], 7: "text", 8: torch.nn.Parameter(torch.zeros(4)),
        9: torch.zeros(2, 3).to_sparse(), 10: [torch.zeros(4), torch.zeros(5)], 11: torch.zeros(3, 2).t(),
    }[kind]  # fmt: skip
    if isinstance(made, torch.Tensor):
        pool.append(made)
        pool.append(made.view(-1)[:4] if made.layout == torch.strided and made.is_contiguous() else made)
    return made


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**9), written=st.booleans())
def test_every_call_is_answered_as_bind_answers_it(seed: int, written: bool) -> None:
    schedule, draws = program(written=written), random.Random(seed)
    names = ["x", "free", "w", "w@0", "w@1", "y", "nothing"]
    changed = written_in_place(schedule.program, schedule.accesses)
    bound = {"w@0": torch.zeros(4), "w@1": torch.ones(4)} if draws.randrange(2) else {}
    if draws.randrange(3) == 0:
        bound |= {"x": torch.zeros(2, 3), "free": torch.ones(1)}
    again = Binder(schedule.program, bound, CPU, changed)
    pool: list[torch.Tensor] = []
    usual = {"x": torch.zeros(2, 3), "free": torch.zeros(1), **({} if bound else {"w": [torch.zeros(4), torch.zeros(4)]})}
    for _ in range(6):
        given = dict(usual)
        for name in draws.sample(names, draws.randrange(3)):
            given[name] = draw(draws, pool)  # type: ignore[assignment]
        right = answer(lambda given: bind(schedule.program, given, CPU, bound=bound, written=changed), given)
        found = answer(again, given)
        if isinstance(right, str) or isinstance(found, str):
            assert found == right
        else:
            assert found.keys() == right.keys()
            assert all(found[name] is right[name] for name in right)


def answer(binder: Callable[[Any], dict[str, torch.Tensor]], given: Any) -> dict[str, torch.Tensor] | str:
    """The tensors, or what is said to be wrong."""
    try:
        return binder(given)
    except BindingError as error:
        return str(error)


def test_a_tensor_that_moved_since_is_looked_at_again() -> None:
    schedule = program(written=True)
    again = Binder(schedule.program, {}, CPU, ("x",))
    base = torch.zeros(16)
    given = {"x": torch.zeros(2, 3), "free": base, "w": [torch.zeros(4), torch.zeros(4)]}
    single = {"x": given["x"], "free": base, "w@0": torch.zeros(4), "w@1": torch.zeros(4)}
    for call in (given, given, single, single):
        again(call)
    single["x"].data = base[:6].view(2, 3)  # type: ignore[union-attr]
    with pytest.raises(BindingError, match="SG504"):
        again(single)
