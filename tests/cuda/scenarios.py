"""What tests run in processes of their own: with another allocator, under PyTorch's sanitizer, or with a capture that fails.

    python -m tests.cuda.scenarios NAME
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch

from streamgraph.builder import Graph
from streamgraph.errors import TaskError
from streamgraph.plan import plan
from streamgraph.schedule import Wait
from tests.cuda.support import MILLISECOND, compiled, delayed, graphed, inputs_on_gpu
from tests.programs import mix_for, seeded
from tests.running import CHAINS, all_tensors, expected_of, inputs_of, same, steps_of


def programs() -> None:
    """Random programs, compiled and as graphs, with slow tasks."""
    right = tried = 0
    seed = 0
    while tried < 40:
        seed += 1
        schedule = plan(all_tensors(seeded(seed)), streams=3, release="early" if seed % 3 == 0 else "default")
        of = schedule.program
        make: Any = graphed if seed % 2 and torch.cuda.get_allocator_backend() == "native" else compiled
        if make is graphed and any(task.host for task in of.tasks):
            continue
        host = {name for name, number in schedule.accesses.outputs if schedule.accesses.storages[number].host}
        slow = {task.name: MILLISECOND for task in of.tasks[seed % 2 :: 2]}
        executor = make(schedule, delayed(mix_for(of, "cuda"), slow))
        results = []
        for run in range(3):
            outputs = executor.run(inputs_on_gpu(of, inputs_of(of, run))).outputs
            results.append({name: tensor.clone() if name in host else tensor for name, tensor in outputs.items()})
        torch.cuda.synchronize()
        executor.close()
        tried += 1
        right += all(same(result, expected) for result, expected in zip(results, expected_of(of, 3), strict=True))
    print(f"right: {right} of {tried}")


def sanitized(*, missing: bool = False) -> None:
    """A plan that runs, or one with a wait too few."""
    schedule = plan(CHAINS["WAR"], streams=3)
    if missing:
        dropped = next(s for s in schedule.steps if isinstance(s, Wait) and s.reasons[0].kind in ("RAW", "WAR"))
        schedule = steps_of(schedule, lambda step: step is not dropped)
    executor = compiled(schedule)
    try:
        for run in range(3):
            executor.run(inputs_on_gpu(schedule.program, inputs_of(schedule.program, run)))
        torch.cuda.synchronize()
    except TaskError as error:
        print(f"{type(error.__cause__).__name__}: {error.__cause__}")
        return
    print("silent")


def failed_capture() -> None:
    """A task that asks for a value while it is captured; then everything goes on."""
    asks = [False]

    def ask(y: torch.Tensor) -> torch.Tensor:
        return y + (float(y[0].item()) if asks[0] else 1.0)

    made = Graph("asks")
    x = made.input("x", "f32[1048576]")
    y = made.task("make", torch.neg, reads=x, writes="y", stream="one")
    z = made.task("ask", ask, reads=y, writes="z", stream="two")
    made.output(made.task("last", torch.add, reads=[z, y], writes="r"))
    before = torch.cuda.memory_allocated()
    stream = torch.cuda.current_stream()
    executor = graphed(plan(made), {})
    ones = torch.ones(1 << 20, device="cuda")
    executor.run({"x": ones})
    asks[0] = True
    for _ in range(2):
        try:
            executor.run({"x": ones})
        except TaskError as error:
            print(f"{error.task}: {error.problems[0].code} {error.problems[0].message[:200]}")
        assert torch.cuda.current_stream() == stream
        assert not torch.cuda.is_current_stream_capturing()
        assert (ones + 1).sum().item() == 2 << 20
    asks[0] = False
    results = [executor.run({"x": ones}).outputs["r"] for _ in range(3)]
    print("right:", all(bool((result == -1).all()) for result in results), executor.captured)
    del results
    executor.close()
    mine = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(mine):
        two = ones * 2
    mine.replay()
    print("another capture:", bool((two == 2).all()))
    del mine, two, ones, executor
    torch.cuda.synchronize()
    gc.collect()
    print("left in use:", torch.cuda.memory_allocated() - before)


if __name__ == "__main__":
    scenario = {
        "programs": programs, "sanitized": sanitized, "sanitized without a wait": lambda: sanitized(missing=True),
        "failed capture": failed_capture,
    }  # fmt: skip
    scenario[sys.argv[1]]()
