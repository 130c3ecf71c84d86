"""`run`: execute a spec, and hold it against the same tasks one after another."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from streamgraph.commands.command import command
from streamgraph.commands.loop import Planned, inflight_option, loop_of, only_with_iterations
from streamgraph.commands.measured import beside, check_profile, profile_options, write_trace
from streamgraph.commands.progress import progress
from streamgraph.commands.report import WRONG, Report, aligned
from streamgraph.commands.results import Results
from streamgraph.commands.source import STDIN, Planning, load_schedule, planning_options, predict, shell, spec_text, write
from streamgraph.errors import quoted

if TYPE_CHECKING:
    from streamgraph.schedule import Schedule
    from streamgraph.simulate import Timeline

MOST_SHOWN = 64  # iterations that are written out to be looked at


def device_named(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The value of `--device`, if it is the name of one."""
    if re.fullmatch(r"auto|cpu|sim|cuda(:[0-9]{1,3})?", value) is None:
        raise click.BadParameter(f"'{quoted(value)}' is none of auto, cpu, sim, cuda, cuda:0, cuda:1, ...")
    return value


def running_options(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """What every command that executes takes."""
    for option in (
        click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, metavar="N", show_default=True,
                     help="For `init: random`, and for torch's generators."),
        click.option("--device", default="auto", show_default=True, metavar="NAME", callback=device_named,
                     help="auto, cpu, cuda, cuda:1, or sim: run nothing, predict times."),
        click.option("--input", "inputs", multiple=True, metavar="NAME=FILE",
                     help="Bind an input to a .npy, .pt, .safetensors or image file; a family to a folder or a pattern. Repeatable."),
        click.option("--ops", metavar="FILE|MODULE", help="The operators that the spec names, beside torch's `aten.*`."),
    ):  # fmt: skip
        function = option(function)
    return planning_options(function)


@command(
    "run", "Run a spec and check its results.",
    "streamgraph run demo.streamgraph.yaml",
    "streamgraph run cameras.streamgraph.yaml --ops operators.py --input frame=frames/ --output results",
)  # fmt: skip
@click.argument("spec", metavar="SPEC")
@running_options
@click.option("--iterations", type=click.IntRange(1, 1_000_000), metavar="N", help="Run N iterations on the same inputs, overlapping.")
@inflight_option
@click.option("--output", metavar="DIR", help="Write every result to this folder, as NAME.npy (or .pt).")
@click.option("--report", "page", metavar="FILE", help="Write the HTML report of the schedule to this file.")
@profile_options
@click.option("--no-check", is_flag=True, help="Leave out the second run, task after task, that the results are compared with.")
def run(
    report: Report, spec: str, ops: str | None, inputs: tuple[str, ...], device: str, seed: int,
    options: Planning, output: str | None, page: str | None, no_check: bool, iterations: int | None, inflight: int | None,
    profile: bool, trace: str | None,
) -> int | None:  # fmt: skip
    """Run a spec, check the results against the same tasks one after another, and show what ran where.

    Inputs that are not given are made up where they declare `init`, and listed. Without a GPU the same schedule runs on host threads:
    results are real, times are simulated. SPEC may be a saved schedule, or `-` for stdin.

    With --iterations, the loop is run: buffers carry over from one iteration to the next, and iterations overlap. All results are
    compared with those of calls one after another; those of the last iteration are shown.
    """
    from streamgraph.commands.figures import figures_of
    from streamgraph.commands.schedule import lanes_table

    only_with_iterations(iterations, (), inflight)
    executor = options.executor
    check_profile(profile, trace, iterations, device, executor)
    schedule = load_schedule(report, spec, options)
    figures = figures_of(schedule)
    report.data = {"name": schedule.program.name, "lanes": dict(schedule.lane_of), "figures": figures.to_dict()}
    loop = None if iterations is None else loop_of(report, schedule, options, (), inflight)
    if device == "sim":
        _simulated(report, *_shown(schedule, options, loop, iterations), spec)
        _write_report(report, schedule, spec, options, page, loop, iterations, ran=False)
        write_trace(report, trace, schedule, predict(schedule, options))
        return None
    with progress(report, "running"):
        results = Results(
            schedule, ops, inputs, device, executor, seed, predict(schedule, options), check=not no_check, iterations=iterations, loop=loop
        )
    report.data |= results.to_dict()
    measured = results.measure(report) if profile else None
    alone = [] if loop is None else ["One call on its own is planned like this; `plan --iterations` shows the loop:", ""]
    lines = [results.headline, "", *alone, lanes_table(schedule), "", figures.table(), ""]
    report.result("\n".join([*lines, *results.verdict(), *results.inputs_said(), *results.outputs_said()]))
    if measured is not None:
        report.result("\n" + beside(results.timeline, measured))
    if output is not None:
        from streamgraph.files import save_outputs

        files = [str(path) for path in save_outputs(results.outputs, output)]
        report.data["files"] = files
        report.result("\n" + "\n".join(files))
    _write_report(report, schedule, spec, options, page, loop, iterations, ran=True, measured=measured)
    write_trace(report, trace, schedule, results.timeline, measured)
    shown = shell(spec)
    with_ops = f" --ops {shell(ops)}" if ops else ""
    if results.differing:
        report.next(*([] if spec == STDIN else [f"compare {shown}{with_ops}"]))
        return WRONG
    looked = "" if iterations is None else f" --iterations {min(iterations, 8)}"
    report.next(*([] if spec == STDIN else [f"draw {shown}{looked}", f"explain {shown}{' --iterations' * bool(looked)}"]))
    return None


def _shown(schedule: Schedule, options: Planning, loop: Planned | None, iterations: int | None) -> tuple[Schedule, Timeline]:
    """What there is to look at: the schedule of one run, or the loop written out; with its simulated run."""
    if loop is None or iterations is None:
        return schedule, predict(schedule, options)
    return loop.written_out(min(iterations, MOST_SHOWN))


def _write_report(
    report: Report, schedule: Schedule, spec: str, options: Planning, page: str | None, loop: Planned | None, iterations: int | None, *,
    ran: bool, measured: Timeline | None = None,
) -> None:  # fmt: skip
    if page is None:
        return
    from streamgraph.render import python_of, render

    # The Python code needs torch, which a simulated run does not import.
    code = python_of(schedule) if ran and loop is None else None
    shown, timeline = _shown(schedule, options, loop, iterations)
    write(page, render(shown, "html", timeline, spec=spec_text(spec), python=code, measured=measured))
    report.data["report"] = page
    report.say(f"The report is {page}: one file, open it in a browser.")


def _simulated(report: Report, schedule: Schedule, timeline: Timeline, spec: str) -> None:
    from streamgraph.commands.schedule import time_said
    from streamgraph.render.fit import duration

    report.data["timeline"] = timeline.to_dict()
    rows = [("start", "end", "lane", "task", "")]
    rows += [
        (duration(time.start), duration(time.end), time.lane, time.task, "" if time.source != "default" else "guessed from sizes")
        for time in sorted(timeline.tasks, key=lambda time: (time.start, time.end))
    ]
    report.result(f"{schedule.program.name}: nothing was run; times are simulated from {timeline.basis}.\n")
    report.result(aligned(rows, right=frozenset({0, 1})))
    report.result(f"\nTime: {time_said(timeline)}")
    if spec != STDIN:
        report.next(f"draw {shell(spec)}", f"run {shell(spec)}")
