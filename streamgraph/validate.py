"""What is wrong with a program, whichever front end made it, and the copies that its outputs need.

`check` finds everything that does not depend on YAML, errors and warnings together, so that a user mends a file in one go. It looks at
names first, then at what the names mean; it walks the tasks once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from streamgraph import devices
from streamgraph.errors import Location, Problem, by_place, quoted
from streamgraph.model import CPU, DEVICE, MAIN, OUTPUT_PREFIX, RESERVED, Argument, Family, Kind, Output, Program, Task, Tensor, is_gpu
from streamgraph.names import LONGEST_NAME, is_broken, name_fault, near, unknown_tensor
from streamgraph.storages import trace
from streamgraph.task_checks import TaskChecks

MOST_TASKS = 1_000_000
MOST_ACCESSES = 10_000_000
INITS = ("zeros", "ones", "random", "arange", "empty")
PRIORITIES = ("high", "normal", "low")

Places = Mapping[str, Location]


# --- outputs ------------------------------------------------------------------------------------------------------------------------


def finish(program: Program, places: Places | None = None) -> Program:
    """The program with a copy task `output:NAME` for each output that is not a value of its own: a buffer, an input or a view.

    An output belongs to the caller, and memory that stays would be changed by the next run. A copy between two tensors in host memory
    becomes a host task: no stream executes it. If the program names devices, every tensor gets one (see `devices`). Finishing twice
    changes nothing. `places` gives locations for `output:NAME`.
    """
    program = devices.settled(program)
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


# --- the check ----------------------------------------------------------------------------------------------------------------------


def check(program: Program, places: Places | None = None, broken: Collection[str] = ()) -> tuple[Problem, ...]:
    """All that is wrong with a program, finished or not, in the order of the file: errors, and warnings (`severity`).

    `places` gives locations for what has none of its own: `output:NAME` and `stream:NAME`. `broken` are tensors and families whose
    declaration is already reported; nothing follows from them.
    """
    tasks = TaskChecks(program, frozenset(broken))
    if len(program.tasks) > MOST_TASKS or tasks.accesses() > MOST_ACCESSES:
        message = f"a program has at most {MOST_TASKS} tasks and {MOST_ACCESSES} accesses"
        return (Problem("SG105", message, None, "make it smaller"),)
    found = [*_names(program, places or {}), *_tensors(program, broken), *_families(program, broken)]
    found += tasks.check()
    found += _outputs(program, places or {}, broken, tasks.written)
    sound = tuple(family for family in program.families if (family.slots is None or family.slots > 0) and _whole(family))
    accesses, faults = trace(program if sound == program.families else replace(program, families=sound))
    found += [*faults, *(() if broken else devices.faults(devices.settled(program), accesses.storages))]
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
        if is_broken(tensor.name, broken):
            continue
        where = tensor.location
        if kind is Kind.RESOURCE:
            given = [key for key, value in (("type", tensor.type), ("init", tensor.init), ("pinned", tensor.pinned)) if value]
            given += ["device"] if tensor.device != DEVICE else []
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
        if tensor.device not in (DEVICE, CPU) and not is_gpu(tensor.device):
            remedy = "leave it out for the run's device, write cpu for host memory, or name a GPU: cuda:1"
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
        yield unknown_tensor(program, f"view '{tensor.name}' is a part of", tensor.base or "", tensor.location, True)
    elif is_broken(base.name, broken):
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


def _outputs(program: Program, places: Places, broken: Collection[str], written: Collection[str]) -> Iterator[Problem]:
    for output in program.outputs:
        tensor = program.tensor_named.get(output.tensor)
        place = places.get(OUTPUT_PREFIX + output.name)
        if is_broken(output.tensor, broken):
            continue
        if tensor is None:
            problem = unknown_tensor(program, "an output is", output.tensor, place, True)
            yield replace(problem, code="SG210")
        elif tensor.kind is Kind.RESOURCE:
            message = f"output '{output.name}' is a resource, which holds nothing to return"
            yield Problem("SG210", message, place, "name a tensor")
        elif tensor.kind is Kind.VALUE and tensor.name not in written:
            yield Problem("SG210", f"output '{output.name}' is never written", place, "let a task write it")


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
