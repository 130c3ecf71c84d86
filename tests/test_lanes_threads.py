"""A thread per lane on streams: the reference's results whatever the threads and the device do, and only what is planned is issued."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.errors import RunnerError, TaskError
from streamgraph.executors.board import Board
from streamgraph.executors.lane_steps import Passed
from streamgraph.model import Program
from streamgraph.operators import resolve
from streamgraph.plan import plan
from streamgraph.schedule import HostWait, Launch, RecordStream, Release, Schedule, Wait
from tests.fake_device import FakeStream, standing_in
from tests.programs import seeded
from tests.running import CHAINS, Fault, all_tensors, failing, inputs_of, run_after_run, same, shows_in_no_value, steps_of
from tests.running import expected_of as reference_of
from tests.support import graph, program
from tests.threaded_device import ThreadedDevice, ThreadedEvent, threaded

pytestmark = pytest.mark.usefixtures("copies")


def device(seed: int = 0, pace: float = 0.3) -> ThreadedDevice:
    made = ThreadedDevice(seed, pace)
    standing_in.append(made)
    return made


def expected_of(of: Program, runs: int) -> list[dict[str, torch.Tensor]]:
    """What the reference gives, on no device at all."""
    standing_in.clear()
    return reference_of(of, runs)


def random_delay(seed: int, chance: float = 0.3, longest: float = 0.001) -> Callable[[str, str], None]:
    draws = random.Random(seed)

    def delay(task: str, when: str) -> None:
        if draws.random() < chance:
            time.sleep(draws.random() * longest)

    return delay


def play(
    schedule: Schedule, seed: int, pace: float, runs: int = 3, delay: Callable[[str, str], None] | None = None, overwrite: bool = True
) -> list[bool]:
    """Whether each of several runs, back to back, gave what the reference gives."""
    of, on = schedule.program, device(seed, pace)
    executor = threaded(schedule, on, delay=delay)
    results = run_after_run(executor, schedule, runs, overwrite)
    executor.close()
    on.drain()
    return [same(result, expected) for result, expected in zip(results, expected_of(of, runs), strict=True)]


# --- results -----------------------------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6), streams=st.integers(1, 4), early=st.booleans(), pace=st.sampled_from([0.0, 0.3, 0.9]),
    all=st.booleans(), slow=st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_random_programs_give_the_reference_however_threads_and_streams_are_held_back(
    seed: int, streams: int, early: bool, pace: float, all: bool, slow: float
) -> None:
    of = all_tensors(seeded(seed)) if all else seeded(seed)
    schedule = plan(of, streams=streams, release="early" if early else "default")
    assert play(schedule, seed, pace, delay=random_delay(seed, slow)) == [True] * 3


def all_pass(schedule: Schedule, seeds: int, slow: str | None = None, runs: int = 2) -> bool:
    def delay(task: str, when: str) -> None:
        if (task, when) == (slow, "before"):
            time.sleep(0.01)

    try:
        return all(all(play(schedule, seed, 0.1, runs, delay, overwrite=False)) for seed in range(seeds))
    except TaskError:
        return False  # a value was not there yet, or any more


@pytest.mark.parametrize("name", CHAINS)
def test_taking_out_any_one_wait_gives_a_wrong_result(name: str) -> None:
    schedule = plan(CHAINS[name], streams=3)
    assert all_pass(schedule, 10)
    for dropped in [step for step in schedule.steps if isinstance(step, Wait | HostWait)]:
        if shows_in_no_value(schedule, dropped) and not schedule.event_task[dropped.event].startswith("p"):
            continue  # with threads, a wait for a host task (`p`) matters too
        if any(reason.kind in ("entry", "exit", "last use") for reason in dropped.reasons):
            continue
        mutant = steps_of(schedule, lambda step, dropped=dropped: step is not dropped)
        slow = schedule.event_task[dropped.event]
        assert not all_pass(mutant, 40, slow), f"nobody noticed that this is missing: {dropped}"


# --- memory ------------------------------------------------------------------------------------------------------------------------------


def recorded_release() -> Schedule:
    """`h` is made on `one` and read on main; `one` drops it right after, resting on record_stream, and allocates its block again."""
    schedule = plan(graph("a: x -> h @one | use: h x -> y @main | more: x -> k @one | last: k y -> z @main", "x", outputs="y z"))
    steps = [step for step in schedule.steps if not (isinstance(step, Release) and step.storage == "h.1")]
    at = next(place for place, step in enumerate(steps) if step == Launch("use", "main")) + 1
    return replace(schedule, steps=(*steps[:at], RecordStream("h.1", "main"), Release("h.1", "one"), *steps[at:]))


def test_a_release_that_rests_on_record_stream_waits_until_the_other_thread_has_issued_the_use(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = recorded_release()
    assert all_pass(schedule, 20, slow="use")
    healthy = Board.wait

    def heedless(self: Board, all_of: Any, step: int) -> bool:
        return healthy(self, [what for what in all_of if not isinstance(what, Passed)], step)

    monkeypatch.setattr(Board, "wait", heedless)
    assert not all_pass(schedule, 20, slow="use"), "the handshake does nothing"


def test_what_the_allocator_is_told_there_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadedDevice, "record_stream", lambda self, tensor, stream: None)
    assert not all_pass(recorded_release(), 40)


def test_on_the_cpu_such_a_release_drops_the_value_within_the_run() -> None:
    from streamgraph.executors.lanes import LanesExecutor
    from tests.programs import mix_for

    schedule = recorded_release()
    executor = LanesExecutor(schedule, resolve(schedule.program, mix_for(schedule.program)))
    number = {storage.label: n for n, storage in enumerate(schedule.accesses.storages)}["h.1"]
    gone: list[bool] = []
    whole = executor._step

    def step(board: Any, place: int, what: Any, stream: Any) -> bool:
        done = whole(board, place, what, stream)
        if what == Launch("last", "main"):
            gone.append(board.cells[number] is None)
        return done

    executor._step = step  # type: ignore[method-assign]
    results = executor.run(inputs_of(schedule.program, 0)).outputs
    executor.close()
    assert same(results, expected_of(schedule.program, 1)[0])
    assert gone == [True]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_after_close_nothing_holds_device_memory(seed: int, early: bool) -> None:
    schedule = plan(seeded(seed), streams=4, release="early" if early else "default")
    on = device(seed)
    executor = threaded(schedule, on, delay=random_delay(seed))
    for run in range(3):
        executor.run(inputs_of(schedule.program, run))
    executor.close()
    on.drain()
    gc.collect()
    assert on.held() == []


# --- what is issued ----------------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), early=st.booleans())
def test_only_the_planned_calls_are_made(seed: int, early: bool) -> None:
    schedule = plan(seeded(seed), streams=3, release="early" if early else "default")
    on = device(seed)
    executor = threaded(schedule, on)
    counts = schedule.counts
    previous = [step.event for step in schedule.steps if isinstance(step, HostWait) and step.previous]
    for run in range(4):
        on.log.clear()
        executor.run(inputs_of(schedule.program, run))
        assert on.log.count("record") == counts.events
        assert on.log.count("wait") == counts.waits
        assert on.log.count("record_stream") == counts.record_streams
        assert on.log.count("synchronize") == counts.host_waits - (len(previous) if run == 0 else 0)
        assert on.events == counts.events + len(set(previous)), "events are made in the first run; two where the run before is waited for"
    executor.close()
    on.drain()


def test_each_thread_sets_its_stream_once_and_keeps_it() -> None:
    text = "a: x -> y @one | b: y -> z @two | c: z -> r @main | p: h -> k ! | d: k r -> q @one"
    schedule = plan(graph(text, "x", hosts="h k", outputs="q"))
    on = device(1)
    executor = threaded(schedule, on)
    for run in range(5):
        executor.run(inputs_of(schedule.program, run))
    sides = [name for name in on.set_by if name != threading.current_thread().name]
    assert sorted(sides) == ["streamgraph test @host", "streamgraph test @one", "streamgraph test @two"]
    executor.close()
    on.drain()


def test_a_lane_gets_another_stream_when_the_caller_comes_on_its_own() -> None:
    schedule = plan(graph("a: x -> y @one | b: y -> z @two | c: z -> r @main", "x", outputs="r y z"))
    on = device(3, 0.2)
    executor, results = threaded(schedule, on, delay=random_delay(3)), []
    for run in range(6):
        results.append(executor.run(inputs_of(schedule.program, run)).outputs)
        handles = [stream.cuda_stream for lane, stream in executor.lanes.streams.items() if lane != "host"]
        assert len(set(handles)) == len(handles) == 3
        on.set_stream(on.streams[(run + 1) % len(on.streams)])
    executor.close()
    on.drain()
    assert [same(result, expected) for result, expected in zip(results, expected_of(schedule.program, 6), strict=True)] == [True] * 6


def test_every_task_and_copy_is_issued_by_its_lanes_thread_on_its_lanes_stream() -> None:
    made = Graph("both ways")
    source = made.input("source", "i64[8]", device="cpu", pinned=True)
    there = made.buffer("there", "i64[8]")
    made.copy("upload", source, there, stream="in")
    y = made.task("work", "mix", reads=there, writes="y", stream="main")
    back = made.value("back", "i64[8]", device="cpu", pinned=True)
    made.copy("download", y, back, stream="out")
    made.copy("twin", y, "z", stream="in")
    made.output("back")
    made.output("z")
    schedule = plan(made)
    on = device(2)
    seen: dict[str, tuple[str, int]] = {}
    original = on.put

    def put(stream: Any, item: Any) -> None:
        if callable(item):
            name = threading.current_thread().name.rpartition("@")[2]
            seen.setdefault(name, (name, stream.cuda_stream))
            assert seen[name][1] == stream.cuda_stream, "a lane's thread used two streams"
        original(stream, item)

    on.put = put  # type: ignore[method-assign]
    executor = threaded(schedule, on)
    results = [dict(executor.run(inputs_of(schedule.program, run)).outputs) for run in range(3)]
    streams = executor.lanes.streams
    assert seen["in"][1] == streams["in"].cuda_stream
    assert seen["out"][1] == streams["out"].cuda_stream
    assert len({place for _, place in seen.values()}) == 3
    on.drain()
    assert all(same(result, right) for result, right in zip(results, expected_of(schedule.program, 3), strict=True))
    executor.close()


def test_a_wait_for_the_run_before_never_meets_the_record_of_this_run() -> None:
    # `back` lies in host memory, is read by nobody on the host, and is held until the next run has waited for its copy.
    made = Graph("held")
    x = made.input("x", "i64[8]")
    back = made.value("back", "i64[8]", device="cpu", pinned=True)
    made.copy("download", x, back, stream="out")
    made.output(made.task("again", "mix", reads="back", writes="y", stream="in"))
    made.task("log", "mix", updates=made.buffer("hb", "i64[8]", device="cpu"), host=True)
    schedule = plan(made)
    waited = [step.event for step in schedule.steps if isinstance(step, HostWait) and step.previous]
    assert waited, "the plan has no wait for the run before"

    def delay(task: str, when: str) -> None:
        if task == "log":
            time.sleep(0.005)  # the lanes are far ahead of the host

    on = device(4, 0.0)
    executor = threaded(schedule, on, delay=delay)
    recorded: list[Any] = []
    for run in range(4):
        executor.run(inputs_of(schedule.program, run))
        event, before = executor.lanes.events[waited[0]], executor.lanes.previous[waited[0]]
        assert isinstance(event, ThreadedEvent)
        assert isinstance(before, ThreadedEvent)
        assert event is not before
        recorded.append(event.latest)
        assert before.synchronized[-1:] == ([recorded[run - 1]] if run else []), "the host waited for another recording"
    executor.close()
    on.drain()


# --- guards ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", ["main", "one"])
@pytest.mark.parametrize("strayed", ["stream", "device"])
def test_a_task_that_leaves_another_stream_or_device_current_is_named_in_any_run(lane: str, strayed: str) -> None:
    on = device(1)
    other = FakeStream(999)
    stray: list[bool] = []

    def task(x: torch.Tensor) -> torch.Tensor:
        result = on.allocate([8], torch.int64)
        if stray:
            on.set_stream(other) if strayed == "stream" else on.set_device(1)
        return result

    made = Graph("stray")
    made.output(made.task("stray", task, reads=made.input("x", "i64[8]"), writes="y", stream=lane))
    made.output(made.task("after", task, reads="y", writes="z", stream="two"))
    schedule = plan(made)
    executor = threaded(schedule, on, ops={})
    executor.run(inputs_of(schedule.program, 0))
    stray.append(True)
    with pytest.raises(TaskError, match=f"SG607.*'stray' @{lane} left another stream") as caught:
        executor.run(inputs_of(schedule.program, 1))
    assert caught.value.task == "stray"
    assert (on.current, on.device_index) == (on.default, 0)
    stray.clear()
    executor.run(inputs_of(schedule.program, 2))  # the lane's thread has its own stream again
    executor.close()
    on.drain()


def test_a_run_inside_a_capture_is_refused() -> None:
    schedule, on = plan(graph("a: x -> y", "x", outputs="y")), device()
    on.capturing = True
    executor = threaded(schedule, on)
    with pytest.raises(RunnerError, match="SG609"):
        executor.run(inputs_of(schedule.program, 0))
    executor.close()


# --- failures ----------------------------------------------------------------------------------------------------------------------------

WIDE = "a: x -> y @one | b: x -> z @two | c: y z -> v @main | p: h -> k ! | d: v k -> w @one | e: w -> +b @two"


@pytest.mark.parametrize("task", ["a", "b", "c", "p", "d", "e"])
@pytest.mark.parametrize("seed", range(3))
def test_a_task_that_raises_leaves_the_device_at_rest_and_the_executor_runs_again(task: str, seed: int) -> None:
    of = program(WIDE, inputs="x", buffers="b", hosts="h k", outputs="w")
    right = expected_of(of, 4)
    schedule, on = plan(of), device(seed, 0.1)
    broken: dict[str, BaseException] = {}
    executor = threaded(schedule, on, failing(of, broken, on.operators(of)), random_delay(seed))

    def good(run: int) -> bool:
        outputs = executor.run(inputs_of(of, run)).outputs
        on.drain()
        return same(outputs, right[run])

    assert good(0)
    for run in (1, 2):
        broken[task] = Fault("no more")
        with pytest.raises(TaskError, match=rf"task '{task}' @\w+: mix\(.*\) raised Fault: no more") as caught:
            executor.run(inputs_of(of, run))
        assert caught.value.task == task
        assert not any(stream.queue for stream in on.streams), "streams are drained"
        assert executor.lanes.pending == {}
        assert on.current is on.default
        del broken[task], caught
    assert good(3)  # which does not depend on what the failed runs did to `b`
    executor.close()


def test_a_task_that_fails_on_a_stream_that_it_set_does_not_leave_it_to_the_next_run() -> None:
    on = device(5)
    other = FakeStream(999)
    fault: list[bool] = [True]
    seen: list[int] = []

    def task(x: torch.Tensor) -> torch.Tensor:
        seen.append(on.current_stream().cuda_stream)
        if fault:
            on.set_stream(other)
            raise Fault
        return on.allocate([8], torch.int64)

    made = Graph("stray")
    made.output(made.task("stray", task, reads=made.input("x", "i64[8]"), writes="y", stream="one"))
    schedule = plan(made)
    executor = threaded(schedule, on, ops={})
    with pytest.raises(TaskError):
        executor.run(inputs_of(schedule.program, 0))
    fault.clear()
    executor.run(inputs_of(schedule.program, 1))
    assert seen == [executor.lanes.streams["one"].cuda_stream] * 2
    assert other.cuda_stream not in seen
    executor.close()
    on.drain()


def test_a_device_that_does_not_come_to_rest_is_not_used_again() -> None:
    of = program("a: x -> y @one", inputs="x", outputs="y")
    on = device()
    executor = threaded(plan(of), on, failing(of, {"a": Fault("first")}, on.operators(of)))
    healthy = on.record

    def sticky(event: Any, stream: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def fails_later(event: Any, stream: Any) -> None:
        on.record = sticky  # type: ignore[method-assign]
        healthy(event, stream)

    on.record = fails_later  # type: ignore[method-assign]
    with pytest.raises(TaskError, match="raised Fault: first"):
        executor.run(inputs_of(of, 0))
    on.record = healthy  # type: ignore[method-assign]
    with pytest.raises(RunnerError, match=r"did not come to rest after an error in task 'a'.*cannot run again"):
        executor.run(inputs_of(of, 0))
    executor.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("task", ["a", "c"])
def test_an_interrupt_passes_as_it_is_and_leaves_nothing_under_way(error: BaseException, task: str) -> None:
    of = program("a: x -> y @one | b: y -> z @two | c: z -> v @main", inputs="x", outputs="v")
    broken: dict[str, BaseException] = {task: error}
    on = device(2, 0.1)
    executor = threaded(plan(of), on, failing(of, broken, on.operators(of)))
    with pytest.raises(type(error)):
        executor.run(inputs_of(of, 0))
    assert not any(stream.queue for stream in on.streams)
    broken.clear()
    outputs = executor.run(inputs_of(of, 1)).outputs
    on.drain()
    assert same(outputs, expected_of(of, 2)[1])
    executor.close()
