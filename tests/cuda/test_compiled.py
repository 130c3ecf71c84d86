"""Compiled runs on a GPU: the reference's bytes whatever is slow, and wrong ones as soon as a wait or a record_stream is missing."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from streamgraph.builder import Graph
from streamgraph.errors import TaskError
from streamgraph.model import Program
from streamgraph.plan import plan
from streamgraph.run import compile
from streamgraph.schedule import Launch, RecordStream, Release, Schedule, Wait
from tests.cuda.support import MILLISECOND, compiled, counted, delayed, eager, graphed, inputs_on_gpu
from tests.programs import mix_for, seeded
from tests.running import CHAINS, Fault, all_tensors, expected_of, failing, inputs_of, same, shows_in_no_value, steps_of
from tests.support import graph, program

pytestmark = pytest.mark.cuda

ROOT = Path(__file__).resolve().parents[2]


def has_host_tasks(of: Program) -> bool:
    return any(task.host for task in of.tasks)


def gives_the_reference(kind: str, schedule: Schedule, delays: Mapping[str, int], runs: int = 3, seed: int = 0) -> bool:
    """Whether runs back to back give what the CPU gives. Results are looked at only after the last run."""
    of, slow = schedule.program, dict[str, int]()
    make = {"eager": eager, "compiled": compiled, "graph": graphed}[kind]
    executor = make(schedule, delayed(mix_for(of, "cuda"), slow))  # type: ignore[operator]
    inputs = [inputs_on_gpu(of, inputs_of(of, seed + run)) for run in range(runs)]
    host = {name for name, number in schedule.accesses.outputs if schedule.accesses.storages[number].host}
    results = []
    for number, tensors in enumerate(inputs):
        slow.update(delays if number else {})  # the first run is the interpreter's, and loads what CUDA loads lazily
        outputs = executor.run(tensors).outputs
        results.append({name: tensor.clone() if name in host else tensor for name, tensor in outputs.items()})
    executor.close()
    return all(same(result, right) for result, right in zip(results, expected_of(of, runs, seed), strict=True))


# --- the same results --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("kind", ["compiled", "graph"])
def test_random_programs_give_the_reference_under_random_delays(kind: str, block: int) -> None:
    tried = 0
    for seed in range(block * 30, block * 30 + 30):
        of = all_tensors(seeded(seed)) if seed % 2 else seeded(seed)
        schedule = plan(of, streams=1 + seed % 4, release="early" if seed % 3 == 0 else "default")
        if kind == "graph" and has_host_tasks(schedule.program):
            continue
        draws = random.Random(seed)
        delays = {task.name: draws.randrange(3) * MILLISECOND // 4 for task in schedule.program.tasks}
        assert gives_the_reference(kind, schedule, delays), f"wrong: seed {seed}"
        tried += 1
    assert tried >= 8


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["compiled", "graph"])
def test_random_programs_give_the_reference_with_each_task_delayed_in_turn(kind: str, seed: int) -> None:
    while has_host_tasks(plan(all_tensors(seeded(seed)), streams=3).program):
        seed += 1000
    schedule = plan(all_tensors(seeded(seed)), streams=3)
    for task in schedule.program.tasks:
        assert gives_the_reference(kind, schedule, {task.name: 3 * MILLISECOND}), f"wrong when '{task.name}' is slow: seed {seed}"


@pytest.mark.parametrize("name", ["RAW", "WAR"])
def test_a_compiled_run_records_and_waits_as_planned_and_creates_nothing(name: str) -> None:
    schedule = plan(CHAINS[name], streams=3)
    executor = compiled(schedule)
    inputs = inputs_on_gpu(schedule.program, inputs_of(schedule.program, 0))
    kept = [executor.run(inputs) for _ in range(2)]
    with counted() as calls:
        kept.append(executor.run(inputs))
    assert calls.created == []
    assert len(calls.recorded) == schedule.counts.events
    assert len(calls.waited) == schedule.counts.waits
    torch.cuda.synchronize()
    executor.close()


# --- tests that must be able to fail -----------------------------------------------------------------------------------------------------


def stamped(seed: int) -> Program:
    """A random program in which everything shows: each task returns a value of its own, and all values and buffers are outputs."""
    draws = random.Random(seed)
    made = Graph("stamped")
    made.input("x", "i64[8]")
    names: list[str] = []
    for number in range(2):
        made.buffer(f"b{number}", "i64[8]")
        made.view(f"b{number}.low", f"b{number}", (slice(0, 4),))
        made.view(f"b{number}.middle", f"b{number}", (slice(2, 6),))
        names += [f"b{number}", f"b{number}.low", f"b{number}.middle"]
    for number in range(8):
        reads = draws.sample(names, draws.randrange(1, 3))
        whole = {name.split(".")[0] for name in reads}
        free = [name for name in names if name[0] == "b" and name.split(".")[0] not in whole]
        changed = draws.sample(free, min(len(free), draws.randrange(2)))
        how = draws.randrange(2)
        made.task(
            # With `x`, which differs from run to run, no run finds what the one before it left and takes it for its own.
            f"t{number}", "mix", reads=["x", *reads], updates=changed if how else [], writes=[f"r{number}", *([] if how else changed)],
            stream=draws.choice(["main", "one", "two"]), cost=10.0,
        )  # fmt: skip
        names.append(f"r{number}")
    for name in names:
        if "." not in name:
            made.output(name)
    return made.program()


def wait_mutants(seeds: Iterator[int]) -> Iterator[tuple[Schedule, str]]:
    """Schedules with one wait too few, and the task that it waited for. Entry and exit order the caller's work, of which there is none."""
    for seed in seeds:
        schedule = plan(stamped(seed), streams=3)
        for dropped in schedule.steps:
            if isinstance(dropped, Wait) and not shows_in_no_value(schedule, dropped):
                slow = schedule.event_task[dropped.event]
                if schedule.program.tasks[schedule.program.index_of_task[slow]].operator == "mix":  # which can be slowed down
                    yield steps_of(schedule, lambda step, dropped=dropped: step is not dropped), slow


