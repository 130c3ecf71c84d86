"""Schedules to draw: a camera pipeline, a weight prefetch, a pipeline with host tasks, and one whose every name is hostile."""

from __future__ import annotations

from streamgraph.builder import Graph
from streamgraph.model import Program, Task
from streamgraph.plan import plan
from streamgraph.schedule import Lane, Launch, Reason, Record, Schedule, Step, Wait

HOSTILE = (
    "</script><script>hacked=1</script>", '"];evil[label="', "\"quoted\" 'single'", "end", "a`b`#35;&amp;<b>", "日本語@0", "\\", "\\N",
    "x\ny\u202eevil", "--> n1", "%% comment", "", "`**bold**`", "subgraph", '"]; click n0 href "javascript:alert(1)"', "\ufffe\ud800\x00",
    "#quot;", "]]>", "<!--", "${x}", "x" * 500,
)  # fmt: skip


def cameras(count: int = 4) -> Schedule:
    graph = Graph("cameras")
    graph.stream("copy", priority="high")
    packet = graph.input("packet", "u8[3, 1080, 1920]", each={"cam": count}, device="cpu", pinned=True)
    frame = graph.buffer("frame", "u8[3, 1080, 1920]", each={"cam": count})
    batch = graph.buffer("batch", f"f16[{count}, 3, 640, 640]")
    graph.value("result", device="cpu", pinned=True)
    for cam in range(count):
        graph.copy(f"upload@{cam}", packet[cam], frame[cam], stream="copy")
    images = [graph.task(f"preprocess@{cam}", "prep", reads=frame[cam], writes=f"image@{cam}", cost=180.0) for cam in range(count)]
    graph.task("stack", "stack_into", reads=[images], writes=batch)
    graph.task("detect", "aten.conv2d", reads=batch, writes="features", cost=420.0)
    graph.copy("download", "features", "result")
    graph.output("result")
    return plan(graph)


def prefetch(layers: int = 6) -> Schedule:
    graph = Graph("prefetch")
    h = graph.input("x", "f32[64, 1024]")
    host = graph.input("host", "f32[1024, 1024]", each={"layer": layers}, device="cpu", pinned=True)
    w = graph.buffer("w", "f32[1024, 1024]", each={"layer": layers}, slots=2, over="layer")
    for layer in range(layers):
        graph.copy(f"load@{layer}", host[layer], w[layer], stream="copy")
        h = graph.task(f"mm@{layer}", "torch.mm", reads=[h, w[layer]], writes="h", cost=120.0)
    graph.output(h)
    return plan(graph)


def host_tasks() -> Schedule:
    graph = Graph("host tasks")
    staging = graph.buffer("staging", "f32[1024, 1024]", device="cpu", pinned=True)
    weights = graph.buffer("weights", "f32[1024, 1024]")
    graph.value("result", "f32[1024, 1024]", device="cpu", pinned=True)
    graph.task("fill", "read_file", writes=staging, host=True, cost=150.0)
    graph.copy("load", staging, weights, stream="copy")
    graph.task("net", "net", reads=weights, writes="y", cost=300.0)
    graph.copy("download", "y", "result", stream="copy")
    graph.task("log", "log_it", reads="result", writes="line", host=True, cost=90.0)
    graph.output("result")
    return plan(graph)


def hostile() -> Schedule:
    """Names that the rules for names would refuse, in every place that holds a name, each task waiting for the one before."""
    lanes = ("main", 's"1', "</g>")
    steps: list[Step] = [Record("e0", "main", "entry")]
    for number, name in enumerate(HOSTILE):
        lane = lanes[number % 3]
        reason = Reason("RAW", HOSTILE[number * 5 % len(HOSTILE)], HOSTILE[number - 1], name, '<a href="x">:1')
        steps += [Wait(f"e{number}", lane, (reason,)), Launch(name, lane), Record(f"e{number + 1}", lane, name)]
    tasks = tuple(Task(name, name, note=name) for name in HOSTILE)
    return Schedule(Program("</svg><script>hacked=1</script>", tasks=tasks), tuple(Lane(lane) for lane in lanes), tuple(steps))
