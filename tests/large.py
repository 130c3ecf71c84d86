"""Programs of any size, by shape: what a planner may meet at a million tasks. Shared by the scale test and `benchmarks/scale.py`.

They are built from the model itself: a front end would take longer than the planner. Each has about as many tasks as asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streamgraph.model import Argument, Family, Kind, Output, Program, Task, Tensor, TensorType

ROW = TensorType("f16", (1024,))


def arguments(*names: str) -> tuple[Argument, ...]:
    return tuple(Argument((name,)) for name in names)


def task(
    name: str, reads: tuple[str, ...] = (), writes: tuple[str, ...] = (), updates: tuple[str, ...] = (), *, operator: str = "work",
    lane: str | None = None, cost: float | None = 20.0, host: bool = False, after: tuple[str, ...] = (),
) -> Task:  # fmt: skip
    return Task(
        name, operator, arguments(*reads), arguments(*writes), arguments(*updates), stream=lane, cost=cost, host=host, after=after
    )


def mixed(count: int) -> Program:
    """Frames that are uploaded, worked on in branches, joined, kept in a state, and downloaded; some lanes pinned, some host tasks."""
    tensors = [
        Tensor("packet", Kind.INPUT, ROW, "cpu", True), Tensor("weight", Kind.INPUT, ROW), Tensor("state", Kind.BUFFER, ROW),
        Tensor("low", Kind.VIEW, base="state", index=((0, 512),)), Tensor("high", Kind.VIEW, base="state", index=((512, 1024),)),
        Tensor("rng", Kind.RESOURCE), Tensor("log", Kind.BUFFER, ROW, "cpu", True),
        *(Tensor(name, Kind.VALUE, ROW) for name in ("frame", "a", "b", "c", "joined", "last")),
        Tensor("shown", Kind.VALUE, ROW, "cpu", True),
    ]  # fmt: skip
    tasks: list[Task] = []
    for step in range(max(count // 10, 1)):
        tasks += [
            task(f"upload.{step}", ("packet",), ("frame",), operator="copy", lane="copy", cost=None),
            task(f"a.{step}", ("frame", "weight"), ("a",), cost=30.0 + step % 7),
            task(f"b.{step}", ("frame", "weight"), ("b",), ("rng",), cost=40.0 + step % 5),
            task(f"c.{step}", ("frame",), ("c",), cost=10.0 + step % 3),
            task(f"low.{step}", ("a",), (), ("low",)),
            task(f"high.{step}", ("b", "c"), (), ("high",)),
            task(f"join.{step}", ("a", "b", "c", "state"), ("joined",), cost=None),
            task(f"head.{step}", ("joined", "weight"), ("last",), after=(f"upload.{step}",)),
            task(f"download.{step}", ("last",), ("shown",), operator="copy", lane="back", cost=None),
            task(f"print.{step}", ("shown",), (), ("log",), host=True, cost=5.0)
            if step % 10 == 0 else task(f"keep.{step}", ("last",), (), ("low",), lane="main"),
        ]  # fmt: skip
    return Program("mixed", tuple(tensors), tuple(tasks), outputs=(Output("joined", "joined"), Output("shown", "shown")))


def chain(count: int) -> Program:
    """Each task reads what the one before it wrote, and changes place with it between two pinned lanes every other time."""
    tensors = (Tensor("h", Kind.VALUE, ROW),)
    first = task("t0", (), ("h",))
    rest = (task(f"t{number}", ("h",), ("h",), lane=("left", "right", None)[number % 3]) for number in range(1, count))
    return Program("chain", tensors, (first, *rest), outputs=(Output("h", "h"),))


def readers(count: int) -> Program:
    """One writer of a buffer, all the others read it, and the last writes it again."""
    tensors = (Tensor("shared", Kind.BUFFER, ROW), Tensor("v", Kind.VALUE, ROW))
    middle = (task(f"read.{number}", ("shared",), ("v",)) for number in range(count - 2))
    return Program("readers", tensors, (task("first", (), ("shared",)), *middle, task("last", (), ("shared",))))


def slices(count: int) -> Program:
    """Tasks that write one row each of a buffer, one that reads it whole, again the rows, and one that overwrites it."""
    rows = max((count - 2) // 2, 1)
    tensors = [Tensor("batch", Kind.BUFFER, TensorType("f16", (max(rows, 1), 64)))]
    tensors += [Tensor(f"batch.{row}", Kind.VIEW, base="batch", index=((row, row + 1), (0, 64))) for row in range(rows)]
    tensors.append(Tensor("sum", Kind.VALUE, ROW))
    tasks = [task(f"fill.{row}", (), (f"batch.{row}",)) for row in range(rows)]
    tasks.append(task("all", ("batch",), ("sum",)))
    tasks += [task(f"change.{row}", (), (), (f"batch.{row}",)) for row in range(rows)]
    tasks.append(task("reset", (), ("batch",)))
    return Program("slices", tuple(tensors), tuple(tasks))


def windows(count: int) -> Program:
    """A stencil: tasks that read three rows of a buffer around their own, and write their row of another; then the other way round."""
    rows = max(count // 2, 2)
    tensors: list[Tensor] = []
    for name in ("u", "v"):
        tensors.append(Tensor(name, Kind.BUFFER, TensorType("f16", (64, rows))))
        for row in range(rows):
            tensors.append(Tensor(f"{name}.{row}", Kind.VIEW, base=name, index=((0, 64), (row, row + 1))))
            near = (max(row - 1, 0), min(row + 2, rows))
            tensors.append(Tensor(f"{name}.near.{row}", Kind.VIEW, base=name, index=((0, 64), near)))
    tasks = [task(f"u.v.{row}", (f"u.near.{row}",), (f"v.{row}",)) for row in range(rows)]
    tasks += [task(f"v.u.{row}", (f"v.near.{row}",), (f"u.{row}",)) for row in range(rows)]
    return Program("windows", tuple(tensors), tuple(tasks))


def fan(count: int) -> Program:
    """One task makes a value, all the others read it and return one each, and the last reads them all."""
    branches = count - 2
    tensors = [Tensor("x", Kind.VALUE, ROW), Tensor("y", Kind.VALUE, ROW)]
    tensors += [Tensor(f"v.{number}", Kind.VALUE, ROW) for number in range(branches)]
    tasks = [task("make", (), ("x",))]
    tasks += [task(f"branch.{number}", ("x",), (f"v.{number}",)) for number in range(branches)]
    tasks.append(task("join", tuple(f"v.{number}" for number in range(branches)), ("y",)))
    return Program("fan", tuple(tensors), tuple(tasks), outputs=(Output("y", "y"),))


def tensors(count: int) -> Program:
    """A buffer for each task, which the task overwrites from its neighbour's."""
    declared = tuple(Tensor(f"b{number}", Kind.BUFFER, ROW) for number in range(count))
    tasks = tuple(task(f"t{number}", (f"b{(number * 7 + 1) % count}",), (f"b{number}",)) for number in range(count) if count != 1)
    return Program("tensors", declared, tasks)


def rings(count: int) -> Program:
    """Weights that are loaded into four slots in turn on a copy lane, and used on main."""
    layers = max(count // 2, 1)
    tensors = [Tensor("host", Kind.INPUT, ROW, "cpu", True), Tensor("h", Kind.VALUE, ROW), Tensor("x", Kind.INPUT, ROW)]
    members = tuple(f"w@{layer}" for layer in range(layers))
    tensors += [Tensor(member, Kind.BUFFER, ROW) for member in members]
    tasks: list[Task] = []
    for layer in range(layers):
        tasks.append(task(f"load@{layer}", ("host",), (f"w@{layer}",), operator="copy", lane="copy"))
        tasks.append(task(f"use@{layer}", ("h" if layer else "x", f"w@{layer}"), ("h",), lane="main"))
    family = Family("w", (("layer", tuple(range(layers))),), members, min(4, layers), "layer")
    return Program("rings", tuple(tensors), tuple(tasks), outputs=(Output("h", "h"),), families=(family,))


SHAPES: Mapping[str, Callable[[int], Program]] = {
    made.__name__: made for made in (mixed, chain, readers, slices, windows, fan, tensors, rings)
}
