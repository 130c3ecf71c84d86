"""What users meet around loops: `run(iterations=N)`, the command line, pictures, warnings about rings, memory, and torch's DataLoader."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset

import streamgraph as sg
from streamgraph import iterations
from streamgraph.cli import cli
from streamgraph.errors import BindingError, RunnerError, SpecError
from streamgraph.loop import Loop
from streamgraph.plan_loop import plan_loop
from streamgraph.render import FORMATS, bands, render
from streamgraph.render.memory import curve, lives
from streamgraph.rings import ring_warnings
from streamgraph.schedule import Launch, Release, Schedule
from streamgraph.simulate import simulate
from streamgraph.verify import verify
from tests.programs import mix_for, seeded
from tests.running import inputs_of, same

ROOT = Path(__file__).parents[1]
STREAM, PINGPONG = (str(ROOT / "specs" / f"{name}.streamgraph.yaml") for name in ("stream", "pingpong"))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def data_of(result: Result) -> Any:
    return json.loads(result.stdout)


def with_slots(path: str, slots: int) -> str:
    return Path(path).read_text(encoding="utf-8").replace("slots: 2", f"slots: {slots}")


# --- run(iterations=N) --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["lanes", "eager", "sequential"])
def test_iterations_give_what_calls_one_by_one_give(executor: Any) -> None:
    with sg.compile(STREAM, device="cpu", executor="sequential") as runner:
        packet = torch.arange(3 * 120 * 160).reshape(3, 120, 160) / 1000
        expected = [runner(packet=packet)["result"].clone() for _ in range(5)]
    found = sg.run(STREAM, {"packet": packet}, device="cpu", executor=executor, iterations=5)
    assert [torch.equal(a["result"], b) for a, b in zip(found, expected, strict=True)] == [True] * 5
    assert len({float(value) for value in expected}) == 5  # state goes on: no two iterations are alike


def test_one_iteration_is_a_list_of_one_and_none_is_a_result() -> None:
    alone = sg.run(PINGPONG, device="cpu")
    (first,) = sg.run(PINGPONG, device="cpu", iterations=1)
    assert torch.equal(alone["size"], first["size"])
    assert first.made_up == alone.made_up == ("input", "error")


@pytest.mark.parametrize("executor", ["lanes", "eager", "sequential"])
def test_an_input_that_is_changed_in_place_goes_on_from_iteration_to_iteration(executor: Any) -> None:
    graph = sg.Graph("counter")
    x = graph.input("x", "f32[4]")
    graph.task("increase", lambda x: x.add_(1), updates=x, stream="side")
    graph.output(graph.task("double", lambda x: x * 2, reads="x", writes="y", stream="main"))
    mine = torch.zeros(4)
    results = sg.run(graph, {"x": mine}, device="cpu", executor=executor, iterations=3)
    assert [float(result["y"][0]) for result in results] == [2, 4, 6]
    assert float(mine[0]) == 3


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "3"])
def test_a_number_of_iterations_is_whole_and_from_1(count: Any) -> None:
    with pytest.raises(SpecError, match="iterations is ") as caught:
        sg.run(PINGPONG, device="cpu", iterations=count)
    assert caught.value.problems[0].code == "SG105"


def test_nothing_is_looped_where_nothing_is_run() -> None:
    with pytest.raises(RunnerError, match="maps nothing"):
        sg.run(PINGPONG, device="sim", iterations=2)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), executor=st.sampled_from(["lanes", "eager"]))
def test_random_programs_run_so_many_iterations(seed: int, executor: Any) -> None:
    of = seeded(seed)
    with sg.compile(of, ops=mix_for(of), device="cpu", executor="sequential") as runner:
        given_once = inputs_of(of, seed)
        right = [{name: value.clone() for name, value in runner(given_once).items()} for _ in range(4)]
    found = sg.run(of, inputs_of(of, seed), ops=mix_for(of), device="cpu", executor=executor, iterations=4)
    assert [same(a, b) for a, b in zip(found, right, strict=True)] == [True] * 4


# --- the command line ---------------------------------------------------------------------------------------------------------------


def test_run_says_that_all_iterations_equal_calls_one_after_another() -> None:
    done = invoke("run", STREAM, "--iterations", "6", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "stream: 6 iterations ran on the CPU" in done.stdout
    assert "equal to 6 calls one after another, task after task, bit for bit (6 tensors)" in done.stdout
    assert "The last iteration's results:" in done.stdout
    data = data_of(invoke("run", STREAM, "--iterations", "6", "--device", "cpu", "--json"))
    expected = sg.run(STREAM, device="cpu", iterations=6)[-1]["result"]
    assert data["outputs"]["result"]["mean"] == pytest.approx(float(expected))
    assert (data["iterations"], data["checked"], data["differing"]) == (6, 6, [])


def test_run_finds_an_iteration_that_differs(tmp_path: Path) -> None:
    """An operator that counts its calls gives other results in the second run, task after task; and is found out."""
    (tmp_path / "spec.yaml").write_text(
        'streamgraph: 1\nname: counted\ntensors: {x: {type: "f32[2]", kind: input, init: ones}}\n'
        "tasks: {count: {run: count, reads: x, writes: y}}\noutputs: [y]\n", encoding="utf-8",
    )  # fmt: skip
    (tmp_path / "ops.py").write_text(
        "import itertools\nnumbers = itertools.count()\ndef count(x):\n    return x * next(numbers)\n", encoding="utf-8"
    )
    done = invoke("run", str(tmp_path / "spec.yaml"), "--ops", str(tmp_path / "ops.py"), "--iterations", "3", "--device", "cpu")
    assert done.exit_code == 1
    assert "DIFFERS from the tasks one after another: y (iteration 0), y (iteration 1), y (iteration 2)" in done.stdout


def test_run_without_a_device_predicts_the_loop() -> None:
    done = invoke("run", PINGPONG, "--iterations", "3", "--device", "sim")
    assert done.exit_code == 0
    assert "bw#2" in done.stdout


def test_plan_prints_the_loop_and_why_it_is_right() -> None:
    done = invoke("plan", STREAM, "--iterations", "--item", "packet")
    assert done.exit_code == 0, done.output
    loop = plan_loop(STREAM, frozenset({"packet"}))
    for issue in (*loop.steady, *loop.prologue[0]):
        assert f"  {issue}\n" in done.stdout
    assert re.search(r"follow\[-2\] -> upload +WAR frame\n", done.stdout)
    assert f"the verifier saw {loop.proved} iterations written out" in done.stdout
    assert "260 us per iteration" in done.stdout  # compare and follow, which is more than an upload takes
    data = data_of(invoke("plan", STREAM, "--iterations", "--item", "packet", "--json"))
    assert data["per_item"] == ["packet"]
    assert data["proved"] == loop.proved
    assert {"wait": "follow[-2] -> upload", "why": "WAR frame"} in data["reaching_back"]
    upload = next(issue for issue in data["steady"] if issue["task"] == "upload")
    assert {"name": "follow", "iterations_back": 2} in upload["waits"]


def test_a_wait_that_only_bounds_memory_says_so() -> None:
    """With every input bound, the caller paces nothing: `found` would be held until the loop ends."""
    done = invoke("plan", STREAM, "--iterations")
    assert done.exit_code == 0, done.output
    assert re.search(r"download\[-2\] -> compare +last use of found\.1\[-2\], which is dropped here: memory does not grow\n", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "--item", "packet"), "--item only means something with --iterations"),
        (("draw", "--inflight", "2"), "--inflight only means something with --iterations"),
        (("run", "--inflight", "2"), "--inflight only means something with --iterations"),
        (("plan", "--iterations", "--steps"), "leave --output, --steps and --as out"),
        (("draw", "--iterations", "2", "-o", "x.json"), "no schedule to save"),
        (("draw", "--iterations", "0"), "0 is not in the range"),
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(arguments: tuple[str, ...], said: str) -> None:
    done = invoke(arguments[0], STREAM, *arguments[1:])
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_an_item_that_is_no_input_is_told_with_the_nearest_one() -> None:
    done = invoke("plan", STREAM, "--iterations", "--item", "packt")
    assert done.exit_code == 1
    assert "did you mean 'packet'?" in done.stderr


def test_measured_costs_hold_for_every_iteration(tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    tasks = {"bw": {"us": 1000.0}, "red": {"us": 10.0}, "norm": {"us": 1.0}, "download": {"us": 1.0}}
    costs.write_text(json.dumps({"streamgraph_costs": 1, "tasks": tasks}), encoding="utf-8")
    data = data_of(invoke("plan", PINGPONG, "--iterations", "--costs", str(costs), "--json"))
    assert data["estimate"]["per_iteration"] == pytest.approx(1000, rel=0.1)


# --- pictures -----------------------------------------------------------------------------------------------------------------------


def test_the_mark_of_iterations_is_the_one_that_pictures_look_for() -> None:
    assert bands.MARK == iterations.SEPARATOR
    assert set(bands.PSEUDO) == iterations.PSEUDO
    assert bands.iteration_of(iterations.at("mm@0", 12)) == 12
    assert bands.iteration_of("mm@0") == -1


@pytest.mark.parametrize("format", FORMATS)
def test_a_loop_written_out_draws_to_every_format_the_same_way_each_time(format: str) -> None:
    texts = {render(plan_loop(STREAM).schedule(4), format) for _ in range(2)}
    assert len(texts) == 1
    assert "compare#3" in texts.pop()


def test_every_iteration_has_its_tint_on_every_lane_that_it_uses() -> None:
    schedule = plan_loop(STREAM, frozenset({"packet"})).schedule(4)
    svg = render(schedule, "svg")
    assert svg.count('class="iteration"') == 4 * 3  # main, upload, download; the host only has the caller
    assert "iterations, in turn" in svg
    page = render(schedule, "html")
    data = json.loads(page.split('id="data">', 1)[1].split("</script>", 1)[0])
    assert [(row, number) for row, number, *_ in data["bands"]] == [(row, number) for row in range(3) for number in range(4)]


def test_a_single_run_has_no_iterations_in_its_picture() -> None:
    svg = render(sg.plan(STREAM), "svg")
    assert "iteration" not in svg
    assert "#0─" not in render(sg.plan(STREAM), "txt")


def test_the_caller_is_a_mark_and_no_bar() -> None:
    schedule = plan_loop(STREAM, frozenset({"packet"})).schedule(3)
    svg = render(schedule, "svg")
    assert "<title>source#0" in svg
    assert ">source#0</text>" not in svg
    assert ">the caller</text>" in svg


def test_text_shows_under_each_lane_which_iteration_stands_where() -> None:
    schedule = plan_loop(PINGPONG, frozenset()).schedule(3)
    lines = render(schedule, "txt").splitlines()
    (main,) = (number for number, line in enumerate(lines) if line.startswith("main"))
    strip, under = lines[main], lines[main + 1]
    for number in range(3):
        assert strip.index(f"bw#{number}") - under.index(f"#{number}") in (0, 1)


# --- rings --------------------------------------------------------------------------------------------------------------------------


def codes(loop: Loop) -> list[str]:
    return [problem.code for problem in ring_warnings(loop)]


def frames(slots: int, inflight: int | None = None, stream: str = "copy") -> Loop:
    graph = sg.Graph("frames")
    graph.input("packet", "f32[8]", device="cpu", pinned=True)
    graph.buffer("frame", "f32[8]", slots=slots)
    graph.value("result", "f32[8]", device="cpu", pinned=True)
    graph.copy("upload", "packet", "frame", stream=stream)
    graph.task("compute", "f", reads="frame", writes="found", stream="main")
    graph.copy("download", "found", "result", stream="main")
    graph.output("result")
    return plan_loop(graph, inflight=inflight)


def test_a_ring_of_one_slot_between_lanes_is_told() -> None:
    (problem,) = ring_warnings(frames(slots=1))
    assert (problem.code, problem.severity) == ("SG308", "warning")
    assert "'frame' has one slot, and lanes copy, main use it" in problem.message
    assert ring_warnings(frames(slots=1, stream="main")) == ()


def test_slots_that_are_never_needed_are_told_with_the_number_that_would_do() -> None:
    assert ring_warnings(frames(slots=2)) == ()
    assert ring_warnings(frames(slots=3, inflight=3)) == ()
    (problem,) = ring_warnings(frames(slots=6, inflight=2))  # the host lets the third item in when the first one's result is there
    assert "'frame' has 6 slots over iterations, and 2 would do" in problem.message
    (problem,) = ring_warnings(frames(slots=2, stream="main"))  # one lane: its order keeps iterations apart
    assert "one would do" in problem.message


def test_the_number_that_would_do_gives_the_same_loop_and_no_warning() -> None:
    assert frames(slots=2, inflight=2).steady == frames(slots=6, inflight=2).steady
    assert frames(slots=1, inflight=2).steady != frames(slots=2, inflight=2).steady


@pytest.mark.parametrize("inflight", [1, 2, 3, 5])
def test_deep_rings_are_cut_down_to_the_smallest_number_that_would_do(inflight: int) -> None:
    """Looked for by halving; one by one gives the same."""
    (problem,) = ring_warnings(frames(slots=17, inflight=inflight))
    one_by_one = next(slots for slots in range(1, 18) if frames(slots, inflight).steady == frames(17, inflight).steady)
    assert f"{one_by_one} would do" in problem.message.replace("one would", "1 would")


def test_a_check_of_a_large_ring_plans_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import streamgraph.plan_loop

    def planned(*arguments: object) -> None:
        pytest.fail("a check planned a large loop")

    monkeypatch.setattr(streamgraph.plan_loop, "plan_loop", planned)
    path = tmp_path / "large.yaml"
    path.write_text(with_slots(PINGPONG, 1000), encoding="utf-8")
    assert invoke("check", str(path)).exit_code == 0


def test_check_and_plan_tell_what_is_odd_about_rings(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(with_slots(PINGPONG, 1), encoding="utf-8")
    for command in (("check", str(path)), ("plan", str(path), "--iterations")):
        done = invoke(*command)
        assert done.exit_code == 0
        assert re.search(r"one\.yaml:\d+:\d+: warning\[SG308\]: the ring 'bucket' has one slot", done.stderr)
    assert "SG308" not in invoke("check", PINGPONG).stderr


# --- memory -------------------------------------------------------------------------------------------------------------------------


def most_alive(schedule: Schedule) -> int:
    """How many values there are at once, at most, as steps are issued; a result is the caller's once the loop has handed it over."""
    accesses, tasks = schedule.accesses, schedule.program.tasks
    made: dict[str, list[str]] = {}
    handed: dict[str, list[str]] = {}
    for number, storage in enumerate(accesses.storages):
        if storage.producer is not None:
            made.setdefault(tasks[storage.producer].name, []).append(storage.label)
        for task, touched in zip(tasks, accesses.of_task, strict=True):
            if task.operator in ("result", "deliver") and any(access.storage == number for access in touched):
                handed.setdefault(task.name, []).append(storage.label)
    alive: set[str] = set()
    most = 0
    for step in schedule.steps:
        if isinstance(step, Launch):
            alive.update(made.get(step.task, ()))
            most = max(most, len(alive))
            alive.difference_update(handed.get(step.task, ()))
        elif isinstance(step, Release):
            alive.discard(step.storage)
    assert not alive
    return most


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), inflight=st.integers(1, 3), bits=st.integers(0, 7))
def test_sixty_four_iterations_hold_no_more_values_than_four(seed: int, inflight: int, bits: int) -> None:
    of = seeded(seed)
    items = frozenset(tensor.name for number, tensor in enumerate(of.inputs) if bits >> number & 1)
    loop = plan_loop(of, items, inflight=inflight)
    assert most_alive(loop.schedule(64)) == most_alive(loop.schedule(4))


