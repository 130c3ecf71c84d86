"""What do CUDA graphs save where a program has host tasks in it, or runs as a loop?

A host task that looks at a small result in the middle of many small tasks; a loop of iterations of many small tasks, where launching is
what takes time; and the loop of loops.py, where copies and work do. By hand, graphs are captured one for each half, or one for each slot.

    python benchmarks/parts.py
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from loops import by_hand as frames_by_hand
from loops import program as frames
from loops import work
from measure import Call, Paper, Way, captured, compare, distinct_streams, environment, markdown, parser

import streamgraph as sg

SIZE = 1024


def chain(made: sg.Graph, first: str, name: str, count: int, lane: str) -> str:
    """So many small tasks in a row."""
    before: Any = first
    for number in range(count):
        before = made.task(f"{name}{number}", torch.sin, reads=before, writes=f"{name}", stream=lane)
    return name


def hosted(count: int) -> sg.Graph:
    """Two lanes of small tasks, a host task that looks at what they give, and two lanes that go on with its answer."""
    made = sg.Graph("hosted")
    made.input("x", f"f32[{SIZE}]")
    made.value("seen", f"f32[{SIZE}]", device="cpu", pinned=True)
    made.buffer("answer", f"f32[{SIZE}]", device="cpu", pinned=True)
    left, right = chain(made, "x", "a", count, "main"), chain(made, "x", "b", count, "side")
    made.task("join", torch.add, reads=[left, right], writes="c", stream="main")
    made.copy("down", "c", "seen", stream="main")
    made.task("ask", lambda seen, out: torch.mul(seen, 0.5, out=out), reads="seen", writes="answer", host=True)
    made.copy("up", "answer", "d", stream="main")
    left, right = chain(made, "d", "e", count, "main"), chain(made, "c", "f", count, "side")
    made.output(made.task("end", torch.add, reads=[left, right], writes="y", stream="main"))
    return made


def small(count: int, slots: int) -> sg.Graph:
    """An upload into a ring, two lanes of small tasks, and state."""
    made = sg.Graph("small")
    made.input("packet", f"f32[{SIZE}]", device="cpu", pinned=True)
    made.buffer("frame", f"f32[{SIZE}]", slots=slots)
    made.buffer("state", f"f32[{SIZE}]")
    made.copy("upload", "packet", "frame", stream="copy")
    left, right = chain(made, "frame", "a", count, "main"), chain(made, "frame", "b", count, "side")
    made.task("follow", lambda state, a: state.lerp_(a, 0.1), updates="state", reads=left, stream="main")
    made.output(made.task("end", torch.add, reads=[right, "state"], writes="y", stream="main"))
    return made


def half(count: int, side: torch.cuda.Stream, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Two rows of small tasks on two streams, and their sum."""
    main = torch.cuda.current_stream()
    side.wait_stream(main)
    left, right = first, second
    for _ in range(count):
        left = torch.sin(left)
    with torch.cuda.stream(side):
        for _ in range(count):
            right = torch.sin(right)
    main.wait_stream(side)
    return left + right


def hosted_by_hand(count: int, x: torch.Tensor) -> Callable[[ExitStack], Call]:
    """One graph before the host's turn and one after it."""

    def make(stack: ExitStack) -> Call:
        capture, side = distinct_streams(2)
        here, seen, answer = x.clone(), torch.empty(SIZE, pin_memory=True), torch.empty(SIZE, pin_memory=True)
        held: list[torch.Tensor] = [here]

        @torch.no_grad()
        def before() -> torch.Tensor:
            c = half(count, side, here, here)
            seen.copy_(c, non_blocking=True)
            held[1:] = [c]
            return c

        @torch.no_grad()
        def after() -> torch.Tensor:
            held[2:] = [half(count, side, answer.to("cuda", non_blocking=True), held[1])]
            return held[2]

        first = captured(before, stack, capture)
        second = captured(after, stack, capture)
        done = torch.cuda.Event()

        def call() -> torch.Tensor:
            here.copy_(x)
            first()
            done.record()
            done.synchronize()
            torch.mul(seen, 0.5, out=answer)
            second()
            return held[2].clone()

        return call

    return make


