"""The calling convention, and what a returned value must be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.calls import Call, cut, describe, operands, prepare, type_text
from streamgraph.errors import TaskError
from streamgraph.model import Kind, Program
from streamgraph.returned import check_alias, check_kept, check_returned, empty_for, layouts, run_copy
from streamgraph.storages import Accesses, Mode, trace
from tests.programs import random_program

CPU = torch.device("cpu")


def calls_of(graph: Graph) -> tuple[tuple[Call, ...], Accesses, Program]:
    program = graph.program()
    accesses, problems = trace(program)
    assert not problems
    return prepare(program, accesses), accesses, program


def call_of(graph: Graph) -> tuple[Call, list[torch.Tensor | None]]:
    """The call of the last task, and a tensor `arange` for every storage whose type is known."""
    calls, accesses, program = calls_of(graph)
    tensors: list[torch.Tensor | None] = []
    for storage in accesses.storages:
        kind = program.tensor_named[storage.tensor].type
        tensors.append(None if kind is None else torch.arange(kind.elements, dtype=torch.float32).reshape(kind.shape))
    return calls[-1], tensors


def typed(*names: str) -> Graph:
    graph = Graph("test")
    for name in names:
        graph.input(name, "f32[4]")
    return graph


# --- the convention ---


def test_updates_come_before_reads_and_both_are_positional() -> None:
    graph = typed("a", "b", "c")
    graph.task("t", "f", reads=["a", "b"], updates="c")
    assert describe(call_of(graph)[0]) == "f(c, a, b)"


def test_a_star_is_one_list() -> None:
    graph = Graph("test")
    graph.input("image", "f32[4]", each={"cam": 3})
    graph.task("t", "f", reads=["image@*"], writes="y")
    call, tensors = call_of(graph)
    positional, _ = call.arguments(tensors)
    assert [type(entry) for entry in positional] == [list]
    assert describe(call) == "f([image@0, image@1, image@2])"


@pytest.mark.parametrize(
    ("writes", "shown"),
    [
        ("b", "f(a, out=b)"),
        (["b", "c"], "f(a, out=(b, c))"),
        ({"mean": "b", "spread": "c"}, "f(a, mean=b, spread=c)"),
        (["b", "y", "c"], "f(a, out=(b, c))"),
        ([["b", "c"]], "f(a, out=[b, c])"),
        ("y", "f(a)"),
    ],
)
def test_written_buffers_are_keywords_and_written_values_are_not_passed(writes: Any, shown: str) -> None:
    graph = typed("a")
    graph.buffer("b", "f32[4]")
    graph.buffer("c", "f32[4]")
    graph.task("t", "f", reads="a", writes=writes)
    assert describe(call_of(graph)[0]) == shown


def test_the_mapping_form_binds_reads_and_updates_by_keyword() -> None:
    graph = typed("a", "b")
    graph.task("t", "f", reads={"image": "a"}, updates={"state": "b"}, const={"scale": 2})
    call, tensors = call_of(graph)
    positional, keywords = call.arguments(tensors)
    assert positional == []
    assert list(keywords) == ["state", "image", "scale"]
    assert keywords["scale"] == 2


def test_a_resource_is_never_passed() -> None:
    graph = typed("a")
    graph.resource("rng")
    graph.task("t", "f", reads=["a"], updates=["rng"], writes="y")
    assert describe(call_of(graph)[0]) == "f(a)"


def test_an_input_that_is_written_is_returned_and_the_read_is_of_the_old_version() -> None:
    graph = typed("h", "w")
    graph.task("t", "f", reads=["h", "w"], writes="h")
    call, _ = call_of(graph)
    read = next(operands(call.positional[0]))
    assert (read.tensor, call.returns[0].tensor) == ("h", "h")
    assert read.storage != call.returns[0].storage


def test_a_view_is_written_like_a_buffer_even_of_a_value() -> None:
    graph = typed("a")
    graph.value("y", "f32[4]")
    graph.task("make", "f", reads="a", writes="y")
    graph.view("low", "y", [slice(0, 2)])
    graph.task("t", "f", reads="a", writes="low")
    call, tensors = call_of(graph)
    _, keywords = call.arguments(tensors)
    assert keywords["out"].shape == (2,)
    assert not call.returns


def test_views_are_cut_with_integers_dropping_dimensions() -> None:
    graph = Graph("test")
    graph.input("x", "f32[4, 3, 5]")
    graph.view("part", "x", [slice(1, 3), slice(0, 3), 4])
    graph.task("t", "f", reads="part", writes="y")
    call, tensors = call_of(graph)
    positional, _ = call.arguments(tensors)
    whole = torch.arange(60.0).reshape(4, 3, 5)
    assert torch.equal(positional[0], whole[1:3, :, 4])
    assert describe(call, tensors) == "f(part: f32[2, 3])"


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.integers(0, 3), st.integers(0, 4)), max_size=4))
@settings(max_examples=50, deadline=None)
def test_a_cut_is_plain_indexing_and_shares_memory(dimensions: list[tuple[int, bool, int, int]]) -> None:
    whole = torch.arange(float(torch.tensor([d[0] for d in dimensions]).prod())).reshape([d[0] for d in dimensions])
    index = tuple(min(a, size - 1) if single else (min(a, size), min(max(a, b), size)) for size, single, a, b in dimensions)
    expected = whole
    for dimension in reversed(range(len(index))):
        part = index[dimension]
        expected = expected.select(dimension, part) if isinstance(part, int) else expected.narrow(dimension, part[0], part[1] - part[0])
    found = cut(whole, index)
    assert torch.equal(found, expected)
    assert found.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_every_access_is_passed_or_returned_once(choice: Any) -> None:
    program = random_program(choice.randrange)
    accesses = trace(program)[0]
    for call, found in zip(prepare(program, accesses), accesses.of_task, strict=True):
        resources = {number for number, storage in enumerate(accesses.storages) if storage.kind is Kind.RESOURCE}
        expected = sorted((access.storage, access.tensor) for access in found if access.storage not in resources)
        used = [(operand.storage, operand.tensor) for operand in call.operands()]
        assert sorted([*used, *((returned.storage, returned.tensor) for returned in call.returns)]) == expected
        for returned in call.returns:
            assert accesses.storages[returned.storage].version > 0


def test_a_ring_member_is_the_storage_of_its_slot() -> None:
    graph = typed("a")
    graph.buffer("w", "f32[4]", each={"layer": 3}, slots=2, over="layer")
    for number in range(3):
        graph.task(f"fill@{number}", "f", reads="a", writes=f"w@{number}")
    calls, _, _ = calls_of(graph)
    places = [next(operands(dict(call.keywords)["out"])).storage for call in calls]
    assert places[0] == places[2] != places[1]


def test_long_lists_are_cut_short_in_messages() -> None:
    graph = Graph("test")
    graph.input("image", "f32[4]", each={"cam": 24})
    graph.task("t", "f", reads=["image@*"], writes="y")
    assert describe(call_of(graph)[0]) == "f([image@0, image@1, image@2, image@3, … 20 more])"


def test_types_read_as_in_fx() -> None:
    assert type_text(torch.zeros(2, 3, dtype=torch.bfloat16)) == "bf16[2, 3]"
    assert type_text(torch.zeros((), dtype=torch.uint16)) == "uint16[]"


# --- what comes back ---


def problem_of(error: pytest.ExceptionInfo[TaskError]) -> tuple[str, str]:
    (problem,) = error.value.problems
    return problem.code, problem.message


def two_values() -> tuple[Call, list[torch.Tensor | None]]:
    graph = typed("x")
    graph.task("t", "f", reads="x", writes=["a", "b"])
    return call_of(graph)


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (None, "None"),
        (torch.zeros(1), "one tensor, f32[1]"),
        ([torch.zeros(1)] * 3, "a list of 3"),
        ((torch.zeros(1), 3), "a tuple of 2 with 'int' in it"),
        ({"a": 1}, "a dict"),
    ],
)
def test_a_wrong_number_of_results_is_named(result: object, what: str) -> None:
    call, tensors = two_values()
    with pytest.raises(TaskError) as error:
        check_returned(call, result, tensors, CPU, "s1")
    assert problem_of(error) == ("SG602", f"task 't' must return 2 tensors (a, b); it returned {what}")
    assert (error.value.task, error.value.lane) == ("t", "s1")


def test_a_tuple_a_list_and_a_named_tuple_of_the_right_length_are_accepted() -> None:
    call, tensors = two_values()
    pair = (torch.zeros(1), torch.ones(1))
    assert check_returned(call, pair, tensors, CPU) == pair
    assert check_returned(call, list(pair), tensors, CPU) == pair
    assert len(check_returned(call, torch.max(torch.zeros(2, 2), 1), tensors, CPU)) == 2


def test_one_value_is_the_tensor_itself_and_a_starred_one_is_a_sequence() -> None:
    graph = typed("x")
    graph.task("t", "f", reads="x", writes="y")
    call, tensors = call_of(graph)
    with pytest.raises(TaskError, match="a tuple of 1"):
        check_returned(call, (torch.zeros(1),), tensors, CPU)
    graph = typed("x")
    graph.value("part", each={"i": 1})
    graph.task("t", "f", reads="x", writes=["part@*"])
    call, tensors = call_of(graph)
    assert call.returns_sequence
    assert len(check_returned(call, [torch.zeros(1)], tensors, CPU)) == 1


def updating() -> tuple[Call, list[torch.Tensor | None]]:
    graph = typed("x", "state")
    graph.task("t", "f", reads="x", updates="state")
    return call_of(graph)


def test_an_in_place_operator_may_return_what_it_changed() -> None:
    call, tensors = updating()
    state = tensors[next(operands(call.positional[0])).storage]
    for result in (None, state, (state,), 3, object()):
        assert check_returned(call, result, tensors, CPU) == ()


@pytest.mark.parametrize("of_argument", [False, True])
def test_a_result_that_nothing_declares_is_an_error(of_argument: bool) -> None:
    call, tensors = updating()
    result = tensors[next(operands(call.positional[1])).storage] if of_argument else torch.zeros(4)
    with pytest.raises(TaskError) as error:
        check_returned(call, result, tensors, CPU)
    assert problem_of(error) == ("SG602", "task 't' declares no returned value, but it returned one tensor, f32[4]")
    assert error.value.problems[0].help == "write into state in place, or list the value in `writes`"


def one_value(type: str | None = None, device: str = "device") -> tuple[Call, list[torch.Tensor | None]]:
    graph = typed("x", "other")
    graph.value("y", type, device=device)
    graph.task("t", "f", reads="x", writes="y", const={"scale": 2})
    return call_of(graph)


@pytest.mark.parametrize(
    ("value", "code", "words"),
    [
        (torch.zeros(2), "SG503", "returned 'y' as f32[2], but it is declared as f32[4]"),
        (torch.zeros(4, dtype=torch.int64), "SG503", "as i64[4]"),
        (torch.zeros(4, requires_grad=True), "SG602", "with an autograd graph"),
        (torch.zeros(4, requires_grad=True) * 2, "SG602", "with an autograd graph"),
        (torch.zeros(4).to_sparse(), "SG602", "a sparse_coo tensor"),
        (torch.zeros(4, device="meta"), "SG503", "on meta, but it belongs on cpu"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(value: torch.Tensor, code: str, words: str) -> None:
    call, tensors = one_value("f32[4]")
    with pytest.raises(TaskError) as error:
        check_returned(call, value, tensors, CPU)
    assert problem_of(error)[0] == code
    assert words in problem_of(error)[1]
    assert error.value.problems[0].help


def test_a_value_for_the_host_belongs_on_the_cpu_whatever_the_run_device() -> None:
    call, tensors = one_value("f32[4]", device="cpu")
    assert check_returned(call, torch.zeros(4), tensors, torch.device("meta"))
    call, tensors = one_value("f32[4]")
    with pytest.raises(TaskError, match="declare `device: cpu`"):
        check_returned(call, torch.zeros(4), tensors, torch.device("meta"))


def test_a_value_must_not_share_memory_with_an_argument() -> None:
    call, tensors = one_value()
    x = tensors[next(call.operands()).storage]
    assert x is not None
    for value in (x, x[1:], x.view(2, 2), x[1:1].new_zeros(0).set_(x.untyped_storage(), 0, (1,))):
        with pytest.raises(TaskError, match="returned 'y' in the memory of its argument 'x'"):
            check_alias(call, [value], tensors)
    check_alias(call, [x.clone()], tensors)
    check_alias(call, [x[2:2]], tensors)  # no element, nothing shared


def test_a_value_must_not_share_memory_with_another_result_or_a_constant() -> None:
    call, tensors = two_values()
    both = torch.zeros(4)
    with pytest.raises(TaskError) as error:
        check_alias(call, [both[:2], both[2:]], tensors)
    assert problem_of(error) == ("SG603", "task 't' returned 'b' in the memory of its other result 'a'")
    with pytest.raises(TaskError, match="a constant or a weight"):
        check_alias(call, [both, torch.zeros(1)], tensors, [both])


def test_empty_tensors_share_nothing() -> None:
    call, tensors = two_values()
    check_alias(call, [torch.zeros(0), torch.zeros(0)], tensors, [torch.zeros(0)])


# --- what is written stays where it is ---


def writing(target: str) -> tuple[Call, list[torch.Tensor | None]]:
    graph = typed("x")
    graph.buffer("buffer", "f32[4]")
    graph.view("low", "buffer", [slice(0, 2)])
    graph.task("t", "f", reads="x", writes=target)
    return call_of(graph)


@pytest.mark.parametrize("target", ["buffer", "low"])
def test_an_out_that_torch_resizes_is_an_error(target: str) -> None:
    call, tensors = writing(target)
    positional, keywords = call.arguments(tensors)
    before = layouts(call, positional, keywords)
    keywords["out"].copy_(torch.zeros(keywords["out"].shape))
    check_kept(call, before)
    with pytest.warns(UserWarning, match="resized"):
        torch.add(torch.zeros(3), 1, out=keywords["out"])
    with pytest.raises(TaskError, match=f"changed the shape of '{target}' from"):
        check_kept(call, before)


def test_an_updated_tensor_that_gets_other_memory_is_an_error() -> None:
    call, tensors = updating()
    positional, keywords = call.arguments(tensors)
    before = layouts(call, positional, keywords)
    assert [layout.name for layout in before] == ["state"]
    positional[0].data = torch.zeros(4)
    with pytest.raises(TaskError, match="moved 'state' to other memory"):
        check_kept(call, before)


# --- copy ---


def copying(type: str | None, device: str = "device", declare: bool = True) -> tuple[Call, list[torch.Tensor | None]]:
    graph = Graph("test")
    graph.input("x", "f32[2, 3]")
    if declare:
        graph.value("y", type, device=device)
    graph.copy("c", "x", "y")
    return call_of(graph)


@pytest.mark.parametrize("declare", [True, False])
def test_copy_to_a_value_makes_new_memory(declare: bool) -> None:
    call, tensors = copying(None, declare=declare)
    (value,) = run_copy(call, tensors, CPU)
    source = tensors[0]
    assert source is not None
    assert torch.equal(value, source)
    assert value.data_ptr() != source.data_ptr()


def test_copy_to_a_value_converts_to_the_declared_dtype() -> None:
    call, tensors = copying("i64[2, 3]")
    assert type_text(run_copy(call, tensors, CPU)[0]) == "i64[2, 3]"


def test_copy_to_a_buffer_writes_in_place_and_returns_nothing() -> None:
    graph = typed("x")
    graph.buffer("b", "f32[2]")
    graph.view("low", "x", [slice(2, 4)])
    graph.copy("c", "low", "b")
    call, tensors = call_of(graph)
    assert run_copy(call, tensors, CPU) == ()
    (written,) = (operand for operand in call.operands() if operand.mode is Mode.WRITE)
    target = tensors[written.storage]
    assert target is not None
    assert target.tolist() == [2.0, 3.0]


def test_copy_never_broadcasts() -> None:
    call, tensors = copying(None)
    tensors[0] = torch.zeros(3)
    graph = typed("x")
    graph.buffer("b", "f32[4]")
    graph.copy("c", "x", "b")
    call, tensors = call_of(graph)
    tensors[next(call.operands()).storage] = torch.zeros(1)
    with pytest.raises(TaskError) as error:
        run_copy(call, tensors, CPU)
    assert problem_of(error) == ("SG503", "task 'c' copies 'x', f32[1], to 'b', f32[4]")


def test_a_copy_keeps_the_memory_format_and_lies_where_it_is_declared() -> None:
    call, _ = copying(None, device="cpu")
    source = torch.zeros(1, 3, 4, 4).to(memory_format=torch.channels_last)
    target = empty_for(call.returns[0], source, torch.device("meta"))
    assert target.device == CPU
    assert target.stride() == source.stride()
    call, _ = copying(None)
    assert empty_for(call.returns[0], source, torch.device("meta")).device == torch.device("meta")
