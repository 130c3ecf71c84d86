"""The form of a spec: which keys stand where, and what each may hold. Meaning comes later, in `expand`.

Pydantic models give the JSON Schema that editors use and find what does not fit, all at once. Each value has one long form; the short forms
are read by the functions below, so that a mistake is reported once, at the place of the mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from streamgraph.errors import quoted
from streamgraph.spec.document import Path, Plain

LARGEST_INTEGER = (1 << 63) - 1
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_NUMBER = re.compile(
    r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?0[xo][0-9a-fA-F]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"
)
_NUMERIC = frozenset("+-.0123456789")
_FLAGS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def wrong(code: str, message: str, remedy: str | None = None, at: Path = ()) -> PydanticCustomError:
    """An error that the caller turns into a Problem at the place `at` below the field. Braces in the user's text are left alone."""
    return PydanticCustomError("streamgraph", "{message}", {"code": code, "message": message, "help": remedy, "at": at})


def described(value: object) -> str:
    """What a value is, for the end of "expected a name, got ..."."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case Plain() if value in _FLAGS:
            return f"the flag {value}"
        case Plain() if _NUMBER.match(value):
            return f"the number {quoted(value, 40)}"
        case str():
            return f"the text '{quoted(value, 40)}'"
        case int() | float():
            return f"the number {value}"
        case Mapping():
            return "a mapping"
        case _:
            return "a list"


# --- one scalar ---------------------------------------------------------------------------------------------------------------------


def text(value: object, what: str = "text", at: Path = ()) -> str:
    """A text as it was written. Numbers and flags are not texts unless quoted: `run: 3` is a slip, `on` and `12:30` are texts."""
    # Names make up most of a large spec, and what begins like a name is no number.
    if not isinstance(value, str) or (type(value) is Plain and (value in _FLAGS or (value[:1] in _NUMERIC and _NUMBER.match(value)))):
        remedy = "quote it if it is meant as text" if isinstance(value, (Plain, int, float)) else None
        raise wrong("SG103", f"expected {what}, got {described(value)}", remedy, at)
    return str(value)


def whole(value: object, at: Path = ()) -> int | str:
    """A decimal whole number inside int64, or a text with `$` that becomes one."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and "$" in value:
        return str(value)
    elif isinstance(value, Plain) and _INTEGER.match(value):
        number = int(value) if len(value) <= 20 else LARGEST_INTEGER + 1  # never int() of thousands of digits
    elif isinstance(value, float) or (isinstance(value, Plain) and _NUMBER.match(value)):
        raise wrong("SG105", f"expected a whole number, got {described(value)}", "write decimal digits, without leading zeros", at)
    else:
        raise wrong("SG103", f"expected a whole number, got {described(value)}", None, at)
    if not -LARGEST_INTEGER <= number <= LARGEST_INTEGER:
        raise wrong("SG105", "this number does not fit 64 bits", "write a smaller number", at)
    return number


def flag(value: object) -> bool:
    """`true` or `false`; not yes, on or 1."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Plain) and value in _FLAGS:
        return _FLAGS[value]
    raise wrong("SG103", f"expected true or false, got {described(value)}", "write true or false, without quotes")


def _time(value: object) -> str:
    bare = _NUMBER.match(value) is not None if isinstance(value, Plain) else isinstance(value, (int, float)) and not isinstance(value, bool)
    if bare:
        raise wrong("SG104", f"a time needs a unit, got {described(value)}", "write the unit: 120us, 1.5ms or 2s")
    return text(value, "a time")


# --- lists and short forms ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One argument as written: names or patterns, whether they are one list, the keyword, and where it stands below its field."""

    names: tuple[str, ...]
    is_list: bool = False
    keyword: str | None = None
    at: Path = ()


def _entries(value: object) -> tuple[Entry, ...]:
    match value:
        case str():
            return (Entry((text(value, "the name of a tensor"),)),)
        case list() | tuple():
            return tuple(_entry(item, None, (number,)) for number, item in enumerate(value))
        case Mapping():
            return tuple(_entry(item, str(key), (key,)) for key, item in value.items())
    raise wrong("SG103", f"expected the name of a tensor, a list of them, or a mapping from keyword to name, got {described(value)}")


def _entry(value: object, keyword: str | None, at: Path) -> Entry:
    if isinstance(value, (list, tuple)):
        return Entry(tuple(text(name, "the name of a tensor", (*at, n)) for n, name in enumerate(value)), True, keyword, at)
    return Entry((text(value, "the name of a tensor", at),), False, keyword, at)


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)):
        return tuple(text(name, "a name", (number,)) for number, name in enumerate(value))
    return (text(value, "a name or a list of names"),)