def small_by_hand(count: int, packets: list[torch.Tensor], slots: int) -> Callable[[ExitStack], Call]:
    """A graph for each slot, uploads one ahead on a stream of their own."""

    def make(stack: ExitStack) -> Call:
        capture, side, copy = distinct_streams(3)
        frames_of = [torch.zeros(SIZE, device="cuda") for _ in range(slots)]
        state = torch.zeros(SIZE, device="cuda")
        held: list[torch.Tensor | None] = [None] * slots

        def body(slot: int) -> Callable[[], torch.Tensor]:
            @torch.no_grad()
            def work_on() -> torch.Tensor:
                main = torch.cuda.current_stream()
                side.wait_stream(main)
                left = right = frames_of[slot]
                for _ in range(count):
                    left = torch.sin(left)
                state.lerp_(left, 0.1)
                with torch.cuda.stream(side):
                    for _ in range(count):
                        right = torch.sin(right)
                main.wait_stream(side)
                made = right + state
                held[slot] = made
                return made

            return work_on

        replays = [captured(body(slot), stack, capture) for slot in range(slots)]
        there, free = ([torch.cuda.Event() for _ in range(slots)] for _ in range(2))

        def call() -> None:
            main = torch.cuda.current_stream()
            copy.wait_stream(main)
            for number, packet in enumerate(packets):
                slot = number % slots
                if number >= slots:
                    copy.wait_event(free[slot])
                with torch.cuda.stream(copy):
                    frames_of[slot].copy_(packet, non_blocking=True)
                there[slot].record(copy)
                main.wait_event(there[slot])
                replays[slot]()
                made = held[slot]
                assert made is not None
                made.clone()
                free[slot].record(main)

        return call

    return make


def frames_by_graphs(packets: list[torch.Tensor], slots: int) -> Callable[[ExitStack], Call]:
    """The loop of loops.py by hand, with a graph of the work and the answer for each slot."""

    def make(stack: ExitStack) -> Call:
        capture, copy = distinct_streams(2)
        places = [torch.zeros_like(packets[0], device="cuda") for _ in range(slots)]
        answers = [torch.empty(packets[0].shape[0], pin_memory=True) for _ in range(slots)]

        def body(slot: int) -> Call:
            @torch.no_grad()
            def work_on() -> torch.Tensor:
                answers[slot].copy_(work(places[slot]), non_blocking=True)
                return answers[slot]

            return work_on

        replays = [captured(body(slot), stack, capture) for slot in range(slots)]
        there, done = ([torch.cuda.Event() for _ in range(slots)] for _ in range(2))

        def call() -> float:
            main, total = torch.cuda.current_stream(), 0.0
            copy.wait_stream(main)
            for number, packet in enumerate(packets):
                slot = number % slots
                if number >= slots:
                    done[slot].synchronize()
                    total += float(answers[slot][0])
                with torch.cuda.stream(copy):
                    places[slot].copy_(packet, non_blocking=True)
                there[slot].record(copy)
                main.wait_event(there[slot])
                replays[slot]()
                done[slot].record(main)
            for event in done:
                event.synchronize()
            return total

        return call

    return make


def calls(program: sg.Graph, executor: str, device: str, **given: torch.Tensor) -> Callable[[ExitStack], Call]:
    """One call."""

    def make(stack: ExitStack) -> Call:
        runner = stack.enter_context(sg.compile(program, device=device, executor=executor))  # type: ignore[arg-type]
        return lambda: runner(**given)

    return make


def one_by_one(program: sg.Graph, executor: str, device: str, packets: list[torch.Tensor]) -> Callable[[ExitStack], Call]:
    """A call for each packet."""

    def make(stack: ExitStack) -> Call:
        runner = stack.enter_context(sg.compile(program, device=device, executor=executor))  # type: ignore[arg-type]
        return lambda: [runner(packet=packet) is None for packet in packets]

    return make


def mapped(
    program: sg.Graph, executor: str, device: str, packets: list[torch.Tensor], inflight: int, read: bool = False
) -> Callable[[ExitStack], Call]:
    """One loop over all packets; `read`: the answer is looked at, item by item."""

    def make(stack: ExitStack) -> Call:
        runner = stack.enter_context(sg.compile(program, device=device, executor=executor))  # type: ignore[arg-type]
        return lambda: sum(float(result["answer"][0]) if read else 0.0 for result in runner.map(packets, inflight=inflight))

    return make


