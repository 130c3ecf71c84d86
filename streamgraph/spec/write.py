"""A Program becomes a spec again, in its canonical form: expanded, without params, such that loading it gives an equal program.

Tasks stand one by one (`upload@0`). A family of tensors that are alike is one entry with `each`; where they differ, its members stand one
by one and the family's own entry only gathers them. What loading makes by itself is left out: the copies of outputs, and plain values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from streamgraph.errors import Problem, SpecError, quoted
from streamgraph.model import OUTPUT_PREFIX, Argument, Family, Kind, Program, Task, Tensor
from streamgraph.spec.interpolate import LARGEST, combinations, member
from streamgraph.spec.reader import DEEPEST

_DECIMALS = 30  # digits after the point that a time may have


def to_mapping(program: Program) -> dict[str, Any]:
    """The program as plain data in the form of a spec. Python callables are written as the operator's name.

    Raises:
        SpecError: SG103, a constant that is not plain data.
    """
    generated = {output.tensor for output in program.outputs if output.tensor == OUTPUT_PREFIX + output.name}
    tasks = [task for task in program.tasks if task.name not in generated]
    tensors = _declared([tensor for tensor in program.tensors if tensor.name not in generated], tasks, program.families)
    result: dict[str, Any] = {"streamgraph": 1, "name": program.name}
    declared = _tensors(tensors, program.families)
    if declared:
        result["tensors"] = declared
    if tasks:
        result["tasks"] = {task.name: _task(task) for task in tasks}
    if program.streams:
        result["streams"] = {stream.name: {"priority": stream.priority} for stream in program.streams}
    if program.outputs:
        source = {task.name: task.reads[0].tensors[0] for task in program.tasks if task.name in generated}
        named = {output.name: source.get(output.tensor, output.tensor) for output in program.outputs}
        result["outputs"] = list(named) if all(name == of for name, of in named.items()) else named
    return result


# --- tensors ------------------------------------------------------------------------------------------------------------------------


def _declared(tensors: list[Tensor], tasks: list[Task], families: tuple[Family, ...]) -> list[Tensor]:
    """The tensors that must be declared: all but the longest tail that loading would add by itself, in the order of first writes."""
    order: dict[str, int] = {}
    for task in tasks:
        for entry in task.writes:
            for name in entry.tensors:
                order.setdefault(name, len(order))
    in_family = {name for family in families for name in family.members}
    stop, next_write = len(tensors), len(order)
    while stop:
        tensor = tensors[stop - 1]
        plain = (tensor.kind, tensor.type, tensor.device, tensor.pinned, tensor.init, tensor.note) == (
            Kind.VALUE, None, "device", False, None, None,
        )  # fmt: skip
        if not plain or tensor.name in in_family or order.get(tensor.name, next_write) >= next_write:
            break
        next_write = order[tensor.name]
        stop -= 1
    return tensors[:stop]


def _tensors(tensors: list[Tensor], families: tuple[Family, ...]) -> dict[str, Any]:
    place = {tensor.name: number for number, tensor in enumerate(tensors)}
    whole = [family for family in families if _alike(family, tensors, place)]
    starts = [place[family.members[0]] for family in whole]
    if whole != list(families[: len(whole)]) or starts != sorted(starts):
        whole = [family for family in whole if not family.keys]  # families come back in the order of their entries
    starting = {family.members[0]: family for family in whole}
    inside = {name for family in whole for name in family.members}
    result: dict[str, Any] = {}
    for tensor in tensors:
        family = starting.get(tensor.name)
        if family is not None:
            result[family.name] = _entry(tensor, family)
        elif tensor.name not in inside:
            result[tensor.name] = _entry(tensor, None)
    written = {family.name for family in whole}
    for family in families:
        if family.name not in written:
            result[family.name] = _ring(family)
    return result


def _alike(family: Family, tensors: list[Tensor], place: Mapping[str, int]) -> bool:
    """Whether one entry with `each` says the same: members that stand together, in order, and differ in nothing but the name."""
    expected = tuple(member(family.name, items) for items in combinations(family.keys))
    if expected != family.members or any(name not in place for name in expected):
        return False
    start = place[expected[0]]
    facts = [
        (one.kind, one.type, one.device, one.pinned, one.init, one.base, one.index, one.note)
        for one in tensors[start : start + len(expected)]
    ]  # fmt: skip
    stand_together = tuple(one.name for one in tensors[start : start + len(expected)]) == expected
    return stand_together and all(fact == facts[0] for fact in facts)


def _entry(tensor: Tensor, family: Family | None) -> Any:
    result: dict[str, Any] = {}
    if tensor.kind is Kind.VIEW:
        parts = [str(part) if isinstance(part, int) else f"{part[0]}:{part[1]}" for part in tensor.index]
        result["view"] = f"{tensor.base}[{', '.join(parts)}]"
    else:
        if tensor.type is not None:
            result["type"] = str(tensor.type)
        if tensor.kind is not Kind.BUFFER or tensor.type is None:
            result["kind"] = tensor.kind.value
        if tensor.device != "device":
            result["device"] = tensor.device
        if tensor.pinned:
            result["pinned"] = True
        if tensor.init is not None:
            result["init"] = tensor.init
    if family is not None:
        result.update(_ring(family))
    if tensor.note is not None:
        result["note"] = tensor.note
    return result["type"] if list(result) == ["type"] else result


def _ring(family: Family) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if family.keys:
        result["each"] = {key: list(items) for key, items in family.keys}
    if family.slots is not None:
        result["slots"] = family.slots
        if family.over != "iteration":
            result["over"] = family.over
    return result


# --- tasks --------------------------------------------------------------------------------------------------------------------------


def _task(task: Task) -> dict[str, Any]:
    result: dict[str, Any] = {}
    ends = [*task.reads, *task.writes]
    simple = len(task.reads) == len(task.writes) == 1 and all(not end.is_list and end.keyword is None for end in ends)
    if task.is_copy and simple and not task.updates and not task.const:
        result["copy"] = f"{task.reads[0].tensors[0]} -> {task.writes[0].tensors[0]}"
    else:
        result["run"] = task.operator
        for role, entries in (("updates", task.updates), ("reads", task.reads), ("writes", task.writes)):
            if entries:
                result[role] = _entries(task, entries)
        if task.const:
            result["const"] = {key: _plain(value, task, key, 1) for key, value in task.const}
    if task.after:
        result["after"] = task.after[0] if len(task.after) == 1 else list(task.after)
    if task.stream is not None:
        result["stream"] = task.stream
    if task.cost is not None:
        result["cost"] = _time(task.cost)
    if task.host:
        result["host"] = True
    if task.note is not None:
        result["note"] = task.note
    return result


def _entries(task: Task, entries: tuple[Argument, ...]) -> Any:
    named = [list(entry.tensors) if entry.is_list else entry.tensors[0] for entry in entries]
    keywords = [entry.keyword for entry in entries if entry.keyword is not None]
    if not keywords:
        return named[0] if len(named) == 1 and isinstance(named[0], str) else named
    if len(keywords) < len(entries):
        raise SpecError(Problem("SG212", f"task '{task.name}' mixes arguments with and without keyword", task.location, "use one form"))
    return dict(zip(keywords, named, strict=True))


def _plain(value: Any, task: Task, key: str, depth: int) -> Any:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= LARGEST:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, (list, tuple, Mapping)) and depth > DEEPEST - 4:  # the spec, tasks, task and const are four levels
        raise _unwritable(task, key, "nested too deeply")
    if isinstance(value, (list, tuple)):
        return [_plain(item, task, key, depth + 1) for item in value]
    if isinstance(value, Mapping):
        odd = [name for name in value if not isinstance(name, str)]
        if odd:
            raise _unwritable(task, key, f"a mapping with the key {quoted(repr(odd[0]), 40)}")
        return {name: _plain(item, task, key, depth + 1) for name, item in value.items()}
    raise _unwritable(task, key, f"{type(value).__name__} {quoted(repr(value), 40)}")


def _unwritable(task: Task, key: str, what: str) -> SpecError:
    message = f"constant '{quoted(key)}' of task '{task.name}' is {what}, which is not plain data"
    remedy = "null, true, false, 64-bit integers, finite floats, text, lists and mappings can be written"
    return SpecError(Problem("SG103", message, task.location, remedy))


def _time(cost: float) -> str:
    digits = format(Decimal(repr(float(cost))), "f")
    whole, _, fraction = digits.partition(".")
    return f"{whole}.{fraction[:_DECIMALS]}us" if fraction.strip("0") else f"{whole}us"


# --- text ---------------------------------------------------------------------------------------------------------------------------

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_.@]*(?: -> [A-Za-z_][A-Za-z0-9_.@]*)?\Z")
_BARE_TIME = re.compile(r"[0-9]+(\.[0-9]+)?us\Z")
_BARE_TYPE = re.compile(r"[a-z0-9]+\[[0-9, ]*\]\Z")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off"})  # the last four only for other readers of YAML
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def to_yaml(program: Program) -> str:
    """The program as a spec file: one line per tensor and per task. Raises as `to_mapping` does."""
    lines: list[str] = []
    for key, value in to_mapping(program).items():
        if isinstance(value, dict):
            lines += ["", f"{key}:"] if key in ("tensors", "tasks") else [f"{key}:"]
            lines += (f"  {_scalar(name)}: {_outer(entry)}" for name, entry in value.items())
        else:
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _outer(value: Any) -> str:
    return value if isinstance(value, str) and _BARE_TYPE.match(value) and value[0].isalpha() else _flow(value)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        if (_BARE.match(value) and value.lower() not in _WORDS) or _BARE_TIME.match(value):
            return value
        spelled = json.dumps(value, ensure_ascii=False)
        return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", spelled)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else repr(value)
