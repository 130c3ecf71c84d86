"""Programs over several devices give what the reference gives, on every executor, and leave the caller's streams and device as they were.

The devices are fake ones of one machine (`fake_device`): their streams hold work back, events belong to a device, and a copy between two
devices meets the current streams of both, as in PyTorch. The caller has work of its own on every device, before and after each run.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.devices import crosses
from streamgraph.errors import DeviceError, RunnerError, TaskError
from streamgraph.executors.choose import make_executor
from streamgraph.executors.compiled import CompiledExecutor
from streamgraph.executors.device import CudaDevice
from streamgraph.executors.eager import EagerExecutor
from streamgraph.executors.lanes import LanesExecutor
from streamgraph.executors.sequential import SequentialExecutor, without_rings
from streamgraph.model import Program
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.portfolio import Policy
from streamgraph.schedule import HostWait, Launch, RecordStream, Release, Schedule, Wait
from streamgraph.switches import switches
from tests.fake_device import FakeDevice, FakeStream, ensure_nothing_held, standing_in
from tests.programs import mix_for, random_devices, there_and_back, two_stages
from tests.running import Fault, expected_of, failing, inputs_of, same, shows_in_no_value, steps_of
from tests.threaded_device import ThreadedDevice

EXECUTORS = ("eager", "compiled", "lanes", "sequential")

pytestmark = pytest.mark.usefixtures("copies")


def reference(of: Program, runs: int, first: int = 0) -> list[dict[str, torch.Tensor]]:
    """What the reference gives on the CPU."""
    standing_in.clear()
    return expected_of(of, runs, first)


def drawn(seed: int, devices: int = 2) -> Program:
    return random_devices(random.Random(seed).randrange, devices)


def machine(schedule: Schedule, seed: int, pace: float, threads: bool = False) -> FakeDevice:
    """The first device of a fake machine that has all that the program names."""
    device = (ThreadedDevice if threads else FakeDevice)(seed, pace)
    for name in schedule.program.devices[1:]:
        device.sibling(name)
    standing_in.append(device)
    return device


def executor_of(name: str, schedule: Schedule, device: FakeDevice, ops: Any = None) -> Any:
    ops = ops or device.operators(schedule.program)
    operators = resolve(schedule.program, ops)
    match name:
        case "eager":
            return EagerExecutor(schedule, operators, device)
        case "compiled":
            return CompiledExecutor(schedule, operators, device)
        case "lanes":
            return LanesExecutor(schedule, operators, device=device)
        case _:
            return SequentialExecutor(schedule.program, resolve(without_rings(schedule.program), ops), device)


class Caller:
    """Makes inputs and reads results by work of its own, on the stream that is current on each device."""

    def __init__(self, of: Program, device: FakeDevice) -> None:
        self.of, self.device = of, device

    def inputs(self, seed: int) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        for name, value in inputs_of(self.of, seed).items():
            of_device = self.of.tensor_named[name].device
            if of_device == "cpu":
                made[name] = value
                continue
            on = self.device.named(of_device)
            made[name] = self.device.allocate(value.shape, value.dtype, on=on)
            self.device.put(on.current, _writes(self.device.pointer_to(made[name]), value))
        return made

    def spoil(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Overwrite what the run has read, in the order of each device."""
        for name, tensor in inputs.items():
            of_device = self.of.tensor_named[name].device
            if of_device == "cpu":
                tensor.fill_(-1)
            else:
                pointer = self.device.pointer_to(tensor)
                self.device.put(self.device.named(of_device).current, _writes(pointer, torch.full_like(pointer, -1)))

    def read(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a result, made on the device where it lies, and there once the devices are drained."""
        of_device = self.of.tensor_named[dict((o.name, o.tensor) for o in self.of.outputs)[name]].device
        if of_device == "cpu":
            return tensor.clone()
        result = torch.empty_like(tensor)
        self.device.put(self.device.named(of_device).current, _writes(result, self.device.pointer_to(tensor)))
        return result

    def change(self, outputs: Mapping[str, torch.Tensor]) -> None:
        """Overwrite results on the device, which are the caller's."""
        for output in self.of.outputs:
            of_device = self.of.tensor_named[output.tensor].device
            if of_device != "cpu":
                pointer = self.device.pointer_to(outputs[output.name])
                self.device.put(self.device.named(of_device).current, _writes(pointer, torch.full_like(pointer, -1)))


def _writes(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None]:
    def work() -> None:
        target.copy_(source)

    return work


def play(
    name: str, schedule: Schedule, seed: int, pace: float, runs: int = 4, reach: bool = True, shared: bool = False
) -> list[bool]:
    """Whether each of several runs, back to back, gave what the reference gives on the CPU."""
    device = machine(schedule, seed, pace, threads=name == "lanes")
    for other in device.family.values():
        other.reach, other.shared = reach, shared
    caller, executor = Caller(schedule.program, device), executor_of(name, schedule, device)
    results = []
    for run in range(runs):
        if run == 2:  # the caller goes on on other streams of all devices
            for other in device.family.values():
                device.set_stream(other.new_stream("normal", {s.cuda_stream for s in streams_of(executor)}))
            device.set_device(0)
        before = standing(device)
        inputs = caller.inputs(run)
        finished = executor.run(inputs)
        assert standing(device) == before
        finished.inputs_free()
        results.append({key: caller.read(key, tensor) for key, tensor in finished.outputs.items()})
        caller.spoil(inputs)
        del finished, inputs
    executor.close()
    device.drain()
    ensure_nothing_held(device)
    return [same(result, expected) for result, expected in zip(results, reference(schedule.program, runs), strict=True)]


def standing(device: FakeDevice) -> tuple[object, ...]:
    return device.device_index, *(other.current for other in device.family.values())


def streams_of(executor: Any) -> list[FakeStream]:
    lanes = executor._eager.lanes if isinstance(executor, CompiledExecutor) else getattr(executor, "lanes", None)
    return list(lanes.at.values()) if lanes is not None else []


# --- the same results --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXECUTORS)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6), devices=st.integers(2, 3), streams=st.integers(1, 3), early=st.booleans(),
    pace=st.sampled_from([0.0, 0.3, 0.9]), reach=st.booleans(), shared=st.booleans(), policy=st.sampled_from(["auto", "urgent"]),
)  # fmt: skip
def test_random_programs_over_devices_give_the_reference_however_streams_hold_their_work_back(
    name: str, seed: int, devices: int, streams: int, early: bool, pace: float, reach: bool, shared: bool, policy: Policy
) -> None:
    schedule = plan(drawn(seed, devices), streams=streams, release="early" if early else "default", policy=policy)
    assert play(name, schedule, seed, pace, reach=reach, shared=shared) == [True] * 4


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_pipeline_over_two_devices_gives_the_reference(name: str) -> None:
    schedule = plan(two_stages())
    assert schedule.has_devices
    assert all(play(name, schedule, seed, 0.2) == [True] * 4 for seed in range(20))


