"""Prefetch: layers whose weights live in host memory become a runner that streams them through a few slots, one layer ahead.

The pattern that people write with two buffers, a copy stream and events, and get wrong in the wait that keeps a slot from being overwritten
(https://github.com/huggingface/diffusers/issues/13502). Here it is a program with a ring: nothing is special about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from streamgraph.builder import Graph
from streamgraph.errors import Problem, SpecError
from streamgraph.model import LONG_NAMES
from streamgraph.run import compile
from streamgraph.runner import Runner

if TYPE_CHECKING:
    import torch

    Layers = Sequence[torch.nn.Module] | torch.nn.Sequential | torch.nn.ModuleList | Sequence[torch.Tensor]

ALIGNMENT = 256  # bytes; what CUDA's allocator guarantees, so that every dtype and vector load fits


def prefetch(
    layers: Layers, slots: int = 2, *, function: Callable[[Any, Any], Any] | None = None, device: str = "auto", **options: Any
) -> Runner:
    """A runner `runner(x=x)["h"]` that applies the layers one after another, each one's weights on the device only while it runs.

    Device memory for weights is `slots` times the largest layer, whatever the number of layers. While layer i computes, the weights of the
    next `slots - 1` layers arrive.

    Args:
        layers: modules in evaluation mode (an `nn.Sequential`, an `nn.ModuleList`, a list), applied as `x = layer(x)`; their parameters and
            buffers are moved into pinned host memory, where they can still be read and changed. Or tensors in host memory, with `function`.
        slots: how many layers' weights the device holds at once; 2 is double buffering.
        function: for tensors, what a layer does: `function(x, weight)` returns the next `x`.
        device, options: as for `compile`.

    Raises:
        SpecError: SG103, no layers, or of different kinds; SG105, fewer than one slot.
    """
    import torch

    made = list(layers) if isinstance(layers, Iterable) else []
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise SpecError(Problem("SG105", f"slots is {slots!r}", None, "slots must be a whole number from 1; 2 is double buffering"))
    if made and all(isinstance(layer, torch.nn.Module) for layer in made) and function is None:
        packed = [_Packed(layer, number) for number, layer in enumerate(made) if isinstance(layer, torch.nn.Module)]
        size = max(layer.bytes for layer in packed)
        weights = [layer.pack(size) for layer in packed]
        steps: list[Callable[..., Any]] = [layer.apply for layer in packed]
    elif made and all(isinstance(layer, torch.Tensor) for layer in made) and function is not None:
        weights = [_pinned(layer) for layer in made if isinstance(layer, torch.Tensor)]
        steps = [function] * len(weights)
    else:
        message = "prefetch takes modules, or tensors together with `function`"
        raise SpecError(Problem("SG103", message, None, "pass a non-empty list of nn.Modules, or of tensors with function=..."))
    return compile(_graph(weights, steps, min(slots, len(steps))), {"weights": weights}, device=device, **options)


def _graph(weights: Sequence[torch.Tensor], steps: Sequence[Callable[..., Any]], slots: int) -> Graph:
    graph = Graph("prefetch")
    h = graph.input("x", note="what goes into the first layer")
    types = {f"{LONG_NAMES[str(weight.dtype).removeprefix('torch.')]}[{', '.join(map(str, weight.shape))}]" for weight in weights}
    if len(types) > 1:
        remedy = "give tensors of one dtype and shape; modules may differ"
        raise SpecError(Problem("SG503", f"the weights have different types: {', '.join(sorted(types))}", None, remedy))
    (kind,) = types
    host = graph.input("weights", kind, each={"layer": len(steps)}, device="cpu", pinned=True)
    ring = graph.buffer("slot", kind, each={"layer": len(steps)}, slots=slots, over="layer", init="empty")
    graph.stream("copy", priority="high")
    for number, step in enumerate(steps):
        graph.copy(f"load@{number}", host[number], ring[number], stream="copy")
        h = graph.task(f"layer@{number}", step, reads=[h, ring[number]], writes="h", stream="main")
    graph.output(h)
    return graph


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.pin_memory() if torch.cuda.is_available() and not tensor.is_pinned() else tensor


class _Packed:
    """A module whose parameters and buffers lie one behind another in one piece of host memory."""

    def __init__(self, module: torch.nn.Module, number: int) -> None:
        if module.training and any(True for _ in module.buffers()):
            message = f"layer {number} is in training mode and has buffers, whose changes would be lost with its slot"
            raise SpecError(Problem("SG212", message, None, "call `.eval()` on the layers first"))
        self.module, self.number = module, number
        self.places: list[tuple[str, int, torch.Tensor]] = []
        self.bytes = 0
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            self.places.append((name, self.bytes, tensor))
            self.bytes += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT

    def pack(self, size: int) -> torch.Tensor:
        """The layer's bytes, `size` of them, pinned where there is a GPU; the module's own tensors become views of them."""
        import torch

        flat = torch.zeros(max(size, 1), dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        for (_, _, tensor), view in zip(self.places, self._views(flat), strict=True):
            view.copy_(tensor.data)
            tensor.data = view
        return flat

    def apply(self, x: Any, flat: torch.Tensor) -> Any:
        """The layer with the weights that lie in `flat`."""
        import torch

        held = {name: view for (name, _, _), view in zip(self.places, self._views(flat), strict=True)}
        result = torch.func.functional_call(self.module, held, (x,))
        if not isinstance(result, torch.Tensor):
            what = f"layer {self.number} ({type(self.module).__name__}) returned a {type(result).__name__}"
            raise TypeError(f"{what}: a layer takes one tensor and returns one; wrap it in a module that does")
        # An identity in evaluation mode gives back what it got; a value has memory of its own.
        same = result.untyped_storage().data_ptr() in (x.untyped_storage().data_ptr(), flat.untyped_storage().data_ptr())
        return result.clone() if same else result

    def _views(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        for _, start, tensor in self.places:
            yield flat[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
