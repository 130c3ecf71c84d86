"""The shapes of real programs, as DAGs with a time and a share of the device for every task. For benchmarks of the planner; nothing runs.

Times are microseconds and shares are fractions, both assumed: what small fp32 kernels at batch 1 on a large card are like. The shapes are
those of the papers: Inception-v3 (Szegedy et al. 2016), NASNet-A (Zoph et al. 2018), a transformer whose weights are uploaded layer by
layer, a fully sharded training step, and several cameras before one detector.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from streamgraph.builder import Graph
from streamgraph.cost import TaskCost
from streamgraph.model import Program

Shape = tuple[Program, dict[str, TaskCost]]


class Builder:
    """A graph and the costs of its tasks."""

    def __init__(self, name: str) -> None:
        self.graph = Graph(name)
        self.costs: dict[str, TaskCost] = {}

    def task(self, name: str, reads: list[str], us: float, fill: float = 0.25, **more: object) -> str:
        """A task that makes a value of its own name, unless `writes` or `updates` say otherwise."""
        options = {"writes": name} | more if "updates" not in more else more
        self.graph.task(f"{name}", "f", reads=reads, **options)  # type: ignore[arg-type]
        self.costs[name] = TaskCost(us, fill)
        return name

    def chain(self, name: str, start: str, times: tuple[float, ...], fill: float = 0.25) -> str:
        """Tasks one after another; the last one's value."""
        for number, us in enumerate(times):
            start = self.task(f"{name}.{number}", [start], us, fill)
        return start

    def shape(self, *outputs: str) -> Shape:
        """The program and its costs."""
        for name in outputs:
            self.graph.output(name)
        return self.graph.program(), self.costs


def inception() -> Shape:
    """Eleven blocks of four branches after a chain of convolutions."""
    make = Builder("inception")
    make.graph.input("image")
    x = make.chain("stem", "image", (14, 18, 22, 8, 12, 25, 8), 0.5)
    for block in range(11):
        long = (16.0, 18.0, 18.0) if block < 4 else (12.0, 14.0, 14.0, 14.0, 14.0)
        ends = [
            make.chain(f"b{block}.one", x, (12.0,)),
            make.chain(f"b{block}.two", x, (11.0, 20.0)),
            make.chain(f"b{block}.three", x, long),
            make.chain(f"b{block}.pool", x, (6.0, 12.0), 0.15),
        ]
        x = make.task(f"b{block}.cat", ends, 5.0, 0.3)
    x = make.chain("head", x, (6.0, 10.0))
    return make.shape(x)


def nasnet(cells: int = 18) -> Shape:
    """Cells of five combinations of two branches each, which read the cell before and the one before that."""
    make = Builder("nasnet")
    make.graph.input("image")
    before, h = "image", make.chain("stem", "image", (15.0, 10.0))
    for cell in range(cells):
        p, x = make.chain(f"c{cell}.p", before, (6.0, 8.0)), make.chain(f"c{cell}.h", h, (6.0, 8.0))
        parts = []
        for number, (left, right) in enumerate(((x, x), (p, x), (p, p), (p, p), (x, x))):
            separable = (5.0, 9.0, 7.0, 5.0, 9.0, 7.0)
            one = make.chain(f"c{cell}.{number}l", left, separable if number != 3 else (6.0,), 0.2)
            two = make.chain(f"c{cell}.{number}r", right, separable if number < 2 else (6.0,), 0.2)
            parts.append(make.task(f"c{cell}.{number}", [one, two], 4.0, 0.15))
        before, h = h, make.task(f"c{cell}.cat", parts, 6.0, 0.3)
    return make.shape(make.chain("head", h, (6.0, 10.0)))


def offload(layers: int = 24) -> Shape:
    """A transformer: a ring of two layers of weights, uploaded; attention with three independent projections."""
    make = Builder("offload")
    make.graph.input("x")
    host = make.graph.input("host", "bf16[1024, 4096]", each={"layer": layers}, device="cpu", pinned=True)
    ring = make.graph.buffer("w", "bf16[1024, 4096]", each={"layer": layers}, slots=2, over="layer")
    assert isinstance(host, tuple)
    assert isinstance(ring, tuple)
    h = "x"
    for layer in range(layers):
        make.graph.copy(f"load{layer}", host[layer], ring[layer])
        make.costs[f"load{layer}"] = TaskCost(160.0)
        w = f"w@{layer}"
        parts = [make.task(f"l{layer}.{part}", [h, w], 24.0, 0.3) for part in ("q", "k", "v")]
        attention = make.task(f"l{layer}.attention", parts, 40.0, 0.6)
        mixed = make.task(f"l{layer}.mix", [attention, h, w], 26.0, 0.6)
        h = make.task(f"l{layer}.mlp", [make.task(f"l{layer}.up", [mixed, w], 45.0, 0.8), mixed, w], 45.0, 0.8)
    return make.shape(h)


