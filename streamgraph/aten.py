"""Calls of torch's registered operators: the overload that a call fits, checked against its schema before anything runs.

What a task declares to update and to write must be what the schema changes and returns, no less and no more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streamgraph.calls import Call, Operands, Slot, describe, operands
from streamgraph.errors import quoted
from streamgraph.model import LONG_NAMES, TORCH_NAMES
from streamgraph.registry import CHANGES_STATISTICS, OVERWRITES, RETURNS_VIEWS, STATISTICS, SWITCHED_OFF, Parameter, Schema, Unfit
from streamgraph.storages import Mode

if TYPE_CHECKING:
    from torch._ops import OpOverload

MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")


@dataclass(frozen=True, slots=True)
class Match:
    """A schema with what the call passes to each of its parameters: tensors, or plain data already of torch's type."""

    schema: Schema
    positional: tuple[Slot, ...]
    keywords: tuple[tuple[str, Slot], ...]
    const: tuple[tuple[str, Any], ...]
    slots: tuple[tuple[Parameter, Slot], ...]

    def value(self, name: str) -> object:
        """The constant that a parameter gets, its default included; None if it has no such parameter."""
        for parameter in self.schema.parameters:
            if parameter.name == name:
                return dict(self.const).get(name, parameter.default)
        return None


def bind(schemas: tuple[Schema, ...], call: Call, *, updates_resource: bool, device: str | None, trusted: bool) -> tuple[OpOverload, Call]:
    """The first overload that the call fits, and the call in the words of its schema: keywords for `out`, dtypes and devices as objects.

    `updates_resource`: the task updates a resource. `device`: where operators without tensor arguments make theirs, if nothing is said.
    `trusted`: the caller passed this operator, so unknown parameter types are the caller's affair.

    Raises:
        Unfit: SG402, SG405 or SG406.
    """
    reasons: list[str] = []
    for schema in schemas:
        match = _match(schema, call, device, trusted)
        if isinstance(match, Match):
            break
        reasons.append(f"{schema}: {match}")
    else:
        more = f" (and {len(reasons) - 3} more overloads)" if len(reasons) > 3 else ""
        listed = "\n     ".join(reasons[:3])
        help = "pass tensors in the order of the schema, or by keyword in the mapping form: `reads: {input: x}`; the rest in `const`"
        raise Unfit("SG402", f"describes the call {describe(call)}, which fits no overload:\n     {listed}{more}", help)
    _check_names(match, call)
    _check_changes(match, call)
    _check_results(match, call)
    if match.schema.seeded and not updates_resource and all(match.value(name) != off for name, off in _switches(match)):
        help = "declare `rng: {kind: resource}` and write `updates: rng` in every task that draws, so that they keep their order"
        raise Unfit("SG405", f"draws random numbers with '{_name(match)}', and updates no resource", help)
    sequence = match.schema.listed or len(match.schema.returns) > 1
    bound = replace(
        call, positional=match.positional, keywords=match.keywords, const=match.const,
        returns_sequence=sequence if call.returns else False,
    )  # fmt: skip
    return match.schema.overload, bound


def _switches(match: Match) -> list[tuple[str, object]]:
    return [(p.name, SWITCHED_OFF[p.name]) for p in match.schema.parameters if p.name in SWITCHED_OFF]


