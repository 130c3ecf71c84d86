"""`init` and `doctor`: files to begin with, and what this machine can do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from streamgraph.commands.command import command
from streamgraph.commands.report import NO_DEVICE, Report, aligned

TEMPLATES = ("demo", "own")
SCHEMA_FILE = "streamgraph.schema.json"


@command(
    "init", "Write a spec to begin with.",
    "streamgraph init demo",
    "streamgraph init cameras",
)  # fmt: skip
@click.argument("name", default="demo")
@click.option(
    "--template", type=click.Choice(TEMPLATES), help="demo: runs at once. own: a skeleton with operators of your own.  [default: by NAME]"
)
@click.option("--force", is_flag=True, help="Replace files that are there.")
def init(report: Report, name: str, template: str | None, force: bool) -> None:
    """Write a spec to begin with, into the current folder.

    `init demo` writes a small program that runs without a GPU, as YAML and as Python. Any other NAME is a skeleton with a file of
    operators. Both come with the schema for the editor.
    """
    from streamgraph.commands.source import write
    from streamgraph.errors import Problem, SpecError, quoted
    from streamgraph.spec import json_schema

    if re.fullmatch(r"[A-Za-z]\w{0,63}", name) is None:
        raise click.BadParameter(f"'{quoted(name)}' is not a name: letters, digits and _, a letter first", param_hint="NAME")
    chosen = template or ("demo" if name == "demo" else "own")
    spec = f"{name}.streamgraph.yaml"
    companion = ("demo.py.template", f"{name}.py") if chosen == "demo" else ("own_ops.py.template", f"{name}_ops.py")
    files = {
        spec: _filled(f"{chosen}.yaml.template", chosen, name),
        companion[1]: _filled(companion[0], chosen, name),
        SCHEMA_FILE: json.dumps(json_schema(), indent=1) + "\n",
    }
    # The schema is the same for every spec: writing it again loses nothing.
    there = [file for file, text in files.items() if Path(file).exists() and not (file == SCHEMA_FILE and _same(file, text))]
    if there and not force:
        remedy = "choose another NAME, or replace them with --force"
        raise SpecError(*(Problem("SG012", f"'{file}' is already there", None, remedy) for file in there))
    for file, text in files.items():
        write(file, text)
    report.data = {"template": chosen, "files": list(files)}
    report.result("\n".join(files))
    ops = f" --ops {companion[1]}" if chosen == "own" else ""
    report.next(f"check {spec}{ops}", f"run {spec}{ops}")


def _filled(template: str, chosen: str, name: str) -> str:
    from importlib.resources import files

    text = (files("streamgraph") / "templates" / template).read_text(encoding="utf-8")
    if chosen == "own":
        return text.replace("__NAME__", name)
    return text if name == "demo" else re.sub(r"\bdemo\b", name, text)


def _same(file: str, text: str) -> bool:
    try:
        return Path(file).read_text(encoding="utf-8") == text
    except (OSError, ValueError):
        return False


@command(
    "doctor", "Say what is here: torch, CUDA, streams, optional packages.",
    "streamgraph doctor",
    "streamgraph doctor --measure -o machine.json",
)  # fmt: skip
@click.option("--require-cuda", is_flag=True, help="Exit with 4 if there is no CUDA device to run on.")
@click.option("--measure", is_flag=True, help="Measure what calls, kernels and copies cost here: the profile that `--machine` takes.")
@click.option("-o", "--output", metavar="FILE", help="Write the measured profile to this file; `-` is stdout.")
@click.option("--device", default="auto", show_default=True, metavar="NAME", help="What to measure: auto, cpu, cuda, cuda:1.")
def doctor(report: Report, require_cuda: bool, measure: bool, output: str | None, device: str) -> int | None:
    """Say what is here: torch, CUDA, streams, pinned memory, optional packages; and what stands in for what is missing.

    With --measure: what calls, kernels and copies cost on this machine. It takes some seconds, and wants a machine that does nothing else.
    """
    if measure:
        _measure(report, output, device)
        return None
    if output is not None:
        raise click.UsageError("-o belongs to --measure")
    from streamgraph.doctor import examine

    findings = examine()
    report.data = {"findings": [finding.to_dict() for finding in findings]}
    rows = [[{"ok": "ok", "info": "", "missing": "--"}[finding.state], finding.topic, finding.value] for finding in findings]
    report.result(aligned(rows))
    remarks = [f"{finding.topic}: {finding.remark}" for finding in findings if finding.remark]
    if remarks:
        report.result("\n" + "\n".join(remarks))
    report.next("init demo", "run demo.streamgraph.yaml")
    has_device = any(finding.topic == "CUDA device" and finding.state == "ok" for finding in findings)
    return NO_DEVICE if require_cuda and not has_device else None


def _measure(report: Report, output: str | None, device: str) -> None:
    from streamgraph.calibration import measure_machine
    from streamgraph.commands.source import STDIN, shell, write

    if re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", device) is None:
        raise click.BadParameter(f"'{device}' is none of auto, cpu, cuda, cuda:1", param_hint="--device")
    machine = measure_machine(device)
    report.data = {"machine": json.loads(machine.to_json())}
    if output == STDIN:
        report.result(machine.to_json())
        return
    figures = [(name, value) for name, value in json.loads(machine.to_json()).items() if isinstance(value, float)]
    report.result(machine.device + "\n")
    report.result(aligned([(name, f"{value:g}") for name, value in figures], right=frozenset({1})))
    report.say("Times are microseconds, rates bytes per microsecond. What each means: docs/costs.md.")
    if output is not None:
        write(output, machine.to_json())
        report.data["file"] = output
        report.next(f"plan demo.streamgraph.yaml --machine {shell(output)}")
    else:
        report.next("doctor --measure -o machine.json")
