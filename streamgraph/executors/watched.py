"""Watched: an executor that interprets the steps, with operators that somebody looks at. For `compare`, `bench` and measured runs.

A copy becomes a plain call that does the same, since executors do not call its function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from streamgraph.calls import Call, type_text
from streamgraph.errors import DeviceError, Problem, quoted
from streamgraph.executors import Executor
from streamgraph.executors.device import Device
from streamgraph.model import Program
from streamgraph.operators import Operator, Operators, resolve
from streamgraph.returned import empty_for
from streamgraph.schedule import Schedule


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own memory with the same bytes and strides, pinned if this one is."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device, pin_memory=tensor.is_pinned())
    return copy.copy_(tensor)


def copy_call(call: Call, location: torch.device, *positional: torch.Tensor, **keywords: torch.Tensor) -> Any:
    """What `run_copy` does, with the tensors as arguments."""
    out = keywords.pop("out", None)
    (source,) = (*positional, *keywords.values())
    if call.returns:
        out = empty_for(call.returns[0], source, location)
    assert out is not None, f"bug in streamgraph: '{call.task}' copies to nothing"
    if out.shape != source.shape:
        raise ValueError(f"copies {type_text(source)} to {type_text(out)}: the shapes must be equal")
    out.copy_(source, non_blocking=True)
    return ((out,) if call.returns_sequence else out) if call.returns else None


def watched_executor(
    schedule: Schedule, name: str, ops: Operators | None, device: Device, seed: int, watched: Callable[[Operator, torch.device], Operator]
) -> Executor:
    """The executor of that name, which interprets the steps, with `watched` operators: calls that are no copies."""
    location = device.location
    if name not in ("sequential", "eager", "lanes"):
        message = f"the executor '{quoted(name)}' does not call tasks one by one, so they cannot be watched"
        raise DeviceError(Problem("SG606", message, None, "use sequential, lanes or eager"))

    def operators(program: Program) -> tuple[Operator, ...]:
        return tuple(watched(operator, location) for operator in resolve(program, ops, str(location)))

    if name == "sequential":
        from streamgraph.executors.sequential import SequentialExecutor, without_rings

        return SequentialExecutor(schedule.program, operators(without_rings(schedule.program)), device, seed)
    if name == "lanes":
        from streamgraph.executors.lanes import LanesExecutor

        return LanesExecutor(schedule, operators(schedule.program), seed, device=device)
    from streamgraph.executors.eager import EagerExecutor

    return EagerExecutor(schedule, operators(schedule.program), device, seed)
