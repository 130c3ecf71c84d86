"""Measured runs: what happened has the form of what was predicted, names every task, and leaves no trace in results or other runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import streamgraph as sg
from streamgraph.cli import cli
from streamgraph.errors import DeviceError, RunnerError, TaskError
from streamgraph.executors import launch, watched
from streamgraph.executors.annotate import VARIABLE
from streamgraph.executors.device import HostDevice
from streamgraph.executors.stopwatch import Stopwatch
from streamgraph.measured import MeasuredTimeline
from streamgraph.measuring import RUNS, measure
from streamgraph.plan import plan
from streamgraph.render import render
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate
from tests.drawn import cameras, host_tasks, hostile, prefetch
from tests.fake_device import FakeDevice
from tests.programs import mix_for, seeded
from tests.running import inputs_of
from tests.support import TWO_LANES
from tests.test_render_report import data_of


def measured(schedule: Schedule, executor: str = "lanes", **more: Any) -> MeasuredTimeline:
    of = schedule.program
    return measure(
        schedule, inputs_of(of, 0), simulate(schedule), device=HostDevice(), ops=mix_for(of), executor=executor, runs=2, **more
    )


def assert_true_to(schedule: Schedule, found: MeasuredTimeline) -> None:
    """Every task once, on its lane, inside the run, after everything that its hazards and its lane put before it."""
    assert [time.task for time in found.tasks] == list(schedule.lane_of)
    time_of, tasks = found.time_of, schedule.program.tasks
    for time in found.tasks:
        assert time.lane == schedule.lane_of[time.task]
        assert time.issued >= 0
        assert 0 <= time.start <= time.end <= found.makespan
    for earlier, later in schedule.graph.edges:
        assert time_of[tasks[earlier].name].end <= time_of[tasks[later].name].start
    for lane in schedule.lanes:
        on_lane = [time for time in found.tasks if time.lane == lane.name]
        assert all(first.end <= second.start for first, second in pairwise(on_lane))
    assert len(found.waits) == len(simulate(schedule).waits)
    assert [wait.step for wait in found.waits] == [wait.step for wait in simulate(schedule).waits]


@pytest.mark.parametrize("executor", ["lanes", "eager", "sequential"])
@pytest.mark.parametrize("seed", range(6))
def test_every_task_is_timed_once_in_an_order_that_its_hazards_allow(seed: int, executor: str) -> None:
    schedule = plan(seeded(seed))
    if executor == "sequential":
        schedule = plan(schedule.program, streams=1, policy="single")
    found = measured(schedule, executor)
    if executor != "sequential":  # which runs in declaration order, whatever the lanes
        assert_true_to(schedule, found)
    assert sorted(found.time_of) == sorted(task.name for task in schedule.program.tasks)
    assert found.measured
    assert not simulate(schedule).measured


def test_two_tasks_that_wait_for_each_other_overlap() -> None:
    both = threading.Barrier(2, timeout=30)

    def meet(x: torch.Tensor) -> torch.Tensor:
        both.wait()
        return x + 1

    made = sg.Graph("meeting")
    x = made.input("x", "f32[4]", init="random")
    made.output(made.task("left", meet, reads=x, writes="l", stream="one"))
    made.output(made.task("right", meet, reads=x, writes="r", stream="two"))
    schedule = plan(made)
    watch = Stopwatch(None)
    running = watched.watched_executor(schedule, "lanes", None, HostDevice(), 0, watch.watched)
    try:
        watch.begin()
        running.run({"x": torch.ones(4)})
        left, right = sorted(watch.end().spans, key=lambda span: span.start)
    finally:
        running.close()
    assert right.start < left.end


def test_the_figures_are_those_of_the_spans_and_the_tasks_one_after_another() -> None:
    found = measured(plan(seeded(3)))
    spent = sum(time.end - time.start for time in found.tasks)
    assert found.overlap == pytest.approx(spent / found.makespan)
    assert found.speed_up == pytest.approx(found.one_stream / found.makespan)
    assert found.work == pytest.approx(spent)
    assert {time.source for time in found.tasks} == {"measured"}
    assert found.basis == "measured on the CPU, the median of 2 runs"
    path = found.critical_path
    assert path[-1].end == max(time.end for time in found.tasks)
    assert all(later.after == earlier.task for earlier, later in pairwise(path))
    assert json.loads(json.dumps(found.to_dict()))["runs"] == 2


def test_a_program_without_tasks_can_be_measured() -> None:
    made = sg.Graph("nothing")
    made.output(made.input("x", "f32[4]", init="random"))
    schedule = plan(made)
    assert measured(schedule).makespan >= 0


# --- a run with profile=True --------------------------------------------------------------------------------------------------------------


def counting() -> tuple[sg.Graph, list[str]]:
    calls: list[str] = []

    def add(total: torch.Tensor, x: torch.Tensor) -> None:
        calls.append(threading.current_thread().name)
        total.add_(x)

    made = sg.Graph("counting")
    x = made.input("x", "f32[4]")
    total = made.buffer("total", "f32[4]")
    made.task("add", add, updates=total, reads=x)
    made.task("on", lambda x: x.mul_(2), updates=x)
    made.output(total)
    return made, calls


def test_results_and_inputs_are_those_of_one_run_although_tasks_were_called_more_often() -> None:
    made, calls = counting()
    x = torch.ones(4)
    result = sg.run(made, {"x": x}, device="cpu", profile=True)
    assert torch.equal(result["total"], torch.ones(4))
    assert torch.equal(x, torch.full((4,), 2.0))
    assert len(calls) == 2 * (1 + RUNS) + 1
    assert result.measured is not None
    assert [time.task for time in result.measured.tasks][:2] == ["add", "on"]


def test_without_profile_nothing_is_measured_and_nothing_called_more_often() -> None:
    made, calls = counting()
    result = sg.run(made, {"x": torch.ones(4)}, device="cpu")
    assert result.measured is None
    assert len(calls) == 1


def test_what_cannot_be_measured_is_refused() -> None:
    made, _ = counting()
    with pytest.raises(RunnerError, match="SG608"):
        sg.run(made, device="sim", profile=True)
    with pytest.raises(RunnerError, match="SG608"):
        sg.run(made, {"x": torch.ones(4)}, device="cpu", iterations=2, profile=True)  # type: ignore[call-overload]
    with pytest.raises(DeviceError, match="one by one"):
        sg.run(made, {"x": torch.ones(4)}, device="cpu", executor="graph", profile=True)


def test_a_task_that_fails_while_it_is_measured_is_named() -> None:
    made = sg.Graph("failing")
    x = made.input("x", "f32[4]", init="random")
    made.output(made.task("bad", lambda x: 1 / 0, reads=x, writes="y"))
    with pytest.raises(TaskError, match="'bad'"):
        sg.run(made, device="cpu", profile=True)


# --- the device's clock -------------------------------------------------------------------------------------------------------------------


class Ticks:
    """A clock of the fake device: a mark is work in the current stream that reads a counter, which each item that runs moves on."""

    def __init__(self, device: FakeDevice) -> None:
        self.device, self.now, self.made = device, 0, 0

    def reset(self) -> None:
        self.device.drain()
        self.now = 0

    def mark(self) -> list[int]:
        found: list[int] = []
        self.made += 1

        def read() -> None:
            self.now += 1
            found.append(self.now)

        self.device.put(self.device.current, read)
        return found

    def finish(self) -> None:
        self.device.drain()

    def read(self, mark: list[int]) -> float:
        return float(mark[0])


@pytest.mark.parametrize("seed", range(8))
def test_on_a_device_a_task_is_timed_where_its_stream_comes_to_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = plan(seeded(seed))
    device = FakeDevice(seed)
    monkeypatch.setattr(launch, "run_copy", device.run_copy)

    def copied_by(call: Any, location: torch.device, *positional: torch.Tensor, **keywords: torch.Tensor) -> Any:
        return device.copy_call(call, location, "")(*positional, **keywords)

    monkeypatch.setattr("streamgraph.executors.stopwatch.copy_call", copied_by)
    clock = Ticks(device)
    of = schedule.program
    watch = Stopwatch(clock)
    running = watched.watched_executor(schedule, "eager", device.operators(of), device, 0, watch.watched)
    for _ in range(3):
        watch.begin()
        running.run(inputs_of(of, 0))
        lap = watch.end()
    running.close()
    device.drain()
    # Host tasks are timed by the host's clock, which is another one here.
    spans = {span.task: span for span in lap.spans if not of.tasks[of.index_of_task[span.task]].host}
    assert len(lap.spans) == len(of.tasks)
    assert all(span.issued is not None for span in spans.values())
    for earlier, later in schedule.graph.edges:
        first, second = (spans.get(of.tasks[number].name) for number in (earlier, later))
        if first is not None and second is not None:
            assert first.end < second.start
    assert clock.made == 3 * 2 * len(spans)


def test_watching_adds_no_event_to_the_schedules_own(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, counts = plan(seeded(1)), []
    for watch in (None, Stopwatch(None)):
        device = FakeDevice(0)
        running = watched.watched_executor(
            schedule, "eager", mix_for(schedule.program), device, 0, watch.watched if watch else lambda operator, location: operator
        )
        for _ in range(3):
            running.run(inputs_of(schedule.program, 0))
            device.drain()
        counts.append((device.events, device.log.count("record"), device.log.count("wait")))
        running.close()
    assert counts[0] == counts[1]
    assert counts[0][0] > 0


# --- names in profilers -------------------------------------------------------------------------------------------------------------------


def named_in_profiler(call: Callable[[], object]) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        call()
    return {event.name for event in profiler.events()}


def test_a_profiled_run_shows_its_tasks_by_name_to_torchs_profiler() -> None:
    of = seeded(2)
    names = {task.name for task in of.tasks}
    seen = named_in_profiler(lambda: measured(plan(of), "eager"))
    assert names <= seen


@pytest.mark.parametrize("executor", ["eager", "sequential"])
def test_the_environment_names_tasks_in_every_run_and_without_it_none_is_named(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    of = seeded(2)
    names = {task.name for task in of.tasks}

    def twice() -> None:
        with sg.compile(plan(of), inputs_of(of, 0), ops=mix_for(of), device="cpu", executor=executor) as runner:
            first, second = runner(), runner()
        assert {name: value.sum() for name, value in first.items()}.keys() == second.keys()

    monkeypatch.delenv(VARIABLE, raising=False)
    assert not names & named_in_profiler(twice)
    monkeypatch.setenv(VARIABLE, "0")
    assert not names & named_in_profiler(twice)
    monkeypatch.setenv(VARIABLE, "1")
    assert names <= named_in_profiler(twice)


def test_the_environment_names_the_tasks_of_a_loop_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    of = seeded(2)
    monkeypatch.setenv(VARIABLE, "1")

    def looped() -> None:
        with sg.compile(plan(of), ops=mix_for(of), device="cpu", executor="eager") as runner:
            assert len(list(runner.map(inputs_of(of, item) for item in range(3)))) == 3

    assert {task.name for task in of.tasks} <= named_in_profiler(looped)


@pytest.mark.parametrize("executor", ["lanes", "eager"])
def test_names_change_no_result(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(4):
        of = seeded(seed)
        results = []
        for value in ("", "1"):
            monkeypatch.setenv(VARIABLE, value)
            with sg.compile(plan(of), ops=mix_for(of), device="cpu", executor=executor) as runner:
                results.append([dict(runner(inputs_of(of, run))) for run in range(3)])
        for plain, annotated in zip(*results, strict=True):
            assert plain.keys() == annotated.keys()
            assert all(torch.equal(plain[name], annotated[name]) for name in plain)


# --- pictures -----------------------------------------------------------------------------------------------------------------------------


def took_place(schedule: Schedule) -> MeasuredTimeline:
    """A run that never was: every task twice as long as predicted, in an order that the schedule allows."""
    predicted = simulate(schedule)
    times: dict[str, tuple[float, float, float | None]] = {
        time.task: (2 * time.start, 2 * time.end, None if time.lane == "host" else time.issued) for time in predicted.tasks
    }
    return MeasuredTimeline(schedule, predicted, times, 2 * predicted.makespan, 3 * predicted.makespan, device="a desk", runs=5)


@pytest.mark.parametrize("drawn", [cameras, prefetch, host_tasks, hostile], ids=lambda drawn: drawn.__name__)
def test_the_report_holds_both_runs_and_a_plain_one_holds_neither_the_data_nor_the_script(drawn: Any) -> None:
    schedule = drawn()
    found = took_place(schedule)
    page, plain = render(schedule, "html", measured=found), render(schedule, "html")
    data, its = data_of(page), data_of(page)["measured"]
    assert its["makespan"] == round(found.makespan, 3)
    assert its["task"]["start"] == [round(2 * start, 3) for start in (time.start for time in simulate(schedule).tasks)]
    assert its["overlap"] == round(found.overlap, 3)
    for table in ("task", "wait", "storage"):
        for key, column in its[table].items():
            assert key in ("critical",) or len(column) == len(data[table][key]), (table, key)
    assert "drawMeasured" in page
    assert "drawMeasured" not in plain
    assert "measured" not in data_of(plain)
    assert {key: value for key, value in data.items() if key not in ("measured", "names")} == {
        key: value for key, value in data_of(plain).items() if key != "names"
    }


def test_the_script_for_measured_times_is_small() -> None:
    schedule = cameras()
    pages = (render(schedule, "html"), render(schedule, "html", measured=took_place(schedule)))
    scripts = [text.rsplit("<script>", 1)[1] for text in pages]
    assert len(scripts[1].encode()) - len(scripts[0].encode()) < 8 * 1024


@pytest.mark.parametrize("drawn", [cameras, prefetch, host_tasks, hostile], ids=lambda drawn: drawn.__name__)
def test_the_trace_has_the_measured_run_as_a_second_process(drawn: Any) -> None:
    schedule = drawn()
    trace = json.loads(render(schedule, "trace.json", measured=took_place(schedule)))["traceEvents"]
    plain = json.loads(render(schedule, "trace.json"))["traceEvents"]
    assert [event for event in trace if event["pid"] == 1] == plain
    second = [event for event in trace if event["pid"] == 2]
    assert [event["ph"] for event in second if event["ph"] != "C"] == [event["ph"] for event in plain if event["ph"] != "C"]
    names = [event["args"]["name"] for event in trace if event["name"] == "process_name"]
    assert [name.rsplit(" (", 1)[1] for name in names] == ["planned, simulated)", "measured)"]
    ids = [event["id"] for event in trace if event["ph"] == "s"]
    assert len(ids) == len(set(ids))
    assert sorted(ids) == sorted(event["id"] for event in trace if event["ph"] == "f")
    for thread in {event["tid"] for event in second if event["ph"] == "X"}:
        slices = [event for event in second if event["ph"] == "X" and event["tid"] == thread]
        assert all(a["ts"] + a["dur"] <= b["ts"] + 2e-3 for a, b in pairwise(slices))


def test_a_result_writes_report_and_trace_with_what_was_measured(tmp_path: Path) -> None:
    made, _ = counting()
    result = sg.run(made, {"x": torch.ones(4)}, device="cpu", profile=True)
    assert "measured" in data_of(result.report(tmp_path / "x.html").read_text(encoding="utf-8"))
    assert '"pid":2' in result.trace(tmp_path / "x.trace.json").read_text(encoding="utf-8")
    plain = sg.run(made, {"x": torch.ones(4)}, device="cpu")
    assert '"pid":2' not in plain.trace(tmp_path / "y.trace.json").read_text(encoding="utf-8")


# --- the command --------------------------------------------------------------------------------------------------------------------------

@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    (tmp_path / "two.yaml").write_text(TWO_LANES, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli, list(arguments))


def test_the_command_prints_both_and_writes_both(invoke: Callable[..., Any]) -> None:
    done = invoke("run", "two.yaml", "--device", "cpu", "--profile", "--report", "x.html", "--trace", "x.trace.json")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    (head,) = [line for line in lines if line.split() == ["predicted", "measured"]]
    for word in ("time", "one stream", "speed-up", "overlap"):
        assert any(line.strip().startswith(word) and len(line) >= len(head) - 2 for line in lines)
    assert any(line.split()[:1] == ["load"] and "to" in line for line in lines)
    assert "measured" in data_of(Path("x.html").read_text(encoding="utf-8"))
    assert '"pid":2' in Path("x.trace.json").read_text(encoding="utf-8")


def test_json_has_both_timelines(invoke: Callable[..., Any]) -> None:
    data = json.loads(invoke("run", "two.yaml", "--device", "cpu", "--profile", "--json").stdout)
    assert [task["task"] for task in data["measured"]["tasks"]] == [task["task"] for task in data["predicted"]["tasks"]] == ["load", "work"]
    for key in ("makespan", "one_stream", "speed_up", "overlap"):
        assert data["measured"][key] >= 0
        assert data["predicted"][key] >= 0
    assert "measured" not in json.loads(invoke("run", "two.yaml", "--device", "cpu", "--json").stdout)


def test_a_simulated_run_has_a_trace_too(invoke: Callable[..., Any]) -> None:
    assert invoke("run", "two.yaml", "--device", "sim", "--trace", "x.trace.json").exit_code == 0
    assert '"pid":2' not in Path("x.trace.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("more", [["--device", "sim"], ["--executor", "graph"], ["--iterations", "2"]])
def test_what_cannot_be_measured_is_wrong_usage(more: list[str], invoke: Callable[..., Any]) -> None:
    done = invoke("run", "two.yaml", "--profile", *more)
    assert done.exit_code == 2
    assert more[0] in done.stderr
