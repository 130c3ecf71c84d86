"""The tensors of a call: what the caller gave becomes one checked tensor per input, or every problem at once.

Inputs bind as a `dict` does: names to tensors, what comes later replaces what came before. A family's name takes a list (nested for two
keys) that stands for its members; members bind singly too (`frame@0`). There are no optional inputs and no defaults.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from streamgraph.calls import place, torch_dtype, type_text
from streamgraph.errors import BindingError, Problem, quoted
from streamgraph.model import DEVICE, Family, Kind, Program, Tensor
from streamgraph.sharing import overlaps_itself, share_bytes
from streamgraph.storages import Accesses, Mode

if TYPE_CHECKING:
    import torch

Given: TypeAlias = Mapping[str, object]
"""What a caller binds: a tensor per input, or a (nested) list of tensors per family."""


def bind(
    program: Program,
    given: Given,
    device: torch.device,
    *,
    bound: Mapping[str, torch.Tensor] | None = None,
    written: Sequence[str] = (),
    complete: bool = True,
) -> dict[str, torch.Tensor]:
    """One checked tensor per input: those of `bound`, which were checked before, and over them those of `given`.

    Args:
        program: whose inputs these are.
        given: a tensor per input, a (nested) list per family.
        device: where the run's device tensors live. On the CPU every device is the CPU and `pinned` is ignored.
        bound: tensors that an earlier call of this function returned.
        written: the inputs that a task changes in place, from `written_in_place`.
        complete: whether every input must have a tensor now.

    Raises:
        BindingError: all that is wrong: SG501 unbound, SG502 unknown, SG503 does not fit, SG504 shares memory, SG505 wrong length.
    """
    import torch

    fresh, problems = expand(program, given)
    for name, value in fresh.items():
        problem = _mismatch(program.tensor_named[name], value, device)
        problems += [problem] if problem is not None else []
    if complete:
        # A list of the wrong length is one mistake, not one and as many unbound inputs.
        meant = {member: None for family in program.families if family.name in given for member in family.members}
        problems += unbound(program, {**meant, **(bound or {}), **fresh})
    tensors = dict(bound or {})
    tensors.update((name, value) for name, value in fresh.items() if isinstance(value, torch.Tensor) and value.layout == torch.strided)
    problems += _shared(program, tensors, [name for name in written if name in tensors])
    if problems:
        raise BindingError(*problems)
    return tensors


def by_name(program: Program, inputs: object) -> Given:
    """What somebody passed as inputs, if it is a mapping; none for None.

    Raises:
        BindingError: SG502, it is anything else.
    """
    if inputs is None or isinstance(inputs, Mapping):
        return inputs or {}
    names = ", ".join(f"{tensor.name!r}: ..." for tensor in program.inputs[:3]) + (", ..." if len(program.inputs) > 3 else "")
    message = f"the inputs of '{program.name}' are bound by name, and this is a {type(inputs).__name__}"
    raise BindingError(Problem("SG502", message, None, f"pass {{{names}}}; a call also takes keywords, `runner(name=tensor)`"))


def expand(program: Program, given: Given) -> tuple[dict[str, object], list[Problem]]:
    """What was given, by the name of each input, families taken apart; and SG502 for names that are no input, SG505 for wrong lists."""
    families = {family.name: family for family in program.families}
    inputs = {tensor.name for tensor in program.inputs}
    found: dict[str, object] = {}
    problems: list[Problem] = []
    for name, value in given.items():
        family = families.get(name)
        if name in inputs:
            found[name] = value
        elif family is not None and family.members and family.members[0] in inputs:
            members = list(_members(family, value, problems))
            if len(members) == len(family.members):
                found.update(zip(family.members, members, strict=True))
        else:
            problems.append(_unknown(program, name))
    return found, problems


def _members(family: Family, value: object, problems: list[Problem]) -> Iterator[object]:
    """The leaves of a list that is nested as the family's keys are, first key outermost."""
    level: list[tuple[str, object]] = [(family.name, value)]
    for key, items in family.keys:
        below: list[tuple[str, object]] = []
        for label, entry in level:
            if not isinstance(entry, list | tuple):
                message = f"'{label}' is a family of {len(items)} tensors (one per '{key}'), but was bound to {_what(entry)}"
                remedy = f"pass a list of {len(items)}, or bind single members: '{label}@{items[0]}'"
                problems.append(Problem("SG505", message, None, remedy))
            elif len(entry) != len(items):
                message = f"'{label}' takes {len(items)} tensors (one per '{key}': {_some(items)}), but was bound to a list of {len(entry)}"
                problems.append(Problem("SG505", message, None, f"pass exactly {len(items)}, in that order"))
            else:
                below += [(f"{label}@{item}", part) for item, part in zip(items, entry, strict=True)]
        level = below
    yield from (entry for _, entry in level)


