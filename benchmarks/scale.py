"""How long planning and verifying take, and how much memory, per stage and per tenfold growth of the program.

    python benchmarks/scale.py                     10k and 100k tasks of every shape
    python benchmarks/scale.py --largest 1000000   up to a million
    python benchmarks/scale.py --shapes chain --profile
    python benchmarks/scale.py --yaml 100000       reading specs of that size, and nothing else

Each size of each shape runs in a process of its own, so that peak memory is its own. The program is built from the model; its building is
neither part of planning (there is no YAML) nor left out of memory.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

STAGES = ("check", "hazards", "graph", "cost", "assign", "sync", "lifetime", "emit")
# Stage -> the functions that `streamgraph.plan` calls for it.
PARTS = {
    "check": ("as_program",), "hazards": ("trace", "find_hazards"), "graph": ("build_dag", "ensure_acyclic"), "cost": ("task_costs",),
    "assign": ("work_of", "choose"), "sync": ("synchronize",), "lifetime": ("place_releases",), "emit": ("emit",), "verify": ("ensure",),
}  # fmt: skip
MOST_GROWTH = 12.0  # per tenfold size: linear with logarithms, not quadratic


def measure(shape: str, count: int) -> dict[str, Any]:
    """Seconds per stage, peak memory in MiB, and the figures of the plan. `plan` itself is run, its stages with a clock around them."""
    import networkx  # noqa: F401  (its import is no part of planning)

    from streamgraph.schedule import Schedule
    from tests.large import SHAPES

    planner = importlib.import_module("streamgraph.plan")
    program = SHAPES[shape](count)
    before = _peak()
    seconds = dict.fromkeys(PARTS, 0.0)
    peaks: dict[str, float] = {}
    running: list[str] = []
    since = time.process_time()

    def clocked(stage: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            nonlocal since
            switch(running[-1] if running else None)
            running.append(stage)
            try:
                return call(*arguments, **keywords)
            finally:
                switch(running.pop())
                peaks[stage] = _peak()

        return timed

    def switch(stage: str | None) -> None:
        nonlocal since
        now = time.process_time()
        if stage is not None:
            seconds[stage] += now - since
        since = now

    for stage, names in PARTS.items():
        for name in names:
            setattr(planner, name, clocked(stage, getattr(planner, name)))
    schedule: Schedule = planner.plan(program)
    return {
        "tasks": len(schedule.program.tasks), "steps": len(schedule.steps), "waits": schedule.counts.waits, "lanes": len(schedule.lanes),
        "program_mib": before, "plan_mib": peaks["emit"], "verify_mib": peaks["verify"],
        "seconds": seconds, "plan": sum(seconds[stage] for stage in STAGES), "notes": schedule.notes,
    }  # fmt: skip


def reading(shape: str, count: int) -> dict[str, Any]:
    """Seconds from a spec's text to its checked program, what the collector does afterwards included; and what it takes to plan that."""
    import networkx  # noqa: F401

    from streamgraph.plan import plan
    from streamgraph.spec import loads, to_yaml
    from tests.large import SHAPES

    text = to_yaml(SHAPES[shape](count))
    loads(text[: text.index("tasks:")])  # what is imported when it is needed
    times = [time.process_time()]
    program = loads(text).program
    made = [[number] for number in range(10_000)]  # enough for the collector to want to look
    times.append(time.process_time())
    peak = _peak()
    schedule = plan(program)
    made += [[number] for number in range(10_000)]
    times.append(time.process_time())
    return {
        "bytes": len(text), "load": times[1] - times[0], "plan": times[2] - times[1], "load_mib": peak, "plan_mib": _peak(),
        "tasks": len(schedule.program.tasks),
    }  # fmt: skip


