"""`runner.map`: what a plain loop of calls gives, in order, with iterations overlapping; and every way out of it."""

from __future__ import annotations

import gc
import re
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import streamgraph as sg
from streamgraph.errors import BindingError, RunnerError, SpecError, TaskError
from tests.programs import mix_for, seeded
from tests.running import inputs_of, same


def frames(executor: str = "auto", slots: int = 2, **operators: object) -> sg.Runner:
    graph = sg.Graph("frames")
    packet = graph.input("packet", "i64[8]", device="cpu", pinned=True)
    frame = graph.buffer("frame", "i64[8]", slots=slots)
    state = graph.buffer("state", "i64[8]")
    graph.value("result", "i64[8]", device="cpu", pinned=True)
    graph.copy("upload", packet, frame)
    graph.task("detect", "detect", reads=[frame, state], writes="found")
    graph.task("track", "track", reads="found", updates=state)
    graph.copy("download", "found", "result")
    graph.output("result")
    ops = {"detect": lambda frame, state: frame * 3 + state, "track": lambda state, found: state.add_(found % 7), **operators}
    return sg.compile(graph, ops=ops, device="cpu", executor=executor)


def packets(count: int) -> list[torch.Tensor]:
    return [torch.arange(8) + 10 * number for number in range(count)]


def plain(count: int) -> list[list[int]]:
    with frames("sequential") as runner:
        return [runner(packet=packet)["result"].tolist() for packet in packets(count)]


@pytest.mark.parametrize("executor", ["lanes", "eager", "sequential"])
@pytest.mark.parametrize("inflight", [None, 1, 3])
def test_a_loop_gives_what_calls_one_by_one_give(executor: str, inflight: int | None) -> None:
    with frames(executor) as runner:
        assert [result["result"].tolist() for result in runner.map(packets(7), inflight=inflight)] == plain(7)


def test_state_goes_on_from_call_to_loop_and_back() -> None:
    with frames() as runner:
        first = runner(packet=packets(5)[0])["result"].tolist()
        middle = [result["result"].tolist() for result in runner.map(packets(5)[1:4])]
        last = runner(packet=packets(5)[4])["result"].tolist()
    assert [first, *middle, last] == plain(5)


def test_items_may_be_mappings_tuples_or_the_only_tensor() -> None:
    with frames() as runner:
        items = [{"packet": packets(3)[0]}, (packets(3)[1],), packets(3)[2]]
        assert [result["result"].tolist() for result in runner.map(items)] == plain(3)


def test_items_are_pulled_as_they_are_needed_and_no_further_ahead_than_inflight() -> None:
    pulled = []

    def source() -> Iterator[torch.Tensor]:
        for number, packet in enumerate(packets(6)):
            pulled.append(number)
            yield packet

    with frames() as runner:
        for number, _ in enumerate(runner.map(source(), inflight=2)):
            assert len(pulled) <= number + 2


def test_a_source_may_refill_its_tensors_once_inflight_more_items_are_pulled() -> None:
    staging = [torch.empty(8, dtype=torch.int64) for _ in range(2)]

    def source() -> Iterator[torch.Tensor]:
        for number, packet in enumerate(packets(8)):
            yield staging[number % 2].copy_(packet)

    with frames() as runner:
        assert [result["result"].tolist() for result in runner.map(source(), inflight=2)] == plain(8)


def test_results_belong_to_the_caller() -> None:
    with frames() as runner:
        results = [result["result"] for result in runner.map(packets(6))]
        for result in results:
            result.add_(0)
        assert [result.tolist() for result in results] == plain(6)


