"""Small words for tests: `program("load: -> x @copy | gemm: x -> y")` and what a schedule of it shows."""

from __future__ import annotations

import re

from streamgraph.builder import Graph
from streamgraph.model import HOST, Program
from streamgraph.schedule import HostWait, Launch, Record, Schedule, Wait

TWO_LANES = """\
streamgraph: 1
name: two
tensors:
  x: {type: "f32[8]", kind: input, init: random}
  b: f32[8]
tasks:
  load: {copy: x -> b, stream: copy}
  work: {run: aten.relu, reads: b, writes: y}
outputs: [y]
"""
_TASK = re.compile(r"(?P<name>\S+): (?P<reads>[^>]*?)-> ?(?P<writes>[^@+!]*)(?P<updates>\+[^@!]*)?(?P<host>!)?(?:@(?P<lane>\w+))?\Z")


def graph(text: str, inputs: str = "", buffers: str = "", hosts: str = "", outputs: str = "", cost: float = 10.0) -> Graph:
    """Tasks `NAME: READS -> WRITES +UPDATES @LANE` joined by `|`; `!` makes a host task. Names are separated by spaces or commas."""
    made = Graph("test")
    for name in inputs.split():
        made.input(name, "i64[8]", init="random")
    for name in buffers.split():
        made.buffer(name, "i64[8]")
    for name in hosts.split():
        made.buffer(name, "i64[8]", device="cpu", pinned=True)
    for part in text.split("|"):
        match = _TASK.match(part.strip())
        assert match is not None, part
        reads, writes, updates = (re.split(r"[ ,]+", (match[key] or "").strip(" +")) for key in ("reads", "writes", "updates"))
        made.task(
            match["name"], "mix", reads=[n for n in reads if n], writes=[n for n in writes if n], updates=[n for n in updates if n],
            host=bool(match["host"]), stream=match["lane"], cost=cost,
        )  # fmt: skip
    for name in outputs.split():
        made.output(name)
    return made


def program(text: str, **declared: str) -> Program:
    """The program of `graph(...)`."""
    return graph(text, **declared).program()


def hazards(of: Program) -> list[str]:
    """Every hazard as `RAW x: load -> gemm`."""
    from streamgraph.hazards import find_hazards
    from streamgraph.storages import trace

    found = find_hazards(of, trace(of)[0])
    return [f"{h.kind} {h.tensor}: {of.tasks[h.earlier].name} -> {of.tasks[h.later].name}".replace(" :", ":") for h in found]


def waited(schedule: Schedule) -> set[tuple[str, str]]:
    """(earlier, later) of every wait within a run: `later` is the next launch on the waiting lane, else exit or the caller's host."""
    result: set[tuple[str, str]] = set()
    for index, step in enumerate(schedule.steps):
        if isinstance(step, Wait) or (isinstance(step, HostWait) and not step.previous):
            lane = step.lane if isinstance(step, Wait) else HOST
            rest = schedule.steps[index:]
            end = "exit" if lane == "main" else "host"
            later = next((s.task for s in rest if isinstance(s, Launch) and s.lane == lane), end)
            result.add((schedule.event_task[step.event], later))
    return result


def waits(schedule: Schedule) -> list[str]:
    """`a -> b` for every wait, sorted."""
    return sorted(f"{earlier} -> {later}" for earlier, later in waited(schedule))


def recorded(schedule: Schedule) -> list[str]:
    """The tasks after which an event is recorded, sorted."""
    return sorted(step.task for step in schedule.steps if isinstance(step, Record))
