"""`compare`: sequential and planned on the same inputs, told from the first task that differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from streamgraph.commands.command import command
from streamgraph.commands.progress import progress
from streamgraph.commands.report import WRONG, Report, aligned, many
from streamgraph.commands.run import running_options
from streamgraph.commands.source import STDIN, Planning, load_schedule, shell

if TYPE_CHECKING:
    from streamgraph.compare import Comparison


@command(
    "compare", "Find the first task that planned and sequential runs differ in.",
    "streamgraph compare demo.streamgraph.yaml",
    "streamgraph compare cameras.streamgraph.yaml --ops operators.py --outputs features@3",
)  # fmt: skip
@click.argument("spec", metavar="SPEC")
@running_options
@click.option("--outputs", multiple=True, metavar="TENSOR",
              help="Compare these tensors, any in the program, instead of the spec's outputs. Repeatable.")
def compare(
    report: Report, spec: str, ops: str | None, inputs: tuple[str, ...], device: str, seed: int,
    options: Planning, outputs: tuple[str, ...],
) -> int | None:  # fmt: skip
    """Run a spec task after task and as planned, on the same inputs, and name the first task that wrote other bytes.

    Exit code 1 if they differ. A schedule keeps every order that the spec declares; so a difference means that an operator touches memory
    that its task does not declare, or that it is not deterministic.
    """
    if device == "sim":
        raise click.UsageError("a simulated run computes nothing that could be compared: use --device cpu or cuda")
    from streamgraph.compare import compare as compared
    from streamgraph.executors.device import find
    from streamgraph.files import load_inputs
    from streamgraph.operators import load_operators

    schedule = load_schedule(report, spec, options, outputs)
    given = load_inputs(schedule.program, inputs, find(device, schedule.program).location)
    operators = load_operators(ops) if ops else None
    with progress(report, "comparing"):
        found = compared(schedule, given, ops=operators, device=device, executor=cast(Any, options.executor), seed=seed)
    report.data = _to_dict(found)
    report.result("\n".join(_said(found)))
    shown = shell(spec)
    if spec != STDIN:
        report.next(f"explain {shown} {shell(found.first.task)}" if found.first else f"draw {shown}")
    return None if found.equal else WRONG


def _said(found: Comparison) -> list[str]:
    name, device = found.schedule.program.name, "the CPU" if found.device == "cpu" else found.device
    head = f"{name} on {device}: {many(found.tasks, 'task')}, run one after another and as planned on {len(found.schedule.lanes)} lanes"
    rows = [("tensor", "type", "")]
    for result in found.results:
        if result.delta is None:
            said = "equal, bit for bit"
        else:
            where = f", first at [{', '.join(map(str, result.delta.index))}]" if result.delta.index else ""
            far = f", by up to {result.delta.largest:.6g}" if result.delta.largest is not None else ""
            said = f"DIFFERS in {result.delta.count:,} of {result.delta.total:,} elements{where}{far}"
        rows.append((result.name, result.type, said))
    lines = [head, "", *([aligned(rows), ""] if found.results else [])]
    if found.equal:
        return [*lines, f"Every task wrote the same bytes ({many(found.tasks, 'task')} compared)."]
    return lines + _blame(found)


def _blame(found: Comparison) -> list[str]:
    if found.first is None:
        return ["Every task wrote the same bytes, so a result was changed after its task: some operator keeps a tensor that it was given."]
    task = found.first.task
    place = found.schedule.program.tasks[found.schedule.program.index_of_task[task]].location
    where = f" ({place.file}:{place.line})" if place is not None else ""
    lines = [f"First difference: task '{task}' @{found.first.lane}{where} wrote other bytes to {', '.join(found.first.tensors)}"]
    others = len(found.differing) - 1
    if others:
        lines.append(f"{many(others, 'later task')} {'differs' if others == 1 else 'differ'} too, which may follow from it")
    before = [relation for relation in found.schedule.explain(task).relations if relation.later == task]
    if before:
        lines.append("All that it declares to depend on was the same:")
        lines += [f"  {hazard}: {relation.verdict}" for relation in before for hazard in relation.hazards]
    else:
        lines.append("It declares to depend on no other task.")
    if found.repeatable is False:
        lines.append("Two runs of the tasks one after another differ as well: an operator is not deterministic, whatever the schedule.")
    else:
        lines.append("The schedule keeps all declared orders: look for memory that an operator touches and its task does not declare.")
    return lines


def _to_dict(found: Comparison) -> dict[str, Any]:
    first = found.first
    return {
        "equal": found.equal,
        "device": found.device,
        "executor": found.executor,
        "tasks": found.tasks,
        "differing": list(found.differing),
        "first": None if first is None else {
            "task": first.task, "lane": first.lane, "tensors": list(first.tensors),
            "hazards": [str(h) for r in found.schedule.explain(first.task).relations if r.later == first.task for h in r.hazards],
        },
        "repeatable": found.repeatable,
        "made_up": list(found.made_up),
        "results": [
            {
                "name": result.name, "type": result.type, "equal": result.delta is None,
                "differing_elements": 0 if result.delta is None else result.delta.count,
                "largest_difference": 0.0 if result.delta is None else result.delta.largest,
            }
            for result in found.results
        ],
    }  # fmt: skip
