"""The `streamgraph` command: parse, one library call, print. The commands stand in `streamgraph.commands`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from streamgraph.commands import bench, compare, explain, profile, run, schedule, spec, start, tune
from streamgraph.commands.report import FINE, INTERRUPTED, USAGE, Report

PATH = """\
Declare what each task reads and writes; get a race-free multi-stream schedule, proved, drawn and run.

The usual path:

  streamgraph init demo                             write a small program to try things on
  streamgraph check demo.streamgraph.yaml           find all mistakes at once
  streamgraph run demo.streamgraph.yaml             run it; needs no GPU
  streamgraph draw demo.streamgraph.yaml            see lanes, tasks and waits
  streamgraph explain demo.streamgraph.yaml join    why a task waits, and why not

`streamgraph COMMAND --help` shows examples and options, `streamgraph doctor` what this machine can do.
"""


class _Group(click.Group):
    """The commands in the order in which one meets them, and one way out for all errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of declaration."""
        return list(self.commands)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What it does, examples, usage, options, commands."""
        formatter.write(f"{PATH.splitlines()[0]}\n")
        with formatter.section("Examples"):
            formatter.write("  streamgraph init demo\n  streamgraph run demo.streamgraph.yaml\n")
        formatter.write("\n")
        self.format_usage(ctx, formatter)
        self.format_options(ctx, formatter)

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, standalone_mode: bool = True, **extra: Any
    ) -> NoReturn:
        """Run a command and exit with its code."""
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            super().main(arguments, prog_name or "streamgraph", standalone_mode=False, **extra)
            code = FINE
            sys.stdout.flush()
        except click.ClickException as error:
            code = _misused(error, arguments)
        except (KeyboardInterrupt, click.Abort):
            sys.stderr.write("error: interrupted\n")
            code = INTERRUPTED
        except BrokenPipeError:
            # Whoever read our output has had enough. Nothing may be flushed into the closed pipe at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = FINE
        sys.exit(code)


def _misused(error: click.ClickException, arguments: Sequence[str]) -> int:
    report = Report("", as_json="--json" in arguments)
    context = error.ctx if isinstance(error, click.UsageError) else None
    message = error.format_message()
    report.error(message)
    if context is not None:
        report.say(f"\n{context.get_usage()}\nTry: {context.command_path} --help")
    report.close(USAGE, message)
    return USAGE


def _version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        import streamgraph

        Report("").result(f"streamgraph {streamgraph.__version__}")
        context.exit()


@click.group(cls=_Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}, help=PATH.split("\n")[0])
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit.")
@click.pass_context
def cli(context: click.Context) -> None:
    """Without a command: the path from nothing to an explained run."""
    if context.invoked_subcommand is None:
        Report("").result(PATH)


for _command in (
    start.init, spec.check, schedule.plan, explain.explain, schedule.draw, run.run, compare.compare, bench.bench, tune.tune,
    profile.profile, explain.diff, spec.expand, spec.schema, start.doctor,
):  # fmt: skip
    cli.add_command(_command)


def main() -> NoReturn:
    """The entry point of the `streamgraph` script."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows fewer characters than we use gets escapes, not an error.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # torch says so on its first use where numpy is not installed; nothing here needs it unless a file does, and then it is said.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
    cli.main()
