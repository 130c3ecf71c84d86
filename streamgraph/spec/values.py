"""What a place of a spec may hold, read into its one long form: scalars, lists and the short forms of both.

A mistake is a pydantic error with a code, a sentence and a remedy, raised at the place of the mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError

from streamgraph.errors import quoted
from streamgraph.spec.document import Path, Plain

LARGEST_INTEGER = (1 << 63) - 1
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_NUMBER = re.compile(
    r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?0[xo][0-9a-fA-F]+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"
)
_NUMERIC = frozenset("+-.0123456789")
_FLAGS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def wrong(code: str, message: str, remedy: str | None = None, at: Path = ()) -> PydanticCustomError:
    """An error that the caller turns into a Problem at the place `at` below the field. Braces in the user's text are left alone."""
    return PydanticCustomError("streamgraph", "{message}", {"code": code, "message": message, "help": remedy, "at": at})


def described(value: object) -> str:
    """What a value is, for the end of "expected a name, got ..."."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case Plain() if value in _FLAGS:
            return f"the flag {value}"
        case Plain() if _NUMBER.match(value):
            return f"the number {quoted(value, 40)}"
        case str():
            return f"the text '{quoted(value, 40)}'"
        case int() | float():
            return f"the number {value}"
        case Mapping():
            return "a mapping"
        case _:
            return "a list"


# --- one scalar ---------------------------------------------------------------------------------------------------------------------


def text(value: object, what: str = "text", at: Path = ()) -> str:
    """A text as it was written. Numbers and flags are not texts unless quoted: `run: 3` is a slip, `on` and `12:30` are texts."""
    # Names make up most of a large spec, and what begins like a name is no number.
    if not isinstance(value, str) or (type(value) is Plain and (value in _FLAGS or (value[:1] in _NUMERIC and _NUMBER.match(value)))):
        remedy = "quote it if it is meant as text" if isinstance(value, (Plain, int, float)) else None
        raise wrong("SG103", f"expected {what}, got {described(value)}", remedy, at)
    return str(value)


def whole(value: object, at: Path = ()) -> int | str:
    """A decimal whole number inside int64, or a text with `$` that becomes one."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and "$" in value:
        return str(value)
    elif isinstance(value, Plain) and _INTEGER.match(value):
        number = int(value) if len(value) <= 20 else LARGEST_INTEGER + 1  # never int() of thousands of digits
    elif isinstance(value, float) or (isinstance(value, Plain) and _NUMBER.match(value)):
        raise wrong("SG105", f"expected a whole number, got {described(value)}", "write decimal digits, without leading zeros", at)
    else:
        raise wrong("SG103", f"expected a whole number, got {described(value)}", None, at)
    if not -LARGEST_INTEGER <= number <= LARGEST_INTEGER:
        raise wrong("SG105", "this number does not fit 64 bits", "write a smaller number", at)
    return number


def flag(value: object) -> bool:
    """`true` or `false`; not yes, on or 1."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Plain) and value in _FLAGS:
        return _FLAGS[value]
    raise wrong("SG103", f"expected true or false, got {described(value)}", "write true or false, without quotes")


def time(value: object) -> str:
    """A time with its unit, not yet read."""
    bare = _NUMBER.match(value) is not None if isinstance(value, Plain) else isinstance(value, (int, float)) and not isinstance(value, bool)
    if bare:
        raise wrong("SG104", f"a time needs a unit, got {described(value)}", "write the unit: 120us, 1.5ms or 2s")
    return text(value, "a time")


# --- lists and short forms ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One argument as written: names or patterns, whether they are one list, the keyword, and where it stands below its field."""

    names: tuple[str, ...]
    is_list: bool = False
    keyword: str | None = None
    at: Path = ()


def entries(value: object) -> tuple[Entry, ...]:
    """What `reads`, `writes` and `updates` hold: a name, a list of names and lists, or a mapping from keyword to these."""
    match value:
        case str():
            return (Entry((text(value, "the name of a tensor"),)),)
        case list() | tuple():
            return tuple(_entry(item, None, (number,)) for number, item in enumerate(value))
        case Mapping():
            return tuple(_entry(item, str(key), (key,)) for key, item in value.items())
    raise wrong("SG103", f"expected the name of a tensor, a list of them, or a mapping from keyword to name, got {described(value)}")


