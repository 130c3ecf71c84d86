"""The schedule: a program with its steps, in host issue order. The narrow waist between planning and everything that reads a plan.

The steps themselves, and their text, stand in `streamgraph.steps`; their names can be had from here too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from streamgraph.devices import first_device, of_tasks
from streamgraph.model import HOST, MAIN, Program
from streamgraph.steps import HostWait, Launch, Reason, Record, RecordStream, Release, Step, Wait, parse_steps
from streamgraph.storages import Accesses, trace

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import networkx as nx

    from streamgraph.certificate import Needed
    from streamgraph.explain import Explanation
    from streamgraph.render.notebook import Frame

__all__ = [
    "Counts", "HostWait", "Lane", "Launch", "Reason", "Record", "RecordStream", "Release", "Schedule", "Step", "Wait", "parse_steps",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lane:
    """One stream of the schedule. `priority` is "high", "normal" or "low"; lane `host` is the host itself."""

    name: str
    priority: str = "normal"

    @property
    def is_host(self) -> bool:
        """Whether this lane is the host and not a stream."""
        return self.name == HOST


@dataclass(frozen=True)
class Schedule:
    """A program with its steps. `lanes[0]` is `main`, the caller's stream; lane `host`, if any task runs there, is last.

    `options` are the planner's options by name; `notes` say what a reader should know about the plan.
    """

    program: Program
    lanes: tuple[Lane, ...]
    steps: tuple[Step, ...]
    options: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        devices = [f"# devices: {', '.join(f'@{lane} on {device}' for lane, device in self.device_of.items())}"] * self.has_devices
        return "\n".join([f"# {self.program.name}: {self.counts}", *devices, *map(str, self.steps)]) + "\n"

    @cached_property
    def accesses(self) -> Accesses:
        """The storages of the program and each task's accesses to them."""
        return trace(self.program)[0]

    @property
    def issue(self) -> Literal["eager", "captured"]:
        """How the steps were planned to be issued: one by one, or replayed as a CUDA graph."""
        return "captured" if ("issue", "captured") in self.options else "eager"

    @cached_property
    def lane_of(self) -> dict[str, str]:
        """The lane of each task, by name."""
        return {step.task: step.lane for step in self.steps if isinstance(step, Launch)}

    @cached_property
    def urgent(self) -> frozenset[str]:
        """The tasks whose kernels have high priority in a captured graph."""
        return frozenset(step.task for step in self.steps if isinstance(step, Launch) and step.urgent)

    @cached_property
    def device_of(self) -> dict[str, str]:
        """The device of each lane that is a stream: that of its tasks. "device" is the run's, in a program that names none."""
        first, index = first_device(self.program), self.program.index_of_task
        if not self.program.devices:
            return {lane.name: first for lane in self.lanes if not lane.is_host}
        of_task = of_tasks(self.program)
        used = {lane: of_task[index[task]] for task, lane in reversed(self.lane_of.items()) if task in index}
        return {lane.name: first if lane.name == MAIN else used.get(lane.name, first) for lane in self.lanes if not lane.is_host}

    @property
    def has_devices(self) -> bool:
        """Whether the program lies on several devices."""
        return len(self.program.devices) > 1

    @cached_property
    def event_task(self) -> dict[str, str]:
        """The task (or `entry`) that each event is recorded after."""
        return {step.event: step.task for step in self.steps if isinstance(step, Record)}

    @cached_property
    def graph(self) -> nx.DiGraph[int]:
        """The DAG that was planned: nodes are tasks in declaration order, edges carry their hazards (`graph.edges[0, 3]["hazards"]`)."""
        from streamgraph.hazards import task_graph

        return task_graph(self.program)

    @cached_property
    def counts(self) -> Counts:
        """How many steps of each kind the schedule has."""
        kinds = [type(step) for step in self.steps]
        on_host = {step.event for step in self.steps if isinstance(step, Record) and step.lane == HOST}
        return Counts(
            tasks=kinds.count(Launch),
            lanes=len(self.lanes),
            events=kinds.count(Record) - len(on_host),
            waits=sum(isinstance(step, Wait) and step.event not in on_host for step in self.steps),
            host_waits=kinds.count(HostWait),
            record_streams=kinds.count(RecordStream),
            host_events=len(on_host),
        )

    # The methods below are for users' convenience; each calls one function of a later module, imported when it is used.

    def explain(self, first: str, second: str | None = None) -> Explanation:
        """Why a task waits, and why its other hazards need no wait; for two tasks, what orders them. See `streamgraph.explain`."""
        from streamgraph.explain import explain

        return explain(self, first, second)

    def certificate(self, steps: Iterable[int] | None = None) -> Iterator[Needed]:
        """For each wait, host wait and record_stream, what the verifier finds without it. See `streamgraph.certificate`."""
        from streamgraph.certificate import certificate

        return certificate(self, steps)

    def draw(self, path: str | os.PathLike[str]) -> Path:
        """Write a picture and return the path. The suffix decides: `.html` shows everything; `streamgraph.render.draw` lists all."""
        from streamgraph.render import draw

        return draw(self, path)

    def show(self, height: int = 760) -> Frame:
        """The HTML report for a notebook cell, `height` pixels high."""
        from streamgraph.render.notebook import show

        return show(self, height=height)

    def _repr_mimebundle_(self, include: Collection[str] | None = None, exclude: Collection[str] | None = None) -> dict[str, str]:
        """How a notebook shows the schedule: as SVG, or as text where that is all there is."""
        from streamgraph.render.notebook import mimebundle

        return mimebundle(self, include, exclude)

    def to_json(self) -> str:
        """The schedule with its program as JSON, which `Schedule.from_json` reads back and verifies."""
        from streamgraph.saved import to_json

        return to_json(self)

    def to_python(self) -> str:
        """Plain torch code that does the same without streamgraph: a function `run(inputs, ops)`. See `streamgraph.python_source`."""
        from streamgraph.python_source import to_python

        return to_python(self)

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """The verified schedule that `to_json` wrote. Raises ScheduleError, SpecError or VerificationError."""
        from streamgraph.saved import from_json

        return from_json(text)

    @classmethod
    def from_text(cls, text: str, program: Program, priorities: Mapping[str, str] | None = None) -> Schedule:
        """The schedule whose `str()` is `text`. Not verified: see `streamgraph.verify`. Lanes come in order of appearance, `main` first.

        Raises:
            ScheduleError: SG701 for each line that is not a step.
        """
        steps = parse_steps(text.splitlines())
        named = dict.fromkeys([MAIN, *(HOST if isinstance(step, HostWait) else step.lane for step in steps)])
        order = [name for name in named if name != HOST] + [HOST] * (HOST in named)
        return cls(program, tuple(Lane(name, (priorities or {}).get(name, "normal")) for name in order), steps)


@dataclass(frozen=True, slots=True)
class Counts:
    """The figures of a schedule: `events` and `waits` are CUDA calls; `host_events` only order issuing threads and cost nothing."""

    tasks: int
    lanes: int
    events: int
    waits: int
    host_waits: int
    record_streams: int
    host_events: int

    def __str__(self) -> str:
        parts = [
            _many(self.tasks, "task"), _many(self.lanes, "lane"), _many(self.events, "event"), _many(self.waits, "wait"),
            *([_many(self.host_waits, "host wait")] if self.host_waits else []), f"{self.record_streams} record_stream",
        ]  # fmt: skip
        return ", ".join(parts)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
