"""`check`, `expand` and `schema`: what a spec says, and what is wrong with it. None of them plans, runs, or imports torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from streamgraph.commands.command import command
from streamgraph.commands.report import WRONG, Report, many
from streamgraph.commands.source import STDIN, load_program, param_option, shell, write
from streamgraph.errors import Problem, StreamgraphError

if TYPE_CHECKING:
    from streamgraph.model import Program


MOST_WRITTEN_OUT = 2_000  # slots times tasks, up to which `check` plans loops: about a second


@command(
    "check", "Find everything that is wrong with a spec.",
    "streamgraph check cameras.streamgraph.yaml",
    "streamgraph check *.streamgraph.yaml --ops operators.py --format github",
)  # fmt: skip
@click.argument("specs", nargs=-1, required=True, metavar="SPEC...")
@click.option("--ops", metavar="FILE|MODULE", help="Also import these operators and compare every call with its signature. Needs torch.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "github"]), default="text", show_default=True,
    help="github: annotations for pull requests, on stdout.",
)  # fmt: skip
@param_option
def check(report: Report, specs: tuple[str, ...], ops: str | None, form: str, params: tuple[str, ...]) -> int | None:
    """Find everything that is wrong with one spec or several, all at once.

    Without --ops, nothing is imported: a spec is data. Warnings do not change the exit code. SPEC may be `-` for stdin.
    """
    report.as_json |= form == "json"
    operators = _operators(report, ops, form) if ops else None
    failed = operators is False
    files = []
    for spec in specs:
        found = len(report.problems)
        program: Program | None = None
        try:
            program = load_program(report, spec, params, show=form == "text")
            facts = _planned(program)
            report.tell(_odd(program), show=form == "text")
            if ops and operators is not False:
                _resolved(program, operators)
        except StreamgraphError as error:
            report.tell(error.problems, show=form == "text")
        errors = [problem for problem in report.problems[found:] if problem.severity == "error"]
        warnings = len(report.problems) - found - len(errors)
        failed |= bool(errors)
        files.append({"file": spec, "ok": not errors, "errors": len(errors), "warnings": warnings})
        said = f" ({many(warnings, 'warning')})" if warnings else ""
        name = "<stdin>" if spec == STDIN else spec
        if errors:
            report.say(f"{name}: {many(len(errors), 'error')}{said}")
        elif program is not None:
            report.say(f"{name}: fine, {facts}{said}")
    if form == "github":
        report.result("\n".join(map(_annotation, report.problems)))
    report.data = {"files": files}
    if failed:
        code = next((problem.code for problem in report.problems if problem.severity == "error"), None)
        report.next(*([f"explain {code}"] if code else []))
        return WRONG
    if STDIN not in specs:
        report.next(f"plan {shell(specs[0])}", f"run {shell(specs[0])}" + (f" --ops {shell(ops)}" if ops else ""))
    return None


def _operators(report: Report, ops: str, form: str) -> Any:
    """The module of operators; False, and the problem told, if it cannot be imported."""
    from streamgraph.operators import load_operators

    try:
        return load_operators(ops)
    except StreamgraphError as error:
        report.tell(error.problems, show=form == "text")
        return False


def _planned(program: Program) -> str:
    """What planning begins with, which finds rings that are too small. Raises SpecError."""
    from streamgraph.hazards import build_dag, ensure_acyclic, find_hazards
    from streamgraph.storages import trace

    hazards = find_hazards(program, trace(program)[0])
    ensure_acyclic(program, build_dag(program, hazards))
    facts = (many(len(program.tasks), "task"), many(len(program.tensors), "tensor"), many(len(hazards), "hazard"))
    return ", ".join(facts)


def _odd(program: Program) -> tuple[Problem, ...]:
    """What is odd about rings over iterations, which only a planned loop shows. Nothing is planned where there are none.

    `plan --iterations` says the same; a check is to be quick, so it leaves out what is large.
    """
    from streamgraph.rings import over_iterations, ring_warnings

    slots = [family.slots or 1 for family in over_iterations(program)]
    if not slots or max(slots) * len(program.tasks) > MOST_WRITTEN_OUT:
        return ()
    from streamgraph.plan_loop import plan_loop

    return ring_warnings(plan_loop(program))


def _resolved(program: Program, operators: Any) -> None:
    """Compare every call with its operator. Raises OperatorError."""
    from streamgraph.operators import resolve

    resolve(program, operators)


def _annotation(problem: Problem) -> str:
    """A workflow command of GitHub Actions, escaped as its toolkit does (percent, line ends; in properties also `:` and `,`)."""
    place = problem.location
    where = {"file": place.file, "line": str(place.line), "col": str(place.column)} if place else {}
    properties = {**where, "title": problem.code}
    message = problem.message + (f" Help: {problem.help}" if problem.help else "")
    inner = ",".join(f"{key}={_escaped(value).replace(':', '%3A').replace(',', '%2C')}" for key, value in properties.items())
    return f"::{problem.severity} {inner}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


@command(
    "expand", "Print a spec in its long form.",
    "streamgraph expand cameras.streamgraph.yaml",
    "streamgraph expand cameras.streamgraph.yaml --param cams=2 > two.yaml",
)  # fmt: skip
@click.argument("spec", metavar="SPEC")
@param_option
def expand(report: Report, spec: str, params: tuple[str, ...]) -> None:
    """Print the spec in its long form: parameters filled in, `each` and groups expanded, defaults made visible."""
    from streamgraph.spec import to_mapping, to_yaml

    program = load_program(report, spec, params)
    if report.as_json:
        report.data = {"program": to_mapping(program)}
    else:
        report.result(to_yaml(program))
    if spec != STDIN:
        report.next(f"plan {shell(spec)}")


@command(
    "schema", "Print the JSON Schema, for editors.",
    "streamgraph schema",
    "streamgraph schema --output streamgraph.schema.json",
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Write it there instead of to stdout.")
def schema(report: Report, output: str | None) -> None:
    """Print the JSON Schema of a spec, for editors: completion, and marks at unknown keys."""
    from streamgraph.spec import json_schema

    found = json_schema()
    text = json.dumps(found, indent=1) + "\n"
    if output in (None, "-"):
        report.data = {"schema": found}
        report.result(text)
        report.say("An editor finds it by a first line in the spec:  # yaml-language-server: $schema=./streamgraph.schema.json")
    else:
        assert output is not None
        write(output, text)
        report.data = {"file": output}
        report.result(output)
        report.say(f"An editor finds it by a first line in the spec:  # yaml-language-server: $schema=./{output}")
