"""Expansion: params, each, groups, wildcards and views mean what the design says, and what is wrong is reported where it stands."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.errors import Problem, SpecError
from streamgraph.model import Kind, Program, Task
from streamgraph.spec import load, loads
from streamgraph.spec.interpolate import LARGEST, Unfit, evaluate, interpolate, items_of

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))
HEAD = "streamgraph: 1\n"


def program(body: str, **params: object) -> Program:
    return loads(HEAD + body, params=params).program


def tasks(body: str, **params: object) -> dict[str, Task]:
    return {task.name: task for task in program("tasks:\n" + body, **params).tasks}


def problems(body: str) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        loads(HEAD + body, "f.yaml")
    return list(caught.value.problems)


def warnings(body: str) -> list[str]:
    return [f"{problem.code} {problem.location}" for problem in loads(HEAD + body, "f").warnings]


def names(entries: object) -> list[tuple[str, ...]]:
    return [entry.tensors for entry in entries]  # type: ignore[attr-defined]


# --- examples that stand elsewhere --------------------------------------------------------------------------------------------------

CAMERAS = """\
# yaml-language-server: $schema=./streamgraph.schema.json
streamgraph: 1                                 # format version
name: cameras
params: {cams: 4, size: 640}

tensors:                                       # inputs, buffers, views, resources; values need no declaration
  packet: {type: "u8[3, 1080, 1920]", each: {cam: $cams}, kind: input, device: cpu, pinned: true, init: random}
  frame:  {type: "u8[3, 1080, 1920]", each: {cam: $cams}, slots: 2}      # a ring
  batch:  f16[$cams, 3, $size, $size]          # shorthand: a buffer of this type
  weight: {type: "f16[64, 3, 3, 3]", kind: input, init: random}
  result: {kind: value, device: cpu, pinned: true}
  front:  {view: "batch[0:2]"}
  rng:    {kind: resource}

tasks:                                         # a mapping; its order is the program order
  upload:     {each: {cam: $cams}, copy: packet@$cam -> frame@$cam, stream: copy}
  preprocess: {each: {cam: $cams}, run: preprocess, reads: frame@$cam, writes: image@$cam, cost: 180us}
  stack:      {run: stack_into, reads: [image@*], writes: batch}         # stack_into([...], out=batch)
  detect:     {run: aten.conv2d, reads: [batch, weight], writes: features}
  score:      {run: aten.relu_, updates: features}
  download:   {copy: features -> result}

