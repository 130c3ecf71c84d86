"""Text becomes plain data that knows where it stands in the file. A spec is data written by someone you may not trust.

The file is read as a stream of YAML events, never loaded: no tags, anchors, aliases or merge keys, no duplicate keys, one document, keys
that are text, bounded depth and size. Scalars are not guessed at: an unquoted one is a `Plain` string, which the schema types where it
wants a number or a flag, so `on`, `12:30`, `1e3` and `010` mean what they say. Only an empty scalar, `~` and `null` become None.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from typing import Any

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from streamgraph.errors import Location, Problem, SpecError, quoted
from streamgraph.spec.document import Document, Map, Plain, Seq, Spot, location
from streamgraph.spec.syntax import syntax_problem

LARGEST_FILE = 16 << 20  # bytes
DEEPEST = 32
LONGEST_SCALAR = 64 << 10  # characters
LONGEST_KEY = 256
_NULL = frozenset({"", "~", "null", "Null", "NULL"})

# What YAML does not allow, and what it takes for a line break though editors do not (NEL, LS, PS): positions would drift.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")

# libyaml where PyYAML was built with it (ten times faster), else its own parser in Python; the events are the same.
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_file(path: str | os.PathLike[str]) -> str:
    """The text of a regular file of at most 16 MiB.

    Raises:
        SpecError: SG006 if it cannot be read, SG010 if it is not UTF-8.
    """
    name = quoted(os.fspath(path))
    try:
        # Not blocking, so that a FIFO cannot hang us; looked at after opening, so that it cannot be exchanged in between.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(Problem("SG006", f"'{name}' cannot be read: {reason.lower()}", None, "check the path")) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SpecError(Problem("SG006", f"'{name}' is not a regular file", None, "give the path of a spec file"))
    with os.fdopen(handle, "rb") as stream:
        raw = stream.read(LARGEST_FILE + 1)
    if len(raw) > LARGEST_FILE:
        raise SpecError(Problem("SG006", f"'{name}' is larger than {LARGEST_FILE >> 20} MiB", None, "build large programs in Python"))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        place = Location(name, line)
        raise SpecError(Problem("SG010", "the file is not UTF-8 text", place, "save it as UTF-8")) from error


def read(text: str, file: str) -> Document:
    """The data in a spec's text.

    Raises:
        SpecError: with everything that is wrong up to the first place where the text stops being YAML.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = tuple(text.split("\n"))
    if len(text) > LARGEST_FILE:
        raise SpecError(Problem("SG006", f"the text is longer than {LARGEST_FILE >> 20} Mi characters", None, "build it in Python"))
    bad = _UNPRINTABLE.search(text)
    if bad is not None:
        line = text.count("\n", 0, bad.start())
        column = bad.start() - (text.rfind("\n", 0, bad.start()) + 1)
        what = f"the character U+{ord(bad[0]):04X} is not allowed"
        raise SpecError(Problem("SG010", what, location(file, lines, (line, column, 1)), "remove it, or write it as an escape in quotes"))
    builder = _Builder(file, lines)
    try:
        next_event, take, scalar = _PARSER(text).get_event, builder.take, builder.scalar  # `yaml.parse` asks twice for each event
        while (event := next_event()) is not None:
            if not (scalar(event) if type(event) is ScalarEvent else take(event)):
                break
    except yaml.YAMLError as error:
        builder.problems.append(syntax_problem(error, file, lines, DEEPEST))
    if not builder.problems and not isinstance(builder.root, Map):
        found = "nothing" if builder.root is None else "a list" if isinstance(builder.root, Seq) else "a single value"
        remedy = "begin with `streamgraph: 1`, then `tensors:` and `tasks:`"
        builder.problem("SG009", f"a spec is a mapping; this file holds {found}", (0, 0, 1), remedy)
    if builder.problems:
        raise SpecError(*builder.problems)
    return Document(builder.root, file, lines, (0, 0, 1))


