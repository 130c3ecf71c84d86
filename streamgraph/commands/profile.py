"""`profile`: measure what each task costs, for `plan --costs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from streamgraph.commands.command import command
from streamgraph.commands.progress import progress
from streamgraph.commands.report import Report, aligned, many
from streamgraph.commands.run import device_named
from streamgraph.commands.source import STDIN, has_folder, load_program, param_option, shell, write

if TYPE_CHECKING:
    from streamgraph.executors.profile import Profile

SHOWN = 24  # tasks in the table; the file has all


@command(
    "profile", "Measure what each task costs.",
    "streamgraph profile demo.streamgraph.yaml -o costs.json",
    "streamgraph profile cameras.streamgraph.yaml --ops operators.py --device cuda",
)  # fmt: skip
@click.argument("spec", metavar="SPEC")
@click.option("-o", "--output", metavar="FILE", help="Write the costs to this file, for the `--costs` of other commands; `-` is stdout.")
@click.option("--ops", metavar="FILE|MODULE", help="The operators that the spec names, beside torch's `aten.*`.")
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=FILE",
    help="Bind an input to a file, as in `run`; the others are made up where they declare `init`. Repeatable.",
)  # fmt: skip
@click.option("--device", default="auto", show_default=True, metavar="NAME", callback=device_named, help="auto, cpu, cuda, cuda:1.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="N", help="Times are medians of so many.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, metavar="N", show_default=True, help="For `init: random`.")
@param_option
def profile(
    report: Report, spec: str, output: str | None, ops: str | None, inputs: tuple[str, ...], device: str, rounds: int, seed: int,
    params: tuple[str, ...],
) -> None:  # fmt: skip
    """Measure what each task costs: its time alone and warm, its share of the device, and the host's time for its call.

    Each task is called many times on the tensors that it would get; what it updates in place is put back. On a GPU the calls are captured
    into CUDA graphs. Inputs that are not given are made up where they declare `init`.
    """
    if device == "sim":
        raise click.UsageError("nothing can be measured on --device sim: use cpu or cuda")
    import torch

    from streamgraph.binding import bind, made_up, written_in_place
    from streamgraph.cost import costs_json
    from streamgraph.errors import DeviceError, Problem
    from streamgraph.executors.device import find
    from streamgraph.executors.profile import profile_tasks
    from streamgraph.files import load_inputs
    from streamgraph.operators import load_operators, resolve
    from streamgraph.plan import plan

    has_folder(output)
    program = load_program(report, spec, params)
    schedule = plan(program, streams=1, policy="single")
    location = find(device, schedule.program).location
    if schedule.has_devices and location.type != "cpu":
        message = f"'{schedule.program.name}' lies on {' and '.join(schedule.program.devices)}, and costs are measured on one device"
        raise DeviceError(Problem("SG606", message, None, "declare `cost` for its tasks, or use `run --profile`, which times whole runs"))
    operators = resolve(schedule.program, load_operators(ops) if ops else None, str(location), schedule.accesses)
    given = load_inputs(schedule.program, inputs, location)
    given = {**made_up(schedule.program, given, location, seed), **given}
    tensors = bind(schedule.program, given, location, bound={}, written=written_in_place(schedule.program, schedule.accesses))
    torch.manual_seed(seed)
    with progress(report, "measuring", "task") as step:
        found = profile_tasks(schedule, operators, tensors, location, seed=seed, rounds=rounds, progress=step)
    where = torch.cuda.get_device_name(location) if location.type == "cuda" else "cpu"
    notes = {"torch": torch.__version__, "rounds": rounds, "alone_us": round(found.alone, 1), "in_place_us": found.in_place}
    text = costs_json(found.costs, where, notes)
    report.data = {"device": where, **notes, "tasks": {name: _entry(found, name) for name in found.timings}}
    if output == STDIN:
        report.result(text)
        return
    report.result(_table(found, where))
    if output is None:
        report.next(*([] if spec == STDIN else [f"profile {shell(spec)}{f' --ops {shell(ops)}' if ops else ''} -o costs.json"]))
        return
    write(output, text)
    report.data["file"] = output
    report.say(f"Saved to {output}.")
    report.next(*([] if spec == STDIN else [f"plan {shell(spec)} --costs {shell(output)}{' --machine cpu' if where == 'cpu' else ''}"]))


def _entry(found: Profile, name: str) -> dict[str, object]:
    timing = found.timings[name]
    return {"us": timing.cost.us, "fill": timing.cost.fill, "issue": timing.cost.issue, "how": timing.how, "reused": timing.reused}


def _table(found: Profile, where: str) -> str:
    """The tasks that cost most."""
    from streamgraph.errors import quoted
    from streamgraph.render.fit import duration

    total = sum(timing.cost.us for timing in found.timings.values())
    slowest = sorted(found.timings.items(), key=lambda entry: -entry[1].cost.us)[:SHOWN]
    rows = [("task", "time", "of all", "fill", "host", "")]
    for name, timing in slowest:
        cost = timing.cost
        share = f"{100 * cost.us / total:.0f} %" if total else ""
        fill = "" if cost.fill is None else f"{cost.fill:.2f}"
        host = "" if cost.issue is None else duration(cost.issue)
        rows.append((quoted(name, 60), duration(cost.us), share, fill, host, "as an equal one" if timing.reused else timing.how))
    left = len(found.timings) - len(slowest)
    title = f"{many(len(found.timings), 'task')} on {where}: {duration(total)} one after another"
    lines = [title, "", aligned(rows, right=frozenset({1, 2, 3, 4}))]
    if left:
        lines += ["", f"and {left} more, which take less"]
    if found.in_place is not None:
        took = duration(found.in_place)
        lines += ["", f"The captured tasks take {duration(found.alone)}, each repeated alone, and {took} in their places: that counts."]
    return "\n".join(lines)