streams: {copy: {priority: high}}
outputs: [result]
"""


def test_the_example_of_the_design_loads() -> None:
    loaded = loads(CAMERAS)
    made = loaded.program
    assert loaded.warnings == ()
    assert [task.name for task in made.tasks] == [
        *(f"upload@{cam}" for cam in range(4)), *(f"preprocess@{cam}" for cam in range(4)), "stack", "detect", "score", "download",
    ]  # fmt: skip
    assert str(made.tensor_named["batch"].type) == "f16[4, 3, 640, 640]"
    assert made.tensor_named["front"].index == ((0, 2), (0, 3), (0, 640), (0, 640))
    assert names(made.tasks[8].reads) == [("image@0", "image@1", "image@2", "image@3")]
    assert made.tasks[8].reads[0].is_list
    assert (made.tasks[4].cost, made.tasks[0].stream, made.streams[0].priority) == (180.0, "copy", "high")
    assert made.tensor_named["features"].kind is Kind.VALUE
    assert [(family.name, family.slots) for family in made.families] == [("packet", None), ("frame", 2)]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_acceptance_graphs_load(path: Path) -> None:
    loaded = load(path)
    assert loaded.warnings == ()
    assert loaded.program.name == path.stem
    assert all(task.operator == "mix" and task.stream for task in loaded.program.tasks)


def test_there_are_acceptance_graphs() -> None:
    assert len(CASES) == 12


# --- params and interpolation -------------------------------------------------------------------------------------------------------


def test_the_caller_overrides_params() -> None:
    body = "params: {n: 2, m: $(n + 1)}\ntasks:\n  t: {each: {i: $n}, run: f, const: {m: $m}}\n"
    assert len(program(body).tasks) == 2
    assert [task.const for task in program(body, n=3, m="7").tasks] == [(("m", 7),)] * 3


@pytest.mark.parametrize(
    ("params", "code", "remedy"),
    [
        ({"nn": 3}, "SG109", "did you mean 'n'?"), ({"n": "x"}, "SG105", "whole"), ({"n": True}, "SG105", "whole"),
        ({"n": 1 << 63}, "SG105", "whole"),
    ],
)
def test_overrides_must_fit(params: dict[str, object], code: str, remedy: str) -> None:
    with pytest.raises(SpecError) as caught:
        loads(HEAD + "params: {n: 2}\n", params=params)
    (problem,) = caught.value.problems
    assert problem.code == code
    assert remedy in (problem.help or "")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("$n", "3"), ("${n}x", "3x"), ("w@$n", "w@3"), ("$(n+1)", "4"), ("a$(n)b$(2*n)", "a3b6"), ("$$n", "$n"), ("$$$n", "$3"),
        ("$((n+1)*2)", "8"), ("$(-n)", "-3"), ("$(7//2)", "3"), ("$(-7//2)", "-4"), ("$(-7%3)", "2"), ("$( n )", "3"), ("$w.x", "front.x"),
        ("no dollar", "no dollar"), ("$n$n", "33"),
    ],
)  # fmt: skip
def test_interpolation(text: str, meant: str) -> None:
    assert interpolate(text, {"n": 3, "w": "front"}) == meant


@pytest.mark.parametrize(
    "expression",
    ["", "1/2", "2**3", "1 if 1 else 2", "f(1)", "a.b", "[1]", "1,2", "'x'", "1.5", "~1", "1<2", "not 1", "lambda: 1", "1 2", "1e3", "0x10",
     "(1", "1)", "$n", "n:=1", "True", "w + 1", "1%0", "1is 2", "1" * 30, "()", "1//", "é()"],
)  # fmt: skip
def test_what_is_no_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises(Unfit) as caught:
        evaluate(expression, {"n": 3, "w": "front"})
    assert caught.value.problem.code in ("SG109", "SG110")
    assert caught.value.problem.help


numbers = st.integers(0, 50)
expressions = st.recursive(
    numbers.map(str) | st.sampled_from(["n", "m"]),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(lambda part: f"({part[0]} {part[1]} {part[2]})")
    | inner.map(lambda part: f"(-{part})"),
    max_leaves=8,
)


@given(expressions, numbers, numbers)
@settings(max_examples=150)
def test_arithmetic_is_pythons(expression: str, n: int, m: int) -> None:
    try:
        expected: int | None = eval(expression, {"n": n, "m": m})
    except ZeroDivisionError:
        expected = None
    if len(expression) > 200 or expected is None or abs(expected) > LARGEST:
        with pytest.raises(Unfit):
            evaluate(expression, {"n": n, "m": m})
    else:
        assert evaluate(expression, {"n": n, "m": m}) == expected


def test_constants_keep_their_type() -> None:
    body = 'params: {n: 3}\ntasks:\n  t: {each: {w: [a, 1]}, run: f, const: {a: $n, b: "$n", c: x$n, d: [$(n+1), {e: $w}], f: "$$5"}}\n'
    first, second = (dict(task.const) for task in program(body).tasks)
    assert (first["a"], first["b"], first["c"], first["f"]) == (3, "3", "x3", "$5")
    assert (first["d"][0], dict(first["d"][1]), dict(second["d"][1])) == (4, {"e": "a"}, {"e": 1})


def test_notes_are_left_alone() -> None:
    assert tasks("  t: {run: f, note: costs $5}\n")["t"].note == "costs $5"


# --- each ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "items"),
    [
        (3, (0, 1, 2)), ("3", (0, 1, 2)), ("$n", (0, 1)), ("2..4", (2, 3, 4)), ("4..2", (4, 3, 2)), ("1..1", (1,)), ("0..$(n-1)", (0, 1)),
        ((5, "front", "$n"), (5, "front", 2)), ("$(n*2)", (0, 1, 2, 3)),
    ],
)  # fmt: skip
def test_items(given: int | str | tuple[int | str, ...], items: tuple[int | str, ...]) -> None:
    assert items_of("i", given, {"n": 2}) == items


def test_several_keys_are_a_product_first_slowest() -> None:
    assert list(tasks("  t: {each: {i: 2, side: [left, right]}, run: f}\n")) == ["t@0@left", "t@0@right", "t@1@left", "t@1@right"]


def test_an_each_key_may_not_hide_another_name() -> None:
    assert [problem.code for problem in problems("params: {i: 2}\ntasks:\n  t: {each: {i: 2}, run: f}\n")] == ["SG205"]
    assert [p.code for p in problems("tasks:\n  g: {each: {i: 2}, tasks: {t: {each: {i: 2}, run: f}}}\n")] == ["SG205"]


def test_members_differ_by_their_key() -> None:
    body = 'tensors:\n  w: {type: "f32[$(i+1)]", each: {i: 3}}\n  v: {view: "w@$i[0:$i]", each: {i: 1..2}}\n'
    made = program(body)
    assert [str(tensor.type) for tensor in made.tensors] == ["f32[1]", "f32[2]", "f32[3]", "f32[1]", "f32[2]"]
    assert [tensor.base for tensor in made.tensors[3:]] == ["w@1", "w@2"]


def test_one_task_expands_before_the_next() -> None:
    assert list(tasks("  a: {each: {i: 2}, run: f}\n  b: {each: {i: 2}, run: f}\n")) == ["a@0", "a@1", "b@0", "b@1"]


def test_a_group_expands_item_by_item() -> None:
    body = "  g: {each: {i: 2}, tasks: {a: {run: f}, b: {each: {j: [x, y]}, run: f}}}\n  c: {run: f}\n"
    assert list(tasks(body)) == ["a@0", "b@0@x", "b@0@y", "a@1", "b@1@x", "b@1@y", "c"]


def test_flat_and_grouped_spelling_make_the_same_tasks_in_another_order() -> None:
    load_, use = "run: f, writes: w@$i", "run: f, reads: w@$i, writes: h"
    flat = tasks(f"  load: {{each: {{i: 3}}, {load_}}}\n  use: {{each: {{i: 3}}, {use}}}\n")
    grouped = tasks(f"  g: {{each: {{i: 3}}, tasks: {{load: {{{load_}}}, use: {{{use}}}}}}}\n")
    assert flat == grouped
    assert list(flat) != list(grouped)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=20)
def test_nested_groups_are_nested_loops(a: int, b: int, c: int) -> None:
    body = f"""
  outer:
    each: {{i: {a}}}
    tasks:
      first: {{run: f, writes: x@$i}}
      inner:
        each: {{j: {b}}}
        tasks:
          second: {{each: {{k: {c}}}, run: f, reads: x@$i, writes: y@$i@$j@$k}}
