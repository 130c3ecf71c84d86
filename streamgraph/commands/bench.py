"""`bench`: a spec under every executor that the device has, and the setting that is worth it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from streamgraph.commands.command import command
from streamgraph.commands.progress import progress
from streamgraph.commands.report import Report, aligned, many
from streamgraph.commands.run import device_named
from streamgraph.commands.source import STDIN, Planning, load_schedule, planning_options, shell

if TYPE_CHECKING:
    from streamgraph.bench import Bench, Measured

HOW = {
    "sequential": "task after task", "eager": "one thread, a stream per lane", "lanes": "a host thread per lane",
    "graph": "a captured CUDA graph",
}  # fmt: skip


@command(
    "bench", "Time a spec under every executor, and pick one.",
    "streamgraph bench demo.streamgraph.yaml",
    "streamgraph bench cameras.streamgraph.yaml --ops operators.py --device cuda --repeats 100",
)  # fmt: skip
@click.argument("spec", metavar="SPEC")
@planning_options
@click.option("--ops", metavar="FILE|MODULE", help="The operators that the spec names, beside torch's `aten.*`.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE", help="Bind an input, as for `run`. Repeatable.")
@click.option("--device", default="auto", show_default=True, metavar="NAME", callback=device_named, help="auto, cpu, cuda or cuda:1.")
@click.option("--repeats", type=click.IntRange(1, 100_000), default=20, metavar="N", show_default=True, help="Timed runs of each executor.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, metavar="N", show_default=True,
              help="For `init: random`, and for torch's generators.")
@click.option("--no-overlap", is_flag=True, help="Leave out the runs that time every task, for `overlap`.")
def bench(
    report: Report, spec: str, ops: str | None, inputs: tuple[str, ...], device: str, repeats: int, seed: int, no_overlap: bool,
    options: Planning,
) -> int | None:  # fmt: skip
    """Run a spec many times under each executor that the device has, taking turns, and say which setting is worth it.

    Each executor's results are compared with those of the tasks one after another; exit code 1 if they differ. Inputs that are not given
    are made up where they declare `init`. Times are measured here and now, and differ from machine to machine.
    """
    if device == "sim":
        raise click.UsageError("a simulated run takes no time that could be measured: use --device cpu or cuda")
    from streamgraph.bench import bench as measured
    from streamgraph.executors.device import find
    from streamgraph.files import load_inputs
    from streamgraph.operators import load_operators

    schedule = load_schedule(report, spec, options)
    given = load_inputs(schedule.program, inputs, find(device, schedule.program).location)
    operators = load_operators(ops) if ops else None
    with progress(report, "timing", "round") as step:
        found = measured(
            schedule, given, ops=operators, device=device, repeats=repeats, seed=seed, overlap=not no_overlap, progress=step
        )
    report.data = _to_dict(found)
    report.result("\n".join(_said(found)))
    if spec != STDIN:
        with_ops = f" --ops {shell(ops)}" if ops else ""
        report.next(f"run {shell(spec)}{with_ops} --executor {found.best.executor}")
    return None if all(row.equal for row in found.rows) else 1


def _said(found: Bench) -> list[str]:
    from streamgraph.render.fit import duration

    schedule = found.schedule
    where = "the CPU" if found.device == "cpu" else _name_of(found.device)
    size = f"{many(len(schedule.program.tasks), 'task')} on {many(len(schedule.lanes), 'lane')}"
    head = f"{schedule.program.name} on {where}: {size}; {many(found.repeats, 'run')} each, in turn"
    with_overlap = any(row.overlap is not None for row in found.rows)
    with_memory = any(row.memory is not None for row in found.rows)
    columns = ["executor", "median", "fastest", "slowest", "speed-up", *(["overlap"] if with_overlap else [])]
    rows: list[list[str]] = [[*columns, *(["peak memory"] if with_memory else []), ""]]
    left_out = []
    for row in found.rows:
        if row.reason:
            left_out.append(f"{row.executor} is left out: {row.reason}")
            continue
        overlap = "" if row.overlap is None else f"{row.overlap:.2f}"
        memory = [] if row.memory is None else [f"{row.memory / (1 << 20):,.1f} MiB"]
        rows.append([
            row.executor, duration(row.median), duration(min(row.times)), duration(max(row.times)), f"{found.speedup(row):.2f}x",
            *([overlap] if with_overlap else []), *memory, HOW[row.executor] if row.equal else "results DIFFER: do not use",
        ])  # fmt: skip
    lines = [head, "", aligned(rows, right=frozenset(range(1, len(rows[0]) - 1))), ""]
    if left_out:
        lines += [*left_out, ""]
    if found.made_up:
        lines += [f"{many(len(found.made_up), 'input')} made up by `init`.", ""]
    return [*lines, *_verdict(found)]


def _verdict(found: Bench) -> list[str]:
    best = found.best
    lines = [f"Best:  --executor {best.executor}, {_against(found, best)}"]
    different = [row.executor for row in found.rows if not row.equal]
    if different:
        lines.append(f"Check: DIFFERS from the tasks one after another: {', '.join(different)}")
        lines.append("       `streamgraph compare` finds the first task that does")
    else:
        lines.append("Check: every executor gave the same results, bit for bit")
    if best.executor == "sequential" and len(found.schedule.lanes) > 1:
        lines.append("       Lanes do not pay here: the tasks are too short, or one of them fills the device by itself.")
    return lines


def _against(found: Bench, best: Measured) -> str:
    return "task after task" if best.executor == "sequential" else f"{found.speedup(best):.2f}x as fast as task after task"


def _name_of(device: str) -> str:
    import torch

    return f"{torch.cuda.get_device_name(device)} ({device})"


def _to_dict(found: Bench) -> dict[str, Any]:
    return {
        "name": found.schedule.program.name,
        "device": found.device,
        "repeats": found.repeats,
        "best": found.best.executor,
        "made_up": list(found.made_up),
        "settings": [
            {"executor": row.executor, "reason": row.reason} if row.reason else
            {
                "executor": row.executor, "reason": "", "median_us": row.median, "fastest_us": min(row.times), "slowest_us": max(row.times),
                "host_us": row.host, "speedup": found.speedup(row), "overlap": row.overlap, "memory_bytes": row.memory, "equal": row.equal,
            }
            for row in found.rows
        ],
    }  # fmt: skip
