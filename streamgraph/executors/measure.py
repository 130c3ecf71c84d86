"""Measure: one call, made alone, warm, many times. Out come its time, its share of the device, and its issue time.

On a GPU the calls are captured into a CUDA graph, a short one and a long one, and the difference of their times is divided by the
difference of their lengths: neither the host nor the start of a graph is counted. A call that cannot be captured is timed between two
events, behind a delay that lets the host run ahead. On the CPU it is timed with the host's clock.

The share (`fill`) comes from the same calls made on several streams at once: the time per call, over the time of a call alone. A task that
leaves the device to others takes 1/streams of its time, one that fills it takes all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from streamgraph.cost import TaskCost

Call: TypeAlias = Callable[[], Any]

CAPTURED, LOOP, CLOCK = "captured", "loop", "clock"
# Streams on which a task's share is measured; plans rarely have more busy at once. Where that many hardly take longer than one, the share
# is below what they can show, and twice as many are tried.
SIDE_BY_SIDE, HARDLY = 4, 1.35
SHORT = 4  # calls in the short graph
AIM = 400.0  # microseconds of device work in the long graph
MOST_CALLS = 40


@dataclass(frozen=True, slots=True)
class Timing:
    """What was measured of one task, how (`captured`, `loop`, `clock`), and whether an equal call had been measured before it.

    `together` are pairs of a number of streams and the microseconds of one round of calls, one on each.
    """

    cost: TaskCost
    how: str
    reused: bool = False
    together: tuple[tuple[int, float], ...] = ()


def time_call(
    call: Call, location: torch.device, rounds: int, *, on_host: bool, over_link: bool
) -> Timing:
    """The timing of one call, which may be made again and again."""
    if on_host or location.type == "cpu":
        return Timing(TaskCost(_clocked(call, location, rounds)), CLOCK)
    for _ in range(2):
        call()
    issue = _issue_time(call, location, rounds)
    alone = _looped(call, location, issue, 3, 1)
    calls = max(SHORT, min(MOST_CALLS, round(AIM / max(alone, 1.0))))
    if over_link:  # it may make new pinned memory, which a capture does not allow, and its engine serves one at a time
        return Timing(TaskCost(_looped(call, location, issue, calls, rounds), None, issue), LOOP)
    try:
        alone, together = captured_times(call, (1, SIDE_BY_SIDE), location, calls, rounds)
        widths = [(SIDE_BY_SIDE, together)]
        if together < HARDLY * alone:
            alone, together = captured_times(call, (1, 2 * SIDE_BY_SIDE), location, calls, rounds)
            widths.append((2 * SIDE_BY_SIDE, together))
    except RuntimeError:
        torch.cuda.synchronize(location)
        return Timing(TaskCost(_looped(call, location, issue, calls, rounds), None, issue), LOOP)
    return Timing(TaskCost(alone, share(alone, *widths[-1]), issue), CAPTURED, False, tuple(widths))


def share(alone: float, streams: int, together: float) -> float:
    """The fill that follows from the time of one call alone, and of one round of calls on that many streams."""
    return min(1.0, max(together / (streams * alone), 1.0 / streams)) if alone > 0 else 0.0


def _clocked(call: Call, location: torch.device, rounds: int) -> float:
    """Median microseconds on the host's clock. What a host task reads from the device has arrived before."""
    if location.type == "cuda":
        torch.cuda.synchronize(location)
    call()
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def _issue_time(call: Call, location: torch.device, rounds: int) -> float:
    """Median microseconds until the call returns, with an idle device before it."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize(location)
        begun = time.perf_counter()
        for _ in range(SHORT):
            call()
        times.append((time.perf_counter() - begun) / SHORT)
    torch.cuda.synchronize(location)
    return statistics.median(times) * 1e6


def _looped(call: Call, location: torch.device, issue: float, calls: int, rounds: int) -> float:
    """Microseconds per call between two events, behind a delay in which the host issues them."""
    times = []
    for _ in range(rounds):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(int(2_000 * (issue * calls + 50)))  # type: ignore[no-untyped-call]  # cycles, some 2,000 per microsecond
        before.record()
        for _ in range(calls):
            call()
        after.record()
        after.synchronize()
        times.append(float(before.elapsed_time(after)) * 1e3 / calls)
    return statistics.median(times)


def captured_times(call: Call, widths: Sequence[int], location: torch.device, length: int, rounds: int) -> list[float]:
    """For each width, microseconds of one round of calls, one on each of so many streams, in a captured graph.

    Raises:
        RuntimeError: the call cannot be captured.
    """
    graphs = [_capture([call] * width, location, repeats) for width in widths for repeats in (SHORT, SHORT + length)]
    times = replay_times(graphs, rounds)
    return [max(0.0, (long - short) / length) for short, long in zip(times[::2], times[1::2], strict=True)]


def _capture(calls: Sequence[Call], location: torch.device, repeats: int) -> torch.cuda.CUDAGraph:
    def body(streams: Sequence[torch.cuda.Stream]) -> None:
        for stream, call in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                for _ in range(repeats):
                    call()

    return capture(body, len(calls), location)


def capture(body: Callable[[Sequence[torch.cuda.Stream]], None], streams: int, location: torch.device) -> torch.cuda.CUDAGraph:
    """A graph of what `body` does on that many distinct streams, which fork from the first and join it again.

    Raises:
        RuntimeError: something in it cannot be captured.
    """
    own = distinct_streams(streams, location)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(location)
    with torch.cuda.stream(own[0]):
        # Not `torch.cuda.graph`: it collects garbage and empties the allocator's cache each time, which takes longer than all the rest.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            fork = torch.cuda.Event()  # type: ignore[no-untyped-call]
            fork.record(own[0])
            for stream in own[1:]:
                stream.wait_event(fork)
            body(own)
            for stream in own[1:]:
                own[0].wait_stream(stream)
        except BaseException:
            with suppress(RuntimeError, Warning):  # the capture is void already; or empty, which torch warns of
                graph.capture_end()
            raise
        graph.capture_end()
    return graph


def distinct_streams(count: int, location: torch.device) -> list[torch.cuda.Stream]:
    """Streams of the pool with distinct handles: the pool hands the same ones out again after 32."""
    found: dict[int, torch.cuda.Stream] = {}
    while len(found) < count:
        stream = torch.cuda.Stream(location)  # type: ignore[no-untyped-call]
        found.setdefault(stream.cuda_stream, stream)
    return list(found.values())


def replay_time(graph: torch.cuda.CUDAGraph, rounds: int) -> float:
    """Median microseconds between an event before a replay and one after it."""
    return replay_times([graph], rounds)[0]


def replay_times(graphs: Sequence[torch.cuda.CUDAGraph], rounds: int) -> list[float]:
    """The same for several graphs. They take turns: the device's clock falls under load, and all of them shall see the same."""
    times: list[list[float]] = [[] for _ in graphs]
    for number in range(rounds + 1):
        for graph, found in zip(graphs, times, strict=True):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            before.record()
            graph.replay()
            after.record()
            after.synchronize()
            if number:  # the first replay uploads the graph
                found.append(float(before.elapsed_time(after)) * 1e3)
    return [statistics.median(found) for found in times]
