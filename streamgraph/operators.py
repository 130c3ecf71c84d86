"""Operators: names become callables. A spec names them, the caller brings them, and nothing here imports what a spec says.

A name is looked up in this order: what the caller passed (`ops=`), torch's registered operators under `aten.`, and the built-in `copy`.
A task of a `Graph` that holds its callable needs no lookup. Every call is compared with its operator's signature or schema before
anything runs, and all that does not fit is reported at once.

An executor evaluates `operator.call`, which is already in the words of the operator, and calls `operator.function`:

    positional, keywords = operator.call.arguments(tensors)      # tensors: a list with one place per storage
    result = operator.function(*positional, **keywords)          # for `call.is_copy`: run_copy(call, tensors, device) instead
    values = check_returned(operator.call, result, tensors, device)
    check_alias(operator.call, values, tensors, operator.constants())
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from streamgraph.aten import bind, swapped_argument, swapped_words
from streamgraph.calls import Call, describe, prepare
from streamgraph.errors import OperatorError, Problem, collapsed, quoted
from streamgraph.model import NAME, Kind, Program, Task, is_gpu
from streamgraph.registry import Schema, Unfit, overloads, schema_of
from streamgraph.returned import run_copy, tensors_in
from streamgraph.storages import Accesses, trace

if TYPE_CHECKING:
    import torch

Factory: TypeAlias = Callable[[Task], "Callable[..., Any] | None"]
Operators: TypeAlias = "Mapping[str, Callable[..., Any]] | ModuleType | Factory"
"""What `ops=` takes: a mapping from names, a module whose attributes are the names, or a function from a `Task` to its callable.

A mapping may have dotted keys; of a module only plain attributes count, since `torch.os.system` is one attribute away. The function may
return None for what it leaves to `aten.`.
"""

NO_OPERATORS: Mapping[str, Callable[..., Any]] = {}


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator of one task: `function`, and the `call` to make of it."""

    name: str
    function: Callable[..., Any]
    call: Call

    def constants(self) -> tuple[torch.Tensor, ...]:
        """The tensors that the operator holds itself: among its constants, and the parameters and buffers of a `torch.nn.Module`."""
        import torch

        held: list[torch.Tensor] = list(tensors_in([value for _, value in self.call.const]))
        function: object = self.function
        while isinstance(function, functools.partial):
            held += tensors_in([*function.args, *function.keywords.values()])
            function = function.func
        for module in (function, getattr(function, "__self__", None)):
            if isinstance(module, torch.nn.Module):
                held += [*module.parameters(), *module.buffers()]
        return tuple(held)


def resolve(
    program: Program, ops: Operators | None = None, device: str | None = None, accesses: Accesses | None = None
) -> tuple[Operator, ...]:
    """The operator of each task, in declaration order.

    `device` is where `aten` operators that take no tensor make theirs when `const` does not say (`cuda:0`). `accesses` saves a `trace`.

    Raises:
        OperatorError: with all problems: SG401 unknown, SG402 does not fit the signature, SG403 refused, SG404 not callable, SG405 declares
            other writes than the schema, SG406 arguments that look swapped.
    """
    lookup = _Lookup(NO_OPERATORS if ops is None else ops)
    calls = prepare(program, trace(program)[0] if accesses is None else accesses)
    found: list[Operator] = []
    problems: list[Problem] = []
    causes: list[BaseException] = []
    for task, call in zip(program.tasks, calls, strict=True):
        try:
            found.append(_resolve(program, task, call, lookup, device))
        except Unfit as unfit:
            problems.append(Problem(unfit.code, f"task '{task.name}' {unfit.message}", task.location, unfit.help or None))
            if unfit.__cause__ is not None:
                causes.append(unfit.__cause__)
    if problems:
        raise OperatorError(*collapsed(problems)) from (causes[0] if causes else None)
    return tuple(found)


