"""How operators are called: a Program becomes, for each task, a `Call` that says which tensors go where.

The convention (docs/design.md, section 3), in the order in which a reader meets it:

    updates, then reads     positional, in list order; `x@*` is one Python list; by keyword in the mapping form
    a written buffer        by keyword: `out`, a tuple if `writes` has several entries, or its key in the mapping form.
                            A view, of anything, is written like a buffer: into memory that exists
    a written value         returned, in `writes` order: one tensor, or a tuple of exactly n
    const                   by keyword
    a resource              orders tasks and is never passed

An executor holds its tensors in a list with one place per storage, and either evaluates a call from it (`Call.arguments`) or compiles
the slots into something faster. What a call may give back is checked in `returned.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from streamgraph.errors import Location, quoted
from streamgraph.model import CPU, DEVICE, LONG_NAMES, TORCH_NAMES, Index, Kind, Program, Task, TensorType
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

    `device` is "device" (the run's), "cpu" or a GPU like "cuda:1"; `type` is None where nothing was declared.
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


def gpus(program: Program, run_device: torch.device) -> list[int]:
    """The indices of the GPUs that a run uses."""
    if run_device.type == CPU:
        return []
    return [index for index in (place(name, run_device).index for name in program.devices or (DEVICE,)) if index is not None]


def place(device: str, run_device: torch.device) -> torch.device:
    """Where a tensor lives that was declared on `device` in a run on `run_device`. On the CPU every device is the CPU."""
    import torch

    return run_device if device == DEVICE or run_device.type == CPU else torch.device(device)
