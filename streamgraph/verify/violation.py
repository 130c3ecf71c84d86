"""Violation: one thing that is wrong with a schedule, as facts, as a sentence in the user's names, and with what would mend it."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamgraph.errors import Location, Problem
from streamgraph.model import ENTRY, EXIT, HOST, Program
from streamgraph.schedule import Launch, Schedule
from streamgraph.storages import Access, Accesses, Mode, meets
from streamgraph.verify.clocks import Clocks
from streamgraph.verify.order import Pair
from streamgraph.verify.structure import Fault

_DOES = {Mode.READ: "reads", Mode.WRITE: "writes", Mode.UPDATE: "updates"}


@dataclass(frozen=True, slots=True)
class Violation:
    """`later` needs `earlier` to be done, because of `kind` on `subject`, and the steps do not say so; or one step is wrong by itself.

    `code` is one of SG702 to SG706. `kind` is RAW, WAR, WAW, after, host order, entry, exit, release, record_stream, event or structure;
    `subject` is the tensor as the earlier task names it, a storage's label, an event, a lane, or a task. `earlier` and `later` are tasks
    or pseudo-tasks (`entry`, `exit`, `host`), "" where there is none; `lanes` and `steps` (places in `Schedule.steps`, counted from 0;
    None for pseudo-tasks and for what is missing) stand in the same order. `across_runs`: the later side belongs to the next run.
    """

    code: str
    kind: str
    subject: str
    earlier: str
    later: str
    lanes: tuple[str, str]
    steps: tuple[int | None, int | None]
    message: str
    help: str
    across_runs: bool = False
    location: Location | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return str(self.problem)

    @property
    def problem(self) -> Problem:
        """The violation as an error reports it, at the place where the later task is declared."""
        return Problem(self.code, self.message, self.location, self.help)


class Wording:
    """Turns faults and pairs of one schedule into violations."""

    def __init__(self, schedule: Schedule, program: Program, accesses: Accesses, clocks: Clocks) -> None:
        self.program, self.accesses, self.clocks = program, accesses, clocks
        self.steps = schedule.steps
        self.launched: dict[str, int] = {}
        for number, step in enumerate(schedule.steps):
            if isinstance(step, Launch):
                self.launched.setdefault(step.task, number)

    def fault(self, fault: Fault) -> Violation:
        """A step that is wrong by itself."""
        return Violation(
            fault.code, fault.kind, fault.subject, "", fault.task, ("", fault.lane), (None, fault.step), fault.message, fault.help,
            location=self._location(fault.task),
        )  # fmt: skip

    def pair(self, pair: Pair) -> Violation:
        """Two sides that are not ordered."""
        match pair.kind:
            case "release":
                return self._released_early(pair)
            case "output":
                return self._dropped_early(pair)
            case _:
                return self._race(pair)

    def _race(self, pair: Pair) -> Violation:
        (before, after), steps = self._lanes(pair), (self.launched.get(pair.earlier), self.launched.get(pair.later))
        kind, subject, said = self._hazard(pair)
        earlier, later = _named(pair.earlier, before), _named(pair.later, after)
        if pair.across:
            later = f"{later} of the next run"
        match kind:
            case "entry":
                said = f"{later} may start before what the caller queued earlier is done, and before its memory is free"
            case "exit":
                said = f"the caller's later work may start while {earlier} is still running"
            case "after" | "host order":
                said = f"{later} may start while {earlier} is still running"
            case _:
                said = said.format(earlier=earlier, later=later)
        head = "race"
        if pair.is_reversed:
            head, said = "wrong order", f"{later} runs before {earlier}, which must come first"
        cause = f"{f'{kind} {subject}' if subject else kind}: {pair.earlier} -> {pair.later}"
        return Violation(
            "SG703", kind, subject, pair.earlier, pair.later, (before, after), steps,
            f"{head}: {said}: {_gap(steps, across=pair.across)} ({cause})", self._remedy(pair, before, after, steps),
            pair.across, self._location(pair.later) or self._location(pair.earlier),
        )  # fmt: skip

    def _hazard(self, pair: Pair) -> tuple[str, str, str]:
        """The kind of a hazard, the tensor as the earlier task names it, and what may happen, with places for both sides."""
        if pair.kind not in ("conflict", "result"):
            return pair.kind, "", ""
        of_earlier = self._accesses_of(pair.earlier, pair.storage)
        if pair.kind == "result":
            written = [access.tensor for access in of_earlier if access.mode is not Mode.READ]
            if not written:
                tensor = of_earlier[0].tensor
                return "WAR", tensor, f"{{later}} may change '{tensor}' while {{earlier}} may still read it"
            return "RAW", written[0], f"{{later}} reads '{written[0]}' while {{earlier}} may still write it"
        first, second = next(
            (first, second)
            for first in of_earlier
            for second in self._accesses_of(pair.later, pair.storage)
            if meets(first.box, second.box) and (first.mode is not Mode.READ or second.mode is not Mode.READ)
        )
        kind = "WAR" if first.mode is Mode.READ else "WAW" if second.mode is Mode.WRITE else "RAW"
        what = "it" if first.tensor == second.tensor else f"'{first.tensor}', which shares memory with it"
        return kind, first.tensor, f"{{later}} {_DOES[second.mode]} '{second.tensor}' while {{earlier}} may still {first.mode.value} {what}"

    def _remedy(self, pair: Pair, before: str, after: str, steps: tuple[int | None, int | None]) -> str:
        if pair.across:
            return f"record an event after '{pair.earlier}' on @{before}, and `hostwait` for it, `previous`, before '{pair.later}'"
        if pair.is_reversed or before == after or _after(steps):
            return f"issue '{pair.earlier}' before '{pair.later}'"
        source = "the caller's work, at the start of @main" if pair.earlier == ENTRY else f"'{pair.earlier}' on @{before}"
        target = {EXIT: "at the end", HOST: "at the end"}.get(pair.later, f"before '{pair.later}'")
        wait = "`hostwait` for it" if after == HOST else f"let @{after} wait for it"
        return f"record an event after {source}, and {wait} {target}"

    def _released_early(self, pair: Pair) -> Violation:
        label, (before, after), launch = self.accesses.storages[pair.storage].label, self._lanes(pair), self.launched.get(pair.earlier)
        steps = (launch, pair.release)
        if not pair.across and _after(steps):
            said = f"'{pair.earlier}' (@{before}) uses '{label}' in step {launch}, after its release in step {pair.release}"
            remedy = f"release it after '{pair.earlier}'"
        else:
            gap = _gap(steps, across=pair.across)
            said = f"'{label}' is released on @{after} while '{pair.earlier}' (@{before}) may still use it: {gap}"
            remedy = f"let @{after} wait for '{pair.earlier}' before the release, or release it later"
            if HOST not in (before, after):
                remedy += f", or record_stream {label} @{before}"
        return Violation(
            "SG705", "release", label, pair.earlier, "", (before, after), steps, f"{said} (release {label})", remedy,
            pair.across, self._location(pair.earlier),
        )  # fmt: skip

    def _dropped_early(self, pair: Pair) -> Violation:
        label, lanes = self.accesses.storages[pair.storage].label, self._lanes(pair)
        said = f"output '{label}' is memory of @{lanes[1]}: the caller may drop it while @main still uses it (release {label})"
        return Violation("SG705", "release", label, EXIT, "", lanes, (None, None), said, f"add: record_stream {label} @main")

    def _accesses_of(self, task: str, storage: int) -> list[Access]:
        return [access for access in self.accesses.of_task[self.program.index_of_task[task]] if access.storage == storage]

    def _lanes(self, pair: Pair) -> tuple[str, str]:
        return self.clocks.lanes[pair.before.lane], self.clocks.lanes[pair.after.lane]

    def _location(self, task: str) -> Location | None:
        index = self.program.index_of_task.get(task)
        return None if index is None else self.program.tasks[index].location


def _named(name: str, lane: str) -> str:
    return {ENTRY: "the caller's earlier work", EXIT: "the caller's later work", HOST: "the caller"}.get(name, f"'{name}' (@{lane})")


def _after(steps: tuple[int | None, int | None]) -> bool:
    """Whether the earlier side is issued after the later one."""
    return steps[0] is not None and steps[1] is not None and steps[0] > steps[1]


def _gap(steps: tuple[int | None, int | None], *, across: bool) -> str:
    if not across and _after(steps):
        return f"step {steps[0]} is issued after step {steps[1]}"
    first = "the start" if steps[0] is None else f"step {steps[0]}"
    second = "the end" if steps[1] is None else f"step {steps[1]}"
    return f"no wait between {first} and {second}{' of the next run' if across else ''}"
