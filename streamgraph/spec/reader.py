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
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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

LARGEST_FILE = 16 << 20  # bytes
DEEPEST = 32
LONGEST_SCALAR = 64 << 10  # characters
LONGEST_KEY = 256
MOST_EVENTS = 20_000_000
_NULL = frozenset({"", "~", "null", "Null", "NULL"})

# What YAML does not allow, and what it takes for a line break though editors do not (NEL, LS, PS): positions would drift.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")

Path: TypeAlias = "tuple[str | int, ...]"
Spot: TypeAlias = "tuple[int, int, int]"
"""0-based line, 0-based column, width."""

# libyaml where PyYAML was built with it (ten times faster), else its own parser in Python; the events are the same.
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Plain(str):
    """A scalar that was written without quotes."""

    __slots__ = ()


class Map(dict[str, Any]):
    """A mapping with the spots of its keys and values."""

    __slots__ = ("spots",)

    def __init__(self) -> None:
        super().__init__()
        self.spots: dict[str, tuple[Spot, Spot]] = {}


class Seq(list[Any]):
    """A list with the spots of its items."""

    __slots__ = ("spots",)

    def __init__(self) -> None:
        super().__init__()
        self.spots: list[Spot] = []


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says, and where. Data that did not come from a file has no places."""

    data: Map
    file: str
    lines: tuple[str, ...] = field(default=(), repr=False)

    def place(self, path: Path) -> Location | None:
        """Where the value at `path` stands, or the nearest thing around it that has a place."""
        return self._find(path, 1)

    def key_place(self, path: Path) -> Location | None:
        """Where the key of the value at `path` stands, or the nearest thing around it that has a place."""
        return self._find(path, 0)

    def _find(self, path: Path, side: int) -> Location | None:
        node: Any = self.data
        spot: Spot | None = (0, 0, 1) if self.lines else None
        for part in path:
            if type(node) is Map and part in node.spots:
                spot = node.spots[part][side]
            elif type(node) is Seq and isinstance(part, int) and part < len(node.spots):
                spot = node.spots[part]
            else:
                break
            node = node[part]
        return None if spot is None else _location(self.file, self.lines, spot)


def _location(file: str, lines: tuple[str, ...], spot: Spot) -> Location:
    line, column, width = spot
    return Location(file, line + 1, column + 1, width, lines[line] if line < len(lines) else "")


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
        raise SpecError(Problem("SG010", what, _location(file, lines, (line, column, 1)), "remove it, or write it as an escape in quotes"))
    builder = _Builder(file, lines)
    try:
        for number, event in enumerate(yaml.parse(text, Loader=_PARSER)):
            if number > MOST_EVENTS or not builder.take(event):
                break
    except yaml.YAMLError as error:
        builder.problems.append(_syntax(error, file, lines))
    if not builder.problems and not isinstance(builder.root, Map):
        found = "nothing" if builder.root is None else "a list" if isinstance(builder.root, Seq) else "a single value"
        remedy = "begin with `streamgraph: 1`, then `tensors:` and `tasks:`"
        builder.problem("SG009", f"a spec is a mapping; this file holds {found}", (0, 0, 1), remedy)
    if builder.problems:
        raise SpecError(*builder.problems)
    return Document(builder.root, file, lines)


class _Builder:
    """Puts events together. `stack` holds the open containers; a mapping waits for a key, or for the value of `keys[-1]`."""

    def __init__(self, file: str, lines: tuple[str, ...]) -> None:
        self.file, self.lines = file, lines
        self.problems: list[Problem] = []
        self.root: Any = None
        self.stack: list[Map | Seq] = []
        self.keys: list[tuple[str, Spot] | None] = []
        self.documents = 0

    def problem(self, code: str, message: str, spot: Spot, remedy: str, related: tuple[tuple[str, Location], ...] = ()) -> None:
        self.problems.append(Problem(code, message, _location(self.file, self.lines, spot), remedy, related))

    def take(self, event: Any) -> bool:
        """Take one event; False when reading on makes no sense."""
        kind = type(event)
        if kind is ScalarEvent:
            return self._scalar(event)
        if kind is MappingStartEvent or kind is SequenceStartEvent:
            return self._open(event)
        if kind is MappingEndEvent or kind is SequenceEndEvent:
            self.stack.pop()
            self.keys.pop()
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

    def _scalar(self, event: Any) -> bool:
        spot = _spot(event)
        if event.tag is not None or event.anchor is not None:
            self._properties(event, spot)
        waits_for_key = bool(self.stack) and self.keys[-1] is None and isinstance(self.stack[-1], Map)
        limit = LONGEST_KEY if waits_for_key else LONGEST_SCALAR
        if len(event.value) > limit:
            what = "key" if waits_for_key else "value"
            self.problem("SG007", f"this {what} has {len(event.value)} characters; {limit} are allowed", spot, "shorten it")
            return False
        if waits_for_key:
            if event.value == "<<" and event.implicit[0]:
                self.problem("SG004", "merge keys are not allowed", spot, "write the keys out, or use params and each")
            self.keys[-1] = (sys.intern(event.value), spot)  # the same few keys in every task
        elif event.style or not event.implicit[0]:  # the style of a plain scalar is None or "", by parser
            self._add(event.value, spot)
        else:
            self._add(None if event.value in _NULL else Plain(event.value), spot)
        return True

    def _open(self, event: Any) -> bool:
        spot = _spot(event)
        self._properties(event, spot)
        if len(self.stack) >= DEEPEST:
            self.problem("SG005", f"nested deeper than {DEEPEST} levels", spot, "a spec needs far less: flatten it")
            return False
        if self.stack and self.keys[-1] is None and isinstance(self.stack[-1], Map):
            self.problem("SG103", "a key must be text, not a list or a mapping", spot, "in a block, quote a key that begins with [ or {")
            return False
        container: Map | Seq = Map() if isinstance(event, MappingStartEvent) else Seq()
        self._add(container, spot)
        self.stack.append(container)
        self.keys.append(None)
        return True

    def _properties(self, event: Any, spot: Spot) -> None:
        if event.tag is not None:
            self.problem("SG003", f"the tag '{quoted(event.tag)}' is not allowed", spot, "a spec is plain data: leave the tag out")
        if event.anchor is not None:
            self.problem("SG004", f"the anchor '&{quoted(event.anchor)}' is not allowed", spot, "use params and each instead")

    def _add(self, value: Any, spot: Spot) -> None:
        if not self.stack:
            self.root = value
            return
        top = self.stack[-1]
        if isinstance(top, Seq):
            top.append(value)
            top.spots.append(spot)
            return
        waiting = self.keys[-1]
        if waiting is None:  # an alias as a key, reported already
            self.keys[-1] = ("", spot)
            return
        key, key_spot = waiting
        self.keys[-1] = None
        if key in top:
            first = _location(self.file, self.lines, top.spots[key][0])
            remedy = "give one of the two another name, or remove it"
            self.problem("SG002", f"the key '{quoted(key)}' stands twice", key_spot, remedy, (("first here", first),))
            return
        # A container is best pointed at by its key: in a block its own first character is that of another key.
        top[key] = value
        top.spots[key] = (key_spot, key_spot if isinstance(value, (Map, Seq)) else spot)


def _spot(event: Any) -> Spot:
    start, end = event.start_mark, event.end_mark
    line, column = start.line, start.column
    return (line, column, end.column - column or 1) if end.line == line else (line, column, 1)


_QUOTES = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|(?:^|\s)#.*")


def _syntax(error: yaml.YAMLError, file: str, lines: tuple[str, ...]) -> Problem:
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or str(error)
    context = getattr(error, "context", None)
    line, column = (min(mark.line, len(lines) - 1), mark.column) if mark is not None else (0, 0)
    text = lines[line] if lines else ""
    place = _location(file, lines, (line, column, 1))
    if "\t" in text[: len(text) - len(text.lstrip())]:
        return Problem("SG011", "this line is indented with a tab", place, "use spaces")
    if "nesting depth" in said:  # libyaml's own limit; it looks ahead, past ours
        return Problem("SG005", f"nested deeper than {DEEPEST} levels", place, "a spec needs far less: flatten it")
    remedy = _trap(text, said, context) or (_trap(lines[line - 1], said, context) if line and "flow" in str(context) else None)
    return Problem("SG001", f"this is not YAML: {f'{context}, ' if context else ''}{said}", place, remedy or _general(text, said))


def _trap(text: str, said: str, context: object) -> str | None:
    """The help for brackets inside brackets, which no YAML reader takes without quotes."""
    bare = _QUOTES.sub("", text)
    if "flow" not in str(context) and "flow" not in said and "block" not in str(context):
        return None
    if re.search(r"[\[{][^\[\]{}]*\$\{", bare):
        return "`{` is not allowed inside [ ] and { }: write $name instead of ${name}, or quote the item"
    if re.search(r"[\[{,:]\s*[\w.@$]+\[", bare):
        return 'inside [ ] and { } a text with brackets must be quoted: type: "f16[8, 3]", view: "batch[0:2]"'
    return None


def _general(text: str, said: str) -> str:
    if "mapping values are not allowed" in said:
        return "quote a text that holds ': ', and check that the keys of one mapping are indented alike"
    if "cannot start any token" in said:
        return "quote a text that begins with @, %, ` or another special character"
    if "[" in text or "{" in text:
        return "close every bracket, and quote texts that hold [ ] { } or a comma"
    return "check the indentation, the quotes and the colons of this line and the one before"


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
