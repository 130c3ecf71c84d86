"""`--iterations`: the loop of a spec instead of a single run, as text, as data, and written out for the pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamgraph.commands.report import Report, aligned, many
from streamgraph.commands.source import STDIN, Planning, load_schedule, shell
from streamgraph.errors import BindingError, Problem, SpecError, quoted

if TYPE_CHECKING:
    from streamgraph.cost import TaskCost
    from streamgraph.loop import Back, Issue, Loop
    from streamgraph.model import Program
    from streamgraph.schedule import Schedule
    from streamgraph.simulate import Timeline

Function = TypeVar("Function", bound=Callable[..., Any])

MOST_LOOKED = 200_000  # waits times tasks that are verified to say what each is for; some ten seconds
MEASURED = 8  # iterations over which the time of one is averaged, once the loop repeats
INFLIGHT = "How many iterations may be under way; by default the largest ring over iterations, at least 2. Only with --iterations."


def inflight_option(function: Function) -> Function:
    """`--inflight K`."""
    return click.option("--inflight", type=click.IntRange(1, 1000), metavar="K", help=INFLIGHT)(function)


def loop_options(function: Function) -> Function:
    """What a loop depends on beside the planner's options: `--item` and `--inflight`."""
    return click.option(
        "--item", "items", multiple=True, metavar="NAME",
        help="An input that each iteration brings anew, `NAME@*` for a family; the others are bound for good. Only with --iterations.",
    )(inflight_option(function))  # fmt: skip


def only_with_iterations(wanted: object, items: tuple[str, ...], inflight: int | None) -> None:
    """Raise a usage error for options that mean nothing without `--iterations`."""
    for option, given in (("--item", bool(items)), ("--inflight", inflight is not None)):
        if given and not wanted:
            raise click.UsageError(f"{option} only means something with --iterations")


@dataclass(frozen=True, slots=True)
class Planned:
    """A loop with what a prediction needs."""

    loop: Loop
    options: Planning

    def written_out(self, count: int) -> tuple[Schedule, Timeline]:
        """The loop for `count` iterations as one schedule, and its simulated run."""
        from streamgraph.plan import issue_of
        from streamgraph.simulate import simulate

        schedule = self.loop.schedule(count)
        return schedule, simulate(schedule, self._costs(count), machine=self.options.machine, issue=issue_of(self.options.executor))

    def period(self) -> tuple[float, float, str]:
        """Microseconds for one more iteration once the loop repeats, and for a run of its own; and what they come from."""
        first = len(self.loop.prologue) + self.loop.reach + self.loop.inflight
        early, late = (self.written_out(count)[1].makespan for count in (first, first + MEASURED))
        alone = self.written_out(1)[1]
        return (late - early) / MEASURED, alone.makespan, alone.basis

    def time_said(self) -> str:
        """The predicted time of an iteration beside that of a run of its own."""
        from streamgraph.render.fit import duration

        period, alone, basis = self.period()
        gain = f"{alone / period:.2f}x as fast as run after run ({duration(alone)})" if period > 0 else f"a run takes {duration(alone)}"
        return f"{duration(period)} per iteration (simulated from {basis}), {gain}"

    def _costs(self, count: int) -> Mapping[str, TaskCost] | None:
        """Measured costs are those of a task's every iteration."""
        from streamgraph.cost import load_costs
        from streamgraph.iterations import at

        if self.options.costs is None:
            return None
        return {at(name, number): cost for name, cost in load_costs(self.options.costs).items() for number in range(count)}


def load_loop(report: Report, spec: str, options: Planning, items: tuple[str, ...], inflight: int | None) -> Planned:
    """The loop of a spec. Errors as `loop_of` and `load_schedule`."""
    return loop_of(report, load_schedule(report, spec, options), options, items, inflight)


def loop_of(report: Report, schedule: Schedule, options: Planning, items: tuple[str, ...], inflight: int | None) -> Planned:
    """The loop of a schedule's program, planned as `Runner.map` plans it, and proved; what is odd about its rings is told.

    Raises:
        BindingError: SG502, `--item` names no input.
        SpecError: what is wrong with the spec.
    """
    from streamgraph.looping import planner_options
    from streamgraph.plan_loop import plan_loop
    from streamgraph.rings import ring_warnings

    program = schedule.program
    per_item = _inputs(program, items)
    planner = planner_options(schedule)
    loop = plan_loop(program, per_item, inflight=inflight, **planner)
    report.tell(ring_warnings(loop, lambda other: plan_loop(other, per_item, inflight=loop.inflight, **planner)))
    if options.executor == "auto" and schedule.issue == "captured":
        options = replace(options, executor="graph")  # a saved plan for a CUDA graph: predicted as such, as a single run is
    return Planned(loop, options)