def reduction(count: int) -> tuple[float, int]:
    """Seconds that networkx needs for the transitive reduction of the mixed program's hazards, and its edges."""
    import networkx as nx

    from streamgraph.hazards import task_graph
    from tests.large import SHAPES

    graph = task_graph(SHAPES["mixed"](count))
    begun = time.process_time()
    reduced = nx.transitive_reduction(graph)
    return time.process_time() - begun, reduced.number_of_edges()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _apart(*arguments: str) -> Any:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    """Print the table."""
    from tests.large import SHAPES

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--smallest", type=int, default=10_000)
    parser.add_argument("--largest", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=1, help="runs per size; the median of their planning times is shown")
    parser.add_argument("--reduction", type=int, metavar="N", help="also time networkx's transitive reduction at N tasks")
    parser.add_argument("--yaml", type=int, metavar="N", help="only read specs with N tasks of each shape, and plan and verify them")
    parser.add_argument("--profile", action="store_true", help="run the smallest size here, under cProfile")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        what, shape, count = given.one[0], given.one[1], int(given.one[2])
        print(json.dumps({"measure": measure, "reading": reading, "reduction": lambda _, count: reduction(count)}[what](shape, count)))
        return
    if given.profile:
        import cProfile

        for shape in given.shapes:
            cProfile.runctx("measure(shape, count)", {"measure": measure, "shape": shape, "count": given.smallest}, {}, sort="tottime")
        return
    import networkx

    print(f"Python {platform.python_version()}, networkx {networkx.__version__}, {platform.machine()}; CPU seconds, peak memory in MiB\n")
    if given.yaml:
        print("| shape | tasks | MB of YAML | **read** | MiB | plan and verify | MiB |\n| --- |" + " ---: |" * 6)
        for shape in given.shapes:
            runs = sorted((_apart("--one", "reading", shape, str(given.yaml)) for _ in range(given.repeats)), key=lambda run: run["load"])
            found = runs[len(runs) // 2]
            cells = [shape, f"{found['tasks']:,}", f"{found['bytes'] / 1e6:.1f}", f"**{found['load']:.2f}**", f"{found['load_mib']:,.0f}"]
            print("| " + " | ".join([*cells, f"{found['plan']:.2f}", f"{found['plan_mib']:,.0f}"]) + " |", flush=True)
        return
    print("| shape | tasks | lanes | waits | " + " | ".join(STAGES) + " | **plan** | grows | MiB | **verify** | grows | MiB |")
    print("| --- |" + " ---: |" * (len(STAGES) + 9))
    too_steep = []
    for shape in given.shapes:
        last: dict[str, Any] | None = None
        count = given.smallest
        while count <= given.largest:
            runs = sorted((_apart("--one", "measure", shape, str(count)) for _ in range(given.repeats)), key=lambda run: run["plan"])
            found = runs[len(runs) // 2]
            seconds = found["seconds"]
            growth = ("", "")
            if last is not None:
                steps = found["plan"] / last["plan"], seconds["verify"] / last["seconds"]["verify"]
                growth = f"{steps[0]:.1f}x", f"{steps[1]:.1f}x"
                if max(steps) > MOST_GROWTH:
                    too_steep.append(f"{shape} at {count:,}: {max(steps):.1f}x")
            cells = [shape, f"{found['tasks']:,}", str(found["lanes"]), f"{found['waits']:,}"]
            cells += [f"{seconds[stage]:.2f}" for stage in STAGES]
            cells += [f"**{found['plan']:.2f}**", growth[0], f"{found['plan_mib']:,.0f}"]
            cells += [f"**{seconds['verify']:.2f}**", growth[1], f"{found['verify_mib']:,.0f}"]
            print("| " + " | ".join(cells) + " |", flush=True)
            last, count = found, count * 10
    if given.reduction:
        took, edges = _apart("--one", "reduction", "mixed", str(given.reduction))
        print(f"\nnx.transitive_reduction of the mixed program's hazards at {given.reduction:,} tasks: {took:.1f} s ({edges:,} edges)")
    print(f"\nGrowth per decade above {MOST_GROWTH:g}: {'; '.join(too_steep) or 'none'}")


if __name__ == "__main__":
    main()
