"""How long does the HTML report take: to write, to open, to draw a frame while one zooms?

The program is a pipeline with a ring of three buffers on three lanes. Opening is from the navigation to the page's own mark that it has
drawn; a frame is the timeline drawn again at another zoom. Needs a Chromium, and no GPU.

    python benchmarks/report.py --tasks 1000 10000 100000
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from streamgraph.builder import Graph
from streamgraph.plan import plan
from streamgraph.render import render
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate
from tests.browser.chromium import find, running

FRAMES = """(() => { const times = []; fit(); for (let i = 0; i < 24; i++) { const begun = performance.now();
zoom(i < 12 ? 0.6 : 1 / 0.6, D.makespan / 2); stage.getContext('2d').getImageData(0, 0, 1, 1); times.push(performance.now() - begun); }
return times })()"""


def pipeline(tasks: int) -> Schedule:
    """Load, multiply, normalise, log: four tasks per layer."""
    graph = Graph(f"pipeline of {tasks} tasks")
    layers = tasks // 4
    host = graph.input("host", "f32[512, 512]", each={"layer": layers}, device="cpu", pinned=True)
    w = graph.buffer("w", "f32[512, 512]", each={"layer": layers}, slots=3, over="layer")
    h = graph.input("x", "f32[64, 512]")
    for layer in range(layers):
        graph.copy(f"load@{layer}", host[layer], w[layer], stream="copy")
        h = graph.task(f"mm@{layer}", "mm", reads=[h, w[layer]], writes="h", cost=60.0 + layer % 7)
        graph.task(f"norm@{layer}", "norm", reads=h, writes=f"n@{layer}", stream="side", cost=20.0)
        graph.task(f"log@{layer}", "log", reads=f"n@{layer}", writes=f"s@{layer}", stream="side", cost=9.0)
    graph.output(h)
    return plan(graph)


def main() -> None:
    """Print a table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tasks", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    arguments.add_argument("--repeats", type=int, default=5)
    chosen = arguments.parse_args()
    program = find()
    if program is None:
        sys.exit("no Chromium here: install one, or name it in STREAMGRAPH_CHROMIUM")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"{version}, {chosen.repeats} repeats, medians; Python {sys.version.split()[0]}\n")
    print("| tasks | waits | written in, s | file, MB | opened in, ms | of it the page's script, ms | a frame while zooming, ms (worst) |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, running(Path(folder)) as browser:
        for tasks in chosen.tasks:
            schedule = pipeline(tasks)
            timeline = simulate(schedule)
            begun = time.perf_counter()
            text = render(schedule, "html", timeline)
            written = time.perf_counter() - begun
            path = Path(folder) / f"{tasks}.html"
            path.write_text(text, encoding="utf-8")
            opened, script, frames = [], [], []
            for _ in range(chosen.repeats):
                page = browser.page()
                begun = time.perf_counter()
                page.open(path)
                opened.append(1e3 * (time.perf_counter() - begun))
                script.append(float(page.data("milliseconds") or "nan"))
                assert page.errors == []
                frames += page.js(FRAMES)
                page.call("Page.close")
            row = (
                f"{tasks:,}", f"{schedule.counts.waits:,}", f"{written:.2f}", f"{len(text.encode()) / 1e6:.2f}",
                f"{statistics.median(opened):.0f}", f"{statistics.median(script):.0f}",
                f"{statistics.median(frames):.1f} ({max(frames):.0f})",
            )  # fmt: skip
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
