"""Small programs and schedules written as text, and a labelled corpus: each story with exactly the violations that it has.

A task reads `name: reads -> writes`, with `+x` for an update, `name!` for a host task, `name/copy` for a pin, and `after=a` words:

    story("load/copy: p -> x | norm: x +acc -> y", tensors="input p, buffer acc[8], view half=acc[0:4]", steps=...)

A name that is written and not declared is a device value; `value y cpu` makes it host memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from streamgraph.model import Argument, Family, Kind, Output, Program, Task, Tensor, TensorType
from streamgraph.schedule import HostWait, Lane, Schedule, parse_steps
from streamgraph.verify import Violation


def program(tasks: str, tensors: str = "", outputs: str = "") -> Program:
    """A Program from its text."""
    declared: dict[str, Tensor] = {}
    families: list[Family] = []
    for text in filter(None, (part.strip() for part in tensors.split(","))):
        kind, rest = text.split(" ", 1)
        device = "cpu" if rest.endswith(" cpu") else "device"
        found = re.fullmatch(r"(\w+)(?:=(\w+))?(?:\[([\d:; ]*)\])?(?:/(\d+))?", rest.removesuffix(" cpu"))
        assert found, rest
        name, base, sizes, slots = found.groups()
        if kind == "view":
            index = tuple(tuple(map(int, part.split(":"))) if ":" in part else int(part) for part in sizes.split(";"))
            declared[name] = Tensor(name, Kind.VIEW, base=base, index=index)
        elif kind == "ring":
            members = tuple(f"{name}@{number}" for number in range(int(sizes)))
            for member in members:
                declared[member] = Tensor(member, Kind.BUFFER, TensorType("f32", (4,)), device)
            families.append(Family(name, (("layer", tuple(range(int(sizes)))),), members, int(slots), "layer"))
        else:
            type_ = TensorType("f32", tuple(int(part) for part in sizes.split(";"))) if sizes else None
            declared[name] = Tensor(name, Kind(kind), type_, device)
    made: list[Task] = []
    for text in filter(None, (part.strip() for part in tasks.split("|"))):
        head, body = (part.strip() for part in text.split(":", 1))
        name, _, stream = head.rstrip("!").partition("/")
        left, _, right = body.partition("->")
        words = left.split()
        after = tuple(word.removeprefix("after=") for word in words if word.startswith("after="))
        reads = [word for word in words if word[0] != "+" and not word.startswith("after=")]
        updates = [word[1:] for word in words if word[0] == "+"]
        for written in right.split():
            declared.setdefault(written, Tensor(written, Kind.VALUE))
        groups = [tuple(Argument((word,)) for word in group) for group in (reads, right.split(), updates)]
        made.append(Task(name, "work", *groups, after=after, stream=stream or None, host=head.endswith("!")))
    return Program("story", tuple(declared.values()), tuple(made), (), tuple(Output(o, o) for o in outputs.split()), tuple(families))


def schedule(of: Program, steps: str) -> Schedule:
    """A Schedule from the text of its steps (`;` or lines between them); the lanes are those that occur."""
    parsed = parse_steps(steps.replace(";", "\n").splitlines())
    names = dict.fromkeys(["main"])
    for step in parsed:
        names["host" if isinstance(step, HostWait) else step.lane] = None
    ordered = [name for name in names if name != "host"] + ["host"] * ("host" in names)
    return Schedule(of, tuple(Lane(name) for name in ordered), parsed)


@dataclass(frozen=True)
class Story:
    """`expected` is what `facts` says of each violation; a clean story expects none."""

    name: str
    text: str
    schedule: Schedule
    expected: frozenset[tuple[str, str, str, str]]


def story(
    name: str, tasks: str, steps: str, tensors: str = "", outputs: str = "", expected: tuple[tuple[str, str, str, str], ...] = ()
) -> Story:
    """A named program and schedule, with what the verifier must say."""
    return Story(name, steps, schedule(program(tasks, tensors, outputs), steps), frozenset(expected))


def facts(violation: Violation) -> tuple[str, str, str, str]:
    """(code, kind, earlier, later) of a race; (code, kind, task, subject) of anything else."""
    if violation.code == "SG703":
        return violation.code, violation.kind, violation.earlier, violation.later
    return violation.code, violation.kind, violation.earlier or violation.later, violation.subject


# One fork and join: norm reads on s1 what load makes on main; y is handed out from main.
FORK = ("load: p -> x | norm: x -> y | use: y -> z", "input p", "z")
FORK_STEPS = """
launch load @main; record e0 @main # after load
wait e0 @s1; launch norm @s1; record e1 @s1 # after norm
wait e1 @main; launch use @main; release x.1 @main
"""
# y is made on s1 and read on main, so s1 learns that it is free only from the next run's entry.
PENDING = """
record e9 @main # after entry
wait e9 @s1; release y.1 @s1 previous
"""
CHAIN = "load: p -> x | mul: x +x -> y | norm: y -> z"
RING = ("load0: -> w@0 | use0: w@0 -> a | load1: -> w@1 | use1: w@1 -> b | load2: -> w@2 | use2: w@2 -> c", "ring w[3]/2")
RING_STEPS = """
record e9 @main # after entry
wait e9 @copy; launch load0 @copy; record e0 @copy # after load0
wait e0 @main; launch use0 @main; release a.1 @main; record e1 @main # after use0
launch load1 @copy; record e2 @copy # after load1
wait e2 @main; launch use1 @main; release b.1 @main
wait e1 @copy; launch load2 @copy; record e3 @copy # after load2
wait e3 @main; launch use2 @main; release c.1 @main
"""
REFILL = ("fill!: -> st | upload/copy: st -> x", "buffer st cpu")
REFILL_STEPS = """
record e9 @main # after entry
hostwait e1 previous; launch fill @host; record e0 @host # after fill
wait e9 @copy; release x.1 @copy previous; wait e0 @copy; launch upload @copy; record e1 @copy # after upload
wait e1 @main
"""
SLICES = ("left: -> half0 | right: -> half1 | join: bucket -> z", "buffer bucket[8], view half0=bucket[0:4], view half1=bucket[4:8]", "z")
SLICES_STEPS = """
record e9 @main # after entry
wait e9 @s1; launch left @s1; record e0 @s1 # after left
wait e9 @s2; launch right @s2; record e1 @s2 # after right
wait e0 @main; wait e1 @main; launch join @main
"""
HALVES = ("whole: -> b | one: -> left | two: right -> z", "buffer b[4], view left=b[0:2], view right=b[2:4]", "z")
HALVES_STEPS = """
record e9 @main # after entry
launch whole @main; record e0 @main # after whole
wait e0 @s1; launch one @s1; record e1 @s1 # after one
wait e0 @s2; launch two @s2; record e2 @s2 # after two
wait e1 @main; wait e2 @main; record_stream z.1 @main
"""
DOWNLOAD = ("mm: p -> h | down/copy: h -> r", "input p, value r cpu", "r")
DOWNLOAD_STEPS = """
launch mm @main; record e0 @main # after mm
wait e0 @copy; launch down @copy; record e1 @copy # after down
wait e1 @main; release h.1 @main; hostwait e1
"""
SIDE_OUTPUT = ("mm: p -> h", "input p", "h")
SIDE_OUTPUT_STEPS = """
record e9 @main # after entry
wait e9 @s1; launch mm @s1; record e0 @s1 # after mm
wait e0 @main; record_stream h.1 @main
"""


def without(steps: str, *lines: str) -> str:
    """The steps without those that begin like this; each must be there once."""
    kept = [line.strip() for line in steps.replace(";", "\n").splitlines()]
    for line in lines:
        matching = [index for index, text in enumerate(kept) if text.startswith(line)]
        assert len(matching) == 1, (line, kept)
        del kept[matching[0]]
    return "\n".join(kept)


def fork(name: str, steps: str, *expected: tuple[str, str, str, str]) -> Story:
    return story(name, FORK[0], steps, FORK[1], FORK[2], expected)


FORKED = PENDING + FORK_STEPS


def changed(steps: str, old: str, new: str) -> str:
    """The steps with one place changed; it must be there once."""
    text, old, new = ("\n".join(filter(None, map(str.strip, part.replace(";", "\n").splitlines()))) for part in (steps, old, new))
    assert text.count(old) == 1, (old, text)
    return text.replace(old, new)


CLEAN = (
    story("nothing at all", "", ""),
    story("one launch", "a: p -> x", "launch a @main", "input p", "x"),
    story("one lane needs no wait", CHAIN, "launch load @main; launch mul @main; release x.1 @main; launch norm @main; release y.1 @main",
          "input p", "z"),
    fork("branch and join", FORKED),
    story("disjoint slices meet in the join only", SLICES[0], SLICES_STEPS, *SLICES[1:]),
    story("a host output is waited for", DOWNLOAD[0], DOWNLOAD_STEPS, *DOWNLOAD[1:]),
    story("pinned memory is refilled after the copy of the run before", REFILL[0], REFILL_STEPS, *REFILL[1:]),
    story("an output of a side lane", SIDE_OUTPUT[0], SIDE_OUTPUT_STEPS, *SIDE_OUTPUT[1:]),
    story("two turns of a ring slot on two lanes", RING[0], RING_STEPS, RING[1]),
    story(
        "record_stream of one lane covers the lane that it waited for",
        "make: p -> x | far: x -> f | near: x f -> g",
        """
        launch make @main; record e0 @main # after make
        wait e0 @s1; release f.1 @s1 previous; launch far @s1; record e1 @s1 # after far
        wait e0 @s2; wait e1 @s2; release g.1 @s2 previous; launch near @s2; record e2 @s2 # after near
        record_stream x.1 @s2; release x.1 @main; wait e2 @main
        """,
        "input p",
    ),
    story(
        "a host task reads after its hostwait and a device task after the host",
        "mm: p -> h | down/copy: h -> r | think!: r -> s | up/copy: s -> t",
        """
        launch mm @main; record e0 @main # after mm
        wait e0 @copy; release t.1 @copy previous; launch down @copy; record e1 @copy # after down
        hostwait e3 previous; release s.1 @host previous; hostwait e1; launch think @host; release r.1 @host; record e2 @host # after think
        wait e2 @copy; launch up @copy; record e3 @copy # after up
        wait e3 @main; release h.1 @main
        """,
        "input p, value r cpu, value s cpu",
    ),
    story("a slice that is overwritten does not stand for the rest", HALVES[0], HALVES_STEPS, *HALVES[1:]),
    fork(
        "what the run before left and recorded needs no wait of its own lane",
        changed(FORKED, "wait e9 @s1; release y.1 @s1 previous", "release y.1 @s1 previous; wait e9 @s1") + "\nrecord_stream y.1 @main",
    ),
    story(
        "after orders without data",
        "a: p -> x | b: p after=a -> y",
        """
        launch a @main; record e0 @main # after a
        release x.1 @main; wait e0 @s1; release y.1 @s1 previous; launch b @s1; record e1 @s1 # after b
        wait e1 @main
        """,
        "input p",
    ),
)

RACY = (
    fork("the wait for the producer is missing", without(FORKED, "wait e0"), ("SG703", "RAW", "load", "norm")),
    fork("the wait for the reader is missing", without(FORKED, "wait e1"), ("SG703", "RAW", "norm", "use")),
    fork(
        "the record comes before its task",
        changed(FORKED, "launch load @main; record e0 @main # after load", "record e0 @main # after load\nlaunch load @main"),
        ("SG704", "event", "load", "e0"), ("SG703", "RAW", "load", "norm"),
    ),
    fork(
        "the wait comes before the record",
        changed(without(FORKED, "record e0"), "launch norm @s1;", "launch norm @s1; record e0 @main # after load"),
        ("SG704", "event", "", "e0"), ("SG703", "RAW", "load", "norm"),
    ),
    fork("nothing records the event", without(FORKED, "record e0"), ("SG704", "event", "", "e0"), ("SG703", "RAW", "load", "norm")),
    fork(
        "the event is recorded on the wrong lane",
        changed(FORKED, "record e0 @main # after load", "record e0 @s1 # after load"),
        ("SG704", "event", "load", "e0"), ("SG703", "RAW", "load", "norm"),
    ),
    fork(
        "one event is recorded twice and the later record counts",
        changed(FORKED, "wait e0 @s1", "record e0 @s1 # after load\nwait e0 @s1"),
        ("SG704", "event", "load", "e0"), ("SG703", "RAW", "load", "norm"),
    ),
    fork(
        "the reader is issued first",
        """
        record e9 @main # after entry
        wait e9 @s1; release y.1 @s1 previous; launch norm @s1; record e1 @s1 # after norm
        wait e1 @main; launch load @main; launch use @main; release x.1 @main
        """,
        ("SG703", "RAW", "load", "norm"),
    ),
    fork("a value is released before the lane knows", changed(FORKED, "wait e1 @main; launch use @main; release x.1 @main",
         "release x.1 @main; wait e1 @main; launch use @main"), ("SG705", "release", "norm", "x.1")),
    fork("a value is used after its release",
         changed(without(FORKED, "release x.1"), "launch load @main", "launch load @main; release x.1 @main"),
         ("SG705", "release", "norm", "x.1")),
    fork("a value is released on a lane that did not make it", changed(FORKED, "release x.1 @main", "release x.1 @s1"),
         ("SG705", "release", "", "x.1")),
    fork("a value is released twice", FORKED + "\nrelease x.1 @main", ("SG705", "release", "", "x.1")),
    fork("a value is never released", without(FORKED, "release x.1"), ("SG705", "release", "", "x.1")),
    fork("an output is released", FORKED + "\nrelease z.1 @main", ("SG705", "release", "", "z.1")),
    fork("an input is released", FORKED + "\nrelease p @main", ("SG705", "release", "", "p")),
    fork("what the run before left is released before the lane waits", changed(FORKED, "wait e9 @s1; release y.1 @s1 previous",
         "release y.1 @s1 previous; wait e9 @s1"), ("SG705", "release", "use", "y.1")),
    fork("a record_stream of the lane that allocated", changed(FORKED, "release x.1", "record_stream x.1 @main; release x.1"),
         ("SG706", "record_stream", "", "x.1")),
    fork("a record_stream after the release", FORKED + "\nrecord_stream x.1 @s1", ("SG706", "record_stream", "", "x.1")),
    fork("a record_stream of memory that stays", FORKED + "\nrecord_stream p @s1", ("SG706", "record_stream", "", "p")),
    fork("a record_stream before there is memory", "record_stream x.1 @s1\n" + FORKED, ("SG706", "record_stream", "", "x.1")),
    fork("a task is missing", without(FORKED, "launch use"), ("SG702", "structure", "use", "use")),
    fork("a task is launched twice", FORKED + "\nlaunch use @main", ("SG702", "structure", "use", "use")),
    fork("a task is unknown", FORKED + "\nlaunch abuse @main", ("SG702", "structure", "abuse", "abuse")),
    fork("a storage is unknown", FORKED + "\nrelease q.1 @main; record_stream q.1 @main",
         ("SG702", "structure", "", "q.1")),
    fork("a device task is launched on the host", changed(FORKED, "launch use @main", "launch use @host"),
         ("SG702", "structure", "use", "use"), ("SG703", "RAW", "norm", "use"), ("SG703", "exit", "use", "exit")),
    story("the copy of the run before may still read the pinned memory", REFILL[0], without(REFILL_STEPS, "hostwait e1"), REFILL[1],
          expected=(("SG703", "WAR", "upload", "fill"),)),
    story("the hostwait for the run before comes after the record", REFILL[0],
          without(REFILL_STEPS, "hostwait e1") + "\nhostwait e1 previous", REFILL[1],
          expected=(("SG704", "event", "", "e1"), ("SG703", "WAR", "upload", "fill"))),
    story("the copy does not wait for the host", REFILL[0], without(REFILL_STEPS, "wait e0"), REFILL[1],
          expected=(("SG703", "RAW", "fill", "upload"),)),
    story("the caller reads a host output too early", DOWNLOAD[0], without(DOWNLOAD_STEPS, "hostwait e1"), *DOWNLOAD[1:],
          expected=(("SG703", "RAW", "down", "host"),)),
    story("host memory is told to the allocator", DOWNLOAD[0], DOWNLOAD_STEPS + "\nrecord_stream r.1 @copy", *DOWNLOAD[1:],
          expected=(("SG706", "record_stream", "", "r.1"),)),
    story("a pinned task is on another lane", DOWNLOAD[0], DOWNLOAD_STEPS.replace("@copy", "@s1"), *DOWNLOAD[1:],
          expected=(("SG702", "structure", "down", "down"),)),
    story("exit does not join a lane", SIDE_OUTPUT[0], without(SIDE_OUTPUT_STEPS, "wait e0"), *SIDE_OUTPUT[1:],
          expected=(("SG703", "exit", "mm", "exit"),)),
    story("a lane does not wait for entry", SIDE_OUTPUT[0], without(SIDE_OUTPUT_STEPS, "wait e9"), *SIDE_OUTPUT[1:],
          expected=(("SG703", "entry", "entry", "mm"),)),
    story("entry is recorded too late", "first: p -> h | mm: p -> g",
          "launch first @main; record e9 @main # after entry\nwait e9 @s1; release g.1 @s1 previous; launch mm @s1\n"
          "record e0 @s1 # after mm\nwait e0 @main", *SIDE_OUTPUT[1:], expected=(("SG704", "event", "entry", "e9"),)),
    story("an output of a side lane is not told to the allocator", SIDE_OUTPUT[0], without(SIDE_OUTPUT_STEPS, "record_stream"),
          *SIDE_OUTPUT[1:], expected=(("SG705", "release", "exit", "h.1"),)),
    story("one slice is not waited for", SLICES[0], without(SLICES_STEPS, "wait e1"), *SLICES[1:],
          expected=(("SG703", "RAW", "right", "join"),)),
    story("a view is read while the whole is updated", "scale: +bucket | peek: part -> z",
          "record e9 @main # after entry\nwait e9 @s1; launch scale @s1; record e0 @s1 # after scale\nlaunch peek @main; wait e0 @main",
          "input bucket[8], view part=bucket[2:3]", "z", expected=(("SG703", "RAW", "scale", "peek"),)),
    story("a resource orders what has no tensor in common", "a: +rng p -> x | b: +rng p -> y",
          "record e9 @main # after entry\nlaunch a @main; wait e9 @s1; launch b @s1; record e0 @s1 # after b\n"
          "wait e0 @main; record_stream y.1 @main", "input p, resource rng", "x y", expected=(("SG703", "RAW", "a", "b"),)),
    story("the next occupant of a ring slot comes too early", RING[0], without(RING_STEPS, "wait e1"), RING[1],
          expected=(("SG703", "WAR", "use0", "load2"),)),
    story("after is not kept", "a: p -> x | b: p after=a -> y",
          "record e9 @main # after entry\nlaunch a @main; release x.1 @main; wait e9 @s1; release y.1 @s1 previous; launch b @s1\n"
          "record e1 @s1 # after b\nwait e1 @main", "input p", expected=(("SG703", "after", "a", "b"),)),
    story("two host tasks change places", "say!: -> | tell!: ->",
          "launch tell @host; launch say @host; record e0 @host # after say\nwait e0 @main",
          expected=(("SG703", "host order", "say", "tell"),)),
    story("a slice that is overwritten does not stand for the rest, which is not waited for",
          HALVES[0], without(HALVES_STEPS, "wait e0 @s2"), *HALVES[1:], expected=(("SG703", "RAW", "whole", "two"),)),
    story("a host task is launched on a stream", "say!: ->", "launch say @main", expected=(("SG702", "structure", "say", "say"),)),
    fork("a record_stream of the host", changed(FORKED, "release x.1", "record_stream x.1 @host; release x.1"),
         ("SG706", "record_stream", "", "x.1")),
    fork("an event stands for a task that does not exist", FORKED + "\nrecord e5 @main # after abuse",
         ("SG702", "structure", "abuse", "e5")),
    fork("the caller's work is recorded on a side lane", "record e5 @s1 # after entry\n" + FORKED, ("SG704", "event", "entry", "e5")),
    story("the hostwait for the run before waits for what nothing records", REFILL[0], REFILL_STEPS + "\nhostwait e7 previous", REFILL[1],
          expected=(("SG704", "event", "", "e7"),)),
    story("of two readers that changed places the last to run counts", "one: left -> | two: left -> | fill: -> left",
          """
          record e9 @main # after entry
          wait e9 @s1; launch two @s1; record e0 @s1 # after two
          launch one @s1; record e1 @s1 # after one
          wait e0 @main; launch fill @main; wait e1 @main
          """,
          "buffer b[4], view left=b[0:2]", expected=(("SG703", "WAR", "one", "fill"),)),
    story("exit does not join the host", "say!: ->", "launch say @host", expected=(("SG703", "exit", "say", "exit"),)),
    story("the copy through pinned memory is not waited for", "off/d2h: act -> pin | back/h2d: pin -> act2",
          """
          record e9 @main # after entry
          wait e9 @d2h; launch off @d2h; record e0 @d2h # after off
          wait e9 @h2d; launch back @h2d; record e1 @h2d # after back
          wait e0 @main; wait e1 @main; record_stream act2.1 @main
          """,
          "input act, buffer pin cpu", "act2", expected=(("SG703", "RAW", "off", "back"),)),
    story("an overwrite does not wait for the last reader", "read: b -> x | fill: -> b",
          "record e9 @main # after entry\nlaunch read @main; wait e9 @s1; launch fill @s1; record e0 @s1 # after fill\nwait e0 @main",
          "buffer b[8]", "x", expected=(("SG703", "WAR", "read", "fill"),)),
    story("two overwrites change places", "fill: -> b | again: -> b", "launch again @main; launch fill @main", "buffer b[8]",
          expected=(("SG703", "WAW", "fill", "again"),)),
)
