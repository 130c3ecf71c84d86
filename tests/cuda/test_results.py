"""On a GPU every executor gives the bytes that the CPU's reference gives, with any tasks delayed, and however runs follow each other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from streamgraph.builder import Graph
from streamgraph.errors import DeviceError, RunnerError
from streamgraph.executors.device import POOL, CudaDevice
from streamgraph.executors.external import more_streams
from streamgraph.model import Program
from streamgraph.plan import as_program, plan
from streamgraph.run import compile, run
from tests.cuda.support import MILLISECOND, delayed, eager, inputs_on_gpu
from tests.programs import mix_for, seeded
from tests.running import CHAINS, all_tensors, expected_of, inputs_of, reference, same

pytestmark = pytest.mark.cuda

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.yaml"))


def gives_the_reference(of: Program, runs: int = 3, delays: dict[str, int] | None = None, streams: int = 3, early: bool = False) -> bool:
    """Whether runs back to back give what the CPU gives. Results are looked at only after the last run."""
    schedule = plan(of, streams=streams, release="early" if early else "default")
    of = schedule.program
    executor = eager(schedule, delayed(mix_for(of, "cuda"), delays or {}))
    inputs = [inputs_on_gpu(of, inputs_of(of, run)) for run in range(runs)]
    host = {name for name, number in schedule.accesses.outputs if schedule.accesses.storages[number].host}
    results = []
    for tensors in inputs:
        outputs = executor.run(tensors).outputs
        # What lies in host memory is there when the run returns, and not a moment later.
        results.append({name: tensor.clone() if name in host else tensor for name, tensor in outputs.items()})
    executor.close()
    return all(same(result, expected) for result, expected in zip(results, expected_of(of, runs), strict=True))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_acceptance_cases_give_the_reference_with_each_task_delayed_in_turn(path: Path) -> None:
    of = all_tensors(as_program(path))
    assert gives_the_reference(of)
    for task in of.tasks:
        assert gives_the_reference(of, runs=2, delays={task.name: 5 * MILLISECOND}), f"wrong when '{task.name}' is slow"


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_give_the_reference_under_random_delays(seed: int) -> None:
    of = seeded(seed)
    of = all_tensors(of) if seed % 2 else of
    draws = random.Random(seed)
    delays = {task.name: draws.randrange(3) * MILLISECOND for task in of.tasks}
    assert gives_the_reference(of, delays=delays, streams=1 + seed % 4, early=seed % 3 == 0)


@pytest.mark.parametrize("seed", range(8))
def test_the_reference_on_the_gpu_gives_the_reference_on_the_cpu(seed: int) -> None:
    of = as_program(seeded(seed))
    executor = reference(of, CudaDevice())
    results = [dict(executor.run(inputs_on_gpu(of, inputs_of(of, run))).outputs) for run in range(2)]
    executor.close()
    assert all(same(result, expected) for result, expected in zip(results, expected_of(of, 2), strict=True))


def test_a_run_follows_the_callers_work_and_the_callers_work_follows_the_run() -> None:
    of = CHAINS["RAW"].program()
    with compile(of, ops=delayed(mix_for(of, "cuda"), {"b": 20 * MILLISECOND}), device="cuda") as runner:
        source = inputs_of(of, 0)["x"].cuda()
        runner(x=source)  # everything that CUDA loads lazily is loaded
        for stream in (torch.cuda.Stream(), torch.cuda.current_stream()):
            with torch.cuda.stream(stream):
                stream.wait_stream(torch.cuda.default_stream())
                torch.cuda._sleep(20 * MILLISECOND)
                x = source + 0  # still to come when the run is issued
                after = runner(x=x)["r"] + 0
            torch.cuda.synchronize()
            assert torch.equal(after.cpu(), expected_of(of, 1)[0]["r"])


def test_runs_on_different_streams_follow_each_other() -> None:
    made = Graph("counter")
    x = made.input("x", "i64[8]")
    total = made.buffer("total", "i64[8]")
    made.task("add", "slow_add", updates=total, reads=x, stream="side")
    made.output(total)

    def slow_add(total: torch.Tensor, x: torch.Tensor) -> None:
        torch.cuda._sleep(5 * MILLISECOND)
        total.add_(x)

    with compile(made, device="cuda", ops={"slow_add": slow_add}) as runner:
        one = torch.ones(8, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        results = []
        for number in range(40):  # more than the pool has streams: the caller comes on the runner's own lane once
            with torch.cuda.stream(torch.cuda.Stream() if number % 3 else torch.cuda.default_stream()):
                results.append(runner(x=one)["total"])
        torch.cuda.synchronize()
        assert [result[0].item() for result in results] == list(range(1, 41))


def test_results_stay_when_later_runs_overtake() -> None:
    of = CHAINS["RAW"].program()
    with compile(of, ops=delayed(mix_for(of, "cuda"), {"a": MILLISECOND}), device="cuda") as runner:
        inputs = [inputs_of(of, seed)["x"].cuda() for seed in range(20)]
        results = [runner(x=x)["r"] for x in inputs]
    expected = [expected_of(of, 1, seed)[0]["r"] for seed in range(20)]
    assert [torch.equal(result.cpu(), right) for result, right in zip(results, expected, strict=True)] == [True] * 20


def test_bound_host_inputs_may_be_rewritten_after_inputs_free() -> None:
    made = Graph("staged")
    staged = made.input("staged", "i64[1048576]", device="cpu", pinned=True)
    made.copy("upload", staged, "there", stream="copy")
    made.output("there")
    with compile(made, device="cuda") as runner:
        pinned = torch.zeros(1 << 20, dtype=torch.int64).pin_memory()
        results = []
        for number in range(4):
            pinned.fill_(number)
            torch.cuda._sleep(10 * MILLISECOND)  # entry: the copy cannot begin before this is over
            result = runner(staged=pinned)
            results.append(result["there"])
            result.inputs_free()
        pinned.fill_(-1)
    assert [(result == number).all().item() for number, result in enumerate(results)] == [True] * 4


def wide(lanes: int) -> Graph:
    made = Graph("wide")
    x = made.input("x", "i64[8]")
    for lane in range(lanes):
        made.output(made.task(f"t{lane}", torch.neg, reads=x, writes=f"y{lane}", stream=f"lane{lane}"))
    return made


@pytest.mark.parametrize("lanes", [30, 45])
def test_every_lane_has_a_stream_of_its_own_also_beyond_those_of_the_pool(lanes: int) -> None:
    x = torch.arange(8, device="cuda")
    if lanes > POOL and not more_streams():
        with pytest.raises(DeviceError, match="SG606"):
            compile(wide(lanes), device="cuda")
        return
    for caller in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(caller), compile(wide(lanes), device="cuda") as runner:
            caller.wait_stream(torch.cuda.default_stream())
            for _ in range(3):
                outputs = runner(x=x)
            streams = runner._executor.streams  # type: ignore[union-attr]
            handles = [stream.cuda_stream for lane, stream in streams.items() if lane != "host"]
            assert len(set(handles)) == len(handles) == lanes + 1
            assert all(torch.equal(output, -x) for output in outputs.values())
            torch.cuda.synchronize()


def test_too_many_lanes_are_refused_when_the_runner_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamgraph.executors.device.more_streams", lambda: False)
    with pytest.raises(DeviceError, match="SG606"):
        compile(wide(33), device="cuda")


def test_a_run_inside_a_capture_joins_it_but_not_before_the_runner_has_run_once() -> None:
    of = CHAINS["RAW"].program()
    with compile(of, ops=mix_for(of, "cuda"), device="cuda") as runner:
        x = inputs_of(of, 0)["x"].cuda()
        graph, y = torch.cuda.CUDAGraph(), torch.zeros(8, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y.add_(x)
            with pytest.raises(RunnerError, match="SG609"):
                runner(x=x)
        graph.replay()
        assert torch.equal(y, x)
        assert torch.equal(runner(x=x)["r"].cpu(), expected_of(of, 1)[0]["r"])
        torch.cuda.synchronize()
        second = torch.cuda.CUDAGraph()
        with torch.cuda.graph(second):
            result = runner(x=x)["r"]
            after = result + 1
        for seed in range(1, 4):
            x.copy_(inputs_of(of, seed)["x"])
            second.replay()
            right = expected_of(of, 1, seed)[0]["r"]
            assert torch.equal(result.cpu(), right)
            assert torch.equal(after.cpu(), right + 1)
        assert torch.equal(runner(x=x)["r"].cpu(), right)
        torch.cuda.synchronize()
        del graph, second, result, after


def test_devices_and_executors_that_are_not_here_are_refused() -> None:
    of = CHAINS["RAW"].program()
    with pytest.raises(DeviceError, match="SG606"):
        run(of, inputs_of(of, 0), ops=mix_for(of), device=f"cuda:{torch.cuda.device_count()}")


def test_random_inputs_are_the_same_on_both_devices() -> None:
    of = CHAINS["RAW"].program()
    on_gpu = run(of, ops=mix_for(of, "cuda"), device="cuda", seed=5)
    on_cpu = run(of, ops=mix_for(of), device="cpu", seed=5)
    assert on_gpu.made_up == on_cpu.made_up == ("x",)
    assert same(on_gpu, on_cpu)


def test_a_lane_of_high_priority_gets_a_stream_of_high_priority() -> None:
    made = Graph("urgent")
    x = made.input("x", "i64[8]")
    made.stream("copy", priority="high")
    for lane in ("copy", "other"):
        made.output(made.task(f"on_{lane}", torch.neg, reads=x, writes=f"y_{lane}", stream=lane))
    with compile(made, device="cuda") as runner:
        runner(x=torch.arange(8, device="cuda"))
        streams = runner._executor.streams  # type: ignore[union-attr]
        assert streams["copy"].priority < streams["other"].priority == 0
        torch.cuda.synchronize()