def _entry(value: object, keyword: str | None, at: Path) -> Entry:
    if isinstance(value, (list, tuple)):
        return Entry(tuple(text(name, "the name of a tensor", (*at, n)) for n, name in enumerate(value)), True, keyword, at)
    return Entry((text(value, "the name of a tensor", at),), False, keyword, at)


def names(value: object) -> tuple[str, ...]:
    """A name or a list of them."""
    if isinstance(value, (list, tuple)):
        return tuple(text(name, "a name", (number,)) for number, name in enumerate(value))
    return (text(value, "a name or a list of names"),)


def outputs(value: object) -> dict[str, str] | tuple[str, ...]:
    """As `names`, or a mapping that gives tensors other names."""
    if isinstance(value, Mapping):
        return {str(key): text(name, "the name of a tensor", (key,)) for key, name in value.items()}
    return names(value)


def each(value: object) -> dict[str, int | str | tuple[int | str, ...]]:
    """Items by key: a number, a range `a..b` as it is written, or a list."""
    if not isinstance(value, Mapping):
        remedy = "write the key that the items go by: each: {cam: 4}"
        raise wrong("SG103", f"expected a mapping from key to items, got {described(value)}", remedy)
    result: dict[str, int | str | tuple[int | str, ...]] = {}
    for key, items in value.items():
        if isinstance(items, (list, tuple)):
            result[str(key)] = tuple(_item(item, (key, number)) for number, item in enumerate(items))
        elif isinstance(items, str) and ".." in items:
            result[str(key)] = str(items)
        else:
            try:
                result[str(key)] = whole(items, (key,))
            except PydanticCustomError as error:
                remedy = "write a number (0 to n-1), a range a..b with both ends, or a list"
                raise wrong("SG209", f"'{quoted(key)}' has no items: {(error.context or {})['message']}", remedy, (key,)) from None
    return result


def _item(value: object, at: Path) -> int | str:
    if _INTEGER.match(value) if isinstance(value, Plain) else isinstance(value, int) and not isinstance(value, bool):
        return whole(value, at)
    if isinstance(value, str):
        return str(value)
    raise wrong("SG103", f"expected a number or a word, got {described(value)}", None, at)


def const(value: object) -> dict[str, Any]:
    """Constants by keyword, typed."""
    if not isinstance(value, Mapping):
        raise wrong("SG103", f"expected a mapping from keyword to constant, got {described(value)}", "write const: {dim: 1}")
    return {str(key): typed(item, (key,)) for key, item in value.items()}


def typed(value: object, at: Path = ()) -> Any:
    """Plain data by YAML 1.2's core rules: null, flags, integers, floats, text; lists become tuples. Texts with `$` stay as they are."""
    match value:
        case Mapping():
            return {str(key): typed(item, (*at, key)) for key, item in value.items()}
        case list() | tuple():
            return tuple(typed(item, (*at, number)) for number, item in enumerate(value))
        case Plain() if value in _FLAGS:
            return _FLAGS[value]
        case Plain() if _NUMBER.match(value):
            return _number(value, at)
        case float() if value - value != 0:  # infinite or not a number
            raise wrong("SG105", f"{value} is not a finite number", None, at)
        case int() if not isinstance(value, bool):
            return whole(value, at)
    return value


def _number(value: str, at: Path) -> int | float:
    base = {"x": 16, "o": 8}.get(value.lstrip("+-")[1:2])
    if base is not None:
        if len(value) > 24:
            raise wrong("SG105", "this number does not fit 64 bits", "write a smaller number", at)
        try:
            return int(whole(int(value, base), at))
        except ValueError:
            raise wrong("SG105", f"'{value}' is not a number", None, at) from None
    digits = value.lstrip("+-")
    if digits.isdigit():
        if digits != "0" and digits[0] == "0":
            remedy = "write it without leading zeros, as 0o17, or quoted"
            raise wrong("SG105", f"'{quoted(value, 40)}' could be decimal or octal", remedy, at)
        return int(whole(Plain(value.lstrip("+")), at))
    number = float(value) if digits[1:4].lower() not in ("inf", "nan") else float("inf")
    if number - number != 0:
        raise wrong("SG105", f"'{quoted(value, 40)}' is not a finite number", None, at)
    return number
