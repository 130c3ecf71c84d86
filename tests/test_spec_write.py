"""Writing: the expanded form of a program, which loads to an equal program and is its own expanded form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.errors import SpecError
from streamgraph.model import Argument, Family, Kind, Program, Task, Tensor, parse_type
from streamgraph.spec import json_schema, load, loads, to_mapping, to_yaml
from streamgraph.validate import finish
from tests.programs import random_program
from tests.test_spec_expand import CAMERAS, CASES

SPECS = sorted((Path(__file__).parents[1] / "specs").glob("*.yaml"))


def comes_back(program: Program) -> None:
    """The law of this file: text and mapping load to an equal program, and its text is the same again."""
    text = to_yaml(program)
    again = loads(text).program
    assert again == program
    assert to_yaml(again) == text
    assert load(json.loads(json.dumps(to_mapping(program)))).program == program


# --- programs of all kinds ----------------------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_programs_made_in_python_come_back(data: st.DataObject) -> None:
    comes_back(random_program(lambda n: data.draw(st.integers(0, n - 1))))


plain = st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
tricky = ["on", "1e3", "010", "$n", "$$", "a: b", "#", "-", "null", "${n}", "$(n)", "\u2028", "\x7f", "\ufeff"]
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12) | st.sampled_from(tricky)
constants = st.recursive(
    plain | texts,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(texts, inner, max_size=3).map(MappingProxyType),
    max_leaves=6,
)


@given(st.dictionaries(texts, constants, max_size=3), texts, texts)
@settings(max_examples=150)
def test_constants_and_notes_come_back(const: dict[str, Any], note: str, tensor_note: str) -> None:
    task = Task("t", "f", const=tuple(const.items()), note=note)
    program = Program("p", (Tensor("x", Kind.INPUT, note=tensor_note),), (task,))
    comes_back(program)
    again = loads(to_yaml(program)).program
    assert (again.tasks[0].note, again.tensors[0].note) == (note, tensor_note)
    assert [type(value) for _, value in again.tasks[0].const] == [type(value) for value in const.values()]


words = st.sampled_from(["a", "b", "c"])
items = st.sampled_from(["2", "3", "$n", "1..2", "2..0", "[x, 1]", '["0", y]', "0..$(n-1)"])


@st.composite
def specs(draw: st.DrawFn) -> str:
    """A spec that uses every short form; always valid."""
    lines = ["streamgraph: 1", "name: drawn", "params: {n: 2}", "tensors:", "  x: {type: \"f32[4, $n]\", kind: input, init: random}"]
    each = draw(st.lists(items, min_size=1, max_size=2))
    keys = ", ".join(f"k{number}: {one}" for number, one in enumerate(each))
    member = "".join(f"@$k{number}" for number in range(len(each)))
    stars = "@*" * len(each)
    kind = draw(st.sampled_from(["", ", kind: input", ", device: cpu, pinned: true", ", note: hello", ", init: ones"]))
    lines.append(f'  w: {{type: "f32[4]", each: {{{keys}}}{kind}}}')
    if draw(st.booleans()):
        lines.append(f'  ring: {{type: "f32[4]", each: {{{keys}}}, slots: 2{draw(st.sampled_from(["", ", over: k0"]))}}}')
    if draw(st.booleans()):
        lines.append(f'  low: {{view: "w{member}[0:2]", each: {{{keys}}}}}')
    if draw(st.booleans()):
        lines.append(f"  out: {{kind: value, each: {{{keys}}}}}")
    lines.append("  rng: {kind: resource}")
    lines.append("tasks:")
    lines.append(f"  make: {{each: {{{keys}}}, run: f, reads: {draw(st.sampled_from(['x', '[x]', '{i: x}']))}, writes: out{member}}}")
    if draw(st.booleans()):
        lines.append(f"  g: {{each: {{{keys}}}, stream: side, tasks: {{one: {{run: f, reads: w{member}, writes: v{member}, cost: 1.5ms}}, "
                     f"two: {{run: f, reads: [out{member}], updates: rng, writes: v{member}, after: one{member}}}}}}}")  # fmt: skip
        lines.append(f"  all: {{run: f, reads: [v{stars}, [x, w{stars}]], writes: s, after: g}}")
    lines.append(f"  take: {{copy: x -> y, stream: {draw(st.sampled_from(['main', 'side']))}}}")
    if draw(st.booleans()):
        lines.append("streams: {side: {priority: high}, main: }")
    lines.append(f"outputs: {draw(st.sampled_from(['[y, x]', 'y', '[]', f'[out{stars}, y]', '{r: y, s: x}']))}")
    return "\n".join(lines) + "\n"


@given(specs())
@settings(max_examples=100, deadline=None)
def test_specs_come_back(text: str) -> None:
    comes_back(loads(text).program)


@pytest.mark.parametrize("path", [*CASES, *SPECS], ids=lambda path: path.stem)
def test_the_specs_of_this_repository_come_back(path: Path) -> None:
    comes_back(load(path).program)


def test_what_is_written_fits_the_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema())
    for program in (loads(CAMERAS).program, *(load(path).program for path in (*CASES, *SPECS))):
        assert [error.message for error in validator.iter_errors(to_mapping(program))] == []


# --- the form -----------------------------------------------------------------------------------------------------------------------


def test_the_form_is_short_and_stable() -> None:
    text = """\
streamgraph: 1
name: layers

