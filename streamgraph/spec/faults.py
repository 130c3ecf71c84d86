"""What does not fit the schema becomes Problems with a place and a remedy, and the data is mended so that reading goes on.

A mistake found here must not hide those that come later: an unknown key that is close to a known one is taken for it, a value that does not
fit is taken out, and what is left goes on to be expanded and checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from streamgraph.errors import Problem, quoted
from streamgraph.names import near
from streamgraph.spec.document import Document, Map, Path
from streamgraph.spec.schema import Spec, StreamForm, TaskForm, TensorForm
from streamgraph.spec.values import described, whole

_TOP, _TENSOR, _TASK, _STREAM = "a spec", "a tensor", "a task", "a stream"
_KEYS: dict[str, tuple[str, ...]] = {
    _TOP: tuple(Spec.model_fields),
    _TENSOR: tuple(TensorForm.model_fields),
    _TASK: tuple(form.alias or name for name, form in TaskForm.model_fields.items()),
    _STREAM: tuple(StreamForm.model_fields),
}
# The words of other tools, per place. They never work silently.
_ALIASES: dict[str, dict[str, str]] = {
    _TOP: {
        "version": "streamgraph", "parameters": "params", "vars": "params", "variables": "params", "buffers": "tensors",
        "inputs": "tensors", "catalog": "tensors", "jobs": "tasks", "nodes": "tasks", "steps": "tasks", "stages": "tasks",
        "lanes": "streams",
        "outs": "outputs", "results": "outputs", "returns": "outputs",
    },
    _TENSOR: {
        "dtype": "type", "shape": "type", "buffers": "slots", "depth": "slots", "prefetch": "slots", "matrix": "each", "foreach": "each",
        "pin_memory": "pinned", "pin": "pinned", "slice": "view", "alias": "view", "base": "view", "value": "init", "initial": "init",
        "fill": "init", "description": "note", "doc": "note", "comment": "note", "role": "kind",
    },
    _TASK: {
        "inputs": "reads", "deps": "reads", "input": "reads", "ins": "reads", "in": "reads", "read": "reads",
        "outputs": "writes", "outs": "writes", "output": "writes", "out": "writes", "write": "writes", "returns": "writes",
        "inout": "updates", "mutates": "updates", "modifies": "updates", "in_place": "updates", "inplace": "updates",
        "needs": "after", "depends_on": "after", "depends": "after", "dependencies": "after", "with": "const", "args": "const",
        "kwargs": "const", "arguments": "const", "params": "const", "matrix": "each", "foreach": "each", "for": "each", "strategy": "each",
        "op": "run", "operator": "run", "function": "run", "call": "run", "cmd": "run", "command": "run", "lane": "stream",
        "queue": "stream", "duration": "cost", "time": "cost", "description": "note", "doc": "note", "comment": "note",
        "group": "tasks", "steps": "tasks", "cpu": "host",
    },
    _STREAM: {"prio": "priority", "level": "priority"},
}  # fmt: skip
_TRUST = frozenset({"allow", "ops", "trust", "registry", "trusted", "allow_list", "operators", "import", "imports", "modules"})
_OF_THE_CALL = frozenset(
    {"iterations", "executor", "device", "order", "release", "costs", "seed", "inflight", "profile", "verify", "report", "loops", "repeat"}
)
_FALLBACK = "write what is expected here, or leave the key out"
_ELSEWHERE = {
    "include": "a spec includes nothing: compose programs in Python",
    "extends": "a spec includes nothing: compose programs in Python",
    "when": "a program decides nothing while it runs: write two programs",
    "if": "a program decides nothing while it runs: write two programs",
}


@dataclass(frozen=True, slots=True)
class Checked:
    """A spec in its long form, what was wrong with it, and the declarations that lost a part: nothing follows from what they lack."""

    spec: Spec | None
    problems: tuple[Problem, ...]
    mended: frozenset[Path]


def check_form(document: Document) -> Checked:
    """The document's spec, as far as it can be mended, and every problem with its form."""
    problems: list[Problem] = []
    mended: set[Path] = set()
    data = document.data
    for key in [key for key in data if key.startswith("x-")]:
        del data[key]
    _version(document, problems)
    for _ in range(3):  # each round takes out what the last one found; a renamed key can hold a second mistake
        try:
            return Checked(Spec.model_validate(data), tuple(problems), frozenset(mended))
        except ValidationError as error:
            errors = error.errors(include_url=False)
        fixes = [_problem(document, item, problems) for item in errors]
        for path, new in fixes:
            if new is None:  # under its right name nothing is lost
                mended.add(_declaration(path))
            _mend(data, path, new)
    return Checked(None, tuple(problems), frozenset(mended))


