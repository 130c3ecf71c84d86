"""The Python front end: calls on a Graph become a Program, with the keywords of the YAML form and loops instead of `each`.

A mistake in a declaration is remembered with the line that made it; `program()` reports all of them at once, as a spec file does.
"""

from __future__ import annotations

import itertools
import linecache
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, Union

from streamgraph.errors import Location, Problem, SpecError, quoted
from streamgraph.model import Argument, Family, Kind, Output, Program, Stream, Task, Tensor, TensorType, parse_time, parse_type
from streamgraph.validate import check, finish
from streamgraph.views import Item, UntypedBase, view


@dataclass(frozen=True, slots=True)
class Handle:
    """A tensor of a Graph, at one version. `handle[0:4]` is a view. Using a handle whose name was written again is an error."""

    graph: Graph = field(repr=False)
    name: str
    version: int

    def __getitem__(self, items: Item | tuple[Item, ...]) -> Handle:
        """The part of the tensor that step-1 slices and integers cut out, as in the spec's `view`."""
        return self.graph.view(None, self, items if isinstance(items, tuple) else (items,))

    def __iter__(self) -> Any:
        raise TypeError(f"the handle '{self.name}' is one tensor and cannot be iterated; slice it: handle[0:4]")


Name: TypeAlias = Union[str, Handle]
Handles: TypeAlias = Union[Handle, "tuple[Handles, ...]"]
Entry: TypeAlias = Union[Name, "Sequence[Name]", "tuple[Handles, ...]"]
Entries: TypeAlias = Union[Name, Sequence[Any], Mapping[str, Any], None]
"""`reads`, `writes`, `updates`: a name or handle, a list of them (a nested list is passed as one list), or a mapping by keyword."""