@pytest.mark.parametrize("executor", ["lanes", "eager"])
def test_an_error_names_the_item_and_the_runner_can_go_on(executor: str) -> None:
    calls = []

    def detect(frame: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 4:
            raise ValueError("no signal")
        return frame * 3 + state

    with frames(executor, detect=detect) as runner:
        given = []
        with pytest.raises(TaskError, match=r"item 3: task 'detect'.*no signal") as caught:
            given.extend(result["result"].tolist() for result in runner.map(packets(9)))
        assert isinstance(caught.value.__cause__, ValueError)
        assert given == plain(9)[: len(given)]
        assert len(given) <= 3
        assert len(list(runner.map(packets(2)))) == 2


def test_an_error_of_the_source_comes_through_after_a_clean_stop() -> None:
    def source() -> Iterator[torch.Tensor]:
        yield packets(2)[0]
        raise OSError("camera unplugged")

    with frames() as runner:
        with pytest.raises(OSError, match="camera unplugged"):
            list(runner.map(source()))
        assert len(list(runner.map(packets(2)))) == 2


@pytest.mark.parametrize("executor", ["lanes", "eager", "sequential"])
@pytest.mark.parametrize("inflight", [None, 1, 3])
def test_results_of_items_before_an_error_of_the_source_are_given_first(executor: str, inflight: int | None) -> None:
    """As in a plain loop; whether the source itself fails or brings what does not fit."""

    def source() -> Iterator[torch.Tensor]:
        yield from packets(5)
        raise OSError("camera unplugged")

    sources = ((source(), OSError, "unplugged"), ([*packets(5), torch.zeros(3), *packets(2)], BindingError, "item 5: "))
    for items, error, message in sources:
        with frames(executor) as runner:
            given = []
            with pytest.raises(error, match=message):
                given.extend(result["result"].tolist() for result in runner.map(items, inflight=inflight))
            assert given == plain(5)


@pytest.mark.parametrize("executor", ["lanes", "eager", "sequential"])
@pytest.mark.parametrize("inflight", [None, 1, 3])
def test_an_error_names_its_item_whoever_runs_the_loop(executor: str, inflight: int | None) -> None:
    def detect(frame: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        if int(frame[0]) == 20:
            raise ValueError("no signal")
        return frame * 3 + state

    with frames(executor, detect=detect) as runner, pytest.raises(TaskError, match="item 2: task 'detect'") as caught:
        list(runner.map(packets(5), inflight=inflight))
    assert isinstance(caught.value.__cause__, ValueError)


def counting() -> sg.Graph:
    """Reads what the item brings on one lane, and slowly changes it in place on another."""
    graph = sg.Graph("counting")
    total, step = graph.input("total", "i64[4]"), graph.input("step", "i64[4]")

    def add(total: torch.Tensor, step: torch.Tensor) -> None:
        time.sleep(0.01)
        total.add_(step)

    graph.output(graph.task("read", torch.clone, reads=total, writes="seen", stream="side"))
    graph.task("add", add, updates=total, reads=step, stream="main")
    return graph


@pytest.mark.parametrize("executor", ["lanes", "eager"])
def test_what_a_task_changes_in_place_is_memory_of_one_item(executor: str) -> None:
    """Else an item would change what another reads, and no wait of the loop stands between the two."""
    one, other, third, step = (torch.full((4,), number) for number in (0, 0, 0, 1))
    message = "input 'total' of item {}, which a task changes in place, shares memory with '{}' of item {}"
    with sg.compile(counting(), device="cpu", executor=executor) as runner:
        for items, place in (
            ([(one, step), (one, step)], (0, "total", 1)),
            ([(one, step), (other, one)], (0, "step", 1)),
            ([(one, other), (third, step), (other, step)], (2, "step", 0)),
        ):
            with pytest.raises(BindingError, match=message.format(*place)) as caught:
                list(runner.map(items))
            assert caught.value.problems[0].code == "SG504"
        wide = torch.zeros(6, 4, dtype=torch.int64)
        apart = [result["seen"].tolist() for result in runner.map((row, step) for row in wide)]
        assert apart == [[0] * 4] * 6
        assert wide.tolist() == [[1] * 4] * 6


@pytest.mark.parametrize("place", ["device", "cpu"])
@pytest.mark.parametrize("inflight", [2, 3])
def test_memory_that_comes_again_is_looked_for_among_items_that_may_be_under_way(place: str, inflight: int) -> None:
    """A source may refill host tensors `inflight` items later. On the device, results of `inflight + 1` items before may not exist yet."""
    graph = sg.Graph("refilled")
    total = graph.input("total", "i64[4]", device=place)
    graph.task("add", lambda total: total.add_(1), updates=total, host=place == "cpu")
    graph.output(graph.task("read", torch.clone, reads=total, writes="seen", host=place == "cpu"))
    refused = []
    for turns in range(1, 7):
        tensors = [torch.zeros(4, dtype=torch.int64) for _ in range(turns)]
        with sg.compile(graph, device="cpu") as runner:
            try:
                list(runner.map((tensors[number % turns] for number in range(12)), inflight=inflight))
            except BindingError:
                refused.append(turns)
    assert refused == list(range(1, inflight if place == "cpu" else inflight + 2))


def test_an_error_of_the_source_keeps_no_tensor_alive() -> None:
    item: list[weakref.ref[torch.Tensor]] = []

    def source() -> Iterator[torch.Tensor]:
        for packet in (torch.arange(8) + number for number in range(4)):
            item.append(weakref.ref(packet))
            yield packet
        raise OSError("camera unplugged")

    gc.collect()
    gc.disable()
    try:
        with frames("eager") as runner:
            with pytest.raises(OSError, match="unplugged") as caught:
                list(runner.map(source()))
            del caught
            assert [of() for of in item] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.parametrize("executor", ["lanes", "eager", "sequential"])
def test_with_one_in_flight_items_may_share_what_a_task_changes_and_the_body_may_change_it(executor: str) -> None:
    total, step = torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)
    found = []
    with sg.compile(counting(), device="cpu", executor=executor) as runner:
        for result in runner.map([(total, step)] * 5, inflight=1):
            found.append(int(result["seen"][0]))
            total.mul_(2)
    assert found == [0, 2, 6, 14, 30]


def test_one_in_flight_is_a_call_for_each_item_and_waits_for_its_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is planned for it; the source may refill its only tensor, and so waits until no copy reads it any more."""
    told: list[str] = []
    with frames("eager") as runner:
        assert runner._executor is not None
        run = runner._executor.run

        def watched(tensors: object) -> object:
            finished = run(tensors)  # type: ignore[arg-type]
            told.append("call")
            return replace(finished, inputs_free=lambda: told.append("free"))

        monkeypatch.setattr(runner._executor, "run", watched)
        monkeypatch.setattr("streamgraph.looping.plan_loop", None)

        def source() -> Iterator[torch.Tensor]:
            for packet in packets(2):
                told.append("pull")
                yield packet

        list(runner.map(source(), inflight=1))
        runner._executor = None  # `close` has nothing to wind up that was patched
    assert told == ["pull", "call", "free"] * 2


def doubling() -> sg.Graph:
    graph = sg.Graph("doubling")
    x = graph.input("x", "i64[4]", device="cpu")
    graph.copy("load", x, graph.buffer("held", "i64[4]", slots=2), stream="copy")
    graph.output(graph.task("double", lambda held: held * 2, reads="held", writes="y", stream="main"))
    return graph


@pytest.mark.parametrize("executor", ["lanes", "eager", "sequential"])
def test_several_runners_of_a_process_go_their_ways_within_each_other(executor: Any) -> None:
    """One inside a task of another, in calls and loops; and loops over each other's results. A runner within itself is refused."""
    options: dict[str, Any] = {"device": "cpu", "executor": executor}
    numbers = [torch.full((4,), number) for number in range(6)]
    with sg.compile(doubling(), **options) as first, sg.compile(doubling(), **options) as second:
        graph = sg.Graph("outer")
        graph.output(graph.task("call", lambda x: first(x=x)["y"] + 1, reads=graph.input("x", "i64[4]"), writes="z", stream="side"))
        with sg.compile(graph, **options) as outer:
            assert [int(outer(x=x)["z"][0]) for x in numbers] == [1, 3, 5, 7, 9, 11]
            assert [int(result["z"][0]) for result in outer.map(numbers)] == [1, 3, 5, 7, 9, 11]
        chained = second.map(result["y"] for result in first.map(numbers))
        assert [int(result["y"][0]) for result in chained] == [0, 4, 8, 12, 16, 20]
        with pytest.raises(RunnerError, match="already running"):
            list(first.map(result["y"] for result in first.map(numbers)))
        assert int(first(x=numbers[3])["y"][0]) == 6


def test_an_item_that_does_not_fit_is_named_by_its_number() -> None:
    with frames() as runner:
        with pytest.raises(BindingError, match="item 1: "):
            list(runner.map([packets(1)[0], torch.zeros(3)]))
        with pytest.raises(BindingError, match="item 0 has 2 tensors"):
            list(runner.map([(packets(1)[0], packets(1)[0])]))


def test_closing_early_drains_and_frees_the_runner() -> None:
    before = threading.active_count()
    with frames() as runner:
        loop = runner.map(packets(100))
        next(loop)
        with pytest.raises(RunnerError, match="already running"):
            runner(packet=packets(1)[0])
        loop.close()  # type: ignore[attr-defined]
        assert len(list(runner.map(packets(2)))) == 2
        abandoned = runner.map(packets(100))
        next(abandoned)
    gc.collect()
    assert threading.active_count() <= before + 1
    with pytest.raises(RunnerError, match="closed"):
        next(runner.map(packets(1)))


@pytest.mark.parametrize("inflight", [None, 1])
def test_an_item_cannot_bring_what_is_bound_for_good(inflight: int | None) -> None:
    """A call may: then it counts for that call."""
    step, total = torch.ones(4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    with sg.compile(counting(), {"step": step}, device="cpu") as runner:
        runner(total=total, step=2 * step)
        assert total.tolist() == [2] * 4
        with pytest.raises(BindingError, match="item 1 brings 'step', which is bound for good"):
            list(runner.map([{"total": total}, {"total": total.clone(), "step": step}], inflight=inflight))
        assert total.tolist() == [3] * 4


def test_a_number_that_is_no_depth_is_refused_at_once() -> None:
    with frames() as runner:
        list(runner.map(packets(1), inflight=2))
        for depth in (0, -1, True, 2.0, "2"):
            with pytest.raises(SpecError, match="inflight is "):
                runner.map(packets(1), inflight=depth)  # type: ignore[arg-type]


def test_an_item_that_is_no_tensor_is_named_as_what_it_is() -> None:
    with frames() as runner:
        bound = "'packet' was bound to a value of type str"
        for item, what in (("abc", bound), (["a", "b"], "item 0 is a list, and"), ((), "item 0 has 0 tensors")):
            with pytest.raises(BindingError, match=what):
                list(runner.map([item]))


def test_iterations_overlap() -> None:
    """An item is prepared while the one before it is still being detected: detect does not end before that has begun."""
    count = 5
    prepared = [threading.Event() for _ in range(count)]
    numbers = iter(range(count))

    def prepare(packet: torch.Tensor, out: torch.Tensor) -> None:
        prepared[next(numbers)].set()
        out.copy_(packet)

    def detect(frame: torch.Tensor) -> torch.Tensor:
        number = int(frame[0]) // 10
        assert number + 1 == count or prepared[number + 1].wait(20), "the next item was not prepared while this one was detected"
        return frame * 2

    graph = sg.Graph("overlap")
    graph.input("packet", "i64[8]", device="cpu")
    graph.buffer("frame", "i64[8]", slots=2)
    graph.task("prepare", prepare, reads="packet", writes="frame", stream="copy")
    graph.output(graph.task("detect", detect, reads="frame", writes="found", stream="main"))
    with sg.compile(graph, device="cpu") as runner:
        assert [result["found"].tolist() for result in runner.map(packets(count))] == [(2 * p).tolist() for p in packets(count)]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), inflight=st.integers(1, 3), executor=st.sampled_from(["lanes", "eager"]))
