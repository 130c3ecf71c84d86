"""Graph items: the caller's tensors on one side, the memory that graphs have on the other.

Device items are copied in, on the caller's stream; items in host memory are read where they lie, by launches that no graph holds. Results
are copied out, since the next iteration in the same memory writes them again; all but those that a host task makes anew each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from streamgraph.calls import type_text
from streamgraph.errors import BindingError, Problem
from streamgraph.executors.device import Stream
from streamgraph.executors.memory import Cells
from streamgraph.executors.phases import Phase
from streamgraph.executors.pipeline import Outputs

if TYPE_CHECKING:
    from streamgraph.executors.graph_pipeline import GraphPipeline

Item = Mapping[str, torch.Tensor]


class GraphItems:
    """Items and results of one loop under way. `main` is the caller's stream."""

    def __init__(self, pipeline: GraphPipeline, main: Stream) -> None:
        self.pipeline, self.main = pipeline, main
        self._fresh: dict[str, torch.Tensor] = {}  # memory for the results that are due next

    def check(self, phase: Phase | None, item: Item, iteration: int) -> None:
        """Compare with what a phase has been captured with.

        Raises:
            BindingError: SG613, an item of another shape or type.
        """
        for number, name in self.pipeline.inputs:
            held = phase.cells[number] if phase is not None else None
            if held is not None and (held.shape, held.dtype) != (item[name].shape, item[name].dtype):
                found, wanted = type_text(item[name]), type_text(held)
                message = f"item {iteration}: input '{name}' is {found}, but the CUDA graph was captured with {wanted}"
                raise BindingError(Problem("SG613", message, None, "compile a second runner for other shapes"))

    def places(self, item: Item) -> dict[str, torch.Tensor]:
        """Memory for the item's device tensors in a new phase."""
        self.pipeline.device.set_stream(self.main)
        with torch.inference_mode(False):
            return {name: torch.empty_like(tensor) for name, tensor in item.items() if name in self.pipeline.on_device}

    def bring(self, phase: Phase, item: Item) -> None:
        """Put in the item's host tensors."""
        for number, name in self.pipeline.inputs:
            if name not in self.pipeline.on_device:
                phase.cells[number] = item[name]

    def copy_in(self, phase: Phase, item: Item) -> None:
        """Copy the item's device tensors, on the current stream."""
        for number, name in self.pipeline.inputs:
            if name in self.pipeline.on_device:
                target = phase.cells[number]
                assert target is not None
                self.pipeline.captures.copy(target, item[name])

    def get_memory(self, phase: Phase) -> None:
        """Memory for the results in host memory that are due next, got while the device is at work."""
        pipeline = self.pipeline
        for name, number in pipeline.host_outputs:
            tensor = phase.cells[number]
            assert tensor is not None
            self._fresh[name] = pipeline.result_memory.like(name, tensor)

    def copy_out(self, cells: Cells) -> Outputs:
        """The outputs, copied on the current stream."""
        pipeline = self.pipeline
        accesses, tasks = pipeline.memory.accesses, pipeline.loop.program.tasks
        outputs: Outputs = {}
        for name, number in accesses.outputs:
            tensor, storage = cells[number], accesses.storages[number]
            assert tensor is not None, f"bug in streamgraph: output '{name}' was not made, or was released"
            if not storage.host:
                outputs[name] = pipeline.captures.clone(tensor)
            elif storage.producer is not None and tasks[storage.producer].host:
                outputs[name] = tensor
            else:
                fresh = self._fresh.pop(name, None)
                outputs[name] = (pipeline.result_memory.like(name, tensor) if fresh is None else fresh).copy_(tensor)
        return outputs

    def copy_back(self, cells: Cells, item: Item) -> None:
        """Copy what tasks change of an item to where the caller has it, on the current stream."""
        for number, name in self.pipeline.changed:
            source = cells[number]
            assert source is not None
            self.pipeline.captures.copy(item[name], source)
