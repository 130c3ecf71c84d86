"""Words for tests on a GPU: delayed operators, executors without a runner around them, and counts of the CUDA calls really made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from streamgraph.executors.compiled import CompiledExecutor
from streamgraph.executors.device import find
from streamgraph.executors.eager import EagerExecutor
from streamgraph.executors.graph import GraphExecutor
from streamgraph.executors.lanes import LanesExecutor
from streamgraph.model import CPU, DEVICE, Program, Task
from streamgraph.operators import resolve
from streamgraph.schedule import Schedule
from tests.programs import mix_for

MILLISECOND = 2_000_000  # clock cycles of a GPU at about 2 GHz


def delayed(ops: Callable[[Task], Callable[..., Any]], cycles: Mapping[str, int]) -> Callable[[Task], Callable[..., Any]]:
    """`ops=` under which these tasks first keep their stream busy for so many clock cycles."""

    def operator(task: Task) -> Callable[..., Any]:
        healthy = ops(task)

        def call(*positional: Any, **keywords: Any) -> Any:
            if task.name in cycles and not task.host:
                torch.cuda._sleep(cycles[task.name])
            return healthy(*positional, **keywords)

        return call

    return operator


def eager(schedule: Schedule, ops: Any = None) -> EagerExecutor:
    """An executor of a schedule that nobody has verified."""
    device = find("cuda", schedule.program)
    operators = resolve(schedule.program, ops or mix_for(schedule.program, "cuda"), str(device.location), schedule.accesses)
    return EagerExecutor(schedule, operators, device)


def compiled(schedule: Schedule, ops: Any = None) -> CompiledExecutor:
    """The compiled executor of a schedule that nobody has verified; its first run is the interpreter's."""
    device = find("cuda", schedule.program)
    operators = resolve(schedule.program, ops or mix_for(schedule.program, "cuda"), str(device.location), schedule.accesses)
    return CompiledExecutor(schedule, operators, device)


def threaded(schedule: Schedule, ops: Any = None) -> LanesExecutor:
    """The executor with a thread per lane of a schedule that nobody has verified."""
    device = find("cuda", schedule.program)
    operators = resolve(schedule.program, ops or mix_for(schedule.program, "cuda"), str(device.location), schedule.accesses)
    return LanesExecutor(schedule, operators, device=device)


def graphed(schedule: Schedule, ops: Any = None) -> GraphExecutor:
    """The graph executor of a schedule that nobody has verified; its first run is the interpreter's."""
    device = find("cuda", schedule.program)
    operators = resolve(schedule.program, ops or mix_for(schedule.program, "cuda"), str(device.location), schedule.accesses)
    return GraphExecutor(schedule, operators, device, 0, {})


def inputs_on_gpu(of: Program, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same inputs where the program wants them. The copies are done when this returns."""
    placed = {
        t.name: tensors[t.name].to("cuda" if t.device == DEVICE else t.device) if t.device != CPU
        else tensors[t.name].pin_memory() if t.pinned else tensors[t.name]
        for t in of.inputs
    }  # fmt: skip
    at_rest(of)
    return placed


def at_rest(of: Program) -> None:
    """Wait for everything on the devices of the program."""
    for device in of.devices or ("cuda",):
        torch.cuda.synchronize(device)


@dataclass
class Calls:
    """CUDA event calls of the whole process, as PyTorch reports them: the events' addresses, in order."""

    created: list[int] = field(default_factory=list)
    recorded: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)


_listening: list[Calls] = []
_registered: list[bool] = []


@contextmanager
def counted() -> Iterator[Calls]:
    """The event calls made inside the `with`."""
    if not _registered:
        from torch.cuda import _gpu_trace

        _gpu_trace.register_callback_for_event_creation(lambda event: [calls.created.append(event) for calls in _listening])
        _gpu_trace.register_callback_for_event_record(lambda event, stream: [calls.recorded.append(event) for calls in _listening])
        _gpu_trace.register_callback_for_event_wait(lambda event, stream: [calls.waited.append(event) for calls in _listening])
        torch._C._activate_gpu_trace()
        _registered.append(True)
    calls = Calls()
    _listening.append(calls)
    try:
        yield calls
    finally:
        _listening.remove(calls)
