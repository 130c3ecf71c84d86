"""Captured graphs on a GPU: what belongs to whom, and what is left when a capture fails."""

from __future__ import annotations

import random

import pytest
import torch

from streamgraph.builder import Graph
from streamgraph.errors import BindingError
from streamgraph.plan import plan
from streamgraph.run import compile
from tests.cuda.support import MILLISECOND, delayed, graphed, inputs_on_gpu
from tests.cuda.test_compiled import in_a_process
from tests.programs import mix_for, seeded
from tests.running import CHAINS, all_tensors, expected_of, hurried, inputs_of, same
from tests.support import graph

pytestmark = pytest.mark.cuda


def test_replays_follow_the_callers_work_and_the_callers_work_follows_them() -> None:
    of = CHAINS["RAW"].program()
    with compile(of, ops=delayed(mix_for(of, "cuda"), {"b": 10 * MILLISECOND}), device="cuda", executor="graph") as runner:
        source = inputs_of(of, 0)["x"].cuda()
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.default_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                stream.wait_stream(torch.cuda.default_stream())
                torch.cuda._sleep(10 * MILLISECOND)
                x = source + 0
                after = runner(x=x)["r"] + 0
            torch.cuda.synchronize()
            assert torch.equal(after.cpu(), expected_of(of, 1)[0]["r"])


def test_results_stay_when_later_replays_overtake() -> None:
    of = CHAINS["RAW"].program()
    with compile(of, ops=delayed(mix_for(of, "cuda"), {"a": MILLISECOND}), device="cuda", executor="graph") as runner:
        inputs = [inputs_of(of, seed)["x"].cuda() for seed in range(20)]
        results = [runner(x=x)["r"] for x in inputs]
    expected = [expected_of(of, 1, seed)[0]["r"] for seed in range(20)]
    assert [torch.equal(result.cpu(), right) for result, right in zip(results, expected, strict=True)] == [True] * 20


def staged() -> Graph:
    made = Graph("staged")
    staged = made.input("staged", "i64[262144]", device="cpu", pinned=True)
    total = made.buffer("total", "i64[262144]")
    made.copy("upload", staged, "there", stream="copy")
    made.task("sum", torch.Tensor.add_, updates=total, reads="there")
    made.value("back", "i64[262144]", device="cpu", pinned=True)
    made.copy("download", total, "back", stream="back")
    made.output("back")
    return made


