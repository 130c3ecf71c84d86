"""Compare finds the first task that wrote other bytes, and only then says that something differs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.cli import cli
from streamgraph.compare import Comparison, _digest, compare, delta
from streamgraph.executors.watched import copied
from tests.programs import mix_for, seeded


def racy() -> tuple[Graph, dict[str, Callable[..., Any]]]:
    """`fetch` reads what `stash` hides from the declaration, on another lane; run as planned, `stash` lets `fetch` go first."""
    hidden = torch.zeros(4)
    fetched = threading.Event()

    def stash(x: torch.Tensor) -> torch.Tensor:
        fetched.wait(timeout=0.5)
        hidden.copy_(x)
        return x + 1

    def fetch(x: torch.Tensor) -> torch.Tensor:
        y = x + hidden
        fetched.set()
        return y

    def reset(x: torch.Tensor) -> torch.Tensor:
        hidden.zero_()
        fetched.clear()
        return x * 2

    graph = Graph("racy")
    x = graph.input("x", "f32[4]", init="arange")
    start = graph.task("reset", "reset", reads=x, writes="start")
    graph.task("stash", "stash", reads=start, writes="kept", stream="a")
    got = graph.task("fetch", "fetch", reads=start, writes="got", stream="b")
    graph.task("after", "after", reads=got, writes="more")
    graph.output("more")
    return graph, {"stash": stash, "fetch": fetch, "reset": reset, "after": lambda x: x * 3}


def test_a_hidden_access_is_found_at_the_task_that_suffered_from_it() -> None:
    graph, ops = racy()
    found = compare(graph, ops=ops, device="cpu")
    assert not found.equal
    assert found.first is not None
    assert (found.first.task, found.first.lane, found.first.tensors) == ("fetch", "b", ("got",))
    assert found.differing == ("fetch", "after")
    assert found.repeatable is True
    (more,) = found.results
    assert more.name == "more"
    assert more.delta is not None
    assert more.delta.count == 3  # 0 * anything is the same


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_a_program_that_declares_all_its_accesses_compares_equal(seed: int) -> None:
    program = seeded(seed)
    found = compare(program, ops=mix_for(program), device="cpu")
    assert found.equal
    assert found.first is None
    assert found.tasks >= len(program.tasks)


def test_an_operator_that_is_not_deterministic_is_told_apart_from_a_race() -> None:
    calls = iter(range(100))
    graph = Graph("dice")
    x = graph.input("x", "f32[4]", init="ones")
    graph.output(graph.task("roll", "roll", reads=x, writes="y"))
    found = compare(graph, ops={"roll": lambda x: x + next(calls)}, device="cpu")
    assert found.first is not None
    assert found.first.task == "roll"
    assert found.repeatable is False


def test_the_callers_inputs_and_generators_stay_as_they_are() -> None:
    graph = Graph("place")
    x = graph.input("x", "f32[4]")
    graph.task("double", "double", updates=x)
    mine = torch.ones(4)
    state = torch.random.get_rng_state()
    found = compare(graph, {"x": mine}, ops={"double": lambda x: x.mul_(2)}, device="cpu")
    assert found.equal
    assert [result.name for result in found.results] == ["x (input)"]
    assert torch.equal(mine, torch.ones(4))
    assert torch.equal(state, torch.random.get_rng_state())


def test_any_tensor_can_be_fetched() -> None:
    graph, ops = racy()
    found = compare(graph, ops=ops, device="cpu", outputs=["kept"])
    assert [(result.name, result.delta) for result in found.results] == [("kept", None)]


@pytest.mark.parametrize("executor", ["eager", "lanes"])
def test_both_executors_of_the_cpu_can_be_compared(executor: Any) -> None:
    program = seeded(7)
    assert compare(program, ops=mix_for(program), device="cpu", executor=executor).executor == executor


# --- bytes --------------------------------------------------------------------------------------------------------------------------

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64, torch.float64, torch.uint8]


@given(st.sampled_from(DTYPES), st.integers(1, 70), st.data())
@settings(max_examples=150, deadline=None)
def test_one_changed_element_changes_the_digest_and_is_found_at_its_place(dtype: torch.dtype, size: int, data: st.DataObject) -> None:
    mine = torch.arange(size).remainder(2).to(dtype)
    place = data.draw(st.integers(0, size - 1))
    its = mine.clone()
    its[place] = 1 - its[place].to(torch.int64).item() if not dtype.is_complex else 1 - its[place]
    assert _digest(mine)[1].tolist() != _digest(its)[1].tolist()
    assert _digest(mine)[1].tolist() == _digest(mine.clone())[1].tolist()
    found = delta(mine, its)
    assert found is not None
    assert (found.count, found.total, found.index, found.largest) == (1, size, (place,), 1.0)
    assert delta(mine, mine.clone()) is None


def test_swapped_elements_change_the_digest() -> None:
    a = torch.tensor([1, 2, 3, 4])
    assert _digest(a)[1].tolist() != _digest(a.flip(0))[1].tolist()


def test_bits_count_and_not_values() -> None:
    nan = torch.tensor([float("nan")])
    assert delta(nan, nan.clone()) is None
    zero = delta(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert zero is not None
    assert zero.largest == 0.0
    assert _digest(torch.tensor([0.0]))[1].tolist() != _digest(torch.tensor([-0.0]))[1].tolist()


def test_strides_and_offsets_do_not_count() -> None:
    base = torch.arange(60, dtype=torch.uint8)
    for view in (base[3:50], base[1::2], base.reshape(6, 10).T, base[5:5]):
        assert _digest(view)[1].tolist() == _digest(view.clone(memory_format=torch.contiguous_format))[1].tolist()
        assert delta(view, view.clone()) is None


def test_the_first_difference_has_its_index_in_every_dimension() -> None:
    mine = torch.zeros(2, 3, 4)
    its = mine.clone()
    its[1, 2, 3] = 5
    its[1, 2, 1] = -7
    assert delta(mine, its) == delta(mine, its)
    found = delta(mine, its)
    assert found is not None
    assert (found.index, found.count, found.largest) == ((1, 2, 1), 2, 7.0)


def test_a_copy_has_its_own_memory_and_the_same_strides() -> None:
    tensor = torch.arange(12).reshape(3, 4).T
    copy = copied(tensor)
    assert copy.stride() == tensor.stride()
    assert torch.equal(copy, tensor)
    assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


# --- the command --------------------------------------------------------------------------------------------------------------------

HIDDEN = '''
import threading
import torch

hidden, fetched = torch.zeros(4), threading.Event()

def reset(x):
    hidden.zero_()
    fetched.clear()
    return x * 2

def stash(x):
    fetched.wait(timeout=0.5)
    hidden.copy_(x)
    return x + 1

def fetch(x):
    y = x + hidden
    fetched.set()
    return y
'''
SPEC = """\
streamgraph: 1
name: racy
tensors:
  x: {type: "f32[4]", kind: input, init: arange}
