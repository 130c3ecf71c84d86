"""How operators are called: a Program becomes, for each task, a `Call` that says which tensors go where.

The convention (docs/design.md, section 3), in the order in which a reader meets it:

    updates, then reads     positional, in list order; `x@*` is one Python list; by keyword in the mapping form
    a written buffer        by keyword: `out`, a tuple if `writes` has several entries, or its key in the mapping form.
                            A view, of anything, is written like a buffer: into memory that exists
    a written value         returned, in `writes` order: one tensor, or a tuple of exactly n
    const                   by keyword
    a resource              orders tasks and is never passed

An executor holds its tensors in a list with one place per storage, and either evaluates a call from it (`Call.arguments`) or compiles
the slots into something faster. `check_returned` and `check_alias` are what every first call must pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from streamgraph.errors import Location, Problem, TaskError, quoted
from streamgraph.model import LONG_NAMES, TORCH_NAMES, Index, Kind, Program, Task, TensorType
from streamgraph.storages import Access, Accesses, Mode

if TYPE_CHECKING:
    import torch

LISTED = 4  # members of a list argument that an error prints


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor argument: `storage` is its place in `Accesses.storages`; `index` cuts the view, `()` is all of it.

    `tensor` is its name in the task, `mode` how the task uses it.
    """

    storage: int
    index: Index
    tensor: str
    mode: Mode = Mode.READ


@dataclass(frozen=True, slots=True)
class Operands:
    """Several tensors as one argument: a Python list (`image@*`), or a tuple (`out` of several written buffers)."""

    items: tuple[Slot, ...]
    is_list: bool = True


Slot: TypeAlias = Operand | Operands


@dataclass(frozen=True, slots=True)
class Returned:
    """One value that the operator returns: its new storage, and what was declared about it.

    `device` is "device" (the run's) or "cpu"; `type` is None where nothing was declared.
    """

    storage: int
    tensor: str
    type: TensorType | None
    device: str
    pinned: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A task bound to storages. `operator(*positional, **keywords, **const)` returns `returns`.

    `returns_sequence`: the result is a tuple or list of `len(returns)` tensors, also when that is 1; otherwise it is the tensor itself,
    or, with nothing in `returns`, anything that holds no new tensor.
    """

    task: str
    operator: str
    positional: tuple[Slot, ...]
    keywords: tuple[tuple[str, Slot], ...]
    const: tuple[tuple[str, Any], ...]
    returns: tuple[Returned, ...]
    returns_sequence: bool
    is_copy: bool
    host: bool
    location: Location | None = None

    def arguments(self, tensors: Sequence[torch.Tensor | None]) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the keyword arguments, constants included, from the tensors by storage. Views are cut here."""
        keywords = {name: evaluate(slot, tensors) for name, slot in self.keywords}
        keywords.update(self.const)
        return [evaluate(slot, tensors) for slot in self.positional], keywords

    def operands(self) -> Iterator[Operand]:
        """Every tensor that is passed, in order, lists opened."""
        for slot in (*self.positional, *(slot for _, slot in self.keywords)):
            yield from operands(slot)

    def __str__(self) -> str:
        return describe(self)


def operands(slot: Slot) -> Iterator[Operand]:
    """The tensors of one argument, in order."""
    if isinstance(slot, Operand):
        yield slot
        return
    for item in slot.items:
        yield from operands(item)  # at most two deep: an `out` tuple of lists


def evaluate(slot: Slot, tensors: Sequence[torch.Tensor | None]) -> Any:
    """The argument itself: a tensor, a list, or a tuple."""
    if isinstance(slot, Operand):
        tensor = tensors[slot.storage]
        assert tensor is not None, f"bug in streamgraph: '{slot.tensor}' is used before it exists or after its release"
        return cut(tensor, slot.index)
    parts = [evaluate(item, tensors) for item in slot.items]
    return parts if slot.is_list else tuple(parts)


def cut(tensor: torch.Tensor, index: Index) -> torch.Tensor:
    """The view that `index` cuts from `tensor`: it shares the storage, and integers drop their dimension. `()` is the tensor itself."""
    return tensor[indexing(index)] if index else tensor


