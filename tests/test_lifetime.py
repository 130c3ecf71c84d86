"""Releases and record_stream."""

from __future__ import annotations

from streamgraph.builder import Graph
from streamgraph.plan import plan
from streamgraph.schedule import RecordStream, Release, Schedule
from tests.support import graph


def releases(schedule: Schedule) -> dict[str, str]:
    return {s.storage: f"@{s.lane}{' previous' if s.previous else ''}" for s in schedule.steps if isinstance(s, Release)}


def line_before(schedule: Schedule, storage: str) -> str:
    place = next(i for i, s in enumerate(schedule.steps) if isinstance(s, Release) and s.storage == storage)
    return str(schedule.steps[place - 1]).split("  ")[0]


def test_a_value_used_on_its_own_lane_goes_right_after_its_last_use() -> None:
    schedule = plan(graph("a: -> x | b: x -> y | c: y -> z"))
    assert line_before(schedule, "x.1") == "launch b @main"


def test_a_value_used_on_another_lane_goes_at_the_first_wait_that_covers_the_use() -> None:
    schedule = plan(graph("a: -> x @main | b: x -> y @s | c: y -> z @main"))
    assert line_before(schedule, "x.1").startswith("wait e1 @main")


def test_a_side_lane_that_never_learns_of_the_use_leaves_the_value_to_the_next_run() -> None:
    schedule = plan(graph("a: -> x @s | b: x -> y @main"))
    assert releases(schedule) == {"x.1": "@s previous", "y.1": "@main"}
    assert line_before(schedule, "x.1") == "wait entry @s"


def test_a_default_plan_needs_record_stream_only_for_outputs_made_on_a_side_lane() -> None:
    schedule = plan(graph("a: -> x @s | b: x -> y @main | c: x -> z @s", outputs="z y"))
    assert [(s.storage, s.lane) for s in schedule.steps if isinstance(s, RecordStream)] == [("z.1", "main")]


def test_outputs_are_never_released() -> None:
    assert releases(plan(graph("a: -> x | b: x -> y", outputs="x y"))) == {}


def test_memory_of_a_chain_does_not_grow_with_its_length() -> None:
    """Every value of the reduce-scatter chain is released before the one after the next is made (pytorch#179128)."""
    for length in (4, 64):
        text = " | ".join(f"rs{i}: x{i} -> b{i} @rs | ar{i}: b{i} -> x{i + 1} @ar" for i in range(length))
        schedule = plan(graph(text, inputs="x0"))
        alive = peak = 0
        for step in schedule.steps:
            alive += step.__class__.__name__ == "Launch"
            alive -= isinstance(step, Release)
            peak = max(peak, alive)
        assert peak <= 6, length


def test_early_release_records_a_stream_where_a_wait_would_delay_the_lane() -> None:
    text = "load0: -> w0 @copy | mm0: w0 -> h0 @main | load1: -> w1 @copy | mm1: w1 h0 -> h1 @main"
    schedule = plan(graph(text, cost=100.0), release="early")
    recorded = [(s.storage, s.lane) for s in schedule.steps if isinstance(s, RecordStream)]
    assert ("w0.1", "main") in recorded
    assert line_before(schedule, "w0.1").startswith("record_stream w0.1 @main")


def test_early_release_takes_one_wait_where_it_delays_nothing() -> None:
    made = graph("a: -> x @s | b: x -> y @main", cost=1.0)
    made.task("later", "mix", reads="y", writes="z", stream="main", cost=1.0)
    made.task("slow", "mix", writes="q", stream="t", cost=500.0)
    made.task("last", "mix", reads="q", writes="r", stream="s", cost=1.0)
    schedule = plan(made, release="early")
    assert "x.1" not in [s.storage for s in schedule.steps if isinstance(s, RecordStream)]
    assert any(reason.kind == "last use" for step in schedule.steps for reason in getattr(step, "reasons", ()))


def test_one_recorded_lane_stands_for_another_that_it_has_waited_for() -> None:
    """The allocator records the tail of a stream, so a lane that has waited for another covers its uses too."""
    schedule = plan(graph("mk: -> a @main | ar: a -> r @nccl | use: a r -> s @s", cost=50.0), release="early")
    assert [(s.storage, s.lane) for s in schedule.steps if isinstance(s, RecordStream) and s.storage == "a.1"] == [("a.1", "s")]


def test_host_memory_is_held_until_the_host_has_waited_for_its_last_use() -> None:
    made = Graph("offload")
    made.input("act", "f32[8]")
    made.value("pin", "f32[8]", device="cpu", pinned=True)
    made.copy("off", "act", "pin", stream="d2h")
    made.copy("back", "pin", "again", stream="main")
    schedule = plan(made)
    assert releases(schedule)["pin.1"] == "@host previous"
    steps = [str(step).split("  ")[0] for step in schedule.steps]
    held = steps.index("hostwait e1 previous")
    assert steps[held + 1].startswith("record e1 ")
    assert "release pin.1 @host previous" in steps[held:]
