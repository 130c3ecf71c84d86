"""Programs over two GPUs give what the reference gives, whoever is slow, and leave both devices as the caller had them."""

from __future__ import annotations

import gc
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from streamgraph.bench import bench
from streamgraph.builder import Graph
from streamgraph.compare import compare
from streamgraph.doctor import examine
from streamgraph.errors import DeviceError, TaskError
from streamgraph.executors.sequential import SequentialExecutor, without_rings
from streamgraph.operators import load_operators, resolve
from streamgraph.plan import plan
from streamgraph.run import compile, run
from streamgraph.schedule import HostWait, Record, RecordStream, Release, Schedule, Wait
from tests.cuda.support import MILLISECOND, at_rest, compiled, counted, delayed, eager, inputs_on_gpu, threaded
from tests.programs import mix_for, random_devices, there_and_back, two_stages
from tests.running import Fault, expected_of, failing, inputs_of, same, shows_in_no_value, steps_of

pytestmark = pytest.mark.cuda

SPEC = Path(__file__).resolve().parents[2] / "specs" / "two_gpus.streamgraph.yaml"
MAKE: dict[str, Callable[..., Any]] = {"eager": eager, "compiled": compiled, "lanes": threaded}
_seeds = itertools.count(1000, 10)


@pytest.fixture(autouse=True)
def two(gpu: None) -> Iterator[None]:
    """Two GPUs with nothing under way, and as they were found."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    found = [(torch.cuda.current_stream(device), torch.cuda.memory_allocated(device)) for device in range(2)]
    yield
    for device in range(2):
        torch.cuda.synchronize(device)
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    assert [(torch.cuda.current_stream(device), torch.cuda.memory_allocated(device)) for device in range(2)] == found


def right_answers(
    schedule: Schedule, slow: dict[str, int], make: Callable[..., Any] = eager, runs: int = 2, seed: int | None = None
) -> bool:
    """Whether runs back to back give the right answers while tasks keep their streams busy before they do their work."""
    of, first = schedule.program, next(_seeds) if seed is None else seed
    host = {name for name, number in schedule.accesses.outputs if schedule.accesses.storages[number].host}
    executor = make(schedule, delayed(mix_for(of, "cuda"), slow))
    inputs = [inputs_on_gpu(of, inputs_of(of, first + run)) for run in range(runs)]
    results = []
    for tensors in inputs:
        outputs = executor.run(tensors).outputs
        results.append({name: tensor.clone() if name in host else tensor for name, tensor in outputs.items()})
    at_rest(of)
    verdict = all(same(result, right) for result, right in zip(results, expected_of(of, runs, first), strict=True))
    executor.close()
    return verdict


# --- results -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKE)
def test_a_pipeline_gives_the_reference_with_each_task_delayed_in_turn(name: str) -> None:
    schedule = plan(two_stages())
    assert len(schedule.program.devices) == 2
    for task in ["none", *(task.name for task in schedule.program.tasks if not task.is_copy)]:
        assert right_answers(schedule, {task: 5 * MILLISECOND}, MAKE[name], runs=3), f"wrong when '{task}' is slow"


@pytest.mark.parametrize("name", MAKE)
def test_random_programs_give_the_reference_under_random_delays(name: str) -> None:
    tried = 0
    for seed in range(60):
        schedule = plan(random_devices(random.Random(seed).randrange), streams=1 + seed % 3, release="early" if seed % 2 else "default")
        if not schedule.has_devices:
            continue
        draws = random.Random(seed)
        slow = {task.name: MILLISECOND for task in schedule.program.tasks if draws.random() < 0.4}
        assert right_answers(schedule, slow, MAKE[name], runs=3, seed=seed), f"wrong with seed {seed}"
        tried += 1
    assert tried > 30


def test_the_sequential_executor_orders_the_devices_by_itself() -> None:
    for of in (two_stages(), there_and_back().program(), *(random_devices(random.Random(seed).randrange) for seed in range(10))):
        schedule = plan(of)

        def sequential(schedule: Schedule, ops: Any) -> SequentialExecutor:
            from streamgraph.executors.device import find

            device = find("cuda", schedule.program)
            return SequentialExecutor(schedule.program, resolve(without_rings(schedule.program), ops, str(device.location)), device)

        slow = {task.name: MILLISECOND for task in schedule.program.tasks}
        assert right_answers(schedule, slow, sequential, runs=3)


def test_each_wait_taken_out_gives_a_wrong_answer_and_put_back_the_right_one() -> None:
    schedule = plan(there_and_back())
    torch.cuda._sleep(1)
    assert right_answers(schedule, {}), "warm-up"
    waits = [step for step in schedule.steps if isinstance(step, Wait | HostWait) and not shows_in_no_value(schedule, step)]
    tried = 0
    for dropped in waits:
        # A copy is as late as the task before it: delay the last one that is no copy.
        behind = {"a": "a", "there": "a", "b": "b", "again": "b"}[schedule.event_task[dropped.event]]
        mutant = steps_of(schedule, lambda step, dropped=dropped: step is not dropped)
        assert not right_answers(mutant, {behind: 50 * MILLISECOND}), f"nobody noticed that this is missing: {dropped}"
        assert right_answers(schedule, {behind: 50 * MILLISECOND})
        tried += 1
    assert tried == 4


def test_memory_dropped_early_is_kept_by_record_stream_for_a_stream_of_another_device() -> None:
    graph = Graph("early")
    for number in range(2):
        graph.input(f"x{number}", "i64[8]", device="cuda:0", init="random")
        graph.value(f"far{number}", "i64[8]", device="cuda:1")
    graph.copy("hop0", "x0", "far0", stream="out")
    graph.task("use0", "mix", reads="far0", writes="y0", stream="two")
    graph.copy("hop1", "x1", "far1", stream="out")
    graph.task("use1", "mix", reads="far1", writes="y1", stream="two")
    graph.output("y0")
    graph.output("y1")
    schedule = plan(graph, release="early")
    assert right_answers(schedule, {}), "warm-up"
    slow = {"use0": 50 * MILLISECOND}
    assert right_answers(schedule, slow)
    mutant = steps_of(schedule, lambda step: not isinstance(step, RecordStream) or step.storage != "far0.1")
    assert len(mutant.steps) < len(schedule.steps)
    assert any(isinstance(step, Release) and step.storage == "far0.1" and not step.previous for step in mutant.steps)
    assert not right_answers(mutant, slow), "the block went to the next copy, and nobody noticed"


def test_the_callers_work_on_both_devices_comes_before_and_after() -> None:
    sides = [torch.cuda.Stream(device) for device in range(2)]
    with compile(two_stages(), ops=mix_for(two_stages(), "cuda"), device="cuda") as runner:
        expected = expected_of(two_stages(), 4)
        for number in range(4):
            values = inputs_of(two_stages(), number)
            tensors = {"hx": values["hx"].pin_memory()}
            with torch.cuda.stream(sides[1]), torch.cuda.stream(sides[0]):
                for device in range(2):
                    with torch.cuda.device(device):
                        made = torch.empty(8, dtype=torch.int64, device=f"cuda:{device}")
                        source = values[f"w{device}"].pin_memory()
                        torch.cuda._sleep(10 * MILLISECOND)
                        tensors[f"w{device}"] = made.copy_(source, non_blocking=True)
                results = dict(runner(tensors))
                # What the caller does next on the devices' own streams comes after the run.
                for device in range(2):
                    tensors[f"w{device}"].fill_(-1)
                taken = {name: tensor.clone() for name, tensor in results.items() if tensor.is_cuda}
                assert (torch.cuda.current_stream(0), torch.cuda.current_stream(1)) == tuple(sides)
                assert torch.cuda.current_device() == 0
            hosts = {name: tensor for name, tensor in results.items() if not tensor.is_cuda}
            at_rest(two_stages())
            assert same({name: {**hosts, **taken}[name] for name in expected[number]}, expected[number])


def test_the_code_of_to_python_gives_the_reference() -> None:
    schedule = plan(two_stages())
    module: dict[str, Any] = {}
    exec(compile_source(schedule), module)
    ops = mix_for(schedule.program, "cuda")
    tasks = {task.name: task for task in schedule.program.tasks}

    # Every task runs `mix`, whose salt is its task's: they are called in the order of the schedule.
    order = [name for name in schedule.lane_of if not tasks[name].is_copy]

    for number, right in enumerate(expected_of(schedule.program, 3)):
        turn = iter(order)
        inputs = inputs_on_gpu(schedule.program, inputs_of(schedule.program, number))
        found = module["run"](inputs, {"mix": lambda *tensors, turn=turn: ops(tasks[next(turn)])(*tensors)})
        found = {name: tensor.clone() for name, tensor in found.items()}
        at_rest(schedule.program)
        assert same(found, right)
    del found, inputs
    module.clear()


def compile_source(schedule: Schedule) -> Any:
    import builtins

    return builtins.compile(schedule.to_python(), "generated", "exec")


# --- calls, memory, ways out -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eager", "compiled"])
def test_planned_events_are_recorded_and_waited_for_as_planned_and_none_is_created(name: str) -> None:
    schedule = plan(two_stages())
    executor = MAKE[name](schedule)
    on_host = {step.event for step in schedule.steps if isinstance(step, Record) and step.lane == "host"}
    for number in range(4):
        inputs = inputs_on_gpu(schedule.program, inputs_of(schedule.program, number))
        with counted() as calls:
            outputs = executor.run(inputs).outputs
        address = {event: made.cuda_event for event, made in executor.events.items()}
        records = Counter(address[step.event] for step in schedule.steps if isinstance(step, Record) and step.event not in on_host)
        waits = Counter(address[step.event] for step in schedule.steps if isinstance(step, Wait) and step.event not in on_host)
        assert Counter(event for event in calls.recorded if event in records) == records
        assert Counter(event for event in calls.waited if event in records) == waits
        at_rest(schedule.program)
        del outputs, inputs
    executor.close()


@pytest.mark.parametrize("name", MAKE)
def test_memory_of_both_devices_is_steady_and_back_after_close(name: str) -> None:
    def allocated() -> tuple[int, ...]:
        return tuple(torch.cuda.memory_allocated(device) for device in range(2))

    before = allocated()
    schedule = plan(two_stages())
    executor = MAKE[name](schedule)
    inputs = inputs_on_gpu(schedule.program, inputs_of(schedule.program, 0))
    for _ in range(3):
        executor.run(inputs)
    at_rest(schedule.program)
    gc.collect()
    steady = allocated()
    for _ in range(20):
        executor.run(inputs)
    at_rest(schedule.program)
    gc.collect()
    assert allocated() == steady
    executor.close()
    del inputs
    gc.collect()
    at_rest(schedule.program)
    assert allocated() == before


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("current", [0, 1])
def test_after_an_error_both_devices_are_at_rest_and_as_they_were(name: str, current: int) -> None:
    schedule = plan(two_stages())
    broken: dict[str, BaseException] = {}
    slow = {task.name: 5 * MILLISECOND for task in schedule.program.tasks}
    executor = MAKE[name](schedule, delayed(failing(schedule.program, broken, mix_for(schedule.program, "cuda")), slow))
    sides = [torch.cuda.Stream(device) for device in range(2)]
    right = expected_of(schedule.program, 1)[0]
    inputs = inputs_on_gpu(schedule.program, inputs_of(schedule.program, 0))
    with torch.cuda.stream(sides[1 - current]), torch.cuda.stream(sides[current]):
        for task in ("", "first1", "second0", "second2", ""):
            broken.clear()
            if task:
                broken[task] = Fault("broken")
                with pytest.raises(TaskError, match=task):
                    executor.run(inputs)
                lanes = executor.lanes if name != "compiled" else executor._eager.lanes
                assert all(stream.query() for stream in lanes.at.values()), "something is still under way"
            else:
                outputs = {key: tensor.clone() for key, tensor in executor.run(inputs).outputs.items()}
                at_rest(schedule.program)
                assert same(outputs, right)
                del outputs
            assert torch.cuda.current_device() == current
            assert (torch.cuda.current_stream(0), torch.cuda.current_stream(1)) == tuple(sides)
    executor.close()


def test_the_devices_work_at_the_same_time() -> None:
    graph = Graph("two")
    for number in range(2):
        graph.input(f"x{number}", "i64[8]", device=f"cuda:{number}", init="random")
    done: dict[str, torch.cuda.Event] = {}

    def busy(name: str, cycles: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(x: torch.Tensor) -> torch.Tensor:
            torch.cuda._sleep(cycles)
            result = x + 1
            done[name] = torch.cuda.Event()
            done[name].record()
            return result

        return call

    for number, cycles in enumerate((400 * MILLISECOND, 1)):
        graph.output(graph.task(f"t{number}", busy(f"t{number}", cycles), reads=f"x{number}", writes=f"y{number}"))
    with compile(graph, device="cuda") as runner:
        tensors = {f"x{number}": torch.zeros(8, dtype=torch.int64, device=f"cuda:{number}") for number in range(2)}
        for _ in range(2):
            result = runner(tensors)
            done["t1"].synchronize()
            assert not done["t0"].query(), "the second device waited for the first"
            at_rest(runner.schedule.program)
        del result, tensors


# --- the rest of the tool ----------------------------------------------------------------------------------------------------------------


def test_what_is_not_for_several_devices_says_so() -> None:
    ops = mix_for(two_stages(), "cuda")
    with pytest.raises(DeviceError, match="SG611"):
        compile(two_stages(), ops=ops, device="cuda", executor="graph")
    with pytest.raises(DeviceError, match=r"SG611.*lies on cuda:0 and cuda:1"):
        run(two_stages(), inputs_on_gpu(two_stages(), inputs_of(two_stages(), 0)), ops=ops, device="cuda", executor="graph", iterations=4)
    with pytest.raises(DeviceError, match=r"lies on cuda:0 and cuda:1"):
        compile(two_stages(), ops=ops, device="cuda:1")
    graph = Graph("far")
    graph.input("x", "f32[8]", device="cuda:900")
    graph.output(graph.task("t", torch.neg, reads="x", writes="y"))
    with pytest.raises(DeviceError, match=r"cuda:900.*cuda:0 \(.*cuda:1 \("):
        compile(graph)


def test_doctor_lists_the_other_device_and_how_copies_get_there() -> None:
    found = {finding.topic: finding for finding in examine()}
    assert "CUDA device 1" in found
    assert "copies from device 0 go" in (found["CUDA device 1"].remark or "")


def test_a_program_of_the_second_device_alone_runs_there() -> None:
    graph = Graph("second")
    graph.input("x", "f32[1024]", device="cuda:1")
    for number in range(3):
        graph.output(graph.task(f"t{number}", torch.neg, reads="x", writes=f"y{number}", stream=f"lane{number}"))
    for executor in ("eager", "graph", "lanes"):
        with compile(graph, executor=executor) as runner:
            x = torch.randn(1024, device="cuda:1")
            for _ in range(3):
                results = dict(runner(x=x))
                assert all(value.device == torch.device("cuda:1") and torch.equal(value, -x) for value in results.values())
            assert torch.cuda.current_device() == 0
            del results, x


def test_the_spec_for_two_gpus_runs_compares_and_is_measured() -> None:
    ops = load_operators(str(SPEC).replace(".streamgraph.yaml", ".py"))
    on_cpu = {name: value.clone() for name, value in run(SPEC, ops=ops, device="cpu").items()}
    result = run(SPEC, ops=ops, device="cuda", profile=True)
    at_rest(result.schedule.program)
    assert result.measured is not None
    assert len(result.measured.tasks) == len(result.schedule.program.tasks)
    for name, value in result.items():
        torch.testing.assert_close(value, on_cpu[name], rtol=1e-3, atol=1e-3)
    assert not compare(SPEC, ops=ops, device="cuda").differing
    found = bench(plan(SPEC), ops=ops, device="cuda", repeats=3)
    assert {row.executor: row.equal for row in found.rows if not row.reason} == {"sequential": True, "eager": True, "lanes": True}
    del result, value
