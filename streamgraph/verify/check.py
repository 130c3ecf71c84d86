"""Check: every violation of a schedule, in one list with a fixed order."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from streamgraph.collector import uncollected
from streamgraph.errors import VerificationError
from streamgraph.model import Program
from streamgraph.schedule import Schedule
from streamgraph.storages import trace
from streamgraph.verify.clocks import play
from streamgraph.verify.order import Pair, unordered_pairs
from streamgraph.verify.structure import faults
from streamgraph.verify.violation import Violation, Wording

MOST = 1000  # violations reported at most


@uncollected
def verify(schedule: Schedule, program: Program | None = None) -> tuple[Violation, ...]:
    """All that is wrong with a schedule, in issue order of the later side: at most 1000 violations, empty if it is safe.

    Each unordered pair is one missing edge: a pair that the edge of another reported pair would order is left out. `program` is the
    program that the schedule must be right for, by default its own.
    """
    chosen = schedule.program if program is None else program
    accesses = schedule.accesses if chosen is schedule.program else trace(chosen)[0]
    clocks = play(schedule.steps, schedule.lanes, chosen.index_of_task)
    wording = Wording(schedule, chosen, accesses, clocks)
    found = [wording.fault(fault) for fault in islice(faults(schedule, chosen, accesses), MOST)]
    found += [wording.pair(pair) for pair in _missing_edges(islice(unordered_pairs(schedule, chosen, accesses, clocks), MOST))]
    end = len(schedule.steps)
    # What has no step stands at the end; the message settles the rest.
    found.sort(key=lambda v: (*(end if step is None else step for step in reversed(v.steps)), v.code, v.message))
    return tuple(dict.fromkeys(found))[:MOST]


def ensure(schedule: Schedule) -> Schedule:
    """The schedule itself, once it is known to be safe.

    Raises:
        VerificationError: with every violation as a problem.
    """
    violations = verify(schedule)
    if violations:
        raise VerificationError(*(violation.problem for violation in violations))
    return schedule


def _missing_edges(found: Iterable[Pair]) -> list[Pair]:
    pairs = list(found)
    return [pair for pair in pairs if not any(other.implies(pair) for other in pairs)]
