"""`runner.map`: what a plain loop of calls gives, in order, with iterations overlapping; and every way out of it."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterator
from pathlib import Path

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


def test_a_number_that_is_no_depth_is_refused_at_once() -> None:
    with frames() as runner, pytest.raises(SpecError, match="inflight is 0"):
        runner.map(packets(1), inflight=0)


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