# --- the fake machine can say no ---------------------------------------------------------------------------------------------------------


def all_pass(name: str, schedule: Schedule, seeds: int) -> bool:
    return all(all(play(name, schedule, seed, 0.1, 2)) for seed in range(seeds))


def test_taking_out_any_one_wait_between_devices_gives_a_wrong_result() -> None:
    schedule = plan(there_and_back())
    assert all_pass("eager", schedule, 10)
    waits = [step for step in schedule.steps if isinstance(step, Wait | HostWait) and not shows_in_no_value(schedule, step)]
    assert len(waits) == 4
    for dropped in waits:
        mutant = steps_of(schedule, lambda step, dropped=dropped: step is not dropped)
        assert not all_pass("eager", mutant, 60), f"nobody noticed that this is missing: {dropped}"


@pytest.mark.parametrize("which", ["fork", "join"])
def test_the_callers_streams_of_other_devices_are_followed_and_follow(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamgraph.executors.lane_streams import LaneStreams

    graph = Graph("two")
    for number in range(2):
        graph.input(f"x{number}", "i64[8]", device=f"cuda:{number}", init="random")
        graph.task(f"t{number}", "mix", reads=f"x{number}", writes=f"y{number}", stream=f"lane{number}")
        graph.output(f"y{number}")
    schedule = plan(graph)
    assert all_pass("eager", schedule, 10)
    monkeypatch.setattr(LaneStreams, which, lambda lanes: None)
    assert not all_pass("eager", schedule, 60)


def test_a_copy_that_arrives_in_two_steps_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamgraph.executors.lane_streams import LaneStreams

    schedule = plan(two_stages())
    monkeypatch.setattr(LaneStreams, "arrived", lambda lanes, task: None)
    assert not all(all(play("eager", schedule, seed, 0.1, 2, reach=False)) for seed in range(60))


def test_memory_goes_back_to_a_stream_that_others_may_use_too_only_behind_its_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamgraph.executors.lane_streams import LaneStreams

    schedule = plan(there_and_back())
    assert all(all(play("eager", schedule, seed, 0.1, 3, shared=True)) for seed in range(10))
    monkeypatch.setattr(LaneStreams, "give_back", lambda lanes, number: None)
    assert not all(all(play("eager", schedule, seed, 0.1, 3, shared=True)) for seed in range(60))


def test_what_a_lane_receives_on_another_device_goes_back_when_that_lane_knows_it_is_done_with() -> None:
    # `far0` is made by lane `out` of cuda:0 in memory of cuda:1, where lane `two` uses it. Dropped at once, it is the next copy's memory.
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
    schedule = plan(graph)
    assert all_pass("eager", schedule, 20)
    released = [step for step in schedule.steps if not (isinstance(step, Release) and step.storage == "far0.1")]
    assert len(released) == len(schedule.steps) - 1
    at = released.index(Launch("use0", "two")) + 1
    assert at <= released.index(Launch("hop1", "out"))
    mutant = replace(schedule, steps=(*released[:at], Release("far0.1", "out"), *released[at:]))
    assert not all_pass("eager", mutant, 60)
    early = plan(graph, release="early")
    assert all_pass("eager", early, 20)
    dropped = steps_of(early, lambda step: not isinstance(step, RecordStream) or step.storage != "far0.1")
    assert len(dropped.steps) < len(early.steps), "dropped early, it needs a record_stream of a stream of another device"
    assert not all_pass("eager", dropped, 60)


# --- only the planned calls --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eager", "compiled"])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 3))
def test_the_calls_are_the_planned_ones_and_those_for_further_devices(name: str, seed: int, devices: int) -> None:
    schedule = plan(drawn(seed, devices), streams=3)
    device = machine(schedule, seed, 0.3)
    executor = executor_of(name, schedule, device)
    table, made = switches(schedule), 0
    number = {storage.label: number for number, storage in enumerate(schedule.accesses.storages)}
    further = 2 * max(len(schedule.program.devices) - 1, 0)
    further += sum(isinstance(step, Release) and number[step.storage] in table.received for step in schedule.steps)
    for run in range(3):
        inputs = Caller(schedule.program, device).inputs(run)
        device.log.clear()
        executor.run(inputs)
        counts = schedule.counts
        assert device.log.count("record") == counts.events + further
        assert device.log.count("wait") == counts.waits + further
        assert device.log.count("record_stream") == counts.record_streams
        if name == "compiled" and run:
            assert device.log.count("set_stream") == sum(map(len, table.before.values())) + len(table.at_end)
        if run:
            assert device.events == made, "events are made once, in the first run"
        made = device.events
    executor.close()
    device.drain()


# --- ways out ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXECUTORS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 3), data=st.data())
def test_after_an_error_all_devices_are_at_rest_and_the_callers_streams_are_current(
    name: str, seed: int, devices: int, data: st.DataObject
) -> None:
    schedule = plan(drawn(seed, devices))
    tasks = [task for task in schedule.program.tasks if not task.is_copy]
    if not tasks:
        return
    device = machine(schedule, seed, 0.2, threads=name == "lanes")
    caller = Caller(schedule.program, device)
    broken: dict[str, BaseException] = {}
    executor = executor_of(name, schedule, device, failing(schedule.program, broken, device.operators(schedule.program)))
    results = []
    for run in range(4):
        if run in (1, 2):
            broken[data.draw(st.sampled_from(tasks)).name] = Fault("broken")
        inputs, before = caller.inputs(run), standing(device)
        try:
            outputs = executor.run(inputs).outputs
            results.append((run, {key: caller.read(key, tensor) for key, tensor in outputs.items()}))
            del outputs
        except TaskError:
            assert broken, "nothing was to fail"
            # At rest: nothing of the run stands in any queue behind what the host has waited for.
            assert executor_is_at_rest(device, executor)
        assert standing(device) == before
        broken.clear()
        del inputs
    executor.close()
    device.drain()
    if len(device.free) < len(device.blocks):  # an error may still hold its frames
        gc.collect()
    assert len(device.free) == len(device.blocks)
    # Buffers are unspecified after an error: only programs without them are compared.
    if not any(tensor.kind.value == "buffer" for tensor in schedule.program.tensors):
        assert all(same(result, reference(schedule.program, 1, run)[0]) for run, result in results)


def executor_is_at_rest(device: FakeDevice, executor: Any) -> bool:
    """Whether no work is queued. A wait may be: a lane's thread issues it, and then hears of the error before it launches its task."""
    callers = {id(other.current) for other in device.family.values()}
    return not any(callable(item) for stream in streams_of(executor) if id(stream) not in callers for item in stream.queue)


@pytest.mark.parametrize("name", ["eager", "lanes"])
def test_a_task_that_leaves_another_device_current_is_named(name: str) -> None:
    schedule = plan(two_stages())
    device = machine(schedule, 0, 0.2, threads=name == "lanes")
    working = device.operators(schedule.program)

    def operators(task: Any) -> Any:
        healthy = working(task)

        def call(*arguments: Any, **named: Any) -> Any:
            result = healthy(*arguments, **named)
            if task.name == "second1":
                device.set_device(0)
            return result

        return call

    executor = executor_of(name, schedule, device, operators)
    caller = Caller(schedule.program, device)
    before = standing(device)
    with pytest.raises(TaskError, match=r"SG607.*second1"):
        executor.run(caller.inputs(1))
    assert standing(device) == before
    executor.close()
    device.drain()


def test_the_device_that_the_caller_had_current_is_current_again_whichever_it_is() -> None:
    schedule = plan(two_stages())
    for name in EXECUTORS:
        device = machine(schedule, 1, 0.2, threads=name == "lanes")
        executor, caller = executor_of(name, schedule, device), Caller(schedule.program, device)
        device.set_device(1)
        for run in range(3):
            executor.run(caller.inputs(run))
            assert device.device_index == 1
        executor.close()
        device.drain()


def test_a_run_over_several_devices_inside_a_capture_is_refused() -> None:
    schedule = plan(two_stages())
    device = machine(schedule, 0, 0.2)
    executor = executor_of("eager", schedule, device)
    device.capturing = True
    with pytest.raises(RunnerError, match="SG611"):
        executor.run(Caller(schedule.program, device).inputs(0))


def test_a_device_that_is_not_here_is_named_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamgraph.executors.device import find

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "Test GPU")
    with pytest.raises(DeviceError, match=r"SG606.*cuda:1.*cuda:0 \(Test GPU\)"):
        find("auto", two_stages())
    with pytest.raises(DeviceError, match=r"SG606.*lies on cuda:0 and cuda:1"):
        find("cuda:1", two_stages())
    assert find("cpu", two_stages()).location.type == "cpu"


