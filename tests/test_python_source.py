"""`to_python`: plain torch code without streamgraph that makes the schedule's calls in order, and gives the reference's bytes."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamgraph.builder import Graph
from streamgraph.model import Program
from streamgraph.plan import plan
from streamgraph.portfolio import Policy
from streamgraph.run import run
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Wait
from streamgraph.switches import switches, user
from tests.programs import mix_for, random_devices, seeded
from tests.running import all_tensors, expected_of, inputs_of, same
from tests.support import graph

ROOT = Path(__file__).resolve().parents[1]


class Shim:
    """`torch.cuda` as far as the code uses it, which notes every call; work is done when its call returns."""

    def __init__(self, patch: pytest.MonkeyPatch, devices: int = 1) -> None:
        shim, self.log, self.made = self, [], 0
        handles = iter(range(1, 10**6))

        class Stream:
            def __init__(self, device: torch.device, priority: int = 0) -> None:
                self.priority, self.cuda_stream = priority, next(handles) % (7 if devices == 1 else 32) + 1  # soon the same ones again
                self.device = str(device)

            def wait_stream(self, other: Stream) -> None:
                shim.log.append(("wait_stream", self, other))

            def wait_event(self, event: Event) -> None:
                shim.log.append(("wait", event, self))

        class Event:
            def __init__(self) -> None:
                shim.made += 1

            def record(self, stream: Stream) -> None:
                shim.log.append(("record", self, stream))

            def synchronize(self) -> None:
                shim.log.append(("hostwait", self))

        @contextmanager
        def stream(entered: Stream) -> Iterator[None]:
            before, self.current = self.current, entered
            yield
            self.current = before

        self.current = self.main = Stream(torch.device("cpu"))
        self.others = {f"cuda:{number}": Stream(torch.device("cuda", number)) for number in range(1, devices)}
        current = {"cpu": self.main, **self.others}.__getitem__
        found = {"Stream": Stream, "Event": Event, "stream": stream, "current_stream": lambda device: current(str(device))}
        for name, value in found.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: shim.log.append(("record_stream", stream)), raising=False)


def on_the_cpu(schedule: Schedule) -> dict[str, Any]:
    """The module that the code makes, with the CPU in the place of the GPU."""
    source = re.sub(r'torch.device\("cuda(:0)?"\)', 'torch.device("cpu")', schedule.to_python()).replace(", pin_memory=True", "")
    source = re.sub(r'device="cuda:[0-9]"', 'device="cpu"', source)
    module: dict[str, Any] = {}
    exec(compile(source, "generated", "exec"), module)
    return module


def own_operators(of: Program) -> tuple[Program, dict[str, Any]]:
    """The program with an operator of its own for every task, since the code knows operators by name."""
    tasks = tuple(replace(task, operator=f"mix_{task.name}") if task.operator == "mix" else task for task in of.tasks)
    ops = mix_for(of)
    return replace(of, tasks=tasks), {f"mix_{task.name}": ops(task) for task in of.tasks if task.operator == "mix"}


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), streams=st.integers(1, 4), early=st.booleans(), all=st.booleans())
@example(seed=6999, streams=3, early=False, all=False)  # three lanes that tasks are pinned to, and two more
def test_the_code_gives_the_reference_and_makes_the_planned_calls(seed: int, streams: int, early: bool, all: bool) -> None:
    of = all_tensors(seeded(seed)) if all else seeded(seed)
    named, ops = own_operators(of)
    schedule = plan(named, streams=streams, release="early" if early else "default")
    with pytest.MonkeyPatch.context() as patch:
        shim = Shim(patch)
        module = on_the_cpu(schedule)
        launched: list[tuple[str, Any]] = []
        noting = {name: noted(name, function, shim, launched) for name, function in ops.items()}
        for run_number, expected in enumerate(expected_of(of, 3)):
            shim.log, made = [], shim.made
            launched.clear()
            results = module["run"](inputs_of(named, run_number), noting)
            assert same(results, expected)
            check_calls(schedule, module, shim, launched)
            assert run_number == 0 or shim.made == made, "events are made once"
        streams_of = {lane: stream.cuda_stream for lane, stream in module["lanes"].items()}
        assert len({shim.main.cuda_stream, *streams_of.values()}) == len(streams_of) + 1
        assert shim.current is shim.main


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), devices=st.integers(2, 3), streams=st.integers(1, 3), policy=st.sampled_from(["auto", "urgent"]))
def test_the_code_for_several_devices_does_so_too_and_orders_the_callers_streams(
    seed: int, devices: int, streams: int, policy: Policy
) -> None:
    of = random_devices(random.Random(seed).randrange, devices)
    named, ops = own_operators(of)
    schedule = plan(named, streams=streams, policy=policy)
    further = schedule.program.devices[1:]
    with pytest.MonkeyPatch.context() as patch:
        shim = Shim(patch, devices)
        module = on_the_cpu(schedule)
        launched: list[tuple[str, Any]] = []
        noting = {name: noted(name, function, shim, launched) for name, function in ops.items()}
        for run_number, expected in enumerate(expected_of(of, 2)):
            shim.log = []
            launched.clear()
            assert same(module["run"](inputs_of(named, run_number), noting), expected)
            check_calls(schedule, module, shim, launched)
            joins = [call for call in shim.log if call[0] == "wait_stream"]
            assert joins[: len(further)] == [("wait_stream", shim.main, shim.others[device]) for device in further]
            assert joins[len(joins) - len(further) :] == [("wait_stream", shim.others[device], shim.main) for device in further]
            table, number = switches(schedule), {storage.label: number for number, storage in enumerate(schedule.accesses.storages)}
            given_back = sum(isinstance(step, Release) and number[step.storage] in table.received for step in schedule.steps)
            assert len(joins) == 2 * len(further) + len(table.targets) + given_back
        assert shim.current is shim.main


def noted(name: str, function: Any, shim: Shim, launched: list[tuple[str, Any]]) -> Any:
    def call(*positional: Any, **keywords: Any) -> Any:
        launched.append((name, shim.current))
        return function(*positional, **keywords)

    return call


def check_calls(schedule: Schedule, module: dict[str, Any], shim: Shim, launched: list[tuple[str, Any]]) -> None:
    """The calls that were made are those of the steps, in their order and on their streams."""
    streams = {"main": shim.main, "host": shim.main, **module["lanes"]}
    events = module["events"]
    on_host = {step.event for step in schedule.steps if isinstance(step, Record) and step.lane == "host"}
    planned: list[tuple[Any, ...]] = []
    for step in schedule.steps:
        match step:
            case Record(event, lane) if lane != "host":
                planned.append(("record", events[event], streams[lane]))
            case Wait(event, lane) if event not in on_host:
                planned.append(("wait", events[event], streams[lane]))
            case HostWait(event):
                planned.append(("hostwait", events[event]))
            case RecordStream(label, lane):
                number = next(n for n, storage in enumerate(schedule.accesses.storages) if storage.label == label)
                lane, device = user(schedule, number, lane)
                planned.append(("record_stream", shim.others[device] if lane == "main" and device in shim.others else streams[lane]))
            case _:
                pass
    assert [call for call in shim.log if call[0] != "wait_stream"] == planned
    operator = {task.name: task.operator for task in schedule.program.tasks}
    steps = [step for step in schedule.steps if isinstance(step, Launch) and operator[step.task] != "copy"]
    assert launched == [(operator[step.task], streams[step.lane]) for step in steps]


def test_the_code_needs_torch_alone_and_says_why_it_waits() -> None:
    source = plan(graph("a: x -> y @one | b: y -> z @two", "x", outputs="z")).to_python()
    tree = ast.parse(source)
    assert [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names] == ["torch"]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert "lane_two.wait_event(event_0)" in source
    assert "# RAW y: a -> b" in source


def test_torchs_own_operators_need_no_ops_and_constants_are_written_out() -> None:
    made = Graph("torchs")
    x = made.input("x", "f32[4]")
    y = made.task("sum", "aten.sum", reads=x, writes="y", const={"dim": [0], "dtype": "f64"})
    z = made.task("more", "aten.add.Tensor", reads=[x, made.input("w", "f32[4]")], writes="z", const={"alpha": 2})
    made.task("relu", "aten.relu_", updates=z, stream="side")
    made.output(y)
    made.output(z)
    schedule = plan(made)
    with pytest.MonkeyPatch.context() as patch:
        Shim(patch)
        module = on_the_cpu(schedule)
        inputs = {"x": torch.tensor([1.0, -2, 3, -4]), "w": torch.ones(4)}
        results = module["run"](inputs, {})
    assert same(results, run(made, inputs, device="cpu", executor="sequential"))
    assert "torch.ops.aten.relu_.default(z_1)" in schedule.to_python()


def test_callables_that_share_a_name_go_by_their_tasks() -> None:
    made = Graph("lambdas")
    x = made.input("x", "f32[4]")
    y = made.task("one", lambda x: x + 1, reads=x, writes="y")
    made.output(made.task("two", lambda x: x * 2, reads=y, writes="z"))
    source = plan(made).to_python()
    assert "ops['one']" in source
    assert "ops['two']" in source
    assert "ops      one, two" in source


def test_names_that_are_no_names_in_python_are_made_so() -> None:
    made = Graph("names")
    x = made.input("class", "f32[4]")
    b = made.buffer("ops", "f32[4]", init="ones")
    made.task("import", torch.add, reads=[x, b], writes="run", stream="main.2")
    made.output("run")
    with pytest.MonkeyPatch.context() as patch:
        Shim(patch)
        module = on_the_cpu(plan(made))
        assert torch.equal(module["run"]({"class": torch.zeros(4)}, {"add": torch.add})["run"], torch.ones(4))


def test_the_command_prints_and_saves_the_code(tmp_path: Path) -> None:
    spec = ROOT / "tests" / "cases" / "diamond.yaml"
    command = [sys.executable, "-m", "streamgraph", "plan", str(spec), "--as", "python"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    subprocess.run([*command, "-o", str(tmp_path / "own.py")], capture_output=True, check=True, cwd=ROOT)
    saved = (tmp_path / "own.py").read_text()
    ast.parse(saved)
    assert saved.strip() == printed.strip()
    assert "def run(inputs, ops):" in saved
