"""SPEC on the command line: a YAML file, a saved schedule, or `-` for stdin, becomes a Program or a Schedule."""

from __future__ import annotations

import functools
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from streamgraph.commands.report import Report
from streamgraph.errors import DeviceError, Location, Problem, SpecError, quoted

if TYPE_CHECKING:
    from streamgraph.model import Program
    from streamgraph.portfolio import Policy
    from streamgraph.schedule import Schedule
    from streamgraph.simulate import Timeline

Function = TypeVar("Function", bound=Callable[..., Any])

STDIN = "-"
# As in `passes.policies`, which `--help` has no time to import; a test compares them.
POLICY_NAMES = ("auto", "single", "critical_path", "earliest_free", "max_concurrency", "opara", "longest_path", "levels", "urgent")
EXECUTOR_NAMES = ("auto", "lanes", "eager", "graph", "sequential")
EXECUTORS = (
    "What the schedule is planned for, and run by. lanes: a host thread per lane (the CPU's default); eager: one thread, streams "
    "(the GPU's); graph: a CUDA graph, where launches cost the host nothing; sequential: one after another."
)
_DECIDED = ("streams", "order", "release", "policy")  # options that make no difference to a schedule that has been planned
_SAVED = re.compile(r'\s*\{\s*"streamgraph_schedule"')
_PEEK = 4096


@dataclass(frozen=True, slots=True)
class Planning:
    """The options of the planner, as the command line gives them."""

    streams: int | Literal["auto"] = "auto"
    order: Literal["declared", "auto"] = "declared"
    release: Literal["default", "early"] = "default"
    policy: Policy = "auto"
    params: tuple[str, ...] = ()
    costs: str | None = None
    machine: str | None = None
    executor: str = "auto"


def param_option(function: Function) -> Function:
    """`--param NAME=NUMBER`, as often as one likes."""
    return click.option(
        "--param", "params", multiple=True, metavar="NAME=NUMBER", help="Override one of the spec's `params`. Repeatable."
    )(function)


