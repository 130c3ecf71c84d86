"""`run` and `compare`: execute a spec, and hold it against the same tasks one after another."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from streamgraph.commands.command import command
from streamgraph.commands.report import WRONG, Report, aligned, many
from streamgraph.commands.source import STDIN, Planning, load_schedule, planning_options, shell
from streamgraph.errors import quoted

if TYPE_CHECKING:
    import torch

    from streamgraph.compare import Comparison
    from streamgraph.schedule import Schedule
    from streamgraph.simulate import Timeline

STATISTICS = ("smallest", "mean", "largest", "remark")


def _device(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if re.fullmatch(r"auto|cpu|sim|cuda(:[0-9]{1,3})?", value) is None:
        raise click.BadParameter(f"'{quoted(value)}' is none of auto, cpu, cuda, cuda:1, sim")
    return value


def running_options(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """What every command that executes takes."""
    for option in (
        click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, metavar="N", show_default=True,
                     help="For `init: random`, and for torch's generators."),
        click.option("--executor", type=click.Choice(["auto", "lanes", "eager", "sequential"]), default="auto", show_default=True,
                     help="lanes: a host thread per lane (the CPU's default); eager: streams (the GPU's); sequential: one after another."),
        click.option("--device", default="auto", show_default=True, metavar="NAME", callback=_device,
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
@click.option("--output", metavar="DIR", help="Write every result to this folder, as NAME.npy (or .pt).")
@click.option("--no-check", is_flag=True, help="Leave out the second run, task after task, that the results are compared with.")
def run(
    report: Report, spec: str, ops: str | None, inputs: tuple[str, ...], device: str, executor: str, seed: int,
    options: Planning, output: str | None, no_check: bool,
) -> int | None:  # fmt: skip
    """Run a spec, check the results against the same tasks one after another, and show what ran where.

    Inputs that are not given are made up where they declare `init`, and listed. Without a GPU the same schedule runs on host threads:
    results are real, times are simulated. SPEC may be a saved schedule, or `-` for stdin.
    """
    from streamgraph.commands.figures import figures_of
    from streamgraph.commands.schedule import lanes_table

    schedule = load_schedule(report, spec, options)
    figures = figures_of(schedule)
    report.data = {"name": schedule.program.name, "lanes": dict(schedule.lane_of), "figures": figures.to_dict()}
    if device == "sim":
        _simulated(report, schedule, spec)
        return None
    results = _Results(schedule, ops, inputs, device, executor, seed, check=not no_check)
    report.data |= results.to_dict()
    lines = [results.headline, "", lanes_table(schedule), "", figures.table(), ""]
    report.result("\n".join([*lines, *results.verdict(), *results.inputs_said(), *results.outputs_said()]))
    if output is not None:
        from streamgraph.files import save_outputs

        files = [str(path) for path in save_outputs(results.outputs, output)]
        report.data["files"] = files
        report.result("\n" + "\n".join(files))
    shown = shell(spec)
    with_ops = f" --ops {shell(ops)}" if ops else ""
    if results.differing:
        report.next(*([] if spec == STDIN else [f"compare {shown}{with_ops}"]))
        return WRONG
    report.next(*([] if spec == STDIN else [f"draw {shown}", f"explain {shown}"]))
    return None


def _simulated(report: Report, schedule: Schedule, spec: str) -> None:
    from streamgraph.commands.schedule import time_said
    from streamgraph.render.fit import duration
    from streamgraph.simulate import simulate

    timeline: Timeline = simulate(schedule)
    report.data["timeline"] = timeline.to_dict()
    rows = [("start", "end", "lane", "task", "")]
    rows += [
        (duration(time.start), duration(time.end), time.lane, time.task, "" if time.source != "default" else "guessed from sizes")
        for time in sorted(timeline.tasks, key=lambda time: (time.start, time.end))
    ]
    report.result(f"{schedule.program.name}: nothing was run; times are simulated from the tasks' costs.\n")
    report.result(aligned(rows, right=frozenset({0, 1})))
    report.result(f"\nTime: {time_said(timeline)}")
    if spec != STDIN:
        report.next(f"draw {shell(spec)}", f"run {shell(spec)}")


class _Results:
    """A run, and what there is to say about it."""

    def __init__(
        self, schedule: Schedule, ops: str | None, inputs: tuple[str, ...], device: str, executor: str, seed: int, *, check: bool
    ) -> None:
        import torch

        from streamgraph.binding import made_up, written_in_place
        from streamgraph.compare import copied, delta
        from streamgraph.executors.device import find
        from streamgraph.files import load_inputs
        from streamgraph.operators import load_operators
        from streamgraph.runner import Runner

        self.schedule, self.seed = schedule, seed
        location = find(device).location
        operators = load_operators(ops) if ops else None
        given = load_inputs(schedule.program, inputs, location)
        self.made_up = made_up(schedule.program, given, location, seed)
        given = {**self.made_up, **given}
        written = [name for name in written_in_place(schedule.program, schedule.accesses) if name in given]
        spare = {**given, **{name: copied(given[name]) for name in written}}
        self.location, self.executor = location, executor if executor != "auto" else "lanes" if location.type == "cpu" else "eager"

        def once(which: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            torch.manual_seed(seed)
            with Runner(schedule, ops=operators, device=device, executor=which, seed=seed) as runner:
                found = dict(runner(tensors))
                if location.type == "cuda":
                    torch.cuda.synchronize(location)
                return found

        self.outputs = once(executor, given)
        self.checked: int | None = None
        self.differing: list[str] = []
        if check and self.executor != "sequential":
            expected = once("sequential", spare)
            pairs = [*((name, value, self.outputs[name]) for name, value in expected.items()), *((n, spare[n], given[n]) for n in written)]
            self.checked = len(pairs)
            self.differing = [name for name, mine, its in pairs if delta(mine, its) is not None]

    @property
    def headline(self) -> str:
        """Where it ran, and what that means for the figures."""
        name = self.schedule.program.name
        how = {"lanes": "a host thread per lane", "eager": "a stream per lane", "sequential": "task after task"}[self.executor]
        if self.location.type == "cpu":
            return f"{name} ran on the CPU ({how}): results are real, times are simulated."
        import torch

        return f"{name} ran on {torch.cuda.get_device_name(self.location)} ({how})."

    def verdict(self) -> list[str]:
        """The comparison with the tasks one after another, and the predicted time."""
        from streamgraph.commands.schedule import time_said
        from streamgraph.simulate import simulate

        lines = [f"Time:    {time_said(simulate(self.schedule))}"]
        if self.checked == 0:
            lines.append("Check:   nothing to compare: the program has no outputs")
        elif self.checked is not None and self.differing:
            lines.append(f"Check:   DIFFERS from the tasks one after another: {', '.join(self.differing)}")
        elif self.checked is not None:
            lines.append(f"Check:   equal to the tasks one after another, bit for bit ({many(self.checked, 'tensor')})")
        return lines

    def inputs_said(self) -> list[str]:
        """Which inputs were made up."""
        if not self.made_up:
            return []
        program = self.schedule.program
        left = dict.fromkeys(self.made_up)
        names: list[str] = []
        for family in program.families:
            if left and all(member in left for member in family.members):
                names.append(f"{family.name}@*")
                for member in family.members:
                    del left[member]
        return [f"Inputs:  made up by `init`, seed {self.seed}: {', '.join([*names, *left])}"]

    def outputs_said(self) -> list[str]:
        """The results as a table."""
        if not self.outputs:
            return []
        from streamgraph.calls import type_text

        rows: list[tuple[str, ...]] = [("result", "type", "smallest", "mean", "largest", "")]
        for name, value in self.outputs.items():
            *figures, remark = _statistics(value)
            rows.append((name, type_text(value), *("" if figure is None else f"{figure:.6g}" for figure in figures), remark))
        return ["", aligned(rows, right=frozenset({2, 3, 4}))]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        from streamgraph.calls import type_text

        return {
            "device": str(self.location),
            "executor": self.executor,
            "made_up": list(self.made_up),
            "checked": self.checked,
            "differing": self.differing,
            "outputs": {
                name: {"type": type_text(value), **dict(zip(STATISTICS, _statistics(value), strict=True))}
                for name, value in self.outputs.items()
            },
        }


def _statistics(tensor: torch.Tensor) -> tuple[float | None, float | None, float | None, str]:
    """The smallest element, the mean and the largest, of those that are finite; and a remark about the others."""
    import torch

    value = tensor.detach().cpu()
    if value.numel() == 0:
        return None, None, None, "no elements"
    if value.is_complex():
        value = value.abs()
        remark = "absolute values"
    else:
        remark = ""
    wide = value.to(torch.float64)
    finite = wide[torch.isfinite(wide)]
    odd = wide.numel() - finite.numel()
    if odd:
        remark = f"{many(odd, 'element')} not finite"
    if finite.numel() == 0:
        return None, None, None, remark
    return float(finite.min()), float(finite.mean()), float(finite.max()), remark


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
    report: Report, spec: str, ops: str | None, inputs: tuple[str, ...], device: str, executor: str, seed: int,
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
    given = load_inputs(schedule.program, inputs, find(device).location)
    operators = load_operators(ops) if ops else None
    found = compared(schedule, given, ops=operators, device=device, executor=cast(Any, executor), seed=seed)
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
