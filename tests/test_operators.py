"""Names become callables: what is found, what is refused, and what does not fit is said before anything runs."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import streamgraph
from streamgraph import registry
from streamgraph.builder import Graph
from streamgraph.calls import describe
from streamgraph.errors import OperatorError, Problem
from streamgraph.model import Task
from streamgraph.operators import Operator, Operators, load_operators, resolve
from streamgraph.registry import Unfit, overloads
from streamgraph.returned import check_returned
from streamgraph.storages import trace


def declared(**tensors: str) -> Graph:
    """A graph with inputs `x=...`, buffers `buffer_x=...` and a resource `rng`."""
    graph = Graph("test")
    for name, type in tensors.items():
        if name.startswith("buffer_"):
            graph.buffer(name.removeprefix("buffer_"), type)
        else:
            graph.input(name, type)
    graph.resource("rng")
    return graph


ALL = {name: "f32[4]" for name in ("x", "y", "weight", "batch", "buffer_out1", "buffer_out2", "buffer_state")}


def one(run: Any, ops: Operators | None = None, device: str | None = None, **task: Any) -> Operator:
    """The operator of one task. A name goes around the checks of `Graph`: what they refuse must be refused here too."""
    graph = declared(**ALL)
    graph.task("t", "name" if isinstance(run, str) else run, **task)
    program = graph.program()
    if isinstance(run, str):
        program = replace(program, tasks=(replace(program.tasks[0], operator=run),))
    return resolve(program, ops, device)[0]


def refused(run: Any, ops: Operators | None = None, **task: Any) -> Problem:
    with pytest.raises(OperatorError) as error:
        one(run, ops, **task)
    (problem,) = error.value.problems
    assert problem.location is not None
    return problem


def schema(operator: Operator) -> str:
    function = operator.function
    assert isinstance(function, torch._ops.OpOverload)
    return str(function)


def result_of(operator: Operator, graph: Graph, **inputs: torch.Tensor) -> Any:
    """What the operator gives for these tensors, by name."""
    storages = trace(graph.program())[0].storages
    positional, keywords = operator.call.arguments([inputs.get(storage.tensor) for storage in storages])
    return operator.function(*positional, **keywords)


# --- where operators come from ---


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_mapping_a_module_and_a_function_bring_operators() -> None:
    module = types.ModuleType("ops")
    module.double = double  # type: ignore[attr-defined]
    for ops in ({"double": double}, module, lambda task: double if task.operator == "double" else None):
        assert one("double", ops, reads="x", writes="z").function is double


def test_a_mapping_may_have_dotted_names_and_may_replace_aten() -> None:
    assert one("my.double", {"my.double": double}, reads="x", writes="z").function is double
    assert one("aten.relu", {"aten.relu": double}, reads="x", writes="z").function is double


def test_the_function_knows_its_task_and_may_leave_a_task_to_aten() -> None:
    seen: list[str] = []

    def factory(task: Task) -> Any:
        seen.append(task.name)
        return None

    assert schema(one("aten.relu", factory, reads="x", writes="z")) == "aten.relu.default"
    assert seen == ["t"]


def test_a_task_with_its_own_callable_needs_no_lookup() -> None:
    assert one(double, reads="x", writes="z").function is double
    assert one(double, {"double": math.sqrt}, reads="x", writes="z").function is double


def test_a_callable_that_happens_to_be_called_copy_is_not_the_built_in() -> None:
    def copy(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    operator = one(copy, reads="x", writes="z")
    assert (operator.function, operator.call.is_copy) == (copy, False)


def test_copy_is_built_in() -> None:
    graph = declared(x="f32[4]")
    graph.copy("c", "x", "z")
    (operator,) = resolve(graph.program())
    assert operator.call.is_copy


def test_a_module_operator_is_called_and_its_weights_are_constants() -> None:
    linear = torch.nn.Linear(4, 4)
    operator = one("linear", {"linear": linear}, reads="x", writes="z")
    assert operator.function is linear
    weight, bias = operator.constants()
    assert weight is linear.weight
    assert bias is linear.bias
    assert one(functools.partial(linear.forward), reads="x", writes="z").constants()[0] is linear.weight
    held = torch.zeros(1)
    assert one(functools.partial(double, x=held), writes="z").constants() == (held,)
    assert one(lambda k: k, const={"k": [held]}, writes="z").constants() == (held,)


# --- names that are not found ---

HOSTILE = [
    "os.system", "torch.os.system", "os:system", "builtins.eval", "eval", "aten.os.system", "aten.__class__", "aten.name", "aten._dir",
    "step.__globals__", "step.__call__.__self__", "streamgraph.run", "step; import os", "", ".", "aten.", "aten..relu", "aten",
    "__import__", "aten.relu.__class__", "aten.relu._op", "aten.relu.default.__globals__", "step.x", "aten.\nrelu", "../ops", "aten.relu\n",
    "_private", "aten.relu.overloads",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["nothing", "mapping", "module", "function"])
def test_a_spec_reaches_nothing_that_the_caller_did_not_pass(name: str, kind: str) -> None:
    module = types.ModuleType("ops")
    vars(module).update(step=double, _private=double, os=os, torch=torch)
    ops: dict[str, Any] = {"nothing": None, "mapping": {"step": double}, "module": module, "function": lambda task: None}
    assert refused(name, ops[kind], reads="x", writes="z").code in ("SG401", "SG403")


def test_a_module_gives_only_its_plain_attributes() -> None:
    assert refused("path.join", os).code == "SG401"
    assert refused("__builtins__", os).code == "SG403"


def test_near_names_are_suggested_and_the_way_to_bring_code_is_said() -> None:
    problem = refused("preproces", {"preprocess": double}, reads="x", writes="z")
    assert problem.message == "task 't' runs 'preproces', which is not an operator that the caller passed"
    assert problem.help == "did you mean 'preprocess'? Otherwise: a spec cannot import code: bring it with `ops=` or `--ops FILE`"
    assert "'aten.relu'" in (refused("torch.relu", reads="x", writes="z").help or "")
    assert "'double'" in (refused("ops.double", {"double": double}, reads="x", writes="z").help or "")
    assert refused("quux").help == "a spec cannot import code: bring it with `ops=` or `--ops FILE`"


def test_what_is_not_callable_is_refused() -> None:
    assert refused("step", {"step": 3}).code == "SG404"
    assert refused("path", os).message == "task 't' runs 'path', but what was passed under that name is a module"
    assert refused("step", lambda task: 3).code == "SG404"


@pytest.mark.parametrize("ops", [3, "torch", [double], torch.nn.Linear(2, 2)])
def test_ops_of_another_kind_is_refused(ops: Any) -> None:
    with pytest.raises(OperatorError) as error:
        one("double", ops, reads="x", writes="z")
    assert error.value.problems[0].code == "SG404"


def test_an_error_in_the_function_is_reported_with_its_cause() -> None:
    def factory(task: Task) -> Any:
        raise KeyError(task.operator)

    with pytest.raises(OperatorError) as error:
        one("double", factory)
    assert error.value.problems[0].code == "SG401"
    assert isinstance(error.value.__cause__, KeyError)


def test_all_problems_come_at_once_in_order() -> None:
    graph = declared(**ALL)
    graph.task("a", "nothing", reads="x", writes="p")
    graph.task("b", "aten.from_file", writes="q")
    graph.task("c", "aten.add_", reads=["x", "y"])
    graph.task("d", "double", reads=["x", "y"], writes="r")
    graph.task("e", "three")
    with pytest.raises(OperatorError) as error:
        resolve(graph.program(), {"double": double, "three": 3})  # type: ignore[dict-item]
    assert [problem.code for problem in error.value.problems] == ["SG401", "SG403", "SG405", "SG402", "SG404"]


# --- signatures of Python callables ---


def preprocess(frame: torch.Tensor, *, out: torch.Tensor, scale: float = 1.0) -> None: ...


def test_a_call_that_does_not_fit_is_shown_beside_the_signature() -> None:
    problem = refused(preprocess, reads=["x", "y"], writes="out1")
    assert problem.code == "SG402"
    assert problem.message == (
        "task 't' describes the call preprocess(x, y, out=out1), which does not fit preprocess(frame, *, out, scale=1.0): "
        "too many positional arguments"
    )


@pytest.mark.parametrize(
    "task",
    [
        {"reads": ["x"], "writes": ["z"]},  # out is missing
        {"writes": ["out1"]},  # frame is missing
        {"reads": ["x"], "writes": ["out1"], "const": {"scales": 2}},
        {"reads": {"image": "x"}, "writes": ["out1"]},
        {"reads": {"frame": "x"}, "updates": {"frame": "y"}, "writes": ["out1"]},
        {"reads": ["x"], "writes": ["out1"], "const": {"frame": 2}},
    ],
)
def test_calls_that_python_would_not_accept(task: dict[str, Any]) -> None:
    assert refused(preprocess, **task).code == "SG402"


def test_a_function_without_out_is_told_how_buffers_are_written() -> None:
    problem = refused(double, reads="x", writes="out1")
    assert problem.help == "a written buffer is passed as `out`: give the function that parameter, or name its own: `writes: {name: out1}`"


@pytest.mark.parametrize("run", [torch.mm, torch.nn.functional.linear, lambda *a, **k: None, double])
def test_calls_that_fit_or_cannot_be_checked_are_accepted(run: Any) -> None:
    assert one(run, reads="x", writes="z").function is run


def test_a_module_is_checked_by_its_forward() -> None:
    assert refused(torch.nn.Linear(4, 4), reads=["x", "y"], writes="z").code == "SG402"


def test_swapped_arguments_are_noticed() -> None:
    def detect(batch: torch.Tensor, weight: torch.Tensor) -> torch.Tensor: ...

    assert one(detect, reads=["batch", "weight"], writes="z")
    assert one(detect, reads=["x", "y"], writes="z")
    assert one(detect, reads={"weight": "batch", "batch": "weight"}, writes="z")
    problem = refused(detect, reads=["weight", "batch"], writes="z")
    assert problem.code == "SG406"
    assert "passes 'weight' where the parameter is called 'batch'" in problem.message
    assert problem.help == "change the order; if it is meant, bind by keyword: `reads: {batch: weight}`"


def test_members_of_a_family_are_not_swapped_with_each_other() -> None:
    def fuse(frame: torch.Tensor, other: torch.Tensor) -> torch.Tensor: ...

    graph = Graph("test")
    graph.input("frame", "f32[4]", each={"cam": 2})
    graph.task("t", fuse, reads=["frame@1", "frame@0"], writes="z")
    assert resolve(graph.program())


def test_a_value_cannot_be_bound_by_keyword() -> None:
    assert refused(double, reads="x", writes={"result": "z"}).code == "SG402"


# --- aten: the overload ---


@pytest.mark.parametrize(
    ("run", "task", "expected"),
    [
        ("aten.mm", {"reads": ["x", "y"], "writes": "z"}, "aten.mm.default"),
        ("aten.mm", {"reads": ["x", "y"], "writes": "out1"}, "aten.mm.out"),
        ("aten.add", {"reads": ["x", "y"], "writes": "z"}, "aten.add.Tensor"),
        ("aten.add", {"reads": ["x"], "const": {"other": 2}, "writes": "z"}, "aten.add.Scalar"),
        ("aten.add", {"reads": ["x", "y"], "writes": "out1"}, "aten.add.out"),
        ("aten.add_", {"updates": "state", "reads": "x"}, "aten.add_.Tensor"),
        ("aten.relu", {"reads": "x", "writes": "z"}, "aten.relu.default"),
        ("aten.relu_", {"updates": "state"}, "aten.relu_.default"),
        ("aten.copy_", {"updates": "state", "reads": "x"}, "aten.copy_.default"),
        ("aten.copy_", {"reads": "x", "writes": "out1"}, "aten.copy_.default"),
        ("aten.zero_", {"writes": "out1"}, "aten.zero_.default"),
        ("aten.fill_", {"writes": "out1", "const": {"value": 2}}, "aten.fill_.Scalar"),
        ("aten.conv2d", {"reads": ["batch", "weight"], "writes": "z"}, "aten.conv2d.default"),
        ("aten.conv2d", {"reads": ["batch", "weight"], "writes": "z", "const": {"padding": "same"}}, "aten.conv2d.padding"),
        ("aten.conv2d", {"reads": ["batch", "weight"], "writes": "z", "const": {"padding": 1}}, "aten.conv2d.default"),
        ("aten.sum", {"reads": "x", "writes": "z"}, "aten.sum.default"),
        ("aten.sum", {"reads": "x", "writes": "z", "const": {"dim": [0]}}, "aten.sum.dim_IntList"),
        ("aten.sum.IntList_out", {"reads": "x", "writes": "out1", "const": {"dim": None}}, "aten.sum.IntList_out"),
        ("aten.max", {"reads": "x", "writes": ["values", "indices"], "const": {"dim": 0}}, "aten.max.dim"),
        ("aten.max", {"reads": "x", "writes": ["out1", "out2"], "const": {"dim": 0}}, "aten.max.dim_max"),
        ("aten.max", {"reads": "x", "writes": {"max_values": "out1", "max": "out2"}, "const": {"dim": 0}}, "aten.max.dim_max"),
        ("aten.cat", {"reads": [["x", "y"]], "writes": "z"}, "aten.cat.default"),
        ("aten.cat", {"reads": [["x", "y"]], "writes": "out1"}, "aten.cat.out"),
        ("aten.split_copy", {"reads": "x", "const": {"split_size": 2}, "writes": ["p", "q"]}, "aten.split_copy.Tensor"),
        ("aten.sort", {"reads": "x", "writes": ["values", "indices"]}, "aten.sort.default"),
        ("aten._to_copy", {"reads": "x", "const": {"dtype": "f16"}, "writes": "z"}, "aten._to_copy.default"),
        ("aten.clamp", {"reads": "x", "const": {"min": 0}, "writes": "z"}, "aten.clamp.default"),
        ("aten.where", {"reads": ["x", "y", "batch"], "writes": "z"}, "aten.where.self"),
    ],
)
def test_the_overload_follows_from_the_call(run: str, task: dict[str, Any], expected: str) -> None:
    assert schema(one(run, **task)) == expected


def test_out_becomes_the_keywords_of_the_schema() -> None:
    operator = one("aten.max", reads="x", writes=["out1", "out2"], const={"dim": 0})
    assert describe(operator.call) == "aten.max(x, max=out1, max_values=out2, dim=0)"
    assert not operator.call.returns_sequence


def test_an_aten_call_computes_what_torch_computes() -> None:
    graph = declared(**ALL)
    graph.task("t", "aten.add", reads=["x", "y"], writes="out1", const={"alpha": 3})
    (operator,) = resolve(graph.program())
    out = torch.zeros(4)
    returned = result_of(operator, graph, x=torch.ones(4), y=torch.ones(4), out1=out)
    assert out.tolist() == [4.0] * 4
    assert returned is out


def test_a_list_result_with_one_value_is_a_sequence() -> None:
    graph = declared(x="f32[2]")
    graph.task("t", "aten.split_copy", reads="x", writes="z", const={"split_size": 2})
    (operator,) = resolve(graph.program())
    result = result_of(operator, graph, x=torch.ones(2))
    assert len(check_returned(operator.call, result, [], torch.device("cpu"))) == 1


def test_constants_become_torchs_objects() -> None:
    call = one("aten.zeros", writes="z", const={"size": [2, 3], "dtype": "float16", "device": "cpu", "layout": "strided"}).call
    assert dict(call.const) == {"size": [2, 3], "dtype": torch.float16, "device": torch.device("cpu"), "layout": torch.strided}
    clone = one("aten.clone", reads="x", writes="z", const={"memory_format": "channels_last"}).call
    assert dict(clone.const) == {"memory_format": torch.channels_last}


def test_operators_without_tensors_work_on_the_run_device() -> None:
    assert dict(one("aten.zeros", device="cuda:0", writes="z", const={"size": [2]}).call.const)["device"] == torch.device("cuda:0")
    assert dict(one("aten.zeros", device="cuda:0", writes="z", const={"size": [2], "device": "cpu"}).call.const)["device"].type == "cpu"
    assert dict(one("aten.zeros", device="cuda:0", host=True, writes="z", const={"size": [2]}).call.const)["device"].type == "cpu"
    assert "device" not in dict(one("aten.zeros_like", device="cuda:0", reads="x", writes="z").call.const)


@pytest.mark.parametrize(
    ("const", "words"),
    [
        ({"size": [2], "dtype": "f17"}, "'dtype' is a dtype, and 'f17' is none"),
        ({"size": [2], "device": "disk"}, "`cpu` or `cuda`"),
        ({"size": [2], "device": "cpu; rm"}, "`cpu` or `cuda`"),
        ({"size": [2], "layout": "sparse_coo"}, "may only be `strided`"),
        ({"size": ["a"]}, "'size' is a whole number, and not 'a'"),
        ({"size": [2.5]}, "whole number"),
        ({"size": [True]}, "whole number"),
        ({"size": 2}, "'size' is a list"),
        ({"size": None}, "'size' may not be null"),
        ({"sizes": [2]}, "has no parameter 'sizes'"),
        ({}, "nothing is passed for 'size'"),
        ({"size": [2], "generator": 3}, "cannot be a constant"),
    ],
)
def test_constants_of_the_wrong_kind(const: dict[str, Any], words: str) -> None:
    problem = refused("aten.zeros" if "generator" not in const else "aten.rand.generator", writes="z", updates="rng", const=const)
    assert problem.code == "SG402"
    assert words in problem.message


def test_a_call_that_fits_no_overload_names_the_schemas() -> None:
    problem = refused("aten.mm", reads=["x", "y", "batch"], writes="z")
    assert problem.code == "SG402"
    assert "aten.mm(x, y, batch), which fits no overload" in problem.message
    assert "mm(Tensor self, Tensor mat2) -> Tensor: it takes 2 positional arguments, not 3" in problem.message


def test_tensors_that_belong_in_a_list_are_told_how() -> None:
    assert "'tensors' is a list of tensors: write `reads: [[a, b]]`" in refused("aten.cat", reads=["x"], writes="z").message


def test_an_unknown_overload_lists_the_known_ones() -> None:
    problem = refused("aten.add.Tenser", reads=["x", "y"], writes="z")
    assert problem.code == "SG401"
    assert problem.help is not None
    assert "aten.add.Tensor" in problem.help
    assert "aten.add.str" not in problem.help


def test_swapped_arguments_of_aten_are_noticed() -> None:
    problem = refused("aten.linear", reads=["batch", "x", "weight"], writes="z")
    assert problem.code == "SG406"


# --- aten: what is declared must be what happens ---


@pytest.mark.parametrize(
    ("run", "task", "words"),
    [
        ("aten.add_", {"reads": ["x", "y"]}, "only reads 'x', but 'aten.add_' changes it in place"),
        ("aten.add_", {"reads": {"other": "x"}, "writes": {"self": "out1"}}, "writes 'out1', but 'aten.add_' reads it before"),
        ("aten.relu", {"updates": "state"}, "updates 'state', but 'aten.relu' does not change 'self'"),
        ("aten.relu", {"updates": "state", "writes": "z"}, "updates 'state', but 'aten.relu' does not change 'self'"),
        ("aten.relu", {"reads": "x"}, "writes none, but 'aten.relu' returns 1 new tensor"),
        ("aten.relu", {"reads": "x", "writes": ["z", "w"]}, "writes 2 (z, w), but 'aten.relu' returns 1 new tensor"),
        ("aten.max", {"reads": "x", "writes": "z", "const": {"dim": 0}}, "returns 2 new tensors (values, indices)"),
        ("aten.relu_", {"updates": "state", "writes": "z"}, "writes the value 'z', but 'aten.relu_' returns what it changed in place"),
        ("aten.mm", {"reads": ["x", "y"], "writes": ["out1", "z"]}, "writes the value 'z'"),
        ("aten.view", {"reads": "x", "writes": "z", "const": {"size": [2, 2]}}, "its result is a view of its argument"),
        ("aten.t", {"reads": "x", "writes": "z"}, "view of its argument"),
        ("aten.reshape", {"reads": "x", "writes": "z", "const": {"shape": [2, 2]}}, "view of its argument"),
        ("aten.contiguous", {"reads": "x", "writes": "z"}, "view of its argument"),
        ("aten.split", {"reads": "x", "writes": ["z", "w"], "const": {"split_size": 2}}, "view of its argument"),
        ("aten.unsafe_split", {"reads": "x", "writes": ["z", "w"], "const": {"split_size": 2}}, "view of its argument"),
        ("aten.detach", {"reads": "x", "writes": "z"}, "view of its argument"),
    ],
)
def test_accesses_that_the_schema_contradicts(run: str, task: dict[str, Any], words: str) -> None:
    problem = refused(run, **task)
    assert problem.code == "SG405"
    assert words in problem.message
    assert problem.help


def test_the_same_holds_for_torchs_operator_objects() -> None:
    assert refused(torch.ops.aten.add_, reads=["x", "y"]).code == "SG405"
    assert refused(torch.ops.aten.add_.Tensor, reads=["x", "y"]).code == "SG405"
    assert schema(one(torch.ops.aten.mm, reads=["x", "y"], writes="out1")) == "aten.mm.out"
    assert schema(one(torch.ops.aten.zeros.default, writes="z", const={"size": (2,), "dtype": torch.int8})) == "aten.zeros.default"
    assert schema(one("mm", {"mm": torch.ops.aten.mm}, reads=["x", "y"], writes="z")) == "aten.mm.default"


NORM = {"reads": {"input": "x", "weight": "weight", "bias": "y"}, "writes": "z"}


@pytest.mark.parametrize(("run", "flag"), [("aten.batch_norm", "training"), ("aten.instance_norm", "use_input_stats")])
def test_running_statistics_must_be_declared_updated(run: str, flag: str) -> None:
    const = {"momentum": 0.1, "eps": 1e-5, "cudnn_enabled": False}
    statistics = {"running_mean": "out1", "running_var": "out2"}
    reads = {**NORM["reads"], **statistics}  # type: ignore[dict-item]
    problem = refused(run, reads=reads, writes="z", const={**const, flag: True})
    assert problem.code == "SG405"
    assert f"only reads 'out1', but '{run}' changes it in place" in problem.message
    assert one(run, reads=reads, writes="z", const={**const, flag: False})
    assert one(run, reads=NORM["reads"], updates=statistics, writes="z", const={**const, flag: True})


def test_random_operators_must_update_a_resource() -> None:
    problem = refused("aten.bernoulli", reads="x", writes="z")
    assert problem.code == "SG405"
    assert problem.message == "task 't' draws random numbers with 'aten.bernoulli', and updates no resource"
    assert one("aten.bernoulli", reads="x", updates="rng", writes="z")
    assert refused("aten.normal_", writes="out1").code == "SG405"
    assert refused("aten.dropout", reads="x", writes="z", const={"p": 0.5, "train": True}).code == "SG405"
    assert one("aten.dropout", reads="x", writes="z", const={"p": 0.5, "train": False})
    attention = {"reads": ["x", "y", "batch"], "writes": "z"}
    assert one("aten.scaled_dot_product_attention", **attention)
    assert refused("aten.scaled_dot_product_attention", **attention, const={"dropout_p": 0.1}).code == "SG405"


# --- aten: the reviewed lists, against the registry of this torch ---


def registered() -> list[str]:
    return sorted({schema.name.removeprefix("aten::") for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")})


def usable(name: str) -> tuple[registry.Schema, ...]:
    try:
        return overloads(name)
    except Unfit:
        return ()


def test_every_refused_name_is_refused() -> None:
    for name in registry.REFUSED:
        with pytest.raises(Unfit) as error:
            overloads(name)
        assert error.value.code in ("SG401", "SG403"), name
    for name in (
        "from_file", "_local_scalar_dense", "item", "set_", "resize_", "record_stream", "_pin_memory", "pin_memory", "is_pinned",
        "as_strided", "t_", "squeeze_", "backward", "save", "warn", "equal", "len", "append", "_foreach_add_", "size", "stride", "data_ptr",
    ):  # fmt: skip
        with pytest.raises(Unfit):
            overloads(name)


def test_no_operator_takes_text_unless_it_was_reviewed() -> None:
    def texts(name: str) -> bool:
        return any(parameter.base == "str" for schema in usable(name) for parameter in schema.parameters)

    takes_text = {name for name in registered() if texts(name)}
    assert takes_text <= registry.TAKES_A_WORD
    gone = {name for name in registry.TAKES_A_WORD if not isinstance(getattr(torch.ops.aten, name, None), torch._ops.OpOverloadPacket)}
    assert not gone
    assert registry.TAKES_A_WORD - takes_text == set()


def test_a_usable_operator_takes_tensors_and_plain_data_and_returns_tensors() -> None:
    known = {"Tensor", *registry.SCALARS}
    count = 0
    for name in registered():
        for schema in usable(name):
            count += 1
            raw = schema.overload._schema
            assert all(parameter.base in known for parameter in schema.parameters), raw
            assert all(str(returned.type) in ("Tensor", "List[Tensor]") for returned in raw.returns), raw
            assert raw.returns or any(argument.is_out for argument in raw.arguments), raw
            assert schema.fresh + schema.views + schema.written == len(raw.returns)
            for word in ("file", "storage", "stream", "callback", "pickle"):
                assert all(word not in argument.name.lower() for argument in raw.arguments), raw
    assert count > 1500


def test_hidden_statistics_are_all_reviewed() -> None:
    for name in registered():
        for schema in usable(name):
            hidden = [parameter for parameter in schema.parameters if parameter.name in registry.STATISTICS and not parameter.is_write]
            if hidden and not name.endswith("_backward") and name not in ("_native_batch_norm_legit_no_training",):
                assert name in registry.CHANGES_STATISTICS, schema
    for name, flag in registry.CHANGES_STATISTICS.items():
        for schema in overloads(name):
            names = [parameter.name for parameter in schema.parameters]
            assert set(registry.STATISTICS) <= set(names)
            assert flag is None or flag in names


# They return their argument in some cases only: without training, of the same dtype, of enough dimensions. The first call checks.
SOMETIMES = {
    "alpha_dropout", "batch_norm", "cartesian_prod", "conj_physical", "cumprod_backward", "dropout", "feature_alpha_dropout",
    "feature_dropout", "flatten_dense_tensors", "sum_to_size", "type_as",
}  # fmt: skip


def test_operators_that_torch_marks_as_possibly_aliasing_are_reviewed() -> None:
    for name in registered():
        if any(torch.Tag.maybe_aliasing_or_mutating in schema.overload.tags for schema in usable(name)):
            assert name in SOMETIMES | registry.RETURNS_VIEWS, name


@pytest.mark.slow
def test_calls_with_made_up_arguments_find_no_other_hidden_view_and_no_hidden_change() -> None:
    """Every operator that a spec may name, in a process of its own: some of torch's end the process when they are given nonsense."""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-m", "tests.aliasing"], capture_output=True, text=True, check=True, cwd=root)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert sum(int(words[1]) for words in lines if words[0] == "ran") > 4000
    found = {words[1] for words in lines if words[0] == "alias"}
    assert found <= SOMETIMES | registry.RETURNS_VIEWS
    assert found >= registry.RETURNS_VIEWS
    assert not [words for words in lines if words[0] == "changed"]


