"""Costs: a Program becomes a time per task, its engine, and its share of the device. Advice for planning, never meaning.

A time is, in this order: what was measured (`streamgraph profile` writes it to a file), what the task declares (`cost: 180us`), or a guess
from the bytes that it touches. The guesses are rough on purpose. They are meant to tell a 6 MB copy from a tiny kernel, not to predict a
run: arithmetic is not counted, so a large convolution or matrix product is far off until it is declared or measured.

`fill` is the share of the device that a task keeps busy while it runs, between 0 and 1: tasks side by side slow each other down where their
fills add up to more than 1 (`simulate`). Measured, it is the time per task when several copies of it run side by side, over its time alone.
Else it is guessed: the elements of its largest tensor over those that fill the device.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, Union

from streamgraph.devices import crosses
from streamgraph.errors import Location, Problem, SpecError, quoted
from streamgraph.machine import AnyMachine, Machine, as_machine, is_amount, json_mapping, read_json_file
from streamgraph.model import DTYPE_BYTES, Kind, Program, Task
from streamgraph.storages import Access, Accesses, Mode

MEASURED, DECLARED, DEFAULT = "measured", "declared", "default"
H2D, D2H, COMPUTE, HOST_ENGINE = "h2d", "d2h", "compute", "host"

NOMINAL = 10.0  # microseconds of a device task about whose tensors nothing is known
NOMINAL_HOST = 50.0  # a host task: Python at work, nobody knows for how long
UNKNOWN_FILL = 0.0  # a task of unknown size: nothing is assumed against running it beside others

VERSION_KEY, VERSION = "streamgraph_costs", 1
LARGEST = 1 << 28  # bytes of a costs file: more than a million tasks


@dataclass(frozen=True, slots=True)
class TaskCost:
    """What was measured of one task: `us` on its engine; `fill`, its share of the device; `issue`, host microseconds of the call."""

    us: float
    fill: float | None = None
    issue: float | None = None


Measured: TypeAlias = Union[Mapping[str, float], Mapping[str, TaskCost], Mapping[str, Union[float, TaskCost]], str, "os.PathLike[str]"]
"""Measured costs by task name: microseconds or a TaskCost, or the path of a file that `streamgraph profile` wrote."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Per task, in declaration order: `microseconds`, where each came from (`measured`, `declared`, `default`), and its engine.

    Engines are `h2d` and `d2h` (the copy engines, one copy at a time each; a copy to another GPU counts as `d2h`), `compute`, and `host`
    for host tasks. `fill` and `bandwidth` are the shares of the device and of its memory's bandwidth that the task uses while it runs
    alone; `issue` is the host's time for the call, None where it is not known. Without them (empty tuples) tasks do not slow each other
    down.
    """

    microseconds: tuple[float, ...]
    source: tuple[str, ...]
    engine: tuple[str, ...]
    fill: tuple[float, ...] = ()
    bandwidth: tuple[float, ...] = ()
    issue: tuple[float | None, ...] = ()


def task_costs(program: Program, accesses: Accesses, costs: Measured | None = None, machine: AnyMachine = None) -> Costs:
    """The time, engine and share of every task on a machine. `costs` are measured; tasks it does not name fall back.

    Raises:
        SpecError: SG104 for a time that is not a finite number >= 0, SG213 for a name that is no task, and all that can be wrong with a
            file; all of them at once.
    """
    on = as_machine(machine)
    measured = dict(load_costs(costs)) if isinstance(costs, str | os.PathLike) else dict(costs or {})
    _check(program, measured)
    microseconds: list[float] = []
    source: list[str] = []
    engines: list[str] = []
    fill: list[float] = []
    bandwidth: list[float] = []
    issue: list[float | None] = []
    for task, touched in zip(program.tasks, accesses.of_task, strict=True):
        engine = _engine(program, task, touched, accesses)
        sizes = tuple(_size(program, accesses, access) for access in touched)
        known = measured.get(task.name)
        cost = known if isinstance(known, TaskCost) else None
        if known is not None:
            time, origin = float(cost.us if cost is not None else known), MEASURED  # type: ignore[arg-type]
        elif task.cost is not None:
            time, origin = float(task.cost), DECLARED
        else:
            time, origin = _guess(engine, touched, sizes, on), DEFAULT
        engines.append(engine)
        microseconds.append(time)
        source.append(origin)
        issue.append(cost.issue if cost is not None else None)
        known_fill = cost is not None and cost.fill is not None and engine == COMPUTE
        fill.append(cost.fill if known_fill else _fill(engine, touched, sizes, accesses, on))  # type: ignore[arg-type, union-attr]
        bandwidth.append(_bandwidth(engine, touched, sizes, time, on))
    return Costs(tuple(microseconds), tuple(source), tuple(engines), tuple(fill), tuple(bandwidth), tuple(issue))


def load_costs(path: str | os.PathLike[str]) -> dict[str, TaskCost]:
    """The costs that a file holds, by task name.

    Raises:
        SpecError: SG006 or SG010 if it cannot be read, SG009 or SG108 if it is something else, SG101 to SG105 for what it holds.
    """
    name = os.fspath(path)
    text = read_json_file(name, "a costs file", "`streamgraph profile SPEC -o costs.json` writes one", LARGEST)
    return parse_costs(text, name)


def parse_costs(text: str, file: str = "<text>") -> dict[str, TaskCost]:
    """The costs in a file's text, `{"streamgraph_costs": 1, "tasks": {name: {"us": .., "fill": .., "issue": ..}}}`.

    Errors as `load_costs`.
    """
    data = json_mapping(text, file, VERSION_KEY, VERSION, "a costs file")
    place = Location(quoted(file), 1)
    tasks = data.get("tasks")
    if not isinstance(tasks, dict):
        raise SpecError(Problem("SG102", "the costs file lacks 'tasks'", place, 'tasks is a mapping: {"name": {"us": 12.5}}'))
    problems: list[Problem] = []
    found: dict[str, TaskCost] = {}
    for name, entry in tasks.items():
        if not isinstance(entry, dict):
            message = f"the cost of '{quoted(name)}' is no mapping: {quoted(repr(entry))}"
            problems.append(Problem("SG103", message, place, 'write {"us": 12.5}'))
            continue
        if "us" not in entry:
            problems.append(Problem("SG102", f"the cost of '{quoted(name)}' lacks 'us'", place, "us is its time in microseconds"))
        problems += [
            Problem("SG101", f"the cost of '{quoted(name)}' has a key '{quoted(key)}'", place, "the keys are: us, fill, issue")
            for key in entry
            if key not in ("us", "fill", "issue")
        ]
        for key in ("us", "fill", "issue"):
            if key in entry and (not is_amount(entry[key]) or (key == "fill" and entry[key] > 1)):
                remedy = "fill is a share: 0 to 1" if key == "fill" else f"{key} is in microseconds: a finite number >= 0"
                code = "SG105" if key == "fill" else "SG104"
                problems.append(Problem(code, f"'{key}' of '{quoted(name)}' is {quoted(repr(entry[key]))}", place, remedy))
        if not problems:
            found[name] = TaskCost(**{key: float(value) for key, value in entry.items()})
    if problems:
        raise SpecError(*problems)
    return found


def costs_json(costs: Mapping[str, TaskCost], device: str, notes: Mapping[str, object]) -> str:
    """Costs as a file holds them, one line per task; `device` and `notes` say how they were measured."""
    import json

    head = json.dumps({VERSION_KEY: VERSION, "device": device, **notes}, ensure_ascii=False)
    lines = []
    for name, cost in costs.items():
        entry = {"us": cost.us, "fill": cost.fill, "issue": cost.issue}
        lines.append(f"  {json.dumps(name)}: {json.dumps({key: round(value, 4) for key, value in entry.items() if value is not None})}")
    return head[:-1] + ', "tasks": {\n' + ",\n".join(lines) + "\n}}\n"


def _check(program: Program, measured: Mapping[str, float | TaskCost]) -> None:
    problems: list[Problem] = []
    for name, cost in measured.items():
        time = cost.us if isinstance(cost, TaskCost) else cost
        if name not in program.index_of_task:
            near = difflib.get_close_matches(str(name), program.index_of_task, n=1)
            remedy = f"did you mean '{near[0]}'?" if near else "leave it out: costs are given by task name"
            problems.append(Problem("SG213", f"a cost was given for '{quoted(name)}', which is no task", None, remedy))
        elif not is_amount(time):
            message = f"the cost of task '{quoted(name)}' is {quoted(time)}"
            problems.append(Problem("SG104", message, None, "costs are microseconds: finite numbers >= 0"))
    if problems:
        raise SpecError(*problems)


def _engine(program: Program, task: Task, touched: tuple[Access, ...], accesses: Accesses) -> str:
    if task.host:
        return HOST_ENGINE
    if task.is_copy:
        storages = {access.mode: accesses.storages[access.storage] for access in touched}
        source, target = storages.get(Mode.READ), storages.get(Mode.WRITE)
        if source is not None and target is not None and source.host != target.host:
            return H2D if source.host else D2H
        if program.devices and crosses(task, program):
            return D2H  # it leaves the device that it reads from, by a copy engine
    return COMPUTE


def _guess(engine: str, touched: tuple[Access, ...], sizes: tuple[_Size, ...], on: Machine) -> float:
    if engine == HOST_ENGINE:
        return NOMINAL_HOST
    known = [size[1] for size in sizes if size is not None]
    if engine in (H2D, D2H):
        # Both ends of a copy have one size, so either one will do.
        return on.smallest + max(known) / (on.h2d if engine == H2D else on.d2h) if known else NOMINAL
    time = on.smallest + _moved(touched, sizes) / on.memory
    return time if len(known) == len(sizes) else max(time, NOMINAL)


def _moved(touched: tuple[Access, ...], sizes: tuple[_Size, ...]) -> int:
    """The bytes that go over the device's memory bus; an update reads and writes."""
    total = 0
    for size, access in zip(sizes, touched, strict=True):
        if size is not None:
            total += size[1] * 2 if access[2] is Mode.UPDATE else size[1]
    return total


