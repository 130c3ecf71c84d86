"""The specs that people recognise: each loads, plans, verifies, draws and runs, and waits exactly where its comment says that it does."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from streamgraph.errors import VerificationError
from streamgraph.hazards import find_hazards
from streamgraph.model import EXIT, HOST, Program
from streamgraph.plan import plan
from streamgraph.render import FORMATS, render
from streamgraph.schedule import HostWait, Launch, Record, Schedule, Step, Wait
from streamgraph.spec import load
from streamgraph.spec.schema import json_schema
from streamgraph.storages import trace
from streamgraph.verify import ensure

ROOT = Path(__file__).parents[1]
SPECS = ROOT / "specs"
NAMES = sorted(path.name.removesuffix(".streamgraph.yaml") for path in SPECS.glob("*.streamgraph.yaml"))
PHOTOS = ("cat", "coffee", "rocket", "temple")

Pair = tuple[str, str]


@dataclass(frozen=True)
class Promise:
    """What the comment of a spec says: figures of its schedule, waits that are there, and hazards that need no wait."""

    counts: str
    waits: frozenset[Pair]
    implied: frozenset[Pair] = field(default=frozenset())


def path_of(name: str) -> Path:
    return SPECS / f"{name}.streamgraph.yaml"


@cache
def program_of(name: str) -> Program:
    loaded = load(path_of(name))
    assert loaded.warnings == ()
    return loaded.program


@cache
def schedule_of(name: str) -> Schedule:
    return plan(program_of(name))


def waits_of(schedule: Schedule) -> set[Pair]:
    """(earlier, later) of every wait of the schedule: later is the next task on the waiting lane, else exit, or the caller on the host."""
    found: set[Pair] = set()
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Wait | HostWait):
            lane = step.lane if isinstance(step, Wait) else HOST
            rest = (after.task for after in schedule.steps[number:] if isinstance(after, Launch) and after.lane == lane)
            found.add((schedule.event_task[step.event], next(rest, HOST if lane == HOST else EXIT)))
    return found


def hazards_of(program: Program) -> set[tuple[str, str, str, str]]:
    accesses = trace(program)[0]
    return {
        (hazard.kind.value, hazard.tensor, program.tasks[hazard.earlier].name, program.tasks[hazard.later].name)
        for hazard in find_hazards(program, accesses)
    }


def every(form: str, numbers: range, step: int = 0) -> set[Pair]:
    """{("load@0", "mm@0"), ...} from "load mm": the pairs of members whose numbers differ by `step`."""
    earlier, later = form.split()
    return {(f"{earlier}@{number}", f"{later}@{number + step}") for number in numbers}