def _inputs(program: Program, items: tuple[str, ...]) -> frozenset[str]:
    from streamgraph.names import near

    known = {tensor.name for tensor in program.inputs}
    families = {f"{family.name}@*": family.members for family in program.families}
    found: set[str] = set()
    problems: list[Problem] = []
    for item in items:
        members = families.get(item) or families.get(f"{item}@*") or (item,)
        if set(members) <= known:
            found.update(members)
            continue
        hint = near(item, sorted(known))
        remedy = f"did you mean '{hint}'?" if hint else f"the inputs are: {', '.join(sorted(known)) or 'none'}"
        problems.append(Problem("SG502", f"'{quoted(item)}' is no input of '{quoted(program.name)}'", None, remedy))
    if problems:
        raise BindingError(*problems)
    return frozenset(found)


def plan_iterations(report: Report, planned: Planned) -> None:
    """Print the loop: what comes before it repeats, what repeats, its waits that reach back, its proof and its time."""
    loop = planned.loop
    period, alone, basis = planned.period()
    far = _far(loop)
    report.data = _data(loop, far) | {
        "estimate": {"unit": "us", "per_iteration": period, "alone": alone, "source": f"simulated from {basis}"}
    }
    tasks, lanes = many(len(loop.program.tasks), "task"), many(len(loop.lanes), "lane")
    lines = [f"{loop.program.name}: a loop of {tasks} on {lanes}, one of them the host, {many(loop.inflight, 'iteration')} in flight"]
    if loop.has_devices:
        lines.append(f"{_on_devices(loop)}.")
    brought = ", ".join(sorted(loop.per_item))
    lines.append(f"Each iteration brings {brought}." if brought else "All inputs are bound for good.")
    for number, block in enumerate(loop.prologue):
        lines += ["", f"iteration {number}", *_block(block)]
    lines += ["", "every later iteration", *_block(loop.steady)]
    if far:
        lines += ["", "Waits that reach back ([-2]: of two iterations before):", aligned(far, indent="  ")]
    lines += ["", _proof(loop), f"Time:   {planned.time_said()}"]
    report.result("\n".join(lines))


def _on_devices(loop: Loop) -> str:
    """Which lanes each GPU has."""
    lanes: dict[str, list[str]] = {device: [] for device in loop.program.devices}
    for lane, device in loop.device_of.items():
        lanes[device].append(f"@{lane}")
    return "On " + "; on ".join(f"{device}: {', '.join(names)}" for device, names in lanes.items())


def _block(block: tuple[Issue, ...]) -> list[str]:
    return [f"  {issue}" for issue in block]


def _proof(loop: Loop) -> str:
    return (
        f"Proved: the verifier saw {many(loop.proved, 'iteration')} written out. The loop repeats after {len(loop.prologue)}, and no step\n"
        f"        looks back further than {loop.reach}. It was seen repeating for longer than that, so every later iteration\n"
        "        stands to those before it as the last of these did."
    )


def _far(loop: Loop) -> list[tuple[str, str]]:
    """(wait, why) for each wait of the steady state that reaches back."""
    from streamgraph.loop_waits import loop_waits

    return [(str(wait), wait.why) for wait in loop_waits(loop) if wait.earlier.by]


