"""Flat: what the text of generated functions is made of, whatever they issue: lines, names for what is bound to them, a task's call.

Everything that no call of a function changes is bound as a default (`f0=f0`), and so is a local. Whoever writes a function says how its
tensors are called (`storage`, `target`); names of streams and events keep their own where these can stand in a program.
"""

from __future__ import annotations

import keyword
import linecache
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from traceback import walk_tb
from types import CodeType
from typing import Any

from streamgraph.calls import Operand, Slot
from streamgraph.errors import quoted
from streamgraph.executors.direct import Direct, Symbol
from streamgraph.model import Index, Kind
from streamgraph.operators import Operator
from streamgraph.storages import Storage

PART = 400  # tasks in one function: CPython compiles functions in time that grows faster than their length
NO_STEP = -1


@dataclass
class Part:
    """One function while it is written: body lines with their steps, and which storages and names it uses."""

    lines: list[tuple[str, int]] = field(default_factory=list)
    names: dict[str, None] = field(default_factory=dict)
    loaded: dict[int, None] = field(default_factory=dict)
    made: dict[int, None] = field(default_factory=dict)
    views: dict[tuple[int, Index], str] = field(default_factory=dict)


class Flat:
    """Writes the functions `parts`, line by line. `operators` are in declaration order."""

    def __init__(self, storages: Sequence[Storage], operators: Sequence[Operator], direct: Direct) -> None:
        self.storages, self.operators, self.direct = storages, operators, direct
        self.names: dict[Symbol, str] = {}
        self.counts: dict[str, int] = {}
        self.parts = [Part()]

    def storage(self, number: int) -> str:
        """How a tensor that exists is called; it is a buffer's name where the storage is one."""
        raise NotImplementedError

    def target(self, number: int) -> str:
        """What a value is assigned to that the next call makes."""
        raise NotImplementedError

    def function(
        self, name: str, arguments: str, index: int, before: Sequence[str] = (), after: Sequence[str] = ()
    ) -> list[tuple[str, int]]:
        """The finished lines of one part."""
        part = self.parts[index]
        parameters = ", ".join([*([arguments] if arguments else []), *(f"{bound}={bound}" for bound in part.names)])
        body = [*((f"    {line}", NO_STEP) for line in before), *part.lines, *((f"    {line}", NO_STEP) for line in after)]
        return [(f"def {name}({parameters}):", NO_STEP), *(body or [("    pass", NO_STEP)])]

    def task(self, task: int, lane: str, number: int) -> None:
        """The call of a task, whose lane is current; `number` is its step."""
        call = self.operators[task].call
        arguments = [self._slot(slot, number) for slot in call.positional]
        spread: list[str] = []
        for name, slot in call.keywords:
            _keyword(name, self._slot(slot, number), arguments, spread)
        for place, (name, value) in enumerate(call.const):
            _keyword(name, _literal(value) or self.name(("constant", str(task), str(place))), arguments, spread)
        if spread:
            arguments.append(f"**{{{', '.join(spread)}}}")
        targets = [self.target(returned.storage) for returned in call.returns]
        result = f"{', '.join(targets)}{',' if call.returns_sequence and len(targets) == 1 else ''} = " if targets else ""
        self.line(f"{result}{self.name(('function', str(task)))}({', '.join(arguments)})", f"{call.task} @{lane}", number)
        self.parts[-1].made.update(dict.fromkeys(returned.storage for returned in call.returns))

    def _slot(self, slot: Slot, number: int) -> str:
        if isinstance(slot, Operand):
            return self._operand(slot, number)
        items = [self._slot(item, number) for item in slot.items]
        return f"[{', '.join(items)}]" if slot.is_list else f"({''.join(item + ', ' for item in items)})"

    def _operand(self, operand: Operand, number: int) -> str:
        """The name of a tensor or of a view of it, which is cut at its first use in the part."""
        storage = operand.storage
        if not operand.index:
            return self.storage(storage)
        if self.storages[storage].kind is Kind.BUFFER:
            return self.name(("view", str(storage), _subscript(operand.index)))
        views = self.parts[-1].views
        key = (storage, operand.index)
        if key not in views:
            name = f"v{storage}_{sum(of == storage for of, _ in views)}"
            self.line(f"{name} = {self.storage(storage)}[{_subscript(operand.index)}]", operand.tensor, number)
            views[key] = name
        return views[key]

    def views_of(self, number: int) -> list[str]:
        """The views of a storage that this part has cut."""
        return [name for (storage, _), name in self.parts[-1].views.items() if storage == number]

    def call(self, symbols: Sequence[Symbol], why: str, step: int) -> None:
        """One call, of what the first symbol stands for."""
        function, *arguments = map(self.name, symbols)
        self.line(f"{function}({', '.join(arguments)})", why, step)

    def line(self, code: str, why: str, step: int) -> None:
        """One line, with the reason behind it."""
        text = quoted(re.sub(r"\s+# ", ": ", why), 200)
        self.parts[-1].lines.append((f"    {code:<46}  # {text}" if text else f"    {code}", step))

    def name(self, symbol: Symbol) -> str:
        """The name of what stands behind a symbol; one name for each, a parameter of every part that uses it."""
        if symbol not in self.names:
            prefix = _PREFIX.get(symbol[0], symbol[0])
            number = self.counts.get(prefix, 0)
            self.counts[prefix] = number + 1
            own = f"{prefix}_{symbol[-1]}"
            speaks = symbol[0] in _SPEAKS and own.isascii() and own.isidentifier()
            self.names[symbol] = symbol[0] if len(symbol) == 1 else own if speaks else f"{prefix}{number}"
        name = self.names[symbol]
        self.parts[-1].names[name] = None
        return name


_PREFIX = {"function": "f", "constant": "k", "buffer": "b", "view": "u"}
_SPEAKS = frozenset({"stream", "id", "key", "event", "record", "wait", "synchronize", "cells"})


def _keyword(name: str, text: str, arguments: list[str], spread: list[str]) -> None:
    # Keywords keep their order, so what follows one that has to be spread is spread too.
    if name.isidentifier() and not keyword.iskeyword(name) and not spread:
        arguments.append(f"{name}={text}")
    else:
        spread.append(f"{name!r}: {text}")


def _literal(value: object) -> str | None:
    """A constant as it can stand in the text; None for what has to be bound."""
    simple = value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value))
    return repr(value) if simple or (type(value) is str and len(value) < 40 and value.isprintable()) else None


def _subscript(index: Index) -> str:
    """What stands between the brackets: `0:2, 3`."""
    return ", ".join(str(part) if isinstance(part, int) else f"{part[0]}:{part[1]}" for part in index)


def index_of(subscript: str) -> Index:
    """The index that stands between the brackets."""
    return tuple(
        int(part) if ":" not in part else (int(part.partition(":")[0]), int(part.partition(":")[2])) for part in subscript.split(", ")
    )


def code_of(text: str, file: str) -> CodeType:
    """The generated text compiled; tracebacks show its lines until somebody takes `file` out of `linecache.cache`."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return compile(text, file, "exec", dont_inherit=True)


def left_in(error: BaseException, file: str) -> tuple[int, dict[str, Any]]:
    """The line of the generated text `file` where an error came out of it, and the locals there, which its traceback keeps no longer.

    0 and none if the error does not come out of that text.
    """
    for frame, line in walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file:
            found = frame.f_locals
            held = dict(found)
            # The traceback keeps the frame, and the frame must not keep the tensors.
            frame.clear()
            if isinstance(found, dict):  # up to Python 3.12 a copy, which the frame keeps too
                found.clear()
            return line, held
    return 0, {}
