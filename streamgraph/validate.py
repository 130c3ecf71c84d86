"""What is wrong with a program, whichever front end made it, and the copies that its outputs need.

`check` finds everything that does not depend on YAML, errors and warnings together, so that a user mends a file in one go. It looks at
names first, then at what the names mean; it walks the tasks once.
"""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from streamgraph.errors import Location, Problem, by_place, quoted
from streamgraph.model import HOST, MAIN, MEMBER, NAME, OUTPUT_PREFIX, RESERVED, Argument, Family, Kind, Output, Program, Task, Tensor
from streamgraph.storages import trace

LONGEST_NAME = 256
MOST_TASKS = 1_000_000
MOST_ACCESSES = 10_000_000
INITS = ("zeros", "ones", "random", "arange", "empty")
PRIORITIES = ("high", "normal", "low")
_COMPARED = 5_000  # names that a suggestion is looked for among: difflib is slow, and a hint need not be complete
_SUGGESTED = 50  # problems that get a suggestion; more are not read

Places = Mapping[str, Location]


# --- outputs ------------------------------------------------------------------------------------------------------------------------


def finish(program: Program, places: Places | None = None) -> Program:
    """The program with a copy task `output:NAME` for each output that is not a value of its own: a buffer, an input or a view.

    An output belongs to the caller, and memory that stays would be changed by the next run. A copy between two tensors in host memory
    becomes a host task: no stream executes it. Finishing twice changes nothing. `places` gives locations for `output:NAME`.
    """
    known = program.tensor_named
    rebound = {name for task in program.tasks for entry in task.writes for name in entry.tensors}
    tensors, tasks, outputs = list(program.tensors), [_on_host(task, known) for task in program.tasks], list[Output]()
    for output in program.outputs:
        source = known.get(output.tensor)
        stays = source is not None and (
            source.kind in (Kind.BUFFER, Kind.VIEW) or (source.kind is Kind.INPUT and source.name not in rebound)
        )
        name = OUTPUT_PREFIX + output.name
        if source is None or not stays or name in known:
            outputs.append(output)
            continue
        place = (places or {}).get(name)
        tensors.append(Tensor(name, Kind.VALUE, source.type, source.device, source.pinned, location=place))
        reads, writes = (Argument((source.name,), location=place),), (Argument((name,), location=place),)
        tasks.append(Task(name, "copy", reads, writes, host=source.device == "cpu", location=place))
        outputs.append(Output(output.name, name))
    return replace(program, tensors=tuple(tensors), tasks=tuple(tasks), outputs=tuple(outputs))


def _on_host(task: Task, known: Mapping[str, Tensor]) -> Task:
    if not task.is_copy or task.host or task.stream is not None:
        return task
    ends = [known.get(name) for name in task.names()]
    return replace(task, host=True) if ends and all(end is not None and end.device == "cpu" for end in ends) else task


# --- names --------------------------------------------------------------------------------------------------------------------------


