"""Does anything grow? 100,000 eager runs, 1,000,000 replays, and loops of 100,000 iterations, of small runners.

For each: device memory in use and reserved, memory of the process, and Python objects, before and after, once the first runs have warmed
everything up. Ends with 1 if any of them has grown by more than is said.

    python benchmarks/soak.py
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from measure import Paper, environment, markdown, parser

import streamgraph as sg

KIBI = 1 << 10
PAGE = os.sysconf("SC_PAGE_SIZE")
MAY_GROW = 1 << 20  # bytes of the process, over a million runs: its own allocator's pages


@dataclass(frozen=True)
class Held:
    """What is held at one moment."""

    allocated: int
    reserved: int
    process: int
    objects: int


def held(on_gpu: bool) -> Held:
    """After everything that is under way has ended, and everything that nobody holds has gone."""
    if on_gpu:
        torch.cuda.synchronize()
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    memory = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) if on_gpu else (0, 0)
    return Held(*memory, resident, len(gc.get_objects()))


def chain() -> sg.Graph:
    """Two lanes that hand tensors to each other, some of which outlive a run."""
    made = sg.Graph("chain")
    h = made.input("x", "f32[4096]")
    for number in range(2):
        w = made.task(f"load{number}", torch.neg, reads=h if number == 0 else "x", writes=f"w{number}", stream="copy")
        h = made.task(f"use{number}", torch.add, reads=[h, w], writes="h", stream="main")
    made.output(h)
    return made


def hosted() -> sg.Graph:
    """The same with a host task in between."""
    made = sg.Graph("hosted")
    made.value("there", "f32[64]", device="cpu", pinned=True)
    made.buffer("asked", "f32[64]", device="cpu", pinned=True)
    h = made.task("load", torch.neg, reads=made.input("x", "f32[64]"), writes="h", stream="one")
    made.copy("down", h, "there", stream="one")
    made.task("ask", lambda there, out: torch.add(there, 1.0, out=out), reads="there", writes="asked", host=True)
    made.copy("up", "asked", "answer", stream="two")
    made.output(made.task("use", torch.add, reads=[h, "answer"], writes="y", stream="main"))
    return made


def frames() -> sg.Graph:
    """Uploads into two slots, and work."""
    made = sg.Graph("frames")
    made.input("packet", "f32[4096]", device="cpu", pinned=True)
    made.buffer("frame", "f32[4096]", slots=2)
    made.buffer("state", "f32[4096]")
    made.copy("upload", "packet", "frame", stream="copy")
    made.task("follow", lambda state, frame: state.lerp_(frame, 0.1), updates="state", reads="frame", stream="main")
    made.output(made.task("work", torch.add, reads=["frame", "state"], writes="done", stream="main"))
    return made


def calls(program: sg.Graph, device: str, executor: str, size: int) -> Callable[[ExitStack], Callable[[int], None]]:
    """So many calls of one runner."""

    def make(stack: ExitStack) -> Callable[[int], None]:
        runner = stack.enter_context(sg.compile(program, device=device, executor=executor))  # type: ignore[arg-type]
        x = torch.ones(size, device=device)

        def run(count: int) -> None:
            for number in range(count):
                runner(x=x)
                if device == "cuda" and number % 1000 == 0:
                    torch.cuda.synchronize()  # a host far ahead holds results that nothing else does

        return run

    return make


def loop(device: str, executor: str) -> Callable[[ExitStack], Callable[[int], None]]:
    """One loop of so many iterations."""

    def make(stack: ExitStack) -> Callable[[int], None]:
        runner = stack.enter_context(sg.compile(frames(), device=device, executor=executor))  # type: ignore[arg-type]
        packets = [torch.ones(4096) for _ in range(4)]
        if device == "cuda":
            packets = [packet.pin_memory() for packet in packets]

        def items(count: int) -> Iterator[torch.Tensor]:
            for number in range(count):
                yield packets[number % 4]

        def run(count: int) -> None:
            for result in runner.map(items(count)):
                del result

        return run

    return make


def main() -> None:
    """Run, print, hold against what may grow."""
    options = parser(__doc__, 1)
    chosen = options.parse_args()
    device = chosen.device
    many = 100 if chosen.small else 1
    ways: list[tuple[str, int, Callable[[ExitStack], Callable[[int], None]]]] = [
        ("eager runs", 100_000, calls(chain(), device, "eager", 4096)),
        ("iterations of one loop, eager", 100_000, loop(device, "eager")),
    ]
    if device == "cuda":
        ways += [
            ("replays", 1_000_000, calls(chain(), device, "graph", 4096)),
            ("runs in parts around a host task", 100_000, calls(hosted(), device, "graph", 64)),
            ("iterations of one loop, graphs", 100_000, loop(device, "graph")),
        ]
    paper = Paper(chosen.output)
    paper.say(f"### soak.py\n\n{environment(1)}.\n")
    head = ["what", "how many", "µs each", "device memory in use, B", "reserved, B", "process, KiB", "Python objects"]
    paper.say(markdown(head, []))
    for name, count, make in ways:
        count //= many
        with ExitStack() as stack:
            run = make(stack)
            run(max(200, count // 20))
            before, started = held(device == "cuda"), time.perf_counter()
            run(count)
            seconds = time.perf_counter() - started
            after = held(device == "cuda")
            del run
        grown = [getattr(after, field) - getattr(before, field) for field in ("allocated", "reserved", "process", "objects")]
        allocated, reserved, process, objects = grown
        paper.failed |= allocated != 0 or reserved > 0 or process > MAY_GROW or objects > 50
        each = f"{seconds / count * 1e6:.1f}"
        row = [name, f"{count:,}", each, f"{allocated:+}", f"{reserved:+}", f"{process / KIBI:+.0f}", f"{objects:+}"]
        paper.say("| " + " | ".join(row) + " |")
    paper.say()
    paper.end(device)


if __name__ == "__main__":
    main()
