"""Reading: plain data as it was written, every key and value with its place, and scalars that mean what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.errors import SpecError
from streamgraph.spec import json_schema, loads
from streamgraph.spec import reader as reader_module
from streamgraph.spec.document import Document, Map, Plain, Seq
from streamgraph.spec.faults import check_form
from streamgraph.spec.reader import read, read_mapping
from streamgraph.spec.values import typed

PARSERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if hasattr(yaml, "CSafeLoader") else [])]


@pytest.fixture(params=PARSERS, ids=lambda parser: parser.__name__, autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of PyYAML's parsers: the one in C may be missing."""
    monkeypatch.setattr(reader_module, "_PARSER", request.param)


def first(text: str) -> Any:
    return read(text, "f").data


# --- data and places ----------------------------------------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), max_size=8)
data = st.recursive(st.none() | words, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=12)


@given(st.dictionaries(words, data, max_size=4), st.booleans())
@settings(max_examples=80)
def test_what_is_written_is_read(value: dict[str, Any], flow: bool) -> None:
    text = yaml.dump(value, allow_unicode=True, default_flow_style=flow, width=10_000)
    found = first(text)
    assert found == value
    assert read_mapping(value).data == value


@given(st.dictionaries(words, data, max_size=4))
@settings(max_examples=80)
def test_a_part_of_a_document_gives_the_same_places(value: dict[str, Any]) -> None:
    document = read(yaml.dump(value, allow_unicode=True, width=10_000), "f")
    pending: list[tuple[Any, tuple[str | int, ...]]] = [(document.data, ())]
    while pending:
        node, path = pending.pop()
        inside = [(key, item) for key, item in (node.items() if isinstance(node, Map) else enumerate(node))]
        for key, item in [*inside, ("no such key", None), (99, None)]:
            for cut in range(len(path) + 2):
                whole = (*path, key)
                part = document.at(whole[:cut])
                assert part.place(whole[cut:]) == document.place(whole)
                if cut <= len(path):
                    assert part.key_place(whole[cut:]) == document.key_place(whole)
            if isinstance(item, (Map, Seq)):
                pending.append((item, (*path, key)))
        if path and isinstance(path[0], str):
            found = document.places(path[0], [(*path[1:], key) for key, _ in inside])
            assert found == [document.place((*path, key)) for key, _ in inside]


@given(st.dictionaries(words, data, max_size=4), st.booleans())
@settings(max_examples=80)
def test_every_place_is_where_its_text_stands(value: dict[str, Any], flow: bool) -> None:
    document = read(yaml.dump(value, allow_unicode=True, default_flow_style=flow, width=10_000), "f")
    pending: list[tuple[Any, tuple[str | int, ...]]] = [(document.data, ())]
    while pending:
        node, path = pending.pop()
        for key, item in node.items() if isinstance(node, Map) else enumerate(node):
            here = (*path, key)
            if isinstance(item, (Map, Seq)):
                pending.append((item, here))
            places = [(document.key_place(here), key)] if isinstance(node, Map) else []
            places += [(document.place(here), item)] if isinstance(item, Plain) else []
            for place, spelled in places:
                assert place is not None
                shown = place.text[place.column - 1 : place.column - 1 + place.width]
                assert yaml.load(shown, yaml.BaseLoader) == spelled


def test_a_place_is_line_column_and_width() -> None:
    document = read("a:\n  b: [one, two]\n  c: {d: 'x y'}\n", "f")
    spots = {
        ("a",): "1:1 1", ("a", "b"): "2:3 1", ("a", "b", 1): "2:12 3", ("a", "c", "d"): "3:10 5",
        ("a", "b", 7): "2:3 1", ("a", "zz", 0): "1:1 1",
    }  # fmt: skip
    for path, spot in spots.items():
        place = document.place(path)
        assert place is not None
        assert f"{place.line}:{place.column} {place.width}" == spot
    key = document.key_place(("a", "c", "d"))
    assert key is not None
    assert (key.line, key.column, key.text) == (3, 7, "  c: {d: 'x y'}")


