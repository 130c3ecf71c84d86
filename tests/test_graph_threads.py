"""Loops of graphs with host tasks: three threads, in order where the loop says so, and ahead of each other where it does not."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import streamgraph as sg
from streamgraph.errors import TaskError
from streamgraph.executors import device as device_module
from streamgraph.executors import launch
from streamgraph.executors.graph_threads import GraphThreads, Stopped
from streamgraph.executors.modes import CallerState
from tests.running import reference
from tests.threaded_device import ThreadedDevice

COPIES_HERE = launch.run_copy
Hook = Callable[[int], None]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ThreadedDevice:
    made = ThreadedDevice(5, 0.2)
    monkeypatch.setattr(device_module, "find", lambda name, program=None: made)
    monkeypatch.setattr(launch, "run_copy", made.run_copy)
    return made


def program(decoded: bool = True) -> sg.Graph:
    """Decode on the host, upload, work, bring the answer back, and look at it on the host."""
    graph = sg.Graph("decoded")
    raw = graph.input("raw", "i64[8]", device="cpu", pinned=not decoded)
    frame = graph.buffer("frame", "i64[8]", slots=2)
    for name in ("back", "answer"):
        graph.value(name, "i64[8]", device="cpu", pinned=True)
    if decoded:
        staged = graph.buffer("staged", "i64[8]", device="cpu", pinned=True, slots=2)
        graph.task("decode", "mix", reads=raw, writes=staged, host=True)
    graph.copy("upload", staged if decoded else raw, frame)
    graph.task("work", "mix", reads=frame, writes="done")
    graph.copy("download", "done", "back")
    graph.task("after", "mix", reads="back", writes="answer", host=True)
    graph.output("done")
    graph.output("answer")
    return graph


def packets(count: int) -> list[torch.Tensor]:
    return [torch.arange(8) + 10 * number for number in range(count)]


@pytest.fixture
def right(monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    with monkeypatch.context() as patch:
        patch.setattr(launch, "run_copy", COPIES_HERE)
        runner = reference(program().program())
        results = [runner.run({"raw": packet}).outputs for packet in packets(20)]
    return [[result[name].tolist() for name in ("done", "answer")] for result in results]


def hooked(device: ThreadedDevice, decode: Hook | None = None, after: Hook | None = None, graph: sg.Graph | None = None) -> sg.Runner:
    """A runner whose host tasks call these first, with how often the task has been called before."""
    graph = graph or program()
    working, hooks = device.operators(graph.program()), {"decode": decode, "after": after}
    calls = Counter[str]()

    def make(task: Any) -> Any:
        healthy, hook = working(task), hooks.get(task.name)

        def call(*positional: Any, **keywords: Any) -> Any:
            calls[task.name] += 1
            if hook is not None:
                hook(calls[task.name] - 1)
            return healthy(*positional, **keywords)

        return call if task.host else healthy

    return sg.compile(graph, ops=make, device="cuda", executor="graph")


def taken(device: ThreadedDevice, results: Any) -> list[list[list[int]]]:
    found = [(result["done"], result["answer"].tolist()) for result in results]
    device.drain()
    return [[done.tolist(), answer] for done, answer in found]


def test_results_are_right_and_the_next_loop_goes_on(device: ThreadedDevice, right: list[Any]) -> None:
    with hooked(device) as runner:
        assert taken(device, runner.map(packets(9))) == right[:9]
        assert taken(device, runner.map(packets(20)[9:], inflight=2)) == right[9:]


def test_an_item_is_decoded_while_the_caller_has_a_result(device: ThreadedDevice, right: list[Any]) -> None:
    """Once graphs repeat, decoding item i + 1 does not end before the loop body has result i."""
    given = [threading.Event() for _ in range(12)]

    def decode(number: int) -> None:
        assert number < 6 or given[number - 1].wait(20), "the caller had to wait for an item to be decoded"

    with hooked(device, decode) as runner:
        found = []
        for number, result in enumerate(runner.map(packets(12), inflight=2)):
            given[number].set()
            found.append(result["answer"].tolist())
    assert found == [answer for _, answer in right[:12]]


def test_graphs_are_launched_while_a_host_task_runs_that_they_do_not_need(device: ThreadedDevice) -> None:
    graph = program(decoded=False)

    def launches() -> int:
        return sum(graph.replays for graph in device.graphs)

    def after(number: int) -> None:
        until = time.monotonic() + 20
        while 4 <= number < 11 and launches() <= number:  # the first item was no graph; so the next item's comes with this number
            assert time.monotonic() < until, "the next item's graph waits for a host task that it does not need"
            time.sleep(0.001)

    with hooked(device, after=after, graph=graph) as runner:
        assert len(list(runner.map(packets(12), inflight=2))) == 12
    assert launches() == 11


def test_nothing_is_captured_while_a_host_task_runs(device: ThreadedDevice) -> None:
    """A host task may use the device as it likes, and some of that would end a capture."""
    running, meanwhile, captures = [False], list[bool](), device.new_graph

    def slow(number: int) -> None:
        running[0] = True
        time.sleep(0.03)
        running[0] = False

    def capturing() -> Any:
        time.sleep(0.01)  # so that whatever is in line has begun
        meanwhile.append(running[0])
        return captures()

    device.new_graph = capturing  # type: ignore[method-assign]
    with hooked(device, after=slow, graph=program(decoded=False)) as runner:
        list(runner.map(packets(2), inflight=3))  # captures the second of four phases
        list(runner.map(packets(6), inflight=3))  # the first, and then the others
    assert meanwhile == [False] * 4


def test_a_slow_host_task_finds_its_own_iterations_values(device: ThreadedDevice) -> None:
    """Nobody waits for it but the iteration that has the same memory."""
    graph, seen = sg.Graph("watched"), list[list[int]]()
    graph.input("raw", "i64[8]", device="cpu", pinned=True)
    graph.value("back", "i64[8]", device="cpu", pinned=True)
    graph.copy("upload", "raw", "frame")
    graph.output(graph.task("work", "mix", reads="frame", writes="done"))
    graph.copy("download", "done", "back")
    graph.task("watch", "mix", reads="back", host=True)
    working = device.operators(graph.program())

    def watch(back: torch.Tensor) -> None:
        time.sleep(0.003)
        device.drain()
        seen.append(back.tolist())

    with sg.compile(graph, ops=lambda task: watch if task.host else working(task), device="cuda", executor="graph") as runner:
        found = []
        for result in runner.map(packets(14), inflight=2):
            found.append(result["done"])
        device.drain()
        assert seen == [done.tolist() for done in found]


def test_a_device_item_may_be_changed_once_the_next_one_is_asked_for(device: ThreadedDevice) -> None:
    graph = sg.Graph("changed")
    graph.input("x", "i64[8]")
    graph.value("back", "i64[8]", device="cpu", pinned=True)
    graph.output(graph.task("work", "mix", reads="x", writes="done"))
    graph.copy("download", "done", "back")
    graph.task("watch", "mix", reads="back", host=True)
    working = device.operators(graph.program())

    def make(task: Any) -> Any:
        return (lambda back: time.sleep(0.002)) if task.host else working(task)

    def fresh() -> Iterator[torch.Tensor]:
        for packet in packets(12):
            x = device.allocate((8,), torch.int64)
            device.copy(x, packet)
            yield x

    def again() -> Iterator[torch.Tensor]:
        x = device.allocate((8,), torch.int64)
        for packet in packets(12):
            device.copy(x, packet)
            yield x

    with sg.compile(graph, ops=make, device="cuda", executor="graph") as runner:
        right = [result["done"] for result in runner.map(fresh(), inflight=2)]
        found = [result["done"] for result in runner.map(again(), inflight=2)]
        device.drain()
        assert [done.tolist() for done in found] == [done.tolist() for done in right]


def test_host_tasks_run_in_order_on_one_thread_that_is_not_the_callers(device: ThreadedDevice, right: list[Any]) -> None:
    seen: list[tuple[str, int, int]] = []
    hooks = [lambda number, name=name: seen.append((name, number, threading.get_ident())) for name in ("decode", "after")]
    with hooked(device, *hooks) as runner:
        assert taken(device, runner.map(packets(9), inflight=3)) == right[:9]
    assert [entry[:2] for entry in seen] == [(name, number) for number in range(9) for name in ("decode", "after")]
    assert len({entry[2] for entry in seen}) == 1
    assert seen[0][2] != threading.get_ident()


@pytest.mark.parametrize("at", [0, 1, 4, 9])
@pytest.mark.parametrize("place", ["decode", "after"])
def test_an_error_names_the_item_and_nothing_wrong_is_given(device: ThreadedDevice, right: list[Any], place: str, at: int) -> None:
    def failing(number: int) -> None:
        if number == at:
            raise ValueError("no signal")

    before = threading.active_count()
    with hooked(device, **{place: failing}) as runner:
        given: list[Any] = []
        with pytest.raises(TaskError, match=f"item {at}: task '{place}'.*no signal") as caught:
            given.extend(result["answer"].tolist() for result in runner.map(packets(15), inflight=2))
        assert isinstance(caught.value.__cause__, ValueError)
        assert given == [answer for _, answer in right[: len(given)]]
        assert len(given) <= at
        assert not any(stream.queue for stream in device.streams), "something is still under way"
        assert taken(device, runner.map(packets(5))) == right[:5]
    assert threading.active_count() <= before


def test_an_earlier_items_error_wins_over_the_sources(device: ThreadedDevice) -> None:
    reached = threading.Event()

    def decode(number: int) -> None:
        if number == 6:
            reached.wait(20)
            raise ValueError("no signal")

    def source() -> Iterator[torch.Tensor]:
        yield from packets(7)
        reached.set()
        raise OSError("camera unplugged")

    with hooked(device, decode) as runner, pytest.raises(TaskError, match="item 6: task 'decode'"):
        list(runner.map(source(), inflight=3))


def test_the_sources_error_comes_through_after_a_clean_stop(device: ThreadedDevice) -> None:
    done: list[int] = []

    def source() -> Iterator[torch.Tensor]:
        yield from packets(7)
        raise OSError("camera unplugged")

    with hooked(device, after=done.append) as runner:
        with pytest.raises(OSError, match="camera unplugged"):
            list(runner.map(source(), inflight=3))
        assert done == list(range(7))
        # On the caller's own stream there are copies of the last results, which were given before the error.
        assert not any(stream.queue for stream in device.streams if stream is not device.default)


def test_closing_early_finishes_what_has_begun_and_ends_the_threads(device: ThreadedDevice, right: list[Any]) -> None:
    done: list[int] = []
    before = threading.active_count()
    with hooked(device, after=done.append) as runner:
        loop = runner.map(packets(50), inflight=3)
        for _ in range(6):
            next(loop)
        loop.close()  # type: ignore[attr-defined]
        assert done == list(range(8))
        assert threading.active_count() == before
        assert not any(stream.queue for stream in device.streams)
        assert taken(device, runner.map(packets(3))) == right[:3]


def test_host_tasks_have_the_callers_modes(device: ThreadedDevice) -> None:
    seen: list[tuple[bool, bool]] = []
    with hooked(device, lambda number: seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))) as runner:
        with torch.autocast("cpu", torch.float16):
            list(runner.map(packets(6)))
        list(runner.map(packets(1)))
    assert seen == [(False, True)] * 6 + [(False, False)]


@pytest.mark.parametrize("at", [1, 8])
def test_an_interrupt_stops_every_thread_and_the_runner_can_go_on(device: ThreadedDevice, right: list[Any], at: int) -> None:
    before, decoding = threading.active_count(), list[int]()

    def decode(number: int) -> None:
        decoding.append(number)
        if number == at:
            main = threading.main_thread().ident  # it is waiting for a result
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.3)

    with hooked(device, decode) as runner:
        with pytest.raises(KeyboardInterrupt):
            list(runner.map(packets(40), inflight=3))
        assert decoding[-1] < at + 2, "two more had begun"
        assert threading.active_count() == before
        assert taken(device, runner.map(packets(2))) == right[:2]


def test_a_host_task_cannot_close_its_own_runner(device: ThreadedDevice) -> None:
    runners: list[sg.Runner] = []
    with hooked(device, lambda number: runners[0].close() if number == 6 else None) as runner:
        runners.append(runner)
        with pytest.raises(TaskError, match="cannot be closed by one of its own tasks"):
            list(runner.map(packets(9)))


# --- the threads by themselves ------------------------------------------------------------------------------------------------------------


def test_jobs_of_each_thread_run_in_order_and_the_earliest_error_is_kept() -> None:
    threads, seen = GraphThreads("jobs", CallerState.take()), list[str]()

    def broken(text: str) -> None:
        seen.append(text)
        raise OSError(text)

    slow = threading.Event()
    threads.call("h", 0, lambda: (slow.wait(20), seen.append("h0"))[1])
    threads.call("h", 1, lambda: broken("h1"))
    threads.issue(0, lambda: seen.append("i0"))
    threads.wait_issued(0)
    threads.issue(2, lambda: (threads.wait("h", 0), broken("i2"))[1])
    slow.set()
    threads.end()
    assert str(threads.error) in ("h1", "i2")
    if "h1" in seen:
        assert str(threads.error) == "h1", "the earlier iteration's"
    with pytest.raises(Stopped):
        threads.wait_issued(2)
    assert seen[:2] == ["i0", "h0"]


def test_what_is_forgotten_has_returned() -> None:
    threads, seen = GraphThreads("jobs", CallerState.take()), list[int]()
    for number in range(4):
        threads.call("h", number, lambda number=number: (time.sleep(0.01), seen.append(number))[1])  # type: ignore[misc]
    threads.forget(2)
    assert seen[:3] == [0, 1, 2]
    threads.stop()
    threads.end()
    assert threads.error is None