def explain_iterations(
    report: Report, planned: Planned, spec: str, tasks: tuple[str, ...], certified: bool, items: tuple[str, ...] = ()
) -> None:
    """Print every wait of the steady state with its hazard, or those of these tasks; `certified`: and what goes wrong without it.

    Raises:
        SpecError: SG203, there is no such task.
    """
    from streamgraph.loop_waits import loop_waits, without

    loop = planned.loop
    _check_tasks(loop, tasks)
    waits = [wait for wait in loop_waits(loop) if set(tasks) <= {wait.earlier.name, wait.later}]
    if certified and len(waits) * len(loop.steady) * (loop.proved + 1) > MOST_LOOKED:
        report.say(f"What goes wrong without each of {len(waits):,} waits would take long to find: name a task or two.")
        certified = False
    missed = {str(wait): without(loop, wait) for wait in waits} if certified else {}
    report.data = {"waits": [wait.to_dict() | ({"without": missed[str(wait)]} if certified else {}) for wait in waits]}
    every = f"in every iteration from number {len(loop.prologue)} on" if loop.prologue else "in every iteration"
    lines = [f"{loop.program.name}: {many(len(waits), 'wait')} {every} ([-2]: for the task of two iterations before)", ""]
    for wait in waits:
        lines += [f"{wait} @{wait.lane}", f"    {wait.why}"]
        if certified:
            lines.append(f"    without it: {missed[str(wait)] or 'nothing is wrong, and memory grows'}")
    if not waits:
        lines = [f"No wait of the steady state is for {' and '.join(tasks)}." if tasks else "Nothing waits in the steady state."]
    report.result("\n".join(lines))
    if spec != STDIN:
        with_items = "".join(f" --item {shell(item)}" for item in items)
        report.next(f"plan {shell(spec)} --iterations{with_items}", f"draw {shell(spec)} --iterations 4{with_items}")


def _check_tasks(loop: Loop, tasks: tuple[str, ...]) -> None:
    from streamgraph.names import near

    known = [issue.task for issue in loop.steady]
    problems = []
    for task in tasks:
        if task not in known:
            close = near(task, known)
            remedy = f"did you mean '{close}'?" if close else "`plan --iterations` lists the tasks"
            problems.append(Problem("SG203", f"there is no task '{quoted(task)}' in '{loop.program.name}'", None, remedy))
    if problems:
        raise SpecError(*problems)


def diff_iterations(report: Report, first: Planned, second: Planned) -> bool:
    """Print what changed between the steady states of two loops. Whether anything did."""
    from streamgraph.loop_waits import loop_difference
    from streamgraph.render.fit import duration

    found = loop_difference(first.loop, second.loop)
    periods = [planned.period()[0] for planned in (first, second)]
    report.data |= {
        "added": [wait.to_dict() for wait in found.added], "removed": [wait.to_dict() for wait in found.removed],
        "moved": [{"task": task, "before": before, "after": after} for task, before, after in found.moved],
        "inflight": list(found.inflight), "unit": "us", "per_iteration": periods,
    }  # fmt: skip
    lines = [f"+ {wait} @{wait.lane}    {wait.why}" for wait in found.added]
    lines += [f"- {wait} @{wait.lane}    {wait.why}" for wait in found.removed]
    lines += [f"  {task}: @{before or '-'} -> @{after or '-'}" for task, before, after in found.moved]
    if found.inflight[0] != found.inflight[1]:
        lines.append(f"  in flight: {found.inflight[0]} -> {found.inflight[1]}")
    time = f"{duration(periods[0])} -> {duration(periods[1])} per iteration (simulated)"
    report.result("\n".join([*(lines or ["Both loops have the same waits in every iteration, on the same lanes."]), "", time]))
    return not found.is_empty


def _data(loop: Loop, far: list[tuple[str, str]]) -> dict[str, Any]:
    def back(entries: tuple[Back, ...]) -> list[dict[str, object]]:
        return [{"name": entry.name, "iterations_back": entry.by} for entry in entries]

    def block(issues: tuple[Issue, ...]) -> list[dict[str, object]]:
        return [
            {
                "task": issue.task, "lane": issue.lane, "waits": back(issue.waits), "record": issue.record,
                "releases_before": back(issue.releases_before), "releases_after": back(issue.releases_after),
                "record_streams": list(issue.record_streams), "urgent": issue.urgent,
            }
            for issue in issues
        ]  # fmt: skip

    device_of = loop.device_of
    return {
        "name": loop.program.name, "inflight": loop.inflight, "per_item": sorted(loop.per_item),
        "lanes": [{"lane": lane.name, "priority": lane.priority, "device": device_of.get(lane.name)} for lane in loop.lanes],
        "prologue": [block(issues) for issues in loop.prologue], "steady": block(loop.steady),
        "reaching_back": [{"wait": wait, "why": why} for wait, why in far], "reach": loop.reach, "proved": loop.proved,
    }  # fmt: skip
