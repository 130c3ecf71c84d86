"""Seats: members of a ring become places in its slots. Member number i along the key that the ring turns over sits in slot i mod slots."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamgraph.model import Family


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a ring member sits: the names that share its slot, in turn, its own turn, and the slot's number."""

    family: str
    group: tuple[str, ...]
    slot: int
    turn: int


def seats(families: Iterable[Family]) -> dict[str, Seat]:
    """The seat of every member of a ring over an `each` key. Keys other than `over` make separate rings."""
    result: dict[str, Seat] = {}
    for family in families:
        keys = [key for key, _ in family.keys]
        if family.slots is None or family.slots < 1 or family.over not in keys:
            continue  # a ring over iterations has one occupant per run; fewer slots than one is reported by `validate`
        axis = keys.index(family.over)
        inner = 1  # members that follow one another before the `over` key advances
        for _, items in family.keys[axis + 1 :]:
            inner *= len(items)
        length = len(family.keys[axis][1])
        groups: dict[tuple[int, int], list[str]] = {}
        place: list[tuple[tuple[int, int], int]] = []
        for number, member in enumerate(family.members):
            step = number // inner % length
            ring = number // (inner * length) * inner + number % inner
            where = (ring, step % family.slots)
            groups.setdefault(where, []).append(member)
            place.append((where, step // family.slots))
        rings = len(family.members) // length
        shared = {where: tuple(group) for where, group in groups.items()}
        for member, (where, turn) in zip(family.members, place, strict=True):
            slot = where[1] if rings == 1 else where[0] * family.slots + where[1]
            result[member] = Seat(family.name, shared[where], slot, turn)
    return result
