"""Torch's registry of operators, and what of it a spec may name: schemas in our words, and the reviewed lists.

A schema says what an operator reads, changes, returns and aliases. Four things it does not say, and they stand in the lists below:
statistics changed behind its back, results that are views all the same, operators that overwrite `self` without reading it, and operators
that reach for files, raw memory or the autograd engine. The lists are tested against the registry of the torch that runs the tests, so a
new torch cannot add to them silently.

An operator is usable if all its parameters are tensors and plain data, it returns tensors and nothing else, and it does something that
its schema declares. That alone keeps out most of the registry that is not about tensors (`warn`, `save`, `item`, `wait`, ...).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from streamgraph.errors import quoted

if TYPE_CHECKING:
    from torch._ops import OpOverload, OpOverloadPacket

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("from_file", "save"), "it opens files"),
    **dict.fromkeys(
        ("set", "set_", "set_data", "data", "resize", "resize_", "resize_as", "resize_as_", "resize_as_sparse", "resize_as_sparse_",
         "sparse_resize", "sparse_resize_", "sparse_resize_and_clear", "sparse_resize_and_clear_"),
        "it changes which memory a tensor is",
    ),
    **dict.fromkeys(
        ("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter"), "it reaches memory outside the tensors that it is given"
    ),
    **dict.fromkeys(("record_stream", "pin_memory", "is_pinned"), "memory and streams are the schedule's business"),
    **dict.fromkeys(
        ("backward", "grad", "requires_grad_", "retain_grad", "detach_", "rename", "rename_"), "it changes a tensor's hidden state"
    ),
    **dict.fromkeys(("item", "is_nonzero", "equal"), "it returns a number and not a tensor, and blocks the host"),
    **dict.fromkeys(("seed", "initial_seed", "manual_seed", "warn", "wait"), "it works on hidden state and not on tensors"),
}  # fmt: skip

# Parameters of type `str` are refused, since a string may be a file, except in these: all of them choose among a few words.
TAKES_A_WORD: frozenset[str] = frozenset(
    {
        "conv1d", "conv2d", "conv3d", "div", "div_", "divide", "divide_", "einsum", "fft_fft", "fft_fft2", "fft_fftn", "fft_hfft",
        "fft_hfft2", "fft_hfftn", "fft_ifft", "fft_ifft2", "fft_ifftn", "fft_ihfft", "fft_ihfft2", "fft_ihfftn", "fft_irfft",
        "fft_irfft2", "fft_irfftn", "fft_rfft", "fft_rfft2", "fft_rfftn", "gelu", "gelu_", "gelu_backward", "index_reduce",
        "index_reduce_", "linalg_cond", "linalg_eigh", "linalg_eigvalsh", "linalg_lstsq", "linalg_matrix_norm", "linalg_norm",
        "linalg_qr", "linalg_svd", "linalg_svdvals", "meshgrid", "nanquantile", "pad", "pad_sequence", "quantile", "scatter",
        "scatter_", "scatter_reduce", "scatter_reduce_", "searchsorted", "segment_reduce", "stft",
    }
)  # fmt: skip

# These change running statistics that their schemas call read-only: always (None), or while this flag is set.
STATISTICS: tuple[str, ...] = ("running_mean", "running_var")
CHANGES_STATISTICS: Mapping[str, str | None] = {
    "batch_norm": "training",
    "native_batch_norm": "training",
    "cudnn_batch_norm": "training",
    "miopen_batch_norm": "training",
    "instance_norm": "use_input_stats",
    "batch_norm_update_stats": None,
    "batch_norm_gather_stats": None,
    "batch_norm_gather_stats_with_counts": None,
}

# These return views of what they are given, or the very tensor, though their schemas promise a new one. Some others do so for some
# arguments only (`type_as` of the same dtype, `dropout` without training): for them, and for all operators, the first call checks.
RETURNS_VIEWS: frozenset[str] = frozenset(
    {
        "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "meshgrid", "broadcast_tensors", "atleast_1d", "atleast_2d",
        "atleast_3d", "dequantize", "lift", "sorted", "to_dense", "to_dense_backward", "to_mkldnn_backward", "unflatten_dense_tensors",
    }
)  # fmt: skip

# In-place operators that overwrite all of `self` without reading it: it may stand in `writes`.
OVERWRITES: frozenset[str] = frozenset(
    {
        "copy_", "zero_", "fill_", "normal_", "uniform_", "exponential_", "cauchy_", "geometric_", "log_normal_", "random_",
        "bernoulli_",
    }
)  # fmt: skip

# A seeded operator draws no numbers when a parameter of this name has this value.
SWITCHED_OFF: Mapping[str, object] = {"train": False, "training": False, "dropout": 0, "dropout_p": 0}

SCALARS = ("number", "int", "float", "bool", "str", "ScalarType", "Device", "Layout", "MemoryFormat", "Generator")
_TYPE = re.compile(r"(?P<optional>Optional\[)?(?P<list>List\[)?(?P<inner>Optional\[)?(?P<base>\w+)\]*\Z")


class Unfit(Exception):
    """The operator cannot be used for the call: a code, a sentence that follows the task's name, and a remedy. Users never see it."""

    def __init__(self, code: str, message: str, help: str) -> None:
        super().__init__(message)
        self.code, self.message, self.help = code, message, help


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a schema. `base` is `Tensor`, one of `SCALARS`, or something else, which no spec can pass."""

    name: str
    base: str
    is_list: bool
    optional: bool
    keyword_only: bool
    has_default: bool
    default: Any
    is_write: bool
    is_out: bool
    repeats: int | None  # `int[2]` also takes one number, which stands for two


@dataclass(frozen=True, slots=True)
class Schema:
    """What torch's registry says about one overload. `fresh`, `views`, `written` count the tensors returned; `listed`: as a list."""

    overload: OpOverload
    name: str
    parameters: tuple[Parameter, ...]
    returns: tuple[str, ...]
    fresh: int
    views: int
    written: int
    listed: bool
    usable: bool
    seeded: bool

    def __str__(self) -> str:
        return str(self.overload._schema).removeprefix("aten::")