def _resolve(program: Program, task: Task, call: Call, lookup: _Lookup, device: str | None) -> Operator:
    if call.is_copy:
        return Operator("copy", run_copy, call)
    for entry in task.writes:
        if entry.keyword is not None and any(program.tensor_named[name].kind in (Kind.VALUE, Kind.INPUT) for name in entry.tensors):
            help = f"write `writes: {entry.tensors[0]}`; only buffers and views are passed to be written"
            raise Unfit("SG402", f"binds the value '{entry.tensors[0]}' to the parameter '{entry.keyword}', but a value is returned", help)
    function = task.function if task.function is not None else lookup.find(task)
    trusted = function is not None
    schemas = overloads(task.operator.removeprefix("aten.")) if function is None else _schemas(function)
    if schemas:
        changed = (program.tensor_named[name] for entry in (*task.updates, *task.writes) for name in entry.tensors)
        resources = any(tensor.kind is Kind.RESOURCE for tensor in changed)
        on_host = call.host or any(returned.device == "cpu" for returned in call.returns)
        named = next((returned.device for returned in call.returns if is_gpu(returned.device)), device)
        where = "cpu" if device is not None and on_host else device if device in (None, "cpu") else named
        overload, bound = bind(schemas, call, updates_resource=resources, device=where, trusted=trusted)
        return Operator(task.operator, overload, bound)
    assert function is not None, "bug in streamgraph: an operator of aten has no schema"
    _check_signature(function, call, lookup)
    return Operator(task.operator, function, call)


class _Lookup:
    """What the caller passed, and what has been found in it so far."""

    def __init__(self, ops: Operators) -> None:
        self.ops = ops
        # By identity, since callables need not be hashable; each is held here, so that no other gets its number.
        self.signatures: dict[int, tuple[Callable[..., Any], inspect.Signature | None]] = {}
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(ops, torch.nn.Module):
            help = "pass it under the name that the program uses: ops={'name': module}"
            raise OperatorError(Problem("SG404", "`ops` is one operator and not a collection of them", None, help))
        if not (isinstance(ops, Mapping | ModuleType) or callable(ops)):
            help = "pass a mapping from names to callables, a module, or a function from a Task to its callable"
            raise OperatorError(Problem("SG404", f"`ops` is a {type(ops).__name__}", None, help))

    def find(self, task: Task) -> Callable[..., Any] | None:
        """The caller's operator of that name; None for an `aten` name that the caller did not bring.

        Raises:
            Unfit: SG401, SG403 or SG404.
        """
        name = task.operator
        shown = quoted(name)
        is_aten = name.startswith("aten.")
        if NAME.match(name) is None:
            help = "a name is letters, digits and `_`, joined by `.`"
            raise Unfit("SG401", f"runs '{shown}', which is not the name of an operator", help)
        # A single underscore after `aten.` is for the registry to judge: a few of torch's core operators begin with one.
        reaches = name.startswith("aten.__") if is_aten else any(part.startswith("_") for part in name.split("."))
        if reaches:
            help = "names with a leading underscore reach into Python's machinery: rename the operator"
            raise Unfit("SG403", f"runs '{shown}', and a part of that name begins with an underscore", help)
        if isinstance(self.ops, Mapping):
            found = self.ops.get(name)
        elif isinstance(self.ops, ModuleType):
            found = getattr(self.ops, name, None) if "." not in name else None
        else:
            try:
                found = self.ops(task)
            except Exception as error:
                help = "the function that was passed as `ops` gets the Task and returns its callable, or None for an operator of `aten`"
                raise Unfit("SG401", f"runs '{shown}', and `ops` raised {type(error).__name__}: {quoted(error)}", help) from error
        if found is None and is_aten:
            return None
        if found is None:
            raise Unfit("SG401", f"runs '{shown}', which is not an operator that the caller passed", self.remedy(name))
        if not callable(found):
            help = "pass a function, a `torch.nn.Module` or another callable under that name"
            raise Unfit("SG404", f"runs '{shown}', but what was passed under that name is a {type(found).__name__}", help)
        return found

    def remedy(self, name: str) -> str:
        """What to do about a name that was not found: the near names first."""
        known = self.names()
        near = difflib.get_close_matches(name, known, 3)
        last = name.rpartition(".")[2]
        if not near and last in known:
            near = [last]
        torch = sys.modules.get("torch")
        if torch is not None and not last.startswith("_") and isinstance(getattr(torch.ops.aten, last, None), torch._ops.OpOverloadPacket):
            near.append(f"aten.{last}")
        bring = "a spec cannot import code: bring it with `ops=` or `--ops FILE`"
        return f"did you mean {' or '.join(repr(word) for word in near)}? Otherwise: {bring}" if near else bring

    def names(self) -> list[str]:
        """The names of the callables that were passed, if they can be listed."""
        if isinstance(self.ops, Mapping):
            return [str(name) for name in self.ops]
        if isinstance(self.ops, ModuleType):
            return [name for name, value in vars(self.ops).items() if not name.startswith("_") and callable(value)]
        return []

    def signature(self, function: Callable[..., Any]) -> inspect.Signature | None:
        """The signature of a callable; None for one that has none to show, as torch's built-in functions."""
        key = id(function)
        if key not in self.signatures:
            self.signatures[key] = (function, _signature(function))
        return self.signatures[key][1]


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    torch = sys.modules.get("torch")
    inner = function.forward if torch is not None and isinstance(function, torch.nn.Module) else function
    try:
        return inspect.signature(inner)
    except (TypeError, ValueError):
        return None


