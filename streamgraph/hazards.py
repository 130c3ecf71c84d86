"""Hazards: a Program becomes every pair of tasks that may not be reordered, and the DAG that they make of it.

The planner works from a `Dag`, which is tuples; users get the same as a networkx graph, which takes ten times the memory.

Per storage, in the order (turn, declaration), a frontier keeps the writers and readers of the elements that no later write has replaced.
Each access then meets only that frontier, and no WAW is kept where a reader between implies it (the rule of sequential task flow, as
CUDASTF states it for its logical data: https://github.com/NVIDIA/cccl). The work is linear in accesses and hazards, but for a logarithm
where a storage is used in parts (see `frontier`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from streamgraph.errors import Problem, SpecError
from streamgraph.frontier import Entry, Frontier, Layout
from streamgraph.model import Box, Family, Program
from streamgraph.storages import Access, Accesses, Mode, Storage, contains, trace

if TYPE_CHECKING:
    import networkx as nx


class Hazard(NamedTuple):
    """`later` may not start until `earlier` is done: RAW, WAR, WAW on `tensor`; `after` and `host order` have no tensor."""

    earlier: int
    later: int
    kind: str
    tensor: str


@dataclass(frozen=True, slots=True)
class Dag:
    """Tasks by declaration index: `earlier` and `later` are their direct neighbours, ascending; `hazards` those with the tasks before."""

    earlier: tuple[tuple[int, ...], ...]
    later: tuple[tuple[int, ...], ...]
    hazards: tuple[tuple[Hazard, ...], ...]

    @property
    def is_in_order(self) -> bool:
        """Whether every edge leads from an earlier declared task to a later one, as all do but those of ring slots."""
        return all(group[-1] < task for task, group in enumerate(self.earlier) if group)

    def between(self, earlier: int, later: int) -> tuple[Hazard, ...]:
        """The hazards of one edge."""
        return tuple(hazard for hazard in self.hazards[later] if hazard.earlier == earlier)


def find_hazards(program: Program, accesses: Accesses) -> tuple[Hazard, ...]:
    """Every hazard of the program, by storage and then in the order of the later task; `after` and `host order` come last.

    Host tasks keep their declared order, whatever they touch: they may print, read files or talk to others.
    `later` is declared after `earlier` except on ring slots, where the occupant's turn decides.
    """
    history: list[list[tuple[int, Access]]] = [[] for _ in accesses.storages]
    in_parts = [False] * len(history)
    for task, touched in enumerate(accesses.of_task):
        for access in touched:
            history[access.storage].append((task, access))
            if access.box is not None:
                in_parts[access.storage] = True
    found: list[Hazard] = []
    for number, (storage, events) in enumerate(zip(accesses.storages, history, strict=True)):
        slot = None
        if len(storage.members) > 1:
            events.sort(key=lambda event: event[1].turn)  # stable: within a turn, the order of declaration
            slot = storage.label
        if in_parts[number]:
            _walk_parts(slot, events, _shape(program, storage), found)
        elif len(events) > 1:
            _walk_whole(slot, events, found)
        events.clear()
    for later, declared in enumerate(program.tasks):
        if declared.after:
            found += [Hazard(program.index_of_task[name], later, "after", "") for name in dict.fromkeys(declared.after)]
    on_host = [task for task, declared in enumerate(program.tasks) if declared.host]
    found += [Hazard(earlier, later, "host order", "") for earlier, later in itertools.pairwise(on_host)]
    return tuple(found)


def _walk_whole(slot: str | None, events: Sequence[tuple[int, Access]], found: list[Hazard]) -> None:
    """Append the hazards of one storage whose accesses are all to the whole of it. `slot` names it where occupants take turns.

    One task with two occupants of a slot would have to come after itself: an edge to itself makes it a cycle (SG303).
    """
    writer, writer_turn = -1, 0
    readers: list[tuple[int, int]] = []
    for task, access in events:
        mode, turn = access.mode, access.turn
        if mode is Mode.READ:
            if writer >= 0 and (writer != task or writer_turn != turn):
                found.append(Hazard(writer, task, "RAW", access.tensor if slot is None or writer_turn == turn else slot))
            readers.append((task, turn))
            continue
        # A reader in between follows the writer and precedes us, so that a WAW is implied.
        implied = mode is Mode.WRITE and any(reader != writer and reader != task for reader, _ in readers)
        if writer >= 0 and (writer != task or writer_turn != turn) and not implied:
            kind = "WAW" if mode is Mode.WRITE else "RAW"
            found.append(Hazard(writer, task, kind, access.tensor if slot is None or writer_turn == turn else slot))
        for reader, reader_turn in readers:
            if reader != task or reader_turn != turn:
                found.append(Hazard(reader, task, "WAR", access.tensor if slot is None or reader_turn == turn else slot))
        writer, writer_turn = task, turn
        readers = []


def _walk_parts(slot: str | None, events: Sequence[tuple[int, Access]], shape: Box | None, found: list[Hazard]) -> None:
    """As `_walk_whole`, where some accesses are to boxes. A write leaves of what it meets the part that it does not replace."""
    boxes = [access.box for _, access in events if access.box is not None]
    whole = shape if shape is not None else _hull(boxes)
    layout = Layout.of([whole, *boxes])
    writers, readers = Frontier(layout), Frontier(layout)
    for task, access in events:
        box, mode, turn = access.box if access.box is not None else whole, access.mode, access.turn
        if any(start >= stop for start, stop in box):
            continue  # no element, no hazard
        older = writers.meeting(box)
        newer = readers.meeting(box) if mode is not Mode.READ else []
        # What a later write replaced is gone from all that came before it: a reader that is still here read after every writer it meets.
        over_all = [entry for entry in newer if contains(entry.box, box)]
        pairs: dict[tuple[str, int, int], None] = {}
        for entry in older:
            if mode is Mode.WRITE and (
                _between(over_all, entry.task, task)
                or (newer and _between([r for r in readers.meeting(entry.box) if contains(r.box, entry.box)], entry.task, task))
            ):
                continue  # a reader in between follows the writer and precedes us
            pairs["WAW" if mode is Mode.WRITE else "RAW", entry.task, entry.turn] = None
        for entry in newer:
            pairs["WAR", entry.task, entry.turn] = None
        for kind, other, other_turn in pairs:
            if other != task or other_turn != turn:
                found.append(Hazard(other, task, kind, access.tensor if slot is None or other_turn == turn else slot))
        if mode is Mode.READ:
            readers.add(Entry(box, task, turn))
            continue
        # A task's own read stays on the frontier of a part that its own write does not replace.
        writers.replace(older, box)
        readers.replace(newer, box)
        writers.add(Entry(box, task, turn))


def _between(readers: Sequence[Entry], writer: int, task: int) -> bool:
    return any(entry.task != writer and entry.task != task for entry in readers)


def _shape(program: Program, storage: Storage) -> Box | None:
    declared = program.tensor_named[storage.tensor].type
    return tuple((0, size) for size in declared.shape) if declared is not None else None


def _hull(boxes: Sequence[Box]) -> Box:
    return tuple((min(start for start, _ in spans), max(stop for _, stop in spans)) for spans in zip(*boxes, strict=True))


def build_dag(program: Program, hazards: tuple[Hazard, ...]) -> Dag:
    """The hazards by task. (A ring with too few slots makes a cycle of it: see `ensure_acyclic`.)"""
    of_task: list[tuple[Hazard, ...]] = [()] * len(program.tasks)
    earlier: list[tuple[int, ...]] = [()] * len(program.tasks)
    after: list[list[int]] = [[] for _ in program.tasks]
    for task, group in itertools.groupby(sorted(hazards, key=itemgetter(1)), itemgetter(1)):  # stable: an edge's hazards keep their order
        mine = of_task[task] = tuple(group)
        before = earlier[task] = (mine[0][0],) if len(mine) == 1 else tuple(sorted({hazard[0] for hazard in mine}))
        for other in before:
            after[other].append(task)
    later: list[tuple[int, ...]] = [()] * len(after)
    for task, found in enumerate(after):
        if found:
            later[task] = tuple(found)
            found.clear()
    return Dag(tuple(earlier), tuple(later), tuple(of_task))


def build_graph(program: Program, hazards: tuple[Hazard, ...]) -> nx.DiGraph[int]:
    """The DAG for users and networkx's algorithms: nodes are declaration indices with attribute `task`, edges carry `hazards`, a tuple."""
    import networkx as nx

    count = len(program.tasks)
    edges: dict[int, tuple[Hazard, ...]] = {}  # one number for a pair: a tuple for each would take more memory than the rest
    for hazard in hazards:
        pair = hazard.earlier * count + hazard.later
        known = edges.get(pair)
        edges[pair] = (hazard,) if known is None else (*known, hazard)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((index, {"task": task.name}) for index, task in enumerate(program.tasks))
    graph.add_edges_from((pair // count, pair % count, {"hazards": group}) for pair, group in edges.items())
    return graph


def task_graph(program: Program) -> nx.DiGraph[int]:
    """`build_graph` of all of a program's hazards; users get it as `schedule.graph`."""
    return build_graph(program, find_hazards(program, trace(program)[0]))


def ensure_acyclic(program: Program, dag: Dag) -> None:
    """Raise SG303 where ring slots demand an order that the tasks cannot have, naming the tasks and the smallest ring that works."""
    import networkx as nx

    if dag.is_in_order:
        return
    graph = build_graph(program, tuple(itertools.chain.from_iterable(dag.hazards)))
    if nx.is_directed_acyclic_graph(graph):
        return
    cycle = [edge[0] for edge in nx.find_cycle(graph, source=range(len(program.tasks)))]
    start = cycle.index(min(cycle))
    names = [f"'{program.tasks[index].name}'" for index in cycle[start:] + cycle[:start]]
    circle = f"{' -> '.join([*names, names[0]])} would each have to wait for the next"
    needed_by = f"{names[0]} uses two that share a slot" if len(names) == 1 else circle
    problems = []
    for family in program.families:
        needed = _smallest(program, family)
        if needed is None:
            continue
        place = program.tensor_named[family.members[0]].location
        problems.append(
            Problem(
                "SG303",
                f"ring '{family.name}' has too few slots ({family.slots}), more of its members are needed at once: {needed_by}",
                place,
                f"give it slots: {needed}, or use each member up before the next one is filled",
            )
        )
    if not problems:  # each ring would do if the others had more slots
        rings = ", ".join(f"'{family.name}'" for family in program.families if family.slots is not None)
        message = f"the rings {rings} together have too few slots: {needed_by}"
        problems.append(Problem("SG303", message, None, "give one of them more slots"))
    raise SpecError(*problems)


def _smallest(program: Program, family: Family) -> int | None:
    """The fewest slots with which this ring, alone, leaves the program acyclic; None if it is not (alone) to blame."""
    import networkx as nx

    if family.slots is None or family.over not in [key for key, _ in family.keys]:
        return None

    def works(slots: int) -> bool:
        others = tuple(
            _with_slots(f, slots if f.name == family.name else None if f.slots is None else len(f.members)) for f in program.families
        )
        trial = Program(program.name, program.tensors, program.tasks, program.streams, program.outputs, others)
        return nx.is_directed_acyclic_graph(task_graph(trial))

    low, high = family.slots, len(family.members)
    if works(low):
        return None
    while high - low > 1:  # more slots only take hazards away, so the answer is found by halving
        middle = (low + high) // 2
        low, high = (low, middle) if works(middle) else (middle, high)
    return high


def _with_slots(family: Family, slots: int | None) -> Family:
    return Family(family.name, family.keys, family.members, slots, family.over)