def _outputs(value: object) -> dict[str, str] | tuple[str, ...]:
    if isinstance(value, Mapping):
        return {str(key): text(name, "the name of a tensor", (key,)) for key, name in value.items()}
    return _names(value)


def _each(value: object) -> dict[str, int | str | tuple[int | str, ...]]:
    if not isinstance(value, Mapping):
        remedy = "write the key that the items go by: each: {cam: 4}"
        raise wrong("SG103", f"expected a mapping from key to items, got {described(value)}", remedy)
    result: dict[str, int | str | tuple[int | str, ...]] = {}
    for key, items in value.items():
        if isinstance(items, (list, tuple)):
            result[str(key)] = tuple(_item(item, (key, number)) for number, item in enumerate(items))
        elif isinstance(items, str) and ".." in items:
            result[str(key)] = str(items)
        else:
            try:
                result[str(key)] = whole(items, (key,))
            except PydanticCustomError as error:
                remedy = "write a number (0 to n-1), a range a..b with both ends, or a list"
                raise wrong("SG209", f"'{quoted(key)}' has no items: {(error.context or {})['message']}", remedy, (key,)) from None
    return result


def _item(value: object, at: Path) -> int | str:
    if _INTEGER.match(value) if isinstance(value, Plain) else isinstance(value, int) and not isinstance(value, bool):
        return whole(value, at)
    if isinstance(value, str):
        return str(value)
    raise wrong("SG103", f"expected a number or a word, got {described(value)}", None, at)


