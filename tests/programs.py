"""Random programs, and `mix`: the order-sensitive operator that makes any wrong order, version or byte visible in the results.

`random_program(choose)` draws from `choose(n) -> 0..n-1`, so that hypothesis and a seeded generator share it.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from streamgraph.builder import Graph
from streamgraph.devices import of_tasks
from streamgraph.errors import SpecError
from streamgraph.hazards import build_dag, ensure_acyclic, find_hazards
from streamgraph.model import Argument, Family, Kind, Output, Program, Task, Tensor
from streamgraph.storages import trace

SIZE = 8
PRIME = 8191  # results stay small enough to be exact in f32
Choose = Callable[[int], int]


def random_program(choose: Choose, tasks: int = 8, lanes: int = 3, rings: bool = True, hosts: bool = True) -> Program:
    """A valid program of values, inputs, buffers, views, resources, `after`, host tasks and rings, with pinned and free tasks."""
    while True:
        try:
            program = _draw(choose, 1 + choose(tasks), lanes, rings, hosts).program()
            ensure_acyclic(program, build_dag(program, find_hazards(program, trace(program)[0])))
            return program
        except SpecError as error:
            if any(problem.code != "SG303" for problem in error.problems):
                raise
            rings = False  # the ring was too small for what was drawn


def _draw(choose: Choose, count: int, lanes: int, rings: bool, hosts: bool) -> Graph:
    graph = Graph("random")
    device: list[str] = []
    graph.input("x", f"i64[{SIZE}]", init="random")
    device.append("x")
    for number in range(choose(3)):
        graph.buffer(f"b{number}", f"i64[{SIZE}]")
        graph.view(f"b{number}.low", f"b{number}", (slice(0, SIZE // 2),))
        graph.view(f"b{number}.high", f"b{number}", (slice(SIZE // 2, SIZE),))
        graph.view(f"b{number}.middle", f"b{number}", (slice(2, 6),))
        device += [f"b{number}", f"b{number}.low", f"b{number}.high", f"b{number}.middle"]
    host: list[str] = []
    if hosts and choose(2):
        graph.input("hx", f"i64[{SIZE}]", device="cpu", pinned=True, init="random")
        graph.buffer("hb", f"i64[{SIZE}]", device="cpu", pinned=True)
        graph.value("hv", f"i64[{SIZE}]", device="cpu", pinned=True)
        host += ["hx", "hb"]
    members: list[str] = []
    if rings and choose(2):
        length = 2 + choose(4)
        graph.buffer("w", f"i64[{SIZE}]", each={"layer": length}, slots=1 + choose(length), over="layer")
        members = [f"w@{number}" for number in range(length)]
    graph.resource("rng")
    values: list[str] = []
    filled = 0
    for number in range(count):
        on_host = bool(host) and choose(4) == 0
        readable = host + (["hv"] if "hv" in values else []) if on_host else device + members[:filled] + values + host
        reads = _some(choose, readable, 3)
        free = [name for name in readable if name not in reads and name not in host and name.split(".")[0] not in reads]
        if on_host:
            free = [name for name in readable if name not in reads and name != "hx"]
        updates = _some(choose, [name for name in free if not name.startswith("x")], 1) if choose(3) == 0 else []
        target = choose(6)
        writes: list[str] = []
        if on_host:
            writes = [name for name in ("hb",) if target < 3 and name not in reads and name not in updates]
        elif members and filled < len(members) and target < 3:
            writes = [members[filled]]
            filled += 1
        elif target < 4:
            writes = [f"v{choose(3)}"]
        elif host and target == 4:
            writes = [name for name in (["hb", "hv"][choose(2)],) if name not in updates and (name == "hv" or name not in reads)]
        else:
            spare = [name for name in device if name != "x" and name not in reads and name not in updates]
            writes = _some(choose, spare, 1)
        writes = [name for name in writes if name not in updates]
        if choose(5) == 0:
            updates = [*updates, "rng"]
        after = [f"t{choose(number)}"] if number and choose(8) == 0 else []
        lane = [None, "main", *(f"lane{index}" for index in range(lanes))][choose(lanes + 2)]
        graph.task(
            f"t{number}", "mix", reads=reads, writes=writes, updates=updates, after=after, host=on_host,
            stream=None if on_host else lane, cost=float(1 + choose(20)),
        )  # fmt: skip
        values += [name for name in writes if name not in values and (name.startswith("v") or name == "hv")]
    for name in values:
        if choose(2):
            graph.output(name)
    for name in [*(name for name in device if "." not in name), *host]:
        if choose(3) == 0:
            graph.output(name)
    return graph


def _some(choose: Choose, names: Iterable[str], most: int) -> list[str]:
    left, picked = list(names), []
    for _ in range(choose(most + 1)):
        if left:
            picked.append(left.pop(choose(len(left))))
    return picked


def seeded(seed: int, tasks: int = 8, lanes: int = 3, **options: bool) -> Program:
    """The random program of a seed, the same on every machine."""
    return random_program(random.Random(seed).randrange, tasks, lanes, **options)


def turning(of: Program, seed: int) -> Program:
    """The program with some of its buffers as rings over iterations, of one to four slots, each filled by a first task of its own."""
    draws = random.Random(seed)
    in_family = {member for family in of.families for member in family.members}
    tasks: list[Task] = []
    rings: list[Family] = []
    first = of.devices[0].partition(":")[2] if of.devices else ""
    for tensor in of.tensors:
        if tensor.kind is Kind.BUFFER and tensor.name not in in_family and draws.random() < 0.7:
            host, number = tensor.device == "cpu", tensor.device.partition(":")[2]
            lanes = [None, "main", "lane0"] if not number else [None, f"lane{number}.0", "main" if number == first else None]
            tasks.append(
                Task(
                    f"fill.{tensor.name}", "mix", (Argument(("hx" if host else f"x{number}",)),), (Argument((tensor.name,)),), host=host,
                    stream=None if host else draws.choice(lanes), cost=5.0,
                )
            )  # fmt: skip
            rings.append(Family(tensor.name, (), (tensor.name,), 1 + draws.randrange(4), "iteration"))
    return replace(of, tasks=(*tasks, *of.tasks), families=(*of.families, *rings))


def reporting(of: Program, device: str) -> Program:
    """The program with a host task at its end that makes another output, on `device` ("device" is what a name without one has)."""
    said = (Tensor("said", Kind.VALUE, device=device), Tensor("seen", Kind.VALUE, device="cpu"))
    read = Task("look", "copy", (Argument(("x",)),), (Argument(("seen",)),))
    tell = Task("tell", "mix", (Argument(("seen",)),), (Argument(("said",)),), host=True)
    return replace(of, tensors=(*of.tensors, *said), tasks=(*of.tasks, read, tell), outputs=(*of.outputs, Output("said", "said")))


def random_devices(choose: Choose, devices: int = 2, tasks: int = 10, lanes: int = 2) -> Program:
    """A valid program over several GPUs: tasks on each, copies of all directions, host tasks, and state on each device."""
    graph = Graph("devices")
    on: list[list[str]] = []  # what can be read, by device
    for number in range(devices):
        name = f"cuda:{number}"
        graph.input(f"x{number}", f"i64[{SIZE}]", device=name, init="random")
        graph.buffer(f"b{number}", f"i64[{SIZE}]", device=name)
        graph.view(f"b{number}.low", f"b{number}", (slice(0, SIZE // 2),))
        graph.value(f"h{number}", f"i64[{SIZE}]", device=name)
        on.append([f"x{number}", f"b{number}", f"b{number}.low"])
    graph.input("hx", f"i64[{SIZE}]", device="cpu", pinned=True, init="random")
    graph.buffer("hb", f"i64[{SIZE}]", device="cpu", pinned=True)
    graph.value("hv", f"i64[{SIZE}]", device="cpu", pinned=True)
    host = ["hx", "hb"]
    half = {f"b{number}.low" for number in range(devices)}
    outputs: dict[str, None] = {}

    def copy(number: int, sources: list[str], targets: list[str], lane: str | None) -> str:
        source = sources[choose(len(sources))]
        fitting = [name for name in targets if (name in half) == (source in half) and name != source]
        if not fitting:
            return ""
        target = fitting[choose(len(fitting))]
        graph.copy(f"t{number}", source, target, stream=None if source in host and target in (*host, "hv") else lane)
        return target

    for number in range(1 + choose(tasks)):
        here = choose(devices)
        there = (here + 1 + choose(devices - 1)) % devices
        lane = f"lane{here}.{choose(lanes)}" if choose(3) == 0 else None
        kind = choose(6)
        if kind == 0:
            written = copy(number, on[here], [f"h{there}", f"b{there}", f"b{there}.low"], lane)
            place = on[there]
        elif kind == 1:
            written, place = copy(number, on[here], ["hb", "hv"], lane), host
        elif kind == 2:
            written, place = copy(number, host, [f"h{here}", f"b{here}"], lane), on[here]
        elif kind == 3 and choose(2):
            graph.task(f"t{number}", "mix", reads=_some(choose, host, 2), writes="hv", host=True)
            written, place = "hv", host
        else:
            reads = _some(choose, on[here] + host, 3)
            updates = [name for name in (f"b{here}",) if choose(3) == 0 and not any(read.startswith(name) for read in reads)]
            written, place = f"v{here}.{choose(2)}", on[here]
            # The first task on a device touches something there, or it would be a task of the first device.
            reads = reads if any(name in on[here] for name in [*reads, *updates]) else [*reads, f"x{here}"]
            graph.task(f"t{number}", "mix", reads=reads, updates=updates, writes=written, stream=lane, cost=float(1 + choose(20)))
        if written and written not in place:
            place.append(written)
        if written and choose(2):
            outputs[written] = None
    for name in outputs:
        graph.output(name)
    return graph.program()


def two_stages(batches: int = 3) -> Program:
    """Two stages on two devices, with results on the second one and on the host."""
    graph = Graph("pipeline")
    graph.input("hx", "i64[8]", device="cpu", pinned=True, init="random")
    for stage in range(2):
        graph.input(f"w{stage}", "i64[8]", device=f"cuda:{stage}", init="random")
    for batch in range(batches):
        graph.value(f"far{batch}", "i64[8]", device="cuda:1")
        graph.value(f"y{batch}", "i64[8]", device="cpu", pinned=True)
        graph.copy(f"load{batch}", "hx", f"x{batch}")
        graph.task(f"first{batch}", "mix", reads=[f"x{batch}", "w0"], writes=f"a{batch}")
        graph.copy(f"hop{batch}", f"a{batch}", f"far{batch}")
        graph.task(f"second{batch}", "mix", reads=[f"far{batch}", "w1"], writes=f"c{batch}")
        graph.copy(f"store{batch}", f"c{batch}", f"y{batch}")
        graph.output(f"y{batch}")
        graph.output(f"c{batch}")
    return graph.program()


def there_and_back() -> Graph:
    """There and back again, every step on a lane of its own."""
    graph = Graph("chain")
    graph.input("x", "i64[8]", device="cuda:0", init="random")
    graph.value("far", "i64[8]", device="cuda:1")
    graph.value("back", "i64[8]", device="cuda:0")
    graph.task("a", "mix", reads="x", writes="v", stream="one")
    graph.copy("there", "v", "far", stream="out")
    graph.task("b", "mix", reads="far", writes="w", stream="two")
    graph.copy("again", "w", "back", stream="home")
    graph.task("c", "mix", reads="back", writes="y", stream="main")
    graph.output("y")
    return graph


def mix_for(program: Program, device: str = "cpu") -> Callable[[Task], Callable[..., Any]]:
    """`ops=` for programs whose tasks all run `mix`. Device tasks compute on `device` alone, so that nothing blocks the host."""
    import torch

    kind = {tensor.name: tensor for tensor in program.tensors}
    device_of = {task.name: of for task, of in zip(program.tasks, of_tasks(program), strict=True)} if program.devices else {}

    def operator(task: Task) -> Callable[..., Any]:
        where = torch.device("cpu" if task.host or device == "cpu" else device_of.get(task.name, device))
        updated = [name for entry in task.updates for name in entry.tensors if kind[name].kind is not Kind.RESOURCE]
        returned = [
            name for entry in task.writes for name in entry.tensors if kind[name].kind is Kind.VALUE or kind[name].kind is Kind.INPUT
        ]
        salt = zlib.crc32(task.name.encode()) % PRIME

        def mix(*positional: Any, **keywords: Any) -> Any:
            arguments = [tensor for entry in positional for tensor in (entry if isinstance(entry, list) else [entry])]
            state = torch.full((), salt, dtype=torch.int64, device=where)
            for tensor in arguments:
                here = tensor.to(where, torch.int64, non_blocking=True).flatten()
                state = (state * 31 + (here * torch.arange(1, here.numel() + 1, device=where)).sum()) % PRIME

            def result(shape: torch.Size, dtype: torch.dtype, number: int) -> torch.Tensor:
                steps = torch.arange(shape.numel(), device=where).reshape(shape)
                return ((state + number + steps * 17) % PRIME).to(dtype)

            for number, tensor in enumerate(arguments[: len(updated)]):
                tensor.copy_(result(tensor.shape, tensor.dtype, number), non_blocking=True)
            out = keywords.get("out", ())
            for number, tensor in enumerate(out if isinstance(out, tuple) else (out,), 10):
                tensor.copy_(result(tensor.shape, tensor.dtype, number), non_blocking=True)
            made = []
            for number, name in enumerate(returned, 20):
                declared = kind[name].type
                shape = torch.Size(declared.shape if declared is not None else (SIZE,))
                value = result(shape, torch.float32 if declared is None else torch.int64, number)
                if kind[name].device == "cpu" and device != "cpu":
                    value = torch.empty(shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
                made.append(value)
            return made[0] if len(made) == 1 else tuple(made) if made else None

        return mix

    return operator
