"""Names: what may be one, which one was probably meant, and what is said of one that nothing bears."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Collection, Iterable
from functools import lru_cache

from streamgraph.errors import Location, Problem, quoted
from streamgraph.model import MEMBER, NAME, Program

LONGEST_NAME = 256
_COMPARED = 5_000  # names that a suggestion is looked for among: difflib is slow, and a hint need not be complete


def near(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be, or None."""
    if len(word) > LONGEST_NAME:
        return None
    candidates = [name for name, _ in zip(known, range(_COMPARED), strict=False)]
    close = difflib.get_close_matches(word, candidates, 1, 0.6)
    return close[0] if close else None


def name_fault(name: str, *, member: bool = False) -> str | None:
    """Why `name` is not a name, as the end of a sentence, or None if it is one. `member` allows `w@3`."""
    if len(name) > LONGEST_NAME:
        return f"has {len(name)} characters; {LONGEST_NAME} are allowed"
    if name.isascii() and (MEMBER if member else NAME).match(name) is not None:
        return None  # nearly all names: the rest is about Unicode
    if unicodedata.normalize("NFC", name) != name:
        return "is not in Unicode's composed form (NFC), so it may look like another name and differ from it"
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs") for character in name):
        return "holds invisible characters"
    if (MEMBER if member else NAME).match(name) is None:
        return "is not a name: letters, digits and '_', joined by '.'" + ("; members follow an '@'" if member else "")
    return None


@lru_cache(maxsize=1024)
def operator_fault(name: str) -> Problem | None:
    """Why `run: name` can name no operator at all, whatever the caller passes, or None. The place is left open."""
    remedy = "a spec names an operator that the caller brings with ops= or --ops, or one of torch's, like aten.mm; it never imports code"
    if name_fault(name) is not None:
        return Problem("SG204", f"'{quoted(name)}' is not the name of an operator", None, remedy)
    parts = name.split(".")
    # torch's own private operators (aten._softmax) are operators; Python's private names and double underscores lead elsewhere.
    if any(part.startswith("__") or (part.startswith("_") and parts[0] != "aten") for part in parts):
        return Problem("SG403", f"'{quoted(name)}' is refused: a part of it begins with an underscore", None, remedy)
    return None


def is_broken(name: str, broken: Collection[str]) -> bool:
    """Whether the declaration of a tensor, or of its family, is reported already."""
    return bool(broken) and (name in broken or name.partition("@")[0] in broken)


def unknown_tensor(program: Program, doing: str, name: str, place: Location | None, hint: bool) -> Problem:
    """What is wrong where `doing` (the beginning of the sentence) names a tensor that the program does not have."""
    base, _, item = name.partition("@")
    members = next((f.members for f in program.families if f.name == base), ())
    if members and item:
        shown = f"{members[0]} to {members[-1]}" if len(members) > 4 else ", ".join(members)
        return Problem("SG202", f"{doing} '{quoted(name)}', but '{base}' has {len(members)} members", place, f"they are {shown}")
    if members:
        return Problem("SG201", f"{doing} '{base}', which is a family of {len(members)}", place, f"write {base}@* for all of them")
    close = near(name, program.tensor_named) if hint else None
    remedy = f"did you mean '{close}'?" if close else "declare it under tensors, or let an earlier task write it"
    return Problem("SG201", f"{doing} unknown tensor '{quoted(name)}'", place, remedy)
