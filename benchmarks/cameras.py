"""How many frames per second does the pipeline of specs/cameras.streamgraph.yaml handle, and what do hand-written versions of it?

Each call uploads a frame of every camera, prepares it, batches, runs a small network, finds the strongest point, and brings it to the host,
where the caller reads it: each call ends with a host wait, as a control loop has it.

    python benchmarks/cameras.py
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from measure import Call, Paper, Way, captured, compare, distinct_streams, environment, markdown, parser

import streamgraph as sg

SPECS = Path(__file__).resolve().parents[1] / "specs"
SPEC = SPECS / "cameras.streamgraph.yaml"


def _module(path: Path) -> ModuleType:
    """The operators beside the spec."""
    spec = importlib.util.spec_from_file_location("camera_operators", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


operators: Any = _module(SPECS / "cameras.py")


class ByHand:
    """The pipeline without streamgraph."""

    def __init__(self, packets: list[torch.Tensor], stem: torch.Tensor, head: torch.Tensor) -> None:
        self.packets, self.stem, self.head = packets, stem, head
        cams, (_, height, width) = len(packets), packets[0].shape
        self.batch = torch.empty(cams, 3, height // 2, width // 2, device=stem.device)
        pinned = stem.device.type == "cuda"
        self.result = torch.empty(cams, 3, pin_memory=pinned)

    def detect(self, images: list[torch.Tensor]) -> None:
        """From prepared pictures to the answer in host memory."""
        torch.stack(images, out=self.batch)
        features = torch.conv2d(self.batch, self.stem, None, [2, 2], [1, 1])
        features.relu_()
        heat = torch.conv2d(features, self.head, None, [1, 1], [1, 1])
        self.result.copy_(operators.strongest(heat), non_blocking=True)

    def sequential(self, wait: bool = True) -> Call:
        """One stream."""
        frame = torch.empty_like(self.packets[0], device=self.stem.device)

        @torch.no_grad()
        def call() -> torch.Tensor:
            images = []
            for packet in self.packets:
                frame.copy_(packet, non_blocking=True)
                images.append(operators.preprocess(frame))
            self.detect(images)
            if wait and self.stem.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            return self.result

        return call

    def events(self, side: torch.cuda.Stream, wait: bool = True) -> Call:
        """Uploads on a stream of their own, two frames in turn, an event each way."""
        frames = [torch.empty_like(self.packets[0], device=self.stem.device) for _ in range(2)]

        @torch.no_grad()
        def call() -> torch.Tensor:
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            images, free = [], []
            for number, packet in enumerate(self.packets):
                with torch.cuda.stream(side):
                    if number >= 2:
                        side.wait_event(free[number - 2])
                    frames[number % 2].copy_(packet, non_blocking=True)
                    there = side.record_event()
                main.wait_event(there)
                images.append(operators.preprocess(frames[number % 2]))
                free.append(main.record_event())
            main.wait_stream(side)
            self.detect(images)
            if wait:
                done = main.record_event()
                done.synchronize()
            return self.result

        return call

    def optimised(self, side: torch.cuda.Stream) -> Call:
        """The same steps with events made once, one for the result too, and as few stream switches as there can be."""
        frames = [torch.empty_like(self.packets[0], device=self.stem.device) for _ in range(2)]
        there, free = ([torch.cuda.Event() for _ in self.packets] for _ in range(2))
        done = torch.cuda.Event()
        last = len(self.packets) - 1

        @torch.no_grad()
        def call() -> torch.Tensor:
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            images = []
            for number, packet in enumerate(self.packets):
                torch.cuda.set_stream(side)
                if number >= 2:
                    free[number - 2].wait(side)
                frames[number % 2].copy_(packet, non_blocking=True)
                there[number].record(side)
                torch.cuda.set_stream(main)
                there[number].wait(main)
                images.append(operators.preprocess(frames[number % 2]))
                if number + 2 <= last:
                    free[number].record(main)
            self.detect(images)
            done.record(main)
            done.synchronize()
            return self.result

        return call

    def record_stream(self, side: torch.cuda.Stream) -> Call:
        """Uploads on a stream of their own, memory from the allocator."""

        @torch.no_grad()
        def call() -> torch.Tensor:
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            images = []
            for packet in self.packets:
                with torch.cuda.stream(side):
                    frame = packet.to(self.stem.device, non_blocking=True)
                main.wait_stream(side)
                images.append(operators.preprocess(frame))
                frame.record_stream(main)
                del frame
            self.detect(images)
            main.synchronize()
            return self.result

        return call


def ways_of(hand: ByHand, inputs: dict[str, Any], params: dict[str, int], device: str) -> list[Way]:
    """All of them."""

    def replayed(body: Callable[[torch.cuda.Stream], Call]) -> Callable[[ExitStack], Call]:
        def make(stack: ExitStack) -> Call:
            capture, side = distinct_streams(2)
            replay = captured(body(side), stack, capture)

            def call() -> torch.Tensor:
                replay()
                torch.cuda.current_stream().synchronize()
                return hand.result

            return call

        return make

    def ours(executor: str) -> Callable[[ExitStack], Call]:
        return lambda stack: stack.enter_context(
            sg.compile(SPEC, inputs, params=params, ops=operators, device=device, executor=executor)  # type: ignore[arg-type]
        )

    plain = Way("plain loop, one stream", lambda stack: hand.sequential())
    own = [Way(f'streamgraph, "{executor}"', ours(executor)) for executor in ("eager", "lanes", "graph")]
    if device == "cpu":
        return [plain, *own]
    return [
        plain,
        Way("by hand, events", lambda stack: hand.events(distinct_streams(1)[0])),
        Way("by hand, optimised", lambda stack: hand.optimised(distinct_streams(1)[0])),
        Way("by hand, `record_stream`", lambda stack: hand.record_stream(distinct_streams(1)[0])),
        Way("one-stream CUDA graph", replayed(lambda side: hand.sequential(wait=False))),
        Way("two-stream CUDA graph by hand", replayed(lambda side: hand.events(side, wait=False))),
        *own,
    ]


def main() -> None:
    """Measure and print."""
    options = parser(__doc__, 40)
    options.add_argument("--cams", type=int, default=8)
    chosen = options.parse_args()
    device = chosen.device
    height, width = (120, 160) if chosen.small else (1080, 1920)
    params = {"cams": chosen.cams, "height": height, "width": width}
    torch.manual_seed(0)
    packets = [torch.randint(0, 256, (3, height, width), dtype=torch.uint8) for _ in range(chosen.cams)]
    if device == "cuda":
        packets = [packet.pin_memory() for packet in packets]
    stem, head = torch.randn(8, 3, 3, 3, device=device), torch.randn(1, 8, 3, 3, device=device)
    inputs = {"packet": packets, "stem": stem, "head": head}
    hand = ByHand(packets, stem, head)
    ways = ways_of(hand, inputs, params, device)
    paper = Paper(chosen.output)
    paper.say(f"### cameras.py\n\n{environment(chosen.repeats)}. {chosen.cams} cameras of {width} x {height}.\n")
    counts = sg.plan(SPEC, params=params).counts
    paper.say(f"{counts}\n")
    expected = hand.sequential()().clone()
    with sg.compile(SPEC, inputs, params=params, ops=operators, device=device) as runner:
        equal = torch.equal(runner()["result"], expected)
    paper.say(f"Results: {'equal to the plain loop, bit for bit' if equal else 'DIFFERENT from the plain loop'}.\n")
    rows = compare(ways, chosen.repeats, on_gpu=device == "cuda")
    lines = []
    base = rows["plain loop, one stream"].wall
    for row in rows.values():
        if row.note:
            lines.append([row.name, row.note, *[""] * 6])
            continue
        figures = (f"{row.wall / 1e3:.3f}", f"{chosen.cams / row.wall * 1e6:,.0f}", f"{base / row.wall:.2f}")
        figures += (f"{row.host / counts.tasks:.1f}", f"{row.device / 1e3:.3f}")
        lines.append([row.name, *figures, f"{row.allocated:.0f}", f"{row.reserved:.0f}"])
    times = ["wall ms per call", "frames/s", "speed-up", "host µs per task", "GPU ms"]
    paper.say(markdown(["way", *times, "peak allocated MiB", "peak reserved MiB"], lines) + "\n")
    paper.say("Each call waits for its answer: the host's time has that wait in it. GPU: between two events around the call.\n")
    paper.end(device)


if __name__ == "__main__":
    main()
