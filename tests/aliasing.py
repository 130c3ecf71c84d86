"""Calls every operator of `aten` that a spec may name with made-up arguments, each in a process of its own, and prints what it finds:

    ran COUNT                  calls that went through
    alias NAME OVERLOAD        a result that the schema calls new shares memory with an argument
    changed NAME OVERLOAD      an argument that the schema calls read-only has changed

Run by tests/test_operators.py, as a script: some operators end the process when they are given nonsense.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch

from streamgraph.registry import Parameter, Unfit, overloads
from streamgraph.returned import tensors_in

ARGUMENTS = (
    torch.arange(1.0, 9.0).reshape(2, 4), torch.arange(1.0, 5.0).reshape(2, 2), torch.arange(1, 5), torch.ones(2, 2, 2, 2), torch.ones(1),
    torch.ones(()), torch.ones(3, dtype=torch.bool), torch.ones(2, 2, dtype=torch.complex64),
)  # fmt: skip


def value(parameter: Parameter, tensor: torch.Tensor, *, flag: bool) -> Any:
    """Something of the parameter's type."""
    if parameter.base == "Tensor":
        return [tensor] if parameter.is_list else tensor
    if parameter.optional:
        return None
    made = {
        "int": 1, "float": 1.0, "number": 1, "bool": flag, "ScalarType": torch.float32, "MemoryFormat": torch.contiguous_format,
        "Device": torch.device("cpu"), "Layout": torch.strided, "str": "none",
    }[parameter.base]  # fmt: skip
    return [made] if parameter.is_list else made


def try_all(name: str) -> None:
    """Call every overload of one operator with every argument."""
    ran = 0
    for schema in overloads(name):
        if schema.seeded or not schema.fresh or any(parameter.is_write for parameter in schema.parameters):
            continue
        needed = [parameter for parameter in schema.parameters if not parameter.has_default]
        found = set()
        for original in ARGUMENTS:
            for flag in (False, True):
                tensor = original.clone()
                try:
                    result = schema.overload(**{parameter.name: value(parameter, tensor, flag=flag) for parameter in needed})
                except Exception:  # the arguments are nonsense to most operators
                    continue
                ran += 1
                if not torch.equal(tensor, original):
                    found.add("changed")
                own = tensor.untyped_storage().data_ptr()
                dense = [made for made in tensors_in(result) if made.layout == torch.strided and made.numel()]
                if any(made.untyped_storage().data_ptr() == own for made in dense):
                    found.add("alias")
        for word in sorted(found):
            print(word, name, schema.overload._overloadname, flush=True)
    print("ran", ran, flush=True)


def main() -> None:
    """One process for each operator."""
    torch.set_num_threads(1)
    for name in sorted({schema.name.removeprefix("aten::") for schema in torch._C._jit_get_all_schemas()}):
        try:
            overloads(name)
        except Unfit:
            continue
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                try_all(name)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