def _version(document: Document, problems: list[Problem]) -> None:
    given: object = document.data.get("streamgraph")
    try:
        version: object = whole(given) if "streamgraph" in document.data else None
    except ValueError:
        version = -1
    if version == 1:
        return
    message = "the format version is missing" if version is None else f"the format version is {described(given)}, not 1"
    problems.append(Problem("SG108", message, document.place(("streamgraph",)), "begin the file with `streamgraph: 1`"))
    document.data["streamgraph"] = 1


def _place_of(path: Path) -> tuple[str, int]:
    """What kind of thing `path` is in, and how many of its parts lead there."""
    if len(path) >= 2 and path[0] == "tensors":
        return _TENSOR, 2
    if len(path) >= 2 and path[0] == "streams":
        return _STREAM, 2
    depth = 0
    while len(path) >= depth + 2 and path[depth] == "tasks":
        depth += 2
    return (_TASK, depth) if depth else (_TOP, 0)


def _declaration(path: Path) -> Path:
    return path[: _place_of(path)[1]]


def _problem(document: Document, error: Any, problems: list[Problem]) -> tuple[Path, str | None]:
    """Report one of pydantic's errors; the path to mend, and the key that its own was probably meant to be."""
    loc: Path = tuple(error["loc"])
    context = error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        what, depth = _place_of(loc[:-1])
        problem, meant = _unknown_key(str(loc[-1]), what, loc[:depth])
        problems.append(Problem(problem.code, problem.message, document.key_place(loc), problem.help))
        return loc, meant
    if error["type"] == "streamgraph":
        at = (*loc, *context["at"])
        message = f"{_named(at)}: {context['message']}"
        problems.append(Problem(context["code"], message, document.place(at), context["help"] or _FALLBACK))
    elif error["type"] == "literal_error":
        message = f"{_named(loc)}: expected {context['expected']}"
        close = near(quoted(error["input"]), re.findall(r"'(\w+)'", context["expected"]))
        problems.append(Problem("SG105", message, document.place(loc), f"did you mean '{close}'?" if close else _FALLBACK))
    else:
        problems.append(Problem("SG103", f"{_named(loc)}: {error['msg'][:1].lower()}{error['msg'][1:]}", document.place(loc), _FALLBACK))
    _, depth = _place_of(loc)
    return loc[: depth + 1], None


def _named(path: Path) -> str:
    """A path as a reader says it: "reads of task 'load'"."""
    what, depth = _place_of(path)
    owner = f"{what.split()[-1]} '{quoted(path[depth - 1])}'" if depth else ""
    inside = ".".join(quoted(part) for part in path[depth:])
    return f"{inside} of {owner}" if inside and owner else inside or owner


def _unknown_key(key: str, what: str, owner: Path) -> tuple[Problem, str | None]:
    of = f" in {_named(owner)}" if owner else ""
    message = f"unknown key '{quoted(key)}'{of}"
    if key in _TRUST:
        remedy = "the caller brings operators, with ops= or --ops; a spec cannot name what is trusted"
        return Problem("SG107", f"'{quoted(key)}'{of}: trust settings cannot be set in a spec", None, remedy), None
    alias = _ALIASES[what].get(key)
    meant = alias or near(key, _KEYS[what])
    if meant is not None:
        return Problem("SG101", message, None, f"did you mean '{meant}'?"), meant
    if _ELSEWHERE.get(key):
        return Problem("SG101", message, None, _ELSEWHERE[key]), None
    homes = [home for home, keys in _KEYS.items() if key in keys]
    if homes:
        return Problem("SG101", message, None, f"'{key}' is a key of {' and of '.join(homes)}, not of {what}"), None
    if key in _OF_THE_CALL:
        return Problem("SG101", message, None, f"'{key}' is an option of the call or the command line, not of a spec"), None
    return Problem("SG101", message, None, f"the keys of {what} are {', '.join(_KEYS[what])}"), None


def _mend(data: Map, path: Path, new: str | None) -> None:
    """Take out what stands at `path`, or give it the key it was meant to have. Declarations stay, as empty ones."""
    parent: Any = data
    for part in path[:-1]:
        if not isinstance(parent, Map) or part not in parent:
            return
        parent = parent[str(part)]
    if not path or not isinstance(parent, Map) or path[-1] not in parent:
        return
    key = str(path[-1])
    if len(path) == _place_of(path)[1]:
        parent[key] = Map()
        return
    value = parent.pop(key)
    spots = parent.spots.get(key)
    if new is not None and new not in parent:
        parent[new] = value
        if spots is not None:
            parent.spots[new] = spots
