"""Frame sets of several cameras, one after another, through specs/cameras.streamgraph.yaml: how close to max(copies, kernels) is a loop?

Each item brings a pinned frame of every camera; the caller reads each answer on the host. `runner.map`, eager and captured, against double
buffering by hand, eager and captured (two CUDA graphs, one per half of the frames' memory), against calls one by one, and against the
copies and the kernels alone; with memory for two frames on the device, as the spec has it, and for those of two items. With two, an item's
third upload waits for its first frame to be prepared, so uploads cannot run beside the network that follows, and no code comes near
max(copies, kernels). Then the same with a host task that checks and stages each packet, and a caller who takes as long over each answer:
does the host do both at once?

    python benchmarks/iterations.py
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from cameras import SPEC, operators
from measure import Call, Paper, Row, Way, captured, compare, distinct_streams, environment, markdown, parser

import streamgraph as sg

Items = Sequence[list[torch.Tensor]]


class ByHand:
    """The pipeline without streamgraph, over many items. Every method returns a call that gives the sum of what the caller read."""

    def __init__(self, items: Items, stem: torch.Tensor, head: torch.Tensor) -> None:
        self.items, self.stem, self.head = items, stem, head
        self.cams, (_, height, width) = len(items[0]), items[0][0].shape
        self.batch = torch.empty(self.cams, 3, height // 2, width // 2, device=stem.device)
        self.results = [torch.empty(self.cams, 3, pin_memory=stem.device.type == "cuda") for _ in range(2)]

    def frames(self, count: int) -> list[torch.Tensor]:
        """Device memory for so many frames."""
        return [torch.empty_like(self.items[0][0], device=self.stem.device) for _ in range(count)]

    def detect(self, images: list[torch.Tensor], result: torch.Tensor) -> None:
        """From prepared pictures to the answer in host memory."""
        torch.stack(images, out=self.batch)
        features = torch.conv2d(self.batch, self.stem, None, [2, 2], [1, 1])
        features.relu_()
        heat = torch.conv2d(features, self.head, None, [1, 1], [1, 1])
        result.copy_(operators.strongest(heat), non_blocking=True)

    def sequential(self) -> Call:
        """One stream, and a host wait for every item."""
        (frame,) = self.frames(1)

        @torch.no_grad()
        def call() -> float:
            total = 0.0
            for packets in self.items:
                images = []
                for packet in packets:
                    frame.copy_(packet, non_blocking=True)
                    images.append(operators.preprocess(frame))
                self.detect(images, self.results[0])
                if self.stem.device.type == "cuda":
                    torch.cuda.current_stream().synchronize()
                total += float(self.results[0][0, 0])
            return total

        return call

    def events(self, side: torch.cuda.Stream, slots: int) -> Call:
        """Uploads on a stream of their own through so many frames, from item to item; answers are read one item later."""
        frames = self.frames(slots)
        there, free = ([torch.cuda.Event() for _ in range(slots)] for _ in range(2))
        done = [torch.cuda.Event() for _ in range(2)]

        @torch.no_grad()
        def call() -> float:
            main, total, uploads = torch.cuda.current_stream(), 0.0, 0
            side.wait_stream(main)
            for number, packets in enumerate(self.items):
                images = []
                for packet in packets:
                    slot = uploads % slots
                    with torch.cuda.stream(side):
                        if uploads >= slots:
                            side.wait_event(free[slot])
                        frames[slot].copy_(packet, non_blocking=True)
                        there[slot].record(side)
                    main.wait_event(there[slot])
                    images.append(operators.preprocess(frames[slot]))
                    free[slot].record(main)
                    uploads += 1
                self.detect(images, self.results[number % 2])
                done[number % 2].record(main)
                if number:
                    total += self._read(done, number - 1)
            main.wait_stream(side)
            return total + self._read(done, len(self.items) - 1)

        return call

    def graphs(self, stack: ExitStack) -> Call:
        """Two halves of device memory, and a CUDA graph of the kernels for each; uploads go on outside of them."""
        capture, side = distinct_streams(2)
        halves = [self.frames(self.cams) for _ in range(2)]
        replays = [captured(self._kernels(frames, result), stack, capture) for frames, result in zip(halves, self.results, strict=True)]
        there, free = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))

        def call() -> float:
            main, total = torch.cuda.current_stream(), 0.0
            side.wait_stream(main)
            for number, packets in enumerate(self.items):
                half = number % 2
                with torch.cuda.stream(side):
                    if number >= 2:
                        side.wait_event(free[half])
                    for frame, packet in zip(halves[half], packets, strict=True):
                        frame.copy_(packet, non_blocking=True)
                    there[half].record(side)
                main.wait_event(there[half])
                replays[half]()
                free[half].record(main)
                if number:
                    total += self._read(free, number - 1)
            return total + self._read(free, len(self.items) - 1)

        return call

    def _kernels(self, frames: list[torch.Tensor], result: torch.Tensor) -> Call:
        @torch.no_grad()
        def call() -> None:
            self.detect([operators.preprocess(frame) for frame in frames], result)

        return call

    def kernels_only(self, stack: ExitStack, graph: bool) -> Call:
        """No uploads, no host."""
        body = self._kernels(self.frames(self.cams), self.results[0])
        one = captured(body, stack) if graph else body
        return lambda: [one() for _ in self.items]

    def uploads_only(self) -> Call:
        """No kernels."""
        frames = self.frames(self.cams)
        pairs = [pair for packets in self.items for pair in zip(frames, packets, strict=True)]
        return lambda: [frame.copy_(packet, non_blocking=True) for frame, packet in pairs]

    def _read(self, done: list[torch.cuda.Event], number: int) -> float:
        done[number % 2].synchronize()
        return float(self.results[number % 2][0, 0])


def ours(hand: ByHand, executor: str, inflight: int | None, slots: int) -> Callable[[ExitStack], Call]:
    """The spec with so many frames on the device, as one loop, or (no `inflight`) call by call."""
    cams, (_, height, width), device = hand.cams, hand.items[0][0].shape, hand.stem.device.type
    params = {"cams": cams, "height": height, "width": width, "slots": slots}

    def make(stack: ExitStack) -> Call:
        bound = {"stem": hand.stem, "head": hand.head}
        runner = stack.enter_context(sg.compile(SPEC, bound, params=params, ops=operators, device=device, executor=executor))  # type: ignore[arg-type]
        if inflight is None:
            return lambda: sum(float(runner(packet=packets)["result"][0, 0]) for packets in hand.items)

        def call() -> float:
            items = ({"packet": packets} for packets in hand.items)
            return sum(float(result["result"][0, 0]) for result in runner.map(items, inflight=inflight))

        return call

    return make


def ways_of(hand: ByHand) -> list[Way]:
    """All of them."""
    many = 2 * hand.cams
    ways = [
        Way("plain loop, one stream", lambda stack: hand.sequential()),
        Way("call by call, eager", ours(hand, "eager", None, 2)),
        Way("call by call, graph", ours(hand, "graph", None, 2)),
    ]
    for slots in (2, many):
        for name in ("eager", "graph"):
            ways += [Way(f"`map`, {name}, inflight {depth}, {slots} frames", ours(hand, name, depth, slots)) for depth in (2, 3)]
        if hand.stem.device.type == "cuda":
            by_hand = partial(hand.events, distinct_streams(1)[0], slots)
            ways.append(Way(f"by hand, events, {slots} frames", lambda stack, call=by_hand: call()))  # type: ignore[misc]
    ways.append(Way("`map`, lanes, inflight 2, 2 frames", ours(hand, "lanes", 2, 2)))
    if hand.stem.device.type == "cuda":
        ways += [
            Way(f"by hand, two graphs, {many} frames", hand.graphs),
            Way("uploads only", lambda stack: hand.uploads_only()),
            Way("kernels only", lambda stack: hand.kernels_only(stack, False)),
            Way("kernels only, graph", lambda stack: hand.kernels_only(stack, True)),
        ]
    return ways


def checked(raw: torch.Tensor) -> None:
    """What the host does with a packet, and the caller with an answer: something that takes a while and lets other threads run."""
    zlib.crc32(memoryview(raw.numpy()))


def staged_program(shape: tuple[int, ...], on_host: bool) -> sg.Graph:
    """Check and stage a packet on the host, upload, prepare, download; or from packets that are staged already."""
    graph = sg.Graph("staged")
    kind = f"u8[{', '.join(map(str, shape))}]"
    packet = graph.input("packet", kind, device="cpu", pinned=not on_host)
    graph.buffer("frame", kind, slots=2)
    graph.value("answer", f"f32[3, {shape[1] // 2}, {shape[2] // 2}]", device="cpu", pinned=True)
    source = packet
    if on_host:
        source = graph.buffer("stage", kind, device="cpu", pinned=True, slots=2)

        def stage(packet: torch.Tensor, out: torch.Tensor) -> None:
            checked(packet)
            out.copy_(packet)

        graph.task("stage", stage, reads=packet, writes=source, host=True)
    graph.copy("upload", source, "frame")
    graph.task("prepare", operators.preprocess, reads="frame", writes="image")
    graph.copy("download", "image", "answer")
    graph.output("answer")
    return graph


def staged_ways(packets: list[torch.Tensor], device: str) -> list[Way]:
    """The host's work in a task, in the caller's own loop, and alone."""
    shape = tuple(packets[0].shape)

    def take(answer: torch.Tensor, packet: torch.Tensor) -> float:
        checked(packet)
        return float(answer[0, 0, 0])

    def task(executor: str) -> Callable[[ExitStack], Call]:
        def make(stack: ExitStack) -> Call:
            runner = stack.enter_context(sg.compile(staged_program(shape, True), device=device, executor=executor))  # type: ignore[arg-type]
            return lambda: sum(take(r["answer"], p) for r, p in zip(runner.map(packets, inflight=2), packets, strict=True))

        return make

    def in_the_source(stack: ExitStack) -> Call:
        runner = stack.enter_context(sg.compile(staged_program(shape, False), device=device, executor="eager"))
        staging = [torch.empty(shape, dtype=torch.uint8, pin_memory=device == "cuda") for _ in range(2)]

        def source() -> Any:
            for number, packet in enumerate(packets):
                checked(packet)
                yield staging[number % 2].copy_(packet)

        return lambda: sum(take(r["answer"], p) for r, p in zip(runner.map(source(), inflight=2), packets, strict=True))

    def call_by_call(stack: ExitStack) -> Call:
        runner = stack.enter_context(sg.compile(staged_program(shape, True), device=device, executor="eager"))
        return lambda: sum(take(runner(packet=p)["answer"], p) for p in packets)

    return [
        Way("call by call, eager", call_by_call),
        Way("`map`, staging in the source", in_the_source),
        Way("`map`, staging as a host task, eager", task("eager")),
        Way("`map`, staging as a host task, lanes", task("lanes")),
        *([Way("`map`, staging as a host task, graph", task("graph"))] if device == "cuda" else []),
        Way("the caller's part alone", lambda stack: lambda: [checked(packet) for packet in packets]),
    ]


def table(rows: dict[str, Row], count: int, base: str) -> str:
    """Medians per item."""
    lines = []
    for row in rows.values():
        figures = [row.note, "", "", ""]
        if not row.note:
            speed_up = f"{rows[base].wall / row.wall:.2f}"
            figures = [f"{row.wall / count:.0f}", f"{speed_up}", f"{row.allocated:.0f}", f"{row.reserved:.0f}"]
        lines.append([row.name, *figures])
    return markdown(["way", "µs per item", "speed-up", "peak allocated MiB", "peak reserved MiB"], lines) + "\n"


def judge(paper: Paper, rows: dict[str, Row], many: int) -> None:
    """The targets."""
    copies = rows["uploads only"].wall
    for executor, kernels, slots, other in (
        ("eager", "kernels only", 2, "events, 2 frames"),
        ("eager", "kernels only", many, f"events, {many} frames"),
        ("graph", "kernels only, graph", many, f"two graphs, {many} frames"),
    ):
        row = rows[f"`map`, {executor}, inflight 2, {slots} frames"]
        if row.note:
            paper.say(f"- `map`, {executor}, {slots} frames: refused: {row.note}")
            continue
        what = f"`map`, {executor}, {slots} frames, against"
        if slots == many:
            paper.target(f"{what} max(copies, kernels)", row.wall / max(copies, rows[kernels].wall), 1.10)
        paper.target(f"{what} by hand, {other}", row.wall / rows[f"by hand, {other}"].wall, 1.02)
    paper.say()


def main() -> None:
    """Measure and print."""
    options = parser(__doc__, 11)
    options.add_argument("--cams", type=int, default=8)
    options.add_argument("--items", type=int, default=24)
    chosen = options.parse_args()
    device, count, cams = chosen.device, chosen.items, chosen.cams
    on_gpu = device == "cuda"
    height, width = (120, 160) if chosen.small else (1080, 1920)
    torch.manual_seed(0)
    frames = [torch.randint(0, 256, (3, height, width), dtype=torch.uint8) for _ in range(4 * cams)]
    pinned = [frame.pin_memory() for frame in frames] if on_gpu else frames
    items = [[pinned[(number * cams + cam) % len(pinned)] for cam in range(cams)] for number in range(count)]
    stem, head = torch.randn(8, 3, 3, 3, device=device), torch.randn(1, 8, 3, 3, device=device)
    hand = ByHand(items, stem, head)
    ways = ways_of(hand)
    paper = Paper(chosen.output)
    paper.say(f"### iterations.py\n\n{environment(chosen.repeats)}. {count} items of {cams} frames of {width} x {height}.\n")
    expected = hand.sequential()()
    with ExitStack() as stack:
        found = ways[3].make(stack)()
    paper.say(f"Answers: {'equal to the plain loop' if found == expected else 'DIFFERENT from the plain loop'}.\n")
    paper.failed |= found != expected
    rows = compare(ways, chosen.repeats, warm=2, back_to_back=1, on_gpu=on_gpu)
    paper.say(table(rows, count, "plain loop, one stream"))
    if on_gpu:
        judge(paper, rows, 2 * cams)
    pageable = [frames[number % len(frames)] for number in range(count)]
    staged = compare(staged_ways(pageable, device), chosen.repeats, warm=2, back_to_back=1, on_gpu=on_gpu)
    paper.say("Packets that are not pinned, checked and staged on the host; a caller who takes as long over each answer:\n")
    paper.say(table(staged, count, "call by call, eager"))
    paper.end(device)


if __name__ == "__main__":
    main()
