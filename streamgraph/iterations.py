"""Iterations: a Program becomes the same program written out for several iterations, one after another.

What it makes is an ordinary Program, so that hazards, waits and proofs need no rules of their own (docs/design.md, section 5):

    a value, a view          anew in every iteration: `h` becomes `h#3`
    a buffer                 one for all iterations: state that survives
    a ring over iterations   one member per iteration, in `slots` slots
    a ring over a key        its members go on taking turns: iteration 1 follows iteration 0 around the same slots
    an input bound for good  one for all iterations
    an input per item        made in each iteration by a pseudo-task: `item#3` on main for device tensors, `source#3` on the host for
                             host tensors, which may be refilled once `inflight` iterations have passed
    an output                taken by a pseudo-task once `inflight` iterations are under way: `result#3` on main, `deliver#3` on the host

Where the caller is apart (`plan_loop.py`), `main` is the caller's stream and nothing else, and its host thread is a lane like any other.
The caller's streams on further devices are lanes too, with pseudo-tasks of their own: `item:1#3` brings what lies on cuda:1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from streamgraph.devices import first_device
from streamgraph.model import CPU, HOST, MAIN, Argument, Family, Kind, Output, Program, Task, Tensor, number_of

ITEM, SOURCE, RESULT, DELIVER = "item", "source", "result", "deliver"
PSEUDO = frozenset({ITEM, SOURCE, RESULT, DELIVER})
SEPARATOR = "#"  # no declared name holds one


@dataclass(frozen=True, slots=True)
class Unrolled:
    """A program written out. `blocks` has the names of each iteration's tasks, in order; the last one has the rest of the results."""

    program: Program
    blocks: tuple[tuple[str, ...], ...]


def at(name: str, iteration: int) -> str:
    """What a task, value or ring member of one iteration is called: `mm@0#3`."""
    return f"{name}{SEPARATOR}{iteration}"


def split(name: str) -> tuple[str, int]:
    """The name and the iteration that `at` joined; -1 for a name that belongs to all iterations."""
    base, separator, iteration = name.rpartition(SEPARATOR)
    return (base, int(iteration)) if separator else (name, -1)


def kind_of(task: str) -> str:
    """What kind of pseudo-task it is, on whichever device: "item" for `item:1`; for a task of the program nothing that is in PSEUDO."""
    return task.partition(":")[0]


def unroll(
    program: Program, count: int, per_item: frozenset[str], inflight: int, main: str = MAIN, caller: str = HOST,
    callers: Mapping[str, str] | None = None,
) -> Unrolled:  # fmt: skip
    """The program for `count` iterations. Each has its tasks in the order of declaration, which is part of their meaning.

    `per_item` names the inputs that each item brings; the others are bound for good. `main` is the lane of tasks that are pinned to
    `main`, `caller` the lane of the pseudo-tasks that the caller's host thread does, `callers` those of its streams on further devices.
    """
    writer = _Unroller(program, count, per_item, main, caller, callers or {})
    tasks: list[Task] = []
    blocks: list[tuple[str, ...]] = []
    for iteration in range(count):
        block = [*writer.sources(iteration), *writer.tasks(iteration)]
        if iteration >= inflight - 1:
            block += writer.results(iteration - inflight + 1)
        tasks += block
        blocks.append(tuple(task.name for task in block))
    rest = [task for iteration in range(max(0, count - inflight + 1), count) for task in writer.results(iteration)]
    made = Program(
        program.name, tuple(writer.tensors.values()), (*tasks, *rest), program.streams, tuple(writer.outputs),
        tuple(_rings(program, count, per_item, inflight)),
    )  # fmt: skip
    return Unrolled(made, (*blocks, tuple(task.name for task in rest)))


