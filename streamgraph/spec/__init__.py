"""The YAML front end: a spec's text becomes a Program.

    document     plain data that knows its places
    syntax       where a text is no YAML -> a Problem with a remedy
    reader       text -> a document
    values       what a place may hold -> its long form
    schema       the form of that data, and the JSON Schema for editors
    faults       what does not fit the schema -> Problems; mends the data, so that the rest is still looked at
    interpolate  `$name`, `$(...)` and `each`
    declare      tensors: types, families, views
    template     one entry of `tasks`: what all of its members share
    filling      texts with `$` -> those of one member
    resolve      names that stand for several things: families, groups, `name@*`
    expand       tasks, group by group and item by item; -> Program
    write        Program -> YAML, in its expanded form

A spec is data. Nothing here imports what a spec names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamgraph.collector import uncollected
from streamgraph.errors import Problem, SpecError, by_place, collapsed
from streamgraph.model import Program
from streamgraph.spec.document import Document
from streamgraph.spec.expand import expand_spec
from streamgraph.spec.faults import check_form
from streamgraph.spec.reader import read, read_file, read_mapping
from streamgraph.spec.schema import json_schema
from streamgraph.spec.write import to_mapping, to_yaml
from streamgraph.validate import check, finish

__all__ = ["Loaded", "json_schema", "load", "loads", "to_mapping", "to_yaml"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A finished program, and what is legal but probably not meant."""

    program: Program
    warnings: tuple[Problem, ...] = ()


@uncollected
def load(source: str | os.PathLike[str] | Mapping[str, Any], params: Mapping[str, object] | None = None) -> Loaded:
    """The program in a file, or in a mapping of the same form. `params` override those of the spec.

    Raises:
        SpecError: everything that is wrong, each with its place, its line and a remedy.
    """
    if isinstance(source, Mapping):
        return _program(read_mapping(source), params, "program")
    name = os.fspath(source)
    return _program(read(read_file(source), name), params, Path(name).name.partition(".")[0] or "program")


@uncollected
def loads(text: str, file: str = "<spec>", params: Mapping[str, object] | None = None) -> Loaded:
    """The program in a text; `file` is what messages call it. Raises as `load` does."""
    return _program(read(text, file), params, "program")


def _program(document: Document, params: Mapping[str, object] | None, name: str) -> Loaded:
    checked = check_form(document)
    problems = list(checked.problems)
    if checked.spec is None:
        raise SpecError(*collapsed(problems))
    expansion = expand_spec(checked, document, params, name)
    program = finish(expansion.program, expansion.places)
    found = by_place([*problems, *expansion.problems, *check(program, expansion.places, expansion.broken)])
    if any(problem.severity == "error" for problem in found):
        raise SpecError(*collapsed(found))
    return Loaded(program, tuple(collapsed(found)))
