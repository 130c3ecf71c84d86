"""What a command may import. Run in processes of their own: this one has torch long since."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SPEC = """\
streamgraph: 1
name: canary
tensors:
  x: {type: "f32[8]", kind: input, init: random}
tasks:
  first: {run: canary_operator, reads: x, writes: y, stream: side}
  second: {run: canary_operator, reads: y, writes: z}
outputs: [z]
"""
CANARY = "import pathlib\npathlib.Path({!r}).touch()\n\n\ndef canary_operator(x):\n    return x + 1\n"
REPORT = """
import json, runpy, sys, atexit
sys.argv = ["streamgraph", *json.loads(sys.argv[1])]
try:
    runpy.run_module("streamgraph", run_name="__main__")
finally:
    print("MODULES " + json.dumps(sorted(m for m in sys.modules if "." not in m)), file=sys.stderr)
"""

PURE = [
    ["--help"], ["--version"], ["check", "canary.yaml"], ["plan", "canary.yaml"], ["plan", "canary.yaml", "--json"],
    ["plan", "canary.yaml", "-o", "plan.json"], ["draw", "canary.yaml"], ["draw", "canary.yaml", "-o", "canary.svg"],
    ["draw", "canary.yaml", "-o", "canary.html"], ["draw", "canary.yaml", "-o", "canary.trace.json"],
    ["explain", "canary.yaml"], ["explain", "canary.yaml", "second"], ["explain", "SG301"],
    ["explain", "canary.yaml", "--waits"], ["explain", "canary.yaml", "--critical-path"], ["explain", "canary.yaml", "--lanes"],
    ["diff", "canary.yaml", "canary.yaml"], ["expand", "canary.yaml"], ["schema"],
    ["run", "canary.yaml", "--device", "sim"], ["init", "demo"], ["run", "--help"], ["compare", "--help"], ["doctor", "--help"],
]  # fmt: skip


def imported(folder: Path, *arguments: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """The top-level modules that a command imports, and how it ended."""
    (folder / "canary.yaml").write_text(SPEC, encoding="utf-8")
    (folder / "canary_operator.py").write_text(CANARY.format(str(folder / "sung")), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    done = subprocess.run(
        [sys.executable, "-c", REPORT, json.dumps(arguments)], cwd=folder, env=environment, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    modules = done.stderr.rpartition("MODULES ")[2]
    return set(json.loads(modules)), done


@pytest.mark.parametrize("arguments", PURE, ids=" ".join)
def test_what_needs_no_device_imports_neither_torch_nor_the_users_module(arguments: list[str], tmp_path: Path) -> None:
    modules, done = imported(tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert "torch" not in modules
    assert "canary_operator" not in modules
    assert not (tmp_path / "sung").exists()


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["plna"]], ids=" ".join)
def test_help_imports_no_heavy_package_at_all(arguments: list[str], tmp_path: Path) -> None:
    modules, _ = imported(tmp_path, *arguments)
    assert {"torch", "networkx", "pydantic", "yaml", "rich", "numpy"} & modules == set()


def test_reading_a_spec_loads_no_planner(tmp_path: Path) -> None:
    for arguments in (["expand", "canary.yaml"], ["schema"]):
        modules, _ = imported(tmp_path, *arguments)
        assert {"torch", "networkx", "numpy"} & modules == set()


def test_the_canary_can_sing(tmp_path: Path) -> None:
    modules, done = imported(tmp_path, "check", "canary.yaml", "--ops", "canary_operator.py")
    assert done.returncode == 0, done.stderr
    assert "torch" in modules or (tmp_path / "sung").exists()
    assert (tmp_path / "sung").exists()
