"""`tune`: several plans of a spec in turn on the device, and the fastest of them as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamgraph.commands.command import command
from streamgraph.commands.progress import progress
from streamgraph.commands.report import Report, aligned, many
from streamgraph.commands.run import device_named
from streamgraph.commands.source import STDIN, has_folder, load_program, param_option, shell, write

if TYPE_CHECKING:
    from streamgraph.tune import Candidate, Tuning

EXECUTORS = ("auto", "eager", "lanes", "graph")


@command(
    "tune", "Time the most promising plans, and save the fastest.",
    "streamgraph tune demo.streamgraph.yaml -o plan.json",
    "streamgraph tune cameras.streamgraph.yaml --ops operators.py --executor graph --costs costs.json --machine h200 -o plan.json",
)  # fmt: skip
@click.argument("spec", metavar="SPEC")
@click.option("-o", "--output", metavar="FILE", help="Save the fastest schedule to this file, for `run`.")
@click.option("--executor", type=click.Choice(EXECUTORS), default="auto", show_default=True, help="Who runs the plans.")
@click.option("--plans", type=click.IntRange(1, 100), default=8, metavar="N", show_default=True,
              help="Plans beside one stream and what `--policy auto` chooses.")
@click.option("--repeats", type=click.IntRange(1, 100_000), default=20, metavar="N", show_default=True, help="Runs in the last round.")
@click.option("--order", type=click.Choice(["declared", "auto"]), default="declared", show_default=True, help="Issue order, as for `plan`.")
@click.option("--costs", metavar="FILE", help="Measured costs, as `streamgraph profile` writes them: better plans are tried.")
@click.option("--machine", metavar="NAME|FILE", help="The machine's profile, as for `plan`.")
@click.option("--ops", metavar="FILE|MODULE", help="The operators that the spec names, beside torch's `aten.*`.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE", help="Bind an input, as for `run`. Repeatable.")
@click.option("--device", default="auto", show_default=True, metavar="NAME", callback=device_named, help="auto, cpu, cuda or cuda:1.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, metavar="N", show_default=True,
              help="For `init: random`, and for torch's generators.")
@param_option
def tune(
    report: Report, spec: str, output: str | None, executor: Any, plans: int, repeats: int, order: Any, costs: str | None,
    machine: str | None, ops: str | None, inputs: tuple[str, ...], device: str, seed: int, params: tuple[str, ...],
) -> int | None:  # fmt: skip
    """Run the plans that are simulated to be fastest, what `--policy auto` chooses, and one stream, in turn; say which is fastest.

    The fastest meet once more, and another plan than one stream has to be more than 2 % faster, in three quarters of the runs. Exit code 1
    if results differ. Every task is called several hundred times, and every plan has buffers of its own meanwhile.
    """
    if device == "sim":
        raise click.UsageError("a simulated run takes no time that could be measured: use --device cpu or cuda")
    from streamgraph.executors.device import find
    from streamgraph.files import load_inputs
    from streamgraph.operators import load_operators
    from streamgraph.tune import tune as tuned

    has_folder(output)
    program = load_program(report, spec, params)
    given = load_inputs(program, inputs, find(device, program).location)
    operators = load_operators(ops) if ops else None
    with progress(report, "timing", "round") as step:
        found = tuned(
            program, given, ops=operators, device=device, executor=executor, order=order, costs=costs, machine=machine, plans=plans,
            repeats=repeats, seed=seed, progress=step,
        )
    report.data = _to_dict(found)
    report.result("\n".join(_said(found)))
    again = (f" --ops {shell(ops)}" if ops else "") + (f" --executor {executor}" if executor != "auto" else "")
    if output is not None:
        write(output, found.best.schedule.to_json())
        report.data["file"] = output
        report.say(f"Saved to {output}.")
        report.next(f"run {shell(output)}{again}")
    elif spec != STDIN:
        report.next(f"tune {shell(spec)}{again} -o plan.json")
    return None if all(row.equal for row in found.rows) else 1


def _said(found: Tuning) -> list[str]:
    from streamgraph.render.fit import duration

    alone = found.rows[0]
    rows = [["plan", "lanes", "waits", "simulated", "median", "fastest", "speed-up", ""]]
    for row in sorted(found.rows, key=lambda row: (not row.final, row.median)):
        counts = row.schedule.counts
        remark = "results DIFFER: do not use" if not row.equal else "" if row.final else "first round only"
        rows.append([
            _label(row), str(counts.lanes), str(counts.waits), duration(row.predicted), duration(row.median), duration(min(row.times)),
            f"{alone.median / row.median:.2f}x", remark,
        ])  # fmt: skip
    head = f"{alone.schedule.program.name} on {found.device}, executor {found.executor}: {many(found.repeats, 'run')} each, in turn"
    best = found.best
    gain = "" if best is alone else f", {alone.median / best.median:.2f}x as fast as one stream"
    return [head, "", aligned(rows, right=frozenset(range(1, 7))), "", f"Best:  {_label(best)}{gain}"]


def _label(row: Candidate) -> str:
    if row.policy == "single":
        return "one stream"
    return row.policy if row.streams == "auto" else f"{row.policy} --streams {row.streams}"


def _to_dict(found: Tuning) -> dict[str, Any]:
    return {
        "name": found.rows[0].schedule.program.name, "device": found.device, "executor": found.executor, "repeats": found.repeats,
        "best": _label(found.best), "made_up": list(found.made_up),
        "plans": [
            {
                "policy": row.policy, "streams": row.streams, "lanes": row.schedule.counts.lanes, "waits": row.schedule.counts.waits,
                "simulated_us": row.predicted, "median_us": row.median, "fastest_us": min(row.times), "final": row.final,
                "equal": row.equal,
            }
            for row in found.rows
        ],
    }  # fmt: skip
