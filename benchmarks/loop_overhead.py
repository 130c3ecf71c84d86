"""What does an item of a loop cost the issuing thread, beyond its operators? On the CPU, with operators that do next to nothing.

Per item and per task, for loops of 1, 21 and 201 tasks: the same functions called in a plain loop; `runner.map`, by generated functions and
step by step, as its first iterations are; and one call each. Each item brings eight host tensors. Without a GPU there are no streams,
events or lanes to pay for, so these figures are what Python does around the device's calls and no more; what a loop costs on a GPU is
measured by iterations.py.

    python benchmarks/loop_overhead.py
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from measure import Call, Paper, Row, Way, compare, environment, markdown, parser

import streamgraph as sg

SIZES = (0, 20, 200)
INPUTS = 8


def program(tasks: int) -> sg.Graph:
    """A chain of tasks on two lanes in turn, each making a value; state that carries over; an output."""
    graph = sg.Graph(f"loop of {tasks}")
    inputs = [graph.input(f"x{number}", "f32[4]", device="cpu", pinned=True) for number in range(INPUTS)]
    state = graph.buffer("state", "f32[4]")
    h: Any = graph.task("first", first, reads=[inputs, state], writes="h", stream="main")
    for number in range(tasks):
        h = graph.task(f"t{number}", same, reads=h, writes="h", stream="side" if number % 2 else "main")
    graph.output(h)
    return graph


def first(xs: list[torch.Tensor], state: torch.Tensor) -> torch.Tensor:
    """An item comes in."""
    return made(state)


def same(h: torch.Tensor) -> torch.Tensor:
    """A task."""
    return made(h)


def made(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own, in the cheapest way there is."""
    return torch.empty_like(tensor)


def plain(items: list[dict[str, torch.Tensor]], tasks: int) -> Call:
    """What has to be called, whoever calls it."""
    state = torch.zeros(4)

    def call() -> None:
        for item in items:
            h = first(list(item.values()), state)
            for _ in range(tasks):
                h = same(h)

    return call


def ours(items: list[dict[str, torch.Tensor]], tasks: int, inflight: int | None, stepwise: bool = False) -> Callable[[ExitStack], Call]:
    """A runner's loop, or its calls one by one. `stepwise`: every iteration is issued as the first ones are."""

    def make(stack: ExitStack) -> Call:
        runner = stack.enter_context(sg.compile(program(tasks), device="cpu", executor="eager"))

        if stepwise:
            list(runner.map([], inflight=inflight))
            (pipeline,) = runner._looper._made.values()
            pipeline.loop = replace(pipeline.loop, prologue=(*pipeline.loop.prologue, *[pipeline.loop.steady] * len(items)))

        def mapped() -> None:
            for result in runner.map(items, inflight=inflight):
                del result

        def called() -> None:
            for item in items:
                runner(item)

        return called if inflight is None else mapped

    return make


def table(rows: dict[str, Row], items: int, tasks: int) -> str:
    """Medians, and what is above the plain loop."""
    least = rows["plain loop"].wall
    lines = []
    for row in rows.values():
        if row.note:
            lines.append([row.name, row.note, "", "", ""])
            continue
        above = (row.wall - least) / items
        lines.append([row.name, f"{row.wall / items:.1f}", f"{row.wall / least:.2f}", f"{above:.1f}", f"{above / (tasks + 1):.2f}"])
    return markdown(["way", "µs per item", "÷ plain", "above plain, per item", "and per task"], lines) + "\n"


def main() -> None:
    """Measure and print."""
    options = parser(__doc__, 21)
    options.add_argument("--items", type=int, default=200)
    chosen = options.parse_args()
    paper = Paper(chosen.output)
    paper.say(f"### loop_overhead.py\n\n{environment(chosen.repeats)}. {chosen.items} items of {INPUTS} host tensors.\n")
    torch.set_num_threads(1)
    items = [{f"x{number}": torch.zeros(4) for number in range(INPUTS)} for _ in range(chosen.items)]
    for tasks in SIZES:
        ways = [
            Way("plain loop", lambda stack, tasks=tasks: plain(items, tasks)),  # type: ignore[misc]
            Way("call by call, eager", ours(items, tasks, None)),
            *(Way(f"`map`, eager, inflight {depth}", ours(items, tasks, depth)) for depth in (2, 3)),
            Way("`map`, inflight 2, step by step", ours(items, tasks, 2, True)),
        ]
        rows = compare(ways, chosen.repeats, warm=2, back_to_back=1, on_gpu=False)
        paper.say(f"{tasks + 1} tasks\n\n{table(rows, chosen.items, tasks)}")
    paper.end("cpu")


if __name__ == "__main__":
    main()
