"""Machine: what a computer costs and holds, as far as a prediction of a schedule's time needs it. Read from JSON, shipped or measured.

Three profiles come with the package (`profiles/*.json`): `gpu`, a typical card in round figures, which is what is assumed when nothing is
said; `h200`, measured on one; and `cpu`. `streamgraph doctor --measure -o FILE` measures the machine at hand. Times are microseconds, rates
bytes per microsecond (which is MB/s).
"""

from __future__ import annotations

import difflib
import json
import math
import os
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, Union

from streamgraph.errors import Location, Problem, SpecError, quoted

VERSION_KEY, VERSION = "streamgraph_machine", 1
SHIPPED = ("gpu", "h200", "cpu")
DEFAULT_MACHINE = "gpu"
LARGEST = 1 << 20  # bytes of a profile; a real one has some hundred


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine. Every field but the first two is a finite number.

    The issuing thread, for each call (eager): `launch` of a task whose own issue time is not known, `step` that the executor adds to a
    task whose issue time is known, `switch` of the current stream, `record`, `wait`, `host_wait`, `record_stream`, `release`, `call`
    once per run. In a captured graph all of these are zero, but for `replay` once per run.

    The device: `smallest` is what a kernel or copy takes whatever its size; `handover` passes between the end of a task and the start of
    one on another lane that waits for it, `captured_handover` likewise in a captured graph, where each further wait of one task costs
    `captured_branch`.

    Kernels that run side by side slow each other down by `interference` (0 to 1) times what the others fill, and more where they fill more
    than the device together (`simulate`).

    Rates: `h2d`, `d2h` over the link, `memory` in the device's own memory. A kernel of `elements` for each of
    the `multiprocessors` fills the device. `model_error` is the mean relative error that predictions of whole programs had, measured (0:
    never measured); no gain smaller than this should be believed.
    """

    name: str
    device: str
    launch: float
    step: float
    switch: float
    record: float
    wait: float
    host_wait: float
    record_stream: float
    release: float
    call: float
    replay: float
    smallest: float
    handover: float
    captured_handover: float
    captured_branch: float
    interference: float
    h2d: float
    d2h: float
    memory: float
    multiprocessors: float
    elements: float
    model_error: float

    def to_json(self) -> str:
        """The profile as a file holds it."""
        return json.dumps({VERSION_KEY: VERSION, **asdict(self)}, indent=1) + "\n"


AnyMachine: TypeAlias = Union[Machine, str, "os.PathLike[str]", None]
"""A Machine, the name of a shipped profile, the path of a file, or None for the default."""

_TEXTS = ("name", "device")
_NUMBERS = tuple(field.name for field in fields(Machine) if field.name not in _TEXTS)
_POSITIVE = frozenset({"h2d", "d2h", "memory", "multiprocessors", "elements"})


def as_machine(machine: AnyMachine = None) -> Machine:
    """The machine that was meant.

    Raises:
        SpecError: the file cannot be read (SG006), is no profile (SG009, SG108), or what is wrong with its keys, all at once.
    """
    if isinstance(machine, Machine):
        return machine
    name = DEFAULT_MACHINE if machine is None else os.fspath(machine)
    if name in SHIPPED:
        return _shipped(name)
    return parse_machine(read_json_file(name, "a machine profile", f"name a file, or one of: {', '.join(SHIPPED)}"), name)


@lru_cache(maxsize=len(SHIPPED))
def _shipped(name: str) -> Machine:
    from importlib.resources import files

    return parse_machine((files("streamgraph") / "profiles" / f"{name}.json").read_text(encoding="utf-8"), f"{name}.json")


def parse_machine(text: str, file: str = "<text>") -> Machine:
    """The machine that a profile's text describes. Errors as `as_machine`."""
    data = json_mapping(text, file, VERSION_KEY, VERSION, "a machine profile")
    place = Location(quoted(file), 1)
    problems: list[Problem] = []
    for key in data:
        if key not in (VERSION_KEY, *_TEXTS, *_NUMBERS):
            near = difflib.get_close_matches(str(key), _NUMBERS, n=1)
            remedy = f"did you mean '{near[0]}'?" if near else "leave it out"
            problems.append(Problem("SG101", f"a machine profile has no key '{quoted(key)}'", place, remedy))
    for key in (*_TEXTS, *_NUMBERS):
        if key not in data:
            remedy = "`streamgraph doctor --measure -o FILE` writes all of them"
            problems.append(Problem("SG102", f"the machine profile lacks '{key}'", place, remedy))
        elif key in _TEXTS:
            if not isinstance(data[key], str):
                problems.append(Problem("SG103", f"'{key}' is no text: {quoted(repr(data[key]))}", place))
        elif not is_amount(data[key]) or (key in _POSITIVE and data[key] == 0) or (key == "interference" and data[key] > 1):
            kind = "a number > 0" if key in _POSITIVE else "0 to 1" if key == "interference" else "a number >= 0"
            problems.append(Problem("SG105", f"'{key}' is {quoted(repr(data[key]))}", place, f"{key} is {kind}"))
    if problems:
        raise SpecError(*problems)
    return Machine(data["name"], data["device"], **{key: float(data[key]) for key in _NUMBERS})


def is_amount(value: object) -> bool:
    """Whether it is a finite number >= 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def read_json_file(path: str, what: str, remedy: str, largest: int = LARGEST) -> str:
    """The text of a small file that a user named.

    Raises:
        SpecError: SG006 if it cannot be read or is too large, SG010 if it is not UTF-8.
    """
    try:
        # Opening a FIFO could wait for ever, so only a regular file is opened.
        if "\0" in path or not Path(path).is_file():
            raise SpecError(Problem("SG006", f"'{quoted(path)}' cannot be read as {what}: there is no such file", None, remedy))
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(largest + 1)
    except UnicodeDecodeError:
        raise SpecError(Problem("SG010", "the file is not UTF-8 text", Location(quoted(path), 1), "save it as UTF-8")) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecError(Problem("SG006", f"'{quoted(path)}' cannot be read as {what}: {reason}", None, remedy)) from None
    if len(text) > largest:
        raise SpecError(Problem("SG006", f"'{quoted(path)}' is too large to be {what}", None, remedy))
    return text


def json_mapping(text: str, file: str, version_key: str, version: int, what: str) -> dict[str, Any]:
    """A JSON object that bears its version.

    Raises:
        SpecError: SG009 if it is something else, SG108 for another version.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        line, column = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (1, 1)
        said = error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deeply"
        there = Location(quoted(file), line, column)
        raise SpecError(Problem("SG009", f"this is not JSON: {said}", there, f"it should be {what}")) from None
    place = Location(quoted(file), 1)
    if not isinstance(data, dict) or version_key not in data:
        raise SpecError(Problem("SG009", f"this is not {what}", place, f'it begins with {{"{version_key}": {version}, ...}}'))
    if data[version_key] != version or isinstance(data[version_key], bool):
        message = f"version {quoted(repr(data[version_key]))} of {what} is not known"
        raise SpecError(Problem("SG108", message, place, f"this release reads version {version}"))
    return data
