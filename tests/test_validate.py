"""The checks that both front ends share: each mistake is found once, with its code, and what is legal is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.errors import CATALOGUE, Location
from streamgraph.model import OUTPUT_PREFIX, Argument, Family, Kind, Output, Program, Stream, Task, Tensor, TensorType
from streamgraph.names import name_fault, near, operator_fault
from streamgraph.storages import trace
from streamgraph.validate import check, finish
from tests.programs import random_program

F = TensorType("f32", (8,))


def args(*names: str) -> tuple[Argument, ...]:
    return tuple(Argument((name,)) for name in names)


def task(name: str, reads: str = "", writes: str = "", updates: str = "", **more: object) -> Task:
    operator = str(more.pop("operator", "mix"))
    return replace(Task(name, operator, *(args(*names.split()) for names in (reads, writes, updates))), **more)  # type: ignore[arg-type]


X = Tensor("x", Kind.INPUT, F)
B = Tensor("b", Kind.BUFFER, F)
V = Tensor("v", Kind.VALUE)
R = Tensor("r", Kind.RESOURCE)
HOST = Tensor("h", Kind.BUFFER, F, "cpu", True)
PAGED = Tensor("p", Kind.BUFFER, F, "cpu")
VIEW = Tensor("b.low", Kind.VIEW, TensorType("f32", (4,)), base="b", index=((0, 4),))
RING = tuple(Tensor(f"w@{number}", Kind.BUFFER, F) for number in range(3))
WRITE_RING = tuple(task(f"fill@{number}", writes=f"w@{number}") for number in range(3))
ALL = (X, B, V, R, HOST, PAGED, VIEW)


def codes(*tensors: Tensor, tasks: tuple[Task, ...] = (), **more: object) -> list[str]:
    return [problem.code for problem in check(Program("p", tensors, tasks, **more))]  # type: ignore[arg-type]


def family(name: str = "w", slots: int | None = 2, over: str = "i", items: tuple[int | str, ...] = (0, 1, 2)) -> Family:
    return Family(name, (("i", items),), tuple(f"{name}@{item}" for item in items), slots, over)


WRONG_TASKS = [
    ("unknown tensor", task("t", "xx"), "SG201"),
    ("twice in reads", task("t", "x x"), "SG206"),
    ("twice in writes", task("t", "", "v v"), "SG206"),
    ("updated and read", task("t", "b", "", "b"), "SG206"),
    ("updated and written", task("t", "", "b", "b"), "SG206"),
    ("buffer read and written", task("t", "b", "b"), "SG302"),
    ("view read and written", task("t", "b.low", "b.low"), "SG302"),
    ("twice in one list", replace(task("t"), reads=(Argument(("x", "x"), True),)), "SG206"),
    ("after nothing", task("t", after=("u",)), "SG203"),
    ("after itself", task("t", after=("t",)), "SG207"),
    ("value read too early", task("t", "v"), "SG301"),
    ("negative cost", task("t", cost=-1.0), "SG104"),
    ("endless cost", task("t", cost=float("inf")), "SG104"),
    ("cost is no number", task("t", cost=float("nan")), "SG104"),
    ("reserved lane", task("t", stream="host"), "SG204"),
    ("no lane's name", task("t", stream="a b"), "SG204"),
    ("host and a lane", task("t", host=True, stream="main"), "SG212"),
    ("no operator's name", task("t", operator="os:system"), "SG204"),
    ("hidden operator", task("t", operator="a.__b__"), "SG403"),
    ("copy of two", task("t", "x b", "v", operator="copy"), "SG212"),
    ("copy to nothing", task("t", "x", operator="copy"), "SG212"),
    ("copy with a constant", task("t", "x", "v", operator="copy", const=(("a", 1),)), "SG212"),
    ("copy of a resource", task("t", "r", "v", operator="copy"), "SG212"),
    ("copy of another shape", task("t", "x", "b.low", operator="copy"), "SG212"),
    ("copy between host tensors on a lane", task("t", "p", "h", operator="copy", stream="s"), "SG212"),
    ("copy from paged memory", task("t", "p", "v", operator="copy"), "SG306"),
    ("copy to paged memory", task("t", "x", "p", operator="copy"), "SG306"),
    ("reserved name", task("exit"), "SG204"),
    ("reserved family", task("main@0"), "SG204"),
    ("no name", task("a b"), "SG204"),
]
RIGHT_TASKS = [
    task("t", "x", "v"),
    task("t", "x", "x"),  # an input is rebound
    task("t", "x b.low", "", "r"),
    task("t", "h", host=True),
    task("t", "h", "b", operator="copy", stream="main"),
    task("t", "p", "h", operator="copy"),
    task("t", operator="aten._softmax"),
    task("t", operator="<lambda>", function=max),
    task("t", "b", "b.low"),  # a part of what is read: declared, so ordered
    task("t@0@front", cost=0.0),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "code"), [case[1:] for case in WRONG_TASKS], ids=[case[0] for case in WRONG_TASKS])
def test_a_wrong_task_is_found_once(wrong: Task, code: str) -> None:
    assert codes(*ALL, tasks=(wrong,)) == [code]


@pytest.mark.parametrize("right", RIGHT_TASKS, ids=str)
def test_a_right_task_is_left_alone(right: Task) -> None:
    assert codes(*ALL, tasks=(right,)) == []


WRONG_TENSORS = [
    ("buffer without type", Tensor("t", Kind.BUFFER), "SG307"),
    ("resource with type", Tensor("t", Kind.RESOURCE, F), "SG212"),
    ("resource on the host", Tensor("t", Kind.RESOURCE, device="cpu"), "SG212"),
    ("pinned resource", Tensor("t", Kind.RESOURCE, pinned=True), "SG212"),
    ("init of a value", Tensor("t", Kind.VALUE, init="zeros"), "SG212"),
    ("init of a view", replace(VIEW, name="t", init="zeros"), "SG212"),
    ("unknown init", Tensor("t", Kind.INPUT, init="noise"), "SG105"),
    ("unknown device", Tensor("t", Kind.INPUT, device="tpu:1"), "SG105"),
    ("pinned on the device", Tensor("t", Kind.INPUT, pinned=True), "SG212"),
    ("view of nothing", replace(VIEW, name="t", base="nothing"), "SG201"),
    ("view of a value without type", replace(VIEW, name="t", base="v"), "SG307"),
    ("view of a view", replace(VIEW, name="t", base="b.low"), "SG208"),
    ("view of a resource", replace(VIEW, name="t", base="r"), "SG208"),
    ("view past the end", replace(VIEW, name="t", index=((0, 9),)), "SG208"),
    ("view of too many dimensions", replace(VIEW, name="t", index=((0, 4), 0)), "SG208"),
    ("base of no view", Tensor("t", Kind.BUFFER, F, base="b"), "SG212"),
    ("no name", Tensor("a-b", Kind.INPUT), "SG204"),
    ("twice", Tensor("x", Kind.INPUT), "SG205"),
]


@pytest.mark.parametrize(("wrong", "code"), [case[1:] for case in WRONG_TENSORS], ids=[case[0] for case in WRONG_TENSORS])
def test_a_wrong_tensor_is_found_once(wrong: Tensor, code: str) -> None:
    assert codes(*ALL, wrong) == [code]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (family(slots=0), "SG105"),
        (family(over="layer"), "SG212"),
        (family(slots=4), "SG304"),
        (replace(family(), members=("w@0", "w@1")), "SG202"),
        (replace(family(), members=("w@0", "w@1", "w@7")), "SG202"),
    ],
    ids=["no slot", "unknown key", "dead slot", "too few members", "unknown member"],
)
def test_a_wrong_ring_is_found_once(wrong: Family, code: str) -> None:
    assert codes(*RING, tasks=WRITE_RING, families=(wrong,)) == [code]


def test_slots_are_for_buffers() -> None:
    members = tuple(replace(tensor, kind=Kind.INPUT) for tensor in RING)
    assert codes(*members, families=(family(),)) == ["SG212"]
    assert codes(*RING, tasks=WRITE_RING, families=(family(),)) == []
    assert codes(*RING, tasks=WRITE_RING, families=(family(over="iteration"),)) == []


def test_a_member_of_a_ring_is_written_before_it_is_read() -> None:
    early = (task("use", "w@2"), *WRITE_RING)
    assert codes(*RING, tasks=early, families=(family(),)) == ["SG301"]


def test_a_member_that_does_not_exist_is_told_from_an_unknown_tensor() -> None:
    (problem,) = check(Program("p", RING, (task("t", "w@7"),), families=(family(slots=None),)))
    assert (problem.code, problem.message) == ("SG202", "task 't' reads 'w@7', but 'w' has 3 members")
    assert problem.help == "they are w@0, w@1, w@2"
    (problem,) = check(Program("p", RING, (task("t", "w"),), families=(family(slots=None),)))
    assert problem.help == "write w@* for all of them"


def test_the_near_name_is_suggested() -> None:
    (problem,) = check(Program("p", (Tensor("frame", Kind.INPUT),), (task("t", "frmae"),)))
    assert problem.help == "did you mean 'frame'?"
    (problem,) = check(Program("p", (), (task("load"), task("t", after=("laod",)))))
    assert problem.help == "did you mean 'load'?"


def test_later_tasks_cannot_be_waited_for() -> None:
    assert codes(tasks=(task("a", after=("b",)), task("b", after=("a",)))) == ["SG207"]


def test_a_family_and_a_tensor_cannot_share_a_name() -> None:
    assert codes(*RING, Tensor("w", Kind.INPUT), tasks=WRITE_RING, families=(family(),)) == ["SG205"]
    alone = Family("b", (), ("b",), 2)
    assert codes(B, tasks=(task("t", writes="b"),), families=(alone,)) == []


def test_what_stands_twice_shows_where_it_stood_first() -> None:
    here, there = Location("f", 1), Location("f", 2)
    (problem,) = check(Program("p", (), (task("a", location=here), task("a", location=there))))
    assert (problem.code, problem.location, problem.related) == ("SG205", there, (("first here", here),))


@pytest.mark.parametrize("what", ["nothing", "r", "v"])
def test_an_output_is_a_tensor_that_is_written(what: str) -> None:
    place = Location("f", 9)
    (problem,) = check(Program("p", ALL, outputs=(Output(what, what),)), {f"output:{what}": place})
    assert (problem.code, problem.location) == ("SG210", place)


def test_streams_and_outputs_stand_once() -> None:
    assert codes(X, streams=(Stream("s"), Stream("s"))) == ["SG205"]
    assert codes(X, outputs=(Output("x", "x"), Output("x", "x"))) == ["SG205"]
    assert codes(streams=(Stream("host"),)) == ["SG204"]
    assert codes(streams=(Stream("main", "high"),)) == []


def test_nothing_follows_from_a_broken_declaration() -> None:
    program = Program("p", (Tensor("t", Kind.BUFFER), replace(VIEW, name="u", base="t")), (task("a", "t gone@3", "u"),))
    assert [problem.code for problem in check(program, broken={"t", "u", "gone"})] == []


def test_every_problem_has_a_known_code_and_a_remedy() -> None:
    tensors = (*ALL, *(case[1] for case in WRONG_TENSORS))
    for problem in check(Program("p", tensors, tuple(case[1] for case in WRONG_TASKS), outputs=(Output("q", "q"),))):
        assert problem.code in CATALOGUE
        assert problem.help, problem


def test_problems_come_in_the_order_of_the_file() -> None:
    tasks = tuple(task(f"t{line}", "nothing", location=Location("f", line)) for line in (3, 1, 2))
    assert [problem.location.line for problem in check(Program("p", (), tasks)) if problem.location] == [1, 2, 3]


# --- finish -------------------------------------------------------------------------------------------------------------------------


def finished(*outputs: str, tasks: tuple[Task, ...] = ()) -> Program:
    return finish(Program("p", ALL, tasks, outputs=tuple(Output(name, name) for name in outputs)))


@pytest.mark.parametrize("name", ["b", "x", "b.low", "h"])
def test_memory_that_stays_is_copied_for_the_caller(name: str) -> None:
    program = finished(name)
    source, copy = program.tensor_named[name], program.tensors[-1]
    assert copy == Tensor(f"output:{name}", Kind.VALUE, source.type, source.device, source.pinned)
    assert program.tasks == (task(f"output:{name}", name, f"output:{name}", operator="copy", host=source.device == "cpu"),)
    assert program.outputs == (Output(name, f"output:{name}"),)
    assert check(program) == ()


def test_values_go_out_as_they_are() -> None:
    made = task("t", "x", "v")
    assert finished("v", tasks=(made,)).tasks == (made,)
    rebound = task("t", "b", "x")
    assert finished("x", tasks=(rebound,)).tasks == (rebound,)  # the input's name stands for a value by now


def test_a_copy_between_host_tensors_is_a_host_task() -> None:
    (made,) = finished(tasks=(task("t", "p", "h", operator="copy"),)).tasks
    assert made.host
    (made,) = finished(tasks=(task("t", "p", "b", operator="copy"),)).tasks
    assert not made.host


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_finishing_makes_every_output_a_value_and_is_done_once(data: st.DataObject) -> None:
    program = random_program(lambda n: data.draw(st.integers(0, n - 1)))  # finished by Graph
    assert finish(program) == program
    assert [problem for problem in check(program) if problem.severity == "error"] == []
    accesses, _ = trace(program)
    assert len(accesses.outputs) == len(program.outputs)
    assert all(accesses.storages[storage].version > 0 for _, storage in accesses.outputs)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_program_with_one_thing_removed_never_crashes_the_check(data: st.DataObject) -> None:
    program = random_program(lambda n: data.draw(st.integers(0, n - 1)))
    gone = data.draw(st.integers(0, len(program.tensors) - 1))
    left = replace(program, tensors=program.tensors[:gone] + program.tensors[gone + 1 :])
    used = program.tensors[gone].name in {name for one in program.tasks for name in one.names()}
    views = any(tensor.base == program.tensors[gone].name for tensor in left.tensors)
    found = [problem.code for problem in check(finish(left)) if problem.severity == "error"]
    assert bool(found) >= (used or views)


# --- names --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "a.b.0", "_x", "Größe", "層", "0", "a" * 256])
def test_names_of_state_dicts_and_of_all_scripts_are_names(name: str) -> None:
    assert name_fault(name) is None
    assert name_fault(f"{name[:240]}@0@front", member=True) is None


NOT_NAMES = ["", " ", "a ", "a..b", ".a", "a.", "a-b", "a@0", "a\n", "e\u0301", "a\u200d", "a\u202eb", "a" * 257, "a:b", "a$b"]


@pytest.mark.parametrize("name", NOT_NAMES, ids=ascii)
def test_other_texts_are_not(name: str) -> None:
    assert name_fault(name) is not None


@pytest.mark.parametrize("name", ["run", "aten.mm", "aten.add.Tensor", "aten._softmax", "module.function"])
def test_operators_names(name: str) -> None:
    assert operator_fault(name) is None


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=5))
@settings(max_examples=100)
def test_a_suggestion_is_one_of_the_known_words(word: str, known: list[str]) -> None:
    assert near(word, known) in [None, *known]


def test_outputs_generated_names_are_for_outputs_only() -> None:
    assert codes(X, tasks=(task(f"{OUTPUT_PREFIX}x", "x"),)) == ["SG204"]
