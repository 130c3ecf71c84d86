"""Names that stand for several things: a family or a group in `after`, and `name@*` among tensors.

Families and groups expand to runs of consecutive tasks, so a name stands for a few (start, stop) pairs, however many members it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from streamgraph.errors import Location, Problem, quoted
from streamgraph.model import Family, Task
from streamgraph.names import near

Texts = tuple[tuple[str, "Location | None"], ...]
"""Names as an `after` spells them, each with its place."""


class Earlier:
    """The tasks so far, by every name that an `after` may use."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.number: dict[str, int] = {}
        self.spans: dict[str, list[tuple[int, int]]] = {}
        self._loose: list[tuple[str, str, Location | None, int]] = []  # task, what its after says, where, members found

    def add(self, task: Task) -> None:
        """The next task of the program."""
        self.number.setdefault(task.name, len(self.tasks))
        self.tasks.append(task)

    def stands_for(self, name: str, start: int) -> None:
        """From now on `name` stands for the tasks since number `start` as well."""
        self.spans.setdefault(name, []).append((start, len(self.tasks)))

    def find(self, task: str, texts: Texts, most: int) -> tuple[str, ...] | None:
        """The names of the earlier tasks that the `after` of `task` stands for; None if there are more than `most`.

        What is not found may stand later: `problems` tells.
        """
        found: dict[str, None] = {}
        members = 0
        for text, place in texts:
            if text in self.number:
                found[text] = None
                continue
            spans = self.spans.get(text, ())
            here = sum(stop - start for start, stop in spans)
            members += here
            if members > most:
                return None
            self._loose.append((task, text, place, here))
            for start, stop in spans:
                found.update((one.name, None) for one in self.tasks[start:stop])
        return tuple(found)

    def problems(self, failed: Collection[str]) -> Iterator[Problem]:
        """What some `after` names and is not there, or stands later, in whole or in part. `failed` entries are reported already."""
        total = {text: sum(stop - start for start, stop in spans) for text, spans in self.spans.items()}
        for task, text, place, members in self._loose:
            everywhere = total.get(text, 0)
            if text == task or task.partition("@")[0] == text:
                message, remedy = f"task '{task}' is after itself", "leave it out, or name one earlier member"
            elif text in self.number or (everywhere and not members):
                message, remedy = f"task '{task}' is after '{text}', which stands later", f"move '{text}' up"
            elif everywhere > members:
                message = f"task '{task}' is after all '{text}', some of which stand later"
                remedy = f"inside a group, name the member of the same item: {text}@$key"
            elif everywhere or text.partition("@")[0] in failed:
                continue
            else:
                close = near(text, [*self.number, *self.spans])
                remedy = f"did you mean '{close}'?" if close else "after names earlier tasks, families and groups"
                yield Problem("SG203", f"task '{task}' is after '{quoted(text)}', which is no task", place, remedy)
                continue
            yield Problem("SG207", message, place, remedy)


class Members:
    """Tensors by family, for `name@*`. Undeclared values count: theirs is the order in which they are first written."""

    def __init__(self, names: Iterable[str], families: Iterable[Family]) -> None:
        self._families = {family.name: family for family in families if family.keys}
        self._members: dict[str, list[str]] = {}
        for name in names:
            base, at, _ = name.partition("@")
            if at:
                self._members.setdefault(base, []).append(name)

    def matching(self, pattern: str) -> list[str]:
        """The names that a pattern such as `frame@*@front` selects, in order."""
        base, *parts = pattern.split("@")
        found = self._members.get(base, [])
        if all(part == "*" for part in parts):  # the common case, without looking at items
            return [name for name in found if name.count("@") == len(parts)]
        return [name for name in found if _fits(name.split("@")[1:], parts)]

    def nothing(self, pattern: str, doing: str, place: Location | None) -> Problem:
        """The problem that a pattern selects nothing."""
        family = self._families.get(pattern.partition("@")[0])
        if family is None:
            remedy = "name@* stands for the members of a family"
            return Problem("SG201", f"{doing} '{quoted(pattern)}', which matches nothing", place, remedy)
        remedy = f"its members are {family.members[0]} to {family.members[-1]}: write {family.name}{'@*' * len(family.keys)} for all"
        return Problem("SG202", f"{doing} '{quoted(pattern)}', which matches no member of '{family.name}'", place, remedy)


def _fits(items: list[str], parts: list[str]) -> bool:
    return len(items) == len(parts) and all(want in ("*", item) for want, item in zip(parts, items, strict=True))
