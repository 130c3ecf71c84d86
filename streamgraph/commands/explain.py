"""`explain` and `diff`: a schedule in words, and what changed between two. Neither imports torch."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from streamgraph.commands.command import command
from streamgraph.commands.loop import diff_iterations, explain_iterations, load_loop, loop_options, only_with_iterations
from streamgraph.commands.report import WRONG, Report, aligned, many
from streamgraph.commands.source import STDIN, Planning, load_schedule, planning_options, predict, shell
from streamgraph.errors import CATALOGUE, quoted

if TYPE_CHECKING:
    from streamgraph.certificate import Needed
    from streamgraph.schedule import Schedule
    from streamgraph.timeline import TaskTime, Timeline

LOOKS = 1_500_000  # waits times steps that are verified unasked, about ten seconds; beyond, one names a task
SHOWN_PATH = 40  # tasks of the critical path


@command(
    "explain", "Say why a task waits, or what an error code means.",
    "streamgraph explain cameras.streamgraph.yaml stack",
    "streamgraph explain SG301",
)  # fmt: skip
@click.argument("subject", metavar="SPEC|CODE")
@click.argument("tasks", nargs=-1, metavar="[TASK [TASK2]]")
@click.option("--waits", is_flag=True, help="Every wait, with its hazard and what the verifier finds without it; or those of TASK.")
@click.option("--critical-path", is_flag=True, help="The tasks that determine the simulated time, and what held each of them.")
@click.option("--lanes", is_flag=True, help="How busy each lane is, what it waits for, and why there are that many.")
@click.option("--iterations", is_flag=True, help="The waits of the loop over many iterations, and how far back each looks.")
@loop_options
@planning_options
def explain(
    report: Report, subject: str, tasks: tuple[str, ...], options: Planning, waits: bool, critical_path: bool, lanes: bool,
    iterations: bool, items: tuple[str, ...], inflight: int | None,
) -> None:  # fmt: skip
    """Say why a task waits, and for what it does not have to; or what an error code means.

    With one TASK: all that it waits for, and all that waits for it. With two: what orders them, or that they may overlap. With none: every
    wait of the schedule with its reason. `entry`, `exit` and `host` are the caller before, after, and reading results.
    """
    flags = waits + critical_path + lanes
    only_with_iterations(iterations, items, inflight)
    if re.fullmatch(r"SG\d{0,9}", subject, re.IGNORECASE) and not tasks and not flags:
        _code(report, subject.upper())
        return
    if flags > 1:
        raise click.UsageError("explain takes one of --waits, --critical-path and --lanes")
    if len(tasks) > (1 if waits else 0 if flags else 2):
        allowed = "one task with --waits" if waits else "no task with --critical-path or --lanes" if flags else "one task or two"
        raise click.UsageError(f"explain takes {allowed}, not {len(tasks)}")
    if iterations:
        if critical_path or lanes:
            raise click.UsageError("--iterations goes with --waits and with tasks: `plan --iterations` shows lanes and time")
        explain_iterations(report, load_loop(report, subject, options, items, inflight), subject, tasks, waits, items)
        return
    schedule = load_schedule(report, subject, options)
    if critical_path:
        _critical_path(report, schedule, subject, options)
    elif lanes:
        _lanes(report, schedule, subject, options)
    elif waits or not tasks:
        _waits(report, schedule, subject, tasks, certified=waits)
    else:
        _tasks(report, schedule, subject, tasks)


def _code(report: Report, code: str) -> None:
    # The beginning of a code stands for its group: `SG3` lists what is wrong with reads and writes, `SG` everything.
    found = {known: text for known, text in CATALOGUE.items() if known.startswith(code)}
    if not found:
        raise click.BadParameter(f"'{quoted(code)}' is no error code: `streamgraph explain SG` lists them all", param_hint="CODE")
    report.data = {"codes": found}
    report.result("\n".join(f"{known}: {text}" for known, text in found.items()))


def _tasks(report: Report, schedule: Schedule, subject: str, tasks: tuple[str, ...]) -> None:
    answer = schedule.explain(*tasks)
    report.data = {"tasks": list(tasks), **answer.to_dict()}
    report.result(str(answer))
    if subject != STDIN:
        shown = shell(subject)
        more = [f"explain {shown} {shell(tasks[0])} {shell(r.earlier if r.earlier != tasks[0] else r.later)}" for r in answer.relations]
        report.next(*(more[:1] if len(tasks) == 1 else []), f"draw {shown}")


def _waits(report: Report, schedule: Schedule, subject: str, tasks: tuple[str, ...], *, certified: bool) -> None:
    from streamgraph.certificate import certificate, ordering_steps

    numbers = list(ordering_steps(schedule))
    if tasks:
        schedule.explain(tasks[0])  # says so if there is no such task
        numbers = [number for number in numbers if any(reason.later == tasks[0] for reason in _reasons(schedule, number))]
    looked = certified and len(numbers) * len(schedule.steps) <= LOOKS
    needed = {found.number: found for found in certificate(schedule, numbers)} if looked else {}
    report.data = {
        "waits": [str(schedule.steps[number]) for number in numbers], "counts": str(schedule.counts), "notes": list(schedule.notes),
    }  # fmt: skip
    if certified:
        report.data["certificate"] = [found.to_dict() for found in needed.values()] if looked else None
    if not numbers and tasks:
        report.result(f"{tasks[0]} asks for no wait of its own.")
    elif not numbers:
        why = "".join(f"\nChosen: {note}." for note in schedule.notes)
        report.result(f"Nothing waits: one lane runs all tasks in order.{why}")
    else:
        lines = [f"{schedule.program.name}: {schedule.counts}", ""]
        for number in numbers:
            what, _, why = str(schedule.steps[number]).partition("#")
            lines.append(what.strip())
            lines += [f"    {reason.strip()}" for reason in why.split(";")]
            lines += _without(needed[number]) if looked else []
        if looked:
            spared = sum(found.violation is None for found in needed.values())
            each = "It" if len(numbers) == 1 else f"Each of the {len(numbers):,}"
            lines += ["", f"{each} is needed." if not spared else f"{spared:,} of the {len(numbers):,} can be spared."]
        report.result("\n".join(lines))
    if certified and not looked:
        report.say(f"{len(numbers):,} waits are too many to take out one by one: name a task, or use streamgraph.certificate.")
    if not tasks and numbers:
        for note in schedule.notes:
            report.say(f"Chosen: {note}.")
    if subject != STDIN and schedule.program.tasks:
        more = [] if certified else [f"explain {shell(subject)} --waits"]
        report.next(*more, f"explain {shell(subject)} {shell(schedule.program.tasks[-1].name)}")


def _reasons(schedule: Schedule, number: int) -> tuple[Any, ...]:
    reasons: tuple[Any, ...] = getattr(schedule.steps[number], "reasons", ())
    return reasons


def _without(needed: Needed) -> list[str]:
    worst = needed.violation
    if worst is None:
        return ["    without it: nothing is wrong"]
    # Step numbers would be those of a plan that nobody has seen.
    return [f"    without it: {worst.message.partition(': no wait between')[0]} [{worst.code}]"]


def _critical_path(report: Report, schedule: Schedule, subject: str, options: Planning) -> None:
    from streamgraph.render.fit import duration

    timeline = predict(schedule, options)
    path = timeline.critical_path
    rows: list[tuple[str, ...]] = [("start", "took", "task", "lane", "it began when")]
    shown = path if len(path) <= SHOWN_PATH else (*path[: SHOWN_PATH // 2], *path[-SHOWN_PATH // 2 :])
    for number, time in enumerate(shown):
        if number == SHOWN_PATH // 2 and len(path) > len(shown):
            rows.append(("", "", f"... {len(path) - len(shown):,} more (--json lists all)", "", ""))
        rows.append((duration(time.start), duration(time.duration), time.task, time.lane, _held(time)))
    on_path = sum(time.duration for time in path)
    title = f"{schedule.program.name}: {duration(timeline.makespan)} (simulated), {duration(on_path)} of it in {many(len(path), 'task')}"
    name, bound = timeline.bound
    report.data = {
        "unit": "us", "makespan": timeline.makespan, "on_path": on_path, "bounds": dict(timeline.bounds),
        "critical_path": [
            {"task": t.task, "lane": t.lane, "start": t.start, "end": t.end, "held_by": t.held_by, "after": t.after} for t in path
        ],
    }  # fmt: skip
    low = f"No run on these lanes could take less than {duration(bound)} ({_BOUNDS[name]})."
    report.result("\n".join([title, "", aligned(rows, right=frozenset((0, 1))), "", low]))
    if subject != STDIN and path:
        report.next(f"explain {shell(subject)} {shell(path[-1].task)}", f"explain {shell(subject)} --lanes")


_BOUNDS = {
    "span": "the longest chain of hazards", "lanes": "the tasks of the busiest lane", "device": "the work, filling the device",
    "bandwidth": "the memory traffic", "h2d": "the copies to the device", "d2h": "the copies to the host", "host": "the host's calls",
}  # fmt: skip


def _held(time: TaskTime) -> str:
    match time.held_by:
        case "FIFO":
            return f"{time.after} had left the lane" if time.after else "the lane was free"
        case "wait":
            return f"{time.after} was done: a wait" if time.after else "its wait was over"
        case "engine":
            return f"{time.after} had left the copy engine" if time.after else "the copy engine was free"
        case "issue":
            return "the host had issued it"
        case _:
            return "the run began"


def _lanes(report: Report, schedule: Schedule, subject: str, options: Planning) -> None:
    from streamgraph.render.fit import duration

    timeline = predict(schedule, options)
    figures = _lane_figures(schedule, timeline)
    report.data = {"unit": "us", "makespan": timeline.makespan, "lanes": figures, "notes": list(schedule.notes)}
    some = ["urgent"] * bool(schedule.urgent)
    rows: list[tuple[str, ...]] = [("lane", "tasks", "pinned", "busy", "", "waits", "waited for", "priority", *some)]
    rows += [
        (
            f"{f['lane']} ({f['device']})" if "device" in f else str(f["lane"]), f"{f['tasks']:,}", f"{f['pinned']:,}",
            duration(f["busy"]), f"{f['busy_share']:.0%}", f"{f['waits']:,}", f"{f['waited_for']:,}", str(f["priority"]),
            *(f"{f[column]:,}" for column in some),
        )
        for f in figures
    ]  # fmt: skip
    title = f"{schedule.program.name}: {many(len(schedule.lanes), 'lane')}, {duration(timeline.makespan)} (simulated)"
    notes = [f"Chosen: {note}." for note in schedule.notes]
    report.result("\n".join([title, "", aligned(rows, right=frozenset((1, 2, 3, 4, 5, 6, 8))), *([""] if notes else []), *notes]))
    if subject != STDIN:
        report.next(f"explain {shell(subject)} --critical-path", f"draw {shell(subject)}")


def _lane_figures(schedule: Schedule, timeline: Timeline) -> list[dict[str, Any]]:
    from collections import Counter

    from streamgraph.model import HOST
    from streamgraph.schedule import HostWait, Record, Wait

    pinned = {task.name for task in schedule.program.tasks if task.stream is not None or task.host}
    tasks = Counter(schedule.lane_of.values())
    fixed = Counter(lane for task, lane in schedule.lane_of.items() if task in pinned)
    urgent = Counter(schedule.lane_of[task] for task in schedule.urgent)
    waits = Counter(HOST if isinstance(s, HostWait) else s.lane for s in schedule.steps if isinstance(s, Wait | HostWait))
    events = Counter(step.lane for step in schedule.steps if isinstance(step, Record))
    busy = dict(timeline.busy)
    device = schedule.device_of if schedule.program.devices else {}
    return [
        {
            "lane": lane.name, **({"device": device[lane.name]} if lane.name in device else {}),
            "priority": lane.priority, "tasks": tasks[lane.name], "pinned": fixed[lane.name],
            "busy": busy.get(lane.name, 0.0), "busy_share": busy.get(lane.name, 0.0) / timeline.makespan if timeline.makespan else 0.0,
            "waits": waits[lane.name], "waited_for": events[lane.name], "urgent": urgent[lane.name],
        }
        for lane in schedule.lanes
    ]  # fmt: skip


@command(
    "diff", "Show what changed between two plans.",
    "streamgraph diff before.yaml after.yaml",
    "streamgraph diff plan.json cameras.streamgraph.yaml --format markdown --exit-code",
)  # fmt: skip
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--format", "form", type=click.Choice(["text", "markdown"]), default="text", show_default=True, help="How it is printed.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if the plans differ.")
@click.option("--iterations", is_flag=True, help="Compare the loops over many iterations: what every iteration waits for.")
@loop_options
@planning_options
def diff(
    report: Report, first: str, second: str, options: Planning, form: str, exit_code: bool, iterations: bool, items: tuple[str, ...],
    inflight: int | None,
) -> int | None:  # fmt: skip
    """Show what changed between two plans: tasks, lanes, waits and their hazards, events, record_stream, time and memory.

    A and B are specs, which are planned with the options given, or schedules that `plan -o` saved, which are compared as they are. One of
    the two may be `-` for stdin. Tasks are compared by name.
    """
    from streamgraph.difference import diff as compare

    if first == second == STDIN:
        raise click.UsageError("only one of the two can come from stdin")
    only_with_iterations(iterations, items, inflight)
    if iterations:
        report.data = {"first": first, "second": second}
        changed = diff_iterations(report, *(load_loop(report, source, options, items, inflight) for source in (first, second)))
        return WRONG if exit_code and changed else None
    before, after = (load_schedule(report, source, options) for source in (first, second))
    found = compare(before, after, costs=options.costs, machine=options.machine)
    report.data = {"first": first, "second": second, **found.to_dict(), "text": str(found)}
    report.result(found.to_markdown() if form == "markdown" else str(found))
    if STDIN not in (first, second) and not found.is_empty:
        added = next(iter(islice(found.waits_added, 1)), None)
        report.next(f"explain {shell(second)} {shell(added.earlier)} {shell(added.later)}" if added else f"explain {shell(second)}")
    return WRONG if exit_code and not found.is_empty else None
