"""The specs that people recognise: each loads, plans, verifies, draws and runs, and waits exactly where its comment says that it does."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from streamgraph.errors import VerificationError
from streamgraph.hazards import find_hazards
from streamgraph.model import EXIT, HOST, Program
from streamgraph.plan import plan
from streamgraph.plan_loop import plan_loop
from streamgraph.render import FORMATS, render
from streamgraph.rings import over_iterations, ring_warnings
from streamgraph.schedule import HostWait, Launch, Record, Schedule, Step, Wait
from streamgraph.spec import load
from streamgraph.spec.schema import json_schema
from streamgraph.storages import trace
from streamgraph.verify import ensure

ROOT = Path(__file__).parents[1]
SPECS = ROOT / "specs"
NAMES = sorted(path.name.removesuffix(".streamgraph.yaml") for path in SPECS.glob("*.streamgraph.yaml"))
PHOTOS = ("cat", "coffee", "rocket", "temple")

Pair = tuple[str, str]


@dataclass(frozen=True)
class Promise:
    """What the comment of a spec says: figures of its schedule, waits that are there, and hazards that need no wait."""

    counts: str
    waits: frozenset[Pair]
    implied: frozenset[Pair] = field(default=frozenset())


def path_of(name: str) -> Path:
    return SPECS / f"{name}.streamgraph.yaml"


@cache
def program_of(name: str) -> Program:
    loaded = load(path_of(name))
    assert loaded.warnings == ()
    return loaded.program


@cache
def schedule_of(name: str) -> Schedule:
    return plan(program_of(name))


def comment_of(name: str) -> str:
    """The comment that a spec begins with, in one line."""
    lines = path_of(name).read_text(encoding="utf-8").splitlines()
    return " ".join(line.lstrip("# ") for line in lines[: lines.index("streamgraph: 1")])


def waits_of(schedule: Schedule) -> set[Pair]:
    """(earlier, later) of every wait of the schedule: later is the next task on the waiting lane, else exit, or the caller on the host."""
    found: set[Pair] = set()
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Wait | HostWait):
            lane = step.lane if isinstance(step, Wait) else HOST
            rest = (after.task for after in schedule.steps[number:] if isinstance(after, Launch) and after.lane == lane)
            found.add((schedule.event_task[step.event], next(rest, HOST if lane == HOST else EXIT)))
    return found


def hazards_of(program: Program) -> set[tuple[str, str, str, str]]:
    accesses = trace(program)[0]
    return {
        (hazard.kind, hazard.tensor, program.tasks[hazard.earlier].name, program.tasks[hazard.later].name)
        for hazard in find_hazards(program, accesses)
    }


def every(form: str, numbers: range, step: int = 0) -> set[Pair]:
    """{("load@0", "mm@0"), ...} from "load mm": the pairs of members whose numbers differ by `step`."""
    earlier, later = form.split()
    return {(f"{earlier}@{number}", f"{later}@{number + step}") for number in numbers}


PROMISES: dict[str, Promise] = {
    "buckets": Promise(
        "12 tasks, 2 lanes, 10 events, 10 waits, 0 record_stream",
        waits=frozenset(every("bw red", range(5)) | every("red bw", range(3), 2) | {("entry", "clear"), ("red@4", "output:mean")}),
        implied=frozenset(every("red bw", range(4), 1)),
    ),
    "cameras": Promise(
        "14 tasks, 3 lanes, 8 events, 7 waits, 1 host wait, 0 record_stream",
        waits=frozenset(
            every("upload preprocess", range(4)) | every("preprocess upload", range(2), 2) | {("entry", "upload@0"), ("download", "host")}
        ),
        implied=frozenset({("upload@0", "upload@2"), ("preprocess@3", "stack")}),
    ),
    "diamond": Promise(
        "4 tasks, 2 lanes, 2 events, 2 waits, 0 record_stream",
        waits=frozenset({("fork", "right"), ("right", "join")}),
        implied=frozenset({("fork", "left"), ("fork", "join"), ("left", "join")}),
    ),
    "fsdp": Promise(
        "26 tasks, 3 lanes, 19 events, 19 waits, 0 record_stream",
        waits=frozenset(
            every("gather forward", range(4)) | every("forward gather", range(2), 2) | {("forward@2", "again@3"), ("forward@3", "again@2")}
            | every("again backward", range(1, 4)) | {("backward@3", "again@1"), ("backward@2", "again@0"), ("again@0", "reduce@3")}
            | every("backward reduce", range(2)) | {("reduce@3", "backward@0"), ("entry", "gather@0"), ("step@0", "exit")}
        ),
        implied=frozenset({("backward@3", "reduce@3"), ("again@0", "backward@0"), ("gather@0", "gather@1")}),
    ),
    "offload": Promise(
        "19 tasks, 4 lanes, 15 events, 14 waits, 1 host wait, 0 record_stream",
        waits=frozenset(
            every("layer offload", range(1, 5)) | every("offload layer", range(1, 3), 2) | {("offload@4", "reload@4")}
            | every("reload gradient", range(1, 5)) | every("gradient reload", range(3, 5), -2)
            | {("gradient@1", "download"), ("download", "check"), ("check", "exit")}
        ),
        implied=frozenset(every("offload reload", range(1, 4))),
    ),
    "pingpong": Promise(
        "4 tasks, 3 lanes, 2 events, 2 waits, 1 host wait, 0 record_stream",
        waits=frozenset({("bw", "red"), ("download", "exit"), ("download", "host")}),
    ),
    "prefetch": Promise(
        "18 tasks, 2 lanes, 11 events, 11 waits, 0 record_stream",
        waits=frozenset(every("load mm", range(6)) | every("mm load", range(4), 2) | {("entry", "load@0")}),
        implied=frozenset(every("load load", range(5), 1)),
    ),
    "prefetch_flat": Promise(
        "18 tasks, 2 lanes, 11 events, 11 waits, 0 record_stream",
        waits=frozenset(every("load mm", range(6)) | every("mm load", range(4), 2) | {("entry", "load@0")}),
        implied=frozenset(every("load load", range(5), 1)),
    ),
    "record_stream_article": Promise(
        "3 tasks, 3 lanes, 3 events, 3 waits, 0 record_stream",
        waits=frozenset({("entry", "ones"), ("ones", "twos"), ("twos", "output:buffer")}),
    ),
    "stream": Promise(
        "4 tasks, 4 lanes, 4 events, 4 waits, 1 host wait, 0 record_stream",
        waits=frozenset({("entry", "upload"), ("upload", "compare"), ("compare", "download"), ("download", "exit"), ("download", "host")}),
    ),
    "three_consumers": Promise(
        "9 tasks, 4 lanes, 8 events, 8 waits, 3 record_stream",
        waits=frozenset(
            every("preprocess inference", range(3)) | every("inference postprocess", range(3))
            | {("entry", "preprocess@0"), ("postprocess@2", "exit")}
        ),
        implied=frozenset(every("preprocess postprocess", range(3))),
    ),
    "two_gpus": Promise(
        "20 tasks, 6 lanes, 18 events, 20 waits, 1 host wait, 0 record_stream",
        waits=frozenset(
            every("load first", range(4)) | every("first hop", range(4)) | every("hop second", range(4)) | every("second hop", range(2), 2)
            | every("second store", range(4)) | {("entry", "load@0"), ("store@3", "exit"), ("store@3", "host")}
        ),
        implied=frozenset(every("hop hop", range(2), 2)),
    ),
    "views": Promise(
        "5 tasks, 5 lanes, 5 events, 7 waits, 0 record_stream",
        waits=frozenset(
            {("entry", f"fill@{n}") for n in range(3)} | {(f"fill@{n}", "reduce") for n in range(3)} | {("reduce", "output:bucket")}
        ),
        implied=frozenset({("fill@0", "fill@1"), ("fill@1", "fill@2"), ("fill@0", "fill@2")}),
    ),
}  # fmt: skip


# What comments say about loops: the inputs that each iteration brings, and the waits that reach back, "earlier[-d] -> later".
LOOPS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "pingpong": (frozenset(), frozenset({"red[-2] -> bw", "download[-1] -> deliver"})),
    "stream": (frozenset({"packet"}), frozenset({"follow[-2] -> upload", "download[-1] -> deliver"})),
}


# --- form ---------------------------------------------------------------------------------------------------------------------------


def test_every_spec_has_its_promise_here():
    assert sorted(PROMISES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_loads_without_warnings_and_bears_its_own_name(name: str):
    assert program_of(name).name == name


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_validates_against_the_schema_that_editors_use(name: str):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    data = yaml.safe_load(path_of(name).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(data)
    data["tasks"]["misspelt"] = {"raeds": ["x"]}
    assert not jsonschema.Draft202012Validator(schema).is_valid(data)


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_begins_with_a_comment_that_says_what_to_look_for(name: str):
    comment = comment_of(name)
    assert "By hand:" in comment or name == "prefetch_flat"
    assert "The plan:" in comment
    # An arrow in the comment is a wait of the schedule, or expressly none.
    said, _, absent = comment.partition("not there:")
    promise = PROMISES[name]
    for pair in re.findall(r"([\w@]+) -> ([\w@]+)", said):
        assert pair in promise.waits
    for pair in re.findall(r"([\w@]+) -> ([\w@]+)", absent):
        assert pair in promise.implied


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_has_exactly_the_waits_that_reach_back_which_its_comment_promises(name: str):
    items, promised = LOOPS[name]
    loop = plan_loop(path_of(name), items)
    assert {f"{back} -> {issue.task}" for issue in loop.steady for back in issue.waits if back.by} == promised
    said, _, absent = comment_of(name).partition("The loop:")[2].partition("not there:")
    arrow = r"\w+\[-\d+\] -> \w+"
    assert re.findall(arrow, said)
    assert set(re.findall(arrow, said)) <= promised
    assert re.findall(arrow, absent)
    assert not set(re.findall(arrow, absent)) & promised


def test_every_spec_with_a_ring_over_iterations_has_a_loop_here():
    assert sorted(LOOPS) == [name for name in NAMES if over_iterations(program_of(name))]


@pytest.mark.parametrize("name", NAMES)
def test_no_ring_of_a_spec_has_odd_slots_and_its_loop_is_proved(name: str):
    loop = plan_loop(path_of(name), LOOPS.get(name, (frozenset(),))[0])
    assert ring_warnings(loop) == ()
    ensure(loop.schedule(loop.proved + 3))


def test_one_slot_brings_back_the_wait_that_serialises():
    spec = yaml.safe_load(path_of("pingpong").read_text(encoding="utf-8"))
    spec["tensors"]["bucket"]["slots"] = 1
    loop = plan_loop(spec, frozenset())
    assert "red[-1] -> bw" in {f"{back} -> {issue.task}" for issue in loop.steady for back in issue.waits}


@pytest.mark.parametrize("executor", ["lanes", "eager"])
@pytest.mark.parametrize("name", NAMES)
def test_iterations_of_a_spec_give_the_same_bytes_as_calls_one_after_another(name: str, executor: str):
    import torch

    from streamgraph.run import compile

    with compile(path_of(name), made_up_of(name), ops=operators_of(name), device="cpu", executor="sequential") as runner:
        expected = [{key: value.clone() for key, value in runner().items()} for _ in range(4)]
    found = run_of(name, executor, iterations=4)
    assert len(found) == 4
    for mine, its in zip(found, expected, strict=True):
        assert list(mine) == list(its)
        assert all(torch.equal(mine[key], its[key]) for key in its)


# --- plan ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_has_exactly_the_waits_that_it_promises(name: str):
    schedule, promise = schedule_of(name), PROMISES[name]
    assert str(schedule.counts) == promise.counts
    assert waits_of(schedule) == promise.waits
    assert not promise.implied & waits_of(schedule)


@pytest.mark.parametrize("name", NAMES)
def test_the_verifier_misses_every_wait_that_is_taken_out(name: str):
    schedule = schedule_of(name)
    assert ensure(schedule) is schedule
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Wait | HostWait):
            rest: tuple[Step, ...] = (*schedule.steps[:number], *schedule.steps[number + 1 :])
            with pytest.raises(VerificationError):
                ensure(Schedule(schedule.program, schedule.lanes, rest))


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_survives_text_and_json(name: str):
    schedule = schedule_of(name)
    priorities = {lane.name: lane.priority for lane in schedule.lanes}
    assert Schedule.from_text(str(schedule), schedule.program, priorities).steps == schedule.steps
    assert Schedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format", FORMATS)
def test_a_spec_draws_to_every_format(name: str, format: str):
    schedule = schedule_of(name)
    text = render(schedule, format)
    assert text
    assert text == render(plan(program_of(name)), format)
    if format != "json":
        return
    assert json.loads(text)


def test_grouped_and_flat_prefetch_mean_the_same():
    grouped, flat = program_of("prefetch"), program_of("prefetch_flat")
    assert hazards_of(grouped) == hazards_of(flat)
    assert [task.name for task in grouped.tasks] != [task.name for task in flat.tasks]
    assert waits_of(schedule_of("prefetch")) == waits_of(schedule_of("prefetch_flat"))


def test_a_flat_ring_is_issued_in_an_order_in_which_every_record_precedes_its_wait():
    order = [step.task for step in schedule_of("prefetch_flat").steps if isinstance(step, Launch)]
    assert order.index("mm@0") < order.index("load@2")
    for name in NAMES:
        recorded: set[str] = set()
        for step in schedule_of(name).steps:
            if isinstance(step, Record):
                recorded.add(step.event)
            if isinstance(step, Wait) or (isinstance(step, HostWait) and not step.previous):
                assert step.event in recorded


def test_a_reduction_holds_back_the_backward_pass_two_steps_later_and_nothing_sooner():
    program = program_of("buckets")
    number = {task.name: index for index, task in enumerate(program.tasks)}
    edges = schedule_of("buckets").graph.edges
    steps = range(5)
    held = {later - earlier for earlier in steps for later in steps if (number[f"red@{earlier}"], number[f"bw@{later}"]) in edges}
    assert held == {2}


def test_a_larger_ring_holds_back_later():
    spec = yaml.safe_load(path_of("buckets").read_text(encoding="utf-8"))
    spec["tensors"]["bucket"]["slots"] = 3
    assert every("red bw", range(2), 3) <= waits_of(plan(spec))
    assert not every("red bw", range(3), 2) & waits_of(plan(spec))


def test_stages_run_on_the_gpus_of_their_weights_and_the_first_never_waits_for_the_second_but_for_room():
    schedule = schedule_of("two_gpus")
    assert schedule.program.devices == ("cuda:0", "cuda:1")
    assert schedule.device_of == {"main": "cuda:0", "load": "cuda:0", "hop": "cuda:0", "second": "cuda:1", "store": "cuda:1"}
    assert not {pair for pair in waits_of(schedule) if pair[0].startswith(("second", "store")) and pair[1].startswith("first")}


def test_collectives_of_one_communicator_are_ordered_as_declared():
    schedule = schedule_of("fsdp")
    graph = schedule.graph
    users = [
        index for index, task in enumerate(schedule.program.tasks)
        if any("communicator" in entry.tensors for entry in task.updates)
    ]  # fmt: skip
    assert len(users) == 12
    assert all(graph.has_edge(earlier, later) for earlier, later in pairwise(users))


# --- run ----------------------------------------------------------------------------------------------------------------------------


def operators_of(name: str) -> ModuleType | None:
    from streamgraph.operators import load_operators

    path = SPECS / f"{name}.py"
    return load_operators(str(path)) if path.exists() else None


def inputs_of(name: str, device: str = "cpu") -> dict[str, Any]:
    """The four photographs for the cameras; the rest is made up."""
    if name != "cameras":
        return {}
    pytest.importorskip("PIL")
    import torch

    from streamgraph.files import load_inputs

    photos = [f"packet@{cam}={SPECS / 'photos' / photo}.png" for cam, photo in enumerate(PHOTOS)]
    return dict(load_inputs(program_of(name), photos, torch.device(device)))


def run_of(name: str, executor: str, device: str = "cpu", **options: Any) -> Mapping[str, Any]:
    from streamgraph.run import run

    return run(path_of(name), inputs_of(name, device), ops=operators_of(name), device=device, executor=executor, **options)  # type: ignore[arg-type]


def made_up_of(name: str) -> dict[str, Any]:
    """All inputs of a spec, as a run makes them up."""
    import torch

    from streamgraph.binding import made_up

    given = inputs_of(name)
    return {**made_up(program_of(name), given, torch.device("cpu"), 0), **given}


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_gives_the_same_bytes_on_every_executor_and_any_number_of_lanes(name: str):
    import torch

    expected = run_of(name, "sequential")
    assert list(expected) == [output.name for output in program_of(name).outputs]
    assert all(torch.isfinite(value).all() for value in expected.values())
    for executor, options in (("lanes", {}), ("eager", {}), ("lanes", {"streams": 3}), ("lanes", {"order": "auto"})):
        found = run_of(name, executor, **options)
        assert list(found) == list(expected)
        assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("executor", ["eager", "lanes"])
@pytest.mark.parametrize("name", NAMES)
def test_early_release_changes_no_byte(name: str, executor: str):
    import torch

    expected, found = run_of(name, "sequential"), run_of(name, executor, release="early")
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
def test_a_spec_gives_on_a_gpu_what_one_stream_gives(name: str):
    import torch

    from tests.running import skip_without_gpus

    skip_without_gpus(program_of(name))
    expected = run_of(name, "sequential", "cuda")
    for options in ({}, {"streams": 3}, {"order": "auto", "release": "early"}):
        found = run_of(name, "eager", "cuda", **options)
        assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("executor", ["sequential", "lanes"])
def test_the_broken_example_of_the_articles_ends_as_two_every_time(executor: str):
    from streamgraph.run import compile

    with compile(path_of("record_stream_article"), device="cpu", executor=executor) as runner:  # type: ignore[arg-type]
        for _ in range(50):
            assert (runner()["buffer"] == 2.0).all()


def test_prefetched_layers_compute_what_a_loop_computes():
    import torch

    inputs = made_up_of("prefetch")
    h = inputs["h"]
    for layer in range(6):
        h = torch.tanh(torch.mm(h, inputs[f"host@{layer}"]))
    for name in ("prefetch", "prefetch_flat"):
        assert torch.equal(run_of(name, "lanes")["h"], h)


def test_the_reduced_buckets_are_the_mean_of_all_gradients():
    import torch

    inputs = made_up_of("buckets")
    mean = sum(torch.mm(inputs[f"input@{step}"], inputs[f"error@{step}"]) for step in range(5)) / 5
    torch.testing.assert_close(run_of("buckets", "lanes")["mean"], mean)


def test_the_slices_are_reduced_as_one_bucket():
    import torch

    inputs = made_up_of("views")
    whole = torch.cat([inputs[f"gradient@{part}"] for part in range(3)])
    assert torch.equal(run_of("views", "lanes")["bucket"], whole * 0.25)


def test_offloaded_activations_give_the_gradient_that_autograd_gives():
    import torch

    inputs = made_up_of("offload")
    x = inputs["x"].clone().requires_grad_()
    h = x
    for _ in range(4):
        h = torch.tanh(h)
    h.backward(inputs["grad"])
    assert x.grad is not None
    torch.testing.assert_close(run_of("offload", "lanes")["norm"], x.grad.norm())


def test_a_sharded_step_is_a_step_of_gradient_descent():
    import torch

    from streamgraph.binding import initial
    from streamgraph.run import compile

    program = program_of("fsdp")
    inputs = made_up_of("fsdp")
    shards = [initial(program.tensor_named[f"shard@{layer}"], torch.device("cpu"), 0) for layer in range(4)]
    weights = [shard.reshape(-1, shard.shape[-1]).requires_grad_() for shard in shards]
    losses: list[float] = []
    with compile(path_of("fsdp"), inputs, ops=operators_of("fsdp"), device="cpu") as runner:
        for _ in range(4):
            act = torch.tanh(inputs["x"])
            for weight in weights:
                act = torch.tanh(act @ weight / math.sqrt(weight.shape[0]))
            loss = (act - inputs["target"]).square().mean()
            torch.testing.assert_close(runner()["loss"], loss.detach())
            losses.append(loss.item())
            # The spec's delta leaves out the factor of the mean, and its reduction divides by the ranks.
            gradients = torch.autograd.grad(loss * act.numel() / 2 / 4, weights)
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.data.sub_(0.1 * gradient)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_the_cameras_find_in_the_photographs_what_a_plain_program_finds():
    import torch

    operators = operators_of("cameras")
    assert operators is not None
    inputs = made_up_of("cameras")
    batch = torch.stack([operators.preprocess(inputs[f"packet@{cam}"]) for cam in range(4)])
    features = torch.conv2d(batch, inputs["stem"], stride=2, padding=1).relu()
    expected = operators.strongest(torch.conv2d(features, inputs["head"], padding=1))
    found = run_of("cameras", "lanes")["result"]
    torch.testing.assert_close(found, expected)
    assert len({tuple(row) for row in found.tolist()}) == 4  # four different pictures


def test_the_photographs_are_small_and_credited():
    readme = (SPECS / "photos" / "README.md").read_text(encoding="utf-8")
    files = sorted(path for path in (SPECS / "photos").iterdir() if path.suffix != ".md")
    assert [path.stem for path in files] == sorted(PHOTOS)
    for path in files:
        assert path.stat().st_size <= 60 * 1024
        assert f"`{path.name}`" in readme


# --- documentation ------------------------------------------------------------------------------------------------------------------


def blocks(document: str, language: str) -> list[Any]:
    """The fenced blocks of one language in a page of the documentation, each named by its line."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [pytest.param(match[1], id=f"line {text.count(chr(10), 0, match.start()) + 1}") for match in found]