@pytest.mark.parametrize("name", sorted(registry.OVERWRITES))
def test_overwriting_operators_do_not_read_what_they_overwrite(name: str) -> None:
    arguments: dict[str, dict[str, Any]] = {"copy_": {"src": torch.ones(8)}, "fill_": {"value": 3}, "geometric_": {"p": 0.5}}
    results = []
    for start in (float("nan"), 0.25):
        torch.manual_seed(1)
        tensor = torch.full((8,), start)
        getattr(torch.ops.aten, name)(tensor, **arguments.get(name, {}))
        results.append(tensor)
    assert torch.equal(*results)


@given(st.sampled_from(registered()))
@settings(max_examples=200, deadline=None)
def test_any_registered_name_resolves_or_is_refused_with_our_error(name: str) -> None:
    codes: set[str] = set()
    try:
        one(f"aten.{name}", reads=["x"], writes=["z"])
    except OperatorError as error:
        codes = {problem.code for problem in error.problems}
    assert codes <= {"SG401", "SG402", "SG403", "SG405"}


# --- files and modules of operators ---


def test_operators_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("FACTOR = 3\n")
    (tmp_path / "my_ops.py").write_text("from helper import FACTOR\n\ndef triple(x):\n    return x * FACTOR\n")
    path = list(sys.path)
    ops = load_operators(str(tmp_path / "my_ops.py"))
    assert sys.path == path
    assert one("triple", ops, reads="x", writes="z").function(2) == 6
    sys.modules.pop("helper")


