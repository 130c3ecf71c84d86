"""What does a task cost the issuing thread, beyond the operator itself? And what does a call of a runner cost, whatever is in it?

Tiny tasks (`add_` on 64 numbers), so that nothing but overhead is left: 1,000 of them, in four shapes.

    turns    in place, two lanes taking turns: each task switches lane, waits and records. The worst case.
    straight in place, on one lane: no switch, no wait.
    values   each task returns a new tensor and drops the one before, two lanes taking turns.
    blocking 8 lanes whose tasks block the host: the case for a thread per lane (`executor="lanes"`).

    python benchmarks/overhead.py
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from measure import Call, Paper, Row, Way, captured, compare, distinct_streams, environment, markdown, parser

import streamgraph as sg

EXECUTORS = ("eager", "lanes", "graph")
LEAD = 400_000  # clock cycles, some 0.2 ms
SHORT_TURNS = 50e-6  # seconds after which a thread that wants Python's lock gets it; Python's default is 5 ms


def bump(x: torch.Tensor) -> None:
    """In place."""
    x.add_(1.0)


def more(x: torch.Tensor) -> torch.Tensor:
    """A new tensor."""
    return x + 1.0


def program(count: int, lanes: int, operator: Callable[..., Any]) -> sg.Graph:
    """A chain of `count` tasks over the lanes in turn."""
    made = sg.Graph(f"{operator.__name__} {lanes}")
    x: Any = made.input("x", "f32[64]")
    for number in range(count):
        lane = "main" if number % lanes == 0 else f"side{number % lanes}"
        if operator is bump:
            made.task(f"t{number}", bump, updates=x, stream=lane)
        else:
            x = made.task(f"t{number}", more, reads=x, writes="h", stream=lane)
    if operator is not bump:
        made.output(x)
    return made


def runner(made: sg.Graph, executor: str, inputs: dict[str, Any], device: str) -> Callable[[ExitStack], Call]:
    """streamgraph's own rows."""

    def make(stack: ExitStack) -> Call:
        return stack.enter_context(sg.compile(made, inputs, device=device, executor=executor))  # type: ignore[arg-type]

    return make


def plain(x: torch.Tensor, count: int, operator: Callable[..., Any]) -> Call:
    """The same operators in a loop on one stream."""

    @torch.no_grad()
    def call() -> Any:
        h = x
        if operator is bump:
            for _ in range(count):
                bump(x)
            return None
        for _ in range(count):
            h = more(h)
        return h

    return call


def idiomatic(x: torch.Tensor, count: int, operator: Callable[..., Any], keep: str = "") -> Callable[[torch.cuda.Stream], Call]:
    """`with torch.cuda.stream(...)`, an event for each task. `keep`: how a value outlives its use on the other stream."""

    def on(side: torch.cuda.Stream) -> Call:
        @torch.no_grad()
        def call() -> Any:
            main = torch.cuda.current_stream()
            event = torch.cuda.Event()
            event.record(main)
            h, kept = x, []
            for number in range(count):
                stream = side if number % 2 else main
                with torch.cuda.stream(stream):
                    stream.wait_event(event)
                    if operator is bump:
                        bump(x)
                        if keep == "record_stream":
                            x.record_stream(stream)
                    else:
                        if keep == "record_stream":
                            h.record_stream(stream)
                        else:
                            kept.append(h)
                        h = more(h)
                    event = torch.cuda.Event()
                    event.record(stream)
            main.wait_event(event)
            if operator is not bump:
                h.record_stream(main)
            return h

        return call

    return on


def flat(x: torch.Tensor, count: int, side: torch.cuda.Stream) -> Call:
    """What an expert writes who knows the functions beneath `torch.cuda`: events made once, streams set by their integers."""
    main = torch.cuda.current_stream()
    events = [torch.cuda.Event() for _ in range(count + 1)]
    record, wait, set_stream = torch._C._CudaEventBase.record, torch._C._CudaEventBase.wait, torch._C._cuda_setStream
    steps = []
    for number in range(count):
        stream = side if number % 2 else main
        steps.append((
            functools.partial(set_stream, stream.stream_id, stream.device_index, stream.device_type),
            functools.partial(wait, events[number], stream),
            functools.partial(record, events[number + 1], stream),
        ))  # fmt: skip

    @torch.no_grad()
    def call() -> None:
        record(events[0], main)
        for switch, before, after in steps:
            switch()
            before()
            bump(x)
            after()
        set_stream(main.stream_id, main.device_index, main.device_type)
        wait(events[count], main)

    return call


