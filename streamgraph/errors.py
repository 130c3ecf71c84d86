"""What can go wrong, as one tree of exceptions and one catalogue of codes.

    StreamgraphError              never raised itself; catch it to catch all of these
    ├── SpecError                 the program as declared cannot be planned
    ├── ScheduleError             a schedule given as text or JSON cannot be read
    ├── VerificationError         a schedule orders too little: a race, a lifetime, a lost step
    ├── OperatorError             an operator is missing, refused, or does not fit its task
    ├── BindingError              the tensors given to a call do not fit the program
    ├── RunnerError               a runner was used in a way that has no meaning (closed, or busy)
    ├── DeviceError               the device or executor asked for is not here
    └── TaskError                 a task raised, or returned what it may not

Each one holds `problems`: all that were found, sorted by place, not only the first.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

SHOWN = 20  # problems printed in one go; the rest are counted
ALIKE = 3  # problems of one code at one place that are shown singly
QUOTED = 120  # characters of a user's text repeated in a message

CATALOGUE: dict[str, str] = {
    "SG001": "The file is not YAML. The parser's own words are shown with the place it stopped at.",
    "SG002": "A key stands twice in one mapping. YAML readers silently keep the last one; here both lines are shown.",
    "SG003": "A YAML tag (`!!python/...`, `!custom`) is not allowed: a spec is plain data.",
    "SG004": "Anchors, aliases and merge keys are not allowed: they hide what a task reads. Use `each` and `params`.",
    "SG005": "The file is nested too deeply.",
    "SG006": "The file cannot be read: it is missing, not a regular file, or too large.",
    "SG007": "A scalar or a name is too long.",
    "SG008": "The file holds more than one YAML document.",
    "SG009": "A spec is a mapping with the keys `streamgraph`, `name`, `tensors`, `tasks`, ...; this file holds something else.",
    "SG010": "The file is not UTF-8 text, or holds characters that cannot be printed.",
    "SG011": "Indentation by tabs is not YAML. Use spaces.",
    "SG012": "A file that was asked for could not be written, or stands there already.",
    "SG101": "A key that has no meaning at this place. The nearest known key is suggested.",
    "SG102": "A key that must be there is missing.",
    "SG103": "A value of the wrong kind: for example a list where a name belongs.",
    "SG104": "A time without a unit, or one that is not a finite number >= 0. Write `120us`, `1.5ms` or `2s`.",
    "SG105": "A number is outside what this place allows.",
    "SG106": "Not a tensor type. Write the dtype and the shape: `f16[8, 3]`, `f32[]`, `u8[3, 1080, 1920]`.",
    "SG107": "Trust is never a key of a spec: the caller chooses the operators, with `ops=` or `--ops`.",
    "SG108": "The format version (`streamgraph: 1`) is missing or unknown.",
    "SG109": "`$name` names no parameter and no `each` key of this place.",
    "SG110": "`$(...)` takes whole numbers, parameter names and `+ - * // %`, nothing else.",
    "SG201": "A task or a view names a tensor that nothing declares and no task writes.",
    "SG202": "A family has no such member (`frame@7` of 4).",
    "SG203": "`after` names a task that does not exist.",
    "SG204": "Not a name: letters, digits and `_`, joined by `.`; members follow an `@`. Some words are reserved.",
    "SG205": "Two things of one kind bear the same name.",
    "SG206": "One tensor stands twice in the accesses of one task.",
    "SG207": "`after` may only name earlier tasks: the order of the file is the order of the program.",
    "SG208": "A view does not fit the tensor it is a part of.",
    "SG209": "`each` takes a number, a range `a..b`, or a list; it must not be empty or too large.",
    "SG210": "An output names nothing that the program has.",
    "SG211": "A handle of an older version was used: its name has been written again since.",
    "SG212": "These keys do not go together, or mean nothing for this kind of tensor or task.",
    "SG213": "A cost was given for a task that does not exist.",
    "SG214": "A task, a stream or a ring slot is spread over several devices.",
    "SG301": "A task reads a tensor before anything has written it.",
    "SG302": "A buffer stands in `reads` and in `writes` of one task. To change it in place, write `updates`.",
    "SG303": "A ring has too few slots: the program needs more members at once.",
    "SG304": "A ring has more slots than members; the rest are never used. (warning)",
    "SG305": "Two expanded tasks over one key update one buffer outside a group, so that they run one after the other. (warning)",
    "SG306": "A copy from or to host memory that is not pinned blocks the thread that issues it and overlaps nothing. (warning)",
    "SG307": "A type is missing where it is needed: buffers, and tensors that a view is a part of.",
    "SG308": "A ring over iterations has slots that are never needed, or a single one where two would let iterations overlap. (warning)",
    "SG401": "No operator of that name was passed. A spec cannot import code: bring it with `ops=` or `--ops`.",
    "SG402": "The call that the spec describes does not fit the operator's signature.",
    "SG403": "The operator is refused: it touches files, processes or hidden state.",
    "SG404": "What was passed under that name is not callable.",
    "SG405": "The declared writes or updates are not those of the operator's schema.",
    "SG406": "A parameter bears the name of another tensor of the task: the arguments look swapped.",
    "SG407": "The file or module given as `--ops` could not be imported.",
    "SG501": "Inputs were not bound.",
    "SG502": "A tensor was passed that the program has no input for.",
    "SG503": "A tensor does not fit its declared type, shape, device or pinning.",
    "SG504": "A tensor that some task writes shares memory with another tensor of the run, or overlaps itself.",
    "SG505": "A family was bound to a list of the wrong length.",
    "SG506": "An input file could not be read.",
    "SG601": "A task raised.",
    "SG602": "A task returned something else than the tensors it declares to write.",
    "SG603": "A returned value shares memory with an argument or another output. Return a copy, or declare an update or a view.",
    "SG604": "The runner is closed.",
    "SG605": "The runner is already running: one run of a runner at a time.",
    "SG606": "The device or the executor that was asked for is not available here.",
    "SG607": "A task left another stream or device current than it found.",
    "SG608": "A result was used in a way it does not support.",
    "SG609": "A runner was called while the current stream is being captured into a CUDA graph.",
    "SG610": "A result could not be written to a file.",
    "SG611": "The program cannot be captured into a CUDA graph: it lies on several devices, or has host tasks where the caller captures.",
    "SG612": "This runner has no generated source: only executors that compile have one.",
    "SG613": "An input does not fit the CUDA graph that was captured with another one.",
    "SG614": "A CUDA graph could not be captured.",
    "SG615": "This executor has no loops (`runner.map`), or the loop repeats too late to be captured.",
    "SG701": "The schedule cannot be read.",
    "SG702": "The schedule does not belong to the program: a task is missing, repeated or unknown.",
    "SG703": "Race: two tasks that must be ordered are not.",
    "SG704": "A wait comes before its record, nothing records its event, or a record is misplaced: CUDA would silently not wait.",
    "SG705": "Memory is released while a lane may still use it, is used after its release, or is never released.",
    "SG706": "A `record_stream` that does nothing, or comes too late.",
    "SG707": "The schedule cannot be drawn that way: an unknown suffix, or too large for the format.",
    "SG901": "A defect in streamgraph itself.",
}


def quoted(text: object, limit: int = QUOTED) -> str:
    """A user's text, safe to print: control and bidirectional characters escaped, at most `limit` characters."""
    out: list[str] = []
    for character in str(text)[: limit + 1]:
        # Cc control, Cf format (bidi, zero width), Cs surrogates, Zl/Zp line breaks: all can lie to a reader's eye.
        unsafe = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        out.append(character.encode("unicode_escape").decode() if unsafe else character)
    if len(out) > limit:
        return "".join(out[:limit]) + "…"
    return "".join(out)


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file: 1-based line and column, the width to underline, and the text of the line."""

    file: str
    line: int
    column: int = 1
    width: int = 1
    text: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: a stable code, a sentence, where, what to do, and a second place if there is one."""

    code: str
    message: str
    location: Location | None = None
    help: str | None = None
    related: tuple[tuple[str, Location], ...] = ()
    severity: str = "error"

    def __str__(self) -> str:
        head = f"{self.severity}[{self.code}]: {self.message}"
        lines = [head] if self.location is None else [f"{self.location}: {head}", *_excerpt(self.location)]
        for label, place in self.related:
            lines += [f"   = note: {label}: {place}", *_excerpt(place)]
        if self.help:
            lines.append(f"   = help: {self.help}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        """Plain data for `--json`."""
        place = self.location
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "file": place.file if place else None,
            "line": place.line if place else None,
            "column": place.column if place else None,
            "help": self.help,
        }


def _excerpt(place: Location) -> list[str]:
    if not place.text.strip():
        return []
    # Show a window of a long line, so that the caret stays in sight.
    start = max(0, place.column - 1 - QUOTED // 2) if len(place.text) > QUOTED else 0
    shown = quoted(place.text[start : start + QUOTED].replace("\t", " "))
    number = str(place.line)
    pad = " " * len(number)
    caret = " " * (place.column - 1 - start) + "^" * max(1, min(place.width, len(shown) - (place.column - 1 - start)))
    return [f"{pad} |", f"{number} | {shown}", f"{pad} | {caret}"]


def by_place(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """The problems in the order a reader meets them: by file, line and column; those without a place last."""
    def key(problem: Problem) -> tuple[bool, str, int, int, str, str]:
        place = problem.location or Location("", 0)
        return (problem.location is None, place.file, place.line, place.column, problem.code, problem.message)

    return tuple(sorted(dict.fromkeys(problems), key=key))


def collapsed(problems: Iterable[Problem]) -> list[Problem]:
    """The problems, with more than three of one code at one place as one: `each` can make thousands of one mistake."""
    groups: dict[tuple[str, Location | None], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.code, problem.location), []).append(problem)
    result: list[Problem] = []
    for (_, place), alike in groups.items():
        if place is None or len(alike) <= ALIKE:
            result += alike
        else:
            result.append(replace(alike[0], message=f"{alike[0].message} (and {len(alike) - 1} more like it)"))
    return result


class StreamgraphError(Exception):
    """Anything that streamgraph raises on purpose. Never raised itself.

    `problems` holds all that were found; `str()` shows at most 20 of them, each with its place, its line and a remedy.
    """

    def __init__(self, *problems: Problem) -> None:
        self.problems = by_place(problems)
        super().__init__(*self.problems)

    def __str__(self) -> str:
        shown = [str(problem) for problem in self.problems[:SHOWN]]
        if len(self.problems) > SHOWN:
            shown.append(f"... and {len(self.problems) - SHOWN} more")
        return "\n".join(shown)


class SpecError(StreamgraphError):
    """The program as declared cannot be planned: a mistake in a spec file or in the calls of a `Graph`."""


class ScheduleError(StreamgraphError):
    """A schedule given as text or JSON cannot be read, or cannot be drawn as asked. One that reads but races is a `VerificationError`."""


class VerificationError(StreamgraphError):
    """The verifier found a schedule that is not safe. For a schedule that `plan` made, that is a defect in streamgraph."""


class OperatorError(StreamgraphError):
    """An operator is missing, refused, or its signature does not fit the call that the task describes."""


class BindingError(StreamgraphError):
    """The tensors given to `run`, `compile` or a runner do not fit the program's inputs."""


class RunnerError(StreamgraphError):
    """A runner was used after `close()`, from two places at once, or inside a capture that cannot hold it."""


class DeviceError(StreamgraphError):
    """The device or the executor that was asked for is not available on this machine."""


class TaskError(StreamgraphError):
    """A task raised (the original is `__cause__`), or returned what it may not. `task` and `lane` name it."""

    def __init__(self, problem: Problem, task: str = "", lane: str = "") -> None:
        super().__init__(problem)
        self.task = task
        self.lane = lane