def _const(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong("SG103", f"expected a mapping from keyword to constant, got {described(value)}", "write const: {dim: 1}")
    return {str(key): typed(item, (key,)) for key, item in value.items()}


def typed(value: object, at: Path = ()) -> Any:
    """Plain data by YAML 1.2's core rules: null, flags, integers, floats, text; lists become tuples. Texts with `$` stay as they are."""
    match value:
        case Mapping():
            return {str(key): typed(item, (*at, key)) for key, item in value.items()}
        case list() | tuple():
            return tuple(typed(item, (*at, number)) for number, item in enumerate(value))
        case Plain() if value in _FLAGS:
            return _FLAGS[value]
        case Plain() if _NUMBER.match(value):
            return _number(value, at)
        case float() if value - value != 0:  # infinite or not a number
            raise wrong("SG105", f"{value} is not a finite number", None, at)
        case int() if not isinstance(value, bool):
            return whole(value, at)
    return value


def _number(value: str, at: Path) -> int | float:
    base = {"x": 16, "o": 8}.get(value.lstrip("+-")[1:2])
    if base is not None:
        if len(value) > 24:
            raise wrong("SG105", "this number does not fit 64 bits", "write a smaller number", at)
        try:
            return int(whole(int(value, base), at))
        except ValueError:
            raise wrong("SG105", f"'{value}' is not a number", None, at) from None
    digits = value.lstrip("+-")
    if digits.isdigit():
        if digits != "0" and digits[0] == "0":
            remedy = "write it without leading zeros, as 0o17, or quoted"
            raise wrong("SG105", f"'{quoted(value, 40)}' could be decimal or octal", remedy, at)
        return int(whole(Plain(value.lstrip("+")), at))
    number = float(value) if digits[1:4].lower() not in ("inf", "nan") else float("inf")
    if number - number != 0:
        raise wrong("SG105", f"'{quoted(value, 40)}' is not a finite number", None, at)
    return number


# --- the models ---------------------------------------------------------------------------------------------------------------------

_Whole = Annotated[int | str, PlainValidator(whole, json_schema_input_type=int | str)]
_Word = Annotated[str, BeforeValidator(text)]
_Flag = Annotated[bool, PlainValidator(flag, json_schema_input_type=bool)]
_Time = Annotated[str, PlainValidator(_time, json_schema_input_type=str)]
_Names = Annotated[tuple[str, ...], PlainValidator(_names, json_schema_input_type=str | list[str])]
_NameOrList = str | list[str]
_Entries = Annotated[
    tuple[Entry, ...],
    PlainValidator(_entries, json_schema_input_type=str | list[_NameOrList] | dict[str, _NameOrList]),
]
_Items = int | str | list[int | str]
_Each = Annotated[dict[str, Any], PlainValidator(_each, json_schema_input_type=dict[str, _Items])]
_Const = Annotated[dict[str, Any], PlainValidator(_const, json_schema_input_type=dict[str, Any])]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TensorForm(_Form):
    """A tensor, or a family of them with `each`. A text alone is the type of a buffer."""

    type: _Word | None = Field(None, description="dtype and shape, like f16[8, 3]; quote it inside { }")
    kind: Literal["input", "buffer", "value", "resource"] | None = Field(
        None, description="input: the caller binds it; buffer: lives on (the default); value: a task returns it; resource: no tensor"
    )
    device: _Word | None = Field(None, description="cpu for host memory; left out, the run's device")
    pinned: _Flag = Field(False, description="page-locked host memory, which copies need to overlap")
    view: _Word | None = Field(None, description="a part of another tensor: batch[0:2, :, 3]")
    each: _Each | None = Field(None, description="key to n (0..n-1), a..b, or a list: one member per item, called name@item")
    slots: _Whole | None = Field(None, description="a ring: the members along `over` take turns in this many buffers")
    over: _Word | None = Field(None, description="the key of each that a ring turns over; iteration if left out")
    init: _Word | None = Field(None, description="zeros, ones, random, arange or empty")
    note: _Word | None = Field(None, description="shown in pictures and explanations")


class TaskForm(_Form):
    """One operator call, a copy, or with `tasks` a group; with `each`, one per item."""

    run: _Word | None = Field(None, description="the operator: a name that the caller brings, or aten.*")
    copy_: _Word | None = Field(None, alias="copy", description="a -> b")
    tasks: dict[str, Task] | None = Field(None, description="a group: with each, its tasks are expanded together, item by item")
    reads: _Entries = Field((), description="tensors read: a name, a list, or a mapping from keyword to name; name@* is one list")
    writes: _Entries = Field((), description="tensors overwritten or returned")
    updates: _Entries = Field((), description="tensors read and changed in place")
    const: _Const | None = Field(None, description="constants by keyword")
    each: _Each | None = Field(None, description="key to n (0..n-1), a..b, or a list: one task per item, called name@item")
    after: _Names = Field((), description="earlier tasks, families or groups that must be done first")
    stream: _Word | None = Field(None, description="pins the task to a lane; main is the caller's stream")
    cost: _Time | None = Field(None, description="expected duration with its unit: 120us, 1.5ms, 2s")
    host: _Flag = Field(False, description="runs on the host, in order")
    note: _Word | None = Field(None, description="shown in pictures and explanations")


class StreamForm(_Form):
    """Options of a lane."""

    priority: Literal["high", "normal", "low"] = Field("normal", description="of the CUDA stream")


def _short_tensor(value: object) -> object:
    if isinstance(value, str):
        return {"type": text(value, "a type like f16[8, 3], or a mapping with the tensor's keys")}
    return _mapping(value, "a type or a mapping with the tensor's keys")


def _task(value: object) -> object:
    return _mapping(value, "a mapping with the task's keys")


def _stream(value: object) -> object:
    return {} if value is None else _mapping(value, "a mapping with the stream's options")


def _mapping(value: object, what: str) -> object:
    if not isinstance(value, Mapping):
        raise wrong("SG103", f"expected {what}, got {described(value)}")
    return value


def _absent(value: object) -> object:
    return _mapping({} if value is None else value, "a mapping")


Tensor = Annotated[TensorForm, BeforeValidator(_short_tensor, json_schema_input_type=str | TensorForm)]
Task = Annotated[TaskForm, BeforeValidator(_task, json_schema_input_type=TaskForm)]
Stream = Annotated[StreamForm, BeforeValidator(_stream, json_schema_input_type=StreamForm | None)]


class Spec(_Form):
    """A streamgraph spec: what each task reads and writes. The order of `tasks` is the order of the program."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"patternProperties": {"^x-": True}}, title="streamgraph spec"
    )  # fmt: skip

    streamgraph: Annotated[int, PlainValidator(whole, json_schema_input_type=Literal[1])] = Field(..., description="format version: 1")
    name: _Word | None = Field(None, description="the program's name")
    params: Annotated[
        dict[str, _Whole], BeforeValidator(_absent, json_schema_input_type=dict[str, int] | None)
    ] = Field(default_factory=dict, description="whole numbers by name, used as $name and in $(...); the caller may override them")
    tensors: Annotated[dict[str, Tensor], BeforeValidator(_absent, json_schema_input_type=dict[str, Tensor] | None)] = Field(
        default_factory=dict, description="inputs, buffers, views and resources; values need no declaration"
    )
    tasks: Annotated[dict[str, Task], BeforeValidator(_absent, json_schema_input_type=dict[str, Task] | None)] = Field(
        default_factory=dict, description="in program order"
    )
    streams: Annotated[dict[str, Stream], BeforeValidator(_absent, json_schema_input_type=dict[str, Stream] | None)] = Field(
        default_factory=dict, description="options of named lanes"
    )
    outputs: Annotated[
        dict[str, str] | tuple[str, ...],
        PlainValidator(lambda v: () if v is None else _outputs(v), json_schema_input_type=str | list[str] | dict[str, str] | None),
    ] = Field((), description="tensors that the caller gets back; a mapping gives them other names")


TaskForm.model_rebuild()


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a spec, every short form included, for editors."""
    schema = Spec.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