@pytest.mark.parametrize("block", blocks("spec.md", "yaml"))
def test_every_yaml_block_of_the_reference_plans(block: str, tmp_path: Path):
    file = tmp_path / "block.streamgraph.yaml"
    file.write_text(block if block.startswith("streamgraph:") else f"streamgraph: 1\n{block}", encoding="utf-8")
    loaded = load(file)
    assert loaded.warnings == ()
    assert plan(loaded.program).counts.tasks == len(loaded.program.tasks)
    if all(task.operator == "copy" or task.operator.startswith("aten.") for task in loaded.program.tasks):
        from streamgraph.operators import resolve

        assert len(resolve(loaded.program)) == len(loaded.program.tasks)


def test_the_reference_names_every_key_of_the_language():
    text = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
    schema = json_schema()
    forms = {"Spec": schema, **schema["$defs"]}
    keys = {key for form in forms.values() for key in form.get("properties", {})}
    assert {"streamgraph", "slots", "after", "priority"} <= keys
    assert not [key for key in sorted(keys) if not re.search(rf"`{key}[`:]|`\w+: {key}`", text)]


def test_the_python_blocks_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    found = blocks("python.md", "python")
    assert found
    names: dict[str, Any] = {"__name__": "python_md"}
    for block in found:
        source = block.values[0]
        exec(compile_block(source, str(block.id)), names)


def compile_block(source: Any, where: str) -> Any:
    return compile(source, f"docs/python.md, {where}", "exec")
