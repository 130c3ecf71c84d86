"""Executors: siblings that run a Schedule. Each interprets its steps and nothing else.

    sequential   the reference: one task after another in declaration order, on the current stream
    lanes        one host thread per lane, each with its own stream on a GPU (the CPU's default); `board` orders the threads
    eager        one thread issues all steps to CUDA streams, with every check
    compiled     eager in the first run, then one generated function (the GPU's default): `generate` writes it, `direct` has its calls
    graph        eager in the first run, then a CUDA graph: `capture` records the steps
    split        the same for schedules with host tasks: `parts` says what becomes a graph, `phases` captures and launches them

Loops have executors of their own: `pipeline` (one thread), `lanes_pipeline` (a thread per lane), `graph_pipeline` (graphs, by `phases`;
`graph_run` is one loop under way, `graph_threads` its threads).

`watched` makes those that call tasks one by one with operators that somebody looks at: `stopwatch` times them, `annotate` names them.

`Executor` is their interface, `choose` picks one. `launch` calls one task, `memory` holds what outlives a run, `left_over` winds it up.
`device` is what they know of a GPU; of what runs a schedule it, `direct` and `external` (streams beyond PyTorch's pool) alone touch
`torch.cuda`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run gives back: its outputs by name, and a call that blocks the host until the bound host inputs may be rewritten."""

    outputs: Mapping[str, torch.Tensor]
    inputs_free: Callable[[], None]


class Executor(Protocol):
    """Runs one program, again and again, one run at a time."""

    def run(self, inputs: Mapping[str, torch.Tensor]) -> Finished:
        """Run all tasks on these inputs. Returns when everything is issued, and host outputs are there.

        Raises:
            TaskError: a task raised, or returned what it may not. Nothing is running any more, and the executor can run again.
        """
        ...

    def runs_on(self, thread: int) -> bool:
        """Whether that thread, by its ident, is one that the executor made for its tasks."""
        ...

    def close(self) -> None:
        """Drop all memory, in the order that the streams demand, and end all threads. Closing twice is closing once."""
        ...
