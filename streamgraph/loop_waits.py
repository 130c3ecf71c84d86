"""Loop waits: the waits of a loop's steady state, each with how many iterations back it looks, the hazard that asks for it, and what goes
wrong without it; and which of them two loops do not share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from streamgraph.iterations import SOURCE, at, split
from streamgraph.loop import Back, Issue, Loop
from streamgraph.verify import verify


@dataclass(frozen=True, slots=True)
class LoopWait:
    """In every iteration, `later` waits on its lane for the task `earlier.name`, `earlier.by` iterations back. `why`: its hazards."""

    earlier: Back
    later: str
    lane: str
    why: str

    def __str__(self) -> str:
        return f"{self.earlier} -> {self.later}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "earlier": self.earlier.name, "iterations_back": self.earlier.by, "later": self.later, "lane": self.lane, "why": self.why
        }  # fmt: skip


def loop_waits(loop: Loop) -> tuple[LoopWait, ...]:
    """The waits of every iteration once the loop repeats, in the order in which they are issued."""
    number = len(loop.prologue) + loop.reach
    schedule = loop.schedule(number + loop.inflight)
    index, edges = schedule.program.index_of_task, schedule.graph.edges
    found: list[LoopWait] = []
    for issue in loop.steady:
        later = index[at(issue.task, loop.own(issue.task, number))]
        for back in issue.waits:
            edge = index[at(back.name, number - back.by)], later
            why = _hazards(edges[edge]["hazards"]) if edge in edges else _memory(issue)
            found.append(LoopWait(back, issue.task, issue.lane, why))
    return tuple(found)


def without(loop: Loop, wait: LoopWait) -> str | None:
    """What the verifier finds first where every iteration leaves the wait out; None: nothing, so that it only bounds memory."""
    steady = tuple(
        replace(issue, waits=tuple(back for back in issue.waits if back != wait.earlier)) if issue.task == wait.later else issue
        for issue in loop.steady
    )
    found = verify(replace(loop, steady=steady).schedule(len(loop.prologue) + 2 * (loop.reach + 1) + loop.inflight))
    return f"{found[0].message.partition(': no wait between')[0]} [{found[0].code}]" if found else None


@dataclass(frozen=True, slots=True)
class LoopDifference:
    """What changed from one loop to another: its waits, and the lanes of its tasks as (task, lane before, lane after; "" for none)."""

    added: tuple[LoopWait, ...]
    removed: tuple[LoopWait, ...]
    moved: tuple[tuple[str, str, str], ...]
    inflight: tuple[int, int]

    @property
    def is_empty(self) -> bool:
        """Whether both issue the same, as far as order goes."""
        return not (self.added or self.removed or self.moved) and self.inflight[0] == self.inflight[1]


def loop_difference(first: Loop, second: Loop) -> LoopDifference:
    """What `second` waits for in every iteration that `first` does not, and the other way round. Tasks are compared by name."""
    before, after = ({str(wait): wait for wait in loop_waits(loop)} for loop in (first, second))
    lanes = [{issue.task: issue.lane for issue in loop.steady} for loop in (first, second)]
    moved = [(task, lanes[0].get(task, ""), lanes[1].get(task, "")) for task in dict.fromkeys((*lanes[0], *lanes[1]))]
    return LoopDifference(
        tuple(wait for name, wait in after.items() if name not in before),
        tuple(wait for name, wait in before.items() if name not in after),
        tuple(entry for entry in moved if entry[1] != entry[2]),
        (first.inflight, second.inflight),
    )


def _hazards(hazards: tuple[Any, ...]) -> str:
    return ", ".join(dict.fromkeys(f"{hazard.kind} {_named(hazard.tensor)}".strip() for hazard in hazards))


def _named(tensor: str) -> str:
    """A tensor without its iteration; a ring without its slot, which is another one in the next iteration, and without its member."""
    name, ring, _ = tensor.partition("[slot ")
    return name.partition("@")[0] if ring else split(name)[0]


def _memory(issue: Issue) -> str:
    names = ", ".join(str(drop) for drop in issue.releases_before if drop.by)
    if names:
        return f"last use of {names}, which is dropped here: memory does not grow"
    held = "the next item is brought only when those results are made: " if issue.task == SOURCE else ""
    return f"{held}memory does not grow"
