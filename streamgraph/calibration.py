"""Calibration: the machine at hand becomes a Machine, by `streamgraph doctor --measure`. Takes some seconds, and a quiet machine.

What the executor adds to a call is found by difference: the same tiny kernels in a plain loop, through a runner on one lane, and through a
runner that changes lanes with every task. The last difference is shared out among switch, record and wait as these calls compare when
they are made alone.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from streamgraph.builder import Graph
from streamgraph.machine import Machine, as_machine
from streamgraph.plan import plan
from streamgraph.run import compile
from streamgraph.schedule import Schedule

if TYPE_CHECKING:
    import torch

TASKS = 200
ROUNDS = 15


def measure_machine(device: str = "auto", name: str | None = None) -> Machine:
    """The machine's profile. `device` is `auto`, `cpu`, `cuda` or `cuda:1`.

    Raises:
        DeviceError: SG606, the device is not here.
    """
    from streamgraph.executors.device import find

    location = find(device).location
    return _gpu(location, name) if location.type == "cuda" else _cpu(location, name)


def _gpu(location: torch.device, name: str | None) -> Machine:
    import torch

    from streamgraph.executors.calibrate import captured_patterns, eager_patterns, host_calls, rates

    facts: Any = torch.cuda.get_device_properties(location)
    calls, eager, captured = host_calls(location), eager_patterns(location), captured_patterns(location)
    plain, one, two, single = _in_turns(location)
    step = max(0.0, one / TASKS - plain)
    changing = max(0.0, (two - one) / TASKS)
    parts = calls["switch"] + calls["record"] + calls["wait"]
    share = changing / parts if parts > 0 else 0.0
    branches = [(captured[f"meet {width}"] - captured["chain"]) / (width - 1) for width in (4, 8)]
    return Machine(
        name or facts.name, f"{facts.name}, torch {torch.__version__}, CUDA {torch.version.cuda}, {platform.machine()} host",
        launch=_figure(plain + step), step=_figure(step), switch=_figure(calls["switch"] * share),
        record=_figure(calls["record"] * share), wait=_figure(calls["wait"] * share), host_wait=_figure(calls["host_wait"]),
        record_stream=_figure(calls["record_stream"]), release=_figure(as_machine().release), call=_figure(single - plain - step),
        replay=_figure(captured["replay"]), smallest=_figure(captured["chain"]),
        handover=_figure(eager["alternate"] - eager["chain"]), captured_handover=_figure(captured["alternate"] - captured["chain"]),
        captured_branch=_figure(statistics.mean(branches)), interference=as_machine("h200").interference,
        **{key: float(f"{rate:.3g}") for key, rate in rates(location).items()},
        multiprocessors=float(facts.multi_processor_count), elements=4.0 * getattr(facts, "max_threads_per_multi_processor", 2048),
        model_error=0.0,
    )  # fmt: skip


def _cpu(location: torch.device, name: str | None) -> Machine:
    import torch

    from streamgraph.executors.calibrate import rates

    plain, one, two, single = _in_turns(location)
    typical = as_machine("cpu")
    handover = _figure((two - one) / TASKS)
    cores = torch.get_num_threads()
    return Machine(
        name or "cpu", f"{platform.processor() or platform.machine()}, {cores} threads, torch {torch.__version__}",
        launch=_figure(one / TASKS), step=_figure(one / TASKS - plain), switch=0.0, record=0.0, wait=0.0, host_wait=typical.host_wait,
        record_stream=0.0, release=typical.release, call=_figure(single - one / TASKS), replay=0.0, smallest=_figure(plain),
        handover=handover, captured_handover=handover, captured_branch=0.0, interference=typical.interference,
        **{key: float(f"{rate:.3g}") for key, rate in rates(location, size=1 << 26).items()},
        multiprocessors=float(cores), elements=typical.elements, model_error=0.0,
    )  # fmt: skip


def _figure(microseconds: float) -> float:
    """What is below nothing was noise."""
    return round(max(0.0, microseconds), 3)


def _tiny(tasks: int, lanes: int) -> Schedule:
    """A chain of tiny kernels on one lane, or on two in turn."""
    import torch

    graph = Graph("tiny")
    total = graph.buffer("total", "f32[8]")
    for number in range(tasks):
        graph.task(f"t{number}", torch.Tensor.add_, updates=total, const={"other": 1.0}, stream="s1" if lanes > number % 2 == 1 else "main")
    return plan(graph)


def _in_turns(location: torch.device) -> tuple[float, float, float, float]:
    """Microseconds of the host: per tiny kernel in a plain loop; per warm call of a runner of many on one lane, on two, and of one.

    They take turns, so that all of them meet the host at the same speeds.
    """
    import torch

    total = torch.zeros(8, device=location)

    def loop() -> None:
        for _ in range(TASKS):
            total.add_(other=1.0)

    def rest() -> None:
        if location.type == "cuda":
            torch.cuda.synchronize(location)

    with ExitStack() as stack:
        schedules = (_tiny(TASKS, 1), _tiny(TASKS, 2), _tiny(1, 1))
        calls: list[Callable[[], object]] = [loop, *(stack.enter_context(compile(s, device=str(location))) for s in schedules)]
        times: list[list[float]] = [[] for _ in calls]
        for number in range(ROUNDS + 2):
            for call, found in zip(calls, times, strict=True):
                rest()
                begun = time.perf_counter()
                call()
                if number > 1:
                    found.append((time.perf_counter() - begun) * 1e6)
        rest()
    plain, one, two, single = (statistics.median(found) for found in times)
    return plain / TASKS, one, two, single