def test_a_mapping_has_no_places() -> None:
    assert read_mapping({"a": [1]}).place(("a", 0)) is None


def test_a_mapping_is_copied() -> None:
    source = {"a": [1, {"b": "c"}]}
    found = read_mapping(source)
    found.data["a"][1]["b"] = "d"
    assert source == {"a": [1, {"b": "c"}]}


# --- scalars ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("on", "on"), ("no", "no"), ("yes", "yes"), ("y", "y"), ("Off", "Off"), ("12:30", "12:30"), ("2026-01-01", "2026-01-01"),
        ("1_000", "1_000"), ("'5'", "5"), ('"true"', "true"), ('"null"', "null"), ("=", "="), ("0b11", "0b11"), ("1e", "1e"),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
        ("5", 5), ("-5", -5), ("+5", 5), ("0", 0), ("0x1F", 31), ("0o17", 15), ("9223372036854775807", 9223372036854775807),
        ("1e3", 1000.0), ("1.5", 1.5), (".5", 0.5), ("-2.", -2.0), ("1e-3", 0.001),
    ],
)  # fmt: skip
def test_constants_follow_yaml_1_2(written: str, meant: object) -> None:
    found = typed(first(f"a: {written}")["a"])
    assert (found, type(found) is bool) == (meant, type(meant) is bool)
    assert isinstance(found, str) == isinstance(meant, str)


@given(st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | words)
@settings(max_examples=100)
def test_constants_survive_json(value: object) -> None:
    assert typed(first(f"a: {json.dumps(value, ensure_ascii=False)}")["a"]) == value


@pytest.mark.parametrize("key", ["on", "12:30", "1", "true", "null", "010"])
def test_keys_are_their_text(key: str) -> None:
    assert list(first(f"{key}: x")) == [key]


def test_names_that_look_like_other_things_are_names_when_quoted() -> None:
    tasks = "  yes: {run: no, writes: 'true'}\n  12: {run: off, reads: 'true', after: yes}\n"
    program = loads(f"streamgraph: 1\nname: on\ntasks:\n{tasks}").program
    assert (program.name, program.tasks[0].operator, program.tasks[1].name, program.tasks[1].after) == ("on", "no", "12", ("yes",))


def test_comments_and_modelines_mean_nothing() -> None:
    assert loads("# yaml-language-server: $schema=./s.json\n# $schema: x\nstreamgraph: 1 # one\n").program.tasks == ()


def test_a_document_may_be_marked() -> None:
    assert loads("%YAML 1.2\n---\nstreamgraph: 1\n...\n").program.tasks == ()


# --- the traps of YAML --------------------------------------------------------------------------------------------------------------