def test_random_programs_give_in_a_loop_what_calls_give(seed: int, inflight: int, executor: str) -> None:
    of = seeded(seed)
    ops = mix_for(of)
    with sg.compile(of, ops=ops, device="cpu", executor="sequential") as runner:
        right = [{k: v.clone() for k, v in runner(inputs_of(of, number)).items()} for number in range(5)]
    items = [inputs_of(of, number) for number in range(5)]
    with sg.compile(of, ops=ops, device="cpu", executor=executor) as runner:
        found = [{k: v.clone() for k, v in result.items()} for result in runner.map(items, inflight=inflight)]
    assert [same(a, b) for a, b in zip(found, right, strict=True)] == [True] * 5


def test_the_documentation_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent)
    text = (Path(__file__).parent.parent / "docs" / "iterations.md").read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, "iterations.md", "exec"), names)
    assert "# every later iteration" in capsys.readouterr().out


# --- host tasks on a thread of their own --------------------------------------------------------------------------------------------

EXECUTORS = ["lanes", "eager"]


def copied(raw: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(raw)


def decoded(executor: str, decode: object, work: object = None, after: object = None, **options: object) -> sg.Runner:
    """Decode on the host into pinned staging, upload, work; with `after`, download and one more host task."""
    graph = sg.Graph("decoded")
    raw = graph.input("raw", "i64[8]", device="cpu")
    staged = graph.buffer("staged", "i64[8]", device="cpu", pinned=True, slots=2)
    frame = graph.buffer("frame", "i64[8]", slots=2)
    graph.value("back", "i64[8]", device="cpu", pinned=True)
    graph.task("decode", decode, reads=raw, writes=staged, host=True)
    graph.copy("upload", staged, frame)
    graph.output(graph.task("work", work or (lambda frame: frame * 2), reads=frame, writes="done"))
    if after is not None:
        graph.copy("download", "done", "back")
        graph.task("after", after, reads="back", host=True)
    return sg.compile(graph, device="cpu", executor=executor, **options)  # type: ignore[arg-type]


def doubled(count: int) -> list[list[int]]:
    return [(2 * packet).tolist() for packet in packets(count)]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_item_is_decoded_while_the_caller_has_a_result(executor: str) -> None:
    """Decoding item i + 1 does not end before the loop body has result i; on the caller's own thread it never would."""
    count = 6
    given = [threading.Event() for _ in range(count)]

    def decode(raw: torch.Tensor, out: torch.Tensor) -> None:
        number = int(raw[0]) // 10
        assert number == 0 or given[number - 1].wait(20), "the caller had to wait for an item to be decoded"
        out.copy_(raw)

    with decoded(executor, decode) as runner:
        found = []
        for number, result in enumerate(runner.map(packets(count), inflight=2)):
            given[number].set()
            found.append(result["done"].tolist())
    assert found == doubled(count)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_work_is_issued_while_a_host_task_runs_that_it_does_not_need(executor: str) -> None:
    issued = [threading.Event() for _ in range(5)]

    def work(frame: torch.Tensor) -> torch.Tensor:
        issued[int(frame[0]) // 10].set()
        return frame * 2

    graph = sg.Graph("ahead")
    packet = graph.input("packet", "i64[8]", device="cpu", pinned=True)
    graph.value("back", "i64[8]", device="cpu", pinned=True)
    graph.copy("upload", packet, "frame")
    graph.output(graph.task("work", work, reads="frame", writes="done"))
    graph.copy("download", "done", "back")

    def check(back: torch.Tensor) -> None:
        number = int(back[0]) // 20
        assert number == 4 or issued[number + 1].wait(20), "the next item's work waits for a host task that it does not need"

    graph.task("check", check, reads="back", host=True)
    with sg.compile(graph, device="cpu", executor=executor) as runner:  # type: ignore[arg-type]
        assert [result["done"].tolist() for result in runner.map(packets(5), inflight=2)] == doubled(5)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_host_tasks_run_in_order_on_one_thread_that_is_not_the_callers(executor: str) -> None:
    seen: list[tuple[str, int, int]] = []

    def decode(raw: torch.Tensor, out: torch.Tensor) -> None:
        seen.append(("decode", int(raw[0]) // 10, threading.get_ident()))
        out.copy_(raw)

    with decoded(executor, decode, after=lambda back: seen.append(("after", int(back[0]) // 20, threading.get_ident()))) as runner:
        assert [result["done"].tolist() for result in runner.map(packets(6), inflight=3)] == doubled(6)
    assert [entry[:2] for entry in seen] == [(name, number) for number in range(6) for name in ("decode", "after")]
    assert len({entry[2] for entry in seen}) == 1
    assert seen[0][2] != threading.get_ident()


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("place", ["decode", "work", "after"])
def test_an_error_on_any_thread_names_the_item_and_nothing_wrong_is_given(executor: str, place: str) -> None:
    def failing(name: str, action: object) -> object:
        def call(*arguments: torch.Tensor, **keywords: torch.Tensor) -> object:
            if name == place and int(arguments[0][0]) // (20 if name == "after" else 10) == 3:
                raise ValueError("no signal")
            return action(*arguments, **keywords)  # type: ignore[operator]

        return call

    actions = {"decode": copied, "work": lambda frame: frame * 2, "after": lambda back: None}
    before = threading.active_count()
    with decoded(executor, *(failing(name, action) for name, action in actions.items())) as runner:
        given = []
        with pytest.raises(TaskError, match=f"item 3: task '{place}'.*no signal") as caught:
            given.extend(result["done"].tolist() for result in runner.map(packets(9), inflight=2))
        assert isinstance(caught.value.__cause__, ValueError)
        assert given == doubled(9)[: len(given)]
        assert len(given) <= 3
        assert [result["done"].tolist() for result in runner.map(packets(2))] == doubled(2)
    assert threading.active_count() <= before


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_earlier_items_error_wins_over_the_sources(executor: str) -> None:
    reached = threading.Event()

    def decode(raw: torch.Tensor, out: torch.Tensor) -> None:
        if int(raw[0]) == 10:
            reached.wait(20)
            raise ValueError("no signal")
        out.copy_(raw)

    def source() -> Iterator[torch.Tensor]:
        yield from packets(3)[:2]
        reached.set()
        raise OSError("camera unplugged")

    with decoded(executor, decode) as runner, pytest.raises(TaskError, match="item 1: task 'decode'"):
        list(runner.map(source(), inflight=3))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_closing_early_finishes_what_has_begun_and_ends_the_threads(executor: str) -> None:
    done: list[int] = []
    before = threading.active_count()
    with decoded(executor, copied, after=lambda back: done.append(int(back[0]) // 20)) as runner:
        alive = threading.active_count()
        loop = runner.map(packets(50), inflight=3)
        next(loop)
        loop.close()  # type: ignore[attr-defined]
        assert done == [0, 1, 2]
        assert threading.active_count() == alive
        assert [result["done"].tolist() for result in runner.map(packets(3))] == doubled(3)
    assert threading.active_count() <= before


@pytest.mark.parametrize("executor", EXECUTORS)
def test_host_tasks_have_the_callers_modes(executor: str) -> None:
    seen: list[tuple[bool, bool, bool, torch.dtype, int]] = []

    def decode(raw: torch.Tensor, out: torch.Tensor) -> None:
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        seen.append((*modes, torch.get_autocast_dtype("cpu"), torch.get_num_threads()))
        out.copy_(raw)

    with decoded(executor, decode) as runner:
        with torch.inference_mode(), torch.autocast("cpu", torch.float16):
            list(runner.map(packets(2)))
        list(runner.map(packets(1)))
    threads = torch.get_num_threads()
    assert seen[:2] == [(False, True, True, torch.float16, threads)] * 2
    assert seen[2][:3] == (False, False, False)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_interrupt_stops_every_thread_and_the_runner_can_go_on(executor: str) -> None:
    before = threading.active_count()

    def decode(raw: torch.Tensor, out: torch.Tensor) -> None:
        if int(raw[0]) == 20:
            signal.raise_signal(signal.SIGINT)  # Python hands it to the main thread, which is waiting for a result
            time.sleep(0.05)
        out.copy_(raw)

    with decoded(executor, decode) as runner:
        with pytest.raises(KeyboardInterrupt):
            list(runner.map(packets(40), inflight=3))
        assert [result["done"].tolist() for result in runner.map(packets(2))] == doubled(2)
    assert threading.active_count() <= before


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_host_task_cannot_close_its_own_runner(executor: str) -> None:
    runners: list[sg.Runner] = []

    def decode(raw: torch.Tensor, out: torch.Tensor) -> None:
        runners[0].close()

    with decoded(executor, decode) as runner:
        runners.append(runner)
        with pytest.raises(TaskError, match="cannot be closed by one of its own tasks"):
            list(runner.map(packets(2)))


# --- memory -------------------------------------------------------------------------------------------------------------------------


def test_loops_and_calls_share_the_memory_of_rings_and_a_loop_adds_only_further_slots() -> None:
    with frames("eager", slots=4) as runner:
        memory = runner._executor.memory  # type: ignore[union-attr]
        list(runner.map(packets(6)))
        alone = {tensor.data_ptr() for _, tensor in memory.buffers()}
        loop = {tensor.data_ptr() for tensor in memory.ring(tuple(_slots(runner)), 4)}
        assert len(loop) == 4
        assert len(loop - alone) == 3  # a single run has one slot of the ring, and the loop uses it
        list(runner.map(packets(6), inflight=2))
        runner(packet=packets(1)[0])
        assert {tensor.data_ptr() for tensor in memory.ring(tuple(_slots(runner)), 4)} == loop
        assert {tensor.data_ptr() for _, tensor in memory.buffers()} == alone


def _slots(runner: sg.Runner) -> Iterator[int]:
    return (number for number, storage in enumerate(runner.schedule.accesses.storages) if storage.members[0] == "frame")


def test_a_ring_over_a_key_takes_no_memory_twice() -> None:
    graph = sg.Graph("layers")
    host = graph.input("host", "f32[16]", each={"layer": 5}, device="cpu", pinned=True)
    ring = graph.buffer("ring", "f32[16]", each={"layer": 5}, slots=2, over="layer")
    total = graph.buffer("total", "f32[16]")
    for layer in range(5):
        graph.copy(f"load@{layer}", host[layer], ring[layer], stream="copy")
        graph.task(f"add@{layer}", lambda total, ring: total.add_(ring), updates=total, reads=ring[layer], stream="main")
    graph.copy("report", total, "sum")
    graph.output("sum")
    with sg.compile(graph, {"host": [torch.full((16,), 1.0)] * 5}, device="cpu", executor="eager") as runner:
        sums = [float(result["sum"][0]) for result in runner.map({} for _ in range(3))]
        assert [*sums, float(runner()["sum"][0])] == [5, 10, 15, 20]
        memory = runner._executor.memory  # type: ignore[union-attr]
        assert memory._further == {}
        assert len(list(memory.buffers())) == 3  # two slots and the state
