"""`plan`, `explain` and `draw`: one schedule, as a table, as sentences, as a picture. None of them imports torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from streamgraph.commands.command import command
from streamgraph.commands.report import Report, many, width
from streamgraph.commands.source import STDIN, Planning, load_schedule, planning_options, shell, write
from streamgraph.errors import CATALOGUE, quoted

if TYPE_CHECKING:
    from streamgraph.commands.figures import Figures
    from streamgraph.schedule import Schedule
    from streamgraph.simulate import Timeline

SHOWN_TASKS = 24  # per lane, after members of one family are put together


@command(
    "plan", "Show the lanes, and the figures of the schedule.",
    "streamgraph plan cameras.streamgraph.yaml",
    "streamgraph plan cameras.streamgraph.yaml --streams 2 -o plan.json",
)  # fmt: skip
@click.argument("spec", metavar="SPEC")
@planning_options
@click.option("-o", "--output", metavar="FILE", help="Save the schedule as JSON; `-` is stdout. It can be planned, drawn, explained, run.")
@click.option("--steps", is_flag=True, help="Print every step with its reason.")
def plan(report: Report, spec: str, options: Planning, output: str | None, steps: bool) -> None:
    """Show which lane runs each task, and how few waits, events and record_stream calls that takes.

    A lane is one CUDA stream; `main` is the stream that is current when the program runs. The schedule is proved free of races before it
    is shown. Nothing is run, and no GPU is needed. SPEC may be a saved schedule, or `-` for stdin.
    """
    from streamgraph.commands.figures import figures_of
    from streamgraph.simulate import simulate

    schedule = load_schedule(report, spec, options)
    timeline = simulate(schedule)
    figures = figures_of(schedule)
    report.data = {
        "name": schedule.program.name, "lanes": _lanes(schedule), "figures": figures.to_dict(),
        "steps": [str(step) for step in schedule.steps],
        "options": dict(schedule.options), "estimate": _estimate(timeline),
    }  # fmt: skip
    if output == STDIN:
        report.result(schedule.to_json())
        return
    report.result(_table(schedule, timeline, figures))
    if steps:
        report.result("\n" + "\n".join(map(str, schedule.steps)))
    if timeline.speed_up < 0.995:
        report.say("By these costs one stream would be faster. Costs that you declare (`cost: 120us`) tell better than guesses from sizes.")
    if output is not None:
        write(output, schedule.to_json())
        report.data["file"] = output
        report.say(f"Saved to {output}, which takes the place of the spec in `plan`, `draw`, `explain` and `run`.")
    if spec != STDIN:
        again = f"plan {shell(spec)} --steps"
        report.next(f"draw {shell(spec)}", f"explain {shell(spec)}", *([] if steps else [again]))


def _estimate(timeline: Timeline) -> dict[str, object]:
    return {
        "unit": "us", "makespan": timeline.makespan, "one_stream": timeline.one_stream, "speed_up": timeline.speed_up,
        "source": "simulated from declared and guessed costs",
    }  # fmt: skip


def _lanes(schedule: Schedule) -> list[dict[str, object]]:
    tasks: dict[str, list[str]] = {lane.name: [] for lane in schedule.lanes}
    for task, lane in schedule.lane_of.items():
        tasks[lane].append(task)
    return [{"lane": lane.name, "priority": lane.priority, "tasks": tasks[lane.name]} for lane in schedule.lanes]


def _table(schedule: Schedule, timeline: Timeline, figures: Figures) -> str:
    host = ", one of them the host" if any(lane.is_host for lane in schedule.lanes) else ""
    title = f"{schedule.program.name}: {many(len(schedule.lane_of), 'task')} on {many(len(schedule.lanes), 'lane')}{host}"
    return "\n".join([title, "", lanes_table(schedule), "", figures.table(), "", f"Time: {time_said(timeline)}"])


def time_said(timeline: Timeline) -> str:
    """The predicted time beside that of one stream."""
    from streamgraph.render.fit import duration

    alone = f"{timeline.speed_up:.2f}x as fast as on one stream ({duration(timeline.one_stream)})"
    return f"{duration(timeline.makespan)} (simulated from the tasks' costs), {alone}"


def lanes_table(schedule: Schedule) -> str:
    """The tasks of each lane, in the order in which they are issued; long lists are shortened."""
    labels = {lane: lane.name if lane.priority == "normal" else f"{lane.name} ({lane.priority} priority)" for lane in schedule.lanes}
    left = max(4, *(len(label) for label in labels.values()))
    lines = [f"{'lane':<{left}}  tasks, in order"]
    for lane, label in labels.items():
        names = [task for task, its in schedule.lane_of.items() if its == lane.name]
        if lane.is_host and not names:
            names = ["(runs no task: the caller waits there for results)"]
        first, *rest = _wrapped(_together(names), width() - left - 2)
        lines += [f"{label:<{left}}  {first}".rstrip(), *(" " * (left + 2) + line for line in rest)]
    return "\n".join(lines)


def _together(names: Iterable[str]) -> list[str]:
    """Names with runs of one family put together: `upload@0 .. upload@3 (4)`."""
    runs: list[list[str]] = []
    for name in names:
        if runs and "@" in name and runs[-1][0].partition("@")[0] == name.partition("@")[0]:
            runs[-1].append(name)
        else:
            runs.append([name])
    parts: list[str] = []
    for run in runs:
        parts += run if len(run) <= 4 else [f"{run[0]} .. {run[-1]} ({len(run)})"]
    if len(parts) > SHOWN_TASKS:
        left = len(parts) - SHOWN_TASKS
        parts = [*parts[:SHOWN_TASKS], f"... and {left} more (--json lists all)"]
    return parts


def _wrapped(parts: list[str], room: int) -> list[str]:
    """The parts with commas, in lines of at most `room` characters; no part is broken."""
    lines = [""]
    for number, part in enumerate(parts):
        text = part + ("," if number < len(parts) - 1 else "")
        if lines[-1] and len(lines[-1]) + 1 + len(text) > room:
            lines.append("")
        lines[-1] = f"{lines[-1]} {text}".strip()
    return lines


@command(
    "explain", "Say why a task waits, or what an error code means.",
    "streamgraph explain cameras.streamgraph.yaml stack",
    "streamgraph explain SG301",
)  # fmt: skip
@click.argument("subject", metavar="SPEC|CODE")
@click.argument("tasks", nargs=-1, metavar="[TASK [TASK2]]")
@planning_options
def explain(report: Report, subject: str, tasks: tuple[str, ...], options: Planning) -> None:
    """Say why a task waits, and for what it does not have to; or what an error code means.

    With one TASK: all that it waits for, and all that waits for it. With two: what orders them, or that they may overlap. With none: every
    wait of the schedule with its reason. `entry`, `exit` and `host` are the caller before, after, and reading results.
    """
    if re.fullmatch(r"SG\d{0,9}", subject, re.IGNORECASE) and not tasks:
        _explain_code(report, subject.upper())
        return
    if len(tasks) > 2:
        raise click.UsageError(f"explain takes one task or two, not {len(tasks)}")
    schedule = load_schedule(report, subject, options)
    if not tasks:
        _explain_waits(report, schedule, subject)
        return
    answer = schedule.explain(*tasks)
    report.data = {"tasks": list(tasks), **answer.to_dict()}
    report.result(str(answer))
    if subject != STDIN:
        shown = shell(subject)
        more = [f"explain {shown} {shell(tasks[0])} {shell(r.earlier if r.earlier != tasks[0] else r.later)}" for r in answer.relations]
        report.next(*(more[:1] if len(tasks) == 1 else []), f"draw {shown}")


def _explain_code(report: Report, code: str) -> None:
    # The beginning of a code stands for its group: `SG3` lists what is wrong with reads and writes, `SG` everything.
    found = {known: text for known, text in CATALOGUE.items() if known.startswith(code)}
    if not found:
        raise click.BadParameter(f"'{quoted(code)}' is no error code: `streamgraph explain SG` lists them all", param_hint="CODE")
    report.data = {"codes": found}
    report.result("\n".join(f"{known}: {text}" for known, text in found.items()))


def _explain_waits(report: Report, schedule: Schedule, subject: str) -> None:
    from streamgraph.schedule import HostWait, RecordStream, Wait

    found = [step for step in schedule.steps if isinstance(step, Wait | HostWait | RecordStream)]
    report.data = {"waits": [str(step) for step in found], "counts": str(schedule.counts)}
    if not found:
        report.result("Nothing waits: one lane runs all tasks in order.")
    else:
        lines = [f"{schedule.program.name}: {schedule.counts}", ""]
        for step in found:
            what, _, why = str(step).partition("#")
            lines.append(what.strip())
            lines += [f"    {reason.strip()}" for reason in why.split(";")]
        report.result("\n".join(lines))
    if subject != STDIN and schedule.program.tasks:
        report.next(f"explain {shell(subject)} {shell(schedule.program.tasks[-1].name)}")


@command(
    "draw", "Draw lanes, tasks and waits.",
    "streamgraph draw cameras.streamgraph.yaml",
    "streamgraph draw cameras.streamgraph.yaml -o cameras.svg",
)  # fmt: skip
@click.argument("spec", metavar="SPEC")
@click.option(
    "-o", "--output", metavar="FILE",
    help="The suffix decides: .svg, .mmd (Mermaid), .dot (Graphviz), .txt, .json (the saved schedule). Without it: text, on stdout.",
)  # fmt: skip
@planning_options
def draw(report: Report, spec: str, output: str | None, options: Planning) -> None:
    """Draw lanes, tasks and waits along the simulated time.

    Nothing is run, and no GPU is needed. SPEC may be a saved schedule, or `-` for stdin.
    """
    import os
    import sys

    from streamgraph import render
    from streamgraph.simulate import simulate

    schedule = load_schedule(report, spec, options)
    timeline = simulate(schedule)
    if output is None:
        encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
        text = render.draw_text(schedule, timeline, width=width(), ascii_only=not encoding.startswith("utf"))
        report.data = {"text": text, "timeline": timeline.to_dict()}
        report.result(text)
        if spec != STDIN:
            name = os.path.basename(spec).removesuffix(".yaml").removesuffix(".streamgraph")
            report.next(f"draw {shell(spec)} -o {shell(name + '.svg')}", f"explain {shell(spec)}")
        return
    suffix = os.path.splitext(output)[1].removeprefix(".").lower()
    text = render.render(schedule, suffix, timeline)
    write(output, text)
    report.data = {"file": output}
    report.result(output)
    if suffix == "svg":
        report.say("Open it in a browser: tasks and arrows say more under the pointer.")
    if spec != STDIN:
        report.next(f"explain {shell(spec)}")
