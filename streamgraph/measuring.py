"""Measuring: a schedule and tensors become a measured timeline, beside the same tasks one after another.

Each of the two first runs once, warm; then they take turns, both with a stopwatch, so that what drifts hits both and what a mark costs is
paid by both. Tasks are called one by one (never through the compiled function or a CUDA graph), so a run is slower than one that nobody
watches.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from streamgraph.binding import written_in_place
from streamgraph.calls import gpus
from streamgraph.measured import MeasuredTimeline, Times
from streamgraph.schedule import Schedule

if TYPE_CHECKING:
    import torch

    from streamgraph.executors.device import Device
    from streamgraph.executors.stopwatch import DeviceClock, Lap
    from streamgraph.operators import Operators
    from streamgraph.timeline import Timeline

RUNS = 5


def measure(
    schedule: Schedule, tensors: Mapping[str, torch.Tensor], predicted: Timeline, *, device: Device, ops: Operators | None = None,
    executor: str = "auto", seed: int = 0, runs: int = RUNS, clock: DeviceClock | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MeasuredTimeline:  # fmt: skip
    """The run with the median makespan of `runs`, after a warm one. The tensors stay as they are; buffers are the measurement's own.

    Args:
        tensors: every input, where the program wants it.
        executor: "auto" ("lanes" on the CPU, "eager" on CUDA), "lanes", "eager", or "sequential".
        progress: called with how many runs are done, and of how many.
        clock: the device's; by default CUDA's for a CUDA device, else none: the host's clock is enough.

    Raises:
        DeviceError: SG606, the executor does not call tasks one by one ("graph").
        OperatorError, TaskError: as `run`.
    """
    import torch

    from streamgraph.executors.choose import chosen
    from streamgraph.executors.stopwatch import Stopwatch, clock_of
    from streamgraph.executors.watched import copied, watched_executor

    location = device.location
    written = written_in_place(schedule.program, schedule.accesses)
    which = chosen(executor, location)
    clock = clock if clock is not None else clock_of(device, schedule.program)
    laps: dict[str, list[Lap]] = {"sequential": [], which: []}
    with torch.random.fork_rng(devices=gpus(schedule.program, location)):
        torch.manual_seed(seed)
        running = {}
        try:
            for name in laps:
                watch = Stopwatch(clock, names=True)
                own = {key: copied(value) if key in written else value for key, value in tensors.items()}
                running[name] = watch, watched_executor(schedule, name, ops, device, seed, watch.watched), own
            for number in range(1 + runs):
                for name, (watch, one, own) in running.items():
                    for key in written:
                        own[key].copy_(tensors[key])
                    watch.begin()
                    finished = one.run(own)
                    lap = watch.end()
                    del finished
                    if number:
                        laps[name].append(lap)
                if progress is not None:
                    progress(1 + number, 1 + runs)
        finally:
            for _, one, _ in running.values():
                one.close()
    middle = sorted(laps[which], key=lambda lap: lap.makespan)[runs // 2]
    times: dict[str, Times] = {span.task: (span.start, span.end, span.issued) for span in middle.spans}
    alone = statistics.median(lap.makespan for lap in laps["sequential"])
    place = torch.cuda.get_device_name(location) if location.type == "cuda" else "the CPU"
    return MeasuredTimeline(schedule, predicted, times, middle.makespan, alone, device=place, runs=runs)
