"""Frame after frame: does `runner.map` keep copies and kernels going at once, as double buffering by hand does?

Each item is a pinned frame that is uploaded, worked on for about as long as the upload takes, and answered with a small result that the
caller reads on the host before it goes on. Compared with one call per frame, with the copies alone and with the work alone.

    python benchmarks/loops.py
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from measure import Call, Paper, Way, compare, distinct_streams, environment, markdown, parser

import streamgraph as sg


def work(frame: torch.Tensor) -> torch.Tensor:
    """Some passes over the frame, then a small answer."""
    picture = frame.float()
    for _ in range(12):
        picture = torch.tanh(picture * 1.01)
    return picture.mean(dim=(1, 2))


def program(shape: tuple[int, int, int], slots: int) -> sg.Graph:
    """Upload into a ring, work, download."""
    graph = sg.Graph("frames")
    kind = f"u8[{', '.join(map(str, shape))}]"
    graph.input("packet", kind, device="cpu", pinned=True)
    graph.buffer("frame", kind, slots=slots)
    graph.value("answer", f"f32[{shape[0]}]", device="cpu", pinned=True)
    graph.copy("upload", "packet", "frame", stream="copy")
    graph.task("work", work, reads="frame", writes="found", stream="main")
    graph.copy("download", "found", "answer", stream="main")
    graph.output("answer")
    return graph


def by_hand(packets: list[torch.Tensor], device: str, slots: int) -> Call:
    """Double buffering with events: uploads on a stream of their own, one frame ahead of the work; the answer is read one frame later."""
    (side,) = distinct_streams(1)
    frames = [torch.empty_like(packets[0], device=device) for _ in range(slots)]
    answers = [torch.empty(packets[0].shape[0], pin_memory=True) for _ in range(slots)]
    there, free, done = ([torch.cuda.Event() for _ in range(slots)] for _ in range(3))

    @torch.no_grad()
    def call() -> float:
        main, total = torch.cuda.current_stream(), 0.0
        side.wait_stream(main)
        for number, packet in enumerate(packets):
            slot = number % slots
            if number >= slots:
                side.wait_event(free[slot])
                done[slot].synchronize()
                total += float(answers[slot][0])
            with torch.cuda.stream(side):
                frames[slot].copy_(packet, non_blocking=True)
            there[slot].record(side)
            main.wait_event(there[slot])
            found = work(frames[slot])
            free[slot].record(main)
            answers[slot].copy_(found, non_blocking=True)
            done[slot].record(main)
        for event in done:
            event.synchronize()
        return total

    return call


def ways_of(packets: list[torch.Tensor], shape: tuple[int, int, int], device: str) -> list[Way]:
    """All of them."""

    def calls(executor: str) -> Callable[[ExitStack], Call]:
        def make(stack: ExitStack) -> Call:
            runner = stack.enter_context(sg.compile(program(shape, 2), device=device, executor=executor))  # type: ignore[arg-type]
            return lambda: sum(float(runner(packet=packet)["answer"][0]) for packet in packets)

        return make

    def mapped(inflight: int) -> Callable[[ExitStack], Call]:
        def make(stack: ExitStack) -> Call:
            runner = stack.enter_context(sg.compile(program(shape, inflight), device=device))
            return lambda: sum(float(result["answer"][0]) for result in runner.map(packets, inflight=inflight))

        return make

    ways = [
        Way("one call per frame, sequential", calls("sequential")),
        Way("one call per frame, planned", calls("auto")),
        Way("`map`, inflight 2", mapped(2)),
        Way("`map`, inflight 3", mapped(3)),
    ]
    if device == "cuda":
        target = torch.empty_like(packets[0], device=device)
        resident = torch.empty_like(packets[0], device=device)
        ways += [
            Way("by hand, 2 buffers", lambda stack: by_hand(packets, device, 2)),
            Way("by hand, 3 buffers", lambda stack: by_hand(packets, device, 3)),
            Way("uploads only", lambda stack: lambda: [target.copy_(packet, non_blocking=True) for packet in packets]),
            Way("work only", lambda stack: lambda: [work(resident) for _ in packets]),
        ]
    return ways


def main() -> None:
    """Measure and print."""
    options = parser(__doc__, 11)
    options.add_argument("--items", type=int, default=64)
    chosen = options.parse_args()
    device, count = chosen.device, chosen.items
    shape = (3, 64, 64) if chosen.small else (3, 2160, 3840)
    torch.manual_seed(0)
    packets = [torch.randint(0, 256, shape, dtype=torch.uint8) for _ in range(min(count, 8))]
    if device == "cuda":
        packets = [packet.pin_memory() for packet in packets]
    packets = [packets[number % len(packets)] for number in range(count)]
    paper = Paper(chosen.output)
    paper.say(f"### loops.py\n\n{environment(chosen.repeats)}. {count} frames of {shape[2]} x {shape[1]}.\n")
    with torch.no_grad():
        rows = compare(ways_of(packets, shape, device), chosen.repeats, warm=2, back_to_back=1, on_gpu=device == "cuda")
    base = rows["one call per frame, sequential"].wall
    lines = []
    for row in rows.values():
        figures = (row.note, "", "")
        if not row.note:
            figures = (f"{row.wall / count:.0f}", f"{count / row.wall * 1e6:,.0f}", f"{base / row.wall:.2f}")
        lines.append([row.name, *figures, f"{row.allocated:.0f}", f"{row.reserved:.0f}"])
    paper.say(markdown(["way", "µs per frame", "frames/s", "speed-up", "peak allocated MiB", "peak reserved MiB"], lines) + "\n")
    if device == "cuda":
        floor = max(rows["uploads only"].wall, rows["work only"].wall)
        paper.target("`map`, inflight 3, against max(uploads, work)", rows["`map`, inflight 3"].wall / floor, 1.10, "")
        paper.target("`map`, inflight 3, against by hand", rows["`map`, inflight 3"].wall / rows["by hand, 3 buffers"].wall, 1.02, "")
    paper.end(device)


if __name__ == "__main__":
    main()