class Here(CudaDevice):
    """A CUDA device that is there, as long as nothing is run on it."""

    def __init__(self, index: int = 0) -> None:
        self.index, self.location = index, torch.device("cuda", index)

    def sibling(self, name: str) -> Here:
        return Here(int(name.partition(":")[2]))

    def reaches(self, other: object) -> bool:
        return True


def test_memory_that_was_made_in_inference_mode_is_written_outside_of_it_too() -> None:
    with torch.inference_mode():
        target = torch.zeros(3)
    with pytest.raises(RuntimeError, match="inference"):
        target.copy_(torch.ones(3))
    Here().copy(target, torch.ones(3))
    assert torch.equal(target, torch.ones(3))


@pytest.mark.parametrize(("name", "kind"), [("auto", CompiledExecutor), ("eager", CompiledExecutor), ("lanes", LanesExecutor)])
def test_on_gpus_the_executor_that_was_asked_for_is_made_and_a_graph_refused(name: str, kind: type) -> None:
    schedule = plan(two_stages())
    made = make_executor(schedule, mix_for(schedule.program), name, Here(), 0, {})
    assert isinstance(made, kind)
    made.close()
    with pytest.raises(DeviceError, match=r"SG611.*lies on cuda:0 and cuda:1"):
        make_executor(schedule, mix_for(schedule.program), "graph", Here(), 0, {})


def test_copies_run_on_the_device_that_they_leave_or_reach() -> None:
    schedule = plan(two_stages())
    on = {task: schedule.device_of[lane] for task, lane in schedule.lane_of.items()}
    assert (on["load0"], on["hop0"], on["store0"]) == ("cuda:0", "cuda:0", "cuda:1")
    hop = schedule.program.tasks[schedule.program.index_of_task["hop0"]]
    assert crosses(hop, schedule.program) == ("cuda:0", "cuda:1")