tasks:
  reset: {run: reset, reads: x, writes: start}
  stash: {run: stash, reads: start, writes: kept, stream: a}
  fetch: {run: fetch, reads: start, writes: got, stream: b}
outputs: [got]
"""


def test_the_command_names_the_task_its_line_and_its_hazards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ops.py").write_text(HIDDEN, encoding="utf-8")
    Path("racy.yaml").write_text(SPEC, encoding="utf-8")
    arguments = ["compare", "racy.yaml", "--ops", "ops.py", "--device", "cpu"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert "got     f32[4]  DIFFERS in 3 of 4 elements, first at [1], by up to 6" in result.stdout
    assert "First difference: task 'fetch' @b (racy.yaml:8) wrote other bytes to got" in result.stdout
    assert "RAW start: reset -> fetch" in result.stdout
    assert "memory that an operator touches and its task does not declare" in result.stdout
    data = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).stdout)
    assert data["exit_code"] == 1
    assert data["first"]["task"] == "fetch"
    assert data["first"]["hazards"] == ["RAW start: reset -> fetch (racy.yaml:8)"]
    run = CliRunner().invoke(cli, ["run", *arguments[1:]])
    assert run.exit_code == 1
    assert "DIFFERS" in run.stdout
    assert "compare racy.yaml --ops ops.py" in run.stderr


def test_a_comparison_is_equal_only_if_every_part_is() -> None:
    graph, ops = racy()
    found = compare(graph, ops=ops, device="cpu", outputs=["kept"])
    assert isinstance(found, Comparison)
    assert all(result.delta is None for result in found.results)
    assert not found.equal  # its one result is equal, but `fetch` differs