def near(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be, or None."""
    if len(word) > LONGEST_NAME:
        return None
    candidates = [name for name, _ in zip(known, range(_COMPARED), strict=False)]
    close = difflib.get_close_matches(word, candidates, 1, 0.6)
    return close[0] if close else None


def name_fault(name: str, *, member: bool = False) -> str | None:
    """Why `name` is not a name, as the end of a sentence, or None if it is one. `member` allows `w@3`."""
    if len(name) > LONGEST_NAME:
        return f"has {len(name)} characters; {LONGEST_NAME} are allowed"
    if name.isascii() and (MEMBER if member else NAME).match(name) is not None:
        return None  # nearly all names: the rest is about Unicode
    if unicodedata.normalize("NFC", name) != name:
        return "is not in Unicode's composed form (NFC), so it may look like another name and differ from it"
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs") for character in name):
        return "holds invisible characters"
    if (MEMBER if member else NAME).match(name) is None:
        return "is not a name: letters, digits and '_', joined by '.'" + ("; members follow an '@'" if member else "")
    return None


@lru_cache(maxsize=1024)
def operator_fault(name: str) -> Problem | None:
    """Why `run: name` can name no operator at all, whatever the caller passes, or None. The place is left open."""
    remedy = "a spec names an operator that the caller brings with ops= or --ops, or one of torch's, like aten.mm; it never imports code"
    if name_fault(name) is not None:
        return Problem("SG204", f"'{quoted(name)}' is not the name of an operator", None, remedy)
    parts = name.split(".")
    # torch's own private operators (aten._softmax) are operators; Python's private names and double underscores lead elsewhere.
    if any(part.startswith("__") or (part.startswith("_") and parts[0] != "aten") for part in parts):
        return Problem("SG403", f"'{quoted(name)}' is refused: a part of it begins with an underscore", None, remedy)
    return None


# --- the check ----------------------------------------------------------------------------------------------------------------------


def check(program: Program, places: Places | None = None, broken: Collection[str] = ()) -> tuple[Problem, ...]:
    """All that is wrong with a program, finished or not, in the order of the file: errors, and warnings (`severity`).

    `places` gives locations for what has none of its own: `output:NAME` and `stream:NAME`. `broken` are tensors and families whose
    declaration is already reported; nothing follows from them.
    """
    tasks = _Tasks(program, frozenset(broken))
    if len(program.tasks) > MOST_TASKS or tasks.accesses() > MOST_ACCESSES:
        message = f"a program has at most {MOST_TASKS} tasks and {MOST_ACCESSES} accesses"
        return (Problem("SG105", message, None, "make it smaller"),)
    found = [*_names(program, places or {}), *_tensors(program, broken), *_families(program, broken)]
    found += tasks.check()
    found += _outputs(program, places or {}, broken, tasks.written)
    sound = tuple(family for family in program.families if (family.slots is None or family.slots > 0) and _whole(family))
    found += trace(program if sound == program.families else replace(program, families=sound))[1]
    return by_place(found)


def _whole(family: Family) -> bool:
    return len(family.members) == math.prod(len(items) for _, items in family.keys)


def _names(program: Program, places: Places) -> Iterator[Problem]:
    generated = {OUTPUT_PREFIX + output.name for output in program.outputs}
    of_tensors = _are_plain(program.tensors, program.tensor_named, generated)
    of_tasks = _are_plain(program.tasks, program.index_of_task, generated)
    sources = (
        ("tensor", [] if of_tensors else [(tensor.name, tensor.location) for tensor in program.tensors], True),
        ("task", [] if of_tasks else [(task.name, task.location) for task in program.tasks], True),
        ("stream", [(stream.name, places.get(f"stream:{stream.name}")) for stream in program.streams], False),
        ("output", [(output.name, places.get(OUTPUT_PREFIX + output.name)) for output in program.outputs], True),
        ("family", [(family.name, _place_of(program, family)) for family in program.families], False),
    )
    for what, named, member in sources:
        first: dict[str, Location | None] = {}
        for name, place in named:
            fault = None if name in generated else name_fault(name, member=member)
            if fault is not None:
                yield Problem("SG204", f"the {what} name '{quoted(name)}' {fault}", place, "choose another name, like layer_0 or w@0")
            if what == "task" and name.split("@")[0] in RESERVED:
                remedy = "choose another name: main, entry, exit and host stand for what surrounds the tasks"
                yield Problem("SG204", f"'{name}' is reserved and cannot name a task", place, remedy)
            if what == "stream" and name in RESERVED - {MAIN}:
                yield Problem("SG204", f"'{name}' is reserved and cannot name a stream", place, "choose another name")
            if name in first:
                earlier = first[name]
                related = (("first here", earlier),) if earlier is not None else ()
                yield Problem("SG205", f"{what} '{quoted(name)}' stands twice", place, "give one of the two another name", related)
            first.setdefault(name, place)
    for family in program.families:
        if family.name in program.tensor_named and family.name not in family.members:
            place = program.tensor_named[family.name].location
            yield Problem("SG205", f"'{family.name}' names a tensor and a family of tensors", place, "rename one of the two")


_PLAIN = re.compile(rf"(?!({'|'.join(sorted(RESERVED))})(@|\Z))[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*(@[A-Za-z0-9_]+)*\Z")


def _are_plain(declared: Sequence[Tensor] | Sequence[Task], distinct: Collection[str], generated: Collection[str]) -> bool:
    """Whether nothing can be wrong with all these names, so that none need be looked at by itself."""
    if len(distinct) < len(declared) or (declared and len(max(distinct, key=len)) > LONGEST_NAME):
        return False
    matches = _PLAIN.match
    return all(name in generated for name in [name for name in distinct if not matches(name)])


def _place_of(program: Program, family: Family) -> Location | None:
    tensor = program.tensor_named.get(family.members[0]) if family.members else None
    return tensor.location if tensor is not None else None


def _tensors(program: Program, broken: Collection[str]) -> Iterator[Problem]:
    for tensor in program.tensors:
        kind = tensor.kind
        if tensor.init is None and tensor.device == "device" and not tensor.pinned:  # most are like that: little can be wrong
            if kind is Kind.VIEW:
                if _fits(tensor, program.tensor_named.get(tensor.base or "")):
                    continue
            elif tensor.base is None and kind is not Kind.RESOURCE and (kind is not Kind.BUFFER or tensor.type is not None):
                continue
        if _is_broken(tensor.name, broken):
            continue
        where = tensor.location
        if kind is Kind.RESOURCE:
            given = [key for key, value in (("type", tensor.type), ("init", tensor.init), ("pinned", tensor.pinned)) if value]
            given += ["device"] if tensor.device != "device" else []
            if given:
                remedy = "leave it out: a resource orders tasks and holds no memory"
                yield Problem("SG212", f"resource '{tensor.name}' has {_listed(given)}", where, remedy)
        if kind is Kind.BUFFER and tensor.type is None:
            remedy = f'write {tensor.name}: "f32[8, 3]", or kind: value if a task returns it'
            yield Problem("SG307", f"buffer '{tensor.name}' has no type", where, remedy)
        if tensor.init is not None and kind in (Kind.VALUE, Kind.VIEW):
            remedy = "leave it out, or make the tensor a buffer" if kind is Kind.VALUE else "leave it out: initialise the base"
            yield Problem("SG212", f"{kind.value} '{tensor.name}' has init", where, remedy)
        if tensor.init is not None and tensor.init not in INITS:
            yield Problem("SG105", f"'{quoted(tensor.init)}' is not a way to initialise a tensor", where, f"one of {', '.join(INITS)}")
        if tensor.device not in ("device", "cpu"):
            remedy = "leave it out for the run's device, or write cpu for host memory"
            yield Problem("SG105", f"tensor '{tensor.name}' has the device '{quoted(tensor.device)}'", where, remedy)
        if tensor.pinned and tensor.device != "cpu" and kind is not Kind.RESOURCE:
            yield Problem("SG212", f"'{tensor.name}' is pinned, but only host memory can be", where, "add device: cpu")
        if kind is Kind.VIEW:
            yield from _view(program, tensor, broken)
        elif tensor.base is not None:
            yield Problem("SG212", f"'{tensor.name}' has a base, but is no view", where, "leave base out")


def _fits(view: Tensor, base: Tensor | None) -> bool:
    """Whether a view is a part of a tensor that can have parts."""
    if base is None or base.type is None or base.kind is Kind.VIEW or base.kind is Kind.RESOURCE:
        return False
    shape = base.type.shape
    if len(shape) != len(view.index):
        return False
    for part, size in zip(view.index, shape, strict=True):
        start, stop = (part, part + 1) if isinstance(part, int) else part
        if not 0 <= start <= stop <= size:
            return False
    return True


def _view(program: Program, tensor: Tensor, broken: Collection[str]) -> Iterator[Problem]:
    base = program.tensor_named.get(tensor.base or "")
    if base is None:
        yield _unknown(program, f"view '{tensor.name}' is a part of", tensor.base or "", tensor.location, True)
    elif _is_broken(base.name, broken):
        return
    elif base.kind in (Kind.VIEW, Kind.RESOURCE):
        message = f"the base of view '{tensor.name}' is a {base.kind.value}"
        yield Problem("SG208", message, tensor.location, "name the tensor that holds the storage")
    elif base.type is None:
        remedy = f'declare {base.name}: {{type: "f32[8, 3]", kind: {base.kind.value}}}'
        yield Problem("SG307", f"a view of '{base.name}' needs its type", tensor.location, remedy)
    elif not _fits(tensor, base):
        message = f"view '{tensor.name}' does not fit '{base.name}', which is {base.type}"
        yield Problem("SG208", message, tensor.location, "cut inside the shape of the base")


def _families(program: Program, broken: Collection[str]) -> Iterator[Problem]:
    for family in program.families:
        if family.name in broken:
            continue
        where = _place_of(program, family)
        keys = dict(family.keys)
        missing = [member for member in family.members if member not in program.tensor_named]
        if missing or not _whole(family):
            message = f"family '{family.name}' does not have the members that its keys say"
            yield Problem("SG202", message, where, "declare one tensor per combination of the keys' items")
        if family.slots is None:
            continue
        if family.slots < 1:
            yield Problem("SG105", f"'{family.name}' has {family.slots} slots", where, "a ring has at least one slot")
        if any(program.tensor_named[m].kind is not Kind.BUFFER for m in family.members if m in program.tensor_named):
            remedy = "leave slots out: only memory that keeps its address can be shared in turns"
            yield Problem("SG212", f"'{family.name}' has slots, but is no buffer", where, remedy)
        if family.over != "iteration" and family.over not in keys:
            hint = near(family.over, ("iteration", *keys))
            remedy = f"did you mean '{hint}'?" if hint else f"one of {', '.join(('iteration', *keys))}"
            yield Problem("SG212", f"'{family.name}' turns over '{quoted(family.over)}', which is no key of its each", where, remedy)
        elif family.over in keys and family.slots > len(keys[family.over]):
            count = len(keys[family.over])
            message = f"'{family.name}' has {family.slots} slots, but only {count} members over '{family.over}'"
            yield Problem("SG304", message, where, f"write slots: {count} or fewer", severity="warning")


class _Tasks:
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
                    if tensor is None and not _is_broken(name, self.broken):
                        yield _unknown(self.program, f"task '{task.name}' {role}", name, place, self._hint())
                    if name in seen:
                        yield from self._twice(task, name, seen[name], role, place)
                    seen[name] = role

    def _twice(self, task: Task, name: str, earlier: str, role: str, place: Location | None) -> Iterator[Problem]:
        tensor = self.program.tensor_named.get(name)
        kind = tensor.kind if tensor is not None else Kind.VALUE
        if earlier == role:
            yield Problem("SG206", f"'{name}' stands twice in the {role} of task '{task.name}'", place, "name it once")
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
        if source is None or target is None or any(_is_broken(end.name, self.broken) for end in (source, target)):
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


def _is_broken(name: str, broken: Collection[str]) -> bool:
    return bool(broken) and (name in broken or name.partition("@")[0] in broken)


def _unknown(program: Program, doing: str, name: str, place: Location | None, hint: bool) -> Problem:
    base, _, item = name.partition("@")
    members = next((f.members for f in program.families if f.name == base), ())
    if members and item:
        shown = f"{members[0]} to {members[-1]}" if len(members) > 4 else ", ".join(members)
        return Problem("SG202", f"{doing} '{quoted(name)}', but '{base}' has {len(members)} members", place, f"they are {shown}")
    if members:
        return Problem("SG201", f"{doing} '{base}', which is a family of {len(members)}", place, f"write {base}@* for all of them")
    close = near(name, program.tensor_named) if hint else None
    remedy = f"did you mean '{close}'?" if close else "declare it under tensors, or let an earlier task write it"
    return Problem("SG201", f"{doing} unknown tensor '{quoted(name)}'", place, remedy)


def _outputs(program: Program, places: Places, broken: Collection[str], written: Collection[str]) -> Iterator[Problem]:
    for output in program.outputs:
        tensor = program.tensor_named.get(output.tensor)
        place = places.get(OUTPUT_PREFIX + output.name)
        if _is_broken(output.tensor, broken):
            continue
        if tensor is None:
            problem = _unknown(program, "an output is", output.tensor, place, True)
            yield replace(problem, code="SG210")
        elif tensor.kind is Kind.RESOURCE:
            message = f"output '{output.name}' is a resource, which holds nothing to return"
            yield Problem("SG210", message, place, "name a tensor")
        elif tensor.kind is Kind.VALUE and tensor.name not in written:
            yield Problem("SG210", f"output '{output.name}' is never written", place, "let a task write it")


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