class _Unroller:
    def __init__(
        self, program: Program, count: int, per_item: frozenset[str], main: str, caller: str, callers: Mapping[str, str]
    ) -> None:
        self.program, self.per_item, self.main, self.caller = program, per_item, main, caller
        self.callers = {first_device(program): MAIN} | dict(callers)
        self.rings = {member for family in program.families if family.slots is not None for member in family.members}
        self.bound = bound = frozenset(tensor.name for tensor in program.inputs) - per_item
        self.written: dict[str, tuple[frozenset[str], frozenset[str]]] = {}  # bound inputs written before and after each task
        self.rebound: frozenset[str] = frozenset()
        for task in program.tasks:
            before = self.rebound
            self.rebound |= bound.intersection(name for entry in task.writes for name in entry.tensors)
            self.written[task.name] = (before, self.rebound)
        self.tensors: dict[str, Tensor] = {}
        self.outputs: list[Output] = []
        for iteration in range(count):
            for tensor in program.tensors:
                self._declare(tensor, iteration)

    def _declare(self, tensor: Tensor, iteration: int) -> None:
        name = at(tensor.name, iteration)
        if tensor.kind is Kind.VIEW:
            assert tensor.base is not None
            if self._changes(tensor.base):
                self.tensors[name] = replace(tensor, name=name, base=at(tensor.base, iteration))
            if tensor.base in self.bound or not self._changes(tensor.base):
                self.tensors.setdefault(tensor.name, tensor)
        elif tensor.kind is Kind.INPUT and tensor.name not in self.per_item:
            self.tensors.setdefault(tensor.name, tensor)
            if tensor.name in self.rebound:
                self.tensors[name] = replace(tensor, name=name, kind=Kind.VALUE, init=None)
        elif tensor.kind is Kind.INPUT:
            kind = Kind.BUFFER if tensor.device == "cpu" else Kind.VALUE
            self.tensors[name] = replace(tensor, name=name, kind=kind, init=None)
        elif tensor.kind is Kind.VALUE or tensor.name in self.rings:
            self.tensors[name] = replace(tensor, name=name)
        else:
            self.tensors.setdefault(tensor.name, tensor)

    def _changes(self, base: str) -> bool:
        """Whether the name stands for other memory in another iteration."""
        tensor = self.program.tensor_named[base]
        return tensor.kind is Kind.VALUE or base in self.rings or base in self.per_item or (
            tensor.kind is Kind.INPUT and base in self.rebound
        )

    def sources(self, iteration: int) -> Iterator[Task]:
        """The pseudo-tasks that bring an item. The one on the host is always there: it paces the host, item by item."""
        brought = [tensor for tensor in self.program.inputs if tensor.name in self.per_item]
        yield self._pseudo(SOURCE, iteration, self.caller, writes=[tensor.name for tensor in brought if tensor.device == CPU])
        for device, lane in self.callers.items():
            here = [tensor.name for tensor in brought if tensor.device == device]
            if here:
                yield self._pseudo(self._of_device(ITEM, device), iteration, lane, writes=here)

    def tasks(self, iteration: int) -> Iterator[Task]:
        """The program's own tasks. A bound input that a task writes is a value from there on, in this iteration only."""
        for task in self.program.tasks:
            before, after = self.written[task.name]
            yield replace(
                task,
                name=at(task.name, iteration),
                stream=self.main if task.stream == MAIN else task.stream,
                reads=self._renamed(task.reads, iteration, before),
                updates=self._renamed(task.updates, iteration, before),
                writes=self._renamed(task.writes, iteration, after),
                after=tuple(at(other, iteration) for other in task.after),
            )

    def _renamed(self, entries: tuple[Argument, ...], iteration: int, written: frozenset[str]) -> tuple[Argument, ...]:
        return tuple(
            replace(entry, tensors=tuple(self.name(tensor, iteration, written) for tensor in entry.tensors)) for entry in entries
        )

    def name(self, name: str, iteration: int, written: frozenset[str]) -> str:
        """What a name of the program stands for in an iteration, once the bound inputs `written` have become values."""
        base = self.program.tensor_named[name].base or name
        if self.program.tensor_named[base].kind is Kind.INPUT and base not in self.per_item:
            return at(name, iteration) if base in written else name
        return at(name, iteration) if self._changes(base) else name

    def results(self, iteration: int) -> Iterator[Task]:
        """The pseudo-tasks that hand an iteration's outputs to the caller, who may read and change them from there on."""
        held = [(output, self.name(output.tensor, iteration, self.rebound)) for output in self.program.outputs]
        self.outputs += [Output(at(output.name, iteration), name) for output, name in held]
        for device, lane in (*self.callers.items(), (CPU, self.caller)):
            here = [name for output, name in held if self.program.tensor_named[output.tensor].device == device]
            if here:
                kind = DELIVER if device == CPU else self._of_device(RESULT, device)
                yield self._pseudo(kind, iteration, lane, updates=here)

    def _of_device(self, kind: str, device: str) -> str:
        """The name of a pseudo-task of the caller's stream on that device."""
        return kind if self.callers[device] == MAIN else f"{kind}:{number_of(device)}"

    def _pseudo(
        self, name: str, iteration: int, lane: str, *, writes: list[str] | None = None, updates: list[str] | None = None
    ) -> Task:
        host = lane == HOST
        made = tuple(Argument((at(tensor, iteration),)) for tensor in writes or ())
        taken = tuple(Argument((tensor,)) for tensor in dict.fromkeys(updates or ()))
        return Task(at(name, iteration), kind_of(name), (), made, taken, stream=None if host else lane, cost=0.0, host=host)


def _rings(program: Program, count: int, per_item: frozenset[str], inflight: int) -> Iterator[Family]:
    """One ring for each set of members that share slots, over all iterations in turn."""
    for family in program.families:
        if family.slots is None:
            continue
        for group in groups(family):
            members = tuple(at(member, iteration) for iteration in range(count) for member in group)
            yield Family(group[0], (("turn", tuple(range(len(members)))),), members, family.slots, "turn")
    for tensor in program.inputs:
        if tensor.name in per_item and tensor.device == "cpu":
            members = tuple(at(tensor.name, iteration) for iteration in range(count))
            yield Family(tensor.name, (("turn", tuple(range(count))),), members, inflight, "turn")


def groups(family: Family) -> tuple[tuple[str, ...], ...]:
    """The members of a ring's family by the slots that they share: along `over`, or each alone over iterations."""
    keys = [key for key, _ in family.keys]
    if family.over not in keys:
        return tuple((member,) for member in family.members)
    axis = keys.index(family.over)
    inner = 1
    for _, items in family.keys[axis + 1 :]:
        inner *= len(items)
    length = len(family.keys[axis][1])
    found: dict[int, list[str]] = {}
    for number, member in enumerate(family.members):
        found.setdefault(number // (inner * length) * inner + number % inner, []).append(member)
    return tuple(tuple(group) for group in found.values())
