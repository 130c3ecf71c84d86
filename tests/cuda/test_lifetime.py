"""Memory comes back when it may, and failures leave nothing under way and nothing held."""

from __future__ import annotations

import gc
from collections.abc import Mapping

import pytest
import torch

from streamgraph.builder import Graph
from streamgraph.errors import TaskError
from streamgraph.plan import plan
from streamgraph.run import compile
from tests.cuda.support import MILLISECOND, delayed, eager, inputs_on_gpu
from tests.programs import mix_for, seeded
from tests.running import Fault, expected_of, failing, inputs_of, same
from tests.support import program

pytestmark = pytest.mark.cuda

MEBI = 1 << 20


def chain(length: int) -> Graph:
    """Values made on a side lane and used on main: the shape whose memory is left to the next run."""
    made = Graph("chain")
    h = made.input("x", f"f32[{MEBI}]")
    for number in range(length):
        w = made.task(f"load{number}", torch.neg, reads=h if number == 0 else "x", writes=f"w{number}", stream="copy")
        h = made.task(f"use{number}", torch.add, reads=[h, w], writes="h", stream="main")
    made.output(h)
    return made


def test_after_close_all_memory_is_back() -> None:
    before = torch.cuda.memory_allocated()
    runner = compile(chain(8), device="cuda")
    x = torch.ones(MEBI, device="cuda")
    for _ in range(5):
        result = runner(x=x)
    assert torch.cuda.memory_allocated() > before
    runner.close()
    del result, x
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_memory_in_use_is_the_same_after_every_steady_run() -> None:
    with compile(chain(8), device="cuda") as runner:
        x = torch.ones(MEBI, device="cuda")
        for _ in range(3):
            runner(x=x)
        torch.cuda.synchronize()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for _ in range(50):
            runner(x=x)
            assert torch.cuda.memory_allocated() == allocated
        torch.cuda.synchronize()
        assert torch.cuda.memory_reserved() == reserved


def test_a_freed_block_is_not_reused_while_another_lane_reads_it() -> None:
    # Every load allocates on `copy`; each reader is slow, and later loads fill whatever block is free.
    def slow_add(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(5 * MILLISECOND)
        return first + second

    made = Graph("slow")
    made.input("x", f"f32[{MEBI}]")
    h = "x"
    for number in range(6):
        made.task(f"load{number}", lambda x, number=number: x * (number + 2), reads="x", writes=f"w{number}", stream="copy")
        made.task(f"use{number}", slow_add, reads=[h, f"w{number}"], writes="h", stream="main")
        h = "h"
    made.output("h")
    with compile(made, device="cuda") as runner:
        results = [runner(x=torch.full((MEBI,), float(run), device="cuda"))["h"] for run in range(4)]
    # x + 2x + 3x + ... + 7x
    assert [result.unique().tolist() for result in results] == [[run * 28.0] for run in range(4)]


WIDE = "a: x -> y @one | b: x -> z @two | c: y z -> v @main | p: h -> k ! | d: v k -> w @one | e: w -> +b @two"


@pytest.mark.parametrize("task", ["a", "b", "c", "p", "d", "e"])
def test_a_task_that_raises_leaves_streams_drained_and_memory_free(task: str) -> None:
    of = program(WIDE, inputs="x", buffers="b", hosts="h k", outputs="w")
    schedule = plan(of)
    broken: dict[str, BaseException] = {}
    slow: Mapping[str, int] = {other.name: 10 * MILLISECOND for other in of.tasks}
    executor = eager(schedule, failing(of, broken, delayed(mix_for(of, "cuda"), slow)))
    inputs = [inputs_on_gpu(of, inputs_of(of, run)) for run in range(3)]
    right = expected_of(of, 3)
    assert same(executor.run(inputs[0]).outputs, right[0])
    torch.cuda.synchronize()
    broken[task] = Fault("no more")
    with pytest.raises(TaskError, match=f"task '{task}'") as caught:
        executor.run(inputs[1])
    assert isinstance(caught.value.__cause__, Fault)
    assert all(stream.query() for stream in executor.streams.values()), "something is still under way"  # type: ignore[attr-defined]
    assert executor.pending == {}
    del broken[task], caught
    assert same(executor.run(inputs[2]).outputs, right[2])  # which does not depend on what the failed run did to `b`
    executor.close()
    gc.collect()


@pytest.mark.parametrize("seed", range(5))
def test_random_programs_leave_no_memory_in_use(seed: int) -> None:
    schedule = plan(seeded(seed), streams=4)
    before = torch.cuda.memory_allocated()
    executor = eager(schedule)
    for run in range(4):
        executor.run(inputs_on_gpu(schedule.program, inputs_of(schedule.program, run)))
    executor.close()
    torch.cuda.synchronize()
    gc.collect()
    assert torch.cuda.memory_allocated() == before
