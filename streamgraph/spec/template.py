"""One entry of `tasks` becomes a Template: what all of its members share, with places, worked out once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from streamgraph.errors import Location, Problem, quoted
from streamgraph.model import Argument
from streamgraph.spec.declare import Report
from streamgraph.spec.document import Document, Path, Plain
from streamgraph.spec.interpolate import Scope, interpolate, value_of
from streamgraph.spec.resolve import Texts
from streamgraph.spec.schema import TaskForm
from streamgraph.spec.values import Entry

COPY = re.compile(r"\s*(\S+)\s*->\s*(\S+)\s*\Z")
_NOT_OF_A_GROUP = ("reads", "writes", "updates", "const", "cost", "host")
_NOT_OF_A_COPY = ("reads", "writes", "updates", "const")


@dataclass(slots=True)
class Template:
    """`entries` hold role, entry, place, and an Argument if nothing in it varies; `const` is None if it varies; `forms` and `length` are
    the number of its dollars and the size of its texts. `updated` counts how often the members of one expansion update each tensor.
    """

    name: str
    path: Path
    form: TaskForm
    where: Location | None
    entries: tuple[tuple[str, Entry, Location | None, Argument | None], ...]
    const: tuple[tuple[str, Any], ...] | None
    forms: int
    length: int
    after: Texts
    updated: dict[str, int] = field(default_factory=dict)


def make_template(name: str, form: TaskForm, path: Path, document: Document, mended: Collection[Path], report: Report) -> Template:
    """What the entry `name` of `tasks` says. What is wrong with it, whatever the items are, is reported once."""
    where, here = document.key_place(path), document.at(path)
    given = [key for key, value in (("run", form.run), ("copy", form.copy_), ("tasks", form.tasks)) if value is not None]
    if len(given) > 1:
        message = f"task '{name}' has {' and '.join(given)}"
        report(Problem("SG212", message, here.place((given[1],)), "one of run, copy and tasks says what a task does"))
    elif not given and path not in mended:
        report(Problem("SG102", f"task '{name}' has neither run, copy nor tasks", where, "write run: and the name of an operator"))
    group, copy = form.tasks is not None, form.copy_ is not None
    odd = [key for key in (_NOT_OF_A_GROUP if group else _NOT_OF_A_COPY if copy else ()) if key in form.model_fields_set]
    if odd:
        remedy = "write it at the tasks inside" if group else "copy: a -> b says it all"
        message = f"{'group' if group else 'copy'} '{name}' has {', '.join(odd)}"
        report(Problem("SG212", message, here.place((odd[0],)), remedy))
    after = tuple((text, here.place(("after", number))) for number, text in enumerate(form.after))
    forms, length = _variation(form.const) if form.const else (0, 0)
    const = None if forms else tuple((key, frozen(value)) for key, value in (form.const or {}).items())
    return Template(name, path, form, where, tuple(_entries(form, path, here, report)), const, forms, length, after)


def _entries(
    form: TaskForm, path: Path, here: Document, report: Report
) -> Iterator[tuple[str, Entry, Location | None, Argument | None]]:  # fmt: skip
    if form.copy_ is not None:
        match = COPY.match(form.copy_)
        place = here.place(("copy",))
        if match is None:
            report(Problem("SG103", f"copy '{path[-1]}' is '{quoted(form.copy_)}'", place, "write copy: a -> b"))
            return
        pairs = [("reads", Entry((match[1],)), place), ("writes", Entry((match[2],)), place)]
    else:
        pairs = [
            (role, entry, place)
            for role, entries in (("updates", form.updates), ("reads", form.reads), ("writes", form.writes))
            if entries
            for entry, place in zip(entries, here.places(role, [entry.at for entry in entries]), strict=True)
        ]
    for role, entry, place in pairs:
        fixed = not any("$" in text or "*" in text for text in entry.names)
        yield role, entry, place, Argument(entry.names, entry.is_list, entry.keyword, place) if fixed else None


def _variation(value: Any) -> tuple[int, int]:
    """How many dollars there are in constants, and how long their texts are together."""
    if isinstance(value, str):
        return value.count("$"), len(value)
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    found = [_variation(part) for part in parts]
    return sum(dollars for dollars, _ in found), 1 + sum(length for _, length in found)


def frozen(value: Any, scope: Scope | None = None) -> Any:
    """Constants as a Task holds them: lists as tuples, mappings read-only, `$` forms replaced."""
    if isinstance(value, str):
        return str(value) if scope is None else value_of(str(value), scope) if isinstance(value, Plain) else interpolate(value, scope)
    if isinstance(value, Mapping):
        return MappingProxyType({key: frozen(item, scope) for key, item in value.items()})
    if isinstance(value, tuple):
        return tuple(frozen(item, scope) for item in value)
    return value
