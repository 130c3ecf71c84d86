"""Plan loop: a Program becomes a Loop for any number of items, with exactly the waits that the program written out would have.

The program is planned once, written out for a few iterations (`iterations.py`) with the lanes of a single one. Planning walks forward, so
what an iteration waits for depends on the past alone; once its waits, records and releases, counted from the iteration itself, have been
the same for as many iterations as any of them reaches back, they stay the same: the clocks that decide them have moved on by one iteration
and nothing else. The verifier then sees the loop written out, past the point from which it repeats and as far again as it reaches.

**The caller apart.** Where items bring device tensors, or the program has host tasks, the caller's stream and thread are lanes that hold
the caller's own work and nothing else; what a single run has on `main` gets a stream of the loop's own. An item's tensors are then taken
behind what the caller has queued, not behind what the loop has; and pulling items, host tasks and issuing work can each have a thread.

**On several devices** the caller has a stream on each, and those of further devices are always lanes of their own, where items are brought
that lie there and results are taken: who uses a result of one device does not wait for what the loop has on another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from streamgraph.copy_lanes import unused, with_copy_lanes
from streamgraph.errors import BindingError, Problem, SpecError, quoted
from streamgraph.hazards import build_dag, find_hazards
from streamgraph.iterations import ITEM, PSEUDO, RESULT, SOURCE, Unrolled, at, kind_of, split, unroll
from streamgraph.loop import Back, Issue, Loop
from streamgraph.model import CPU, ENTRY, HOST, MAIN, Program, number_of
from streamgraph.passes.assign import Assignment
from streamgraph.passes.lifetime import Lifetimes, place_releases
from streamgraph.passes.sync import Synchronization, synchronize
from streamgraph.plan import Spec, as_program, plan
from streamgraph.schedule import Lane, Schedule
from streamgraph.storages import Accesses, Storage, trace
from streamgraph.verify import ensure

OWN_MAIN, CALLER = "loop", "caller"  # lanes of a loop with the caller apart: of what single runs have on main, and the caller's thread
LONGEST = 256  # iterations written out, at least, before a loop is given up as one that never repeats


def plan_loop(
    spec: Spec,
    per_item: frozenset[str] | None = None,
    *,
    inflight: int | None = None,
    params: Mapping[str, Any] | None = None,
    apart: bool | Literal["thread"] | None = None,
    copied: bool = False,
    **options: Any,
) -> Loop:
    """The loop of a spec, proved on as many iterations as it needs to repeat and then as many again.

    Args:
        spec: as for `plan`.
        per_item: the inputs that each item brings; by default all of them.
        inflight: how many items may be under way; by default the largest number of slots of a ring over iterations, at least 2.
        apart: whether the caller's stream and thread are lanes of their own; by default where that helps: items bring device tensors, or
            the program has host tasks. "thread": the caller's thread alone, as loops of graphs with host tasks have it.
        copied: results are copied for the caller, so that their memory needs no bound.
        params, options: as for `plan`.

    Raises:
        SpecError: the spec is wrong, a task has the name of a pseudo-task (SG204), or `inflight` is no whole number from 1.
        BindingError: SG502, `per_item` has a name that is no input's.
    """
    program = as_program(spec, params)
    _check_names(program)
    slots = [family.slots for family in program.families if family.slots is not None and family.over == "iteration"]
    depth = max([2, *slots]) if inflight is None else inflight
    check_inflight(depth)
    inputs = frozenset(tensor.name for tensor in program.inputs)
    items = inputs if per_item is None else per_item
    if not items <= inputs:
        unknown = ", ".join(f"'{quoted(name)}'" for name in sorted(items - inputs))
        remedy = f"the inputs are: {', '.join(tensor.name for tensor in program.inputs) or 'none'}"
        raise BindingError(Problem("SG502", f"an item of '{quoted(program.name)}' is to bring {unknown}, which is no input", None, remedy))
    single = plan(with_copy_lanes(program), **options)
    on_device = any(tensor.name in items and tensor.device != CPU for tensor in program.inputs)
    host_tasks = any(task.host for task in program.tasks)
    lanes = _lanes(single, program, items, (on_device or host_tasks) if apart is None else apart, host_tasks)
    # A ring as deep as `inflight` fills once, repeats for as long as it reaches, and its last blocks do not count (`_folded`).
    count = 4 * depth + 4
    longest = max(LONGEST, 16 * depth)
    while (loop := _planned(program, single, lanes, items, depth, count, copied)) is None:
        count *= 2
        assert count <= longest, "bug in streamgraph: a loop that does not repeat"
    proved = len(loop.prologue) + 2 * (loop.reach + 1) + depth
    ensure(loop.schedule(proved))
    return replace(loop, proved=proved)


def check_inflight(depth: object) -> None:
    """Raises SG105 for what is no whole number from 1."""
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise SpecError(Problem("SG105", f"inflight is {depth!r}", None, "inflight must be a whole number from 1"))


def _check_names(program: Program) -> None:
    remedy = f"give it another name: in a loop {', '.join(sorted(PSEUDO))} are what the caller does"
    clashes = (task for task in program.tasks if task.name in PSEUDO)
    problems = [Problem("SG204", f"a loop cannot have a task '{task.name}'", task.location, remedy) for task in clashes]
    if problems:
        raise SpecError(*problems)


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The lanes of a loop; which of them stands in for `main`, on which the caller's host thread is, and (device, lane) of its streams on
    further devices."""

    all: tuple[Lane, ...]
    main: str
    caller: str
    callers: tuple[tuple[str, str], ...]