def _unknown(program: Program, name: str) -> Problem:
    tensor = program.tensor_named.get(name)
    if tensor is not None:
        kind = {Kind.BUFFER: "a buffer: the runner makes it", Kind.VALUE: "a value: a task makes it", Kind.VIEW: "a view: bind its base"}
        why = kind.get(tensor.kind, "a resource, which holds no tensor")
        return Problem("SG502", f"'{quoted(name)}' is not an input; it is {why}", tensor.location, "declare `kind: input` to bind it")
    known = [t.name for t in program.inputs] + [f.name for f in program.families if f.members and f.members[0] in _inputs(program)]
    near = difflib.get_close_matches(name, known, n=1)
    listed = f"its inputs are: {_some(known)}" if known else "it has no inputs"
    remedy = f"did you mean '{near[0]}'?" if near else listed
    return Problem("SG502", f"'{quoted(name)}' is not an input of '{program.name}'", None, remedy)


def _inputs(program: Program) -> frozenset[str]:
    return frozenset(tensor.name for tensor in program.inputs)


def unbound(program: Program, bound: Mapping[str, object]) -> tuple[Problem, ...]:
    """SG501 for every input that nothing is bound to; a family that misses all of its members is named once."""
    missing = [tensor for tensor in program.inputs if tensor.name not in bound]
    names = {tensor.name for tensor in missing}
    families = [family for family in program.families if family.members and names.issuperset(family.members)]
    covered = {member for family in families for member in family.members}
    family_of_first = {family.members[0]: family for family in families}
    problems: list[Problem] = []
    for tensor in missing:
        kind = f" ({tensor.type})" if tensor.type is not None else ""
        family = family_of_first.get(tensor.name)
        if family is not None:
            shape = " x ".join(str(len(items)) for _, items in family.keys)
            message = f"inputs '{family.name}@*' were not bound: {shape} tensors{kind}"
            problems.append(Problem("SG501", message, tensor.location, f"pass a list: {{'{family.name}': [...]}}"))
        elif tensor.name not in covered:
            message = f"input '{tensor.name}'{kind} was not bound"
            problems.append(Problem("SG501", message, tensor.location, f"pass it: {{'{tensor.name}': ...}}, or --input {tensor.name}=FILE"))
    return tuple(problems)


def _mismatch(declared: Tensor, value: object, device: torch.device) -> Problem | None:
    import torch

    def wrong(what: str, remedy: str | None) -> Problem:
        return Problem("SG503", f"input '{declared.name}' {what}", declared.location, remedy)

    if not isinstance(value, torch.Tensor):
        return wrong(f"was bound to {_what(value)}", "bind a torch.Tensor; `torch.as_tensor(...)` makes one")
    if value.layout != torch.strided or value.is_quantized:
        return wrong(f"was bound to a {str(value.layout).removeprefix('torch.')} tensor", "bind a dense (strided) tensor")
    kind = declared.type
    if kind is not None and type_text(value) != str(kind):
        return wrong(f"is declared {kind}, but was bound to {type_text(value)}", "change the declared `type`, or the tensor")
    if device.type == "cpu":
        if value.device.type != "cpu":
            return wrong(f"is on {value.device}, but this run is on the CPU", "bind tensor.cpu(), or pass device='cuda'")
        return None
    if declared.device == "cpu":
        if value.device.type != "cpu":
            return wrong(f"is declared `device: cpu`, but was bound to a tensor on {value.device}", "bind a host tensor")
        if declared.pinned and value.numel() and not value.is_pinned():
            return wrong("is declared `pinned: true`, but the tensor bound to it is not pinned", "bind tensor.pin_memory()")
    elif value.device != (wanted := place(declared.device, device)):
        if declared.device != DEVICE:
            return wrong(f"is declared `device: {wanted}`, but was bound to a tensor on {value.device}", f"bind tensor.to('{wanted}')")
        return wrong(f"is on {value.device}, but the run is on {device}", f"bind tensor.to('{device}'), or declare `device: cpu`")
    return None


