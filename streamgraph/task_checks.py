"""Task checks: what is wrong with the tasks of a program, one by one: their tensors, `after`, cost, stream, operator, and copies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from streamgraph.errors import Location, Problem, quoted
from streamgraph.model import HOST, MAIN, RESERVED, Kind, Program, Task
from streamgraph.names import is_broken, name_fault, near, operator_fault, unknown_tensor

_SUGGESTED = 50  # problems that get a suggestion; more are not read


class TaskChecks:
    """The checks of tasks, with what they share: which names exist, and how many hints have been given."""

    def __init__(self, program: Program, broken: frozenset[str]) -> None:
        self.program = program
        self.broken = broken
        self.hints = 0
        self.written: set[str] = set()

    def accesses(self) -> int:
        """How many there are."""
        return sum(
            len(entry.tensors) for task in self.program.tasks for group in (task.updates, task.reads, task.writes) for entry in group
        )

    def check(self) -> list[Problem]:
        """Every problem of every task, in the order of the program. `written` are then the tensors that some task writes."""
        found: list[Problem] = []
        known, written = self.program.tensor_named, self.written
        for number, task in enumerate(self.program.tasks):
            # What most tasks have is looked at here, and only what may be wrong with it by a method of its own.
            names = [name for group in (task.updates, task.reads, task.writes) for entry in group for name in entry.tensors]
            for entry in task.writes:
                written.update(entry.tensors)
            if len(set(names)) < len(names) or not all([name in known for name in names]):
                found += self._accesses(task)
            if task.after:
                found += self._after(number, task)
            cost, stream = task.cost, task.stream
            if stream is not None or (cost is not None and not 0 <= cost < math.inf) or operator_fault(task.operator) is not None:
                found += self._keys(task)
            if task.operator == "copy" and task.is_copy:
                found += self._copy(task)
        return found

    def _accesses(self, task: Task) -> Iterator[Problem]:
        known = self.program.tensor_named
        seen: dict[str, str] = {}
        for role, entries in (("updates", task.updates), ("reads", task.reads), ("writes", task.writes)):
            for entry in entries:
                for name in entry.tensors:
                    place = entry.location or task.location
                    tensor = known.get(name)
                    if tensor is None and not is_broken(name, self.broken):
                        yield unknown_tensor(self.program, f"task '{task.name}' {role}", name, place, self._hint())
                    if name in seen:
                        yield from self._twice(task, name, seen[name], role, place)
                    seen[name] = role

    def _twice(self, task: Task, name: str, earlier: str, role: str, place: Location | None) -> Iterator[Problem]:
        tensor = self.program.tensor_named.get(name)
        kind = tensor.kind if tensor is not None else Kind.VALUE
        if earlier == role:
            remedy = "name it once; where the operator takes it twice, bring a function that passes it on twice"
            yield Problem("SG206", f"'{name}' stands twice in the {role} of task '{task.name}'", place, remedy)
        elif (earlier, role) == ("reads", "writes"):
            if kind not in (Kind.VALUE, Kind.INPUT):  # those are rebound: the old version is read, a new one is made
                message = f"{kind.value} '{name}' stands in reads and in writes of task '{task.name}'"
                yield Problem("SG302", message, place, f"to change it in place, write updates: {name}")
        else:
            message = f"'{name}' stands in {earlier} and in {role} of task '{task.name}'"
            yield Problem("SG206", message, place, f"leave it out of {role}: updates reads and writes it")

    def _after(self, number: int, task: Task) -> Iterator[Problem]:
        places = self.program.index_of_task
        for name in task.after:
            if name == task.name:
                yield Problem("SG207", f"task '{name}' is after itself", task.location, "leave it out of after")
            elif name not in places:
                hint = near(name, places) if self._hint() else None
                remedy = f"did you mean '{hint}'?" if hint else "after names tasks that stand earlier in the program"
                yield Problem("SG203", f"task '{task.name}' is after '{quoted(name)}', which is no task", task.location, remedy)
            elif places[name] > number:
                remedy = f"move '{name}' up: the order of the file is the order of the program"
                yield Problem("SG207", f"task '{task.name}' is after '{name}', which stands later", task.location, remedy)

    def _keys(self, task: Task) -> Iterator[Problem]:
        if task.cost is not None and not (math.isfinite(task.cost) and task.cost >= 0):
            yield Problem("SG104", f"the cost of task '{task.name}' is {task.cost}", task.location, "a finite time >= 0, like 120us")
        if task.stream is not None:
            fault = name_fault(task.stream)
            if fault is not None:
                yield Problem("SG204", f"the stream name '{quoted(task.stream)}' {fault}", task.location, "choose another name")
            elif task.stream in RESERVED - {MAIN}:
                remedy = "write host: true" if task.stream == HOST else "choose another name"
                yield Problem("SG204", f"'{task.stream}' is reserved and cannot name a stream", task.location, remedy)
            if task.host:
                remedy = "leave one of the two out: host tasks run on the host, in order"
                yield Problem("SG212", f"task '{task.name}' has host: true and a stream", task.location, remedy)
        if task.function is None and not task.is_copy:
            fault_ = operator_fault(task.operator)
            if fault_ is not None:
                yield replace(fault_, location=task.location)

    def _copy(self, task: Task) -> Iterator[Problem]:
        known = self.program.tensor_named
        where = task.location
        names = [[name for entry in entries for name in entry.tensors] for entries in (task.reads, task.writes)]
        if [len(side) for side in names] != [1, 1] or task.updates or task.const:
            remedy = "write copy: a -> b"
            yield Problem("SG212", f"copy '{task.name}' must have one tensor to read and one to write, and nothing else", where, remedy)
            return
        source, target = (known.get(side[0]) for side in names)
        if source is None or target is None or any(is_broken(end.name, self.broken) for end in (source, target)):
            return
        if Kind.RESOURCE in (source.kind, target.kind):
            yield Problem("SG212", f"copy '{task.name}' names a resource, which has nothing to copy", where, "copy tensors")
            return
        if source.type is not None and target.type is not None and source.type.shape != target.type.shape:
            message = f"copy '{task.name}': '{source.name}' is {source.type}, '{target.name}' is {target.type}"
            yield Problem("SG212", message, where, "the shapes must be equal; view a part to copy a part")
        if source.device == target.device == "cpu" and task.stream is not None:
            remedy = "leave the stream out: the host copies between host tensors"
            yield Problem("SG212", f"copy '{task.name}' is between two host tensors, but has a stream", where, remedy)
        on_host = [tensor for tensor in (source, target) if tensor.device == "cpu"]
        if len(on_host) == 1 and not on_host[0].pinned:
            message = f"copy '{task.name}': '{on_host[0].name}' is not pinned, so the copy blocks the host and overlaps nothing"
            yield Problem("SG306", message, where, f"add pinned: true to '{on_host[0].name}'", severity="warning")

    def _hint(self) -> bool:
        self.hints += 1
        return self.hints <= _SUGGESTED