def test_missing_waits_give_wrong_results(record_property: Any) -> None:
    noticed, survivors = 0, []
    mutants = wait_mutants(iter(range(10_000)))
    for number in range(200):
        mutant, slow = next(mutants)
        wrong = not gives_the_reference("compiled", mutant, {slow: 10 * MILLISECOND}, runs=3, seed=1000 + 10 * number)
        noticed += wrong
        if not wrong:
            survivors.append(f"{mutant}\n(slow: {slow})")
    print(f"\nmissing waits: {noticed} of 200 mutants give a wrong result")
    record_property("missing waits noticed", noticed)
    assert noticed >= 190, "\n".join(survivors[:10])


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("mebibytes", [1, 24])
def test_a_missing_record_stream_gives_a_wrong_result(length: int, mebibytes: int) -> None:
    # `h` is made on lane one and read on main, late; what lane one makes next gets its block.
    size = mebibytes << 18

    def late(h: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(20 * MILLISECOND)
        return h + 0

    made = Graph("reuse")
    made.input("x", f"f32[{size}]")
    made.task("make", torch.neg, reads="x", writes="h", stream="one")
    made.task("late", late, reads="h", writes="y", stream="main")
    for number in range(length):
        made.task(f"more{number}", lambda x, number=number: x * (number + 2), reads="x", writes=f"k{number}", stream="one")
    made.output("y")
    made.output("k0")
    schedule = plan(made)
    position = next(i for i, step in enumerate(schedule.steps) if step == Launch("late", "main"))
    before, after = ([s for s in part if not (isinstance(s, Release) and s.storage == "h.1")]
                     for part in (schedule.steps[: position + 1], schedule.steps[position + 1 :]))  # fmt: skip
    guarded = replace(schedule, steps=(*before, RecordStream("h.1", "main"), Release("h.1", "one"), *after))
    bare = replace(schedule, steps=(*before, Release("h.1", "one"), *after))
    x = torch.ones(size, device="cuda")
    torch.cuda.synchronize()
    verdicts = []
    for mutant in (guarded, bare):
        executor = compiled(mutant, ops={})
        results = [executor.run({"x": x}).outputs["y"] for _ in range(3)]
        torch.cuda.synchronize()
        verdicts.append(all(bool((result == -1).all()) for result in results))
        executor.close()
    assert verdicts == [True, False]


def test_a_missing_record_stream_of_an_output_gives_a_wrong_result() -> None:
    made = Graph("handed over")
    x = made.input("x", "f32[1048576]")
    made.output(made.task("make", torch.neg, reads=x, writes="h", stream="one"))
    schedule = plan(made)
    if schedule.lane_of["make"] == "main":
        schedule = plan(made, streams=2)
    assert any(isinstance(step, RecordStream) for step in schedule.steps)
    bare = steps_of(schedule, lambda step: not isinstance(step, RecordStream))
    x_there = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    verdicts = []
    for mutant in (schedule, bare):
        executor = compiled(mutant, ops={})
        right = True
        for _ in range(3):
            h = executor.run({"x": x_there}).outputs["h"]
            torch.cuda._sleep(20 * MILLISECOND)
            kept = h + 0  # late
            del h
            with torch.cuda.stream(executor.streams["one"]):  # type: ignore[arg-type]
                other = torch.full((1 << 20,), 5.0, device="cuda")  # whoever allocates there next
            torch.cuda.synchronize()
            right = right and bool((kept == -1).all())
            del other, kept
        verdicts.append(right)
        executor.close()
    assert verdicts == [True, False]


# --- memory and failures -----------------------------------------------------------------------------------------------------------------


def chain(length: int) -> Graph:
    made = Graph("chain")
    h = made.input("x", "f32[65536]")
    for number in range(length):
        w = made.task(f"load{number}", torch.neg, reads=h if number == 0 else "x", writes=f"w{number}", stream="copy")
        h = made.task(f"use{number}", torch.add, reads=[h, w], writes="h", stream="main")
    made.output(h)
    return made


@pytest.mark.parametrize(("kind", "runs"), [("eager", 2_000), ("graph", 20_000)])
def test_memory_does_not_grow_over_many_runs(kind: Any, runs: int) -> None:
    with compile(chain(4), device="cuda", executor=kind) as runner:
        x = torch.ones(65536, device="cuda")
        for _ in range(5):
            result = runner(x=x)
        torch.cuda.synchronize()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        for number in range(runs):
            result = runner(x=x)
            if number % 100 == 0:
                torch.cuda.synchronize()  # so that a host ahead of the device does not count as growth
                assert torch.cuda.memory_allocated() == allocated
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == allocated
        assert torch.cuda.memory_reserved() <= reserved + (64 << 20)
        assert torch.equal(result["h"], x - 4)


WIDE = "a: x -> y @one | b: x -> z @two | c: y z -> v @main | p: h -> k ! | d: v k -> w @one | e: w -> +b @two"


@pytest.mark.parametrize("task", ["a", "b", "c", "p", "d", "e"])
def test_a_task_that_raises_leaves_streams_drained_and_memory_free(task: str) -> None:
    of = program(WIDE, inputs="x", buffers="b", hosts="h k", outputs="w")
    schedule = plan(of)
    broken: dict[str, BaseException] = {}
    slow = {other.name: 5 * MILLISECOND for other in of.tasks}
    executor = compiled(schedule, failing(of, broken, delayed(mix_for(of, "cuda"), slow)))
    inputs = [inputs_on_gpu(of, inputs_of(of, run)) for run in range(4)]
    right = expected_of(of, 4)
    for run in range(2):
        assert same(executor.run(inputs[run]).outputs, right[run])
    torch.cuda.synchronize()
    gc.collect()
    broken[task] = Fault("no more")
    with pytest.raises(TaskError, match=f"task '{task}'") as caught:
        executor.run(inputs[2])
    assert isinstance(caught.value.__cause__, Fault)
    assert all(stream.query() for stream in executor.streams.values()), "something is still under way"  # type: ignore[attr-defined]
    assert executor.pending == {}
    del broken[task], caught
    assert same(executor.run(inputs[3]).outputs, right[3])
    executor.close()


# --- other allocators, and another opinion -----------------------------------------------------------------------------------------------


def in_a_process(scenario: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.cuda.scenarios", scenario]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("options", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_other_allocators_give_the_reference_too(options: str) -> None:
    done = in_a_process("programs", PYTORCH_CUDA_ALLOC_CONF=options, PYTORCH_ALLOC_CONF=options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "right: 40 of 40" in done.stdout


def test_the_sanitizer_of_pytorch_is_silent_on_a_plan_and_speaks_when_a_wait_is_missing() -> None:
    good = in_a_process("sanitized", TORCH_CUDA_SANITIZER="1")
    assert good.returncode == 0, good.stdout + good.stderr
    assert "silent" in good.stdout
    assert "CSAN" not in good.stdout + good.stderr
    bad = in_a_process("sanitized without a wait", TORCH_CUDA_SANITIZER="1")
    # It prints what it found, and raises out of the task that found it.
    assert "CSAN detected a possible data race" in bad.stdout + bad.stderr, bad.stdout + bad.stderr
    assert "silent" not in bad.stdout


# --- the code to keep --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_the_plain_torch_code_gives_the_reference(seed: int) -> None:
    of = all_tensors(seeded(seed))
    ops = delayed(mix_for(of, "cuda"), {task.name: seed % 3 * MILLISECOND for task in of.tasks[::2]})
    named = replace(of, tasks=tuple(replace(t, operator=f"mix_{t.name}") if t.operator == "mix" else t for t in of.tasks))
    module: dict[str, Any] = {}
    exec(plan(named, streams=3).to_python(), module)
    own = {f"mix_{task.name}": ops(task) for task in of.tasks if task.operator == "mix"}
    inputs = [inputs_on_gpu(named, inputs_of(named, run)) for run in range(3)]
    results = [module["run"](tensors, own) for tensors in inputs]
    torch.cuda.synchronize()
    schedule = plan(named, streams=3)
    host = {name for name, number in schedule.accesses.outputs if schedule.accesses.storages[number].host}
    for result, right in zip(results, expected_of(of, 3), strict=True):
        assert same({n: t for n, t in result.items() if n not in host}, {n: t for n, t in right.items() if n not in host})
    del results, result
    module.clear()
    gc.collect()


def test_a_graph_of_the_fewest_waits_is_a_graph() -> None:
    # The picture of this file in one program: both executors, the same bytes.
    of = graph("a: x -> y @one | b: y -> z @two | c: z y -> r @main", "x", outputs="r").program()
    for kind in ("eager", "graph"):
        with compile(of, ops=mix_for(of, "cuda"), device="cuda", executor=kind) as runner:  # type: ignore[arg-type]
            for run in range(4):
                result = runner(x=inputs_of(of, run)["x"].cuda())
                assert torch.equal(result["r"].cpu(), expected_of(of, run + 1)[run]["r"])
            del result
