"""Text that fits: names cut to a number of character cells, times with a unit. For every picture that shows a user's names."""

from __future__ import annotations

import re
import unicodedata

from streamgraph.errors import quoted


def shown(text: str, limit: int = 120) -> str:
    """A name as any picture may show it: control, bidirectional and non-characters escaped, long ones cut."""
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text  # most names, and a report shows hundreds of thousands
    return re.sub("[\ufffe\uffff]", "\ufffd", quoted(text, limit))


def duration(microseconds: float) -> str:
    """A time with a unit and three digits: `180 us`, `1.52 ms`, `2.4 s`."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= 0.9995 * size:
            return f"{_three_digits(microseconds / size)} {unit}"
    return f"{_three_digits(microseconds)} us"


def _three_digits(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    text = f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"
    return text.rstrip("0").rstrip(".")


def cells(text: str) -> int:
    """How many character cells a text takes in a monospaced font: wide East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text
    )


def fitted(label: str, room: int, dots: str = "…") -> str:
    """The label in at most `room` cells: whole, or cut in the middle so that its member stays (`prep…@3`), or `@3`, `3`, or nothing.

    Where there is no member, the iteration stays: `prep…#3`.
    """
    if cells(label) <= room:
        return label
    family, mark, member = label.partition("@" if "@" in label else "#")
    tail = mark + member
    if tail and " " not in tail:
        if cells(tail) + cells(dots) + 2 <= room:
            return cut(family, room - cells(tail) - cells(dots)) + dots + tail
        if cells(tail) <= room:
            return tail
        if member and cells(member) <= room:
            return member
    return cut(label, room - cells(dots)) + dots if room >= cells(dots) + 3 else ""


def cut(text: str, room: int) -> str:
    """As much of the beginning as fits into `room` cells."""
    used = 0
    for end, character in enumerate(text):
        used += cells(character)
        if used > room:
            return text[:end]
    return text


def padded(text: str, room: int) -> str:
    """The text, cut or filled with spaces to exactly `room` cells."""
    short = cut(text, room)
    return short + " " * (room - cells(short))