def _lanes(
    single: Schedule, program: Program, items: frozenset[str], apart: bool | Literal["thread"], host_tasks: bool
) -> _Lanes:
    main, *sides = (lane for lane in single.lanes if not lane.is_host)
    taken = {lane.name for lane in sides}
    shown = {program.tensor_named[name].device for name in (*items, *(output.tensor for output in program.outputs))}
    callers = tuple((device, unused(f"{MAIN}.{number_of(device)}", taken)) for device in program.devices[1:] if device in shown)
    mains = (main, *(Lane(lane) for _, lane in callers))
    if not apart:
        return _Lanes((*mains, *sides, Lane(HOST)), MAIN, HOST, callers)
    own, caller = (unused(name, taken) for name in (OWN_MAIN, CALLER))
    if apart == "thread":
        return _Lanes((*mains, *sides, Lane(caller), Lane(HOST)), MAIN, caller, callers)
    if not host_tasks:
        return _Lanes((*mains, Lane(own), *sides, Lane(HOST)), own, HOST, callers)
    return _Lanes((*mains, Lane(own), *sides, Lane(caller), Lane(HOST)), own, caller, callers)


def _planned(
    program: Program, single: Schedule, lanes: _Lanes, items: frozenset[str], inflight: int, count: int, copied: bool
) -> Loop | None:
    """The loop as `count` iterations show it, its tasks on these lanes and in the order of a single run; None if they do not repeat yet."""
    unrolled = unroll(program, count, items, inflight, lanes.main, lanes.caller, dict(lanes.callers))
    written = _issued(unrolled, tuple(single.lane_of))
    made = written.program
    accesses = trace(made)[0]
    dag = build_dag(made, find_hazards(made, accesses))
    index = {lane.name: number for number, lane in enumerate(lanes.all)}
    of_task = {task: lanes.main if lane == MAIN else lane for task, lane in single.lane_of.items()}
    placed = tuple(index[of_task.get(split(task.name)[0]) or task.stream or HOST] for task in made.tasks)  # pseudo-tasks are pinned
    order = tuple(made.index_of_task[name] for block in written.blocks for name in block)
    place = {task: number for number, task in enumerate(order)}
    forward = all(place[first] < place[task] for task, before in enumerate(dag.earlier) for first in before)
    assert forward, "bug in streamgraph: an iteration overtakes itself"
    zeros = (0.0,) * len(made.tasks)
    assignment = Assignment(order, placed, lanes.all, zeros, zeros)
    sync = synchronize(assignment, dag, accesses)
    lifetimes = place_releases(assignment, accesses, sync, "default")
    edges = _held_too_long(written, assignment, accesses, lifetimes, inflight)
    edges += () if copied else _handed_out(written, accesses, lifetimes, inflight)
    if edges:
        sync = synchronize(assignment, dag, accesses, edges)
        lifetimes = place_releases(assignment, accesses, sync, "default")
    blocks = _relative(written, assignment, accesses, sync, lifetimes, single.urgent)
    return _folded(program, items, inflight, lanes, blocks)


def _issued(written: Unrolled, order: tuple[str, ...]) -> Unrolled:
    """The program written out, each block in the order in which a single run issues its tasks: sources first, results last."""
    rank = {task: number for number, task in enumerate(order)}

    def place(name: str) -> int:
        base = split(name)[0]
        return rank[base] if base in rank else -1 if kind_of(base) in (SOURCE, ITEM) else len(order)

    return replace(written, blocks=tuple(tuple(sorted(block, key=place)) for block in written.blocks))


def _held_too_long(
    written: Unrolled, assignment: Assignment, accesses: Accesses, lifetimes: Lifetimes, inflight: int
) -> tuple[tuple[int, int, int], ...]:
    """Waits (earlier, later, storage) for values that no wait of the loop lets go within `inflight` iterations, so that memory does not
    grow with their number: the owner's lane waits for the last uses before it begins the iteration that is `inflight` later."""
    block_of = {name: number for number, block in enumerate(written.blocks) for name in block}
    tasks, order = written.program.tasks, assignment.order
    host = len(assignment.lanes) - 1
    first: dict[tuple[int, int], int] = {}  # (lane, block) -> position of its first task
    last_use: list[dict[int, int]] = [{} for _ in accesses.storages]
    for position, task in enumerate(order, 1):
        lane = assignment.lane_of[task]
        first.setdefault((lane, block_of[tasks[task].name]), position)
        for access in accesses.of_task[task]:
            last_use[access.storage][lane] = position
    found: list[tuple[int, int, int]] = []
    for drop in lifetimes.drops:
        storage = accesses.storages[drop.storage]
        assert storage.producer is not None
        owner = host if storage.host else assignment.lane_of[storage.producer]
        limit = block_of[tasks[storage.producer].name] + inflight
        late = drop.previous or drop.node > len(tasks) or block_of[tasks[order[drop.node - 1]].name] > limit
        if late and (owner, limit) in first:
            then = first[owner, limit]
            found += [(use, then, drop.storage) for lane, use in last_use[drop.storage].items() if lane != owner and use < then]
    return tuple(found)