def test_operators_come_from_a_module() -> None:
    assert load_operators("os.path") is os.path


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "there is no file"),
     ("raise RuntimeError('no luck')", "raised RuntimeError while it was imported: no luck"), ("1 +", "SyntaxError"),
     ("import sys; sys.exit(3)", "raised SystemExit")],
)  # fmt: skip
def test_a_file_that_cannot_be_imported_is_a_problem_with_its_cause(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "bad_ops.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(OperatorError, match=words) as error:
        load_operators(str(file))
    assert error.value.problems[0].code == "SG407"
    assert (error.value.__cause__ is None) == (text is None)
    assert "streamgraph_operators_bad_ops" not in sys.modules


def test_a_missing_module_is_named() -> None:
    with pytest.raises(OperatorError, match="there is no module 'no_such_module_here'"):
        load_operators("no_such_module_here")


def test_importing_operators_does_not_import_torch() -> None:
    code = "import sys, streamgraph.operators, streamgraph.calls, streamgraph.files; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_programs_without_aten_resolve_without_torch() -> None:
    code = (
        "import sys\nfrom streamgraph.builder import Graph\nfrom streamgraph.operators import resolve\n"
        "g = Graph('g'); g.input('x', 'f32[4]'); g.task('t', lambda x: x, reads='x', writes='y')\n"
        "resolve(g.program()); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_one_number_stands_for_a_list_of_them_where_the_schema_says_so() -> None:
    sizes = {"x": "f32[1, 3, 8, 8]", "w": "f32[4, 3, 3, 3]"}
    tensors = {name: {"type": text, "kind": "input", "init": "random"} for name, text in sizes.items()}
    task = {"run": "aten.conv2d", "reads": ["x", "w"], "writes": "y", "const": {"stride": 2}}
    spec = {"streamgraph": 1, "name": "conv", "tensors": tensors, "tasks": {"conv": task}, "outputs": ["y"]}
    assert tuple(streamgraph.run(spec, device="cpu")["y"].shape) == (1, 4, 3, 3)
