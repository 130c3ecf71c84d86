"""The order of independent declarations is a way of writing: another one gives the same waits, events and releases under the same names."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamgraph.hazards import task_graph
from streamgraph.model import Kind, Program, Task
from streamgraph.plan import plan
from streamgraph.schedule import HostWait, Release, Schedule, Wait
from tests.programs import random_program
from tests.support import recorded, waited


def pinned(data: st.DataObject, rings: bool = False) -> Program:
    """A random program without rings whose device tasks all have a lane, since assignment may break ties by order."""
    program = random_program(lambda n: data.draw(st.integers(0, n - 1)), tasks=10, rings=rings)
    tasks = tuple(t if t.host or t.stream is not None else replace(t, stream=("main", "left", "right")[i % 3])
                  for i, t in enumerate(program.tasks))  # fmt: skip
    return replace(program, tasks=tasks)


def names(program: Program, task: Task, *, changed: bool) -> set[str]:
    """The tensors that a task touches, or only those that it writes or updates, as the names of their memory."""
    entries = (*task.writes, *task.updates) if changed else (*task.reads, *task.writes, *task.updates)
    return {program.tensor_named[name].base or name for entry in entries for name in entry.tensors}


def independent(program: Program, first: Task, second: Task) -> bool:
    """Whether two tasks share no name that either of them writes: then neither the order of bytes nor that of versions says anything."""
    mine, theirs = (names(program, task, changed=True) for task in (first, second))
    return not (mine & names(program, second, changed=False) or theirs & names(program, first, changed=False))


def shape(schedule: Schedule) -> tuple[object, ...]:
    releases = sorted((step.storage, step.lane, step.previous) for step in schedule.steps if isinstance(step, Release))
    return waited(schedule), recorded(schedule), schedule.lane_of, releases


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_swapping_two_neighbours_that_are_independent_and_on_two_lanes_changes_no_wait(data: st.DataObject) -> None:
    program = pinned(data)
    tasks, graph = program.tasks, task_graph(program)
    places = [
        place for place, (one, two) in enumerate(pairwise(tasks))
        if not graph.has_edge(place, place + 1) and one.stream != two.stream and independent(program, one, two)
    ]  # fmt: skip
    assume(places)
    place = data.draw(st.sampled_from(places))
    swapped = (*tasks[:place], tasks[place + 1], tasks[place], *tasks[place + 2 :])
    before, after = plan(program), plan(replace(program, tasks=swapped))
    # What a host task must wait for across two runs depends on what has been issued before it, which swapping may change.
    assume(not any(isinstance(step, HostWait) and step.previous for step in (*before.steps, *after.steps)))
    assert list(before.lane_of) != list(after.lane_of)
    assert shape(before) == shape(after)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), rings=st.booleans())
def test_the_order_in_which_tensors_are_declared_changes_no_wait(data: st.DataObject, rings: bool) -> None:
    program = pinned(data, rings)
    order = data.draw(st.permutations(range(len(program.tensors))))
    other = replace(program, tensors=tuple(program.tensors[index] for index in order))
    assert shape(plan(program)) == shape(plan(other))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_new_names_for_tensors_rename_the_reasons_and_nothing_else(data: st.DataObject) -> None:
    program = pinned(data)
    new = {tensor.name: f"q{number:03}" for number, tensor in enumerate(reversed(program.tensors)) if ":" not in tensor.name}

    def renamed(task: Task) -> Task:
        groups = ([replace(entry, tensors=tuple(new.get(n, n) for n in entry.tensors)) for entry in group]
                  for group in (task.reads, task.writes, task.updates))  # fmt: skip
        reads, writes, updates = (tuple(group) for group in groups)
        return replace(task, reads=reads, writes=writes, updates=updates)

    tensors = tuple(replace(t, name=new.get(t.name, t.name), base=new.get(t.base or "", t.base)) for t in program.tensors)
    outputs = tuple(replace(output, tensor=new.get(output.tensor, output.tensor)) for output in program.outputs)
    other = replace(program, tensors=tensors, tasks=tuple(map(renamed, program.tasks)), outputs=outputs)
    before, after = plan(program), plan(other)
    assert any(tensor.kind is not Kind.RESOURCE for tensor in tensors)
    assert (waited(before), recorded(before), before.lane_of) == (waited(after), recorded(after), after.lane_of)
    assert [type(step) for step in before.steps] == [type(step) for step in after.steps]
    reasons = [[reason.kind for reason in step.reasons] for step in before.steps if isinstance(step, Wait)]
    assert reasons == [[reason.kind for reason in step.reasons] for step in after.steps if isinstance(step, Wait)]
