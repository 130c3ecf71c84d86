"""Paths: the steps of a schedule become links between tasks, and for two tasks the path with the fewest waits.

Searching is breadth first and linear in the steps. One search from a task finds the paths to all others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from streamgraph.model import ENTRY, EXIT, HOST, MAIN
from streamgraph.schedule import HostWait, Launch, Schedule, Wait


@dataclass(frozen=True, slots=True)
class Link:
    """`later` follows `earlier`: because of `event`, or, if that is None, because both are on `lane`, whatever lies between."""

    earlier: str
    later: str
    lane: str
    event: str | None

    def __str__(self) -> str:
        return f"wait {self.event} @{self.lane}" if self.event is not None else f"same lane @{self.lane}"


Tree: TypeAlias = Mapping[str, "Link | None"]
"""For each node, the link through which the search came to it; None where it began."""


class Paths:
    """The order that the steps enforce, as links into each node; answers which of them lead from one task to another."""

    def __init__(self, schedule: Schedule) -> None:
        self.place: dict[str, int] = {ENTRY: -1}
        self.into: dict[str, list[Link]] = {}
        last: dict[str, str] = {MAIN: ENTRY}
        pending: dict[str, list[str]] = {}
        for number, step in enumerate(schedule.steps):
            match step:
                case Wait(event, lane):
                    pending.setdefault(lane, []).append(event)
                case HostWait(event, False):
                    pending.setdefault(HOST, []).append(event)
                case Launch(task, lane):
                    self._enter(schedule, task, lane, last, pending.pop(lane, []))
                    self.place[task] = number
                case _:
                    pass
        self._enter(schedule, EXIT, MAIN, last, pending.pop(MAIN, []))
        self._enter(schedule, HOST, HOST, last, pending.pop(HOST, []))
        self.place |= {EXIT: len(schedule.steps), HOST: len(schedule.steps) + 1}

    def _enter(self, schedule: Schedule, node: str, lane: str, last: dict[str, str], events: list[str]) -> None:
        links = [Link(schedule.event_task[event], node, lane, event) for event in events]
        if lane in last:
            links.append(Link(last[lane], node, lane, None))
        self.into[node] = links
        last[lane] = node

    @cached_property
    def out_of(self) -> dict[str, list[Link]]:
        """The links out of each node."""
        found: dict[str, list[Link]] = {}
        for links in self.into.values():
            for link in links:
                found.setdefault(link.earlier, []).append(link)
        return found

    def before(self, later: str, first: int) -> Tree:
        """What leads to `later` with the fewest waits, from every node issued at step `first` or after it."""
        return self._search(later, self.into, backwards=True, within=range(first, self.place[HOST] + 1))

    def after(self, earlier: str, last: int) -> Tree:
        """What leads from `earlier` with the fewest waits, to every node issued up to step `last`."""
        return self._search(earlier, self.out_of, backwards=False, within=range(-1, last + 1))

    def _search(self, start: str, links: Mapping[str, list[Link]], *, backwards: bool, within: range) -> Tree:
        # Breadth first, where the order of a lane is free: what it leads to goes to the front of the queue.
        tree: dict[str, Link | None] = {start: None}
        waits = {start: 0}
        queue = deque([start])
        while queue:
            node = queue.popleft()
            come = tree[node]
            for link in links.get(node, ()):
                other = link.earlier if backwards else link.later
                cost = waits[node] + (link.event is not None)
                if self.place[other] not in within or cost >= waits.get(other, cost + 1):
                    continue
                if come is not None and come.event is None and link.event is None:
                    # What follows on one lane is one link: a path then has no more links than twice the lanes.
                    link = Link(other, come.later, link.lane, None) if backwards else Link(come.earlier, other, link.lane, None)
                waits[other], tree[other] = cost, link
                if link.event is None:
                    queue.appendleft(other)
                else:
                    queue.append(other)
        return tree


def path_to(tree: Tree, end: str) -> tuple[Link, ...]:
    """The links between the start of a search and `end`, in the order of the schedule."""
    path: list[Link] = []
    link = tree.get(end)
    backwards = link is not None and link.earlier == end
    while link is not None:
        path.append(link)
        link = tree[link.later if backwards else link.earlier]
    return tuple(path if backwards else reversed(path))
