"""The program: tensors and tasks in declaration order, frozen. What both front ends make and everything else reads.

The order of `Program.tasks` is part of the meaning: running a program is the same as executing its tasks one after another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias

from streamgraph.errors import Location

MAIN, ENTRY, EXIT, HOST = "main", "entry", "exit", "host"
RESERVED = frozenset({MAIN, ENTRY, EXIT, HOST})
DEVICE, CPU = "device", "cpu"  # where a tensor lives: on the run's device, in host memory, or on a GPU that is named
_GPU = re.compile(r"cuda:(0|[1-9][0-9]{0,2})\Z")
OUTPUT_PREFIX = "output:"  # no declared name holds a colon, so generated copies of outputs never collide

# Bytes per element, under FX's names for dtypes (https://docs.pytorch.org/docs/stable/fx.html prints tensors this way).
DTYPE_BYTES: Mapping[str, int] = {
    "bool": 1, "u8": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
    "c64": 8, "c128": 16, "f8e4m3": 1, "f8e5m2": 1,
}  # fmt: skip
TORCH_NAMES: Mapping[str, str] = {
    "bool": "bool", "u8": "uint8", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "f16": "float16",
    "bf16": "bfloat16", "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip
LONG_NAMES: Mapping[str, str] = {long: short for short, long in TORCH_NAMES.items()}

NAME = re.compile(r"\w+(\.\w+)*\Z")
MEMBER = re.compile(r"\w+(\.\w+)*(@\w+)*\Z")
_TYPE = re.compile(r"\s*(?P<dtype>\w+)\s*\[(?P<shape>[^\[\]]*)\]\s*\Z")
LARGEST_STORAGE = 1 << 48  # bytes; more than any machine has, and products stay far inside int64

Box: TypeAlias = tuple[tuple[int, int], ...]
"""Half-open (start, stop) per dimension of the storage's own shape."""
Index: TypeAlias = tuple["int | tuple[int, int]", ...]
"""How a view is cut from its base: per dimension an integer (the dimension goes) or a half-open (start, stop)."""


class Kind(str, Enum):
    """What a tensor's name stands for (see docs/design.md, section 1)."""

    INPUT = "input"
    BUFFER = "buffer"
    VALUE = "value"
    VIEW = "view"
    RESOURCE = "resource"


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dtype and a shape. `str()` is FX's notation, `f16[8, 3]`, which `parse_type` reads back."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements: the product of the shape (1 for a scalar)."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        """The size of a contiguous tensor of this type in bytes."""
        return self.elements * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def parse_type(text: str) -> TensorType:
    """The type that `text` spells, for example `f16[8, 3]` or `float32[]`.

    Raises:
        ValueError: with a sentence for the person who wrote it.
    """
    match = _TYPE.match(text)
    if match is None:
        raise ValueError(f"'{text}' is not a tensor type: write a dtype and a shape, like f16[8, 3] or f32[]")
    dtype = LONG_NAMES.get(match["dtype"], match["dtype"])
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"unknown dtype '{match['dtype']}': one of {', '.join(DTYPE_BYTES)}, or torch's long names")
    shape: list[int] = []
    if match["shape"].strip():
        for part in match["shape"].split(","):
            if not re.fullmatch(r"\s*[0-9]{1,18}\s*", part):
                raise ValueError(f"'{part.strip()}' is not a size: sizes are whole numbers from 0")
            shape.append(int(part))
    result = TensorType(dtype, tuple(shape))
    if result.bytes > LARGEST_STORAGE:
        raise ValueError(f"'{text}' has {result.bytes} bytes, more than any device holds")
    return result


