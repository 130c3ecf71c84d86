"""Devices: which GPU each tensor and each task of a Program belongs to.

A program that names no GPU runs on the run's device, whichever that is. In one that names some (`device: cuda:1`), what names none lies on
the lowest of them, the program's first device, whose current stream is `main`; a value without a device lies where its task runs. A task
runs on the device of its tensors, which must be one. A copy has two ends: between host and GPU it runs on the GPU, between two GPUs on the
one that it reads from, as PyTorch does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from streamgraph.errors import Problem
from streamgraph.model import CPU, DEVICE, MAIN, Kind, Program, Task, Tensor
from streamgraph.storages import Storage


def first_device(program: Program) -> str:
    """The device of lane `main`: "device", the run's, in a program that names none."""
    return program.devices[0] if program.devices else DEVICE


def settled(program: Program) -> Program:
    """The same program with a device for every tensor, if it names any. Settling twice changes nothing."""
    if not program.devices:
        return program
    first, known = program.devices[0], program.tensor_named
    found: dict[str, str] = {}
    for tensor in program.tensors:
        if tensor.device != DEVICE:
            found[tensor.name] = tensor.device
        elif tensor.kind in (Kind.INPUT, Kind.BUFFER):
            found[tensor.name] = first
    for task in program.tasks:
        own = _device_of(task, known, found, first)
        for name in (name for entry in task.writes for name in entry.tensors):
            if name in known and known[name].kind is Kind.VALUE:
                found.setdefault(name, first if own == CPU else own)

    def device_of(tensor: Tensor) -> str:
        if tensor.kind is Kind.RESOURCE:
            return tensor.device
        return found.get(tensor.base or tensor.name, first if tensor.device == DEVICE else tensor.device)

    return replace(program, tensors=tuple(replace(tensor, device=device_of(tensor)) for tensor in program.tensors))


def of_tasks(program: Program) -> tuple[str, ...]:
    """The device that each task of a settled program runs on, in declaration order: "cpu" for host tasks, "device" if none is named."""
    first, known = first_device(program), program.tensor_named
    if not program.devices:
        return tuple(CPU if task.host else DEVICE for task in program.tasks)
    found = {tensor.name: tensor.device for tensor in program.tensors if tensor.kind is not Kind.RESOURCE}
    return tuple(_device_of(task, known, found, first) for task in program.tasks)


def crosses(task: Task, program: Program) -> tuple[str, str] | None:
    """The two GPUs of a copy between GPUs in a settled program: where it reads, where it writes. None for every other task."""
    if not task.is_copy or task.host:
        return None
    known = program.tensor_named
    source, target = known[task.reads[0].tensors[0]].device, known[task.writes[0].tensors[0]].device
    return None if source == target or CPU in (source, target) else (source, target)


def not_captured(program: Program) -> Problem | None:
    """SG611 if the program lies on several devices: a CUDA graph is captured from streams of one."""
    if len(program.devices) < 2:
        return None
    message = f"'{program.name}' lies on {' and '.join(program.devices)}, and a CUDA graph is captured on one device"
    return Problem("SG611", message, None, "use executor='eager' or 'lanes', or a program of its own for each device")


def _device_of(task: Task, known: Mapping[str, Tensor], found: Mapping[str, str], first: str) -> str:
    """The first GPU among the task's tensors: of a copy, the one that it reads comes first."""
    if task.host:
        return CPU
    return next((device for _, device in _gpus(task, known, found)), first)


def _gpus(task: Task, known: Mapping[str, Tensor], found: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each tensor of the task that is known to lie on a GPU, with that."""
    for name in task.names():
        tensor = known.get(name)
        device = found.get(tensor.base or tensor.name, CPU) if tensor is not None else CPU
        if device != CPU:
            yield name, device


def faults(program: Program, storages: Iterable[Storage]) -> Iterator[Problem]:
    """SG214 for every task, stream and ring slot of a settled program that is spread over several devices."""
    if not program.devices:
        return
    known = program.tensor_named
    found = {tensor.name: tensor.device for tensor in program.tensors if tensor.kind is not Kind.RESOURCE}
    on_stream = {MAIN: (program.devices[0], "")}
    for task, device in zip(program.tasks, of_tasks(program), strict=True):
        if task.host:
            continue
        one, *others = [*_gpus(task, known, found)] or [("", device)]
        other = next(((name, where) for name, where in others if where != one[1]), None)
        if other is not None and not task.is_copy:
            message = f"task '{task.name}' uses '{one[0]}' on {one[1]} and '{other[0]}' on {other[1]}"
            yield Problem("SG214", message, task.location, "copy one of them to the other device first")
        if task.stream is not None:
            taken, by = on_stream.setdefault(task.stream, (device, task.name))
            if taken != device:
                whose = f"task '{by}' there runs on {taken}" if by else f"that is the caller's stream on {taken}"
                message = f"task '{task.name}' runs on {device}, but is pinned to stream '{task.stream}': {whose}"
                yield Problem("SG214", message, task.location, "a stream belongs to one device: name another stream, or leave it out")
    for storage in storages:
        places = dict.fromkeys(found[name] for name in storage.members if name in found)
        if len(places) > 1:
            members = ", ".join(f"'{name}' on {found[name]}" for name in storage.members[:2])
            message = f"{storage.label} would be memory of several devices: {members}"
            remedy = "give the ring another key to turn over, or its members one device"
            yield Problem("SG214", message, known[storage.members[0]].location, remedy)
