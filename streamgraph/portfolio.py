"""Portfolio: every policy and lane count becomes a schedule, simulated; the best one is the plan, if it is worth its synchronisation.

`policy="auto"` tries each policy with each number of lanes that can matter, improves the best by moves along the simulated critical path,
and keeps the shortest makespan, then the fewest waits, then the fewest lanes. One stream stays the plan where nothing beats it by more than
the simulator can be trusted. How much is tried depends on the size of the program, never on the clock, so that a plan is the same
everywhere: beyond LARGE tasks only `single` and `critical_path` are compared, by the planner's own estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from streamgraph.passes.assign import MOST_LANES, Assignment, assign_work, settle
from streamgraph.passes.moves import Link, all_moves, moves
from streamgraph.passes.policies import POLICIES, PolicyName
from streamgraph.passes.policies.urgent import split
from streamgraph.passes.work import FREE, Placement, Work
from streamgraph.render.fit import duration
from streamgraph.schedule import Schedule
from streamgraph.timeline import ENGINE, FIFO, ISSUE, START, WAIT, Timeline

Policy: TypeAlias = Literal["auto", PolicyName]
"""How tasks without a pin get their lanes: "auto" tries all, else one of `passes.policies.POLICIES`."""

LARGE = 5_000  # tasks; beyond this, one trial more would cost more than planning may take (docs/design.md, section 7)
LANES_OF_LARGE = 4
TRIALS = 16_000  # tasks times trials of whole policies
SHARE = 4  # one in so many of the trials left goes to the other issue order
MOVES = 2_500  # tasks times trials of single moves
SMALL = 10  # tasks up to which every single move is tried, not only those that concern the critical path
STARTS = 3  # how many of the best trials are followed up first
LANES = (4, 8, 6, 16, 2, 3, 12, 5, 7)  # in the order in which they are tried, while trials are left
MOST_CAPTURED = 16  # lanes and waits are edges there; more than these were never measured
SPLIT = 4  # how many of the best trials are tried with two priorities
LEAST_GAIN = 0.01  # a profile that was never measured says nothing of its error
EPSILON = 1e-6  # microseconds
HELD: Mapping[str, Literal["lane", "wait", "issue", "start"]] = {FIFO: "lane", ENGINE: "lane", WAIT: "wait", ISSUE: "issue", START: "start"}
SAME = 0.001  # makespans this close are the same: fewer waits and lanes decide


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate, planned to the end and simulated. `work` is what its placement was settled with."""

    policy: str
    work: Work
    assignment: Assignment
    schedule: Schedule
    timeline: Timeline

    @property
    def makespan(self) -> float:
        """The simulated time of one run, in microseconds."""
        return self.timeline.makespan

    @property
    def effort(self) -> tuple[int, int, float]:
        """What decides between equal makespans: waits, lanes, and then the makespan after all."""
        counts = self.schedule.counts
        return counts.waits + counts.host_waits, counts.lanes, self.makespan


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan, and what a reader should know about how it was chosen."""

    schedule: Schedule
    notes: tuple[str, ...]


def choose(
    work: Work,
    policy: Policy,
    streams: int | Literal["auto"],
    draft: Callable[[Assignment], Schedule],
    simulate: Callable[[Schedule], Timeline],
    model_error: float = 0.0,
    launch: float = 0.0,
) -> Choice:
    """The schedule of the best assignment. `draft` plans one to the end, `simulate` times it.

    `model_error` is how far the times can be trusted, relative to them; `launch` is what the host needs for each task, in microseconds:
    nothing in a captured graph, where lanes cost nothing either, so that there may be more.
    """
    most = streams if streams != "auto" else MOST_LANES if launch else MOST_CAPTURED
    if not work.free:
        return Choice(draft(assign_work(work, 1, "single")), ())
    if len(work.costs) > LARGE:
        return _by_estimate(work, policy, most, draft, max(model_error, LEAST_GAIN), launch)
    search = _Search(work, most, draft, simulate)
    if policy != "auto":
        search.try_policies((policy,), [most] if streams != "auto" else _counts(work, most))
        return Choice(_best(search.tried[policy]).schedule, ())
    search.try_policies(tuple(POLICIES), _counts(work, most))
    search.split()
    search.improve()
    best, alone = _best(search.trials), _best(search.tried["single"])
    trusted = max(model_error, LEAST_GAIN) * alone.makespan
    if best is alone or alone.makespan - best.makespan <= trusted:
        return Choice(alone.schedule, (_one_stream(best, alone, trusted),))
    return Choice(best.schedule, (_comparison(best, {name: _best(trials) for name, trials in search.tried.items()}),))


def _counts(work: Work, most: int) -> list[int]:
    """The numbers of lanes that can matter, in the order in which they are tried."""
    widest = min(most, len(work.free))
    return [count for count in dict.fromkeys((*LANES, most)) if count <= widest] or [most]


class _Search:
    """The trials so far, each assignment once."""

    def __init__(
        self, work: Work, most: int, draft: Callable[[Assignment], Schedule], simulate: Callable[[Schedule], Timeline]
    ) -> None:
        self.work, self.most, self.draft, self.simulate = work, most, draft, simulate
        self.seen: dict[tuple[tuple[int, ...], tuple[int, ...], bool], Trial] = {}
        self.tried: dict[PolicyName, list[Trial]] = {}

    @property
    def trials(self) -> list[Trial]:
        return [*self.seen.values()]

    def trial(self, policy: str, work: Work, assignment: Assignment) -> Trial:
        """The assignment planned and simulated, if that was not done before."""
        key = assignment.order, assignment.lane_of, bool(assignment.urgent)
        if key not in self.seen:
            schedule = self.draft(assignment)
            self.seen[key] = Trial(policy, work, assignment, schedule, self.simulate(schedule))
        return self.seen[key]

    def try_policies(self, names: tuple[PolicyName, ...], counts: list[int]) -> None:
        """Each policy with the first number of lanes, then the best of them with the others, while trials are left.

        Where the issue order is free, one stream and the best of them start from declaration order as well as from the longest remaining
        path.
        """
        left = max(TRIALS // len(self.work.costs), 2)
        ways = [self._way(name, self.work, counts[0]) for name in names[:left]]
        left -= len(ways)
        if self.work.may_reorder:
            again = replace(self.work, order=self.work.declared)
            ranked = sorted(ways, key=lambda way: (way[1] != "single", way[0]))[: 1 + max(left // SHARE, 0)]
            ways += [self._way(name, again, counts[0]) for _, name, _ in ranked]
            left -= len(ranked)
        ranked = sorted((way for way in ways if way[1] != "single"), key=lambda way: way[0])
        more = [(way, count) for group in (ranked[:STARTS], ranked[STARTS:]) for count in counts[1:] for way in group]
        for (_, name, work), count in more[: max(left, 0)]:
            self._way(name, work, count)

    def _way(self, name: PolicyName, work: Work, count: int) -> tuple[float, PolicyName, Work]:
        """One policy tried; its makespan, and what it was, but for the number of lanes."""
        found = self.trial(name, work, assign_work(work, 1 if name == "single" else count, name))
        self.tried.setdefault(name, []).append(found)
        return found.makespan, name, work

    def split(self) -> None:
        """Try the best trials with other priorities: lanes split in two, as the policy `urgent` does it with its own; and in a captured
        graph, where launches have theirs, with those of lanes instead."""
        by_lane = replace(self.work, captured=False)
        for start in sorted(self.trials, key=lambda trial: (trial.makespan, trial.effort))[:SPLIT]:
            placement = _placement(self.work, start.assignment)
            if self.work.captured:
                self.trial(start.policy, by_lane, settle(by_lane, placement))
            elif not placement.high and 2 * (max(placement.stream) + 1) <= self.most:
                self.trial(start.policy, self.work, settle(self.work, split(self.work, placement)))

    def improve(self) -> None:
        """Walk from the best trials to better neighbours, while there are any and trials are left."""
        last = len(self.seen) + MOVES // len(self.work.costs)
        for start in sorted(self.trials, key=lambda trial: (trial.makespan, trial.effort))[:STARTS]:
            here: Trial | None = start
            while here is not None and not self._is_optimal(here):
                here = self._better(here, last)

    def _better(self, here: Trial, last: int) -> Trial | None:
        """The first neighbour that is faster, or as fast with less effort; None if there is none, or `last` trials have been made."""
        for placement in self._neighbours(here):
            if len(self.seen) >= last:
                return None
            trial = self.trial(here.policy, here.work, settle(here.work, placement))
            shorter = trial.makespan < here.makespan - EPSILON
            if shorter or (trial.makespan <= here.makespan and trial.effort[:2] < here.effort[:2]):
                return trial
        return None

    def _is_optimal(self, trial: Trial) -> bool:
        """Whether no assignment could be faster: from its first launch on it takes no longer than the longest path does."""
        begun = min((time.start for time in trial.timeline.tasks), default=0.0)
        return trial.makespan <= begun + max(self.work.bottom) + EPSILON

    def _neighbours(self, trial: Trial) -> Iterator[Placement]:
        placement = _placement(self.work, trial.assignment)
        number = trial.schedule.program.index_of_task
        path = [
            Link(number[time.task], HELD.get(time.held_by, "start"), number[time.after] if time.after is not None else -1)
            for time in trial.timeline.critical_path
        ]
        yield from moves(self.work, placement, path, self.most)
        if len(self.work.costs) <= SMALL:
            yield from all_moves(self.work, placement, self.most)


def _placement(work: Work, assignment: Assignment) -> Placement:
    """The placement that settles into this assignment."""
    first = len(work.lanes) - 1
    stream = (max(lane - first, 0) if home == FREE else -1 for home, lane in zip(work.home, assignment.lane_of, strict=True))
    high = (number for number, lane in enumerate(assignment.lanes[first:]) if number and lane.priority == "high")
    return Placement(assignment.order, tuple(stream), tuple(high) if assignment.high else ())


def _best(trials: list[Trial]) -> Trial:
    """The least effort among those that are as fast as the fastest."""
    shortest = min(trial.makespan for trial in trials)
    return min((trial for trial in trials if trial.makespan <= shortest * (1 + SAME)), key=lambda trial: trial.effort)


def _by_estimate(
    work: Work, policy: Policy, most: int, draft: Callable[[Assignment], Schedule], trusted: float, launch: float
) -> Choice:
    """The choice for a program that is too large to simulate several times."""
    if policy != "auto":
        return Choice(draft(assign_work(work, most, policy)), ())
    alone = assign_work(work, 1, "single")
    many = assign_work(work, min(most, LANES_OF_LARGE), "critical_path")
    issue = launch * len(work.costs)  # the host issues all of them, whatever their lane
    one, several = max(alone.makespan, issue), max(many.makespan, issue)
    said = (
        f"more than {LARGE:,} tasks: only critical_path on {min(most, LANES_OF_LARGE)} lanes ({duration(several)}) and one stream "
        f"({duration(one)}) were compared, by estimate"
    )
    return Choice(draft(many if one - several > trusted * one else alone), (said,))


def _one_stream(best: Trial, alone: Trial, trusted: float) -> str:
    """Why all tasks without a pin are on one stream."""
    said = f"one stream for all tasks without a pin ({duration(alone.makespan)})"
    if best.makespan >= alone.makespan:
        return f"{said}: no other policy is faster"
    waits = best.schedule.counts.waits
    return f"{said}: {best.policy} would take {duration(best.makespan)} with {waits} waits, and {duration(trusted)} may be off anyway"


def _comparison(best: Trial, by_policy: dict[PolicyName, Trial]) -> str:
    """What the other policies gave, equal ones together."""
    named: dict[str, list[str]] = {}
    for name, trial in sorted(by_policy.items(), key=lambda item: item[1].makespan):
        named.setdefault(duration(trial.makespan), []).append("one stream" if name == "single" else name)
    own = named.pop(duration(best.makespan), [])
    equal = [name for name in own if name != best.policy]
    improved = "" if best.policy in own else ", improved step by step"
    said = f"{best.policy}{improved} ({duration(best.makespan)}{', as with ' if equal else ''}{', '.join(equal)})"
    return "; ".join([said, *(f"{time} with {', '.join(names)}" for time, names in named.items())])