"""
    expected: list[str] = []
    for i in range(a):
        expected.append(f"first@{i}")
        expected += [f"second@{i}@{j}@{k}" for j, k in itertools.product(range(b), range(c))]
    made = tasks(body)
    assert list(made) == expected
    assert all(names(task.writes) == [(name.replace("second", "y").replace("first", "x"),)] for name, task in made.items())


def test_groups_give_their_stream_and_after() -> None:
    inner = "{a: {run: f}, b: {run: f, stream: main, after: a@$i}}"
    made = tasks(f"  z: {{run: f}}\n  g: {{stream: s$i, after: z, each: {{i: 2}}, tasks: {inner}}}\n")
    assert {name: (task.stream, task.after) for name, task in made.items()} == {
        "z": (None, ()), "a@0": ("s0", ("z",)), "b@0": ("main", ("z", "a@0")), "a@1": ("s1", ("z",)), "b@1": ("main", ("z", "a@1")),
    }  # fmt: skip


# --- names that stand for several things --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "meant"),
    [
        ("t", ["t@0", "t@1"]), ("t@1", ["t@1"]), ("g", ["a@0", "b@0@0", "b@0@1", "a@1", "b@1@0", "b@1@1"]),
        ("g@1", ["a@1", "b@1@0", "b@1@1"]), ("b", ["b@0@0", "b@0@1", "b@1@0", "b@1@1"]), ("b@1", ["b@1@0", "b@1@1"]),
        ("[t, t@0]", ["t@0", "t@1"]), ("k", ["l"]),
    ],
)  # fmt: skip
def test_after_takes_tasks_families_and_groups(after: str, meant: list[str]) -> None:
    body = f"""\
  t: {{each: {{i: 2}}, run: f}}
  g: {{each: {{i: 2}}, tasks: {{a: {{run: f}}, b: {{each: {{j: 2}}, run: f}}}}}}
  k: {{tasks: {{l: {{run: f}}}}}}
  last: {{run: f, after: {after}}}