def written_in_place(program: Program, accesses: Accesses) -> tuple[str, ...]:
    """The inputs whose bytes some task changes: updated, or written through a view. In declaration order."""
    touched = {
        accesses.storages[access.storage].tensor
        for of_task in accesses.of_task
        for access in of_task
        if access.mode is not Mode.READ and accesses.storages[access.storage].kind is Kind.INPUT
    }
    return tuple(tensor.name for tensor in program.inputs if tensor.name in touched)


def _shared(program: Program, tensors: Mapping[str, torch.Tensor], written: Sequence[str]) -> tuple[Problem, ...]:
    """SG504 for every written tensor that overlaps itself or shares bytes with another one. Buffers are the runner's own and never do."""
    problems: list[Problem] = []
    done: set[str] = set()
    for name in written:
        place, tensor = program.tensor_named[name].location, tensors[name]
        done.add(name)
        if overlaps_itself(tensor):
            layout = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
            message = f"input '{name}', which a task changes in place, overlaps itself ({layout})"
            problems.append(Problem("SG504", message, place, "bind tensor.contiguous(), or tensor.clone()"))
        for other, its in tensors.items():
            if other not in done and share_bytes(tensor, its):
                message = f"input '{name}', which a task changes in place, shares memory with input '{other}'"
                remedy = "bind a clone of one of them, or declare one tensor and views of it"
                problems.append(Problem("SG504", message, place, remedy))
    return tuple(problems)


def made_up(program: Program, given: Given, device: torch.device, seed: int) -> dict[str, torch.Tensor]:
    """A tensor for every input that is not given but declares `init` and a type: for `run` and the command line, never for a runner."""
    found = expand(program, given)[0]
    return {
        tensor.name: initial(tensor, device, seed)
        for tensor in program.inputs
        if tensor.name not in found and tensor.init is not None and tensor.type is not None
    }


def initial(declared: Tensor, device: torch.device, seed: int) -> torch.Tensor:
    """A new tensor of the declared type, filled as `init` says (a buffer without `init`: zeros), on the device it belongs to.

    `random` is a standard normal for floating point, 0 to 127 for integers (which every integer dtype holds), and depends on the name and
    the seed alone: it is drawn on the CPU, so the CPU and every GPU get the same bytes. Work on a device goes to its current stream.
    """
    import torch

    assert declared.type is not None, f"bug in streamgraph: '{declared.name}' has no type"
    dtype, shape, where = torch_dtype(declared.type), declared.type.shape, place(declared.device, device)
    pinned = declared.pinned and device.type != "cpu" and where.type == "cpu"
    # A run may come in inference mode; what outlives it must stay usable outside.
    with torch.inference_mode(False), torch.no_grad():
        tensor = torch.empty(shape, dtype=dtype, device=where, pin_memory=pinned)
        match declared.init or "zeros":
            case "zeros":
                tensor.zero_()
            case "ones":
                tensor.fill_(1)
            case "arange":
                tensor.copy_(torch.arange(tensor.numel()).to(dtype).reshape(shape))
            case "random":
                tensor.copy_(_random(declared.name, shape, dtype, seed))
            case _:  # empty
                pass
    return tensor


def _random(name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    import torch

    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "little"))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    if dtype.is_complex or dtype.is_floating_point:
        # Narrow types have no generator of their own.
        wide = dtype if dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128) else torch.float32
        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
    return torch.randint(0, 128, shape, generator=generator).to(dtype)


def _what(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a value of type {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")


def _some(items: Sequence[object]) -> str:
    shown = ", ".join(map(str, items[:8]))
    return shown if len(items) <= 8 else f"{shown}, ... ({len(items)} in all)"
