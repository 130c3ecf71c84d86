"""Certificate: each step of a plan that orders something, with what goes wrong without it.

Nothing here trusts the planner's reasons: the step is taken out, and the verifier looks at what is left. A plan whose every step has a
violation is one from which nothing can be taken away. One look costs as much as verifying the plan, so for large plans ask step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from streamgraph.errors import Problem, ScheduleError
from streamgraph.schedule import HostWait, RecordStream, Schedule, Wait
from streamgraph.verify import Violation, verify


@dataclass(frozen=True, slots=True)
class Needed:
    """`step`, number `number` of the schedule (from 0), and the violations that the schedule has without it; none: it can be spared."""

    number: int
    step: Wait | HostWait | RecordStream
    violations: tuple[Violation, ...]

    @property
    def violation(self) -> Violation | None:
        """The violation that the step's own reason names, else the first one."""
        pairs = {(reason.earlier, reason.later) for reason in self.step.reasons}
        return next((v for v in self.violations if (v.earlier, v.later) in pairs), self.violations[0] if self.violations else None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        worst = self.violation
        return {
            "step": self.number, "text": str(self.step), "needed": worst is not None, "violations": len(self.violations),
            "without": None if worst is None else {
                "code": worst.code, "kind": worst.kind, "subject": worst.subject, "earlier": worst.earlier, "later": worst.later,
                "message": worst.message,
            },
        }  # fmt: skip


def ordering_steps(schedule: Schedule) -> tuple[int, ...]:
    """The numbers of the steps that order something: waits, host waits, record_stream calls."""
    return tuple(number for number, step in enumerate(schedule.steps) if isinstance(step, Wait | HostWait | RecordStream))


def certificate(schedule: Schedule, steps: Iterable[int] | None = None) -> Iterator[Needed]:
    """For each wait, host wait and record_stream, or for those among the numbered `steps`, what goes wrong without it.

    One after another, as they are asked for: each costs as much as verifying the schedule. The schedule itself is safe for this to mean
    anything (`verify`). If no step is without a violation, the plan is irredundant.

    Raises:
        ScheduleError: SG702 for a number that is no such step.
    """
    known = ordering_steps(schedule)
    chosen = known if steps is None else tuple(steps)
    wrong = sorted(set(chosen).difference(known))
    if wrong:
        remedy = "ask about the number of a wait, a hostwait or a record_stream; `plan --steps` prints them, the first is 0"
        raise ScheduleError(*(Problem("SG702", f"step {number} orders nothing", None, remedy) for number in wrong))
    return _look(schedule, chosen)


def _look(schedule: Schedule, chosen: tuple[int, ...]) -> Iterator[Needed]:
    for number in chosen:
        step = schedule.steps[number]
        assert isinstance(step, Wait | HostWait | RecordStream), "bug in streamgraph: only such steps were chosen"
        rest = replace(schedule, steps=schedule.steps[:number] + schedule.steps[number + 1 :])
        yield Needed(number, step, verify(rest))
