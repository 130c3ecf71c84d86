"""Six real programs, as `sg.Graph`s whose operators are torch's: what they compute is noise, what they cost is not.

    inception    branches of convolutions as in Inception-v3, batch 1 (Szegedy et al., arXiv 1512.00567, figures 5 to 7)
    nasnet       normal cells of NASNet-A large, batch 1 (Zoph et al., arXiv 1707.07012, figure 4)
    offload      transformer blocks whose weights wait in host memory and come through a ring of two slots per matrix
    fsdp         layers gathered from four shards before use, forward and backward, gradients added back into shards
    cameras      uploads of four frames, preprocessing, one detector on the batch, download of the result
    wired        a randomly wired network of separable convolutions, batch 1 (Xie et al., arXiv 1904.01569), drawn from a fixed seed

`small` shrinks everything, to try the programs on a CPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import streamgraph as sg
from streamgraph.model import Program

T = torch.Tensor


def conv(x: T, w: T, stride: int, padding: tuple[int, int], groups: int) -> T:
    return F.conv2d(x, w, None, stride, padding, 1, groups)


def relu(x: T) -> T:
    return torch.relu(x)


def norm(x: T, mean: T, var: T) -> T:
    return F.batch_norm(x, mean, var)


def add(x: T, y: T) -> T:
    return x + y


def cat(parts: list[T]) -> T:
    return torch.cat(parts, 1)


def mean_pool(x: T, stride: int) -> T:
    return F.avg_pool2d(x, 3, stride, 1)


def max_pool(x: T) -> T:
    return F.max_pool2d(x, 3, 2, 1)


class _Net:
    """A graph under construction: every layer is a task of its own with a fresh name."""

    def __init__(self, name: str) -> None:
        self.graph = sg.Graph(name)
        self.count = 0
        self.stats: dict[int, tuple[Any, Any]] = {}

    def task(self, kind: str, run: Callable[..., Any], reads: Any, **const: Any) -> Any:
        self.count += 1
        return self.graph.task(f"{kind}{self.count}", run, reads=reads, writes=f"{kind}.out{self.count}", const=const)

    def weight(self, *shape: int, dtype: str = "f32") -> Any:
        self.count += 1
        return self.graph.input(f"w{self.count}", f"{dtype}[{', '.join(map(str, shape))}]")

    def conv(self, x: Any, inside: int, outside: int, height: int, width: int | None = None, stride: int = 1, groups: int = 1) -> Any:
        width = height if width is None else width
        w = self.weight(outside, inside // groups, height, width)
        return self.task("conv", conv, [x, w], stride=stride, padding=(height // 2, width // 2), groups=groups)

    def conv_relu(self, *arguments: Any, **more: Any) -> Any:
        return self.task("relu", relu, self.conv(*arguments, **more))

    def norm(self, x: Any, channels: int) -> Any:
        if channels not in self.stats:
            self.stats[channels] = tuple(self.graph.input(f"{kind}{channels}", f"f32[{channels}]") for kind in ("mean", "var"))  # type: ignore[assignment]
        return self.task("norm", norm, [x, *self.stats[channels]])


def inception(small: bool = False) -> sg.Graph:
    """Three blocks at 35 x 35, four at 17 x 17, two at 8 x 8, with reductions between them."""
    net, part = _Net("inception"), 8 if small else 1
    size = 9 if small else 35
    c = 288 // part
    x = net.graph.input("x", f"f32[1, {c}, {size}, {size}]")
    for _ in range(1 if small else 3):
        a = net.conv_relu(x, c, 64 // part, 1)
        b = net.conv_relu(net.conv_relu(x, c, 48 // part, 1), 48 // part, 64 // part, 5)
        d = net.conv_relu(x, c, 64 // part, 1)
        d = net.conv_relu(net.conv_relu(d, 64 // part, 96 // part, 3), 96 // part, 96 // part, 3)
        e = net.conv_relu(net.task("pool", mean_pool, x, stride=1), c, 64 // part, 1)
        x = net.task("cat", cat, [[a, b, d, e]])
    a = net.conv_relu(x, c, 480 // part, 3, stride=2)
    x = net.task("cat", cat, [[a, net.task("pool", max_pool, x)]])
    c, k = 768 // part, 160 // part
    for _ in range(1 if small else 4):
        a = net.conv_relu(x, c, 192 // part, 1)
        b = net.conv_relu(net.conv_relu(net.conv_relu(x, c, k, 1), k, k, 1, 7), k, 192 // part, 7, 1)
        d = net.conv_relu(x, c, k, 1)
        for height, width in ((7, 1), (1, 7), (7, 1)):
            d = net.conv_relu(d, k, k, height, width)
        d = net.conv_relu(d, k, 192 // part, 1, 7)
        e = net.conv_relu(net.task("pool", mean_pool, x, stride=1), c, 192 // part, 1)
        x = net.task("cat", cat, [[a, b, d, e]])
    a = net.conv_relu(x, c, 512 // part, 3, stride=2)
    x = net.task("cat", cat, [[a, net.task("pool", max_pool, x)]])
    c = 1280 // part
    for _ in range(1 if small else 2):
        a = net.conv_relu(x, c, 320 // part, 1)
        b = net.conv_relu(x, c, 384 // part, 1)
        b = [net.conv_relu(b, 384 // part, 384 // part, *kernel) for kernel in ((1, 3), (3, 1))]
        d = net.conv_relu(net.conv_relu(x, c, 448 // part, 1), 448 // part, 384 // part, 3)
        d = [net.conv_relu(d, 384 // part, 384 // part, *kernel) for kernel in ((1, 3), (3, 1))]
        e = net.conv_relu(net.task("pool", mean_pool, x, stride=1), c, 192 // part, 1)
        x = net.task("cat", cat, [[a, *b, *d, e]])
        c = 2048 // part
    net.graph.output(net.task("relu", relu, x), "y")
    return net.graph


def nasnet(small: bool = False) -> sg.Graph:
    """Two normal cells at each of three sizes."""
    net = _Net("nasnet")

    def separable(x: Any, f: int, k: int) -> Any:
        for _ in range(2):
            x = net.conv(net.task("relu", relu, x), f, f, k, groups=f)
            x = net.norm(net.conv(x, f, f, 1), f)
        return x

    def squeezed(x: Any, c: int, f: int) -> Any:
        return net.norm(net.conv(net.task("relu", relu, x), c, f, 1), f)

    size, f = (6, 8) if small else (42, 168)
    c = 6 * f
    before = x = net.graph.input("x", f"f32[1, {c}, {size}, {size}]")
    for _ in range(1 if small else 3):
        for _ in range(2):
            left, right = squeezed(before, c, f), squeezed(x, c, f)
            before = x
            parts = [
                net.task("add", add, [separable(right, f, 5), separable(left, f, 3)]),
                net.task("add", add, [separable(left, f, 5), separable(left, f, 3)]),
                net.task("add", add, [net.task("pool", mean_pool, right, stride=1), left]),
                net.task("add", add, [net.task("pool", mean_pool, left, stride=1), net.task("pool", mean_pool, left, stride=1)]),
                net.task("add", add, [separable(right, f, 3), right]),
            ]
            x = net.task("cat", cat, [[left, *parts]])
        before, x = (net.conv(net.task("pool", mean_pool, y, stride=2), c, 2 * c, 1) for y in (before, x))
        c, f = 2 * c, 2 * f
    net.graph.output(net.task("relu", relu, x), "y")
    return net.graph


def product(x: T, w: T) -> T:
    return x @ w


def layer_norm(x: T) -> T:
    return F.layer_norm(x, x.shape[-1:])


def attend(qkv: T, heads: int) -> T:
    batch, length, width = qkv.shape
    q, k, v = qkv.view(batch, length, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width // 3)


def gelu(x: T) -> T:
    return F.gelu(x)


def offload(small: bool = False) -> sg.Graph:
    """Six blocks of width 1536 on 12 x 1024 tokens in bf16; 57 MB of weights come over the link for each."""
    layers, d, batch, length = (2, 64, 1, 16) if small else (6, 1536, 12, 1024)
    graph = sg.Graph("offload")
    shapes = {"qkv": (d, 3 * d), "proj": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    h = graph.input("x", f"bf16[{batch}, {length}, {d}]")
    there: dict[str, Any] = {}
    here: dict[str, Any] = {}
    for name, (rows, columns) in shapes.items():
        kind = f"bf16[{rows}, {columns}]"
        there[name] = graph.input(f"host.{name}", kind, each={"layer": layers}, device="cpu", pinned=True)
        here[name] = graph.buffer(name, kind, each={"layer": layers}, slots=2, over="layer")
    for i in range(layers):
        for name in shapes:
            graph.copy(f"load.{name}@{i}", there[name][i], here[name][i])

        def step(kind: str, run: Callable[..., Any], reads: Any, i: int = i, **const: Any) -> Any:
            return graph.task(f"{kind}@{i}", run, reads=reads, writes=f"{kind}.out@{i}", const=const)

        a = step("ln1", layer_norm, h)
        a = step("attend", attend, step("mm.qkv", product, [a, here["qkv"][i]]), heads=d // 64)
        h = step("add1", add, [h, step("mm.proj", product, [a, here["proj"][i]])])
        m = step("gelu", gelu, step("mm.up", product, [step("ln2", layer_norm, h), here["up"][i]]))
        h = step("add2", add, [h, step("mm.down", product, [m, here["down"][i]])])
    graph.output(h, "y")
    return graph


def backward_x(g: T, w: T) -> T:
    return g @ w.t()


def backward_w(x: T, g: T) -> T:
    return x.t() @ g


def accumulate(shard: T, part: T) -> None:
    shard.add_(part)


def fsdp(small: bool = False) -> sg.Graph:
    """Six layers of 4096 x 4096 in bf16 on 4096 tokens, four shards each, gathered twice, gradients added to shards."""
    layers, d, tokens, shards = (2, 32, 16, 4) if small else (6, 4096, 4096, 4)
    rows = d // shards
    graph = sg.Graph("fsdp")
    shard = graph.input("shard", f"bf16[{rows}, {d}]", each={"layer": layers, "rank": shards})
    gradient = graph.buffer("gradient", f"bf16[{rows}, {d}]", each={"layer": layers, "rank": shards})
    whole = graph.buffer("whole", f"bf16[{d}, {d}]", each={"use": 2 * layers}, slots=2, over="use")
    h = graph.input("x", f"bf16[{tokens}, {d}]")

    def gather(use: int, layer: int) -> Any:
        for rank in range(shards):
            graph.copy(f"gather@{use}@{rank}", shard[layer][rank], whole[use][rank * rows : (rank + 1) * rows])
        return whole[use]

    inside = []
    for i in range(layers):
        inside.append(h)
        h = graph.task(f"forward@{i}", product, reads=[h, gather(i, i)], writes=f"h@{i}")
        h = graph.task(f"act@{i}", relu, reads=h, writes=f"a@{i}")
    g = h
    for i in reversed(range(layers)):
        w = gather(2 * layers - 1 - i, i)
        graph.value(f"gw@{i}", f"bf16[{d}, {d}]")
        gw = graph.task(f"backward.w@{i}", backward_w, reads=[inside[i], g], writes=f"gw@{i}")
        g = graph.task(f"backward.x@{i}", backward_x, reads=[g, w], writes=f"g@{i}")
        for rank in range(shards):
            graph.task(f"reduce@{i}@{rank}", accumulate, updates=gradient[i][rank], reads=gw[rank * rows : (rank + 1) * rows])
    graph.output(g, "y")
    return graph


def to_half(frame: T) -> T:
    return frame.permute(2, 0, 1).unsqueeze(0).to(torch.float16, memory_format=torch.contiguous_format)


def resize(x: T, size: int) -> T:
    return F.interpolate(x, (size, size), mode="bilinear")


def scale(x: T) -> T:
    return (x - 114.0) / 58.0


def stack(images: list[T]) -> T:
    return torch.cat(images)


def best(scores: T, count: int) -> T:
    return scores.flatten(1).topk(count).values


def cameras(small: bool = False) -> sg.Graph:
    """Four frames of 1920 x 1080, a detector of nine convolutions on 640 x 640, three heads."""
    count, height, width, size, c = (2, 40, 60, 32, 8) if small else (4, 1080, 1920, 640, 32)
    net = _Net("cameras")
    graph = net.graph
    packet = graph.input("packet", f"u8[{height}, {width}, 3]", each={"cam": count}, device="cpu", pinned=True)
    frame = graph.buffer("frame", f"u8[{height}, {width}, 3]", each={"cam": count})
    images = []
    for i in range(count):
        graph.copy(f"upload@{i}", packet[i], frame[i])
        x = graph.task(f"half@{i}", to_half, reads=frame[i], writes=f"half.out@{i}")
        x = graph.task(f"resize@{i}", resize, reads=x, writes=f"resize.out@{i}", const={"size": size})
        images.append(graph.task(f"scale@{i}", scale, reads=x, writes=f"scale.out@{i}"))
    x = graph.task("stack", stack, reads=[images], writes="batch")

    def layer(x: Any, inside: int, outside: int, stride: int = 1) -> Any:
        w = net.weight(outside, inside, 3, 3, dtype="f16")
        return net.task("relu", relu, net.task("conv", conv, [x, w], stride=stride, padding=(1, 1), groups=1))

    inside = 3
    heads = []
    for level in range(4):
        x = layer(layer(x, inside, c, 2), c, c)
        inside, c = c, 2 * c
        if level:
            scores = layer(x, inside, 16)
            heads.append(net.task("best", best, scores, count=64))
    graph.value("result", device="cpu", pinned=True)
    graph.copy("download", net.task("cat", cat, [heads]), "result")
    graph.output("result")
    return graph


def wired(small: bool = False) -> sg.Graph:
    """Forty nodes at 28 x 28 with 128 channels, each fed by one to three of the eight nodes before it."""
    net, draw = _Net("wired"), random.Random(1)
    nodes, size, c = (8, 6, 8) if small else (40, 28, 128)
    made = [net.graph.input("image", f"f32[1, {c}, {size}, {size}]")]
    unused: list[Any] = []
    for _ in range(nodes):
        sources = draw.sample(made[-8:], min(len(made[-8:]), draw.randint(1, 3)))
        unused = [node for node in unused if all(node is not source for source in sources)]
        x = sources[0]
        for other in sources[1:]:
            x = net.task("add", add, [x, other])
        x = net.conv(net.task("relu", relu, x), c, c, 3, groups=c)
        made.append(net.norm(net.conv(x, c, c, 1), c))
        unused.append(made[-1])
    net.graph.output(net.task("cat", cat, [unused]), "y")
    return net.graph


SHAPES: dict[str, Callable[[bool], sg.Graph]] = {
    "inception": inception, "nasnet": nasnet, "offload": offload, "fsdp": fsdp, "cameras": cameras, "wired": wired,
}  # fmt: skip
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "u8": torch.uint8}


def inputs_of(program: Program, location: torch.device, seed: int = 0) -> dict[str, T]:
    """Random tensors for every input, small enough that nothing overflows."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, T] = {}
    for tensor in program.inputs:
        assert tensor.type is not None
        shape, dtype = tensor.type.shape, DTYPES[tensor.type.dtype]
        if dtype is torch.uint8:
            value = torch.randint(0, 256, shape, generator=generator, dtype=dtype)
        elif tensor.name.startswith("var"):
            value = torch.ones(shape, dtype=dtype)
        else:
            value = (torch.randn(shape, generator=generator) * 0.03).to(dtype)
        on_host = tensor.device == "cpu"
        found[tensor.name] = value.pin_memory() if on_host and location.type == "cuda" else value if on_host else value.to(location)
    return found
