"""Costs: a Program becomes a time per task and the engine that the task occupies. Advice for planning, never meaning.

A time is, in this order: what the caller measured, what the task declares (`cost: 180us`), or a guess from the bytes that it touches. The
guesses are rough on purpose. They are meant to tell a 6 MB copy from a tiny kernel, not to predict a run: arithmetic is not counted, so a
large convolution or matrix product is far off until it is declared or measured.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from streamgraph.errors import Problem, SpecError, quoted
from streamgraph.model import DTYPE_BYTES, Kind, Program, Task
from streamgraph.storages import Access, Accesses, Mode

MEASURED, DECLARED, DEFAULT = "measured", "declared", "default"
H2D, D2H, COMPUTE, HOST_ENGINE = "h2d", "d2h", "compute", "host"

# A card with PCIe 4.0 x16 and HBM2e, rounded. Ours are slower and faster than yours: one H200 copied 24 x 128 MiB from pinned memory in
# 60.8 ms, that is 53 GB/s, and its memory is rated at 4,800 GB/s.
LINK_BYTES_PER_MICROSECOND = 25_000.0  # 25 GB/s between host and device
MEMORY_BYTES_PER_MICROSECOND = 1_500_000.0  # 1,500 GB/s on the device
# What a kernel or a copy takes whatever its size. A chain of tiny kernels measured 1.4 us per node inside a captured graph, and 7.0 us of
# host time per tiny `add_` when launched one by one.
OVERHEAD = 5.0
NOMINAL = 10.0  # a device task about whose tensors nothing is known
NOMINAL_HOST = 50.0  # a host task: Python at work, nobody knows for how long


@dataclass(frozen=True, slots=True)
class Costs:
    """Per task, in declaration order: `microseconds`, where each came from (`measured`, `declared`, `default`), and its engine.

    Engines are `h2d` and `d2h` (the copy engines, one copy at a time each), `compute`, and `host` for host tasks.
    """

    microseconds: tuple[float, ...]
    source: tuple[str, ...]
    engine: tuple[str, ...]


def task_costs(program: Program, accesses: Accesses, costs: Mapping[str, float] | None = None) -> Costs:
    """The time and the engine of every task. `costs` are measured microseconds by task name; tasks it does not name fall back.

    Raises:
        SpecError: SG104 for a time that is not a finite number >= 0, SG213 for a name that is no task; all of them at once.
    """
    measured = dict(costs or {})
    _check(program, measured)
    microseconds: list[float] = []
    source: list[str] = []
    engines: list[str] = []
    for task, touched in zip(program.tasks, accesses.of_task, strict=True):
        engine = _engine(task, touched, accesses)
        engines.append(engine)
        if task.name in measured:
            microseconds.append(float(measured[task.name]))
            source.append(MEASURED)
        elif task.cost is not None:
            microseconds.append(float(task.cost))
            source.append(DECLARED)
        else:
            microseconds.append(_guess(program, task, touched, accesses, engine))
            source.append(DEFAULT)
    return Costs(tuple(microseconds), tuple(source), tuple(engines))


def _check(program: Program, measured: Mapping[str, float]) -> None:
    problems: list[Problem] = []
    for name, time in measured.items():
        if name not in program.index_of_task:
            near = difflib.get_close_matches(str(name), program.index_of_task, n=1)
            remedy = f"did you mean '{near[0]}'?" if near else "leave it out: costs are given by task name"
            problems.append(Problem("SG213", f"a cost was given for '{quoted(name)}', which is no task", None, remedy))
        elif isinstance(time, bool) or not isinstance(time, (int, float)) or not math.isfinite(time) or time < 0:
            message = f"the cost of task '{quoted(name)}' is {quoted(time)}"
            problems.append(Problem("SG104", message, None, "costs are microseconds: finite numbers >= 0"))
    if problems:
        raise SpecError(*problems)


def _engine(task: Task, touched: tuple[Access, ...], accesses: Accesses) -> str:
    if task.host:
        return HOST_ENGINE
    if task.is_copy:
        storages = {access.mode: accesses.storages[access.storage] for access in touched}
        source, target = storages.get(Mode.READ), storages.get(Mode.WRITE)
        if source is not None and target is not None and source.host != target.host:
            return H2D if source.host else D2H
    return COMPUTE


def _guess(program: Program, task: Task, touched: tuple[Access, ...], accesses: Accesses, engine: str) -> float:
    if engine == HOST_ENGINE:
        return NOMINAL_HOST
    sizes = [_bytes(program, accesses, access) for access in touched]
    known = [size for size in sizes if size is not None]
    if engine in (H2D, D2H):
        # Both ends of a copy have one size, so either one will do.
        return OVERHEAD + max(known) / LINK_BYTES_PER_MICROSECOND if known else NOMINAL
    passes = [2 if access.mode is Mode.UPDATE else 1 for access in touched]
    moved = sum(size * times for size, times in zip(sizes, passes, strict=True) if size is not None)
    time = OVERHEAD + moved / MEMORY_BYTES_PER_MICROSECOND
    return time if len(known) == len(sizes) else max(time, NOMINAL)


def _bytes(program: Program, accesses: Accesses, access: Access) -> int | None:
    """The bytes of one access; 0 for a resource, None where the type is not known."""
    if accesses.storages[access.storage].kind is Kind.RESOURCE:
        return 0
    tensor = program.tensor_named[access.tensor]
    kind = program.tensor_named[tensor.base].type if tensor.base is not None else tensor.type
    if kind is None:
        return None
    if access.box is None:
        return kind.bytes
    return DTYPE_BYTES[kind.dtype] * math.prod(stop - start for start, stop in access.box)