"""
    assert sorted(tasks(body)["last"].after) == sorted(meant)


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("  a: {run: f, after: b}\n  b: {run: f}\n", "SG207", "stands later"),
        ("  a: {run: f, after: b}\n  b: {each: {i: 2}, run: f}\n", "SG207", "stands later"),
        ("  a: {each: {i: 2}, run: f, after: a}\n", "SG207", "after itself"),
        ("  g: {each: {i: 2}, tasks: {a: {run: f}, b: {run: f, after: a}}}\n", "SG207", "a@$key"),
        ("  g: {each: {i: 2}, tasks: {a: {run: f, after: g}}}\n", "SG207", "later"),
        ("  load: {run: f}\n  a: {run: f, after: laod}\n", "SG203", "did you mean 'load'?"),
        ("  t: {each: {i: 2}, run: f}\n  a: {run: f, after: t@5}\n", "SG203", "did you mean"),
    ],
)
def test_after_names_what_is_over(body: str, code: str, words: str) -> None:
    found = problems("tasks:\n" + body)
    assert {problem.code for problem in found} == {code}
    assert words in f"{found[0].message} {found[0].help}"


def test_wildcards_take_members_in_order() -> None:
    body = """\
tensors: {w: {type: "f32[1]", kind: input, each: {i: 2, side: [l, r]}}}
tasks:
  make: {each: {i: 3..1}, run: f, writes: v@$i}
  a: {run: f, reads: [w@*@*, v@*], writes: x}
  b: {run: f, reads: {one: w@*@r, two: w@*@l}, updates: [[v@*, x]]}