@lru_cache(maxsize=4096)
def schema_of(overload: OpOverload) -> Schema:
    """The schema of one overload, in our words."""
    import torch

    raw = overload._schema
    parameters: list[Parameter] = []
    for argument in raw.arguments:
        match = _TYPE.match(str(argument.real_type))
        alias = argument.alias_info
        parameters.append(
            Parameter(
                argument.name,
                match["base"] if match else "?",
                bool(match and match["list"]),
                bool(match and match["optional"]),
                argument.kwarg_only,
                argument.has_default_value(),
                argument.default_value if argument.has_default_value() else None,
                alias is not None and alias.is_write,
                argument.is_out,
                getattr(argument, "N", None),  # torch's type stubs do not know it
            )
        )
    kinds = [str(returned.real_type) for returned in raw.returns]
    aliases = [returned.alias_info for returned in raw.returns]
    known = all(kind in ("Tensor", "List[Tensor]") for kind in kinds) and (len(kinds) == 1 or "List[Tensor]" not in kinds)
    named = [returned.name or f"result {number}" for number, returned in enumerate(raw.returns)]
    changes = any(parameter.is_write for parameter in parameters)
    return Schema(
        overload,
        raw.name.partition("::")[2],
        tuple(parameters),
        tuple(named),
        fresh=sum(alias is None for alias in aliases),
        views=sum(alias is not None and not alias.is_write for alias in aliases),
        written=sum(alias is not None and alias.is_write for alias in aliases),
        listed=kinds == ["List[Tensor]"],
        usable=known and (bool(kinds) or changes) and all(map(_passable, parameters)),
        seeded=torch.Tag.nondeterministic_seeded in overload.tags,
    )


def _passable(parameter: Parameter) -> bool:
    if parameter.is_write:  # anything else that changes a list changes a Python list, which is not in the tensors' hands
        return parameter.base == "Tensor" and (parameter.is_out or not parameter.is_list)
    return parameter.base == "Tensor" or (parameter.base in SCALARS and not (parameter.base == "str" and parameter.is_list))


@lru_cache(maxsize=4096)
def overloads(name: str) -> tuple[Schema, ...]:
    """The overloads that a spec may mean by `NAME` or `NAME.OVERLOAD` of `aten`, in torch's order.

    Raises:
        Unfit: SG401 if torch has no such operator, SG403 if it is refused.
    """
    import torch

    operator, _, overload = name.partition(".")
    # `getattr` of the namespace object also finds its own attributes (`name`, `__class__`), so the type is checked.
    packet = None if operator.startswith("__") else getattr(torch.ops.aten, operator, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        raise Unfit("SG401", f"runs 'aten.{quoted(name)}', which torch {torch.__version__} does not have", "")
    found = tuple(schema for schema in _all(packet) if overload in ("", schema.overload._overloadname))
    if not found:
        known = [f"aten.{operator}.{schema.overload._overloadname}" for schema in _all(packet) if schema.usable and _reviewed(schema)]
        help = f"it has {', '.join(known) or 'none for tensors'}"
        raise Unfit("SG401", f"runs 'aten.{quoted(name)}', but 'aten.{operator}' has no such overload", help)
    reason = refusal(operator, found)
    if reason:
        raise Unfit("SG403", f"runs 'aten.{operator}', which is refused: {reason}", "bring a function of your own with `ops=` or `--ops`")
    return tuple(schema for schema in found if schema.usable and _reviewed(schema))


def _all(packet: OpOverloadPacket[Any, Any]) -> tuple[Schema, ...]:
    return tuple(schema_of(getattr(packet, str(overload))) for overload in packet.overloads())  # type: ignore[no-untyped-call]


def refusal(operator: str, schemas: tuple[Schema, ...]) -> str | None:
    """Why a spec may not name this operator of `aten`; None if it may."""
    import torch

    if operator in REFUSED:
        return REFUSED[operator]
    if operator.startswith("_") and not any(torch.Tag.core in schema.overload.tags for schema in schemas):
        return "a leading underscore marks it as internal to torch"
    if any(torch.Tag.inplace_view in schema.overload.tags for schema in schemas):
        return "it changes which memory a tensor is"
    if not any(schema.usable for schema in schemas):
        return "it does not take tensors and plain data to tensors"
    if not any(schema.usable and _reviewed(schema) for schema in schemas):
        return "it takes text, and nobody has reviewed what it does with it"
    return None


def _reviewed(schema: Schema) -> bool:
    return schema.name in TAKES_A_WORD or all(parameter.base != "str" for parameter in schema.parameters)
