"""`plan` and `draw`: one schedule, as a table, as a picture. Neither imports torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from streamgraph.commands.command import command
from streamgraph.commands.loop import load_loop, loop_options, only_with_iterations, plan_iterations
from streamgraph.commands.report import Report, many, width
from streamgraph.commands.source import STDIN, Planning, load_schedule, planning_options, predict, shell, spec_text, write

if TYPE_CHECKING:
    from streamgraph.commands.figures import Figures
    from streamgraph.schedule import Schedule
    from streamgraph.simulate import Timeline

LANE_COLOURS = ("cyan", "green", "yellow", "blue", "bright_cyan", "bright_green")
OPENED = {
    "html": "Open it in a browser: it is one file, and loads nothing.",
    "svg": "Open it in a browser: tasks and arrows say more under the pointer.",
    "resources.svg": "Open it in a browser: tasks and arrows say more under the pointer.",
    "trace.json": "Open it at https://ui.perfetto.dev, or in chrome://tracing.",
}
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
@click.option("--as", "form", type=click.Choice(["json", "python"]), help="What is saved or printed: the schedule, or plain torch code.")
@click.option("--iterations", is_flag=True, help="Plan the loop over many iterations: what repeats, and which waits reach back.")
@loop_options
def plan(
    report: Report, spec: str, options: Planning, output: str | None, steps: bool, form: str | None, iterations: bool,
    items: tuple[str, ...], inflight: int | None,
) -> None:  # fmt: skip
    """Show which lane runs each task, and how few waits, events and record_stream calls that takes.

    A lane is one CUDA stream; `main` is the stream that is current when the program runs. The schedule is proved free of races before it
    is shown. Nothing is run, and no GPU is needed. SPEC may be a saved schedule, or `-` for stdin.
    """
    from streamgraph.commands.figures import figures_of

    only_with_iterations(iterations, items, inflight)
    if iterations:
        if output is not None or steps or form is not None:
            remedy = "leave --output, --steps and --as out; `draw --iterations N` writes it out"
            raise click.UsageError(f"--iterations prints the loop: {remedy}")
        plan_iterations(report, load_loop(report, spec, options, items, inflight))
        if spec != STDIN:
            with_items = "".join(f" --item {shell(item)}" for item in items)
            report.next(f"draw {shell(spec)} --iterations 4{with_items}", f"run {shell(spec)} --iterations 4")
        return
    schedule = load_schedule(report, spec, options)
    timeline = predict(schedule, options)
    figures = figures_of(schedule)
    report.data = {
        "name": schedule.program.name, "lanes": _lanes(schedule), "figures": figures.to_dict(),
        "steps": [str(step) for step in schedule.steps],
        "options": dict(schedule.options), "notes": list(schedule.notes), "estimate": _estimate(timeline),
    }  # fmt: skip
    if output == STDIN or (form is not None and output is None):
        report.result(schedule.to_python().rstrip() if form == "python" else schedule.to_json())
        return
    report.result(_table(schedule, timeline, figures))
    if steps:
        report.result("\n" + "\n".join(map(str, schedule.steps)))
    for note in schedule.notes:
        report.say(f"Chosen: {note}.")
    if timeline.speed_up < 0.995:
        report.say("By these costs one stream would be faster. Costs that you declare (`cost: 120us`) tell better than guesses from sizes.")
    if output is not None:
        write(output, schedule.to_python() if form == "python" else schedule.to_json())
        report.data["file"] = output
        if form == "python":
            report.say(f"Saved to {output}: `run(inputs, ops)` needs torch, and nothing of streamgraph.")
        else:
            report.say(f"Saved to {output}, which takes the place of the spec in `plan`, `draw`, `explain` and `run`.")
    if spec != STDIN:
        again = f"plan {shell(spec)} --steps"
        report.next(f"draw {shell(spec)}", f"explain {shell(spec)}", *([] if steps else [again]))


def _estimate(timeline: Timeline) -> dict[str, object]:
    return {
        "unit": "us", "makespan": timeline.makespan, "one_stream": timeline.one_stream, "speed_up": timeline.speed_up,
        "source": f"simulated from {timeline.basis}", "issue": timeline.issue,
    }  # fmt: skip


def _lanes(schedule: Schedule) -> list[dict[str, object]]:
    tasks: dict[str, list[str]] = {lane.name: [] for lane in schedule.lanes}
    for task, lane in schedule.lane_of.items():
        tasks[lane].append(task)
    device = schedule.device_of if schedule.program.devices else {}
    return [
        {"lane": lane.name, "priority": lane.priority, **({"device": device[lane.name]} if lane.name in device else {}),
         "tasks": tasks[lane.name]}
        for lane in schedule.lanes
    ]  # fmt: skip


def _table(schedule: Schedule, timeline: Timeline, figures: Figures) -> str:
    host = ", one of them the host" if any(lane.is_host for lane in schedule.lanes) else ""
    title = f"{schedule.program.name}: {many(len(schedule.lane_of), 'task')} on {many(len(schedule.lanes), 'lane')}{host}"
    return "\n".join([title, "", lanes_table(schedule), "", figures.table(), "", f"Time: {time_said(timeline)}"])


def time_said(timeline: Timeline) -> str:
    """The predicted time beside that of one stream."""
    from streamgraph.render.fit import duration

    alone = f"{timeline.speed_up:.2f}x as fast as on one stream ({duration(timeline.one_stream)})"
    return f"{duration(timeline.makespan)} (simulated from {timeline.basis}), {alone}"


def lanes_table(schedule: Schedule) -> str:
    """The tasks of each lane, in the order in which they are issued; long lists are shortened."""
    device = schedule.device_of if schedule.program.devices else {}
    labels = {}
    for lane in schedule.lanes:
        about = [*([device[lane.name]] if lane.name in device else []), *([f"{lane.priority} priority"] * (lane.priority != "normal"))]
        labels[lane] = f"{lane.name} ({', '.join(about)})" if about else lane.name
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
    "draw", "Draw lanes, tasks and waits.",
    "streamgraph draw cameras.streamgraph.yaml",
    "streamgraph draw cameras.streamgraph.yaml -o cameras.html",
)  # fmt: skip
@click.argument("spec", metavar="SPEC")
@click.option(
    "-o", "--output", metavar="FILE",
    help="The suffix decides: .html (the report: all views in one file), .svg (lanes along time), .resources.svg (resources by lanes), "
    ".mmd (Mermaid), .dot (Graphviz), .txt, .trace.json (for Perfetto), .json (the saved schedule). Without it: text, on stdout.",
)  # fmt: skip
@click.option("--iterations", type=click.IntRange(1, 10_000), metavar="N", help="Draw N iterations of the loop, each shaded.")
@loop_options
@planning_options
def draw(
    report: Report, spec: str, output: str | None, options: Planning, iterations: int | None, items: tuple[str, ...], inflight: int | None
) -> None:
    """Draw lanes, tasks and waits along the simulated time.

    Nothing is run, and no GPU is needed. SPEC may be a saved schedule, or `-` for stdin.

    With --iterations, the loop is drawn as it is written out for so many of them: `mm#3` is task mm of iteration 3.
    """
    import os
    import sys

    from streamgraph import render

    only_with_iterations(iterations, items, inflight)
    if iterations is not None and output is not None and render.format_of(os.path.basename(output)) == "json":
        raise click.UsageError("a loop written out is no schedule to save: name a picture, or save the plan of one run")
    if iterations is None:
        schedule = load_schedule(report, spec, options)
        timeline = predict(schedule, options)
    else:
        schedule, timeline = load_loop(report, spec, options, items, inflight).written_out(iterations)
    more = "".join(f" --item {shell(item)}" for item in items) + (f" --inflight {inflight}" if inflight is not None else "")
    again, looped = ("", "") if iterations is None else (f" --iterations {iterations}{more}", f" --iterations{more}")
    if output is None:
        encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
        text = render.draw_text(schedule, timeline, width=width(), ascii_only=not encoding.startswith("utf"))
        report.data = {"text": text, "timeline": timeline.to_dict()}
        report.result(text, _lane_styles(schedule))
        if spec != STDIN:
            name = os.path.basename(spec).removesuffix(".yaml").removesuffix(".streamgraph")
            report.next(f"draw {shell(spec)}{again} -o {shell(name + '.html')}", f"explain {shell(spec)}{looped}")
        return
    suffix = render.format_of(os.path.basename(output))
    text = render.render(schedule, suffix, timeline, spec=spec_text(spec))
    write(output, text)
    report.data = {"file": output}
    report.result(output)
    if suffix in OPENED:
        report.say(OPENED[suffix])
    if spec != STDIN:
        report.next(f"explain {shell(spec)}{looped}")


def _lane_styles(schedule: Schedule) -> list[tuple[str, str]]:
    """A colour for each lane: its strip, and its name where a wait names it. The critical path's stars are red."""
    from streamgraph.render.fit import shown

    found = [(r" \*(?=\s|$)", "bold red")]
    for number, lane in enumerate(schedule.lanes):
        name, colour = re.escape(shown(lane.name)), LANE_COLOURS[number % len(LANE_COLOURS)]
        found += [(rf"^{name} *[│|].*[│|]$", colour), (rf"(?<= @){name}(?=\s|$)", colour)]
    return found