class Graph:
    """A program under construction. Tasks run as if one after another, in the order in which they are declared here."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self._tensors: dict[str, Tensor] = {}
        self._families: list[Family] = []
        self._tasks: list[Task] = []
        self._streams: dict[str, Stream] = {}
        self._outputs: list[Output] = []
        self._version: dict[str, int] = {}
        self._problems: list[Problem] = []
        self._places: dict[str, Location] = {}

    # --- tensors ---

    def input(
        self, name: str, type: str | None = None, *, each: Mapping[str, Any] | None = None, device: str = "device", pinned: bool = False,
        init: str | None = None, note: str | None = None,
    ) -> Any:  # fmt: skip
        """A tensor that the caller binds. With `each`, a tuple of handles, nested for two keys. `init` serves `streamgraph.run` only."""
        return self._declare(Kind.INPUT, name, type, each, device, pinned, init, note)

    def buffer(
        self, name: str, type: str, *, each: Mapping[str, Any] | None = None, slots: int | None = None, over: str = "iteration",
        device: str = "device", pinned: bool = False, init: str | None = None, note: str | None = None,
    ) -> Any:  # fmt: skip
        """Storage that exists before the tasks and keeps its address; with `slots` and `over`, a ring whose members take turns in it."""
        return self._declare(Kind.BUFFER, name, type, each, device, pinned, init, note, slots, over)

    def value(
        self, name: str, type: str | None = None, *, each: Mapping[str, Any] | None = None, device: str = "device", pinned: bool = False,
        note: str | None = None,
    ) -> Any:  # fmt: skip
        """What a task returns. Values need no declaration; one can say a type (for views) or that a copy lands in host memory."""
        return self._declare(Kind.VALUE, name, type, each, device, pinned, None, note)

    def resource(self, name: str, *, each: Mapping[str, Any] | None = None, note: str | None = None) -> Any:
        """No tensor: a communicator, a random generator, a workspace. It orders the tasks that use it and is never passed."""
        return self._declare(Kind.RESOURCE, name, None, each, "device", False, None, note)

    def view(self, name: str | None, base: Name, items: Sequence[Item], note: str | None = None) -> Handle:
        """A part of `base`; `handle[0:4]` calls it without a name. Views of views fold to the storage's own tensor."""
        place = _caller()
        base_name = self._resolve(base, place)
        whole = self._tensors.get(base_name)
        spelled = name or f"{base_name}{_spelled(items)}"
        if whole is None:
            self._problems.append(Problem("SG201", f"there is no tensor '{quoted(base_name)}' to view", place))
            return Handle(self, spelled, 0)
        try:
            made = view(spelled, whole, items, note, place)
        except UntypedBase as error:
            self._problems.append(Problem("SG307", str(error), place, f"declare it: graph.value('{base_name}', type)"))
            return Handle(self, spelled, 0)
        except ValueError as error:
            self._problems.append(Problem("SG208", str(error), place))
            return Handle(self, spelled, 0)
        if name is None:
            made = replace(made, name=_view_name(base_name, made))
            if made.name not in self._tensors:
                self._tensors[made.name] = made
        else:
            self._add(made)
        return Handle(self, made.name, self._version.get(made.base or "", 0))

    def stream(self, name: str, *, priority: Literal["high", "normal", "low"] = "normal") -> None:
        """Options of a lane that tasks are pinned to."""
        self._places[f"stream:{name}"] = _caller()
        self._streams[name] = Stream(name, priority)

    # --- tasks ---

    def task(
        self, name: str, run: Callable[..., Any] | str, *, reads: Entries = None, writes: Entries = None, updates: Entries = None,
        const: Mapping[str, Any] | None = None, after: str | Iterable[str] = (), stream: str | None = None, cost: str | float | None = None,
        host: bool = False, note: str | None = None,
    ) -> Any:  # fmt: skip
        """Declare a task: a callable, or the name of an operator that the caller brings. Returns the handle, or handles, it writes.

        `cost` is a time such as "120us", or microseconds as a float.
        """
        place = _caller()
        function = None if isinstance(run, str) else run
        operator = run if isinstance(run, str) else _name_of(run)
        read, update = self._entries(reads, place), self._entries(updates, place)
        written = self._entries(writes, place, writing=True)
        self._tasks.append(
            Task(
                name, operator, read, written, update, tuple((key, _frozen(value)) for key, value in (const or {}).items()),
                (after,) if isinstance(after, str) else tuple(after), stream, self._cost(cost, place), host, note, function, place,
            )
        )  # fmt: skip
        self._rewrite(written)
        handles = tuple(self._handle(member) for entry in (*written, *update) for member in entry.tensors)
        return handles[0] if len(handles) == 1 else handles

    def copy(
        self, name: str, source: Name, target: Name, *, stream: str | None = None, after: str | Iterable[str] = (),
        cost: str | float | None = None, host: bool = False, note: str | None = None,
    ) -> Handle:  # fmt: skip
        """Copy one tensor to another, and return the target: if it was not declared, a value where the source is, or on the GPU."""
        place = _caller()
        read, written = self._entries(source, place), self._entries(target, place, writing=True)
        after = (after,) if isinstance(after, str) else tuple(after)
        cost_us = self._cost(cost, place)
        self._tasks.append(Task(name, "copy", read, written, (), (), after, stream, cost_us, host, note, None, place))
        self._rewrite(written)
        return self._handle(written[0].tensors[0])

    def output(self, tensor: Name, name: str | None = None) -> None:
        """Return the tensor to the caller, under its own name or another."""
        place = _caller()
        of = self._resolve(tensor, place)
        if of == "?":
            return
        self._places[f"output:{name or of}"] = place
        self._outputs.append(Output(name or of, of))

    def program(self) -> Program:
        """The frozen program.

        Raises:
            SpecError: everything that is wrong with the declarations, each with the line that made it.
        """
        made = Program(
            self.name, tuple(self._tensors.values()), tuple(self._tasks), tuple(self._streams.values()), tuple(self._outputs),
            tuple(self._families),
        )  # fmt: skip
        finished = finish(made, self._places)
        errors = [problem for problem in check(finished, self._places) if problem.severity == "error"]
        if self._problems or errors:
            raise SpecError(*self._problems, *errors)
        return finished

    # --- inside ---

    def _declare(
        self, kind: Kind, name: str, type: str | None, each: Mapping[str, Any] | None, device: str, pinned: bool, init: str | None,
        note: str | None, slots: int | None = None, over: str = "iteration",
    ) -> Handles:  # fmt: skip
        place = _caller(3)
        parsed: TensorType | None = None
        if type is not None:
            try:
                parsed = parse_type(type)
            except ValueError as error:
                self._problems.append(Problem("SG106", str(error), place))
        keys = tuple((key, self._items(key, items, place)) for key, items in (each or {}).items())
        members = tuple("@".join(map(str, (name, *combination))) for combination in itertools.product(*(items for _, items in keys)))
        for member in members:
            self._add(Tensor(member, kind, parsed, device, pinned, init, note=note, location=place))
        if keys or slots is not None:
            self._families.append(Family(name, keys, members, slots, over))
        handles: list[Any] = [self._handle(member) for member in members]
        for _, items in reversed(keys[1:]):
            handles = [tuple(handles[start : start + len(items)]) for start in range(0, len(handles), len(items))]
        return tuple(handles) if keys else handles[0]

    def _items(self, key: str, items: Any, place: Location) -> tuple[int | str, ...]:
        result = tuple(range(items)) if isinstance(items, int) and not isinstance(items, bool) else tuple(items)
        if not result:
            self._problems.append(Problem("SG209", f"each: '{key}' has no items", place, "give a number from 1, or a list"))
        return result

    def _add(self, tensor: Tensor) -> None:
        before = self._tensors.get(tensor.name)
        if before is not None and before.location is not None:
            related = (("first declared here", before.location),)
            self._problems.append(Problem("SG205", f"the tensor '{tensor.name}' is declared twice", tensor.location, None, related))
            return
        self._tensors[tensor.name] = tensor

    def _handle(self, name: str) -> Handle:
        tensor = self._tensors.get(name)
        return Handle(self, name, self._version.get((tensor.base if tensor else None) or name, 0))

    def _resolve(self, entry: object, place: Location) -> str:
        if isinstance(entry, str):
            return entry
        if not isinstance(entry, Handle) or entry.graph is not self:
            what = "a handle of another Graph" if isinstance(entry, Handle) else f"a {type(entry).__name__}"
            of_one = "a task returns a handle for each tensor that it writes or updates: take the one that is meant, or its name"
            remedy = of_one if isinstance(entry, tuple) else None
            self._problems.append(Problem("SG103", f"expected a tensor's name or handle, got {what}", place, remedy))
            return "?"
        if self._handle(entry.name).version != entry.version:
            remedy = f"use the handle that the task writing it returned, or the name '{entry.name}' for the newest version"
            self._problems.append(Problem("SG211", f"this handle of '{entry.name}' is of an older version", place, remedy))
        return entry.name

    def _entries(self, entries: Entries, place: Location, writing: bool = False) -> tuple[Argument, ...]:
        if entries is None:
            return ()
        named: list[tuple[str | None, Any]]
        if isinstance(entries, Mapping):
            named = list(entries.items())
        else:
            named = [(None, entries)] if isinstance(entries, str | Handle) else [(None, entry) for entry in entries]
        result: list[Argument] = []
        for keyword, entry in named:
            if isinstance(entry, str | Handle):
                result.append(self._argument(entry, keyword, place, writing))
            elif isinstance(entry, Sequence):
                members = tuple(self._resolve(member, place) for member in entry)
                result.append(Argument(members, True, keyword, place))
            else:
                self._resolve(entry, place)  # reports what it is
        return tuple(result)

    def _argument(self, entry: Name, keyword: str | None, place: Location, writing: bool) -> Argument:
        if isinstance(entry, str) and "@*" in entry:
            pattern = entry.split("@")
            members = tuple(name for name in self._tensors if _matches(name.split("@"), pattern))
            if not members:
                self._problems.append(Problem("SG201", f"no tensor matches '{quoted(entry)}'", place))
            return Argument(members, True, keyword, place)
        # A handle that is only written names the tensor; its version does not matter.
        name = entry.name if writing and isinstance(entry, Handle) and entry.graph is self else self._resolve(entry, place)
        return Argument((name,), False, keyword, place)

    def _rewrite(self, written: tuple[Argument, ...]) -> None:
        for entry in written:
            for name in entry.tensors:
                tensor = self._tensors.get(name)
                if tensor is None and name != "?":
                    self._tensors[name] = tensor = Tensor(name, Kind.VALUE)
                if tensor is not None and tensor.kind in (Kind.VALUE, Kind.INPUT):
                    self._version[name] = self._version.get(name, 0) + 1

    def _cost(self, cost: str | float | None, place: Location) -> float | None:
        if isinstance(cost, str):
            try:
                return parse_time(cost)
            except ValueError as error:
                self._problems.append(Problem("SG104", str(error), place))
                return None
        return None if cost is None else float(cost)


