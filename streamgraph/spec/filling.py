"""Filling: texts, times and constants with `$` forms become those of one member, within bounds; what is wrong is reported once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamgraph.errors import Location, Problem, quoted
from streamgraph.model import parse_time
from streamgraph.spec.declare import placed
from streamgraph.spec.document import Document, Path
from streamgraph.spec.interpolate import Scope, Unfit, interpolate
from streamgraph.spec.template import frozen

MOST_CHARACTERS = 200_000_000  # made by interpolation, all in all
_MOST_FORMS = 20_000_000  # `$` forms computed, all in all: some 20 seconds


class TooLarge(Exception):
    """The program has more tasks, accesses or texts than allowed; expansion stops."""


class Filling:
    """Fills in for one document, whose bounds all members share. A text that could not be filled in for one member is not tried again."""

    def __init__(self, document: Document, report: Callable[[Problem], None]) -> None:
        self.document, self.report = document, report
        self._costs: dict[str, float | None] = {}
        self._unfit: set[Path] = set()
        self._forms = self._characters = 0

    def text(self, text: str, scope: Scope, path: Path) -> str:
        """The text at `path`, interpolated; "unknown" if that cannot be done."""
        if "$" not in text:
            return text
        found = self.texts((text,), scope, path, None)
        return "unknown" if found is None else found[0]

    def texts(self, texts: tuple[str, ...], scope: Scope, path: Path, place: Location | None) -> tuple[str, ...] | None:
        """The texts at `path`, interpolated; None if that cannot be done, which is reported the first time."""
        if path in self._unfit:
            return None
        try:
            found: list[str] = []
            for text in texts:
                if "$" in text:
                    self.spend(text.count("$"), 0)
                    text = interpolate(text, scope)
                    self.spend(0, len(text))
                found.append(text)
            return tuple(found)
        except Unfit as error:
            self._unfit.add(path)
            self.report(placed(error.problem, place or self.document.place(path)))
            return None

    def spend(self, forms: int, characters: int) -> None:
        """Count what a member takes. Raises TooLarge."""
        self._forms += forms
        self._characters += characters
        if self._forms > _MOST_FORMS or self._characters > MOST_CHARACTERS:
            raise TooLarge

    def cost(self, text: str, path: Path) -> float | None:
        """The microseconds that a text says; None, reported, if it says none."""
        if text not in self._costs:
            self._costs[text] = None
            try:
                self._costs[text] = parse_time(text)
            except ValueError as error:
                if text != "unknown":
                    remedy = "write a finite number >= 0 with its unit: 120us, 1.5ms or 2s"
                    self.report(Problem("SG104", quoted(error, 300), self.document.place(path), remedy))
        return self._costs[text]

    def const(self, value: Any, scope: Scope, path: Path) -> Any:
        """One constant, frozen; None, reported, if it cannot be interpolated."""
        if path in self._unfit:
            return None
        try:
            return frozen(value, scope)
        except Unfit as error:
            self._unfit.add(path)
            self.report(placed(error.problem, self.document.place(path)))
            return None
