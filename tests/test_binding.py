"""Inputs bind like a dict; everything that is wrong with them is said at once; memory that tasks change is shared by nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.binding import bind, initial, made_up, written_in_place
from streamgraph.builder import Graph
from streamgraph.errors import BindingError
from streamgraph.model import Kind, Program, Tensor, parse_type
from streamgraph.sharing import overlaps_itself, share_bytes
from streamgraph.storages import trace

CPU = torch.device("cpu")


def two_inputs() -> Program:
    made = Graph("two")
    made.input("frame", "f32[4]", each={"cam": 3})
    made.input("weight", "f32[2, 2]")
    made.input("grid", "i64[1]", each={"row": 2, "side": ["left", "right"]})
    made.buffer("state", "f32[4]")
    made.task("t", len, reads=[["frame@0", "frame@1"], "weight"], writes="y")
    return made.program()


def complete() -> dict[str, Any]:
    grid = [[torch.tensor([row * 2 + side]) for side in range(2)] for row in range(2)]
    return {"frame": [torch.full((4,), float(cam)) for cam in range(3)], "weight": torch.ones(2, 2), "grid": grid}


def codes(caught: pytest.ExceptionInfo[BindingError]) -> list[str]:
    return sorted(problem.code for problem in caught.value.problems)


def bound(given: Any, **options: Any) -> dict[str, torch.Tensor]:
    return bind(two_inputs(), given, CPU, **options)


def test_a_family_takes_a_list_nested_for_two_keys() -> None:
    tensors = bound(complete())
    assert [tensors[f"frame@{cam}"][0].item() for cam in range(3)] == [0, 1, 2]
    assert [tensors[name].item() for name in ("grid@0@left", "grid@0@right", "grid@1@left", "grid@1@right")] == [0, 1, 2, 3]
    assert list(tensors) == ["frame@0", "frame@1", "frame@2", "weight", "grid@0@left", "grid@0@right", "grid@1@left", "grid@1@right"]


def test_tuples_do_as_well_as_lists_and_members_bind_singly_over_them() -> None:
    given = complete()
    tensors = bound({**given, "frame": tuple(given["frame"]), "frame@1": torch.full((4,), 9.0)})
    assert [tensors[f"frame@{cam}"][0].item() for cam in range(3)] == [0, 9, 2]


def test_what_a_call_gives_replaces_what_was_bound_for_good() -> None:
    first = bound({"weight": torch.ones(2, 2)}, complete=False)
    second = bound({**complete(), "weight": torch.zeros(2, 2)}, bound=first)
    assert first["weight"].sum() == 4
    assert second["weight"].sum() == 0


def test_all_unbound_inputs_are_named_at_once_and_a_missing_family_once() -> None:
    with pytest.raises(BindingError) as caught:
        bound({"frame@1": torch.zeros(4)})
    text = str(caught.value)
    assert codes(caught) == ["SG501"] * 4
    assert "input 'frame@0' (f32[4])" in text
    assert "input 'frame@2' (f32[4])" in text
    assert "input 'weight' (f32[2, 2])" in text
    assert "inputs 'grid@*' were not bound: 2 x 2 tensors" in text


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wieght", "did you mean 'weight'?"),
        ("state", "'state' is not an input; it is a buffer"),
        ("y", "'y' is not an input; it is a value"),
        ("qqq", "its inputs are: frame@0, frame@1, frame@2, weight"),
    ],
)
def test_an_unknown_name_is_refused_with_what_it_may_have_meant(name: str, message: str) -> None:
    with pytest.raises(BindingError, match="SG502") as caught:
        bound({**complete(), name: torch.zeros(1)})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "code", "message"),
    [
        ("frame", [torch.zeros(4)] * 2, "SG505", "'frame' takes 3 tensors (one per 'cam': 0, 1, 2), but was bound to a list of 2"),
        ("frame", torch.zeros(3, 4), "SG505", "'frame' is a family of 3 tensors (one per 'cam'), but was bound to a value of type torch.T"),
        ("grid", [[torch.zeros(1)] * 2, []], "SG505", "'grid@1' takes 2 tensors (one per 'side': left, right)"),
        ("weight", torch.ones(2, 3), "SG503", "input 'weight' is declared f32[2, 2], but was bound to f32[2, 3]"),
        ("weight", torch.ones(2, 2, dtype=torch.float64), "SG503", "was bound to f64[2, 2]"),
        ("weight", torch.ones(2, 2, dtype=torch.uint16), "SG503", "was bound to uint16[2, 2]"),
        ("weight", torch.ones(2, 2).to_sparse(), "SG503", "was bound to a sparse_coo tensor"),
        ("weight", np.ones((2, 2), np.float32), "SG503", "was bound to a value of type numpy.ndarray"),
        ("weight", None, "SG503", "was bound to None"),
        ("weight", torch.ones(2, 2, device="meta"), "SG503", "is on meta, but this run is on the CPU"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: Any, code: str, message: str) -> None:
    with pytest.raises(BindingError) as caught:
        bound({**complete(), name: value})
    assert codes(caught) == [code]
    assert message in str(caught.value)


def test_problems_of_all_kinds_come_together() -> None:
    with pytest.raises(BindingError) as caught:
        bound({"frame": [1, 2], "weight": torch.ones(3), "x": 1})
    assert codes(caught) == ["SG501", "SG502", "SG503", "SG505"]


def test_device_and_pinning_of_a_gpu_run_are_checked() -> None:
    made = Graph("pinned")
    made.input("far", "f32[2]")
    made.input("near", "f32[2]", device="cpu", pinned=True)
    with pytest.raises(BindingError) as caught:
        bind(made.program(), {"far": torch.zeros(2), "near": torch.zeros(2)}, torch.device("cuda", 0))
    assert "input 'far' is on cpu, but the run is on cuda:0" in str(caught.value)
    assert "input 'near' is declared `pinned: true`, but the tensor bound to it is not pinned" in str(caught.value)
    # On the CPU there is one device, and nothing to pin.
    bind(made.program(), {"far": torch.zeros(2), "near": torch.zeros(2)}, CPU)


# --- memory that tasks change ------------------------------------------------------------------------------------------------------------


def updated() -> Program:
    made = Graph("updated")
    made.input("a")
    made.input("b")
    made.input("c", "i64[4]")
    made.view("front", "c", (slice(0, 2),))
    made.task("t", len, updates="a", reads=["b", "c"])
    return made.program()


def test_only_inputs_whose_bytes_change_count_as_written() -> None:
    made = Graph("rebound")
    made.input("x", "i64[4]")
    made.input("y", "i64[4]")
    made.view("y_front", "y", (slice(0, 2),))
    made.task("rebind", len, writes="x")
    made.task("part", len, writes="y_front")
    of = made.program()
    assert written_in_place(of, trace(of)[0]) == ("y",)


@pytest.mark.parametrize(
    ("a", "b", "fine"),
    [
        (slice(0, 4), slice(4, 8), True),
        (slice(0, 5), slice(4, 8), False),
        (slice(0, 8, 2), slice(1, 8, 2), True),  # interleaved: the ranges meet, no byte does
        (slice(0, 8, 2), slice(0, 8, 3), False),
        (slice(0, 0), slice(0, 8), True),  # no element, no byte
    ],
)
def test_an_updated_input_shares_no_byte_with_another(a: slice, b: slice, fine: bool) -> None:
    memory = torch.arange(8)
    of = updated()
    given = {"a": memory[a], "b": memory[b], "c": torch.zeros(4, dtype=torch.int64)}
    if fine:
        bind(of, given, CPU, written=("a",))
        return
    with pytest.raises(BindingError, match="SG504") as caught:
        bind(of, given, CPU, written=("a",))
    assert "input 'a', which a task changes in place, shares memory with input 'b'" in str(caught.value)


def test_inputs_that_nobody_changes_may_share_memory() -> None:
    memory = torch.zeros(4, dtype=torch.int64)
    bind(updated(), {"a": torch.zeros(1), "b": memory, "c": memory}, CPU, written=("a",))


def test_an_updated_input_must_not_overlap_itself() -> None:
    given = {"a": torch.zeros(1).expand(4), "b": torch.zeros(1), "c": torch.zeros(4, dtype=torch.int64)}
    with pytest.raises(BindingError, match="overlaps itself") as caught:
        bind(updated(), given, CPU, written=("a",))
    assert codes(caught) == ["SG504"]


@st.composite
def strided(draw: st.DrawFn) -> torch.Tensor:
    memory = torch.arange(64)
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    strides = [draw(st.integers(0, 7)) for _ in shape]
    return memory.as_strided(shape, strides, draw(st.integers(0, 20)))


def elements(tensor: torch.Tensor) -> list[int]:
    return tensor.flatten().tolist()  # each element of the memory holds its own number


@settings(max_examples=200, deadline=None)
@given(tensor=strided())
def test_self_overlap_is_exact(tensor: torch.Tensor) -> None:
    assert overlaps_itself(tensor) == (len(set(elements(tensor))) < tensor.numel())


@settings(max_examples=200, deadline=None)
@given(shapes=st.tuples(strided(), strided()))
def test_sharing_is_exact_and_symmetric(shapes: tuple[torch.Tensor, torch.Tensor]) -> None:
    memory = torch.arange(64)
    first, second = (memory.as_strided(t.shape, t.stride(), t.storage_offset()) for t in shapes)
    expected = bool(set(elements(first)) & set(elements(second)))
    assert share_bytes(first, second) == share_bytes(second, first) == expected


def test_tensors_too_large_to_list_are_taken_to_share_when_their_ranges_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamgraph.sharing.LISTED", 3)
    memory = torch.arange(8)
    assert share_bytes(memory[::2], memory[1::2])
    assert not share_bytes(memory[:4], memory[4:])
    assert overlaps_itself(memory.as_strided((2, 2), (2, 2)))


# --- what is made up ---------------------------------------------------------------------------------------------------------------------


def test_only_unbound_inputs_with_an_init_are_made_up() -> None:
    made = Graph("init")
    made.input("x", "f32[3]", init="random")
    made.input("y", "f32[3]", init="ones")
    made.input("z", "f32[3]")
    invented = made_up(made.program(), {"y": torch.zeros(3)}, CPU, 0)
    assert list(invented) == ["x"]


@pytest.mark.parametrize(("init", "values"), [("zeros", [0, 0, 0]), (None, [0, 0, 0]), ("ones", [1, 1, 1]), ("arange", [0, 1, 2])])
def test_init_fills(init: str | None, values: list[int]) -> None:
    for dtype in ("f32", "i64", "u8", "f16", "c64"):
        assert initial(Tensor("x", Kind.INPUT, parse_type(f"{dtype}[3]"), init=init), CPU, 0).real.tolist() == values


@pytest.mark.parametrize("dtype", ["bool", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "c64", "c128", "f8e4m3", "f8e5m2"])
def test_every_dtype_has_random_values(dtype: str) -> None:
    made = initial(Tensor("x", Kind.INPUT, parse_type(f"{dtype}[64]"), init="random"), CPU, 0)
    assert len(set(made.to(torch.complex64).tolist())) > 1


def test_random_depends_on_name_and_seed_alone() -> None:
    def draw(name: str, seed: int) -> list[int]:
        torch.rand(1)  # another generator's state is of no matter
        return initial(Tensor(name, Kind.INPUT, parse_type("i64[8]"), init="random"), CPU, seed).tolist()

    assert draw("x", 0) == draw("x", 0)
    assert draw("x", 0) != draw("y", 0)
    assert draw("x", 0) != draw("x", 1)


def test_random_is_the_same_in_every_process() -> None:
    code = (
        "import torch; from streamgraph.binding import initial; from streamgraph.model import *;"
        "print(initial(Tensor('x', Kind.INPUT, parse_type('i64[8]'), init='random'), torch.device('cpu'), 7).tolist())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
    here = initial(Tensor("x", Kind.INPUT, parse_type("i64[8]"), init="random"), torch.device("cpu"), 7).tolist()
    assert there.strip() == str(here)