def complaint(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        loads(text, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize("reads", ["[frame_${cam}, w]", "[w, frame_${cam}]", "{a: frame_${cam}}", "[ [ x${cam} ] ]"])
def test_a_brace_in_brackets_says_what_to_write(reads: str) -> None:
    found = complaint(f"streamgraph: 1\ntasks:\n  t: {{run: f, reads: {reads}}}\n")
    assert "f.yaml:3:" in found
    assert "write $name instead of ${name}" in found


@pytest.mark.parametrize("line", ["{type: f16[8, 3]}", "{kind: input, type: f16[8, 3]}", "{view: batch[0:2]}", "[w[$i]]"])
def test_brackets_in_brackets_must_be_quoted(line: str) -> None:
    found = complaint(f"streamgraph: 1\ntensors:\n  t: {line}\n")
    assert "f.yaml:3:" in found
    assert 'type: "f16[8, 3]"' in found


def test_braces_outside_of_brackets_are_fine() -> None:
    text = "streamgraph: 1\nparams: {cam: 3}\ntensors:\n  x: f16[8, ${cam}]\ntasks:\n  t:\n    run: f\n    writes: frame_${cam}\n"
    assert loads(text).program.tasks[0].writes[0].tensors == ("frame_3",)


def test_a_colon_in_text_must_be_quoted() -> None:
    assert "quote a text that holds ': '" in complaint("streamgraph: 1\nname: a: b\n")


def test_an_at_sign_cannot_begin_a_text() -> None:
    assert "quote a text that begins with @" in complaint("streamgraph: 1\nname: @x\n")


def test_a_duplicate_key_shows_both_lines() -> None:
    found = complaint("streamgraph: 1\nname: a\nname: b\n")
    assert found == (
        "f.yaml:3:1: error[SG002]: the key 'name' stands twice\n  |\n3 | name: b\n  | ^^^^\n"
        "   = note: first here: f.yaml:2:1\n  |\n2 | name: a\n  | ^^^^\n"
        "   = help: give one of the two another name, or remove it"
    )


def test_all_that_the_reader_refuses_comes_at_once() -> None:
    found = complaint("streamgraph: 1\nname: !x y\nparams: &p {a: 1}\ntensors: *p\nname: z\n")
    assert [line.split(": error[")[1][:5] for line in found.split("\n") if ": error[" in line] == ["SG003", "SG004", "SG004", "SG002"]


# --- the schema for editors ---------------------------------------------------------------------------------------------------------

SHORT_AND_LONG = """
streamgraph: 1
name: all forms
params: {n: 3}
x-anything: [1, {a: b}]
tensors:
  a: f16[8, 3]
  b: {type: "f16[$n]", kind: input, device: cpu, pinned: true, init: random, each: {i: $n, j: 0..2, k: [x, 1], l: 4}, note: n}
  c: {type: "f16[8]", each: {i: 2}, slots: 2, over: i}
  d: {type: "f16[8]", slots: $n}
  e: {view: "a[0:2]"}
tasks:
  t: {run: f, reads: a, writes: [v, w, d], const: {a: 1, b: [x, null], c: {d: 1.5}}, cost: 120us, stream: main}
  u: {run: f, reads: [v, [w, a]], updates: {x: d}, after: t, host: true, note: n}
  w: {run: f, reads: {x: a, y: [v, w]}, after: [t, u]}
  c: {copy: a -> z}
  g: {each: {i: 2}, tasks: {s: {run: f, writes: c@$i}}}
streams: {one: {priority: high}, two: }
outputs: [v]
"""


def test_the_schema_takes_every_short_form() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.check_schema(json_schema())
    value = yaml.safe_load(SHORT_AND_LONG)
    loads(SHORT_AND_LONG)
    assert [error.message for error in validator.iter_errors(value)] == []
    for outputs in ("v", {"r": "v"}, None):
        assert validator.is_valid({**value, "outputs": outputs})
    for empty in ("params", "tensors", "tasks", "streams"):
        assert validator.is_valid({**value, empty: None})


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json_schema())
    for bad in (
        {}, {"streamgraph": 2}, {"streamgraph": 1, "task": {}}, {"streamgraph": 1, "tasks": {"t": {"raeds": "x"}}},
        {"streamgraph": 1, "tasks": {"t": {"run": "f", "host": "yes"}}}, {"streamgraph": 1, "tasks": {"t": {"run": ["f"]}}},
        {"streamgraph": 1, "tasks": {"t": {"run": "f", "cost": 120}}}, {"streamgraph": 1, "tensors": {"x": {"kind": "tensor"}}},
        {"streamgraph": 1, "streams": 4}, {"streamgraph": 1, "tasks": {"g": {"tasks": {"t": {"raeds": "x"}}}}},
    ):  # fmt: skip
        assert not validator.is_valid(bad), bad
        assert check_form(Document(read_mapping(bad).data, "f")).problems, bad


def test_every_key_is_described() -> None:
    schema = json_schema()
    for form in (schema, *schema["$defs"].values()):
        for name, key in form["properties"].items():
            assert key.get("description"), name