def _schemas(function: Callable[..., Any]) -> tuple[Schema, ...]:
    """The schemas of one of torch's operator objects, `torch.ops.aten.mm` and its like; () for any other callable."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(function, torch._ops.OpOverload):
        return (schema_of(function),)
    if torch is not None and isinstance(function, torch._ops.OpOverloadPacket):
        return tuple(schema_of(getattr(function, name)) for name in function.overloads())
    return ()


def _check_signature(function: Callable[..., Any], call: Call, lookup: _Lookup) -> None:
    """Bind the call to the signature, without calling anything."""
    signature = lookup.signature(function)
    if signature is None:
        return
    keywords = [name for name, _ in (*call.keywords, *call.const)]
    shown = f"{call.operator.rpartition('.')[2]}{_plain(signature)}"
    repeated = sorted({name for name in keywords if keywords.count(name) > 1})
    try:
        if repeated:
            raise TypeError(f"multiple values for argument '{repeated[0]}'")
        signature.bind(*[None] * len(call.positional), **dict.fromkeys(keywords))
    except TypeError as error:
        message = f"describes the call {describe(call)}, which does not fit {shown}: {error}"
        raise Unfit("SG402", message, _remedy(signature, call)) from None
    parameters = [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    swapped = swapped_argument(parameters, call.positional, call)
    if swapped is not None:
        raise Unfit("SG406", *swapped_words(*swapped, shown, call))


def _plain(signature: inspect.Signature) -> str:
    """The signature without annotations, which say little here and run long."""
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _remedy(signature: inspect.Signature, call: Call) -> str:
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for name, slot in call.keywords:
        if name == "out" and "out" not in signature.parameters and not takes_any:
            tensor = describe(Call("", "", (slot,), (), (), (), False, False, False))[1:-1]
            return f"a written buffer is passed as `out`: give the function that parameter, or name its own: `writes: {{name: {tensor}}}`"
    return "positional: `updates`, then `reads`; by keyword: `const`, and everything in the mapping form `reads: {name: tensor}`"


def load_operators(source: str) -> ModuleType:
    """The module that the user named on the command line: a file, `ops.py`, or an importable module, `package.ops`.

    While it is imported, its own folder (for a module: the current one) comes first on the path, as when Python runs a script.

    Raises:
        OperatorError: SG407 if it is missing or raises; the original is the cause.
    """
    is_file = source.endswith(".py") or os.sep in source
    path = Path(source)
    if is_file and not path.is_file():
        help = "`--ops` takes a Python file, or a module's name"
        raise OperatorError(Problem("SG407", f"there is no file '{quoted(source)}'", None, help))
    folder = str(path.resolve().parent if is_file else Path.cwd())
    sys.path.insert(0, folder)
    try:
        return _import_file(path) if is_file else importlib.import_module(source)
    except (Exception, SystemExit) as error:
        what = f"'{quoted(source)}' raised {type(error).__name__} while it was imported: {quoted(error)}"
        if isinstance(error, ModuleNotFoundError) and error.name == source.split(".")[0] and not is_file:
            what = f"there is no module '{quoted(source)}'"
        alone = f"python {quoted(source)}" if is_file else f"python -c 'import {quoted(source)}'"
        raise OperatorError(Problem("SG407", what, None, f"it must import by itself: {alone}")) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _import_file(path: Path) -> ModuleType:
    name = f"streamgraph_operators_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"'{path}' is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as `import` does: dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