def test_a_loop_that_forgot_to_release_would_be_found_out() -> None:
    loop = plan_loop(STREAM)
    forgetful = replace(loop, steady=tuple(replace(issue, releases_before=(), releases_after=()) for issue in loop.steady))
    assert most_alive(forgetful.schedule(64)) > most_alive(forgetful.schedule(8)) > most_alive(loop.schedule(64))


def test_one_more_iteration_of_the_steady_state_takes_as_long_as_its_busiest_lane() -> None:
    """Uploads (250 us) hide behind compare and follow (260 us); with one slot they do not."""
    times = {}
    for slots in (1, 2):
        loop = plan_loop(sg.plan(_loaded(with_slots(STREAM, slots))).program, frozenset({"packet"}), inflight=2)
        times[slots] = (simulate(loop.schedule(20)).makespan - simulate(loop.schedule(10)).makespan) / 10
    assert times[2] == pytest.approx(260, rel=0.02)
    assert times[1] > 500


def _loaded(text: str) -> Any:
    from streamgraph.spec import loads

    return loads(text).program


# --- DataLoader ---------------------------------------------------------------------------------------------------------------------


class Pairs(Dataset[Mapping[str, torch.Tensor]]):
    """Samples as mappings, which the default collate function makes into mappings of batches."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Mapping[str, torch.Tensor]:
        return {"image": torch.full((8,), float(index)), "label": torch.tensor(index)}


def trainer() -> sg.Runner:
    graph = sg.Graph("training")
    image = graph.input("image", "f32[4, 8]", device="cpu")
    label = graph.input("label", "i64[4]", device="cpu")
    staged = graph.buffer("staged", "f32[4, 8]", device="cpu", pinned=True, slots=2)
    batch = graph.buffer("batch", "f32[4, 8]", slots=2)
    total = graph.buffer("total", "f32[]")
    graph.task("stage", lambda image, out: out.copy_(image), reads=image, writes=staged, host=True)
    graph.copy("upload", staged, batch)
    graph.copy("labels", label, "y")
    graph.task("step", lambda total, batch, y: total.add_((batch.mean(1) * y).sum()), updates=total, reads=[batch, "y"])
    graph.copy("report", total, "loss")
    graph.output("loss")
    return sg.compile(graph, device="cpu")


def expected_losses() -> list[float]:
    totals, total = [], 0.0
    for batch in range(3):
        total += sum(float(number * number) for number in range(4 * batch, 4 * batch + 4))
        totals.append(total)
    return totals


@pytest.mark.parametrize("form", ["mappings", "lists", "tuples"])
def test_a_dataloader_is_an_iterable_of_items(form: str) -> None:
    images, labels = torch.arange(12.0)[:, None].expand(12, 8).contiguous(), torch.arange(12)
    loader: DataLoader[Any]
    if form == "mappings":
        loader = DataLoader(Pairs(), batch_size=4)
    elif form == "lists":
        loader = DataLoader(TensorDataset(images, labels), batch_size=4)
        assert isinstance(next(iter(loader)), list)
    else:
        collate = torch.utils.data.default_collate
        loader = DataLoader(TensorDataset(images, labels), batch_size=4, collate_fn=lambda samples: tuple(collate(samples)))
    with trainer() as runner:
        assert [float(result["loss"]) for result in runner.map(loader)] == expected_losses()
        # The next epoch is another loop over the same loader; state goes on.
        assert float([*runner.map(loader)][-1]["loss"]) == 2 * expected_losses()[-1]


def test_a_dataloader_of_single_tensors_needs_no_tuple() -> None:
    loader: DataLoader[Any] = DataLoader(torch.arange(12.0), batch_size=4)  # type: ignore[arg-type]
    graph = sg.Graph("single")
    x = graph.input("x", "f32[4]", device="cpu")
    graph.copy("upload", x, "b")
    graph.output(graph.task("double", lambda b: b * 2, reads="b", writes="y"))
    with sg.compile(graph, device="cpu") as runner:
        assert torch.equal(torch.cat([result["y"] for result in runner.map(loader)]), 2 * torch.arange(12.0))


def test_a_last_batch_that_is_short_is_named_by_its_number() -> None:
    with trainer() as runner:
        loop = runner.map(DataLoader(Pairs(), batch_size=5))
        with pytest.raises(BindingError, match="item 0: "):
            list(loop)
    with trainer() as runner, pytest.raises(BindingError, match="item 2: "):
        list(runner.map(batch for batch in [*DataLoader(Pairs(), batch_size=4)][:2] + [*DataLoader(Pairs(), batch_size=3)][:1]))


# --- layers -------------------------------------------------------------------------------------------------------------------------


def layers(count: int) -> sg.Graph:
    """Weights from pinned memory through a ring of two slots, one layer after another: the form of `prefetch`."""
    graph = sg.Graph("layers")
    h = graph.input("x", "f32[64]")
    graph.value("h", "f32[64]")
    host = graph.input("host", "f32[64]", each={"layer": count}, device="cpu", pinned=True)
    ring = graph.buffer("ring", "f32[64]", each={"layer": count}, slots=2, over="layer")
    for layer in range(count):
        graph.copy(f"load@{layer}", host[layer], ring[layer], stream="copy")
        h = graph.task(f"mm@{layer}", "mm", reads=[h, ring[layer]], writes="h", stream="main")
    graph.output(h)
    return graph


def test_sixty_four_layers_hold_no_more_device_memory_than_four() -> None:
    """By the simulator's accounting: what is alive when. Two slots, the input, and a value that is made while the one before is read."""
    peaks = []
    for count in (4, 64):
        schedule = sg.plan(layers(count))
        peaks.append(curve(lives(schedule, simulate(schedule)), "device").peak[1])
    # The output lives to the end, and it is the last value.
    assert peaks == [5 * 256, 5 * 256]


