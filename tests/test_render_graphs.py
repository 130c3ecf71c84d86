"""Mermaid and DOT: the same nodes and edges as the steps, quoted so that any name is only a name."""

from __future__ import annotations

import html
import re
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.errors import ScheduleError
from streamgraph.model import Program, Task
from streamgraph.plan import plan
from streamgraph.render import render
from streamgraph.render.dependencies import dependencies
from streamgraph.render.fit import shown
from streamgraph.render.mermaid import safe
from streamgraph.schedule import Lane, Launch, Record, Schedule, Step, Wait
from tests.drawn import HOSTILE, cameras, hostile, prefetch
from tests.programs import seeded
from tests.support import waited

NODE = re.compile(r'    n\d+(?:\["(?P<box>[^"]*)"\]|\(\["(?P<end>[^"]*)"\]\))\Z')
EDGE = re.compile(r'  n\d+ (?:-\.->|-->(?:\|"[^"]+"\|)?) n\d+\Z')
LINE = re.compile(r'flowchart LR\Z|  %% [\w ,:.]+\Z|  subgraph lane\d+\["[^"]+"\]\Z|  end\Z')


def entities(text: str) -> str:
    return re.sub(r"#(\d+);", lambda match: chr(int(match[1])), text)


def test_the_camera_pipeline_reads_as_expected() -> None:
    text = render(cameras(2), "mmd")
    assert 'subgraph lane0["main"]' in text
    assert 'n1["upload@0"]' in text
    assert 'n1 -->|"RAW frame@0"| n3' in text
    assert "n1 -.-> n2" in text
    assert '(["entry"])' in text


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_nodes_are_the_tasks_and_edges_the_waits(seed: int, tasks: int) -> None:
    schedule = plan(seeded(seed, tasks=tasks, lanes=4))
    found = dependencies(schedule)
    names = [node.text for node in found.nodes if not node.end]
    assert names == [step.task for step in schedule.steps if isinstance(step, Launch)]
    ends = {"the run ends": "host"}
    named = [ends.get(node.text, node.text) for node in found.nodes]
    pairs = {(named[edge.earlier], named[edge.later]) for edge in found.edges if not edge.fifo}
    assert pairs == waited(schedule)
    text = render(schedule, "mmd")
    assert all(NODE.match(line) or EDGE.match(line) or LINE.match(line) for line in text.splitlines())
    dot = render(schedule, "dot")
    assert dot.count(" -> ") >= len(found.edges)


def test_hostile_names_are_only_names_in_mermaid() -> None:
    text = render(hostile(), "mmd")
    lines = text.splitlines()
    assert all(NODE.match(line) or EDGE.match(line) or LINE.match(line) for line in lines)
    names = [entities(match["box"]) for line in lines if (match := NODE.match(line)) and match["box"] is not None]
    assert sorted(names) == sorted(shown(name) or " " for name in HOSTILE)


@given(st.text())
def test_whatever_is_quoted_for_mermaid_reads_back_and_has_no_sign_of_its_grammar(text: str) -> None:
    quoted = safe(text)
    assert not re.search(r'["\[\]<>|`{}\\%\n]', quoted)
    assert entities(quoted) == (text if text.strip() else " ")


def test_hostile_names_are_only_names_in_dot() -> None:
    text = render(hostile(), "dot")
    string = r'"(?:[^"\\\n]|\\\\|\\")*"'
    rest = re.sub(string, "S", text)
    assert re.fullmatch(r"[\w\s={}\[\];,>.-]*", rest), rest
    names = re.findall(rf"^    n\d+ \[label=({string})\];", text, re.MULTILINE)
    read = [html.unescape(name[1:-1].replace('\\"', '"').replace("\\\\", "\\")) for name in names]
    assert sorted(read) == sorted(html.unescape(html.escape(shown(name), quote=False)) for name in HOSTILE)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize("schedule", [cameras(), prefetch(30), hostile()], ids=["cameras", "prefetch", "hostile"])
def test_graphviz_reads_the_dot_text(schedule: Schedule) -> None:
    done = subprocess.run(["dot", "-Tplain"], input=render(schedule, "dot").encode(), capture_output=True, check=True)
    assert done.stderr == b""
    assert done.stdout.decode().count("\nnode ") == len(dependencies(schedule).nodes)


def test_a_large_schedule_collapses_to_families_and_says_so() -> None:
    text = render(prefetch(400), "mmd")
    assert '["load@* (400 tasks)"]' in text
    assert '-->|"400 waits"|' in text
    assert "%% 801 tasks and" in text
    assert len(text.splitlines()) < 30


def test_what_is_too_large_even_then_is_an_error_with_a_remedy() -> None:
    tasks = tuple(Task(f"task{n}", "op") for n in range(600))
    steps: list[Step] = [Launch(task.name, "main") for task in tasks]
    schedule = Schedule(Program("wide", tasks=tasks), (Lane("main"),), tuple(steps))
    with pytest.raises(ScheduleError, match=r"SG707.*600 groups of tasks and 599 edges(.|\n)*\.svg or \.dot"):
        render(schedule, "mmd")


def test_an_edge_begins_at_the_task_before_its_record() -> None:
    steps: list[Step] = [Launch("a", "main"), Launch("b", "main"), Record("e", "main", "b"), Launch("c", "main")]
    steps += [Wait("e", "s"), Launch("d", "s")]
    tasks = tuple(Task(name, "op") for name in "abcd")
    found = dependencies(Schedule(Program("p", tasks=tasks), (Lane("main"), Lane("s")), tuple(steps)))
    assert [(found.nodes[e.earlier].text, found.nodes[e.later].text) for e in found.edges if not e.fifo] == [("b", "d")]