def by_hand(x: torch.Tensor, count: int, operator: Callable[..., Any], lanes: int) -> list[Way]:
    """Everything that needs a GPU and no streamgraph."""

    def one_graph(stack: ExitStack) -> Call:
        return captured(plain(x, count, operator), stack)

    def many_graph(stack: ExitStack) -> Call:
        capture, side = distinct_streams(2)
        return captured(idiomatic(x, count, operator, "list")(side), stack, capture)

    ways = [Way("one-stream CUDA graph", one_graph)]
    if lanes == 1:
        return ways
    ways = [
        Way("by hand, idiomatic" + ("" if operator is bump else ", values kept in a list"),
            lambda stack: idiomatic(x, count, operator, "list")(distinct_streams(1)[0])),
        Way("by hand, `record_stream`", lambda stack: idiomatic(x, count, operator, "record_stream")(distinct_streams(1)[0])),
        *([Way("by hand, optimised", lambda stack: flat(x, count, distinct_streams(1)[0]))] if operator is bump else []),
        *ways,
        Way("two-stream CUDA graph by hand", many_graph),
    ]  # fmt: skip
    return ways


def table(paper: Paper, rows: dict[str, Row], count: int) -> None:
    """Per task, and above the plain loop."""
    base = rows["plain loop, one stream"].host
    lines = []
    for row in rows.values():
        if row.note:
            lines.append([row.name, row.note, "", "", "", ""])
        else:
            figures = (f"{row.host / count:.2f}", f"{(row.host - base) / count:+.2f}", f"{row.device / count:.2f}")
            lines.append([row.name, *figures, f"{row.allocated:.2f}", f"{row.reserved:.0f}"])
    paper.say(markdown(["way", "host µs/task", "above plain", "GPU µs/task", "peak allocated MiB", "peak reserved MiB"], lines))
    paper.say()


def shape(paper: Paper, title: str, count: int, lanes: int, operator: Callable[..., Any], repeats: int, device: str) -> dict[str, Row]:
    """One of the shapes, measured and printed."""
    x = torch.zeros(64, device=device)
    made = program(count, lanes, operator)
    schedule = sg.plan(made)
    ways = [Way("plain loop, one stream", lambda stack: plain(x, count, operator))]
    if device == "cuda":
        ways += by_hand(x, count, operator, lanes)
    ways += [Way(f'streamgraph, "{executor}"', runner(schedule, executor, {"x": x}, device)) for executor in EXECUTORS]  # type: ignore[arg-type]
    paper.say(f"#### {title}\n\n{schedule.counts}\n")
    rows = compare(ways, repeats, lead=LEAD, on_gpu=device == "cuda")
    table(paper, rows, count)
    return rows


def fixed(paper: Paper, repeats: int, device: str) -> dict[str, Row]:
    """A call of a runner of one task, beside a call of its operator."""
    x = torch.zeros(64, device=device)
    schedule = sg.plan(program(1, 1, bump))

    def named(stack: ExitStack) -> Call:
        run = stack.enter_context(sg.compile(schedule, device=device, executor="eager"))
        return lambda: run(x=x)

    calls = 200
    ways = [
        Way("the operator itself", lambda stack: plain(x, 1, bump)),
        Way('runner(), "eager"', runner(schedule, "eager", {"x": x}, device)),  # type: ignore[arg-type]
        Way('runner(x=x), "eager"', named),
        Way('runner(), "lanes"', runner(schedule, "lanes", {"x": x}, device)),  # type: ignore[arg-type]
        Way('runner(), "graph"', runner(schedule, "graph", {"x": x}, device)),  # type: ignore[arg-type]
    ]

    def many(way: Way) -> Way:
        def make(stack: ExitStack) -> Call:
            call = way.make(stack)

            def loop() -> None:
                for _ in range(calls):
                    call()

            return loop

        return Way(way.name, make)

    rows = compare([many(way) for way in ways], repeats, on_gpu=device == "cuda")
    base = rows["the operator itself"].host / calls
    lines = [
        [row.name, row.note, ""] if row.note else [row.name, f"{row.host / calls:.2f}", f"{row.host / calls - base:+.2f}"]
        for row in rows.values()
    ]
    paper.say("#### One call of a runner with one task\n")
    paper.say(markdown(["way", "host µs/call", "above the operator"], lines))
    paper.say()
    for row in rows.values():
        row.host /= calls
    return rows


