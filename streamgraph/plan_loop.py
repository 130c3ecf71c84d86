"""Plan loop: a Program becomes a Loop for any number of items, with exactly the waits that the program written out would have.

The program is planned once, written out for a few iterations (`iterations.py`) with the lanes of a single one. Planning walks forward, so
what an iteration waits for depends on the past alone; once its waits, records and releases, counted from the iteration itself, have been
the same for as many iterations as any of them reaches back, they stay the same: the clocks that decide them have moved on by one iteration
and nothing else. The verifier then sees the loop written out, past the point from which it repeats and as far again as it reaches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamgraph.errors import Problem, SpecError
from streamgraph.hazards import build_dag, find_hazards
from streamgraph.iterations import PSEUDO, RESULT, Unrolled, split, unroll
from streamgraph.loop import Back, Issue, Loop
from streamgraph.model import ENTRY, HOST, Program, Stream
from streamgraph.passes.assign import Assignment
from streamgraph.passes.lifetime import Lifetimes, place_releases
from streamgraph.passes.sync import Synchronization, synchronize
from streamgraph.plan import Spec, as_program, plan
from streamgraph.schedule import Lane
from streamgraph.storages import Accesses, Storage, trace
from streamgraph.verify import ensure

UPLOADS, DOWNLOADS = "h2d", "d2h"  # lanes of free copies: each direction has an engine of its own
LONGEST = 256  # iterations written out, at least, before a loop is given up as one that never repeats


def plan_loop(
    spec: Spec,
    per_item: frozenset[str] | None = None,
    *,
    inflight: int | None = None,
    params: Mapping[str, Any] | None = None,
    **options: Any,
) -> Loop:
    """The loop of a spec, proved on as many iterations as it needs to repeat and then as many again.

    Args:
        spec: as for `plan`.
        per_item: the inputs that each item brings; by default all of them.
        inflight: how many items may be under way; by default the largest number of slots of a ring over iterations, at least 2.
        params, options: as for `plan`.

    Raises:
        SpecError: the spec is wrong, or `inflight` is no whole number from 1.
    """
    program = as_program(spec, params)
    slots = [family.slots for family in program.families if family.slots is not None and family.over == "iteration"]
    depth = max([2, *slots]) if inflight is None else inflight
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise SpecError(Problem("SG105", f"inflight is {inflight!r}", None, "inflight must be a whole number from 1"))
    items = frozenset(tensor.name for tensor in program.inputs) if per_item is None else per_item
    single = plan(_with_copy_lanes(program), **options)
    lanes = (*(lane for lane in single.lanes if not lane.is_host), Lane(HOST))
    # A ring as deep as `inflight` fills once, repeats for as long as it reaches, and its last blocks do not count (`_folded`).
    count = 4 * depth + 4
    longest = max(LONGEST, 16 * depth)
    while (loop := _planned(program, single.lane_of, lanes, items, depth, count)) is None:
        count *= 2
        assert count <= longest, "bug in streamgraph: a loop that does not repeat"
    proved = len(loop.prologue) + 2 * (loop.reach + 1) + depth
    ensure(loop.schedule(proved))
    return replace(loop, proved=proved)


def _with_copy_lanes(program: Program) -> Program:
    """Free copies between host and device get a lane for each direction: the next item's upload must not queue behind this one's work."""
    tasks = []
    for task in program.tasks:
        if task.is_copy and task.stream is None and not task.host:
            source, target = (program.tensor_named[entry.tensors[0]].device for entry in (task.reads[0], task.writes[0]))
            if source != target:
                task = replace(task, stream=UPLOADS if source == "cpu" else DOWNLOADS)
        tasks.append(task)
    known = {stream.name for stream in program.streams}
    added = tuple(Stream(name, "high") for name in (UPLOADS, DOWNLOADS) if name not in known)
    return replace(program, tasks=tuple(tasks), streams=program.streams + added)


def _planned(
    program: Program, lane_of: Mapping[str, str], lanes: tuple[Lane, ...], items: frozenset[str], inflight: int, count: int
) -> Loop | None:
    """The loop as `count` iterations show it, its tasks on these lanes and in this order; None if they do not repeat yet."""
    written = unroll(program, tuple(lane_of), count, items, inflight)
    made = written.program
    accesses = trace(made)[0]
    dag = build_dag(made, find_hazards(made, accesses))
    index = {lane.name: number for number, lane in enumerate(lanes)}
    host = len(lanes) - 1
    placed = tuple(
        host if task.host else 0 if split(task.name)[0] in PSEUDO else index[lane_of[split(task.name)[0]]] for task in made.tasks
    )
    zeros = (0.0,) * len(made.tasks)
    assignment = Assignment(tuple(range(len(made.tasks))), placed, lanes, zeros, zeros)
    assert dag.is_in_order, "bug in streamgraph: an iteration overtakes itself"
    sync = synchronize(assignment, dag, accesses)
    lifetimes = place_releases(assignment, accesses, sync, "default")
    edges = _held_too_long(written, assignment, accesses, lifetimes, inflight)
    if edges:
        sync = synchronize(assignment, dag, accesses, edges)
        lifetimes = place_releases(assignment, accesses, sync, "default")
    blocks = _relative(written, assignment, accesses, sync, lifetimes)
    return _folded(program, items, inflight, lanes, blocks)


def _held_too_long(
    written: Unrolled, assignment: Assignment, accesses: Accesses, lifetimes: Lifetimes, inflight: int
) -> tuple[tuple[int, int, int], ...]:
    """Waits (earlier, later, storage) for values that no wait of the loop lets go within `inflight` iterations, so that memory does not
    grow with their number: the owner's lane waits for the last uses before it begins the iteration that is `inflight` later."""
    block_of = {name: number for number, block in enumerate(written.blocks) for name in block}
    tasks = written.program.tasks
    host = len(assignment.lanes) - 1
    first: dict[tuple[int, int], int] = {}  # (lane, block) -> position of its first task
    last_use: list[dict[int, int]] = [{} for _ in accesses.storages]
    for position, (task, lane) in enumerate(zip(tasks, assignment.lane_of, strict=True), 1):
        first.setdefault((lane, block_of[task.name]), position)
        for access in accesses.of_task[position - 1]:
            last_use[access.storage][lane] = position
    found: list[tuple[int, int, int]] = []
    for drop in lifetimes.drops:
        storage = accesses.storages[drop.storage]
        assert storage.producer is not None
        owner = host if storage.host else assignment.lane_of[storage.producer]
        limit = block_of[tasks[storage.producer].name] + inflight
        late = drop.previous or drop.node > len(tasks) or block_of[tasks[drop.node - 1].name] > limit
        if late and (owner, limit) in first:
            then = first[owner, limit]
            found += [(use, then, drop.storage) for lane, use in last_use[drop.storage].items() if lane != owner and use < then]
    return tuple(found)


