"""`run --profile` and `--trace`: when each task really began and ended, beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from streamgraph.commands.progress import progress
from streamgraph.commands.report import Report, aligned
from streamgraph.commands.source import write

if TYPE_CHECKING:
    import torch

    from streamgraph.measured import MeasuredTimeline
    from streamgraph.operators import Operators
    from streamgraph.schedule import Schedule
    from streamgraph.timeline import Timeline

Function = TypeVar("Function", bound=Callable[..., int | None])

SHOWN = 12  # tasks in the table; the report and --json have all


def profile_options(function: Function) -> Function:
    """`--profile` and `--trace`."""
    with_trace = click.option(
        "--trace", metavar="FILE", help="Write a Chrome trace for Perfetto: the predicted run, and with --profile the measured one."
    )(function)
    return click.option(
        "--profile", is_flag=True, help="Also measure when each task begins and ends, in some more runs, beside what is predicted."
    )(with_trace)


def check_profile(profile: bool, trace: str | None, iterations: int | None, device: str, executor: str) -> None:
    """Raise a usage error for what cannot be measured, or has no trace."""
    if profile and (iterations is not None or device == "sim" or executor == "graph"):
        what = "--iterations" if iterations is not None else "--device sim" if device == "sim" else "--executor graph"
        raise click.UsageError(f"--profile measures single runs whose tasks are called one by one: leave {what} out")
    if trace is not None and iterations is not None:
        raise click.UsageError("--trace shows one run; `draw --iterations N -o x.trace.json` writes a loop")


def measured_run(
    report: Report, schedule: Schedule, given: Mapping[str, torch.Tensor], predicted: Timeline, *, ops: Operators | None, device: str,
    executor: str, seed: int,
) -> MeasuredTimeline:  # fmt: skip
    """The measured timeline; with `--json`, both are told."""
    from streamgraph.binding import bind, written_in_place
    from streamgraph.executors.device import find
    from streamgraph.measuring import measure

    on = find(device, schedule.program)
    tensors = bind(schedule.program, given, on.location, written=written_in_place(schedule.program, schedule.accesses))
    with progress(report, "measuring", "round") as step:
        measured = measure(schedule, tensors, predicted, device=on, ops=ops, executor=executor, seed=seed, progress=step)
    report.data |= {"predicted": predicted.to_dict(), "measured": measured.to_dict()}
    return measured


def write_trace(report: Report, trace: str | None, schedule: Schedule, predicted: Timeline, measured: Timeline | None = None) -> None:
    """Write the trace, if one was asked for."""
    if trace is None:
        return
    from streamgraph.render import draw_trace

    write(trace, draw_trace(schedule, predicted, measured))
    report.data["trace"] = trace
    report.say(f"The trace is {trace}: open it at https://ui.perfetto.dev")


def beside(predicted: Timeline, measured: MeasuredTimeline) -> str:
    """The figures of both, and the tasks whose times differ most."""
    from streamgraph.errors import quoted
    from streamgraph.render.fit import duration

    figures = [
        ("", "predicted", "measured"),
        ("time", duration(predicted.makespan), duration(measured.makespan)),
        ("one stream", duration(predicted.one_stream), duration(measured.one_stream)),
        ("speed-up", f"{predicted.speed_up:.2f}x", f"{measured.speed_up:.2f}x"),
        ("overlap", f"{predicted.overlap:.2f}", f"{measured.overlap:.2f}"),
    ]
    lines = [f"Measured on {measured.device}, the median of {measured.runs} runs, with what the measuring costs:", ""]
    lines += [aligned(figures, right=frozenset({1, 2}), indent="  "), ""]
    of = predicted.time_of
    pairs = [(of[time.task], time) for time in measured.tasks if time.task in of]
    pairs.sort(key=lambda pair: -abs(pair[1].duration - pair[0].duration))
    rows = [("task", "predicted", "measured", "difference", "from")]
    for mine, its in pairs[:SHOWN]:
        far = its.duration - mine.duration
        rows.append((
            quoted(its.task, 60), duration(mine.duration), duration(its.duration), ("-" if far < 0 else "+") + duration(abs(far)),
            f"{duration(its.start)} to {duration(its.end)}",
        ))  # fmt: skip
    lines.append(aligned(rows, right=frozenset({1, 2, 3}), indent="  "))
    if len(pairs) > SHOWN:
        lines.append(f"  and {len(pairs) - SHOWN:,} more, which differ less")
    return "\n".join(lines)
