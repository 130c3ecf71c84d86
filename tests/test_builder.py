"""The Python front end: the same program as YAML, and mistakes reported with the line that made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgraph.builder import Graph, Handle
from streamgraph.errors import SpecError
from streamgraph.model import Kind
from streamgraph.plan import plan
from streamgraph.spec import loads


def layers() -> Graph:
    graph = Graph("layers")
    x = graph.input("x", "f32[64, 32]")
    host = graph.input("host", "f32[32, 32]", each={"layer": 4}, device="cpu", pinned=True)
    w = graph.buffer("w", "f32[32, 32]", each={"layer": 4}, slots=2, over="layer")
    h = x
    for i in range(4):
        graph.copy(f"load@{i}", host[i], w[i])
        h = graph.task(f"mm@{i}", "mm", reads=[h, w[i]], writes="h")
    graph.task("act", "relu_", updates=h)
    graph.output(h)
    return graph


def test_a_graph_is_the_program_that_yaml_declares() -> None:
    text = """
streamgraph: 1
name: layers
tensors:
  x: {type: "f32[64, 32]", kind: input}
  host: {type: "f32[32, 32]", each: {layer: 4}, kind: input, device: cpu, pinned: true}
  w: {type: "f32[32, 32]", each: {layer: 4}, slots: 2, over: layer}
tasks:
  load@0: {copy: host@0 -> w@0}
  mm@0: {run: mm, reads: [x, w@0], writes: h}
  load@1: {copy: host@1 -> w@1}
  mm@1: {run: mm, reads: [h, w@1], writes: h}
  load@2: {copy: host@2 -> w@2}
  mm@2: {run: mm, reads: [h, w@2], writes: h}
  load@3: {copy: host@3 -> w@3}
  mm@3: {run: mm, reads: [h, w@3], writes: h}
  act: {run: relu_, updates: h}
outputs: [h]
"""
    assert layers().program() == loads(text).program


def test_a_family_is_a_tuple_of_handles_nested_for_two_keys() -> None:
    graph = Graph("grid")
    grid = graph.input("g", "f32[2]", each={"row": 2, "side": ["left", "right"]})
    assert grid[1][0].name == "g@1@left"
    assert [t.name for t in graph.program().tensors] == ["g@0@left", "g@0@right", "g@1@left", "g@1@right"]


def test_a_task_returns_the_handles_that_it_writes() -> None:
    graph = Graph("two")
    first = graph.task("a", "f", writes="x")
    pair = graph.task("b", "f", reads=first, writes=["y", "z"])
    assert isinstance(first, Handle)
    assert [handle.name for handle in pair] == ["y", "z"]


def test_slicing_a_handle_makes_a_view_of_its_storage() -> None:
    graph = Graph("views")
    b = graph.buffer("b", "f32[8, 4]")
    part = b[2:6][1:3, 0]
    graph.task("t", "f", writes=part)
    made = graph.program().tensor_named[part.name]
    assert (made.kind, made.base, made.index) == (Kind.VIEW, "b", ((3, 5), 0))
    assert made.type is not None
    assert made.type.shape == (2,)


def test_an_old_handle_is_refused_with_the_line_that_used_it() -> None:
    graph = Graph("stale")
    x = graph.input("x", "f32[2]")
    old = graph.task("a", "f", reads=x, writes="h")
    graph.task("b", "f", reads=old, writes="h")
    graph.task("c", "f", reads=old, writes="y")
    with pytest.raises(SpecError) as caught:
        graph.program()
    (problem,) = caught.value.problems
    assert problem.code == "SG211"
    assert problem.location is not None
    assert problem.location.file == Path(__file__).name
    assert 'graph.task("c"' in problem.location.text


def test_all_mistakes_are_reported_at_once() -> None:
    graph = Graph("wrong")
    graph.input("x", "f23[2]")
    graph.buffer("b", "f32[4]")
    graph.view("v", "b", (slice(0, 9),))
    graph.task("a", "f", reads="nothing", writes="b", cost="120")
    graph.task("c", "f", reads=["b"], writes=["b"])
    with pytest.raises(SpecError) as caught:
        graph.program()
    assert [problem.code for problem in caught.value.problems] == ["SG106", "SG208", "SG104", "SG201", "SG302"]


def test_a_handle_of_another_graph_is_refused() -> None:
    other = Graph("other").input("x", "f32[2]")
    graph = Graph("mine")
    graph.task("a", "f", reads=other)
    with pytest.raises(SpecError, match="a handle of another Graph"):
        graph.program()


def test_a_callable_is_kept_and_named() -> None:
    graph = Graph("callable")
    graph.task("a", lambda: None)
    graph.task("b", layers)
    tasks = graph.program().tasks
    assert [task.operator for task in tasks] == ["function", "layers"]
    assert tasks[1].function is layers


def test_wildcards_select_the_members_declared_so_far() -> None:
    graph = Graph("join")
    for i in range(3):
        graph.task(f"make@{i}", "f", writes=f"image@{i}")
    graph.task("stack", "f", reads=["image@*"], writes="batch")
    entry = graph.program().tasks[-1].reads[0]
    assert (entry.tensors, entry.is_list) == (("image@0", "image@1", "image@2"), True)


def test_an_output_that_is_a_buffer_gets_a_visible_copy() -> None:
    graph = Graph("state")
    graph.buffer("b", "f32[2]")
    graph.task("a", "f", updates="b")
    graph.output("b")
    assert plan(graph).program.tasks[-1].name == "output:b"


def test_reasons_name_the_file_and_line_of_the_call() -> None:
    graph = Graph("pinned")
    x = graph.task("a", "f", writes="x", stream="side")
    graph.task("b", "f", reads=x, writes="y", stream="main")
    assert f"RAW x: a -> b ({Path(__file__).name}:" in str(plan(graph))


def test_an_output_that_is_several_handles_is_one_mistake() -> None:
    """A task gives back a handle for each tensor that it writes or updates, so this is easily passed on as it is."""
    graph = Graph("several")
    both = graph.task("both", "f", reads=graph.input("x", "f32[4]"), writes=["left", "right"])
    graph.output(both)
    with pytest.raises(SpecError) as caught:
        graph.program()
    assert [problem.code for problem in caught.value.problems] == ["SG103"]
    assert "got a tuple" in caught.value.problems[0].message
    assert "take the one that is meant" in (caught.value.problems[0].help or "")