@pytest.mark.parametrize("per_item", [frozenset(), frozenset({"x"})])
def test_iterations_of_sixty_four_layers_hold_no_more_values_than_of_four(per_item: frozenset[str]) -> None:
    found = {most_alive(plan_loop(layers(count), per_item).schedule(rounds)) for count in (4, 64) for rounds in (4, 12)}
    assert len(found) == 1


# --- overlap ------------------------------------------------------------------------------------------------------------------------


def nearest(loop: Loop, earlier: str, later: str) -> int:
    """How many iterations back the nearest wait of `later` for `earlier` looks, in the steady state."""
    return min(back.by for issue in loop.steady if issue.task == later for back in issue.waits if back.name == earlier)


def period(loop: Loop) -> float:
    return (simulate(loop.schedule(20)).makespan - simulate(loop.schedule(10)).makespan) / 10


def test_buckets_that_are_serialised_are_safe_and_fail_the_metric() -> None:
    """DeepSpeed#5545 the other way round: a wait for the reduction just before makes nothing wrong, and loses all overlap."""
    loop = plan_loop(PINGPONG, frozenset())
    steady = tuple(
        replace(issue, waits=tuple(replace(back, by=1) if back.name == "red" else back for back in issue.waits))
        if issue.task == "bw" else issue
        for issue in loop.steady
    )  # fmt: skip
    serialised = replace(loop, steady=steady)
    assert nearest(loop, "red", "bw") == 2
    assert nearest(serialised, "red", "bw") == 1
    for each in (loop, serialised):
        assert verify(each.schedule(loop.proved)) == ()
    assert period(loop) < 1.1 * 300  # the backward pass; its reduction hides behind the next one
    assert period(serialised) > 1.7 * period(loop)


def test_the_next_step_after_a_picture_is_about_the_same_loop(tmp_path: Path) -> None:
    options = ("--iterations", "3", "--item", "packet", "--inflight", "3")
    for output in (("-o", str(tmp_path / "loop.svg")), ()):
        done = invoke("draw", STREAM, *options, *output)
        assert f"explain {STREAM} --iterations --item packet --inflight 3" in done.stderr
    assert f"draw {STREAM} --iterations 3 --item packet --inflight 3 -o" in done.stderr
    assert "--inflight" not in invoke("draw", STREAM).stderr