"""
    made = program(body)
    a, b = made.tasks[3:]
    assert names(a.reads) == [("w@0@l", "w@0@r", "w@1@l", "w@1@r"), ("v@3", "v@2", "v@1")]
    assert all(entry.is_list for entry in (*a.reads, *b.reads, *b.updates))
    assert [(entry.keyword, entry.tensors) for entry in b.reads] == [("one", ("w@0@r", "w@1@r")), ("two", ("w@0@l", "w@1@l"))]
    assert names(b.updates) == [("v@3", "v@2", "v@1", "x")]


@pytest.mark.parametrize(("pattern", "code", "words"), [("w@*", "SG202", "write w@*@* for all"), ("u@*", "SG201", "matches nothing")])
def test_a_wildcard_must_match(pattern: str, code: str, words: str) -> None:
    (problem,) = problems(f'tensors: {{w: {{type: "f32[1]", each: {{i: 2, j: 2}}}}}}\ntasks:\n  t: {{run: f, reads: {pattern}}}\n')
    assert problem.code == code
    assert words in f"{problem.message} {problem.help}"


def test_arguments_keep_their_form() -> None:
    made = tasks("  t: {run: f, writes: [a, b, c]}\n  u: {run: f, reads: {x: a, y: [b, c]}}\n  v: {run: f, reads: [[a], b]}\n")
    assert [(e.tensors, e.is_list, e.keyword) for e in made["u"].reads] == [(("a",), False, "x"), (("b", "c"), True, "y")]
    assert [(e.tensors, e.is_list) for e in made["v"].reads] == [(("a",), True), (("b",), False)]


# --- tensors ------------------------------------------------------------------------------------------------------------------------


def test_kinds() -> None:
    made = program(
        "tensors:\n  a: f32[1]\n  b: {type: \"float32[2]\", kind: input}\n  c: {kind: value}\n  d: {kind: resource}\n  e: {view: 'a[0]'}\n"
        "tasks:\n  t: {run: f, writes: [g, c]}\n"
    )
    assert {tensor.name: tensor.kind.value for tensor in made.tensors} == {
        "a": "buffer", "b": "input", "c": "value", "d": "resource", "e": "view", "g": "value",
    }  # fmt: skip
    assert str(made.tensor_named["b"].type) == "f32[2]"


def test_views_stand_in_any_order_and_fold() -> None:
    made = program('tensors:\n  c: {view: "b[1]"}\n  b: {view: "a[2:4]"}\n  a: {type: "f32[8]", device: cpu, pinned: true}\n')
    assert [(tensor.name, tensor.base, tensor.index) for tensor in made.tensors[:2]] == [("c", "a", (3,)), ("b", "a", ((2, 4),))]
    assert made.tensor_named["c"].pinned


@pytest.mark.parametrize(
    ("body", "codes"),
    [
        ('a: {view: "a[0]"}', ["SG208"]),
        ('a: {view: "b[0]"}\n  b: {view: "a[0]"}', ["SG208"]),
        ('a: {view: "x[0]"}', ["SG201"]),
        ('a: {view: "b[9]"}\n  b: f32[4]', ["SG208"]),
        ('a: {view: "b[0]"}\n  b: {kind: value}', ["SG307"]),
        ('a: {view: "b[0]"}\n  b: {kind: resource}', ["SG208"]),
        ('a: {view: "b"}\n  b: f32[4]', ["SG208"]),
        ('a: {view: "b[0]", kind: input}\n  b: f32[4]', ["SG212"]),
        ('a: {view: "b[0]"}\n  b: {type: "f32[4]", each: {i: 2}}', ["SG201"]),
        ("a: {device: cpu}", ["SG102"]),
        ("a: {each: {i: 2}}", ["SG102"]),
        ("a: {type: x}", ["SG106"]),
        ("a: f7[2]", ["SG106"]),
        ("a: {kind: buffer}", ["SG307"]),
        ('a: {type: "f32[2]", device: gpu}', ["SG105"]),
        ('a: {type: "f32[2]", over: i}', ["SG212"]),
        ('a: {type: "f32[2]", pinned: true}', ["SG212"]),
        ('a: {type: "f32[2]", each: {i: 2}, slots: 2, over: j}', ["SG212"]),
        ('a: {type: "f32[2]", init: noise}', ["SG105"]),
        ('a: {type: "f32[$n]"}', ["SG109"]),
    ],
)
def test_a_wrong_declaration_is_reported_once(body: str, codes: list[str]) -> None:
    assert [problem.code for problem in problems(f"tensors:\n  {body}\n")] == codes
    # ... also when a task uses it
    assert [problem.code for problem in problems(f"tensors:\n  {body}\ntasks:\n  t: {{run: f, reads: a}}\n") if problem.code[2] != "3"] == [
        code for code in codes if code[2] != "3"
    ] + (["SG201"] if "each" in body and "slots" in body else [])


def test_a_kind_that_does_not_exist_is_told_from_those_that_do() -> None:
    (problem,) = problems("tensors:\n  a: {kind: inptu}\n")
    assert (problem.code, problem.help) == ("SG105", "did you mean 'input'?")


def test_a_family_of_members_that_stand_alone() -> None:
    made = program('tensors:\n  w@0: f32[1]\n  w@1: f32[2]\n  w: {each: {i: 2}}\n')
    assert [family.members for family in made.families] == [("w@0", "w@1")]
    assert [problem.code for problem in problems("tensors:\n  w@0: f32[1]\n  w: {each: {i: 2}}\n")] == ["SG102"]


def test_a_view_of_an_undeclared_value_asks_for_its_type() -> None:
    (problem,) = problems('tensors: {low: {view: "v[0:2]"}}\ntasks:\n  t: {run: f, writes: v}\n')
    assert (problem.code, problem.help) == ("SG307", 'declare v: {type: "f32[8, 3]", kind: value}')


# --- tasks --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "codes"),
    [
        ("{}", ["SG102"]),
        ("{run: f, copy: x -> y}", ["SG212"]),
        ("{copy: x}", ["SG103"]),
        ("{copy: x -> y, reads: x}", ["SG212"]),
        ("{tasks: {u: {run: f}}, cost: 5us}", ["SG212"]),
        ("{run: f, cost: 5}", ["SG104"]),
        ("{run: f, cost: 5min}", ["SG104"]),
        ("{run: f, host: true, stream: s}", ["SG212"]),
        ("{run: f, stream: host}", ["SG204"]),
        ("{run: f, reads: x, updates: x}", ["SG206"]),
        ("{run: f, writes: $y}", ["SG109"]),
        ("{run: f, each: {i: 0}}", ["SG209"]),
    ],
)
def test_a_wrong_task_is_reported_once(task: str, codes: list[str]) -> None:
    assert [problem.code for problem in problems(f"tensors:\n  x: f32[1]\ntasks:\n  t: {task}\n")] == codes


def test_a_task_that_cannot_be_expanded_is_not_missed_later() -> None:
    body = "tasks:\n  t: {each: {i: $n}, run: f, writes: v@$i}\n  u: {run: f, reads: [v@0, v@*], after: t}\noutputs: [v@1]\n"
    assert [problem.code for problem in problems(body)] == ["SG109"]


@pytest.mark.parametrize(("text", "cost"), [("120us", 120.0), ("1.5ms", 1500.0), ("2s", 2e6), ('"$(n*2)us"', 6.0), ("0us", 0.0)])
def test_costs(text: str, cost: float) -> None:
    assert program(f"params: {{n: 3}}\ntasks:\n  t: {{run: f, cost: {text}}}\n").tasks[0].cost == cost


def test_a_copy_to_an_undeclared_name_is_a_value_on_the_device() -> None:
    made = program('tensors: {x: {type: "f32[1]", kind: input, device: cpu, pinned: true}}\ntasks: {t: {copy: x -> y}}\n')
    assert (made.tensor_named["y"].kind, made.tensor_named["y"].device, made.tasks[0].is_copy) == (Kind.VALUE, "device", True)


def test_outputs() -> None:
    body = "params: {n: 1}\ntensors: {b: \"f32[1]\"}\ntasks:\n  t: {each: {i: 2}, run: f, writes: v@$i}\noutputs: "
    assert [(o.name, o.tensor) for o in program(body + "[v@*, b]").outputs] == [("v@0", "v@0"), ("v@1", "v@1"), ("b", "output:b")]
    assert [(o.name, o.tensor) for o in program(body + "v@$n").outputs] == [("v@1", "v@1")]
    assert [(o.name, o.tensor) for o in program(body + "{r: v@1, s: b}").outputs] == [("r", "v@1"), ("s", "output:s")]
    for wrong in ("[x]", "x", "[v]", "{r: x}"):
        assert [problem.code for problem in problems(body + wrong)] == ["SG210"], wrong


# --- warnings -----------------------------------------------------------------------------------------------------------------------

INTERLEAVED = """tensors: {h: "f32[1]"}
tasks:
  attn: {each: {layer: 3}, run: f, updates: h}
  mlp: {each: {layer: 3}, run: f, updates: h}