def _handed_out(
    written: Unrolled, accesses: Accesses, lifetimes: Lifetimes, inflight: int
) -> tuple[tuple[int, int, int], ...]:
    """Waits (earlier, later, storage) that bound what the caller is given by `record_stream`: such memory is free again only when the
    device has come to that, so a host that runs ahead would ask for more and more. An item is pulled when the outputs of the iteration
    `inflight + 1` before it exist.
    """
    block_of = {name: number for number, block in enumerate(written.blocks) for name in block}
    issued = [name for block in written.blocks for name in block]
    position = {name: place for place, name in enumerate(issued, 1)}
    found: list[tuple[int, int, int]] = []
    for storage, producer in lifetimes.to_caller:
        source = at(SOURCE, block_of[issued[producer - 1]] + inflight + 1)
        if source in position:
            found.append((producer, position[source], storage))
    return tuple(found)


def _relative(
    written: Unrolled, assignment: Assignment, accesses: Accesses, sync: Synchronization, lifetimes: Lifetimes, urgent: frozenset[str]
) -> list[tuple[Issue, ...]]:
    """What each block issues, with every reference counted back from the block."""
    issued = [name for block in written.blocks for name in block]
    waited = {earlier for waits in sync.waits[: len(issued) + 1] for earlier in waits}
    before: dict[int, list[Storage]] = {}
    after: dict[int, list[Storage]] = {}
    for drop in lifetimes.drops:
        if not drop.previous:
            (after if drop.launched else before).setdefault(drop.node, []).append(accesses.storages[drop.storage])
    known, device_of = written.program.tensor_named, _devices_of_results(written.program)
    handed: dict[tuple[str, int], list[str]] = {}  # by device and iteration
    for number, _ in lifetimes.to_caller:
        storage = accesses.storages[number]
        handed.setdefault((known[storage.tensor].device, split(storage.tensor)[1]), []).append(_label(storage))
    blocks: list[tuple[Issue, ...]] = []
    position = 0
    for number, names in enumerate(written.blocks[:-1]):
        issues: list[Issue] = []
        for name in names:
            position += 1
            base, own = split(name)
            waits = [Back(ENTRY, 0) if node == 0 else _back(issued[node - 1], number) for node in sync.waits[position]]
            issues.append(
                Issue(
                    base, assignment.lanes[sync.lane_of[position]].name, tuple(waits),
                    tuple(_value(storage, number) for storage in before.get(position, ())), position in waited,
                    tuple(_value(storage, number) for storage in after.get(position, ())),
                    tuple(handed.get((device_of[base], own), ())) if base in device_of else (), base in urgent,
                )
            )  # fmt: skip
        blocks.append(tuple(issues))
    return blocks


def _devices_of_results(written: Program) -> dict[str, str]:
    """Where what a `result` hands over lies, by its name without the iteration."""
    tasks = {split(task.name)[0]: task for task in written.tasks if task.operator == RESULT}
    return {name: written.tensor_named[task.updates[0].tensors[0]].device for name, task in tasks.items()}


def _back(name: str, block: int) -> Back:
    base, iteration = split(name)
    return Back(base, block - iteration)


def _label(storage: Storage) -> str:
    return f"{split(storage.tensor)[0]}.{storage.version}"


def _value(storage: Storage, block: int) -> Back:
    return Back(_label(storage), block - split(storage.tensor)[1])


def _folded(
    program: Program, items: frozenset[str], inflight: int, lanes: _Lanes, blocks: list[tuple[Issue, ...]]
) -> Loop | None:
    """The blocks as a prologue and one that repeats; None if it has not repeated for as long as its references reach.

    The last blocks do not count: who waits for them is decided by the end of the program, not by what would follow.
    """
    backs = (back for block in blocks for issue in block for back in (*issue.waits, *issue.releases_before, *issue.releases_after))
    reach = max((back.by for back in backs), default=0)
    end = len(blocks) - 1 - reach - inflight
    if end < 0:
        return None
    start = end
    while start > 0 and blocks[start - 1] == blocks[end]:
        start -= 1
    if end - start < reach + 1:
        return None
    return Loop(
        program, items, inflight, lanes.all, tuple(blocks[:start]), blocks[end], reach, main=lanes.main, caller=lanes.caller,
        callers=lanes.callers,
    )  # fmt: skip