def table(paper: Paper, rows: dict[str, Any], per: int, what: str) -> None:
    """Medians in microseconds for one of `per`."""
    base = next(iter(rows.values())).wall
    lines = []
    for row in rows.values():
        figures = (row.note, "", "") if row.note else (f"{row.wall / per:.1f}", f"{row.host / per:.1f}", f"{base / row.wall:.2f}")
        lines.append([row.name, *figures, f"{row.allocated:.2f}", f"{row.reserved:.0f}"])
    paper.say(markdown(["way", f"wall µs per {what}", "host µs", "speed-up", "peak allocated MiB", "peak reserved MiB"], lines) + "\n")


def main() -> None:
    """Measure and print."""
    options = parser(__doc__, 15)
    options.add_argument("--tasks", type=int, default=40, help="small tasks in a row")
    options.add_argument("--items", type=int, default=64)
    chosen = options.parse_args()
    device, count, items = chosen.device, chosen.tasks, chosen.items
    on_gpu = device == "cuda"
    kinds = ("eager", "graph") if on_gpu else ("eager",)
    paper = Paper(chosen.output)
    paper.say(f"### parts.py\n\n{environment(chosen.repeats)}.\n")
    x = torch.ones(SIZE, device=device)
    made = hosted(count)
    paper.say(f"#### A host task between {4 * count} small tasks\n\n{sg.plan(made).counts}\n")
    ways = [Way("task after task", calls(made, "sequential", device, x=x))]
    ways += [Way(f'streamgraph, "{kind}"', calls(made, kind, device, x=x)) for kind in kinds]
    if on_gpu:
        ways.append(Way("two graphs by hand", hosted_by_hand(count, x)))
    table(paper, compare(ways, chosen.repeats, on_gpu=on_gpu), 1, "call")

    packets = [torch.ones(SIZE).pin_memory() if on_gpu else torch.ones(SIZE) for _ in range(4)]
    packets = [packets[number % 4] for number in range(items)]
    paper.say(f"#### A loop of {items} iterations of {2 * count} small tasks\n\n{sg.plan(small(count, 2)).counts}\n")
    ways = [Way("one call each, task after task", one_by_one(small(count, 2), "sequential", device, packets))]
    for kind in kinds:
        ways += [Way(f'one call each, "{kind}"', one_by_one(small(count, 2), kind, device, packets))]
        ways += [Way(f'`map`, "{kind}", inflight {n}', mapped(small(count, n), kind, device, packets, n)) for n in (2, 3)]
    if on_gpu:
        ways += [Way(f"by hand, a graph for each of {n} slots", small_by_hand(count, packets, n)) for n in (2, 3)]
    rows = compare(ways, chosen.repeats, warm=2, back_to_back=1, on_gpu=on_gpu)
    table(paper, rows, items, "item")

    shape = (3, 64, 64) if chosen.small else (3, 2160, 3840)
    big = [torch.randint(0, 256, shape, dtype=torch.uint8) for _ in range(4)]
    big = [packet.pin_memory() if on_gpu else packet for packet in big]
    big = [big[number % 4] for number in range(items)]
    paper.say(f"#### Frames of {shape[2]} x {shape[1]}, uploaded and worked on (the loop of loops.py)\n")
    ways = [Way(f'`map`, "eager", inflight {n}', mapped(frames(shape, n), "eager", device, big, n, read=True)) for n in (2, 3)]
    if on_gpu:
        resident = big[0].cuda()
        ways += [Way(f'`map`, "graph", inflight {n}', mapped(frames(shape, n), "graph", device, big, n, read=True)) for n in (2, 3)]
        ways += [Way(f"by hand, events, {n} slots", lambda stack, n=n: frames_by_hand(big, device, n)) for n in (2, 3)]  # type: ignore[misc]
        ways += [Way(f"by hand, a graph for each of {n} slots", frames_by_graphs(big, n)) for n in (2, 3)]
        ways += [
            Way("uploads only", lambda stack: lambda: [resident.copy_(packet, non_blocking=True) for packet in big]),
            Way("work only", lambda stack: lambda: [work(resident) for _ in big]),
        ]
    with torch.no_grad():
        table(paper, compare(ways, chosen.repeats, warm=2, back_to_back=1, on_gpu=on_gpu), items, "frame")
    paper.end(device)


if __name__ == "__main__":
    main()
