"""Rings: what is odd about a loop's rings over iterations. Nothing here is an error; what is said are warnings.

Whether a slot is ever used is not a matter of counting: a ring may have fewer occupants at once than slots because something else holds the
iterations back. So a ring is planned with one slot less; if nothing waits for more then, the slot was never needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from streamgraph.errors import Problem
from streamgraph.loop import Loop
from streamgraph.model import Family, Program, Tensor
from streamgraph.plan_loop import plan_loop

Again = Callable[[Program], Loop]


def over_iterations(program: Program) -> tuple[Family, ...]:
    """The rings whose members take turns from one iteration to the next."""
    return tuple(family for family in program.families if family.slots is not None and family.over == "iteration")


def ring_warnings(loop: Loop, again: Again | None = None) -> tuple[Problem, ...]:
    """SG308 for every ring over iterations that has slots which are never needed, or a single one between lanes.

    `again` plans the loop of another program as this one was planned; by default with `plan_loop`'s own options.
    """
    return tuple(problem for family in over_iterations(loop.program) for problem in _warnings(loop, family, again or _as(loop)))


def _as(loop: Loop) -> Again:
    return lambda program: plan_loop(program, loop.per_item, inflight=loop.inflight)


def _warnings(loop: Loop, family: Family, again: Again) -> Iterator[Problem]:
    assert family.slots is not None
    location = loop.program.tensor_named[family.members[0]].location
    lanes = _lanes(loop, family)
    if family.slots == 1:
        if len(lanes) > 1:
            users = f"lanes {', '.join(lanes)} use it"
            message = f"the ring '{family.name}' has one slot, and {users}: each iteration waits there for the one before"
            yield Problem("SG308", message, location, "write slots: 2, so that one is filled while the other is used", severity="warning")
        return
    needed = _needed(family.slots, lambda slots: again(_with_slots(loop.program, family, slots)).steady == loop.steady)
    if needed < family.slots:
        enough = f"{needed} would do" if needed > 1 else "one would do"
        message = f"the ring '{family.name}' has {family.slots} slots over iterations, and {enough}: no iteration begins sooner with more"
        remedy = f"write slots: {needed}, or let what fills it and what uses it run on lanes of their own"
        yield Problem("SG308", message, location, remedy, severity="warning")


def _needed(slots: int, enough: Callable[[int], bool]) -> int:
    """The smallest number of slots that is enough, from 1 to `slots`. Most rings have no slot too many: one question then."""
    if slots == 1 or not enough(slots - 1):
        return slots
    least, most = 1, slots - 1  # more slots never bring a wait back, so halving finds it
    while least < most:
        middle = (least + most) // 2
        if enough(middle):
            most = middle
        else:
            least = middle + 1
    return most


def _lanes(loop: Loop, family: Family) -> tuple[str, ...]:
    """The lanes whose tasks touch the ring."""
    members = set(family.members)
    named = loop.program.tensor_named

    def touches(tensor: Tensor) -> bool:
        return tensor.name in members or tensor.base in members

    using = {task.name for task in loop.program.tasks if any(touches(named[name]) for name in task.names())}
    return tuple(dict.fromkeys(issue.lane for issue in loop.steady if issue.task in using))


def _with_slots(program: Program, ring: Family, slots: int) -> Program:
    families = tuple(replace(family, slots=slots) if family.name == ring.name else family for family in program.families)
    return replace(program, families=families)
