"""The trace: valid trace events, one slice per task, one flow per wait, and memory that ends where it began or with what stays."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.plan import plan
from streamgraph.render import render
from streamgraph.render.memory import curve, lives
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate
from tests.drawn import cameras, host_tasks, hostile, prefetch
from tests.programs import seeded

PSEUDO = "caller"


def events(schedule: Schedule) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in "MXsfC"}
    for event in json.loads(render(schedule, "trace.json"))["traceEvents"]:
        found[event["ph"]].append(event)
    return found


def check(schedule: Schedule) -> None:
    found, timeline = events(schedule), simulate(schedule)
    tasks = [event for event in found["X"] if event["cat"] != PSEUDO]
    assert len(tasks) == len(timeline.tasks)
    here = [wait for wait in timeline.waits if wait.event_lane]
    assert len(found["s"]) == len(found["f"]) == len(here)
    assert sorted(event["id"] for event in found["s"]) == sorted(event["id"] for event in found["f"])
    for event in itertools.chain(*found.values()):
        assert event["pid"] == 1
        assert event.get("ts", 0) >= 0
    threads: dict[int, list[tuple[float, float]]] = {}
    for event in found["X"]:
        threads.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(sorted(spans))), "slices of one track overlap"
    for flow in itertools.chain(found["s"], found["f"]):
        inside = [span for span in threads[flow["tid"]] if span[0] <= flow["ts"] <= span[1]]
        assert len(inside) == 1
    named = {event["tid"]: event["args"]["name"] for event in found["M"] if event["name"] == "thread_name"}
    assert set(threads) <= set(named)


@pytest.mark.parametrize("drawn", [cameras, prefetch, host_tasks, hostile], ids=lambda drawn: drawn.__name__)
def test_slices_and_flows_are_those_of_the_plan(drawn: Any) -> None:
    check(drawn())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_slices_and_flows_of_any_plan(seed: int) -> None:
    check(plan(seeded(seed, 12)))


def test_slices_stand_at_the_simulated_times_and_flows_join_the_right_ones() -> None:
    schedule = cameras()
    found, timeline = events(schedule), simulate(schedule)
    times = {event["name"]: event for event in found["X"]}
    for time in timeline.tasks:
        assert times[time.task]["ts"] == pytest.approx(1 + time.start, abs=2e-3)
        assert times[time.task]["dur"] == pytest.approx(time.duration, abs=2e-3)
    first = next(event for event in found["s"] if event["args"]["why"] and "upload@0 -> preprocess@0" in event["args"]["why"][0])
    (last,) = [event for event in found["f"] if event["id"] == first["id"]]
    for flow, task in ((first, "upload@0"), (last, "preprocess@0")):
        assert times[task]["ts"] <= flow["ts"] <= times[task]["ts"] + times[task]["dur"]
    assert first["name"] == "RAW frame@0"


def test_counters_follow_the_memory() -> None:
    schedule = prefetch()
    found, timeline = events(schedule), simulate(schedule)
    expected = curve(lives(schedule, timeline), "device")
    counted = [event["args"]["bytes"] for event in found["C"] if event["name"] == "device memory"]
    assert counted == list(expected.bytes)
    assert max(counted) == expected.peak[1] > 0


def test_the_same_schedule_gives_the_same_bytes() -> None:
    assert render(cameras(), "trace.json") == render(cameras(), "trace.json")
