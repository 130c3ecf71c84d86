"""The canary: take one wait out of a plan, slow down what it waited for, and see a wrong answer; put it back, and see the right one.

If a mutant passes here, the tests of this folder prove nothing. Every mutant gets inputs of its own, so that no block can hold the right
bytes from an earlier run, and everything that CUDA loads lazily is loaded before, since loading a kernel may wait for the device.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from streamgraph.plan import plan
from streamgraph.schedule import HostWait, Schedule, Wait
from tests.cuda.support import MILLISECOND, delayed, eager, inputs_on_gpu
from tests.programs import mix_for
from tests.running import CHAINS, expected_of, inputs_of, same, shows_in_no_value, steps_of

pytestmark = pytest.mark.cuda

_seeds = itertools.count(1000, 10)


def right_answers(schedule: Schedule, slow: str, runs: int = 2) -> bool:
    """Whether runs back to back give the right answers while task `slow` keeps its stream busy for 50 ms before it does its work."""
    of, seed = schedule.program, next(_seeds)
    executor = eager(schedule, delayed(mix_for(of, "cuda"), {slow: 50 * MILLISECOND}))
    inputs = [inputs_on_gpu(of, inputs_of(of, seed + run)) for run in range(runs)]
    results = [executor.run(tensors).outputs for tensors in inputs]
    torch.cuda.synchronize()
    verdict = all(same(result, right) for result, right in zip(results, expected_of(of, runs, seed), strict=True))
    executor.close()
    return verdict


@pytest.mark.parametrize("name", CHAINS)
def test_each_wait_taken_out_gives_a_wrong_answer_and_put_back_the_right_one(name: str) -> None:
    schedule = plan(CHAINS[name], streams=3)
    torch.cuda._sleep(1)
    assert right_answers(schedule, "nothing"), "warm-up"
    tried = 0
    for dropped in schedule.steps:
        if not isinstance(dropped, Wait | HostWait) or shows_in_no_value(schedule, dropped):
            continue
        slow = schedule.event_task[dropped.event]
        mutant = steps_of(schedule, lambda step, dropped=dropped: step is not dropped)
        assert not right_answers(mutant, slow), f"nobody noticed that this is missing: {dropped}"
        assert right_answers(schedule, slow), f"wrong with every wait in place, when '{slow}' is slow"
        tried += 1
    assert tried >= 1
