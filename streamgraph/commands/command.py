"""What all commands share: common options, help that begins with examples, and what becomes of errors."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

import click

from streamgraph.commands.report import DEFECT, FAILED, FINE, INTERRUPTED, NO_DEVICE, WRONG, Report
from streamgraph.errors import DeviceError, Problem, StreamgraphError, TaskError, quoted

Body: TypeAlias = Callable[..., "int | None"]
"""A command: takes a Report and its arguments; returns an exit code other than 0, or nothing."""

COMMON = ("as_json", "quiet", "verbose", "color", "show_traceback")


class Command(click.Command):
    """A command whose help shows examples first and the common options last."""

    examples: tuple[str, ...] = ()

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What it does, examples, usage, options."""
        formatter.write(f"{(self.help or '').splitlines()[0]}\n")
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"  {example}\n")
        formatter.write("\n")
        self.format_usage(ctx, formatter)
        rest = "\n".join((self.help or "").splitlines()[1:]).strip("\n")
        if rest:
            formatter.write("\n")
            for paragraph in rest.split("\n\n"):
                formatter.write_text(" ".join(paragraph.split()))
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                (common if parameter.name in COMMON or "--help" in parameter.opts else own).append(record)
        for title, records in (("Options", own), ("Common options", common)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def command(name: str, in_short: str, *examples: str) -> Callable[[Body], click.Command]:
    """Make a function into a command: it gets a Report first, and its errors become messages and exit codes.

    `in_short` is its line in the list of commands; the first line of the docstring and the examples begin its own help.
    """

    def make(body: Body) -> click.Command:
        @functools.wraps(body)
        def run(as_json: bool, quiet: bool, verbose: bool, color: str, show_traceback: bool, **arguments: Any) -> None:
            report = Report(name, as_json=as_json, quiet=quiet, verbose=verbose, color=color)
            sys.exit(_carried_out(report, functools.partial(body, report, **arguments), show_traceback))

        for option in (
            click.option("--traceback", "show_traceback", is_flag=True, help="Show Python's traceback of an error."),
            click.option(
                "--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True,
                help="Colour the text. NO_COLOR, FORCE_COLOR and TERM=dumb are heeded.",
            ),
            click.option("-v", "--verbose", is_flag=True, help="Say more: every error, and what each stage took."),
            click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text, errors included."),
        ):  # fmt: skip
            run = option(run)
        made = click.command(name, cls=Command, short_help=in_short)(run)
        assert isinstance(made, Command)
        made.examples = examples
        return made

    return make


def _carried_out(report: Report, body: Callable[[], int | None], show_traceback: bool) -> int:
    """The exit code of a command that has been run and whose errors have been told."""
    try:
        code = body() or FINE
        report.close(code)
    except click.ClickException:
        raise  # wrong usage: told with the usage
    except StreamgraphError as error:
        if show_traceback:
            traceback.print_exc()
        report.tell(error.problems)
        report.next(f"explain {error.problems[0].code}")
        code = NO_DEVICE if isinstance(error, DeviceError) else FAILED if isinstance(error, TaskError) else WRONG
        report.close(code)
    except (KeyboardInterrupt, click.Abort):
        report.error("interrupted")
        code = INTERRUPTED
        report.close(code, "interrupted")
    except BrokenPipeError:
        raise
    except Exception as error:
        code = DEFECT
        report.tell([_defect(error, show_traceback)])
        report.close(code)
    return code


def _defect(error: Exception, show_traceback: bool) -> Problem:
    """One line for an error of our own, and where its traceback is."""
    text = traceback.format_exc()
    message = f"streamgraph itself failed: {type(error).__name__}: {quoted(error)}"
    if show_traceback:
        sys.stderr.write(text)
        return Problem("SG901", message, None, "please report it with the traceback above")
    try:
        handle, path = tempfile.mkstemp(prefix="streamgraph-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{' '.join(sys.argv)}\n{text}")
    except OSError:
        return Problem("SG901", message, None, "run it again with --traceback, and please report what it prints")
    return Problem("SG901", message, None, f"the traceback is in {path}: please report it")