def _match(schema: Schema, call: Call, device: str | None, trusted: bool) -> Match | str:
    """The call bound to one schema, or the sentence that says why it does not fit."""
    by_name = {parameter.name: parameter for parameter in schema.parameters}
    outs = tuple(parameter.name for parameter in schema.parameters if parameter.is_out)
    keywords = dict(call.keywords)
    positional = call.positional
    out = keywords.get("out")
    if out is not None and ("out" not in by_name or len(outs) > 1):
        del keywords["out"]
        if not outs and schema.name in OVERWRITES:
            positional = (out, *positional)
        else:
            given = out.items if isinstance(out, Operands) and not out.is_list else (out,)
            if len(given) != len(outs):
                return f"it writes {len(outs)} tensors in place of `out`, not {len(given)}" if outs else "it has no parameter 'out'"
            keywords.update(zip(outs, given, strict=True))
    order = [parameter for parameter in schema.parameters if not parameter.keyword_only]
    if len(positional) > len(order):
        return f"it takes {len(order)} positional arguments, not {len(positional)}"
    slots = list(zip(order, positional, strict=False))
    taken = {parameter.name for parameter, _ in slots}
    for name, slot in keywords.items():
        if name not in by_name:
            return f"it has no parameter '{name}'"
        if name in taken:
            return f"'{name}' is passed twice"
        slots.append((by_name[name], slot))
        taken.add(name)
    for parameter, slot in slots:
        if parameter.base != "Tensor":
            return f"'{parameter.name}' is not a tensor"
        if parameter.is_list != isinstance(slot, Operands):
            what = "a list of tensors: write `reads: [[a, b]]`, or `x@*`" if parameter.is_list else "one tensor and not a list"
            return f"'{parameter.name}' is {what}"
    const: dict[str, Any] = {}
    for name, value in call.const:
        if name not in by_name:
            return f"it has no parameter '{name}'"
        if name in taken:
            return f"'{name}' is passed twice"
        try:
            const[name] = convert(value, by_name[name], trusted=trusted)
        except ValueError as error:
            return str(error)
    if device is not None and "device" in by_name and "device" not in const and not slots:
        const["device"] = convert(device, by_name["device"], trusted=True)
    missing = [p.name for p in schema.parameters if not p.has_default and p.name not in taken and p.name not in const]
    if missing:
        return f"nothing is passed for '{missing[0]}'"
    return Match(schema, positional, tuple(keywords.items()), tuple(const.items()), tuple(slots))


def convert(value: object, parameter: Parameter, *, trusted: bool = False) -> Any:
    """Plain data as the parameter's type: `f16` or `float16` a dtype, `cpu` or `cuda:0` a device, a tuple a list.

    Raises:
        ValueError: with a sentence for the person who wrote it.
    """
    name, base = parameter.name, parameter.base
    if value is None:
        if parameter.optional:
            return None
        raise ValueError(f"'{name}' may not be null")
    if trusted and not isinstance(value, bool | int | float | str | list | tuple):
        return value
    if parameter.is_list:
        if not isinstance(value, list | tuple):
            if not parameter.repeats:
                raise ValueError(f"'{name}' is a list")
            return [_scalar(value, base, name)] * parameter.repeats
        return [_scalar(item, base, name) for item in value]
    return _scalar(value, base, name)


def _scalar(value: object, base: str, name: str) -> Any:
    import torch

    shown = quoted(repr(value), 40)
    if base == "bool" and isinstance(value, bool):
        return value
    if base == "int" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if base == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if base == "number" and isinstance(value, bool | int | float):
        return value
    if base == "str" and isinstance(value, str):
        return value
    if base == "ScalarType" and isinstance(value, str):
        long = TORCH_NAMES.get(value, value)
        if long not in LONG_NAMES:
            raise ValueError(f"'{name}' is a dtype, and {shown} is none: {', '.join(TORCH_NAMES)}")
        return getattr(torch, long)
    if base == "Device" and isinstance(value, str):
        if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", value):
            raise ValueError(f"'{name}' is a device, `cpu` or `cuda`, and not {shown}")
        return torch.device(value)
    if base == "Layout" and isinstance(value, str):
        if value != "strided":
            raise ValueError(f"'{name}' may only be `strided`, and not {shown}")
        return torch.strided
    if base == "MemoryFormat" and isinstance(value, str):
        if value not in MEMORY_FORMATS:
            raise ValueError(f"'{name}' is a memory format, and {shown} is none: {', '.join(MEMORY_FORMATS)}")
        return getattr(torch, value)
    if base in ("Tensor", "Generator"):
        raise ValueError(f"'{name}' is a {base.lower()} and cannot be a constant")
    words = {"number": "a number", "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a string"}
    raise ValueError(f"'{name}' is {words.get(base, 'a ' + base)}, and not {shown}")


def _name(match: Match) -> str:
    return f"aten.{match.schema.name}"