def _fill(engine: str, touched: tuple[Access, ...], sizes: tuple[_Size, ...], accesses: Accesses, on: Machine) -> float:
    if engine != COMPUTE:
        return 0.0
    known = [
        size[0]
        for size, access in zip(sizes, touched, strict=True)
        if size is not None and accesses.storages[access.storage].kind is not Kind.RESOURCE
    ]
    return min(1.0, max(known) / (on.multiprocessors * on.elements)) if known else UNKNOWN_FILL


def _bandwidth(engine: str, touched: tuple[Access, ...], sizes: tuple[_Size, ...], time: float, on: Machine) -> float:
    """The share of the device memory's bandwidth. A copy over the link takes the link's rate while it runs."""
    if engine == HOST_ENGINE or time <= 0:
        return 0.0
    if engine in (H2D, D2H):
        return min(1.0, (on.h2d if engine == H2D else on.d2h) / on.memory)
    return min(1.0, _moved(touched, sizes) / (time * on.memory))


_Size: TypeAlias = "tuple[int, int] | None"
"""Elements and bytes of an access; None where the type is not known."""


def _size(program: Program, accesses: Accesses, access: Access) -> _Size:
    """(0, 0) for a resource."""
    if accesses.storages[access.storage].kind is Kind.RESOURCE:
        return 0, 0
    tensor = program.tensor_named[access.tensor]
    kind = program.tensor_named[tensor.base].type if tensor.base is not None else tensor.type
    if kind is None:
        return None
    if access.box is None:
        elements = kind.elements
    else:
        elements = 1
        for start, stop in access.box:
            elements *= stop - start
    return elements, elements * DTYPE_BYTES[kind.dtype]