_TIME = re.compile(r"\s*(?P<number>[0-9]{1,15}(\.[0-9]{1,30})?)\s*(?P<unit>[^\s\d.]*)\s*\Z")
MICROSECONDS: Mapping[str, float] = {"us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}


def parse_time(text: str) -> float:
    """The microseconds that `text` spells, for example `120us`, `1.5ms` or `2s`.

    Raises:
        ValueError: with a sentence: no unit, not a number, negative.
    """
    match = _TIME.match(text)
    if match is None:
        raise ValueError(f"'{text}' is not a time: write a number >= 0 and a unit, like 120us, 1.5ms or 2s")
    if match["unit"] not in MICROSECONDS:
        said = f"unknown unit '{match['unit']}'" if match["unit"] else f"{text} what?"
        raise ValueError(f"{said} A time needs a unit: us, ms or s" if match["unit"] == "" else f"{said}: write us, ms or s")
    return float(match["number"]) * MICROSECONDS[match["unit"]]


def is_gpu(device: str) -> bool:
    """Whether `device` names a GPU: `cuda:0`, `cuda:1`, ..."""
    return _GPU.match(device) is not None


@dataclass(frozen=True, slots=True)
class Tensor:
    """One declared name. `base` and `index` belong to views: `base` is never itself a view, `index` covers every dimension.

    `device` is "device" (the run's device), "cpu", or a GPU like "cuda:1"; `type` is None where the program does not need to know it.
    """

    name: str
    kind: Kind
    type: TensorType | None = None
    device: str = DEVICE
    pinned: bool = False
    init: str | None = None
    base: str | None = None
    index: Index = ()
    note: str | None = field(default=None, compare=False)
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Family:
    """Tensors declared together by `each`: `keys` maps key to items, `members` are their names, first key slowest.

    With `slots`, the members along `over` share `slots` storages: member number i along that key occupies slot i mod slots.
    `over` is a key of `keys`, or "iteration".
    """

    name: str
    keys: tuple[tuple[str, tuple[int | str, ...]], ...]
    members: tuple[str, ...]
    slots: int | None = None
    over: str = "iteration"


@dataclass(frozen=True, slots=True)
class Argument:
    """One entry of `reads`, `writes` or `updates`: one tensor, or several passed as one list (`image@*`)."""

    tensors: tuple[str, ...]
    is_list: bool = False
    keyword: str | None = None
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Task:
    """One operator call. `cost` is in microseconds; `function` is the callable that a `Graph` was given, if any."""

    name: str
    operator: str
    reads: tuple[Argument, ...] = ()
    writes: tuple[Argument, ...] = ()
    updates: tuple[Argument, ...] = ()
    const: tuple[tuple[str, Any], ...] = ()
    after: tuple[str, ...] = ()
    stream: str | None = None
    cost: float | None = None
    host: bool = False
    note: str | None = field(default=None, compare=False)
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    location: Location | None = field(default=None, compare=False, repr=False)

    @property
    def is_copy(self) -> bool:
        """Whether this is the built-in `copy` from its one read to its one write."""
        return self.operator == "copy" and self.function is None

    def names(self) -> tuple[str, ...]:
        """Every tensor that the task touches, as it names them: updates, reads, writes."""
        return tuple(name for group in (self.updates, self.reads, self.writes) for entry in group for name in entry.tensors)


@dataclass(frozen=True, slots=True)
class Stream:
    """Options of a named lane; `priority` is "high", "normal" or "low"."""

    name: str
    priority: str = "normal"


@dataclass(frozen=True, slots=True)
class Output:
    """A result: `name` is the key that the caller reads, `tensor` the value that holds it (a generated copy for memory that stays)."""

    name: str
    tensor: str


@dataclass(frozen=True)
class Program:
    """All that was declared, in declaration order. Make one with `streamgraph.Graph` or from a spec file."""

    name: str
    tensors: tuple[Tensor, ...] = ()
    tasks: tuple[Task, ...] = ()
    streams: tuple[Stream, ...] = ()
    outputs: tuple[Output, ...] = ()
    families: tuple[Family, ...] = ()

    @cached_property
    def tensor_named(self) -> Mapping[str, Tensor]:
        """Tensors by name. Every name that a task uses is here, values included."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def index_of_task(self) -> Mapping[str, int]:
        """A task's place in declaration order, by name."""
        return {task.name: index for index, task in enumerate(self.tasks)}

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The GPUs that tensors name, lowest first; none if all that is no host memory lies on the run's device."""
        named = {tensor.device for tensor in self.tensors if tensor.device not in (DEVICE, CPU) and is_gpu(tensor.device)}
        return tuple(sorted(named, key=lambda device: int(number_of(device))))

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that the caller binds, in declaration order."""
        return tuple(tensor for tensor in self.tensors if tensor.kind is Kind.INPUT)


def number_of(device: str) -> str:
    """The number in a GPU's name: "1" for "cuda:1"."""
    return device.partition(":")[2]