def _check_names(match: Match, call: Call) -> None:
    """A positional argument whose parameter bears the name of another tensor: swapped, most likely."""
    swapped = swapped_argument([parameter.name for parameter, _ in match.slots[: len(match.positional)]], match.positional, call)
    if swapped is not None:
        raise Unfit("SG406", *swapped_words(*swapped, str(match.schema), call))


def swapped_argument(parameters: list[str], positional: tuple[Slot, ...], call: Call) -> tuple[str, str] | None:
    """The first positional argument that stands where another tensor's name is the parameter: (passed, parameter)."""
    families = {operand.tensor.partition("@")[0] for operand in call.operands()} | {operand.tensor for operand in call.operands()}
    for parameter, slot in zip(parameters, positional, strict=False):
        passed = [operand.tensor for operand in operands(slot)]
        if parameter in families and not any(name == parameter or name.partition("@")[0] == parameter for name in passed):
            return passed[0], parameter
    return None


def swapped_words(passed: str, parameter: str, signature: str, call: Call) -> tuple[str, str]:
    """The sentence and the remedy for `swapped_argument`."""
    where = f"where the parameter is called '{parameter}', which is another tensor of the task"
    message = f"passes '{passed}' {where}: {describe(call)} calls {signature}"
    return message, f"change the order; if it is meant, bind by keyword: `reads: {{{parameter}: {passed}}}`"


def _check_changes(match: Match, call: Call) -> None:
    """What the schema changes, and nothing else, must be declared as changed."""
    name, operator = _name(match), match.schema.name
    flag = CHANGES_STATISTICS.get(operator, "")
    for parameter, slot in match.slots:
        hidden = operator in CHANGES_STATISTICS and parameter.name in STATISTICS
        changes = parameter.is_write or (hidden and (flag is None or flag == "" or match.value(flag) is not False))
        for operand in operands(slot):
            tensor = operand.tensor
            if changes and operand.mode is Mode.READ:
                raise Unfit("SG405", f"only reads '{tensor}', but '{name}' changes it in place", f"move '{tensor}' to `updates`")
            if changes and operand.mode is Mode.WRITE and not parameter.is_out and operator not in OVERWRITES:
                raise Unfit("SG405", f"writes '{tensor}', but '{name}' reads it before it changes it", f"move '{tensor}' to `updates`")
            if not parameter.is_write and not hidden and operand.mode is not Mode.READ:
                verb = "updates" if operand.mode is Mode.UPDATE else "writes"
                help = f"move '{tensor}' to `reads`, and write the result to a value; or name the operator that works in place"
                raise Unfit("SG405", f"{verb} '{tensor}', but '{name}' does not change '{parameter.name}'", help)


def _check_results(match: Match, call: Call) -> None:
    """What is returned must be new memory, and as many tensors as are written."""
    schema, name = match.schema, _name(match)
    names = ", ".join(returned.tensor for returned in call.returns)
    if schema.views or (schema.fresh and schema.name in RETURNS_VIEWS):
        what = f"returns '{names}' from '{name}'" if names else f"runs '{name}'"
        help = "declare a part of a tensor as a `view`; or copy it, with `aten.clone` or an operator that ends in `_copy`"
        raise Unfit("SG405", f"{what}, which makes no new memory: its result is a view of its argument", help)
    if call.returns and not schema.fresh:
        help = "declare what it changes in `updates` or `writes`; or name the operator that returns a new tensor"
        raise Unfit("SG405", f"writes the value '{names}', but '{name}' returns what it changed in place", help)
    if schema.listed and call.returns and schema.fresh:
        return  # how many it returns depends on its arguments; the first call checks it
    if len(call.returns) != schema.fresh:
        returned = f"{schema.fresh} new {'tensor' if schema.fresh == 1 else 'tensors'} ({', '.join(schema.returns)})"
        wanted = f"{len(call.returns)} ({names})" if call.returns else "none"
        help = "list one value in `writes` for each, in this order"
        if any(operand.mode is Mode.WRITE for operand in call.operands()):
            help += "; a buffer is written by an overload with `out`"
        raise Unfit("SG405", f"writes {wanted}, but '{name}' returns {returned}", help)
