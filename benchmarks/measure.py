"""How the benchmarks measure: several ways of doing one thing, taken in turn within one run, and a Markdown table of medians.

Times of two runs of a script are never compared: clocks, drivers and neighbours differ. Within one run every way gets its turn in each
repeat, so that whatever drifts hits all of them.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch

from streamgraph.bench import turns

MEBI = 1 << 20
Call = Callable[[], object]


@dataclass(frozen=True)
class Way:
    """One way of doing it. `make` sets it up, leaves what must be closed on the stack, and returns the call that is timed."""

    name: str
    make: Callable[[ExitStack], Call]


@dataclass
class Row:
    """Medians over the repeats: microseconds of the issuing thread, of the device between its first and last work, and of both together."""

    name: str
    host: float = 0.0
    device: float = 0.0
    wall: float = 0.0
    allocated: float = 0.0  # MiB at the peak, above what was there before
    reserved: float = 0.0
    note: str = ""
    hosts: list[float] = field(default_factory=list)
    devices: list[float] = field(default_factory=list)
    walls: list[float] = field(default_factory=list)


def compare(
    ways: Sequence[Way], repeats: int, *, warm: int = 4, back_to_back: int = 4, lead: int = 0, on_gpu: bool = True
) -> dict[str, Row]:
    """A row for each way, by name. A way that cannot be set up, or fails, gets a note instead of figures.

    Ways take turns in an order that is drawn anew for each repeat (`streamgraph.bench.turns` says why). Memory is taken in a pass of its
    own, each way alone, `back_to_back` calls without waiting in between. With `lead`, the device is kept busy for so many clock cycles
    first: the host runs ahead, and the device's time does not begin with waiting for it.
    """
    rows = {way.name: Row(way.name) for way in ways}
    if on_gpu:
        for way in ways:
            _memory(way, rows[way.name], warm, back_to_back)
    with ExitStack() as stack:
        calls: list[tuple[Row, Call]] = []
        for way in ways:
            row = rows[way.name]
            if row.note:
                continue
            try:
                call = way.make(stack)
                for _ in range(warm):
                    call()
                _synchronize(on_gpu)
            except Exception as error:
                row.note = _reason(error)
            else:
                calls.append((row, call))
        for order in turns(len(calls), repeats):
            for row, call in map(calls.__getitem__, order):
                _once(row, call, lead, on_gpu)
        calls.clear()
    for row in rows.values():
        if row.hosts:
            row.host, row.device, row.wall = (statistics.median(times) for times in (row.hosts, row.devices, row.walls))
    _clean(on_gpu)
    return rows


def _once(row: Row, call: Call, lead: int, on_gpu: bool) -> None:
    _synchronize(on_gpu)
    if on_gpu:
        if lead:
            torch.cuda._sleep(lead)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
    started = time.perf_counter()
    result = call()
    issued = time.perf_counter()
    if on_gpu:
        end.record()
    _synchronize(on_gpu)
    row.walls.append((time.perf_counter() - started) * 1e6)
    row.hosts.append((issued - started) * 1e6)
    row.devices.append(begin.elapsed_time(end) * 1e3 if on_gpu else row.walls[-1])
    del result


def _memory(way: Way, row: Row, warm: int, back_to_back: int) -> None:
    _clean(True)
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    try:
        with ExitStack() as stack:
            call = way.make(stack)
            for _ in range(warm):
                call()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            for _ in range(back_to_back):
                call()
            torch.cuda.synchronize()
            row.allocated = (torch.cuda.max_memory_allocated() - allocated) / MEBI
            row.reserved = (torch.cuda.max_memory_reserved() - reserved) / MEBI
            del call
    except Exception as error:
        row.note = _reason(error)
    _clean(True)


def _clean(on_gpu: bool) -> None:
    gc.collect()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _synchronize(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def _reason(error: Exception) -> str:
    problems = getattr(error, "problems", None)
    text = problems[0].message if problems else f"{type(error).__name__}: {error}"
    return text.strip().split("\n")[0][:160]


def distinct_streams(count: int) -> list[torch.cuda.Stream]:
    """Streams with different handles: PyTorch's pool hands out the same ones again, and a graph captures on one of them."""
    found: dict[int, torch.cuda.Stream] = {}
    while len(found) < count:
        stream = torch.cuda.Stream()
        if stream.cuda_stream != torch.cuda.current_stream().cuda_stream:
            found.setdefault(stream.cuda_stream, stream)
    return list(found.values())


def captured(body: Callable[[], object], stack: ExitStack, stream: torch.cuda.Stream | None = None) -> Call:
    """The replay of a CUDA graph of `body`, which is warmed up on the capture stream first."""
    stream = stream or distinct_streams(1)[0]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            body()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    kept: list[object] = [body]  # and with it the memory that it works on, whose addresses the graph has
    with torch.cuda.graph(graph, stream=stream):
        kept.append(body())
    stack.callback(graph.reset)
    stack.callback(kept.clear)
    return graph.replay


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def environment(repeats: int) -> str:
    """Where and with what this was measured."""
    import streamgraph

    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU only"
    return (
        f"{where}; torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}, "
        f"streamgraph {streamgraph.__version__}; medians of {repeats} repeats, all ways in turn in one run"
    )


def parser(description: str | None, repeats: int) -> argparse.ArgumentParser:
    """The options that all scripts share."""
    made = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    made.add_argument("--repeats", type=int, default=repeats)
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--small", action="store_true", help="small sizes, to see whether it runs")
    made.add_argument("--output", type=Path, help="append what is printed to this file")
    return made


class Paper:
    """What is printed, and kept for the file."""

    def __init__(self, output: Path | None) -> None:
        self.output = output
        self.failed = False

    def say(self, text: str = "") -> None:
        """One paragraph."""
        print(text, flush=True)
        if self.output is not None:
            with self.output.open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    def target(self, what: str, value: float, limit: float, unit: str = "") -> None:
        """A figure beside its target, as a list item."""
        met = value <= limit
        self.failed |= not met
        self.say(f"- {what}: **{value:.3g}{unit}**, target {limit:.3g}{unit}: {'met' if met else 'MISSED'}")

    def end(self, device: str) -> None:
        """Exit with 1 if a target was missed on a GPU."""
        sys.exit(int(self.failed and device == "cuda"))
