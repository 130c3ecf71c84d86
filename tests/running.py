"""Words for tests that run things: inputs from a seed, what the reference makes of them, programs that show a missing wait in a value."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from streamgraph.binding import initial
from streamgraph.executors.device import Device, HostDevice
from streamgraph.executors.sequential import SequentialExecutor, without_rings
from streamgraph.model import HOST, Program
from streamgraph.operators import resolve
from streamgraph.outputs import with_outputs
from streamgraph.plan import as_program
from streamgraph.schedule import HostWait, Launch, Record, Schedule, Wait
from tests.programs import mix_for
from tests.support import graph

Tensors = Mapping[str, torch.Tensor]




def inputs_of(of: Program, seed: int, device: str = "cpu") -> dict[str, torch.Tensor]:
    return {tensor.name: initial(replace(tensor, init="random"), torch.device(device), seed) for tensor in of.inputs}


def skip_without_gpus(of: Program) -> None:
    """Skip the test where the GPUs that a program needs are not here."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if of.devices and torch.cuda.device_count() <= int(of.devices[-1].partition(":")[2]):
        pytest.skip(f"needs {' and '.join(of.devices)}")


def reference(of: Program, device: Device | None = None) -> SequentialExecutor:
    """The reference executor of a program whose tasks run `mix`."""
    of, device = as_program(of), device or HostDevice()
    return SequentialExecutor(of, resolve(without_rings(of), mix_for(of, str(device.location))), device)


def steps_of(schedule: Schedule, keep: Callable[[Any], bool]) -> Schedule:
    """The same schedule with only the steps that `keep` says."""
    return replace(schedule, steps=tuple(step for step in schedule.steps if keep(step)))


def hurried(schedule: Schedule, seed: int = 0, share: float = 0.5) -> Schedule:
    """The same schedule with some launches on streams urgent, drawn from a seed."""
    draws = random.Random(seed)
    steps = (
        replace(step, urgent=draws.random() < share) if isinstance(step, Launch) and step.lane != HOST else step for step in schedule.steps
    )
    return replace(schedule, steps=tuple(steps))


def expected_of(of: Program, runs: int, first_seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """What the reference gives on the CPU, run after run."""
    executor = reference(of)
    return [dict(executor.run(inputs_of(of, first_seed + run)).outputs) for run in range(runs)]


def run_after_run(executor: Any, schedule: Schedule, runs: int, overwrite: bool = True) -> list[dict[str, torch.Tensor]]:
    """What runs back to back give. With `overwrite`, each run's host inputs are spoiled as soon as they may be."""
    of, accesses = schedule.program, schedule.accesses
    host = {name for name, number in accesses.outputs if accesses.storages[number].host}
    results = []
    for run in range(runs):
        inputs = inputs_of(of, run)
        finished = executor.run(inputs)
        # Results in host memory are there when the run returns; the others may be far behind.
        results.append({name: t.clone() if name in host else t for name, t in finished.outputs.items()})
        if overwrite:
            finished.inputs_free()
            for tensor in of.inputs:
                if tensor.device == "cpu":
                    inputs[tensor.name].fill_(-1)
    return results


def same(results: Tensors, expected: Tensors) -> bool:
    """Equal names, and equal bytes wherever they are."""
    return list(results) == list(expected) and all(torch.equal(results[name].cpu(), expected[name].cpu()) for name in expected)


def all_tensors(of: Program) -> Program:
    """The program with every tensor that has memory at its end among its outputs."""
    kinds = {"value", "buffer", "input", "view"}
    return with_outputs(of, [t.name for t in of.tensors if t.kind.value in kinds and ":" not in t.name and _has_memory(of, t.name)])


def _has_memory(of: Program, name: str) -> bool:
    written = {n for task in of.tasks for entry in task.writes for n in entry.tensors}
    rings = {member for family in of.families for member in family.members}
    tensor = of.tensor_named[name]
    # A ring member may have lost its slot by the end, when outputs are copied.
    return name not in rings and (name in written or tensor.kind.value in ("buffer", "input", "view"))


CHAINS = {
    "RAW": graph("a: x -> y @one | b: y -> z @two | c: z -> r @main", "x", outputs="r"),
    "WAR": graph("a: x -> b @one | r: b -> y @two | o: x y -> v @main | a2: x -> b @one | d: b -> w @main", "x", "b", outputs="y v w"),
    "updates": graph("a: x -> +b @one | c: x -> +b @two | d: b -> y @main", "x", "b", outputs="y"),
    "host": graph("a: x -> h @one | p: h -> k ! | c: k -> y @two", "x", hosts="h k", outputs="y"),
}


def shows_in_no_value(schedule: Schedule, step: Wait | HostWait) -> bool:
    """Entry and exit order the caller's own work, of which these programs have none; the one issuing thread is past any host task."""
    on_host = any(isinstance(s, Record) and s.lane == "host" and s.event == step.event for s in schedule.steps)
    return on_host or any(reason.kind in ("entry", "exit", "last use") for reason in step.reasons)


class Fault(Exception):
    pass


def failing(of: Program, broken: Mapping[str, BaseException], base: Any = None) -> Any:
    """`ops=` under which the tasks named raise."""
    working = base or mix_for(of)

    def operator(task: Any) -> Any:
        healthy = working(task)

        def call(*positional: Any, **keywords: Any) -> Any:
            if task.name in broken:
                raise broken[task.name]
            return healthy(*positional, **keywords)

        return call

    return operator