def _relative(
    written: Unrolled, assignment: Assignment, accesses: Accesses, sync: Synchronization, lifetimes: Lifetimes
) -> list[tuple[Issue, ...]]:
    """What each block issues, with every reference counted back from the block."""
    tasks = written.program.tasks
    waited = {earlier for waits in sync.waits[: len(tasks) + 1] for earlier in waits}
    before: dict[int, list[Storage]] = {}
    after: dict[int, list[Storage]] = {}
    for drop in lifetimes.drops:
        if not drop.previous:
            (after if drop.launched else before).setdefault(drop.node, []).append(accesses.storages[drop.storage])
    handed: dict[int, list[str]] = {}
    for number, _ in lifetimes.to_caller:
        handed.setdefault(split(accesses.storages[number].tensor)[1], []).append(_label(accesses.storages[number]))
    blocks: list[tuple[Issue, ...]] = []
    position = 0
    for number, names in enumerate(written.blocks[:-1]):
        issues: list[Issue] = []
        for name in names:
            position += 1
            base, own = split(name)
            waits = [Back(ENTRY, 0) if node == 0 else _back(tasks[node - 1].name, number) for node in sync.waits[position]]
            issues.append(
                Issue(
                    base, assignment.lanes[assignment.lane_of[position - 1]].name, tuple(waits),
                    tuple(_value(storage, number) for storage in before.get(position, ())), position in waited,
                    tuple(_value(storage, number) for storage in after.get(position, ())),
                    tuple(handed.get(own, ())) if base == RESULT else (),
                )
            )  # fmt: skip
        blocks.append(tuple(issues))
    return blocks


def _back(name: str, block: int) -> Back:
    base, iteration = split(name)
    return Back(base, block - iteration)


def _label(storage: Storage) -> str:
    return f"{split(storage.tensor)[0]}.{storage.version}"


def _value(storage: Storage, block: int) -> Back:
    return Back(_label(storage), block - split(storage.tensor)[1])


def _folded(
    program: Program, items: frozenset[str], inflight: int, lanes: tuple[Lane, ...], blocks: list[tuple[Issue, ...]]
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
    return Loop(program, items, inflight, lanes, tuple(blocks[:start]), blocks[end], reach)
