"""Which executor runs a schedule: the one that was asked for, or the device's default."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from streamgraph.devices import not_captured
from streamgraph.errors import DeviceError
from streamgraph.executors import Executor
from streamgraph.executors.annotate import as_asked
from streamgraph.executors.device import CudaDevice, Device
from streamgraph.operators import Operators, resolve
from streamgraph.schedule import Schedule


def chosen(name: str, location: torch.device) -> str:
    """The executor that a name means there. "auto" follows a rule: "lanes" on the CPU, where each lane is a thread, and "eager" on a GPU.

    It never means "graph": whether shapes and control flow stay the same is the caller's to know.
    """
    return name if name != "auto" else "lanes" if location.type == "cpu" else "eager"


def make_executor(
    schedule: Schedule, ops: Operators | None, name: str, device: Device, seed: int, bound: Mapping[str, torch.Tensor]
) -> Executor:
    """The executor of that name; "auto" is "lanes" on the CPU and "eager" on a GPU. `bound` are the inputs that stay for good.

    Raises:
        OperatorError: operators that are missing or do not fit.
        DeviceError: SG606, this device cannot do it; SG611, a program on several devices cannot be captured.
    """
    location = device.location
    name = chosen(name, location)
    if name == "sequential":
        from streamgraph.executors.sequential import SequentialExecutor, without_rings

        operators = as_asked(resolve(without_rings(schedule.program), ops, str(location)), location)
        return SequentialExecutor(schedule.program, operators, device, seed)
    if isinstance(device, CudaDevice):
        for place in dict.fromkeys(schedule.device_of.values()):
            device.check_lanes([lane.priority for lane in schedule.lanes[1:] if schedule.device_of.get(lane.name) == place])
    operators = as_asked(resolve(schedule.program, ops, str(location), schedule.accesses), location)
    if name == "lanes":
        from streamgraph.executors.lanes import LanesExecutor

        return LanesExecutor(schedule, operators, seed, device=device)
    if name == "graph":
        from streamgraph.executors.capture import host_task

        problem = not_captured(schedule.program) if location.type != "cpu" else None
        if problem is not None:
            raise DeviceError(problem)
        if host_task(schedule) is not None:
            from streamgraph.executors.split import SplitExecutor

            return SplitExecutor(schedule, operators, device, seed, bound)
        from streamgraph.executors.graph import GraphExecutor

        return GraphExecutor(schedule, operators, device, seed, bound)
    from streamgraph.executors.compiled import CompiledExecutor

    return CompiledExecutor(schedule, operators, device, seed)
