"""`$name`, `${name}` and `$(expression)` in texts become numbers and words; `each` becomes items.

That is all the interpolation there is: whole numbers, `+ - * // %`, names of params and `each` keys. Expressions are checked with `ast` and
computed here, never by `eval`; every size is bounded.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from streamgraph.errors import Problem, quoted
from streamgraph.names import near
from streamgraph.spec.reader import LONGEST_SCALAR

Scope: TypeAlias = Mapping[str, "int | str"]
LARGEST = (1 << 63) - 1
LONGEST_EXPRESSION = 200
MOST_ITEMS = 1_000_000

KEY = re.compile(r"[^\W\d]\w*\Z")
_DOLLAR = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<braced>\w+)\}|(?P<name>\w+)|(?P<open>\())?")
_TOKENS = re.compile(r"(?:\s+|[^\W\d]\w*|[0-9]{1,19}(?!\w)|//|[-+*%()])*\Z")
_RANGE = re.compile(r"\s*([0-9]{1,18})\s*\.\.\s*([0-9]{1,18})\s*\Z")


class Unfit(ValueError):
    """A text that cannot be interpolated or expanded: the code, a sentence, and what to do."""

    def __init__(self, code: str, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.problem = Problem(code, message, None, remedy)


def interpolate(text: str, scope: Scope) -> str:
    """The text with every `$` form replaced.

    Raises:
        Unfit: SG109 an unknown name, SG110 a bad expression or a lone dollar.
    """
    return text if "$" not in text else _bounded_text("".join(str(piece) for piece in _pieces(text, scope)))


def value_of(text: str, scope: Scope) -> int | str:
    """As `interpolate`, but a text that is one `$` form and nothing else keeps its type: a number stays a number."""
    if "$" not in text:
        return text
    pieces = list(_pieces(text, scope))
    return pieces[0] if len(pieces) == 1 else _bounded_text("".join(map(str, pieces)))


def _bounded_text(text: str) -> str:
    if len(text) > LONGEST_SCALAR:
        raise Unfit("SG007", f"a text becomes {len(text)} characters long; {LONGEST_SCALAR} are allowed", "shorten it")
    return text


def _pieces(text: str, scope: Scope) -> Iterator[int | str]:
    done = 0
    while True:
        match = _DOLLAR.search(text, done)
        if match is None:
            break
        if match.start() > done:
            yield text[done : match.start()]
        done = match.end()
        name = match["braced"] or match["name"]
        if match["dollar"]:
            yield "$"
        elif name:
            yield _lookup(name, scope)
        elif match["open"]:
            stop = _closing(text, done)
            yield evaluate(text[done:stop], scope)
            done = stop + 1
        else:
            raise Unfit("SG110", f"'{quoted(text)}' has a lone '$'", "write $name, $(expression), or $$ for a dollar")
    if done < len(text):
        yield text[done:]


def _closing(text: str, start: int) -> int:
    depth = 1
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    raise Unfit("SG110", f"'{quoted(text)}' has a '$(' that is not closed", "add the ')'")


def _lookup(name: str, scope: Scope) -> int | str:
    if name in scope:
        return scope[name]
    close = near(name, scope)
    known = f"known here: {', '.join(scope)}" if scope else "declare it under params, or as a key of each"
    if close is None and any(name.startswith(key) for key in scope):
        known += "; put the name into braces, as ${name}, where letters follow it"
    remedy = f"did you mean '${close}'?" if close else known
    raise Unfit("SG109", f"'${quoted(name)}' is no parameter and no each key of this place", remedy)


@lru_cache(4096)
def _parse(expression: str) -> ast.expr:
    remedy = "whole numbers, names and + - * // % are allowed, like $(layer + 1)"
    if len(expression) > LONGEST_EXPRESSION:
        raise Unfit("SG110", f"an expression has {len(expression)} characters; {LONGEST_EXPRESSION} are allowed", "use params")
    if "$" in expression:
        raise Unfit("SG110", f"'$({quoted(expression)})' has a '$' inside", "names inside $( ) are written without it")
    if _TOKENS.match(expression) is None:
        raise Unfit("SG110", f"'$({quoted(expression)})' is not an expression of whole numbers", remedy)
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Unfit("SG110", f"'$({quoted(expression)})' is not an expression of whole numbers", remedy) from None
    allowed = (
        ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd, ast.Load
    )  # fmt: skip
    for node in ast.walk(tree):
        if not isinstance(node, allowed) or (isinstance(node, ast.Constant) and type(node.value) is not int):
            raise Unfit("SG110", f"'$({quoted(expression)})' is not an expression of whole numbers", remedy)
    return tree


def evaluate(expression: str, scope: Scope) -> int:
    """The whole number that an expression stands for.

    Raises:
        Unfit: SG109 an unknown name, SG110 anything but whole numbers and `+ - * // %`, a division by zero, a result beyond 64 bits.
    """
    return _value(_parse(expression), expression, scope)


def _value(node: ast.expr, expression: str, scope: Scope) -> int:
    # Recursion is bounded by the length of an expression.
    result: int
    match node:
        case ast.Constant(value=int(number)):
            result = number
        case ast.Name(id=name):
            found = _lookup(name, scope)
            if not isinstance(found, int):
                raise Unfit("SG110", f"'{name}' in '$({quoted(expression)})' is the word '{quoted(found)}', not a number", "use numbers")
            result = found
        case ast.UnaryOp(op=operator, operand=operand):
            inner = _value(operand, expression, scope)
            result = -inner if isinstance(operator, ast.USub) else inner
        case ast.BinOp(left=left, op=operation, right=right):
            first, second = _value(left, expression, scope), _value(right, expression, scope)
            if second == 0 and isinstance(operation, (ast.FloorDiv, ast.Mod)):
                raise Unfit("SG110", f"'$({quoted(expression)})' divides by zero", "check the params")
            match operation:
                case ast.Add():
                    result = first + second
                case ast.Sub():
                    result = first - second
                case ast.Mult():
                    result = first * second
                case ast.FloorDiv():
                    result = first // second
                case _:
                    result = first % second
        case _:
            raise AssertionError("bug in streamgraph: an expression passed the check and cannot be computed")
    if not -LARGEST <= result <= LARGEST:
        raise Unfit("SG110", f"'$({quoted(expression)})' does not fit 64 bits", "use smaller numbers")
    return result


# --- each ---------------------------------------------------------------------------------------------------------------------------

Keys: TypeAlias = tuple[tuple[str, tuple["int | str", ...]], ...]


def items_of(key: str, given: int | str | Sequence[int | str], scope: Scope) -> tuple[int | str, ...]:
    """The items of one `each` key: n is 0 to n-1, `a..b` both ends in either direction, a list is itself.

    Raises:
        Unfit: SG209 none, too many, twice the same, or not such a thing; SG109 and SG110 from interpolation.
    """
    if KEY.match(key) is None:
        raise Unfit("SG204", f"the each key '{quoted(key)}' is not a name of letters, digits and '_'", "begin it with a letter")
    if key in scope:
        raise Unfit("SG205", f"'{key}' is already the name of a parameter or of an outer each key", "choose another name")
    result: tuple[int | str, ...]
    if isinstance(given, (int, str)):
        value = value_of(given, scope) if isinstance(given, str) else given
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
            value = int(value)
        ends = _RANGE.match(value) if isinstance(value, str) else None
        if isinstance(value, int):
            _bounded(key, value)
            result = tuple(range(value))
        elif ends is not None:
            first, last = int(ends[1]), int(ends[2])
            _bounded(key, abs(last - first) + 1)
            result = tuple(range(first, last + 1) if first <= last else range(first, last - 1, -1))
        else:
            remedy = "write a number (0 to n-1), a range like 0..3 from 0 up, or a list"
            raise Unfit("SG209", f"'{quoted(value)}' is not a number of items, a range or a list for the each key '{key}'", remedy)
    else:
        _bounded(key, len(given))
        result = tuple(value_of(item, scope) if isinstance(item, str) else item for item in given)
    seen: set[str] = set()
    for item in result:
        if not (item >= 0 if isinstance(item, int) else re.fullmatch(r"\w{1,256}", item)):
            remedy = "items are whole numbers from 0, or words of letters and digits"
            raise Unfit("SG209", f"'{quoted(item)}' cannot be an item of '{key}'", remedy)
        if str(item) in seen:
            raise Unfit("SG209", f"the item '{quoted(item)}' of '{key}' stands twice", "members must differ")
        seen.add(str(item))
    return result


def _bounded(key: str, count: int) -> None:
    if not 1 <= count <= MOST_ITEMS:
        remedy = "give at least one item" if count < 1 else f"at most {MOST_ITEMS} are allowed"
        raise Unfit("SG209", f"each key '{key}' has {count} items", remedy)


def combinations(keys: Keys) -> Iterator[tuple[int | str, ...]]:
    """Every choice of one item per key, the first key slowest. Without keys there is one, the empty one."""
    return itertools.product(*(items for _, items in keys))


def count(keys: Keys) -> int:
    """How many combinations there are."""
    return math.prod(len(items) for _, items in keys)


def member(name: str, items: Sequence[int | str]) -> str:
    """The name of a member: `frame@0@front`."""
    return "@".join((name, *map(str, items)))
