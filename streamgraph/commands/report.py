"""How a command speaks: the result on stdout and all else on stderr; or, with `--json`, one object on stdout and nothing else.

Colour never carries meaning alone. It is used on a terminal, or when asked for, and goes through rich; plain text is written as it is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from streamgraph.errors import SHOWN, Problem

FINE, WRONG, USAGE, FAILED, NO_DEVICE, DEFECT, INTERRUPTED = 0, 1, 2, 3, 4, 70, 130

# Names come from files that someone else may have written: nothing in them may move the cursor or turn the text around.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u2069\ufeff\ud800-\udfff]")
_STYLES = (
    (r"error\[SG\d+\]", "bold red"), (r"^error:", "bold red"), (r"warning\[SG\d+\]", "bold yellow"), (r"^ *\| *\^+$", "red"),
    (r"^   = help:", "cyan"), (r"^   = note:", "cyan"), (r"^Next:", "bold green"), (r"\b(RAW|WAR|WAW)\b", "magenta"),
)  # fmt: skip


class Report:
    """What one command has to say. `data` are the keys of its JSON object, beside `streamgraph`, `command`, `ok` and `problems`."""

    def __init__(
        self, command: str, *, as_json: bool = False, quiet: bool = False, verbose: bool = False, color: str = "auto"
    ) -> None:
        self.command, self.as_json, self.quiet, self.verbose, self.color = command, as_json, quiet, verbose, color
        self.data: dict[str, Any] = {}
        self.problems: list[Problem] = []

    def result(self, text: str, styles: Iterable[tuple[str, str]] = ()) -> None:
        """The answer itself, on stdout; `styles` are patterns of lines with rich's names of colours, for where there is colour."""
        if not self.as_json:
            self._write(sys.stdout, text, styles)

    def say(self, text: str) -> None:
        """A remark, on stderr; `--quiet` leaves it out."""
        if not self.as_json and not self.quiet:
            self._write(sys.stderr, text)

    def detail(self, text: str) -> None:
        """A remark for `--verbose` alone."""
        if self.verbose:
            self.say(text)

    def next(self, *commands: str) -> None:
        """What one would type now, on stderr."""
        if commands:
            self.say("\n".join([f"Next:  streamgraph {commands[0]}", *(f"       streamgraph {command}" for command in commands[1:])]))

    def tell(self, problems: Iterable[Problem], *, show: bool = True) -> None:
        """Errors and warnings: on stderr, at most 20 of them (all with `--verbose`); `--quiet` leaves warnings out."""
        fresh = list(problems)
        self.problems += fresh
        if self.as_json or not show:
            return
        heard = [problem for problem in fresh if problem.severity == "error" or not self.quiet]
        shown = heard if self.verbose else heard[:SHOWN]
        lines = [str(problem) for problem in shown]
        if len(heard) > len(shown):
            lines.append(f"... and {len(heard) - len(shown)} more (--verbose shows all)")
        if lines:
            self._write(sys.stderr, "\n".join(lines))

    def error(self, text: str) -> None:
        """A failure that has no code, on stderr."""
        if not self.as_json:
            self._write(sys.stderr, f"error: {text}")

    def close(self, code: int, error: str | None = None) -> None:
        """The end of a command: with `--json`, its object."""
        if self.as_json:
            head = {"streamgraph": 1, "command": self.command, "ok": code == FINE, "exit_code": code}
            tail = {"error": error} if error is not None else {}
            body = {**head, **tail, "problems": [problem.to_dict() for problem in self.problems], **self.data}
            sys.stdout.write(json.dumps(body, indent=2, ensure_ascii=True, allow_nan=False) + "\n")
        sys.stdout.flush()

    def _write(self, stream: TextIO, text: str, styles: Iterable[tuple[str, str]] = ()) -> None:
        text = _UNSAFE.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text).rstrip("\n") + "\n"
        if not coloured(self.color, stream):
            stream.write(text)
            stream.flush()
            return
        from rich.console import Console
        from rich.text import Text

        styled = Text(text, end="")
        for pattern, style in (*styles, *_STYLES):
            styled.highlight_regex(re.compile(pattern, re.MULTILINE), style)
        console = Console(file=stream, force_terminal=True, color_system="standard", no_color=False, highlight=False, legacy_windows=False)
        console.print(styled, soft_wrap=True, end="")


def coloured(color: str, stream: TextIO) -> bool:
    """Whether to colour: as asked for, else by NO_COLOR, TERM=dumb, FORCE_COLOR, else if the stream is a terminal."""
    if color != "auto":
        return color == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def width() -> int:
    """The columns of the terminal; 100 where there is none."""
    return max(40, shutil.get_terminal_size((100, 24)).columns)


def aligned(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "") -> str:
    """Rows as columns, two spaces apart. Columns in `right` are set flush right; the last one is not padded."""
    from streamgraph.render.fit import cells

    count = max((len(row) for row in rows), default=0)
    sizes = [max((cells(row[column]) for row in rows if column < len(row)), default=0) for column in range(count)]
    lines = []
    for row in rows:
        parts = []
        for column, text in enumerate(row):
            gap = " " * (sizes[column] - cells(text))
            parts.append(gap + text if column in right else text if column == len(row) - 1 else text + gap)
        lines.append((indent + "  ".join(parts)).rstrip())
    return "\n".join(lines)


def many(count: int, noun: str, plural: str | None = None) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"
