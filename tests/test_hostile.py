"""A spec may come from anybody: each case here ends in a SpecError with a code, a place and a remedy, and imports nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamgraph.errors import CATALOGUE, Problem, SpecError
from streamgraph.spec import declare, expand, filling, load, loads

HEAD = "streamgraph: 1\n"
CANARY = "streamgraph_canary"


def problems(text: str) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as caught:
        loads(text, "bad.yaml")
    return caught.value.problems


def task(line: str) -> str:
    return f"{HEAD}tasks:\n  t: {{{line}}}\n"


def tensor(line: str) -> str:
    return f"{HEAD}tensors:\n  x: {{{line}}}\n"


# name, text, code, line, column, words of the message or the remedy
CASES = [
    # operators: what can be no operator's name is refused here; unknown ones when the caller's operators are there
    ("module and colon", task('run: "os:system", writes: y'), "SG204", 3, 3, "never imports code"),
    ("statement", task('run: "step; import os", writes: y'), "SG204", 3, 3, "not the name of an operator"),
    ("dunder of a step", task("run: step.__globals__, writes: y"), "SG403", 3, 3, "begins with an underscore"),
    ("dunder of aten", task("run: aten.__class__, writes: y"), "SG403", 3, 3, "begins with an underscore"),
    ("dunder call", task("run: step.__call__.__self__, writes: y"), "SG403", 3, 3, "begins with an underscore"),
    ("run is a list", task("run: [a, b]"), "SG103", 3, 7, "expected text, got a list"),
    ("run is null", task("run: null"), "SG102", 3, 3, "neither run"),
    ("run is a number", task("run: 3"), "SG103", 3, 12, "got the number 3"),
    ("allow", HEAD + 'allow: ["*"]\n', "SG107", 2, 1, "trust settings cannot be set in a spec"),
    ("ops", HEAD + "ops: [os]\n", "SG107", 2, 1, "ops= or --ops"),
    ("trust in a task", task("run: f, trust: true"), "SG107", 3, 15, "trust settings"),
    # YAML
    ("python apply", HEAD + "name: !!python/object/apply:os.system [id]\n", "SG003", 2, 7, "leave the tag out"),
    ("python name", HEAD + "name: !!python/name:os.system x\n", "SG003", 2, 7, "plain data"),
    ("binary", HEAD + "name: !!binary aGk=\n", "SG003", 2, 7, "not allowed"),
    ("set", HEAD + "name: !!set {a}\n", "SG003", 2, 7, "not allowed"),
    ("custom tag", HEAD + "name: !custom x\n", "SG003", 2, 7, "!custom"),
    ("tag on a key", HEAD + "!!str name: x\n", "SG003", 2, 1, "not allowed"),
    ("tag directive", "%TAG ! tag:x,2000:\n---\n" + HEAD, "SG003", 1, 1, "tag directives"),
    ("recursive alias", "a: &a [*a]\n", "SG004", 1, 4, "anchor"),
    ("alias key", HEAD + "*a : b\n", "SG004", 2, 1, "aliases"),
    ("merge key", HEAD + "<<: {a: 1}\n", "SG004", 2, 1, "merge keys"),
    ("duplicate key", HEAD + "name: a\nname: b\n", "SG002", 3, 1, "stands twice"),
    ("duplicate task", HEAD + "tasks:\n  t: {run: f}\n  t: {run: g}\n", "SG002", 4, 3, "stands twice"),
    ("two documents", HEAD + "---\n" + HEAD, "SG008", 2, 1, "own file"),
    ("empty", "", "SG009", 1, 1, "holds nothing"),
    ("only comments", "# hello\n", "SG009", 1, 1, "holds nothing"),
    ("a list", "- a\n", "SG009", 1, 1, "holds a list"),
    ("a scalar", "hello\n", "SG009", 1, 1, "a single value"),
    ("NUL", HEAD + "name: a\x00b\n", "SG010", 2, 8, "U+0000"),
    ("lone surrogate", HEAD + "name: a\ud800\n", "SG010", 2, 8, "U+D800"),
    ("line separator", HEAD + "name: a\u2028b\n", "SG010", 2, 8, "U+2028"),
    ("tab", HEAD + "tasks:\n\tt: {run: f}\n", "SG011", 3, 1, "use spaces"),
    ("long scalar", HEAD + f"name: {'a' * 1_000_000}\n", "SG007", 2, 7, "1000000 characters"),
    ("long key", HEAD + f"{'a' * 1000}: 1\n", "SG007", 2, 1, "1000 characters"),
    ("list as a key", HEAD + "? [a]\n: b\n", "SG103", 2, 3, "a key must be text"),
    ("open quote", HEAD + "name: 'x\n", "SG001", 3, 1, "not YAML"),
    ("open bracket", HEAD + "outputs: [a\n", "SG001", 3, 1, "not YAML"),
    # numbers and times
    ("cost nan", task("run: f, cost: .nan"), "SG104", 3, 21, "needs a unit"),
    ("cost inf", task("run: f, cost: .inf"), "SG104", 3, 21, "needs a unit"),
    ("cost negative", task("run: f, cost: -1us"), "SG104", 3, 21, "not a time"),
    ("cost huge", task("run: f, cost: 1.0e+9999"), "SG104", 3, 21, "needs a unit"),
    ("cost clock", task("run: f, cost: 1:30"), "SG104", 3, 21, ""),
    ("cost octal", task("run: f, cost: 010"), "SG104", 3, 21, "needs a unit"),
    ("cost hex", task("run: f, cost: 0x10"), "SG104", 3, 21, "needs a unit"),
    ("cost underscore", task("run: f, cost: 1_000"), "SG104", 3, 21, ""),
    ("const nan", task("run: f, const: {a: .nan}"), "SG105", 3, 26, "not a finite number"),
    ("const inf", task("run: f, const: {a: -.inf}"), "SG105", 3, 26, "not a finite number"),
    ("const overflow", task("run: f, const: {a: 1e9999}"), "SG105", 3, 26, "not a finite number"),
    ("const octal", task("run: f, const: {a: 010}"), "SG105", 3, 26, "decimal or octal"),
    ("const 5000 digits", task(f"run: f, const: {{a: {'9' * 5000}}}"), "SG105", 3, 26, "64 bits"),
    ("const long hex", task(f"run: f, const: {{a: 0x{'f' * 5000}}}"), "SG105", 3, 26, "64 bits"),
    ("streams zero", HEAD + "streams: 0\n", "SG103", 2, 10, "expected a mapping"),
    ("streams true", HEAD + "streams: true\n", "SG103", 2, 10, "expected a mapping"),
    ("iterations", HEAD + "iterations: -1\n", "SG101", 2, 1, "option of the call"),
    ("slots zero", tensor('type: "f32[1]", slots: 0'), "SG105", 3, 30, "at least one slot"),
    ("slots octal", tensor('type: "f32[1]", slots: 010'), "SG105", 3, 30, "whole number"),
    ("slots quoted", tensor('type: "f32[1]", slots: "2"'), "SG103", 3, 30, "whole number"),
    ("slots float", tensor('type: "f32[1]", slots: 1.5'), "SG105", 3, 30, "whole number"),
    ("negative size", tensor('type: "f32[-1]"'), "SG106", 3, 13, "not a size"),
    ("huge type", tensor('type: "f32[4294967296, 4294967296]"'), "SG106", 3, 13, "more than any device holds"),
    ("params text", HEAD + "params: {a: b}\n", "SG103", 2, 13, "whole number"),
    ("params huge", HEAD + f"params: {{a: {'9' * 4000}}}\n", "SG105", 2, 13, "64 bits"),
    # keys
    ("read", task("run: f, read: x"), "SG101", 3, 15, "did you mean 'reads'?"),
    ("include", HEAD + "include: ../../etc/passwd\n", "SG101", 2, 1, "includes nothing"),
    ("when", task("run: f, when: x"), "SG101", 3, 15, "two programs"),
    ("reads a number", task("run: f, reads: 3"), "SG103", 3, 22, "got the number 3"),
    ("reads deep", task("run: f, reads: [[[x]]]"), "SG103", 3, 24, "expected the name of a tensor"),
    ("flag yes", task("run: f, host: yes"), "SG103", 3, 21, "true or false"),
    ("no version", "name: x\n", "SG108", 1, 1, "streamgraph: 1"),
    ("other version", "streamgraph: 2\n", "SG108", 1, 14, "not 1"),
    ("version text", 'streamgraph: "1"\n', "SG108", 1, 14, "not 1"),
    # names
    ("unknown tensor", task("run: f, reads: x, writes: y"), "SG201", 3, 22, "unknown tensor 'x'"),
    ("read before write", HEAD + "tasks:\n  a: {run: f, reads: x}\n  b: {run: f, writes: x}\n", "SG301", 3, 22, "move it up"),
    ("self after", task("run: f, after: t"), "SG207", 3, 22, "after itself"),
    ("unknown after", task("run: f, after: [tt]"), "SG203", 3, 23, "no task"),
    ("cycle", HEAD + "tasks:\n  a: {run: f, after: b}\n  b: {run: f, after: a}\n", "SG207", 3, 22, "stands later"),
    ("NFD", HEAD + "tasks:\n  e\u0301: {run: f}\n", "SG204", 3, 3, "NFC"),
    ("bidi", HEAD + 'tasks:\n  "a\u202eb": {run: f}\n', "SG204", 3, 3, "invisible"),
    ("zero width", HEAD + 'tasks:\n  "a\u200bb": {run: f}\n', "SG204", 3, 3, "invisible"),
    ("newline in a name", HEAD + 'tasks:\n  "a\\nb": {run: f}\n', "SG204", 3, 3, "invisible"),
    ("escape in a name", HEAD + 'tasks:\n  "a\\e[0m": {run: f}\n', "SG204", 3, 3, "invisible"),
    ("script in a name", HEAD + 'tasks:\n  "</script><script>": {run: f}\n', "SG204", 3, 3, "not a name"),
    ("dot attack", HEAD + 'tasks:\n  "];evil[label=": {run: f}\n', "SG204", 3, 3, "not a name"),
    ("formula", HEAD + 'tasks:\n  "=cmd()": {run: f}\n', "SG204", 3, 3, "not a name"),
    ("reserved", HEAD + "tasks:\n  entry: {run: f}\n", "SG204", 3, 3, "reserved"),
    ("generated name", HEAD + 'tasks:\n  "output:x": {run: f}\n', "SG204", 3, 3, "not a name"),
    # interpolation
    ("eval", task('run: f, reads: "$(__import__(1))"'), "SG110", 3, 22, "not an expression"),
    ("power", task('run: f, reads: "x@$(9**9**9)"'), "SG110", 3, 22, "not an expression"),
    ("attribute", task('run: f, reads: "x@$((1).real)"'), "SG110", 3, 22, "not an expression"),
    ("division by zero", task('run: f, reads: "x@$(1 // 0)"'), "SG110", 3, 22, "divides by zero"),
    ("overflow", task('run: f, reads: "x@$(9999999999999999 * 9999999999999999)"'), "SG110", 3, 22, "64 bits"),
    ("parentheses", task(f'run: f, reads: "$({"(" * 5000}1{")" * 5000})"'), "SG110", 3, 22, "characters"),
    ("open expression", task('run: f, reads: "$(1"'), "SG110", 3, 22, "not closed"),
    ("environment", task("run: f, reads: x$HOME"), "SG109", 3, 22, "no parameter"),
    ("lone dollar", task("run: f, reads: x$"), "SG110", 3, 22, "lone"),
    # sizes
    ("billion members", tensor('type: "f32[1]", each: {a: 100000, b: 100000}'), "SG209", 3, 23, "10000000000 members"),
    ("huge each", tensor('type: "f32[1]", each: {a: 999999999999}'), "SG209", 3, 33, "at most"),
    ("no items", tensor('type: "f32[1]", each: {a: 0}'), "SG209", 3, 33, "at least one"),
    ("each backwards below zero", tensor('type: "f32[1]", each: {a: -1..1}'), "SG209", 3, 33, "from 0 up"),
    ("each nothing", tensor('type: "f32[1]", each: {}'), "SG209", 3, 23, "no keys"),
    ("each twice", tensor('type: "f32[1]", each: {a: [0, 1, 0]}'), "SG209", 3, 30, "stands twice"),
    ("path as an item", tensor('type: "f32[1]", each: {a: [../x]}'), "SG209", 3, 30, "cannot be an item"),
]


@pytest.fixture(autouse=True)
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A module that leaves a file behind when it is imported; no spec may bring that about."""
    mark = tmp_path / "imported"
    (tmp_path / f"{CANARY}.py").write_text(f"open({str(mark)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield mark
    assert not mark.exists()
    assert CANARY not in sys.modules
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] in ("torch", "os.system")}


