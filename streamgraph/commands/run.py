"""`run`: execute a spec, and hold it against the same tasks one after another."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from streamgraph.commands.command import command
from streamgraph.commands.loop import Planned, inflight_option, loop_of, only_with_iterations
from streamgraph.commands.measured import beside, check_profile, measured_run, profile_options, write_trace
from streamgraph.commands.progress import progress
from streamgraph.commands.report import WRONG, Report, aligned, many
from streamgraph.commands.source import STDIN, Planning, load_schedule, planning_options, predict, shell, spec_text, write
from streamgraph.commands.statistics import STATISTICS, statistics_of
from streamgraph.errors import quoted

if TYPE_CHECKING:
    import torch

    from streamgraph.measured import MeasuredTimeline
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
        results = _Results(
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


class _Results:
    """A run, and what there is to say about it."""

    def __init__(
        self, schedule: Schedule, ops: str | None, inputs: tuple[str, ...], device: str, executor: str, seed: int, timeline: Timeline,
        *, check: bool, iterations: int | None = None, loop: Planned | None = None,
    ) -> None:
        import torch

        from streamgraph.binding import made_up, written_in_place
        from streamgraph.compare import delta
        from streamgraph.executors.device import find
        from streamgraph.executors.watched import copied
        from streamgraph.files import load_inputs
        from streamgraph.operators import load_operators
        from streamgraph.runner import Runner

        self.schedule, self.seed, self.timeline, self.iterations, self.loop = schedule, seed, timeline, iterations, loop
        inflight = loop.loop.inflight if loop is not None else None
        location = find(device, schedule.program).location
        operators = load_operators(ops) if ops else None
        given = load_inputs(schedule.program, inputs, location)
        self.made_up = made_up(schedule.program, given, location, seed)
        given = {**self.made_up, **given}
        self._given, self._operators = given, operators
        written = [name for name in written_in_place(schedule.program, schedule.accesses) if name in given]

        self.location, self.executor = location, executor if executor != "auto" else "lanes" if location.type == "cpu" else "eager"

        def once(which: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
            """The (last) results; and those of all iterations, with the inputs that the program changes in place."""
            torch.manual_seed(seed)
            tensors = {**given, **{name: copied(given[name]) for name in written}}
            bound = tensors if iterations is not None else None
            with Runner(schedule, bound, ops=operators, device=device, executor=which, seed=seed) as runner:
                if iterations is None:
                    results = [runner(tensors)]
                elif which == "sequential":
                    results = [runner() for _ in range(iterations)]
                else:
                    results = list(runner.map(({} for _ in range(iterations)), inflight=inflight))
                if location.type == "cuda":
                    torch.cuda.synchronize(location)
            found = {
                f"{name} (iteration {number})" if iterations is not None else name: value
                for number, result in enumerate(results) for name, value in result.items()
            }  # fmt: skip
            return dict(results[-1]), {**found, **{f"{name} (input)": tensors[name] for name in written}}

        self.outputs, found = once(executor)
        self.checked: int | None = None
        self.differing: list[str] = []
        if check and self.executor != "sequential":
            expected = once("sequential")[1]
            # The first use of a kernel loads it, which makes the GPU wait and hides races; so there the plan is run again, warm.
            runs = [found] if location.type == "cpu" else [found, once(executor)[1]]
            self.checked = len(expected)
            self.differing = [name for name, mine in expected.items() if any(delta(mine, its[name]) is not None for its in runs)]

    def measure(self, report: Report) -> MeasuredTimeline:
        """When each task really begins and ends, in runs of its own."""
        return measured_run(
            report, self.schedule, self._given, self.timeline, ops=self._operators, device=str(self.location), executor=self.executor,
            seed=self.seed,
        )  # fmt: skip

    @property
    def headline(self) -> str:
        """Where it ran, and what that means for the figures."""
        name = self.schedule.program.name
        how = {
            "lanes": "a host thread per lane", "eager": "a stream per lane", "graph": "a CUDA graph", "sequential": "task after task",
        }[self.executor]  # fmt: skip
        if self.iterations is not None:
            name = f"{name}: {many(self.iterations, 'iteration')}"
        if self.location.type == "cpu":
            return f"{name} ran on the CPU ({how}): results are real, times are simulated."
        import torch

        return f"{name} ran on {torch.cuda.get_device_name(self.location)} ({how})."

    def verdict(self) -> list[str]:
        """The comparison with the tasks one after another, and the predicted time."""
        from streamgraph.commands.schedule import time_said

        if self.loop is None:
            lines = [f"Time:    {time_said(self.timeline)}"]
        else:
            lines = [f"Time:    {self.loop.time_said()}"]
            if self.checked and not self.differing:
                calls = f"{many(self.iterations or 0, 'call')} one after another, task after task"
                return [*lines, f"Check:   equal to {calls}, bit for bit ({many(self.checked, 'tensor')})"]
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
            *figures, remark = statistics_of(value)
            rows.append((name, type_text(value), *("" if figure is None else f"{figure:.6g}" for figure in figures), remark))
        last = [] if self.iterations is None else ["The last iteration's results:"]
        return ["", *last, aligned(rows, right=frozenset({2, 3, 4}))]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        from streamgraph.calls import type_text

        return {
            "device": str(self.location),
            "executor": self.executor,
            "iterations": self.iterations,
            "made_up": list(self.made_up),
            "checked": self.checked,
            "differing": self.differing,
            "outputs": {
                name: {"type": type_text(value), **dict(zip(STATISTICS, statistics_of(value), strict=True))}
                for name, value in self.outputs.items()
            },
        }
