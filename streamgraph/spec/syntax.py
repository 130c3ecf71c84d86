"""Where a text stops being YAML: the parser's words become a Problem, with the remedy for the mistake that is most likely behind them."""

from __future__ import annotations

import re

import yaml

from streamgraph.errors import Problem
from streamgraph.spec.document import location

_QUOTES = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|(?:^|\s)#.*")


def syntax_problem(error: yaml.YAMLError, file: str, lines: tuple[str, ...], deepest: int) -> Problem:
    """What is wrong where the parser gave up. `deepest` is how far a spec may be nested."""
    mark = getattr(error, "problem_mark", None)
    said = getattr(error, "problem", None) or str(error)
    context = getattr(error, "context", None)
    line, column = (min(mark.line, len(lines) - 1), mark.column) if mark is not None else (0, 0)
    text = lines[line] if lines else ""
    place = location(file, lines, (line, column, 1))
    if "\t" in text[: len(text) - len(text.lstrip())]:
        return Problem("SG011", "this line is indented with a tab", place, "use spaces")
    if "nesting depth" in said:  # libyaml's own limit; it looks ahead, past ours
        return Problem("SG005", f"nested deeper than {deepest} levels", place, "a spec needs far less: flatten it")
    remedy = _trap(text, said, context) or (_trap(lines[line - 1], said, context) if line and "flow" in str(context) else None)
    return Problem("SG001", f"this is not YAML: {f'{context}, ' if context else ''}{said}", place, remedy or _general(text, said))


def _trap(text: str, said: str, context: object) -> str | None:
    """The help for brackets inside brackets, which no YAML reader takes without quotes."""
    bare = _QUOTES.sub("", text)
    if "flow" not in str(context) and "flow" not in said and "block" not in str(context):
        return None
    if re.search(r"[\[{][^\[\]{}]*\$\{", bare):
        return "`{` is not allowed inside [ ] and { }: write $name instead of ${name}, or quote the item"
    if re.search(r"[\[{,:]\s*[\w.@$]+\[", bare):
        return 'inside [ ] and { } a text with brackets must be quoted: type: "f16[8, 3]", view: "batch[0:2]"'
    return None


def _general(text: str, said: str) -> str:
    if "mapping values are not allowed" in said:
        return "quote a text that holds ': ', and check that the keys of one mapping are indented alike"
    if "cannot start any token" in said:
        return "quote a text that begins with @, %, ` or another special character"
    if "[" in text or "{" in text:
        return "close every bracket, and quote texts that hold [ ] { } or a comma"
    return "check the indentation, the quotes and the colons of this line and the one before"
