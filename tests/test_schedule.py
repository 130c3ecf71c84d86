"""Steps as text, and the figures of a schedule."""

from __future__ import annotations

import networkx as nx
import pytest

from streamgraph.errors import ScheduleError
from streamgraph.plan import plan
from streamgraph.schedule import HostWait, Launch, Reason, Record, RecordStream, Release, Schedule, Wait, parse_steps
from tests.running import hurried
from tests.support import graph

STEPS = (
    Launch("upload@0", "copy"),
    Launch("urgent", "urgent", True),
    Record("e0", "copy", "upload@0"),
    Wait("e0", "main", (Reason("RAW", "frame@0", "upload@0", "prep@0", "cam eras (1).yaml:12"), Reason("after", "", "a", "b"))),
    HostWait("e3", False, (Reason("RAW", "result.1", "download", "host"),)),
    HostWait("e3", True, (Reason("WAR", "w[slot 1]", "upload", "fill"),)),
    Release("image@0.1", "main", False, (Reason("last use", "image@0.1", "stack", "stack"),)),
    Release("w.1", "copy", True),
    RecordStream("output:h.2", "main", (Reason("output", "output:h.2", "mm@3", "exit"),)),
    Wait("entry", "s1", (Reason("entry", "", "entry", "prep@0"),)),
    Wait("e9", "main"),
)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_step_is_one_line_that_parses_back(step: object) -> None:
    assert "\n" not in str(step)
    assert parse_steps([str(step)]) == (step,)


@pytest.mark.parametrize(
    "line",
    [
        "launch", "launch a", "wait e0", "hostwait e0 @main", "wait e0 @main previous", "jump a @main", "wait e0 @main # because",
        "record e0 @main", "record e0 @main urgent # after a", "wait e0 @main urgent", "launch urgent", "launch a @main urgent previous",
    ],
)  # fmt: skip
def test_every_line_that_is_no_step_is_reported(line: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse_steps(["launch a @main", line, line])
    assert len(caught.value.problems) == 2


def test_the_text_and_a_saved_file_keep_which_launches_are_urgent() -> None:
    schedule = hurried(plan(graph("a: -> x @s1 | b: x -> y @s2 | c: x -> z @main", outputs="y z")), 1)
    assert 0 < len(schedule.urgent) < 3
    assert Schedule.from_text(str(schedule), schedule.program).urgent == schedule.urgent
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert schedule != hurried(schedule, share=0.0)


def test_events_of_the_host_are_not_counted_as_cuda_calls() -> None:
    counts = plan(graph("fill: -> pin ! | h2d: pin -> x @copy", hosts="pin")).counts
    assert (counts.events, counts.waits, counts.host_events, counts.host_waits) == (2, 2, 1, 1)


def test_the_graph_is_the_networkx_dag_with_its_hazards() -> None:
    schedule = plan(graph("a: -> x | b: x -> y"))
    assert isinstance(schedule.graph, nx.DiGraph)
    assert schedule.graph.nodes[0]["task"] == "a"
    assert [hazard.kind for hazard in schedule.graph.edges[0, 1]["hazards"]] == ["RAW"]


def test_from_text_finds_the_lanes() -> None:
    schedule = plan(graph("a: -> x @s1 | h: -> pin ! | b: x pin -> y", hosts="pin"))
    assert Schedule.from_text(str(schedule), schedule.program).lanes == schedule.lanes
