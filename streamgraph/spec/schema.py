"""The form of a spec: which keys stand where, and what each may hold (`values`). Meaning comes later, in `expand`.

Pydantic models give the JSON Schema that editors use and find what does not fit, all at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from streamgraph.spec import values

_Whole = Annotated[int | str, PlainValidator(values.whole, json_schema_input_type=int | str)]
_Word = Annotated[str, BeforeValidator(values.text)]
_Flag = Annotated[bool, PlainValidator(values.flag, json_schema_input_type=bool)]
_Time = Annotated[str, PlainValidator(values.time, json_schema_input_type=str)]
_Names = Annotated[tuple[str, ...], PlainValidator(values.names, json_schema_input_type=str | list[str])]
_NameOrList = str | list[str]
_Entries = Annotated[
    tuple[values.Entry, ...],
    PlainValidator(values.entries, json_schema_input_type=str | list[_NameOrList] | dict[str, _NameOrList]),
]
_Items = int | str | list[int | str]
_Each = Annotated[dict[str, Any], PlainValidator(values.each, json_schema_input_type=dict[str, _Items])]
_Const = Annotated[dict[str, Any], PlainValidator(values.const, json_schema_input_type=dict[str, Any])]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TensorForm(_Form):
    """A tensor, or a family of them with `each`. A text alone is the type of a buffer."""

    type: _Word | None = Field(None, description="dtype and shape, like f16[8, 3]; quote it inside { }")
    kind: Literal["input", "buffer", "value", "resource"] | None = Field(
        None, description="input: the caller binds it; buffer: lives on (the default); value: a task returns it; resource: no tensor"
    )
    device: _Word | None = Field(None, description="cpu for host memory, or a certain GPU: cuda:1; left out, the run's device")
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
        return {"type": values.text(value, "a type like f16[8, 3], or a mapping with the tensor's keys")}
    return _mapping(value, "a type or a mapping with the tensor's keys")


def _task(value: object) -> object:
    return _mapping(value, "a mapping with the task's keys")


def _stream(value: object) -> object:
    return {} if value is None else _mapping(value, "a mapping with the stream's options")


def _mapping(value: object, what: str) -> object:
    if not isinstance(value, Mapping):
        raise values.wrong("SG103", f"expected {what}, got {values.described(value)}")
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

    streamgraph: Annotated[int, PlainValidator(values.whole, json_schema_input_type=Literal[1])] = Field(
        ..., description="format version: 1"
    )
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
        PlainValidator(lambda v: () if v is None else values.outputs(v), json_schema_input_type=str | list[str] | dict[str, str] | None),
    ] = Field((), description="tensors that the caller gets back; a mapping gives them other names")


TaskForm.model_rebuild()


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a spec, every short form included, for editors."""
    schema = Spec.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