tensors:
  x: {type: "f32[2, 2]", kind: input}
  w: {type: "f32[2, 2]", each: {layer: [0, 1, 2]}, slots: 2, over: layer}
  batch: f32[4, 2]
  front: {view: "batch[0:2, 0:2]"}
  rng: {kind: resource}

tasks:
  load@0: {run: load, writes: w@0, cost: 1500us}
  mm@0: {run: aten.mm, reads: [x, w@0], writes: h, const: {alpha: 0.5, name: "on"}, after: load@0, stream: main}
  pack: {run: stack, updates: rng, reads: [[h, x]], writes: {out: batch}, host: true, note: "a: b"}
  take: {copy: h -> y}
streams:
  main: {priority: high}
outputs: [y, batch]
"""
    assert to_yaml(loads(text).program) == text


def test_an_empty_program_is_three_words() -> None:
    assert to_yaml(Program("p")) == "streamgraph: 1\nname: p\n"


def test_families_of_unlike_members_are_gathered() -> None:
    text = 'tensors:\n  w: {type: "f32[$(i + 1)]", each: {i: 2}}\n  v: {view: "w@$i[0]", each: {i: 2}}\n'
    program = loads("streamgraph: 1\n" + text).program
    assert to_mapping(program)["tensors"] == {
        "w@0": "f32[1]", "w@1": "f32[2]", "v@0": {"view": "w@0[0]"}, "v@1": {"view": "w@1[0]"},
        "w": {"each": {"i": [0, 1]}}, "v": {"each": {"i": [0, 1]}},
    }  # fmt: skip
    comes_back(program)


def test_families_keep_their_order() -> None:
    text = 'tensors:\n  w: {type: "f32[$(i + 1)]", each: {i: 2}}\n  v: {type: "f32[1]", each: {i: 2}}\n'
    program = loads("streamgraph: 1\n" + text).program
    assert [family.name for family in program.families] == ["w", "v"]
    comes_back(program)


def test_values_are_declared_only_where_loading_would_not_find_them() -> None:
    graph = Graph("g")
    x = graph.input("x", "f32[1]")
    h = graph.task("t", "f", reads=x, writes="h")
    graph.buffer("late", "f32[1]")
    graph.task("u", "f", reads=h, writes=["late", "z", "y"])
    program = graph.program()
    assert list(to_mapping(program)["tensors"]) == ["x", "h", "late"]
    comes_back(program)
    shuffled = replace(program, tensors=(*program.tensors[:3], *reversed(program.tensors[3:])))
    assert list(to_mapping(shuffled)["tensors"]) == ["x", "h", "late", "y"]
    comes_back(shuffled)


def test_generated_copies_are_left_out() -> None:
    graph = Graph("g")
    graph.buffer("b", "f32[1]")
    graph.output("b", "renamed")
    program = graph.program()
    assert program.tasks[-1].name == "output:renamed"
    assert to_mapping(program) == {"streamgraph": 1, "name": "g", "tensors": {"b": "f32[1]"}, "outputs": {"renamed": "b"}}
    comes_back(program)


def test_callables_are_written_by_name() -> None:
    graph = Graph("g")
    graph.task("t", max, writes="x")
    assert to_mapping(graph.program())["tasks"] == {"t": {"run": "max", "writes": "x"}}


@pytest.mark.parametrize(
    "cost", [0.0, 0.1, 1 / 3, 10 / 3, 1e-9, 5e-324, 123456.789, 1e14, 2.5],
)  # fmt: skip
def test_costs_come_back_to_a_femtosecond(cost: float) -> None:
    program = Program("p", tasks=(Task("t", "f", cost=cost),))
    (task,) = loads(to_yaml(program)).program.tasks
    assert task.cost == pytest.approx(cost, rel=1e-15, abs=1e-15)


def test_arguments_come_back() -> None:
    tensors = tuple(Tensor(name, Kind.INPUT) for name in "abc")
    for reads in (
        (), (Argument(("a",)),), (Argument(("a",), True),), (Argument((), True),), (Argument(("a", "b"), True), Argument(("c",))),
        (Argument(("a",), False, "k"), Argument(("b", "c"), True, "l")), (Argument(("a",), True, "k"),),
    ):  # fmt: skip
        comes_back(Program("p", tensors, (Task("t", "f", reads),)))


def test_a_copy_with_keywords_is_written_as_a_run() -> None:
    tensors = (Tensor("a", Kind.INPUT), Tensor("b", Kind.VALUE))
    task = Task("t", "copy", (Argument(("a",), False, "source"),), (Argument(("b",)),))
    comes_back(Program("p", tensors, (task,)))


def test_a_ring_over_iterations_comes_back() -> None:
    program = Program("p", (Tensor("w", Kind.BUFFER, parse_type("f32[1]")),), families=(Family("w", (), ("w",), 3),))
    comes_back(program)


@pytest.mark.parametrize("value", [object(), float("nan"), float("inf"), 1 << 63, b"x", {1: 2}, {"a": {3}}, max])
def test_what_is_not_plain_data_cannot_be_written(value: object) -> None:
    with pytest.raises(SpecError, match="SG103"):
        to_mapping(Program("p", tasks=(Task("t", "f", const=(("a", value),)),)))


def test_deep_constants_cannot_be_written() -> None:
    value: Any = 1
    for _ in range(2000):
        value = (value,)
    with pytest.raises(SpecError, match="SG103"):
        to_mapping(Program("p", tasks=(Task("t", "f", const=(("a", value),)),)))


def test_finishing_does_not_change_what_is_written() -> None:
    program = loads(CAMERAS).program
    assert to_yaml(finish(program)) == to_yaml(program)
