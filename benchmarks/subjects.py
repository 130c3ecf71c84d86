"""What is measured: four published networks and six programs, each with its operators, its tensors, and what its tasks cost here.

    inception_v3, googlenet             of torchvision
    nasnet_large, pnasnet_large         of timm
    inception, nasnet, ...              of `programs.py`

The networks have random weights; their statistics of batch normalisation come from one batch of noise, so that what they compute stays in
range. The time of their tasks does not depend on what they compute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from exported import convert
from programs import SHAPES, inputs_of

import streamgraph as sg
from streamgraph.cost import TaskCost
from streamgraph.executors.profile import Profile, profile_tasks
from streamgraph.model import Program
from streamgraph.operators import Operator, resolve
from streamgraph.schedule import Schedule


@dataclass
class Subject:
    """One program. `module` and `example` are there for networks: what it was made from, and the input."""

    name: str
    program: Program
    ops: Mapping[str, Callable[..., Any]] | None
    inputs: dict[str, torch.Tensor]
    location: torch.device
    module: Callable[[torch.Tensor], torch.Tensor] | None = None
    example: torch.Tensor | None = None
    seconds: float = 0.0

    @cached_property
    def profile(self) -> Profile:
        """What each task costs here, measured once."""
        begun = time.perf_counter()
        first = sg.plan(self.program, streams=1, policy="single")
        found = profile_tasks(first, self.operators(first), self.inputs, self.location)
        self.seconds = time.perf_counter() - begun
        return found

    @property
    def costs(self) -> dict[str, TaskCost]:
        return self.profile.costs

    def operators(self, schedule: Schedule) -> tuple[Operator, ...]:
        return resolve(schedule.program, self.ops, str(self.location), schedule.accesses)

    def runner(self, schedule: Schedule, executor: str) -> sg.Runner:
        """All inputs are bound for good."""
        return sg.compile(schedule, self.inputs, ops=self.ops, device=self.location.type, executor=executor)  # type: ignore[arg-type]

    def raw(self) -> dict[str, Any]:
        """What was measured, as JSON holds it."""
        timings = self.profile.timings
        costs = {task: [t.cost.us, t.cost.fill, t.cost.issue, t.how, t.together] for task, t in timings.items()}
        return {"costs": costs, "alone": self.profile.alone, "in_place": self.profile.in_place}

    def __str__(self) -> str:
        timings = self.profile.timings
        timed = sum(not timing.reused for timing in timings.values())
        ways = sorted({timing.how for timing in timings.values()})
        return f"{self.name}: {len(timings)} tasks, {timed} of them timed ({', '.join(ways)}), in {self.seconds:.1f} s"


def _torchvision(name: str) -> torch.nn.Module:
    import torchvision

    return getattr(torchvision.models, name)(weights=None, init_weights=False)


def _timm(name: str) -> torch.nn.Module:
    import timm

    return timm.create_model(name)


NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], int]] = {
    "inception_v3": (lambda: _torchvision("inception_v3"), 299),
    "googlenet": (lambda: _torchvision("googlenet"), 224),
    "nasnet_large": (lambda: _timm("nasnetalarge"), 331),
    "pnasnet_large": (lambda: _timm("pnasnet5large"), 331),
}
SUBJECTS = (*NETWORKS, *SHAPES)


def subject(name: str, location: torch.device, small: bool = False, chains: bool = True) -> Subject:
    """The subject of that name, on the device."""
    return _network(name, location, chains) if name in NETWORKS else _program(name, location, small)


def _program(name: str, location: torch.device, small: bool) -> Subject:
    program = SHAPES[name](small).program()
    return Subject(name, program, None, inputs_of(program, location), location)


def _network(name: str, location: torch.device, chains: bool) -> Subject:
    make, size = NETWORKS[name]
    torch.manual_seed(0)
    module = make().to(location)
    example = torch.randn(1, 3, size, size, device=location)
    with torch.no_grad():
        _settle(module, torch.randn(4, 3, size, size, device=location))
        module.eval().requires_grad_(False)
        converted = convert(torch.export.export(module, (example,)), name, chains)
    inputs = {**converted.weights, converted.inputs[0]: example}
    return Subject(name, converted.program, converted.ops, inputs, location, module, example)


def _settle(module: torch.nn.Module, noise: torch.Tensor) -> None:
    """Let batch normalisation keep the statistics of this batch."""
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = 1.0
    module.train()
    module(noise)
