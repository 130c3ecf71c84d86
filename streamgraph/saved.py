"""Saved schedules: a Schedule becomes JSON and back. Reading one verifies it, so an edited file is either safe or refused.

The file holds the program in the spec's own form, so that it stands alone: versioned, with a digest, never pickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from streamgraph.errors import Problem, ScheduleError, quoted
from streamgraph.schedule import Lane, Schedule, parse_steps

FORMAT = 3  # 1 had no notes, 2 no urgent launches
READABLE = (1, 2, FORMAT)
LARGEST = 256 << 20  # characters; a million steps take about 80 MB


def to_dict(schedule: Schedule) -> dict[str, Any]:
    """The schedule as plain data: the program as an expanded spec, the lanes, the steps as text, the options, the notes, a digest."""
    from streamgraph.spec import to_mapping

    body: dict[str, Any] = {
        "streamgraph_schedule": FORMAT,
        "program": to_mapping(schedule.program),
        "lanes": [{"name": lane.name, "priority": lane.priority} for lane in schedule.lanes],
        "steps": [str(step) for step in schedule.steps],
        "options": dict(schedule.options),
        "notes": list(schedule.notes),
    }
    return {**body, "digest": _digest(body)}


def to_json(schedule: Schedule) -> str:
    """The schedule as JSON text, which `from_json` reads back to an equal schedule."""
    return json.dumps(to_dict(schedule), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str) -> Schedule:
    """The verified schedule that `to_json` wrote, in this version or an earlier one. Its notes are repeated, not proved.

    Operators are named, not held: a program with Python callables needs `ops=` to run.

    Raises:
        ScheduleError: SG701, it cannot be read or was changed; SpecError: its program is wrong; VerificationError: it is not safe.
    """
    if len(text) > LARGEST:
        raise _unreadable(f"it has {len(text)} characters, more than {LARGEST}")
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _unreadable(str(error) if isinstance(error, ValueError) else "it is nested too deeply") from None
    return from_dict(data)


def from_dict(data: object) -> Schedule:
    """The verified schedule that `to_dict` made; raises as `from_json` does."""
    from streamgraph.spec import load
    from streamgraph.verify import ensure

    version = data.get("streamgraph_schedule") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or isinstance(version, bool) or version not in READABLE:
        raise _unreadable(f"it does not begin with streamgraph_schedule: {FORMAT}, or an earlier version")
    expected = {"streamgraph_schedule", "program", "lanes", "steps", "options", "digest", *(("notes",) if version >= 2 else ())}
    if set(data) != expected:
        odd = sorted(map(str, expected.symmetric_difference(data)))
        raise _unreadable(f"its keys are not those of a schedule: {quoted(', '.join(odd))}")
    lanes, steps, options, notes = data["lanes"], data["steps"], data["options"], data.get("notes", [])
    shaped = (
        isinstance(steps, list) and all(isinstance(step, str) for step in steps)
        and isinstance(lanes, list) and all(isinstance(lane, Mapping) and set(lane) == {"name", "priority"} for lane in lanes)
        and all(isinstance(value, str) for lane in lanes for value in lane.values())
        and isinstance(options, Mapping) and all(isinstance(value, str) for value in options.values())
        and isinstance(notes, list) and all(isinstance(note, str) for note in notes)
        and isinstance(data["program"], Mapping)
    )  # fmt: skip
    if not shaped:
        raise _unreadable("its lanes, steps, options, notes or program are of the wrong kind")
    body = {key: value for key, value in data.items() if key != "digest"}
    if _digest(body) != data["digest"]:
        raise _unreadable("its digest does not match: it was changed by hand")
    program = load(data["program"]).program
    named = tuple(Lane(lane["name"], lane["priority"]) for lane in lanes)
    return ensure(Schedule(program, named, parse_steps(steps), tuple(options.items()), tuple(notes)))


def _digest(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=False, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def _unreadable(why: str) -> ScheduleError:
    return ScheduleError(Problem("SG701", f"the schedule cannot be read: {why}", None, "save it again with `streamgraph plan -o`"))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key '{quoted(twice)}' stands twice in one object")
    return result


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")
