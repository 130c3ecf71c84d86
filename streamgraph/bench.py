"""Bench: one schedule under every executor that the device has; how long a run takes there, and which setting is worth it.

The executors take turns in every repeat, so that whatever drifts hits all of them alike. A run is timed from the call until its results are
there. Each executor's results are compared with those of the tasks one after another: one that differs is never recommended.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamgraph.binding import Given, bind, made_up, written_in_place
from streamgraph.calls import gpus
from streamgraph.compare import delta
from streamgraph.errors import DeviceError, Problem, SpecError, StreamgraphError
from streamgraph.runner import ExecutorName, Runner
from streamgraph.schedule import Schedule

if TYPE_CHECKING:
    import torch

    from streamgraph.executors.device import Device
    from streamgraph.operators import Operators
    from streamgraph.result import Result

# The simplest first: with equal times, an earlier one is the better choice.
EXECUTORS: tuple[ExecutorName, ...] = ("sequential", "eager", "lanes", "graph")
WARM = 3  # runs before the first repeat: checks, compilation, capture, and what CUDA loads at first use
WORTH_IT = 0.02  # a setting that is less simple must save more than this share of the time,
OFTEN = 0.75  # and be faster in this share of the repeats


@dataclass(frozen=True, slots=True)
class Measured:
    """One executor: `times` are the microseconds of each timed run, in the order of the repeats.

    `host` is the median time until the call returns. `memory` is the peak of device memory in bytes, above what was in use before, with the
    runner's own buffers; None on the CPU. `overlap`: how many tasks were under way at once, on average; None if that was not measured.
    `equal`: the same results as one after another. With a `reason`, this executor could not be used here, and there are no figures.
    """

    executor: ExecutorName
    times: tuple[float, ...] = ()
    host: float = 0.0
    memory: int | None = None
    overlap: float | None = None
    equal: bool = True
    reason: str = ""

    @property
    def median(self) -> float:
        """Microseconds of a run."""
        return statistics.median(self.times)

    def beats(self, other: Measured) -> bool:
        """Whether it is worth it: by more than 2 %, and not just by luck."""
        return beats(self.times, other.times)


@dataclass(frozen=True)
class Bench:
    """What `bench` found, the executors in the order of `EXECUTORS`."""

    schedule: Schedule
    device: str
    repeats: int
    rows: tuple[Measured, ...]
    made_up: tuple[str, ...]

    @property
    def best(self) -> Measured:
        """The simplest setting that no other one with right results beats by more than 2 %, in three quarters of the repeats or more."""
        first, *others = [row for row in self.rows if not row.reason and row.equal]
        for row in others:
            if row.beats(first):
                first = row
        return first

    def speedup(self, row: Measured) -> float:
        """How much faster than the tasks one after another."""
        return self.rows[0].median / row.median


def bench(
    schedule: Schedule, inputs: Given | None = None, *, ops: Operators | None = None, device: str = "auto", repeats: int = 20,
    seed: int = 0, overlap: bool = True, progress: Callable[[int, int], None] | None = None,
) -> Bench:  # fmt: skip
    """Time a schedule under each executor. Inputs that are not given but declare `init` are made up; those given stay as they are.

    Args:
        repeats: timed runs of each executor.
        overlap: also time every task within some more runs, for `Measured.overlap`.
        progress: called with how many rounds are done, and of how many; in a round every executor runs once.

    Raises:
        BindingError, OperatorError, TaskError: as `run`, from the tasks one after another; for another executor it is its row's reason.
        DeviceError: SG606, the device is not here.
        SpecError: SG105, `repeats` is no whole number from 1.
    """
    import torch

    from streamgraph.executors.device import find
    from streamgraph.executors.watched import copied

    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise SpecError(Problem("SG105", f"repeats is {repeats!r}", None, "repeats must be a whole number from 1"))
    where = find(device, schedule.program)
    location = where.location
    on_gpu = location.type == "cuda"
    program = schedule.program
    devices = gpus(program, location)
    invented = made_up(program, inputs or {}, location, seed)
    written = written_in_place(program, schedule.accesses)
    tensors = bind(program, {**invented, **(inputs or {})}, location, written=written)

    def fresh() -> dict[str, torch.Tensor]:
        return {name: copied(value) if name in written else value for name, value in tensors.items()}

    def prepared(executor: ExecutorName, stack: ExitStack) -> Running:
        own = fresh()
        torch.manual_seed(seed)
        runner = stack.enter_context(Runner(schedule, own, ops=ops, device=device, executor=executor, seed=seed))
        return Running(runner, {name: own[name] for name in written}, location if on_gpu else None)

    peaks: dict[str, int] = {}
    reasons: dict[str, str] = {}
    equal: dict[str, bool] = {}
    rows = []
    with torch.random.fork_rng(devices=devices):
        with ExitStack() as stack:
            expected: dict[str, torch.Tensor] = {}
            running: dict[ExecutorName, Running] = {}
            for executor in EXECUTORS:
                try:
                    if on_gpu:
                        with ExitStack() as alone:
                            peaks[executor] = _peak(lambda executor=executor, alone=alone: prepared(executor, alone), devices)
                    one = prepared(executor, stack)
                    # What an executor does first is not what it does later (checks, compilation, capture): both must be right.
                    found = [one.results() for _ in range(WARM)]
                except StreamgraphError as error:
                    if executor == EXECUTORS[0]:
                        raise
                    reasons[executor] = error.problems[0].message
                    continue
                expected = expected or _numbered(found)
                equal[executor] = not any(delta(value, _numbered(found)[name]) for name, value in expected.items())
                running[executor] = one
            times: dict[str, list[tuple[float, float]]] = {executor: [] for executor in running}
            names = list(running)
            for repeat, order in enumerate(turns(len(names), repeats)):
                for executor in map(names.__getitem__, order):
                    times[executor].append(running[executor].timed())
                if progress is not None:
                    progress(repeat + 1, repeats)
        for executor in EXECUTORS:
            if executor in reasons:
                rows.append(Measured(executor, reason=reasons[executor]))
                continue
            host = statistics.median(issued for issued, _ in times[executor])
            share = _overlap(schedule, executor, ops, where, fresh(), seed) if overlap else None
            whole = tuple(total for _, total in times[executor])
            rows.append(Measured(executor, whole, host, peaks.get(executor), share, equal[executor]))
    return Bench(schedule, str(location), repeats, tuple(rows), tuple(invented))


def turns(count: int, repeats: int) -> Iterator[list[int]]:
    """For each repeat, the order in which `count` ways, by number, take their turns: drawn anew each time, and the same in every process.

    A run is slower after one that let the processor rest, or emptied its caches. In a fixed order, going round or not, each way always
    follows the same other one, and that looked like a property of its own: 1.4 times slower instead of 4 % faster (benchmarks/RESULTS.md).
    """
    drawn = random.Random(0)
    return (drawn.sample(range(count), count) for _ in range(repeats))


class Running:
    """A runner with inputs of its own."""

    def __init__(self, runner: Runner, written: Mapping[str, torch.Tensor], on_gpu: torch.device | None) -> None:
        self.runner, self.written, self.on_gpu = runner, written, on_gpu

    def timed(self) -> tuple[float, float]:
        """Microseconds until the call returned, and until its results were there."""
        self.wait()
        begun = time.perf_counter()
        result = self.runner()
        issued = time.perf_counter()
        self.wait()
        ended = time.perf_counter()
        del result
        return (issued - begun) * 1e6, (ended - begun) * 1e6

    def results(self) -> dict[str, torch.Tensor]:
        """The outputs of one run, and the inputs that it has changed, as copies in host memory."""
        result: Result = self.runner()
        self.wait()
        return {name: value.detach().cpu().clone() for name, value in {**result, **self.written}.items()}

    def wait(self) -> None:
        """Until the device is idle."""
        if self.on_gpu is not None:
            import torch

            torch.cuda.synchronize(self.on_gpu)


def beats(mine: Sequence[float], its: Sequence[float]) -> bool:
    """Whether times are shorter than others, measured in the same rounds: by more than WORTH_IT, and OFTEN enough."""
    wins = sum(one < other for one, other in zip(mine, its, strict=True))
    return statistics.median(mine) < statistics.median(its) * (1 - WORTH_IT) and wins >= OFTEN * len(mine)


def _numbered(runs: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {f"{name} of run {number}": value for number, run in enumerate(runs) for name, value in run.items()}


def _peak(prepare: Any, devices: list[int]) -> int:
    """Bytes at the peak of some runs back to back, of a runner that is alone on the devices; summed up over them."""
    import gc

    import torch

    def rest() -> None:
        for device in devices:
            torch.cuda.synchronize(device)

    gc.collect()
    rest()
    torch.cuda.empty_cache()
    before = sum(map(torch.cuda.memory_allocated, devices))
    one = prepare()
    for _ in range(WARM):
        one.runner()
    rest()
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(WARM):
        one.runner()
    rest()
    return int(sum(map(torch.cuda.max_memory_allocated, devices))) - before


def _overlap(
    schedule: Schedule, executor: str, ops: Operators | None, device: Device, tensors: Mapping[str, torch.Tensor], seed: int
) -> float | None:
    """The median overlap of some runs with a stopwatch; None for an executor that does not call the tasks one by one."""
    from streamgraph.executors.stopwatch import Stopwatch, clock_of
    from streamgraph.executors.watched import watched_executor

    try:
        watch = Stopwatch(clock_of(device, schedule.program))
        running = watched_executor(schedule, executor, ops, device, seed, watch.watched)
    except DeviceError:
        return None
    found: list[float] = []
    try:
        for number in range(1 + WARM):
            watch.begin()
            finished = running.run(tensors)
            spans = watch.end().spans
            del finished
            whole = max((span.end for span in spans), default=0.0) - min((span.start for span in spans), default=0.0)
            if number and whole > 0:
                found.append(sum(span.end - span.start for span in spans) / whole)
    finally:
        running.close()
    return statistics.median(found) if found else None