@pytest.mark.parametrize(("text", "code", "line", "column", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_bad_spec_is_reported_with_code_place_and_remedy(text: str, code: str, line: int, column: int, words: str) -> None:
    found = [problem for problem in problems(text) if problem.code == code]
    assert found, f"no {code} among {problems(text)}"
    places = [(p.location.line, p.location.column) if p.location else None for p in found]
    assert (line, column) in places
    problem = found[places.index((line, column))]
    assert words in f"{problem.message} {problem.help}"
    assert problem.help
    assert code in CATALOGUE


@pytest.mark.parametrize("name", [f"{CANARY}.run", f"{CANARY}:run", f"!!python/name:{CANARY}.run x", f"!!python/module:{CANARY} x"])
def test_no_way_of_naming_a_module_imports_it(name: str) -> None:
    try:
        program = loads(task(f"run: {name}, writes: y")).program
    except SpecError:
        return
    assert program.tasks[0].operator == name  # a name like any other, which the caller brings or not


def test_billion_laughs_are_stopped_at_the_first_anchor() -> None:
    lines = ["a0: &a0 [lol]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert {problem.code for problem in problems("\n".join(lines))} == {"SG004"}


@pytest.mark.parametrize(
    "text",
    ["[" * 50_000, "{a: " * 50_000, "\n".join(" " * n + "a:" for n in range(1000)), "- " * 1000 + "a", "a: " + "[a, " * 40],
    ids=["brackets", "braces", "block", "dashes", "mixed"],
)  # fmt: skip
def test_deep_nesting_is_a_clean_error(text: str) -> None:
    assert [problem.code for problem in problems(text)] == ["SG005"]


def test_a_crash_of_the_parser_would_be_seen() -> None:
    # In a process of its own: a segmentation fault must fail this test, not the test run.
    code = "from streamgraph.spec import loads\ntry:\n    loads('[' * 200000)\nexcept Exception as error:\n    print(type(error).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "SpecError\n")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of expansion, a hundredth of what they are, so that reaching them takes no time."""
    for module, limit in ((expand, "MOST_TASKS"), (expand, "MOST_ACCESSES"), (filling, "_MOST_FORMS"), (filling, "MOST_CHARACTERS")):
        monkeypatch.setattr(module, limit, getattr(module, limit) // 100)
    monkeypatch.setattr(declare, "MOST_ITEMS", declare.MOST_ITEMS // 10)


@pytest.mark.usefixtures("small")
def test_a_spec_of_many_tasks_is_refused_before_it_is_expanded() -> None:
    text = HEAD + "tasks:\n  g:\n    each: {a: 1000}\n    tasks:\n      h:\n        each: {b: 1000}\n        tasks:\n"
    text += "          t: {each: {c: 1000}, run: f}\n"
    assert "SG105" in {problem.code for problem in problems(text)}


@pytest.mark.usefixtures("small")
def test_an_after_of_everything_is_refused_before_memory_is_gone() -> None:
    text = HEAD + "tasks:\n  a: {each: {i: 1000}, run: f}\n  b: {each: {i: 1000}, run: f, after: a}\n"
    assert "SG105" in {problem.code for problem in problems(text)}


@pytest.mark.parametrize(
    "body",
    [
        "tasks:\n  g: {each: {a: 100000}, tasks: {h: {each: {b: 100000}, tasks: {}}}}\n",
        "tasks:\n  g: {each: {a: 100000}, tasks: {h: {each: {b: 100000}, tasks: {t: {each: {c: $no}, run: f}}}}}\n",
        "tensors:\n" + "".join(f"  w{n}: {{type: 'f32[1]', each: {{a: 30000}}}}\n" for n in range(5)),
        f"tasks:\n  t: {{each: {{a: 100000}}, run: f, const: {{a: {'$a' * 30000}}}}}\n",
        f"tasks:\n  t: {{each: {{a: 100000}}, run: f, reads: '{'$a' * 30000}'}}\n",
        f"tasks:\n  t: {{each: {{a: [{'w' * 250}]}}, run: f, reads: '{'$a' * 30000}'}}\n",
        f"tensors:\n  x: {{type: 'f32[{'1, ' * 5000}1]'}}\n",
        f"tasks:\n  t: {{run: f, reads: '{'$(' * 30000}'}}\n",
    ],
    ids=["idle groups", "failing groups", "tensors", "constants", "names", "amplified text", "dimensions", "expressions"],
)  # fmt: skip
@pytest.mark.usefixtures("small")
def test_what_would_fill_memory_or_time_is_refused(body: str) -> None:
    found = problems(HEAD + body)
    assert {problem.code for problem in found} & {"SG105", "SG106", "SG007", "SG110"}


# --- files --------------------------------------------------------------------------------------------------------------------------


def file_problem(path: object) -> Problem:
    with pytest.raises(SpecError) as caught:
        load(path)  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    assert problem.help
    return problem


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "dangling", tmp_path / "missing", "/dev/zero", "a\0b", " ", "..\\x.yaml"):
        assert file_problem(path).code == "SG006", path


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_bytes(b"# " + b"x" * (17 << 20))
    assert "larger than 16 MiB" in file_problem(large).message


@pytest.mark.parametrize("raw", [b"name: \xff\xfe", "name: x".encode("utf-16"), b"streamgraph: 1\nname: \xed\xa0\x80"])
def test_a_file_must_be_utf8(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(raw)
    assert file_problem(path).code == "SG010"


def test_a_byte_order_mark_and_carriage_returns_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "windows.yaml"
    path.write_bytes("\ufeffstreamgraph: 1\r\ntasks:\r\n  t: {run: f}\r\n".encode())
    assert [one.name for one in load(path).program.tasks] == ["t"]
    path.write_bytes("\ufeffstreamgraph: 1\r\ntasks:\r\n  t: {rum: f}\r\n".encode())
    with pytest.raises(SpecError, match=r"windows.yaml:3:7: error\[SG101\]"):
        load(path)


# --- mappings -----------------------------------------------------------------------------------------------------------------------


def test_a_mapping_from_python_has_the_same_limits() -> None:
    deep: dict[str, object] = {}
    deep["x-a"] = deep
    for bad, code in (
        (deep, "SG005"),
        ({"streamgraph": 1, 3: "x"}, "SG103"),
        ({"streamgraph": 1, "name": object()}, "SG103"),
        ({"streamgraph": 1, "name": "a" * 70_000}, "SG007"),
        ({"streamgraph": True}, "SG108"),
        ({"streamgraph": 1, "tasks": {"t": {"run": "f", "const": {"a": float("nan")}}}}, "SG105"),
        ({"streamgraph": 1, "tasks": {"t": {"run": "f", "const": {"a": 1 << 70}}}}, "SG105"),
        ({"streamgraph": 1, "tensors": {"x": {"type": "f32[1]", "slots": True}}}, "SG103"),
    ):
        with pytest.raises(SpecError) as caught:
            load(bad)  # type: ignore[arg-type]
        assert code in {problem.code for problem in caught.value.problems}


def test_messages_quote_little_and_hide_nothing() -> None:
    (problem,) = [one for one in problems(HEAD + f"tasks:\n  t: {{run: f, reads: {'x' * 5000}}}\n") if one.code == "SG201"]
    assert len(problem.message) < 300
    (problem,) = problems(HEAD + '"a\u202e\\e[31m": 1\n')
    assert "\u202e" not in str(problem)
    assert "\x1b" not in str(problem)