"""


def test_two_families_over_one_key_that_update_one_buffer_are_warned_of() -> None:
    assert warnings(INTERLEAVED) == ["SG305 f:5:3"]


@pytest.mark.parametrize(
    "body",
    [
        "tensors: {h: 'f32[1]'}\ntasks:\n  g: {each: {layer: 3}, tasks: {a: {run: f, updates: h}, b: {run: f, updates: h}}}\n",
        INTERLEAVED.replace("mlp: {each: {layer: 3}", "mlp: {each: {other: 3}"),
        INTERLEAVED.replace('{h: "f32[1]"}', "{h: {kind: resource}}"),
        "tensors: {h: {type: 'f32[1]', each: {i: 3}}}\ntasks:\n"
        "  a: {each: {i: 3}, run: f, updates: h@$i}\n  b: {each: {i: 3}, run: f, updates: h@$i}\n",
    ],
    ids=["group", "other key", "resource", "own member"],
)
def test_no_warning_where_the_order_is_meant(body: str) -> None:
    assert warnings(body) == []


def test_other_warnings_come_along() -> None:
    body = 'tensors:\n  p: {type: "f32[1]", kind: input, device: cpu}\n  w: {type: "f32[1]", each: {i: 2}, slots: 3, over: i}\ntasks:\n'
    assert [code[:5] for code in warnings(body + "  t: {copy: p -> v}\n")] == ["SG304", "SG306"]


def test_sorted_keys_are_suspected() -> None:
    found = problems("tasks:\n  a: {run: f, reads: x}\n  b: {run: f, writes: x}\n  c: {run: f}\n")
    assert "were the keys sorted?" in (found[0].help or "")


# --- all at once --------------------------------------------------------------------------------------------------------------------

PLANTED = """\
streamgraph: 1
name: planted
parms: {cams: 2}
tensors:
  frame: {type: "u8[3, $cams]", each: {cam: $cams}, kind: input, devise: cpu}
  batch: f16[$cams, 3
  half:  {type: "f16[2]"}
  quart: {type: "f16[2]", pinned: yes}
  front: {view: "half[0:9]"}
tasks:
  load:  {each: {cam: $cams}, run: load, reads: frame@$cma, writes: image@$cam}
  stack: {run: stack, raeds: [image@*, frame@7], writes: [out]}
  norm:  {run: norm, reads: outt, cost: 120}
  both:  {run: norm, reads: half, writes: half, after: [laod]}
  copy:  {copy: out, needs: stack}
"""
EXPECTED = [
    ("SG101", "3:1", "did you mean 'params'?"),
    ("SG101", "5:66", "did you mean 'device'?"),
    ("SG106", "6:10", "dtype and the shape"),
    ("SG103", "8:35", "true or false"),
    ("SG208", "9:17", "dimension of size 2"),
    ("SG109", "11:49", "did you mean '$cam'?"),
    ("SG101", "12:23", "did you mean 'reads'?"),
    ("SG202", "12:40", "frame@0, frame@1"),
    ("SG201", "13:29", "did you mean 'out'?"),
    ("SG104", "13:41", "120us"),
    ("SG302", "14:43", "updates: half"),
    ("SG203", "14:57", "did you mean 'load'?"),
    ("SG103", "15:17", "copy: a -> b"),
    ("SG101", "15:22", "did you mean 'after'?"),
]


def test_planted_mistakes_are_all_reported_at_their_places() -> None:
    with pytest.raises(SpecError) as caught:
        loads(PLANTED, "planted.yaml")
    found = [(p.code, f"{p.location.line}:{p.location.column}" if p.location else "") for p in caught.value.problems]
    assert found == [(code, place) for code, place, _ in EXPECTED]
    for problem, (_, _, words) in zip(caught.value.problems, EXPECTED, strict=True):
        assert words in f"{problem.message} {problem.help}"


def test_one_mistake_in_many_members_is_one_problem() -> None:
    (problem,) = problems("tasks:\n  t: {each: {i: 1000}, run: f, reads: x@$i}\n")
    assert problem.message.endswith("(and 999 more like it)")


def test_the_name_of_a_program_is_its_files(tmp_path: Path) -> None:
    path = tmp_path / "lenses.streamgraph.yaml"
    path.write_text("streamgraph: 1\n")
    assert load(path).program.name == "lenses"
    assert load(str(path)).program.name == "lenses"
    assert load({"streamgraph": 1}).program.name == "program"


def test_a_spec_and_the_same_mapping_mean_the_same() -> None:
    import yaml

    for path in CASES:
        assert load(yaml.safe_load(path.read_text())).program == load(path).program
    assert load(yaml.safe_load(CAMERAS)).program == loads(CAMERAS).program