def sharded(layers: int = 12) -> Shape:
    """A fully sharded step: gather, forward; gather, backward, reduce. Collectives follow each other through one communicator."""
    make = Builder("sharded")
    make.graph.input("x")
    make.graph.resource("communicator")
    h, collective = "x", {"updates": "communicator"}
    for layer in range(layers):
        full = make.task(f"gather{layer}", [], 150.0, 0.1, writes=f"full{layer}", **collective) and f"full{layer}"
        h = make.task(f"forward{layer}", [h, full], 180.0, 0.9)
    delta = make.task("loss", [h], 20.0, 0.2)
    reduced = []
    for layer in reversed(range(layers)):
        again = make.task(f"again{layer}", [], 150.0, 0.1, writes=f"back{layer}", **collective) and f"back{layer}"
        gradient = make.task(f"weight{layer}", [delta, again], 180.0, 0.9)
        if layer:
            delta = make.task(f"data{layer}", [delta, again], 180.0, 0.9)
        mean = make.task(f"reduce{layer}", [gradient], 160.0, 0.1, writes=f"mean{layer}", **collective) and f"mean{layer}"
        reduced.append(make.task(f"step{layer}", [mean], 15.0, 0.3))
    return make.shape(*reduced)


def cameras(count: int = 6, frames: int = 4) -> Shape:
    """Uploads into a ring, preparation per camera, one detector per frame, results to the host."""
    make = Builder("cameras")
    total = count * frames
    packet = make.graph.input("packet", "u8[3, 1080, 1920]", each={"n": total}, device="cpu", pinned=True)
    frame = make.graph.buffer("frame", "u8[3, 1080, 1920]", each={"n": total}, slots=count, over="n")
    assert isinstance(packet, tuple)
    assert isinstance(frame, tuple)
    for number in range(frames):
        prepared = []
        for camera in range(count):
            n = number * count + camera
            make.graph.copy(f"upload{n}", packet[n], frame[n])
            make.costs[f"upload{n}"] = TaskCost(120.0)
            prepared.append(make.task(f"prepare{n}", [f"frame@{n}"], 90.0, 0.3))
        batch = make.task(f"stack{number}", prepared, 30.0, 0.5)
        found = make.chain(f"detect{number}", batch, (120.0, 90.0, 110.0, 60.0), 0.8)
        track = make.task(f"track{number}", [found], 25.0, 0.1)
        make.graph.output(track)
    return make.shape()


def layered(seed: int, tasks: int = 80) -> Shape:
    """Network-like: each task reads one to three of the values of the last few tasks."""
    draw, make = random.Random(seed), Builder(f"layered{seed}")
    for number in range(tasks):
        recent = [f"t{other}" for other in range(max(0, number - 12), number)]
        make.task(f"t{number}", draw.sample(recent, min(len(recent), draw.randint(1, 3))), draw.uniform(5, 60), 0.2)
    return make.shape(f"t{tasks - 1}")


def buffers(seed: int, tasks: int = 80) -> Shape:
    """Random accesses to 24 buffers, three in ten of them in place: RAW, WAR and WAW."""
    draw, make = random.Random(seed), Builder(f"buffers{seed}")
    names = [f"b{number}" for number in range(24)]
    for name in names:
        make.graph.buffer(name, "f32[8]")
    for number in range(tasks):
        *read, written = draw.sample(names, draw.randint(2, 4))
        kind = "updates" if draw.random() < 0.3 else "writes"
        make.graph.task(f"t{number}", "f", reads=read, **{kind: written})  # type: ignore[arg-type]
        make.costs[f"t{number}"] = TaskCost(draw.uniform(5, 60), 0.2)
    return make.shape()


SHAPES: dict[str, Callable[[], Shape]] = {
    "Inception": inception, "NASNet": nasnet, "offloaded transformer": offload, "sharded step": sharded, "cameras": cameras,
}  # fmt: skip
RANDOM: dict[str, Callable[[int], Shape]] = {"layered": layered, "buffers": buffers}