def _caller(depth: int = 2) -> Location:
    """The line of the user's code that called a method of Graph, `depth` frames up."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, line).rstrip("\n")
    return Location(Path(file).name, line, len(text) - len(text.lstrip()) + 1, max(1, len(text.strip())), text)


def _name_of(function: Callable[..., Any]) -> str:
    """What messages and saved schedules call a callable: its own name, or its class's, as far as it is a name."""
    name = getattr(function, "__name__", None) or type(function).__name__
    return name if name.isidentifier() else "function"


def _view_name(base: str, made: Tensor) -> str:
    """A name for a view without one: `w__0_4__3` is `w[0:4, 3]` of the storage's own tensor."""
    parts = [str(part) if isinstance(part, int) else f"{part[0]}_{part[1]}" for part in made.index]
    stem, *members = (made.base or base).split("@")
    return "@".join(["__".join([stem, *parts]), *members])


def _spelled(items: Sequence[Item]) -> str:
    return "_".join(str(item) if isinstance(item, int) else f"{item.start}_{item.stop}" for item in items)


def _matches(name: list[str], pattern: list[str]) -> bool:
    return len(name) == len(pattern) and all(want in ("*", part) for part, want in zip(name, pattern, strict=True))


def _frozen(value: Any) -> Any:
    """A constant that nobody can change afterwards, as the YAML form makes it: tuples and read-only mappings all the way down."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, Mapping):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return value
