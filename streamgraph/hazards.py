"""Hazards: a Program becomes every pair of tasks that may not be reordered, and the networkx DAG that the planner works from.

Per storage, in the order (turn, declaration), a frontier keeps the writers and readers that no later write has covered. Each access then
meets only that frontier: amortised linear in accesses where whole tensors are written, and no WAW is kept where a reader between implies
it (the rule of sequential task flow, as CUDASTF states it for its logical data: https://github.com/NVIDIA/cccl).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamgraph.errors import Problem, SpecError
from streamgraph.model import Box, Family, Program
from streamgraph.storages import Access, Accesses, Mode, contains, meets, trace

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class Hazard:
    """`later` may not start until `earlier` is done: RAW, WAR, WAW on `tensor`; `after` and `host order` have no tensor."""

    earlier: int
    later: int
    kind: str
    tensor: str


def find_hazards(program: Program, accesses: Accesses) -> tuple[Hazard, ...]:
    """Every hazard of the program, by storage and then in the order of the later task; `after` and `host order` come last.

    Host tasks keep their declared order, whatever they touch: they may print, read files or talk to others.
    `later` is declared after `earlier` except on ring slots, where the occupant's turn decides.
    """
    history: list[list[tuple[int, int, Access]]] = [[] for _ in accesses.storages]
    for task, touched in enumerate(accesses.of_task):
        for access in touched:
            history[access.storage].append((access.turn, task, access))
    found: list[Hazard] = []
    for storage, events in zip(accesses.storages, history, strict=True):
        if len(storage.members) > 1:
            events.sort(key=lambda event: event[:2])
        _walk(storage.label if len(storage.members) > 1 else None, events, found)
    for later, declared in enumerate(program.tasks):
        found += [Hazard(program.index_of_task[name], later, "after", "") for name in declared.after]
    on_host = [task for task, declared in enumerate(program.tasks) if declared.host]
    found += [Hazard(earlier, later, "host order", "") for earlier, later in itertools.pairwise(on_host)]
    return tuple(dict.fromkeys(found))


def _walk(slot: str | None, events: list[tuple[int, int, Access]], found: list[Hazard]) -> None:
    """Append the hazards of one storage. `slot` names it where its occupants have different names."""
    writers: list[tuple[Box | None, int, int]] = []
    readers: list[tuple[Box | None, int, int]] = []
    for turn, task, access in events:
        box, mode = access.box, access.mode
        for other_box, other, other_turn in writers:
            # One task with two occupants of a slot would have to come after itself: an edge to itself makes it a cycle (SG303).
            if (other == task and other_turn == turn) or not meets(other_box, box):
                continue
            if mode is Mode.WRITE and any(
                (other_turn, other) < (read_turn, reader) < (turn, task) and reader not in (other, task) and (contains(read, other_box)
                or contains(read, box))
                for read, reader, read_turn in readers
            ):
                continue  # a reader in between follows `other` and precedes us
            kind = "WAW" if mode is Mode.WRITE else "RAW"
            found.append(Hazard(other, task, kind, access.tensor if slot is None or other_turn == turn else slot))
        if mode is Mode.READ:
            readers.append((box, task, turn))
            continue
        for other_box, other, other_turn in readers:
            if (other != task or other_turn != turn) and meets(other_box, box):
                found.append(Hazard(other, task, "WAR", access.tensor if slot is None or other_turn == turn else slot))
        writers = [entry for entry in writers if not contains(box, entry[0])]
        # A task's own read stays on the frontier of a part that its own write does not replace; covered entries go.
        readers = [entry for entry in readers if not contains(box, entry[0])]
        writers.append((box, task, turn))


def build_graph(program: Program, hazards: tuple[Hazard, ...]) -> nx.DiGraph[int]:
    """The DAG: nodes are declaration indices with attribute `task`, edges carry `hazards`, a tuple that is never overwritten."""
    import networkx as nx

    edges: dict[tuple[int, int], list[Hazard]] = {}
    for hazard in hazards:
        edges.setdefault((hazard.earlier, hazard.later), []).append(hazard)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from((index, {"task": task.name}) for index, task in enumerate(program.tasks))
    graph.add_edges_from((earlier, later, {"hazards": tuple(group)}) for (earlier, later), group in edges.items())
    return graph


def task_graph(program: Program) -> nx.DiGraph[int]:
    """`build_graph` of all of a program's hazards; users get it as `schedule.graph`."""
    return build_graph(program, find_hazards(program, trace(program)[0]))


def ensure_acyclic(program: Program, graph: nx.DiGraph[int]) -> None:
    """Raise SG303 where ring slots demand an order that the tasks cannot have, naming the tasks and the smallest ring that works."""
    import networkx as nx

    if all(earlier < later for earlier, later in graph.edges):
        return
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