@pytest.mark.parametrize("bound", [True, False])
def test_host_memory_is_copied_in_and_out_in_time(bound: bool) -> None:
    pinned = torch.zeros(1 << 18, dtype=torch.int64).pin_memory()
    with compile(staged(), {"staged": pinned} if bound else {}, device="cuda", executor="graph") as runner:
        results = []
        for number in range(6):
            pinned.fill_(number)
            torch.cuda._sleep(5 * MILLISECOND)
            result = runner() if bound else runner(staged=pinned)
            results.append(result["back"])
            assert result["back"].is_pinned()
            result.inputs_free()
            pinned.fill_(-1)
    assert [result.unique().tolist() for result in results] == [[number * (number + 1) // 2] for number in range(6)]


def test_bound_inputs_stay_where_they_are_and_other_shapes_are_refused() -> None:
    made = Graph("bound")
    made.output(made.task("mul", torch.mul, reads=[made.input("x"), made.input("w")], writes="y", stream="one"))
    w = torch.full((4,), 2.0, device="cuda")
    with compile(made, {"w": w}, device="cuda", executor="graph") as runner:
        for number in range(4):
            w.fill_(number)
            assert runner(x=torch.ones(4, device="cuda"))["y"].tolist() == [number] * 4
        with pytest.raises(BindingError, match="SG613"):
            runner(x=torch.ones(4, device="cuda"), w=w + 0)
        with pytest.raises(BindingError, match="SG613"):
            runner(x=torch.ones(5, device="cuda"))


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_memory_is_back_after_close(share: float) -> None:
    before = torch.cuda.memory_allocated()
    schedule = hurried(plan(CHAINS["WAR"], streams=3), share=share)
    executor = graphed(schedule)
    for run in range(4):
        outputs = executor.run(inputs_on_gpu(schedule.program, inputs_of(schedule.program, run))).outputs
        assert same(outputs, expected_of(schedule.program, run + 1)[run])
    assert executor.captured
    assert torch.cuda.memory_allocated() > before
    del outputs
    executor.close()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    torch.cuda.empty_cache()


def waves() -> Graph:
    """Three chains on lanes of their own, with values of some size."""
    made = Graph("waves")
    x = made.input("x", "f32[512, 1024]", init="random")
    ends = []
    for branch in range(3):
        y = x
        for number in range(4):
            y = made.task(f"b{branch}.{number}", torch.sin, reads=y, writes=f"v{branch}.{number}", stream=f"lane{branch}")
        ends.append(y)
    made.output(made.task("end", _sum, reads=[ends], writes="end", stream="main"))
    return made


def _sum(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).sum(0)


def test_urgent_launches_take_no_memory_of_their_own_and_give_the_same_bits() -> None:
    """Their lane is the one stream that it was, and its blocks go round as before."""
    x = torch.randn(512, 1024, device="cuda")
    peaks, results = [], []
    for share in (0.0, 0.0, 0.5):  # the first one fills what stays for the process
        schedule = hurried(plan(waves()), share=share)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        with compile(schedule, device="cuda", executor="graph") as runner:
            results += [runner(x=x)["end"] for _ in range(3)]
            torch.cuda.synchronize()
            peaks.append((torch.cuda.max_memory_allocated() - before[0], torch.cuda.memory_reserved() - before[1]))
    assert peaks[1] == peaks[2]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs_with_urgent_launches_give_the_reference_under_random_delays(seed: int) -> None:
    of = all_tensors(seeded(seed, hosts=False)) if seed % 2 else seeded(seed, hosts=False)
    schedule = hurried(plan(of, streams=1 + seed % 4, issue="captured"), seed)
    of = schedule.program
    if any(task.host for task in of.tasks):
        return  # a copy of a host output
    draws = random.Random(seed)
    slow = {task.name: MILLISECOND * draws.randrange(1, 4) for task in of.tasks if draws.random() < 0.3}
    executor = graphed(schedule, delayed(mix_for(of, "cuda"), slow))
    results = [dict(executor.run(inputs_on_gpu(of, inputs_of(of, run))).outputs) for run in range(5)]
    torch.cuda.synchronize()
    assert [same(one, right) for one, right in zip(results, expected_of(of, 5), strict=True)] == [True] * 5
    executor.close()


def test_a_runner_with_host_tasks_replays_what_stands_between_them() -> None:
    of = graph("a: x -> h @one | p: h -> k ! | c: k -> y @two", "x", hosts="h k", outputs="y").program()
    with compile(of, ops=mix_for(of, "cuda"), device="cuda", executor="graph") as runner:
        results = [runner(x=inputs_of(of, run)["x"].cuda())["y"] for run in range(5)]
    assert [torch.equal(one.cpu(), right["y"]) for one, right in zip(results, expected_of(of, 5), strict=True)] == [True] * 5


def test_a_failed_capture_names_the_task_and_leaves_the_process_usable() -> None:
    done = in_a_process("failed capture")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ask: SG601") == 2, done.stdout
    assert "right: True True" in done.stdout
    assert "another capture: True" in done.stdout
    assert "left in use: 0" in done.stdout, done.stdout


def test_random_numbers_of_replays_are_those_of_eager_runs() -> None:
    made = Graph("dropout")
    rng = made.resource("rng")
    x = made.input("x", "f32[4096]")
    made.task("drop", lambda x: torch.nn.functional.dropout(x, 0.5), reads=x, writes="y", updates=rng, stream="one")
    made.output("y")
    x_there = torch.ones(4096, device="cuda")
    found = {}
    for kind in ("eager", "graph"):
        torch.manual_seed(7)
        with compile(made, device="cuda", executor=kind) as runner:  # type: ignore[arg-type]
            found[kind] = [runner(x=x_there)["y"] for _ in range(5)]
    assert [torch.equal(first, second) for first, second in zip(*found.values(), strict=True)] == [True] * 5