def blocking(paper: Paper, repeats: int, device: str, small: bool) -> None:
    """Tasks that make their thread wait for their own stream, three in a row on each of eight lanes, for several lengths of the wait."""
    lanes, rounds = 8, 3
    cycles = [0]

    def work(x: torch.Tensor) -> None:
        x.add_(1.0)
        if device == "cuda":
            torch.cuda._sleep(cycles[0])
            torch.cuda.current_stream().synchronize()  # as `.item()`, a copy to pageable memory, or a library may do

    made = sg.Graph("blocking")
    inputs: dict[str, Any] = {}
    for lane in range(lanes):
        x = made.input(f"x{lane}", "f32[64]")
        inputs[f"x{lane}"] = torch.zeros(64, device=device)
        for number in range(rounds):
            made.task(f"t{lane}.{number}", work, updates=x, stream="main" if lane == 0 else f"side{lane}")
    schedule = sg.plan(made)

    @torch.no_grad()
    def loop() -> None:
        for x in inputs.values():
            for _ in range(rounds):
                work(x)

    def short_turns(stack: ExitStack) -> Call:
        run = runner(schedule, "lanes", inputs, device)(stack)  # type: ignore[arg-type]

        def call() -> None:
            before = sys.getswitchinterval()
            sys.setswitchinterval(SHORT_TURNS)
            try:
                run()
            finally:
                sys.setswitchinterval(before)

        return call

    ways = [
        Way("plain loop", lambda stack: loop),
        Way("eager", runner(schedule, "eager", inputs, device)),  # type: ignore[arg-type]
        Way("lanes", runner(schedule, "lanes", inputs, device)),  # type: ignore[arg-type]
        Way("lanes, switch interval 50 µs", short_turns),
    ]
    lines = []
    for length in (50,) if small else (50, 200, 1000, 5000):
        cycles[0] = length * 1980
        rows = compare(ways, repeats, on_gpu=device == "cuda")
        base = rows["plain loop"].wall
        lines.append([f"{length} µs", f"{base / 1e3:.2f}", *(row.note or f"{base / row.wall:.2f}" for row in list(rows.values())[1:])])
    paper.say(f"#### {lanes} lanes with {rounds} tasks each that block the host until their stream is idle\n")
    paper.say(markdown(["each blocks for some", "plain loop, ms", *(f"{way.name}: speed-up" for way in ways[1:])], lines) + "\n")


def main() -> None:
    """All shapes, then the targets."""
    options = parser(__doc__, 20)
    options.add_argument("--tasks", type=int, default=1000)
    chosen = options.parse_args()
    count, repeats, device = (50 if chosen.small else chosen.tasks), chosen.repeats, chosen.device
    paper = Paper(chosen.output)
    paper.say(f"### overhead.py\n\n{environment(repeats)}. {count} tasks, each `add` on 64 numbers.\n")
    turns = shape(paper, "In place, two lanes in turn: every task switches lane, waits and records", count, 2, bump, repeats, device)
    straight = shape(paper, "In place, one lane", count, 1, bump, repeats, device)
    shape(paper, "A new value by each task, two lanes in turn", count, 2, more, repeats, device)
    call = fixed(paper, repeats, device)
    blocking(paper, max(3, repeats // 2), device, chosen.small)

    def above(rows: dict[str, Row], name: str) -> float:
        return (rows[name].host - rows["plain loop, one stream"].host) / count

    ours = 'streamgraph, "eager"'
    paper.say("Targets (ratios and differences within this run):\n")
    paper.target("worst case, host time per task above the plain loop", above(turns, ours), 4.4, " µs")
    if "by hand, idiomatic" in turns:
        paper.target("the same as a share of what idiomatic code adds", above(turns, ours) / above(turns, "by hand, idiomatic"), 0.25)
    paper.target("no switch, host time per task above the plain loop", above(straight, ours), 0.5, " µs")
    paper.target("fixed cost of a call", call['runner(), "eager"'].host - call["the operator itself"].host, 25.0, " µs")
    replay, hand = turns['streamgraph, "graph"'], turns.get("two-stream CUDA graph by hand")
    if hand is not None and not replay.note and not hand.note:
        paper.target("replay against the graph captured by hand, GPU time", replay.device / hand.device, 1.02)
    paper.say()
    paper.end(device)


if __name__ == "__main__":
    main()
