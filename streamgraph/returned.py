"""What operators give back: the checks that every first call must pass, and the built-in `copy`, which makes its own value.

A value is as it was declared, in memory of its own; what is written keeps its shape and its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamgraph.calls import Call, Returned, evaluate, operands, place, torch_dtype, type_text
from streamgraph.errors import Problem, TaskError
from streamgraph.storages import Mode

if TYPE_CHECKING:
    import torch


def check_returned(
    call: Call, result: object, tensors: Sequence[torch.Tensor | None], run_device: torch.device, lane: str = ""
) -> tuple[torch.Tensor, ...]:
    """The tensors that the operator returned, in the order of `call.returns`.

    A task that declares no returned value may return None, what it was given to write (torch's in-place operators do), or things that
    are no tensors, such as a work handle.

    Raises:
        TaskError: SG602 if these are not the tensors that the task declares, are sparse, or carry a graph; SG503 if one does not fit its
            declared type, device or pinning.
    """
    import torch

    found: tuple[object, ...] | None = (result,) if call.returns else ()
    if call.returns_sequence:
        found = tuple(result) if isinstance(result, tuple | list) else None
    names = ", ".join(returned.tensor for returned in call.returns)
    if found is None or len(found) != len(call.returns) or not all(isinstance(value, torch.Tensor) for value in found):
        count = len(call.returns)
        wanted = f"{count} {'tensor' if count == 1 else 'tensors'} ({names})"
        help = "return the written values in the order of `writes`"
        if any(returned.tensor in {operand.tensor for operand in call.operands()} for returned in call.returns):
            help += "; to change a tensor in place instead, declare it in `updates`"
        raise _error(call, "SG602", f"must return {wanted}; it returned {_what(result)}", help, lane)
    if not call.returns:
        _check_nothing_new(call, result, tensors, lane)
    values = tuple(value for value in found if isinstance(value, torch.Tensor))
    for returned, value in zip(call.returns, values, strict=True):
        _check_value(call, returned, value, run_device, lane)
    return values


def _check_nothing_new(call: Call, result: object, tensors: Sequence[torch.Tensor | None], lane: str) -> None:
    written = [operand for operand in call.operands() if operand.mode is not Mode.READ]
    known = {_pointer(tensors[operand.storage]) for operand in written}
    for value in tensors_in(result):
        if _pointer(value) and _pointer(value) not in known:
            names = ", ".join(dict.fromkeys(operand.tensor for operand in written))
            what = f"write into {names} in place" if names else "return nothing"
            message = f"declares no returned value, but it returned {_what(value)}"
            raise _error(call, "SG602", message, f"{what}, or list the value in `writes`", lane)


def _check_value(call: Call, returned: Returned, value: torch.Tensor, run_device: torch.device, lane: str) -> None:
    import torch

    name = returned.tensor
    if value.layout is not torch.strided:
        message = f"returned a {str(value.layout).removeprefix('torch.')} tensor as '{name}'"
        raise _error(call, "SG602", message, "streamgraph tracks strided tensors: return `.to_dense()`, or its parts", lane)
    if value.requires_grad:
        message = f"returned '{name}' with an autograd graph"
        help = "tasks run without gradients; a task that opens `torch.enable_grad()` differentiates inside and returns `.detach().clone()`"
        raise _error(call, "SG602", message, help, lane)
    if returned.type is not None and type_text(value) != str(returned.type):
        message = f"returned '{name}' as {type_text(value)}, but it is declared as {returned.type}"
        raise _error(call, "SG503", message, "change the operator or the declared type", lane)
    wanted = place(returned.device, run_device)
    if value.device != wanted:
        message = f"returned '{name}' on {value.device}, but it belongs on {wanted}"
        help = "declare `device: cpu` for it" if value.device.type == "cpu" else "make it on that device, or use `copy`"
        raise _error(call, "SG503", message, help, lane)
    if returned.pinned and run_device.type == "cuda" and not value.is_pinned():
        message = f"returned '{name}' in pageable memory, but it is declared `pinned`"
        raise _error(call, "SG503", message, "return `tensor.pin_memory()`, or declare it without `pinned`", lane)


def check_alias(
    call: Call,
    values: Sequence[torch.Tensor],
    tensors: Sequence[torch.Tensor | None],
    constants: Iterable[torch.Tensor] = (),
    lane: str = "",
) -> None:
    """Check that the returned `values` share no memory with an argument, with each other, or with `constants` (see `Operator.constants`).

    Compares storages, so a slice of an argument is found as well. Tensors without elements share nothing.

    Raises:
        TaskError: SG603.
    """
    owners: dict[int, str] = {}
    for tensor in constants:
        owners.setdefault(_pointer(tensor), "a constant or a weight of the operator")
    for operand in call.operands():
        owners.setdefault(_pointer(tensors[operand.storage]), f"its argument '{operand.tensor}'")
    owners.pop(0, None)
    for returned, value in zip(call.returns, values, strict=True):
        pointer = _pointer(value)
        if pointer in owners:
            message = f"returned '{returned.tensor}' in the memory of {owners[pointer]}"
            help = "return a copy (`.clone()`); or declare what is changed in `updates`, and a part of a tensor as a `view`"
            raise _error(call, "SG603", message, help, lane)
        if pointer:
            owners[pointer] = f"its other result '{returned.tensor}'"


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor that a call may write, as it was before the call."""

    name: str
    tensor: torch.Tensor
    type: str
    strides: tuple[int, ...]
    address: int


def layouts(call: Call, positional: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Layout, ...]:
    """The written and updated ones among the evaluated arguments, for `check_kept` after the call."""
    found: list[Layout] = []
    for slot, value in (*zip(call.positional, positional, strict=True), *((slot, keywords[name]) for name, slot in call.keywords)):
        for operand, tensor in zip(operands(slot), tensors_in(value), strict=True):
            if operand.mode is not Mode.READ:
                found.append(Layout(operand.tensor, tensor, type_text(tensor), tensor.stride(), tensor.data_ptr()))
    return tuple(found)


def check_kept(call: Call, before: Iterable[Layout], lane: str = "") -> None:
    """Check that what was written kept its shape and its place: torch resizes an `out` of the wrong shape, and may write beside a view.

    Raises:
        TaskError: SG602.
    """
    for layout in before:
        tensor = layout.tensor
        if type_text(tensor) != layout.type:
            message = f"changed the shape of '{layout.name}' from {layout.type} to {type_text(tensor)}"
            raise _error(call, "SG602", message, "what is written must have the shape of the result: change the declared type", lane)
        if (tensor.stride(), tensor.data_ptr()) != (layout.strides, layout.address):
            help = "write into the tensor that is passed (`copy_`), and do not give it other memory"
            raise _error(call, "SG602", f"moved '{layout.name}' to other memory", help, lane)


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors inside nested tuples, lists and mappings, in order."""
    import torch

    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, tuple | list):
            pending.extend(reversed(item))
        elif isinstance(item, Mapping):
            pending.extend(reversed(list(item.values())))


def _pointer(tensor: torch.Tensor | None) -> int:
    """The address of the tensor's storage; 0 for one that has no bytes, or whose layout has no storage."""
    import torch

    if tensor is None or tensor.layout is not torch.strided or tensor.numel() == 0:
        return 0
    return tensor.untyped_storage().data_ptr()


def _what(result: object) -> str:
    import torch

    if result is None:
        return "None"
    if isinstance(result, torch.Tensor):
        return f"one tensor, {type_text(result)}"
    if isinstance(result, tuple | list):
        strangers = [type(item).__name__ for item in result if not isinstance(item, torch.Tensor)]
        kind = "list" if isinstance(result, list) else "tuple"
        return f"a {kind} of {len(result)}" + (f" with {strangers[0]!r} in it" if strangers else "")
    return f"a {type(result).__name__}"


def _error(call: Call, code: str, message: str, help: str, lane: str) -> TaskError:
    return TaskError(Problem(code, f"task '{call.task}' {message}", call.location, help), call.task, lane)


def run_copy(
    call: Call, tensors: Sequence[torch.Tensor | None], run_device: torch.device, lane: str = ""
) -> tuple[torch.Tensor, ...]:
    """The built-in `copy`: writes the buffer and returns `()`, or returns the new value.

    Always `non_blocking`: host memory that is not pinned makes the issuing thread wait, which CUDA does by itself.

    Raises:
        TaskError: SG503 if the shapes differ; `copy` never broadcasts.
    """
    (source_slot,) = call.positional or tuple(slot for name, slot in call.keywords if name != "out")
    source: torch.Tensor = evaluate(source_slot, tensors)
    if call.returns:
        (returned,) = call.returns
        target = empty_for(returned, source, run_device)
    else:
        target = evaluate(dict(call.keywords)["out"], tensors)
    check_shapes(call, source, target, lane)
    target.copy_(source, non_blocking=True)
    return (target,) if call.returns else ()


def check_shapes(call: Call, source: torch.Tensor, target: torch.Tensor, lane: str = "") -> None:
    """Check that a copy does not broadcast.

    Raises:
        TaskError: SG503.
    """
    if source.shape != target.shape:
        names = [operand.tensor for operand in call.operands()] + [returned.tensor for returned in call.returns]
        message = f"copies '{names[0]}', {type_text(source)}, to '{names[-1]}', {type_text(target)}"
        raise _error(call, "SG503", message, "the shapes must be equal: copy a view, or change a type", lane)


def empty_for(returned: Returned, source: torch.Tensor, run_device: torch.device) -> torch.Tensor:
    """New, uninitialised memory for a copy of `source`: the declared type, or the source's own with its memory format.

    It lies on the value's device; pinned memory is honoured in runs on CUDA only.
    """
    import torch

    device = place(returned.device, run_device)
    pin = returned.pinned and device.type == "cpu" and run_device.type == "cuda"
    if returned.type is None or returned.type.shape == tuple(source.shape):
        dtype = source.dtype if returned.type is None else torch_dtype(returned.type)
        return torch.empty_like(source, dtype=dtype, device=device, pin_memory=pin)
    return torch.empty(returned.type.shape, dtype=torch_dtype(returned.type), device=device, pin_memory=pin)