def indexing(index: Index) -> tuple[int | slice, ...]:
    """`index` as Python's square brackets take it."""
    return tuple(part if isinstance(part, int) else slice(*part) for part in index)


def prepare(program: Program, accesses: Accesses) -> tuple[Call, ...]:
    """The call of each task, in declaration order. The program must be valid: `trace` found no problem in it."""
    return tuple(_prepare(program, task, found) for task, found in zip(program.tasks, accesses.of_task, strict=True))


def _prepare(program: Program, task: Task, found: tuple[Access, ...]) -> Call:
    accesses = iter(found)  # in the order of `trace`: updates, reads, writes
    positional: list[Slot] = []
    keywords: list[tuple[str, Slot]] = []
    written: list[Slot] = []
    returns: list[Returned] = []
    returns_sequence = False
    for group in (task.updates, task.reads, task.writes):
        for entry in group:
            passed: list[Operand] = []
            for name in entry.tensors:
                access, tensor = next(accesses), program.tensor_named[name]
                assert access.tensor == name, f"bug in streamgraph: the accesses of '{task.name}' are out of step at '{name}'"
                if tensor.kind is Kind.RESOURCE:
                    continue
                if access.mode is Mode.WRITE and tensor.kind in (Kind.VALUE, Kind.INPUT):
                    returns.append(Returned(access.storage, name, tensor.type, tensor.device, tensor.pinned))
                    returns_sequence |= entry.is_list
                else:
                    index = tensor.index if tensor.kind is Kind.VIEW else ()
                    passed.append(Operand(access.storage, index, name, access.mode))
            if not passed:
                continue
            slot: Slot = Operands(tuple(passed)) if entry.is_list else passed[0]
            if entry.keyword is not None:
                keywords.append((entry.keyword, slot))
            elif group is task.writes:
                written.append(slot)
            else:
                positional.append(slot)
    if written:
        keywords.append(("out", written[0] if len(written) == 1 else Operands(tuple(written), is_list=False)))
    return Call(
        task.name, task.operator, tuple(positional), tuple(keywords), task.const, tuple(returns),
        returns_sequence or len(returns) > 1, task.is_copy and task.function is None, task.host, task.location,
    )  # fmt: skip


def describe(call: Call, tensors: Sequence[torch.Tensor | None] | None = None) -> str:
    """The call as a person would write it: `stack_into([image@0, image@1], out=batch)`, with the tensors' types if they are given."""
    parts = [_show(slot, tensors) for slot in call.positional]
    parts += [f"{name}={_show(slot, tensors)}" for name, slot in call.keywords]
    parts += [f"{name}={quoted(repr(value), 40)}" for name, value in call.const]
    return f"{quoted(call.operator)}({', '.join(parts)})"


def _show(slot: Slot, tensors: Sequence[torch.Tensor | None] | None) -> str:
    if isinstance(slot, Operands):
        shown = [_show(item, tensors) for item in slot.items[:LISTED]]
        if len(slot.items) > LISTED:
            shown.append(f"… {len(slot.items) - LISTED} more")
        return f"[{', '.join(shown)}]" if slot.is_list else f"({', '.join(shown)})"
    tensor = tensors[slot.storage] if tensors is not None else None
    return slot.tensor if tensor is None else f"{slot.tensor}: {type_text(cut(tensor, slot.index))}"


def type_text(tensor: torch.Tensor) -> str:
    """The type of a tensor in FX's notation: `f16[8, 3]`. A dtype that has no short name keeps torch's."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{LONG_NAMES.get(dtype, dtype)}[{', '.join(map(str, tensor.shape))}]"


def torch_dtype(type: TensorType) -> torch.dtype:
    """Torch's object for the type's dtype."""
    import torch

    dtype = getattr(torch, TORCH_NAMES[type.dtype])
    assert isinstance(dtype, torch.dtype)
    return dtype


def place(device: str, run_device: torch.device) -> torch.device:
    """Where a tensor lives that was declared on `device` ("device" or "cpu") in a run on `run_device`."""
    import torch

    return run_device if device == "device" else torch.device("cpu")


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
