"""Imports point one way, heavy libraries come late, and the names that users type are public in one place."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamgraph

PACKAGE = Path(streamgraph.__file__).parent
# Bottom to top; parts that share a rank stand in one string and may not import each other.
LAYERS = (
    "errors collector",
    "model",
    "names seats",
    "storages",
    "devices views task_checks",
    "validate",
    "builder spec",
    "frontier",
    "hazards",
    "steps",
    "schedule machine",
    "switches",
    "paths",
    "cost passes verify",
    "timeline contention",
    "clock",
    "simulate certificate explain saved",
    "measured",
    "render",
    "outputs portfolio",
    "plan",
    "difference iterations",
    "loop",
    "copy_lanes",
    "plan_loop",
    "loop_waits",
    "rings",
    "calls",
    "returned",
    "registry",
    "aten",
    "operators",
    "python_source",
    "sharing",
    "binding files",
    "rebind",
    "executors",
    "measuring",
    "result",
    "looping",
    "runner",
    "run",
    "prefetch",
    "compare doctor calibration",
    "bench",
    "tune",
    "commands",
    "cli",
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names.split()}
MAY_NOT_IMPORT = {"verify": {"passes", "frontier", "hazards", "plan", "cost"}, "spec": {"passes", "hazards"}}
# Methods of Schedule that call one function of a later module each, for users' convenience (docs/design.md, section 2).
FACADE = {("schedule", name) for name in ("certificate", "explain", "render", "saved", "python_source")}
# Who may import what from outside; torch and networkx besides only inside functions.
ONLY_IN = {
    "torch.cuda": {"executors", "doctor"},
    "pydantic": {"spec"},
    "yaml": {"spec", "doctor"},
    "click": {"cli", "commands", "compare"},
    "rich": {"cli", "commands"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported module, and whether the import stands at the top level and runs (not under TYPE_CHECKING)."""
    tree = ast.parse(path.read_text())
    typing_only = {
        inner for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) for inner in ast.walk(node)
    }
    late = {
        inner for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write imports from the top, `from streamgraph.x import y`"
            names = [node.module] if node.module and node.module != "streamgraph" else [f"streamgraph.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield str(name), node not in late and node not in typing_only


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part in ("__init__", "__main__"):
        return
    assert part in RANK, f"give {part} a place in LAYERS and in the map of streamgraph/__init__.py"
    for name, _ in imported(path):
        other = name.split(".")[1] if name.startswith("streamgraph.") else None
        if other is None or other == part or (part, other) in FACADE:
            continue
        assert RANK[other] < RANK[part], f"{part} may not import {other}"
        assert other not in MAY_NOT_IMPORT.get(part, ()), f"{part} must stay independent of {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_outside_libraries_are_used_where_they_belong(path: Path) -> None:
    part = part_of(path)
    for name, at_once in imported(path):
        for library, parts in ONLY_IN.items():
            if name == library or name.startswith(library + "."):
                assert part in parts, f"{part} imports {name}"
        if name.split(".")[0] in ("torch", "networkx") and part != "executors":
            assert not at_once, f"{part} imports {name} at the top: import it inside the function that needs it"


def test_importing_the_package_imports_no_heavy_library() -> None:
    code = "import sys, streamgraph; print([m for m in ('torch', 'networkx', 'pydantic', 'yaml', 'click', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_exists_and_has_a_docstring() -> None:
    for name in streamgraph.__all__:
        assert getattr(streamgraph, name).__doc__, name


def test_every_module_says_what_becomes_what_and_stands_in_the_map() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), f"{path} has no docstring"
    for part in RANK:
        assert f"    {part}" in str(streamgraph.__doc__), f"{part} is missing in the map of streamgraph/__init__.py"


def test_no_file_is_called_after_nothing() -> None:
    for path in FILES:
        assert not {"utils", "util", "helpers", "common", "misc", "manager"} & set(path.stem.split("_")), path