def planning_options(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """The planner's options, for every command that plans: it gets them as `options`."""

    @functools.wraps(function)
    def planned(
        *arguments: Any, streams: Any, order: Any, release: Any, policy: Any, params: tuple[str, ...], costs: Any, machine: Any,
        executor: str, **rest: Any,
    ) -> int | None:  # fmt: skip
        return function(*arguments, options=Planning(streams, order, release, policy, params, costs, machine, executor), **rest)

    made: Callable[..., int | None] = planned
    for option in (
        click.option("--executor", type=click.Choice(EXECUTOR_NAMES), default="auto", show_default=True, help=EXECUTORS),
        click.option("--machine", metavar="NAME|FILE",
                     help="What predictions assume: gpu (the default), h200, cpu, or a file by `doctor --measure`."),
        click.option("--costs", metavar="FILE", help="Measured costs of tasks, as `streamgraph profile` writes them."),
        click.option("--policy", type=click.Choice(POLICY_NAMES), default="auto", show_default=True, metavar="NAME",
                     help=f"Who decides on lanes: auto tries all; or one of {', '.join(POLICY_NAMES[1:])}."),
        click.option("--release", type=click.Choice(["default", "early"]), default="default", show_default=True,
                     help="Drop values where that needs no extra step, or right after their last use."),
        click.option("--order", type=click.Choice(["declared", "auto"]), default="declared", show_default=True,
                     help="Issue tasks as they stand in the file, or the longest remaining path first."),
        click.option("--streams", metavar="N|auto", default="auto", show_default=True, callback=_streams,
                     help="How many lanes tasks may use that are not pinned to one."),
    ):  # fmt: skip
        made = option(made)
    return param_option(made)


def _streams(context: click.Context, parameter: click.Parameter, value: str) -> int | str:
    if value == "auto":
        return value
    if not re.fullmatch(r"[1-9][0-9]{0,5}", value):
        raise click.BadParameter(f"'{quoted(value)}' is neither 'auto' nor a whole number from 1")
    return int(value)


def param_values(entries: Iterable[str]) -> dict[str, int | str]:
    """`k=v` entries as a mapping. What is no whole number stays text, and the spec says what is wrong with it."""
    values: dict[str, int | str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"'{quoted(entry)}' is not NAME=NUMBER", param_hint="--param")
        values[name.strip()] = int(value) if re.fullmatch(r"\s*-?[0-9]{1,19}\s*", value) else value
    return values


def load_program(report: Report, source: str, params: Iterable[str] = (), *, show: bool = True) -> Program:
    """The program of a spec; its warnings are told.

    Raises:
        SpecError: all that is wrong with it; SG009 if it is a saved schedule.
    """
    from streamgraph.spec import load, loads

    begun = time.perf_counter()
    values = param_values(params)
    text = _stdin() if source == STDIN else None
    if _is_saved(source if text is None else None, text):
        message = f"'{quoted(source)}' is a saved schedule, and this command works on a spec"
        raise SpecError(Problem("SG009", message, None, "name the spec that it was planned from"))
    loaded = load(source, values) if text is None else loads(text, "<stdin>", values)
    report.detail(f"read {quoted(source)} in {time.perf_counter() - begun:.2f} s")
    report.tell(loaded.warnings, show=show)
    return loaded.program


def load_schedule(report: Report, source: str, options: Planning, outputs: tuple[str, ...] = ()) -> Schedule:
    """The schedule of a spec, planned and verified; or a saved one, verified, as it is. `outputs` replace those of the spec.

    Raises:
        SpecError, ScheduleError, VerificationError: as `plan` and `Schedule.from_json`.
        DeviceError: SG611, it is to be a CUDA graph, and lies on several devices.
    """
    from streamgraph.devices import not_captured
    from streamgraph.plan import issue_of, plan
    from streamgraph.saved import from_json

    text = _stdin() if source == STDIN else None
    if _is_saved(source if text is None else None, text):
        if options.params:
            raise click.UsageError("a saved schedule has no parameters left: leave --param out, or plan the spec again")
        if outputs:
            raise click.UsageError("a saved schedule has the outputs that it was planned with: leave --outputs out, or name the spec")
        chosen = [f"--{name} {value}" for name in _DECIDED if (value := getattr(options, name)) != getattr(Planning(), name)]
        if chosen:
            report.say(f"'{quoted(source)}' is planned already, and is taken as it is, without {', '.join(chosen)}.")
        return from_json(_read_saved(source) if text is None else text)
    if text is not None:
        from streamgraph.spec import loads

        loaded = loads(text, "<stdin>", param_values(options.params))
        report.tell(loaded.warnings)
        program = loaded.program
    else:
        program = load_program(report, source, options.params)
    if outputs:
        from streamgraph.outputs import with_outputs

        program = with_outputs(program, outputs)
    if options.executor == "graph" and (problem := not_captured(program)) is not None:
        raise DeviceError(problem)
    begun = time.perf_counter()
    schedule = plan(
        program, streams=options.streams, order=options.order, release=options.release, policy=options.policy,
        costs=options.costs, machine=options.machine, issue=issue_of(options.executor),
    )  # fmt: skip
    report.detail(f"planned and verified {len(program.tasks)} tasks in {time.perf_counter() - begun:.2f} s")
    return schedule


def spec_text(source: str) -> str | None:
    """The text of the spec as the user wrote it; None for stdin, which is read by now, and for a saved schedule."""
    from pathlib import Path

    if source == STDIN or "\0" in source or not Path(source).is_file() or _is_saved(source, None):
        return None
    try:
        return Path(source).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None


def predict(schedule: Schedule, options: Planning) -> Timeline:
    """The simulated run, by the executor, on the machine and with the costs that were asked for.

    A saved schedule that was planned for a CUDA graph is taken to run as one, unless an executor is named.
    """
    from streamgraph.plan import issue_of
    from streamgraph.simulate import simulate

    issue = schedule.issue if options.executor == "auto" else issue_of(options.executor)
    return simulate(schedule, options.costs, machine=options.machine, issue=issue)


def _stdin() -> str:
    """What is on stdin, up to more than any spec may have; the reader refuses what is too large."""
    from streamgraph.saved import LARGEST

    buffer = getattr(sys.stdin, "buffer", None)
    if buffer is None:
        return sys.stdin.read(LARGEST + 1)
    try:
        text: str = buffer.read(LARGEST + 1).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(Problem("SG010", "stdin is not UTF-8 text", Location("<stdin>", 1), "save it as UTF-8")) from None
    return text


def _is_saved(path: str | None, text: str | None) -> bool:
    if path is not None:
        from pathlib import Path

        # Only a regular file is looked into: opening a FIFO could wait for ever. What it is instead, the reader says.
        if "\0" in path or not Path(path).is_file():
            return False
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(_PEEK)
        except OSError:
            return False
    return text is not None and _SAVED.match(text) is not None


def _read_saved(path: str) -> str:
    from streamgraph.saved import LARGEST

    try:
        with open(path, encoding="utf-8") as file:
            return file.read(LARGEST + 1)
    except UnicodeDecodeError:
        raise SpecError(Problem("SG010", "the file is not UTF-8 text", Location(quoted(path), 1), "save it as UTF-8")) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecError(Problem("SG006", f"'{quoted(path)}' cannot be read: {reason}", None, "check the path")) from None


def has_folder(path: str | None) -> None:
    """Look before something long begins whether what it finds can be written there.

    Raises:
        SpecError: SG012, the folder of this file is not there.
    """
    from pathlib import Path

    if path is not None and path != STDIN and "\0" not in path and not Path(path).parent.is_dir():
        message = f"'{quoted(path)}' cannot be written: no such file or directory"
        raise SpecError(Problem("SG012", message, None, "make its folder first, or name another file"))


def write(path: str, text: str) -> None:
    """Write a file that the user asked for.

    Raises:
        SpecError: SG012 if that does not work.
    """
    try:
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        remedy = "make its folder first, or name another file" if isinstance(error, FileNotFoundError) else "name another file"
        raise SpecError(Problem("SG012", f"'{quoted(path)}' cannot be written: {reason}", None, remedy)) from None


def shell(text: str) -> str:
    """A word as one would type it in a shell."""
    import shlex

    return shlex.quote(text)
