"""Looping: a runner and an iterable of items become results, in order, while later items are under way.

What a plain loop would do, `for item in items: yield runner(item)`, without the drain between two calls. The executor's buffers are the
loop's buffers, so that state goes on from call to loop and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamgraph.binding import bind
from streamgraph.errors import BindingError, Problem, RunnerError
from streamgraph.model import Program
from streamgraph.plan_loop import plan_loop
from streamgraph.schedule import Schedule

if TYPE_CHECKING:
    import torch

    from streamgraph.executors import Executor
    from streamgraph.executors.lanes_pipeline import LanesPipeline
    from streamgraph.executors.pipeline import Pipeline
    from streamgraph.operators import Operators


def tensors_of(program: Program, item: object, names: Sequence[str], number: int) -> Mapping[str, Any]:
    """An item as a mapping by input name: a mapping as it is, a tuple or list in the order of the unbound inputs, else the only one.

    Raises:
        BindingError: SG502, it has another number of tensors.
    """
    if isinstance(item, Mapping):
        return item
    values = tuple(item) if isinstance(item, tuple | list) else (item,)
    if len(values) != len(names):
        takes = ", ".join(names) or "nothing: all inputs are bound"
        message = f"item {number} has {len(values)} tensors, and each item binds {len(names)} ({takes})"
        raise BindingError(Problem("SG502", message, None, "yield a mapping from input names to tensors, or a tuple in that order"))
    return dict(zip(names, values, strict=True))


def bound_items(
    program: Program, items: Iterable[object], names: Sequence[str], bound: Mapping[str, torch.Tensor], location: torch.device,
    written: tuple[str, ...],
) -> Iterator[dict[str, torch.Tensor]]:  # fmt: skip
    """The tensors of each item, checked. Items are pulled one at a time, when the loop asks for one.

    Raises:
        BindingError: what is wrong with an item, by its number.
    """
    for number, item in enumerate(items):
        given = tensors_of(program, item, names, number)
        try:
            tensors = bind(program, given, location, bound=bound, written=written)
        except BindingError as error:
            told = [Problem(p.code, f"item {number}: {p.message}", p.location, p.help, p.related) for p in error.problems]
            raise BindingError(*told) from None
        again = [name for name in given if name in bound]
        if again:
            message = f"item {number} brings '{again[0]}', which is bound for good"
            raise BindingError(Problem("SG502", message, None, "bind it in `compile` or in every item, not in both"))
        yield {name: tensors[name] for name in names}


class Looper:
    """The loops of one runner: planned and made ready once for each `inflight`, with the memory of the runner's executor."""

    def __init__(
        self, schedule: Schedule, executor: Executor, ops: Operators | None, location: torch.device, written: tuple[str, ...]
    ) -> None:
        self.schedule, self.executor, self.ops, self.location, self.written = schedule, executor, ops, location, written
        self._made: dict[tuple[frozenset[str], int | None], Pipeline | LanesPipeline] = {}

    def pipeline(self, per_item: frozenset[str], inflight: int | None) -> Pipeline | LanesPipeline | None:
        """What runs the loop; None for the sequential executor, which has no overlap to offer.

        Raises:
            SpecError: SG105, `inflight` is no whole number from 1.
            RunnerError: SG615, the executor has no loops.
        """
        from streamgraph.executors.annotate import as_asked
        from streamgraph.executors.compiled import CompiledExecutor
        from streamgraph.executors.device import HostDevice
        from streamgraph.executors.lanes import LanesExecutor
        from streamgraph.executors.lanes_pipeline import LanesPipeline
        from streamgraph.executors.pipeline import Pipeline
        from streamgraph.executors.sequential import SequentialExecutor
        from streamgraph.operators import resolve

        key = (per_item, inflight)
        if key in self._made:
            return self._made[key]
        program = self.schedule.program
        device = getattr(self.executor, "device", None)
        if self.schedule.has_devices and not isinstance(device, HostDevice) and not isinstance(self.executor, SequentialExecutor):
            message = f"'{program.name}' lies on {' and '.join(program.devices)}, and a loop is issued to one device"
            raise RunnerError(Problem("SG615", message, None, "call the runner in a plain loop, or write the items out in one program"))
        loop = plan_loop(program, per_item, inflight=inflight, **planner_options(self.schedule))
        if isinstance(self.executor, SequentialExecutor):
            return None
        if not isinstance(self.executor, LanesExecutor | CompiledExecutor):
            message = f"the executor of the runner of '{program.name}' has no loops"
            remedy = "compile with executor='eager' or 'lanes', or call the runner in a plain loop"
            raise RunnerError(Problem("SG615", message, None, remedy))
        operators = as_asked(resolve(program, self.ops, str(self.location), self.schedule.accesses), self.location)
        made: Pipeline | LanesPipeline
        if isinstance(self.executor, LanesExecutor) and isinstance(self.executor.device, HostDevice):
            made = LanesPipeline(loop, operators, self.executor.memory)
        else:
            calls = self.executor.lanes.streams if isinstance(self.executor, LanesExecutor) else self.executor.streams
            made = Pipeline(loop, operators, self.executor.device, self.executor.memory, calls)
        self._made[key] = made
        return made

    def results(
        self, pipeline: Pipeline | LanesPipeline | None, items: Iterable[object], bound: Mapping[str, torch.Tensor], names: Sequence[str]
    ) -> Iterator[Mapping[str, torch.Tensor]]:
        """The outputs of each item, in order."""
        program = self.schedule.program
        tensors = bound_items(program, items, names, bound, self.location, self.written)
        if pipeline is not None:
            yield from pipeline.run(tensors, bound)
        else:
            for item in tensors:
                yield self.executor.run({**bound, **item}).outputs

    def close(self) -> None:
        """Drop the memory of all loops. None may be under way."""
        for pipeline in self._made.values():
            pipeline.close()
        self._made.clear()


def planner_options(schedule: Schedule) -> dict[str, Any]:
    """The planner's options of a schedule, for its loop."""
    options: dict[str, Any] = {key: value for key, value in schedule.options if key in ("streams", "order")}
    if options.get("streams", "auto") != "auto":
        options["streams"] = int(options["streams"])
    return options
