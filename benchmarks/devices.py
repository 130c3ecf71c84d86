"""A network in two stages on two GPUs, fed item after item: is the longer stage ever idle?

Each item lies on the first GPU, goes through some layers there, hops to the second, and through some more; the caller takes the result on
the second GPU and drops it. `runner.map` against one call per item, against plain torch code on the current streams (where a copy from GPU
to GPU waits for both), against double buffering by hand with streams and events, and against each stage alone. Three loads: long stages
that are equal; stages whose length alternates, so that a pipeline needs room between them; and stages so short that issuing them counts.

    python benchmarks/devices.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from measure import Call, Paper, Way, compare, environment, markdown, parser

import streamgraph as sg


@dataclass(frozen=True)
class Load:
    """What an item costs: h of [rows, width] through `layers[stage][item % n]` layers."""

    name: str
    rows: int
    width: int
    layers: tuple[tuple[int, ...], tuple[int, ...]]


LOADS = (
    Load("long", 2048, 4096, ((2,), (2,))),
    Load("alternating", 2048, 4096, ((3, 3, 1, 1), (1, 1, 3, 3))),
    Load("short", 64, 512, ((4,), (4,))),
)
SMALL = (Load("small", 4, 8, ((1, 2), (2, 1))),)


def stage(load: Load, number: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """One stage. It counts its items, as a real one would see their lengths."""
    calls = 0

    def call(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        depths = load.layers[number]
        for _ in range(depths[calls % len(depths)]):
            h = torch.tanh(h @ weight)
        calls += 1
        return h

    return call


def program(load: Load, slots: int) -> sg.Graph:
    """Both stages with a ring between them."""
    graph = sg.Graph("stages")
    kind = f"f32[{load.rows}, {load.width}]"
    graph.input("x", kind, device="cuda:0")
    for number in range(2):
        graph.input(f"weight{number}", f"f32[{load.width}, {load.width}]", device=f"cuda:{number}")
    graph.buffer("inbox", kind, slots=slots, device="cuda:1")
    graph.task("first", stage(load, 0), reads=["x", "weight0"], writes="a", stream="main")
    graph.copy("hop", "a", "inbox", stream="hop")
    graph.output(graph.task("second", stage(load, 1), reads=["inbox", "weight1"], writes="y", stream="second"))
    return graph


def plain(load: Load, items: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> Call:
    """What one writes first: the current stream of each GPU, and `to`."""
    first, second = stage(load, 0), stage(load, 1)

    @torch.no_grad()
    def call() -> None:
        for x in items:
            second(first(x, weights[0]).to(weights[1].device, non_blocking=True), weights[1])
        _at_rest(weights)

    return call


def by_hand(load: Load, items: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], slots: int) -> Call:
    """A stream for the hop, with a stream of the second GPU that nothing runs on beside it; places there in turn, and events."""
    first, second = stage(load, 0), stage(load, 1)
    hop, beside, late = torch.cuda.Stream(0), torch.cuda.Stream(1), torch.cuda.Stream(1)
    inbox = [torch.empty(load.rows, load.width, device="cuda:1") for _ in range(slots)]
    held: list[torch.Tensor | None] = [None] * slots
    made, there, free = ([torch.cuda.Event() for _ in range(slots)] for _ in range(3))

    @torch.no_grad()
    def call() -> None:
        main = torch.cuda.current_stream(0)
        late.wait_stream(torch.cuda.current_stream(1))
        for number, x in enumerate(items):
            slot = number % slots
            if number >= slots:
                main.wait_event(there[slot])  # what was sent from here is there, so that its memory may go
            held[slot] = first(x, weights[0])
            made[slot].record(main)
            hop.wait_event(made[slot])
            if number >= slots:
                hop.wait_event(free[slot])
            with torch.cuda.stream(beside), torch.cuda.stream(hop):
                inbox[slot].copy_(held[slot], non_blocking=True)
            there[slot].record(hop)
            late.wait_event(there[slot])
            with torch.cuda.stream(late):
                second(inbox[slot], weights[1])
            free[slot].record(late)
        torch.cuda.current_stream(1).wait_stream(late)
        _at_rest(weights)

    return call


def alone(load: Load, number: int, count: int, x: torch.Tensor, weights: Sequence[torch.Tensor]) -> Call:
    """One stage, as often as there are items."""
    run, near = stage(load, number), x.to(weights[number].device)

    @torch.no_grad()
    def call() -> None:
        for _ in range(count):
            run(near, weights[number])
        _at_rest(weights)

    return call


def _at_rest(weights: Sequence[torch.Tensor]) -> None:
    for weight in weights:
        if weight.is_cuda:
            torch.cuda.synchronize(weight.device)


def ways_of(load: Load, items: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], device: str) -> list[Way]:
    """All of them."""
    bound = {f"weight{number}": weight for number, weight in enumerate(weights)}

    def ours(executor: str, inflight: int | None) -> Callable[[ExitStack], Call]:
        def make(stack: ExitStack) -> Call:
            made = sg.compile(program(load, inflight or 2), bound, device=device, executor=executor)  # type: ignore[arg-type]
            runner = stack.enter_context(made)

            def call() -> None:
                for result in runner.map(items, inflight=inflight) if inflight else map(runner, ({"x": x} for x in items)):
                    del result
                _at_rest(weights)

            return call

        return make

    ways = [
        Way("one call per item", ours("eager", None)),
        *(Way(f"`map`, inflight {depth}", ours("eager", depth)) for depth in (2, 3, 4)),
        Way("`map`, lanes, inflight 3", ours("lanes", 3)),
        Way("plain torch, current streams", lambda stack: plain(load, items, weights)),
        *(Way(f"stage {number + 1} alone", lambda stack, n=number: alone(load, n, len(items), items[0], weights)) for number in range(2)),
    ]
    if device == "cuda":
        ways[6:6] = [Way(f"by hand, {slots} places", lambda stack, n=slots: by_hand(load, items, weights, n)) for slots in (2, 3, 4)]
    return ways


def main() -> None:
    """Measure and print."""
    options = parser(__doc__, 7)
    options.add_argument("--items", type=int, default=32)
    options.add_argument("--load", choices=[load.name for load in LOADS], help="only this one")
    chosen = options.parse_args()
    device, count = chosen.device, chosen.items
    if device == "cuda" and torch.cuda.device_count() < 2:
        raise SystemExit("this one needs two GPUs")
    paper = Paper(chosen.output)
    paper.say(f"### devices.py\n\n{environment(chosen.repeats)}.\n")
    for load in SMALL if chosen.small else [load for load in LOADS if chosen.load in (None, load.name)]:
        torch.manual_seed(0)
        places = [torch.device("cuda", number) if device == "cuda" else torch.device("cpu") for number in range(2)]
        weights = [torch.randn(load.width, load.width, device=place) / load.width**0.5 for place in places]
        kept = [torch.randn(load.rows, load.width, device=places[0]) for _ in range(4)]
        items = [kept[number % 4] for number in range(count)]
        with torch.no_grad():
            rows = compare(ways_of(load, items, weights, device), chosen.repeats, warm=2, back_to_back=1, on_gpu=device == "cuda")
        floor = max(rows[f"stage {number} alone"].wall for number in (1, 2))
        lines = [
            [row.name, *((row.note, "") if row.note else (f"{row.wall / count:.1f}", f"{row.wall / floor:.3f}"))]
            for row in rows.values()
        ]  # fmt: skip
        paper.say(f"{load.name}: {count} items of {load.rows} x {load.width}, layers {load.layers[0]} and {load.layers[1]} in turn\n")
        paper.say(markdown(["way", "µs per item", "of the longer stage alone"], lines) + "\n")
    paper.end(device)


if __name__ == "__main__":
    main()
