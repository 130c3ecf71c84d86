"""Calibrate: what single calls, kernels, handovers and copies cost on a device, measured without an executor. Figures of a `Machine`.

Kernels here are tiny (`add_` on 8 elements), so that what is seen is the cost of starting one. Patterns are captured into CUDA graphs, a
short and a long one each, and the difference is divided: neither the host nor the start of a graph is counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from streamgraph.executors.measure import capture, distinct_streams, replay_time, replay_times

MEBIBYTE = 1 << 20
LEVELS = (40, 140)  # of a short and a long graph
CALLS = 200


def host_calls(location: torch.device, rounds: int = 7) -> dict[str, float]:
    """Host microseconds of single calls on a GPU: a tiny kernel, and what goes with a change of streams."""
    tensor = torch.zeros(8, device=location)
    one, two = distinct_streams(2, location)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(one)

    def switch() -> None:
        torch._C._cuda_setStream(stream_id=two.stream_id, device_index=two.device_index, device_type=two.device_type)

    with torch.cuda.stream(one):
        found = {
            "launch": clocked(lambda: tensor.add_(1.0), location, rounds),
            "record": clocked(lambda: event.record(one), location, rounds),
            "wait": clocked(lambda: two.wait_event(event), location, rounds),
            "record_stream": clocked(lambda: tensor.record_stream(two), location, rounds),
            "host_wait": clocked(event.synchronize, location, rounds),
            "switch": clocked(switch, location, rounds),
        }
    torch.cuda.synchronize(location)
    return found


def clocked(call: Callable[[], object], location: torch.device, rounds: int) -> float:
    """Median microseconds of the host per call."""
    times = []
    for _ in range(rounds):
        if location.type == "cuda":
            torch.cuda.synchronize(location)
        begun = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - begun) / CALLS * 1e6)
    return statistics.median(times)


Streams = Sequence["torch.cuda.Stream"]


def captured_patterns(location: torch.device, rounds: int = 7) -> dict[str, float]:
    """Device microseconds per level of tiny kernels in a captured graph.

    `chain`: one after another on one stream. `alternate`: on two streams in turn, each waiting for the one before. `meet 2`, `4`, `8`: so
    many streams, and every kernel of a level waits for all of the level before. `fan 2`, `4`, `8`: one kernel, then so many beside each
    other, which the next level's one waits for.
    """
    tensors = [torch.zeros(8, device=location) for _ in range(8)]
    found: dict[str, float] = {}

    def kernel(stream: torch.cuda.Stream, number: int) -> torch.cuda.Event:
        with torch.cuda.stream(stream):
            tensors[number].add_(1.0)
        return recorded(stream)

    def chain(streams: Streams, levels: int) -> None:
        for _ in range(levels):
            kernel(streams[0], 0)

    def alternate(streams: Streams, levels: int) -> None:
        last: torch.cuda.Event | None = None
        for level in range(levels):
            stream = streams[level % 2]
            if last is not None:
                stream.wait_event(last)
            last = kernel(stream, level % 2)

    def meet(streams: Streams, levels: int) -> None:
        before: list[torch.cuda.Event] = []
        for _ in range(levels):
            for number, stream in enumerate(streams):
                for other, event in enumerate(before):
                    if other != number:
                        stream.wait_event(event)
            before = [kernel(stream, number) for number, stream in enumerate(streams)]

    def fan(streams: Streams, levels: int) -> None:
        for _ in range(levels):
            one = kernel(streams[0], 0)
            for stream in streams[1:]:
                stream.wait_event(one)
            for event in [kernel(stream, number) for number, stream in enumerate(streams)][1:]:
                streams[0].wait_event(event)

    patterns: list[tuple[str, int, Callable[[Streams, int], None]]] = [("chain", 1, chain), ("alternate", 2, alternate)]
    patterns += [(f"meet {width}", width, meet) for width in (2, 4, 8)] + [(f"fan {width}", width, fan) for width in (2, 4, 8)]
    for name, width, body in patterns:
        short, long = (capture(lambda s, b=body, n=levels: b(s, n), width, location) for levels in LEVELS)  # type: ignore[misc]
        once, more = replay_times([short, long], rounds)
        found[name] = (more - once) / (LEVELS[1] - LEVELS[0])
    one = capture(lambda streams: chain(streams, 1), 1, location)
    found["replay"] = max(0.0, replay_time(one, rounds) - found["chain"])
    return found


def eager_patterns(location: torch.device, rounds: int = 7) -> dict[str, float]:
    """Device microseconds per tiny kernel when the host is far ahead: `chain` on one stream, `alternate` between two, each waiting."""
    streams = distinct_streams(2, location)
    tensor = torch.zeros(8, device=location)
    found: dict[str, float] = {}
    for name in ("chain", "alternate"):
        times = []
        for _ in range(rounds):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            with torch.cuda.stream(streams[0]):
                torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]  # some 10 ms, in which the host issues all the rest
                before.record()
            last = recorded(streams[0])
            for number in range(CALLS):
                stream = streams[number % 2 if name == "alternate" else 0]
                if name == "alternate":
                    stream.wait_event(last)
                with torch.cuda.stream(stream):
                    tensor.add_(1.0)
                if name == "alternate":
                    last = recorded(stream)
            stream.wait_stream(streams[0])
            with torch.cuda.stream(stream):
                after.record()
            after.synchronize()
            times.append(float(before.elapsed_time(after)) * 1e3 / CALLS)
        found[name] = statistics.median(times)
    return found


def recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event at the end of what the stream holds."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def rates(location: torch.device, rounds: int = 5, size: int = 256 * MEBIBYTE) -> dict[str, float]:
    """Bytes per microsecond: `h2d`, `d2h` from and to pinned memory, `memory` on the device, where a copy reads and writes.

    On the CPU all three are copies between two blocks of its one memory.
    """
    on_gpu = location.type == "cuda"
    source, target = (torch.ones(size, dtype=torch.uint8, device=location) for _ in range(2))
    if not on_gpu:
        copied = size / _copy_time(target, source, rounds)
        return {"h2d": copied, "d2h": copied, "memory": 2 * copied}
    host = torch.ones(size // 4, dtype=torch.uint8, pin_memory=True)
    part = source[: size // 4]
    return {
        "h2d": size / 4 / _copy_time(part, host, rounds),
        "d2h": size / 4 / _copy_time(host, part, rounds),
        "memory": 2 * size / _copy_time(target, source, rounds),
    }


def _copy_time(target: torch.Tensor, source: torch.Tensor, rounds: int) -> float:
    """Median microseconds of one copy, the first left out."""
    times = []
    for _ in range(rounds + 1):
        if target.is_cuda or source.is_cuda:
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            before.record()
            target.copy_(source, non_blocking=True)
            after.record()
            after.synchronize()
            times.append(float(before.elapsed_time(after)) * 1e3)
        else:
            begun = time.perf_counter()
            target.copy_(source)
            times.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(times[1:])