class _Builder:
    """Puts events together. `stack` holds the open containers, `top` the innermost; `key` is the key that waits for its value there."""

    def __init__(self, file: str, lines: tuple[str, ...]) -> None:
        self.file, self.lines = file, lines
        self.problems: list[Problem] = []
        self.root: Any = None
        self.stack: list[Map | Seq] = []
        self.top: Map | Seq | None = None
        self.key: tuple[str, Spot] | None = None
        self.documents = 0

    def problem(self, code: str, message: str, spot: Spot, remedy: str, related: tuple[tuple[str, Location], ...] = ()) -> None:
        self.problems.append(Problem(code, message, location(self.file, self.lines, spot), remedy, related))

    def take(self, event: Any) -> bool:
        """Take one event that is no scalar; False when reading on makes no sense."""
        kind = type(event)
        if kind is MappingStartEvent or kind is SequenceStartEvent:
            return self._open(event)
        if kind is MappingEndEvent or kind is SequenceEndEvent:
            self.stack.pop()
            self.top, self.key = self.stack[-1] if self.stack else None, None
        elif kind is AliasEvent:
            remedy = "write the value again, or use params and each; quote a text that begins with *"
            self.problem("SG004", "aliases are not allowed", _spot(event), remedy)
            self._add(None, _spot(event))
        elif kind is DocumentStartEvent:
            self.documents += 1
            if event.tags:
                self.problem("SG003", "tag directives are not allowed", _spot(event), "a spec is plain data: leave the tag out")
            if self.documents > 1:
                self.problem("SG008", "the file holds a second document", _spot(event), "write each spec into its own file")
                return False
        return True

    def scalar(self, event: Any) -> bool:
        """Take a scalar, as most events are: nothing is called here that can be written out."""
        value, start, end = event.value, event.start_mark, event.end_mark
        line, column = start.line, start.column
        spot = (line, column, end.column - column or 1) if end.line == line else (line, column, 1)
        if event.tag is not None or event.anchor is not None:
            self._properties(event, spot)
        waits_for_key = self.key is None and type(self.top) is Map
        if len(value) > (LONGEST_KEY if waits_for_key else LONGEST_SCALAR):
            what, limit = ("key", LONGEST_KEY) if waits_for_key else ("value", LONGEST_SCALAR)
            self.problem("SG007", f"this {what} has {len(value)} characters; {limit} are allowed", spot, "shorten it")
            return False
        if waits_for_key:
            if value == "<<" and event.implicit[0]:
                self.problem("SG004", "merge keys are not allowed", spot, "write the keys out, or use params and each")
            self.key = (sys.intern(value), spot)  # the same few keys in every task
            return True
        if not event.style and event.implicit[0]:  # the style of a plain scalar is None or "", by parser
            value = None if value in _NULL else Plain(value)
        top = self.top
        if type(top) is Seq:
            top.append(value)
            top.spots.append(spot)
        elif type(top) is Map and self.key is not None and self.key[0] not in top:
            key, key_spot = self.key
            self.key = None
            top[key] = value
            top.spots[key] = (key_spot, spot)
        else:
            self._add(value, spot)
        return True

    def _open(self, event: Any) -> bool:
        spot = _spot(event)
        self._properties(event, spot)
        if len(self.stack) >= DEEPEST:
            self.problem("SG005", f"nested deeper than {DEEPEST} levels", spot, "a spec needs far less: flatten it")
            return False
        if self.key is None and type(self.top) is Map:
            self.problem("SG103", "a key must be text, not a list or a mapping", spot, "in a block, quote a key that begins with [ or {")
            return False
        container: Map | Seq = Map() if isinstance(event, MappingStartEvent) else Seq()
        self._add(container, spot)
        self.stack.append(container)
        self.top = container
        return True

    def _properties(self, event: Any, spot: Spot) -> None:
        if event.tag is not None:
            self.problem("SG003", f"the tag '{quoted(event.tag)}' is not allowed", spot, "a spec is plain data: leave the tag out")
        if event.anchor is not None:
            self.problem("SG004", f"the anchor '&{quoted(event.anchor)}' is not allowed", spot, "use params and each instead")

    def _add(self, value: Any, spot: Spot) -> None:
        top = self.top
        if top is None:
            self.root = value
            return
        if type(top) is Seq:
            top.append(value)
            top.spots.append(spot)
            return
        assert type(top) is Map
        if self.key is None:  # an alias as a key, reported already
            self.key = ("", spot)
            return
        key, key_spot = self.key
        self.key = None
        if key in top:
            first = location(self.file, self.lines, top.spots[key][0])
            remedy = "give one of the two another name, or remove it"
            self.problem("SG002", f"the key '{quoted(key)}' stands twice", key_spot, remedy, (("first here", first),))
            return
        # A container is best pointed at by its key: in a block its own first character is that of another key.
        top[key] = value
        top.spots[key] = (key_spot, key_spot if type(value) is Map or type(value) is Seq else spot)


def _spot(event: Any) -> Spot:
    start, end = event.start_mark, event.end_mark
    line, column = start.line, start.column
    return (line, column, end.column - column or 1) if end.line == line else (line, column, 1)


def read_mapping(source: Mapping[str, Any], file: str = "<mapping>") -> Document:
    """The data of a mapping made in Python, copied, with the same limits as a file.

    Raises:
        SpecError: SG005 nested too deeply, SG007 too long, SG103 not plain data.
    """
    root = Map()
    problems: list[Problem] = []
    pending: list[tuple[Any, Map | Seq, str, int]] = [(source, root, "", 1)]
    while pending and len(problems) < 100:
        value, into, where, depth = pending.pop()
        if depth > DEEPEST:
            problems.append(Problem("SG005", f"{where or 'the spec'} is nested deeper than {DEEPEST} levels", None, "flatten it"))
            continue
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            inside = f"{where}.{quoted(key)}" if where else quoted(key)
            if isinstance(into, Map) and (not isinstance(key, str) or len(key) > LONGEST_KEY):
                what = f"the key '{quoted(key)}' is not a text of up to {LONGEST_KEY} characters"
                problems.append(Problem("SG103", what, None, "use text"))
                continue
            plain: Any = item
            if isinstance(item, (Mapping, list, tuple)):
                plain = Map() if isinstance(item, Mapping) else Seq()
                pending.append((item, plain, inside, depth + 1))
            elif item is not None and not isinstance(item, (str, bool, int, float)):
                what = f"{inside} is {type(item).__name__}, which is not plain data"
                problems.append(Problem("SG103", what, None, "use text, numbers, true, false, lists and mappings"))
                continue
            elif isinstance(item, str) and len(item) > LONGEST_SCALAR:
                problems.append(Problem("SG007", f"{inside} has {len(item)} characters; {LONGEST_SCALAR} are allowed", None, "shorten it"))
                continue
            if isinstance(plain, str) and "$" in plain:
                plain = Plain(plain)  # a mapping has no quotes to tell `$n` the number from "$n" the text
            if isinstance(into, Map):
                into[str(key)] = plain
            else:
                into.append(plain)
    if problems:
        raise SpecError(*problems)
    return Document(root, file)
