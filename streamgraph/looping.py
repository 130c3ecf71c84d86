"""Looping: a runner and an iterable of items become results, in order, while later items are under way.

What a plain loop would do, `for item in items: yield runner(item)`, without the drain between two calls. The executor's buffers are the
loop's buffers, so that state goes on from call to loop and back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamgraph.errors import BindingError, Problem, RunnerError, TaskError
from streamgraph.model import Program
from streamgraph.plan_loop import check_inflight, plan_loop
from streamgraph.rebind import Binder
from streamgraph.schedule import Schedule
from streamgraph.sharing import share_bytes

if TYPE_CHECKING:
    import torch

    from streamgraph.executors import Executor
    from streamgraph.executors.graph_pipeline import GraphPipeline
    from streamgraph.executors.lanes_pipeline import LanesPipeline
    from streamgraph.executors.pipeline import Pipeline
    from streamgraph.operators import Operators


def tensors_of(program: Program, item: object, names: Sequence[str], number: int) -> Mapping[str, Any]:
    """An item as a mapping by input name: a mapping as it is, a tuple or list in the order of the unbound inputs, else the only one.

    Raises:
        BindingError: SG502, it has another number of tensors.
    """
    if type(item) is dict or isinstance(item, Mapping):  # asking for a Mapping costs more than all the rest
        return item
    values = tuple(item) if isinstance(item, tuple | list) else (item,)
    if len(values) != len(names):
        takes = ", ".join(names) or "nothing: all inputs are bound"
        tensors = all(hasattr(value, "untyped_storage") for value in values)
        found = f"has {len(values)} tensor{'s' * (len(values) != 1)}" if tensors else f"is a {type(item).__name__}"
        message = f"item {number} {found}, and each item binds {len(names)} ({takes})"
        raise BindingError(Problem("SG502", message, None, "yield a mapping from input names to tensors, or a tuple in that order"))
    return dict(zip(names, values, strict=True))


def bound_items(
    program: Program, items: Iterable[object], names: Sequence[str], bound: Mapping[str, torch.Tensor], location: torch.device,
    written: tuple[str, ...],
) -> Iterator[dict[str, torch.Tensor]]:  # fmt: skip
    """The tensors of each item with the bound ones, checked. Items are pulled one at a time, when the loop asks for one.

    Raises:
        BindingError: what is wrong with an item, by its number.
    """
    binder, ours = Binder(program, bound, location, written), bound.keys()
    for number, item in enumerate(items):
        given = tensors_of(program, item, names, number)
        try:
            tensors = binder(given)
        except BindingError as error:
            told = [Problem(p.code, f"item {number}: {p.message}", p.location, p.help, p.related) for p in error.problems]
            raise BindingError(*told) from None
        if ours and not ours.isdisjoint(given):
            again = next(name for name in given if name in bound)
            message = f"item {number} brings '{again}', which is bound for good"
            raise BindingError(Problem("SG502", message, None, "bind it in `compile` or in every item, not in both"))
        yield tensors


def apart(
    program: Program, items: Iterator[dict[str, torch.Tensor]], names: Sequence[str], written: Sequence[str], inflight: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The items, each looked at beside those before it that may still be under way: what a task changes in place is memory of one item.

    Raises:
        BindingError: SG504, naming both items.
    """
    recent: deque[dict[str, torch.Tensor]] = deque(maxlen=inflight + 1)
    for number, tensors in enumerate(items):
        for back, earlier in enumerate(reversed(recent), 1):
            for name in written:
                if program.tensor_named[name].device == "cpu" and back >= inflight:
                    continue  # nothing reads or changes host tensors of that item any more
                for other in names:
                    shared = share_bytes(earlier[name], tensors[other])
                    if shared or share_bytes(tensors[name], earlier[other]):
                        one, two = (number - back, number) if shared else (number, number - back)
                        message = f"input '{name}' of item {one}, which a task changes in place, shares memory with '{other}' of item {two}"
                        remedy = "give each item tensors of its own, bind what they share in `compile`, or map with inflight=1"
                        raise BindingError(Problem("SG504", message, program.tensor_named[name].location, remedy))
        recent.append({name: tensors[name] for name in names})
        yield tensors


def until_raised(items: Iterator[dict[str, torch.Tensor]], raised: list[Exception]) -> Iterator[dict[str, torch.Tensor]]:
    """The items up to an error of their source, which goes into `raised`: a plain loop would give the results before it first."""
    try:
        yield from items
    except Exception as error:
        raised.append(error)


class Looper:
    """The loops of one runner: planned and made ready once for each `inflight`, with the memory of the runner's executor."""

    def __init__(
        self, schedule: Schedule, executor: Executor, ops: Operators | None, location: torch.device, written: tuple[str, ...]
    ) -> None:
        self.schedule, self.executor, self.ops, self.location, self.written = schedule, executor, ops, location, written
        self._made: dict[tuple[frozenset[str], int | None], Pipeline | LanesPipeline | GraphPipeline] = {}

    def pipeline(self, per_item: frozenset[str], inflight: int | None) -> Pipeline | LanesPipeline | GraphPipeline | None:
        """What runs the loop; None where it is a plain loop of calls: for `inflight=1`, and for the sequential executor.

        Raises:
            SpecError: SG105, `inflight` is no whole number from 1.
            RunnerError: SG615, the executor has no loops, or the loop repeats too late to be captured.
        """
        from streamgraph.executors.annotate import as_asked
        from streamgraph.executors.compiled import CompiledExecutor
        from streamgraph.executors.device import HostDevice
        from streamgraph.executors.graph import GraphExecutor
        from streamgraph.executors.graph_pipeline import GraphPipeline
        from streamgraph.executors.lanes import LanesExecutor
        from streamgraph.executors.lanes_pipeline import LanesPipeline
        from streamgraph.executors.pipeline import Pipeline
        from streamgraph.executors.sequential import SequentialExecutor
        from streamgraph.operators import resolve

        if inflight is not None:
            check_inflight(inflight)
            if inflight == 1:
                return None
        key = (per_item, inflight)
        if key in self._made:
            return self._made[key]
        program, executor = self.schedule.program, self.executor
        lanes = isinstance(executor, LanesExecutor)
        apart: dict[str, Any] = {}
        if isinstance(executor, GraphExecutor):
            # Lanes that are captured are never the caller's.
            apart = {"apart": "thread" if any(task.host for task in program.tasks) else False, "copied": True}
        elif isinstance(executor, LanesExecutor) and not isinstance(executor.device, HostDevice):
            apart = {"apart": True}  # a thread that issues to the caller's own stream would do so while the caller does
        loop = plan_loop(program, per_item, inflight=inflight, **apart, **planner_options(self.schedule))
        if isinstance(executor, SequentialExecutor):
            return None
        if not isinstance(executor, LanesExecutor | CompiledExecutor | GraphExecutor):
            message = f"the executor of the runner of '{program.name}' has no loops"
            remedy = "compile with executor='eager' or 'lanes', or call the runner in a plain loop"
            raise RunnerError(Problem("SG615", message, None, remedy))
        operators = as_asked(resolve(program, self.ops, str(self.location), self.schedule.accesses), self.location)
        made: Pipeline | LanesPipeline | GraphPipeline
        calls = executor.lanes.streams if isinstance(executor, LanesExecutor) else executor.streams
        if isinstance(executor, GraphExecutor):
            made = GraphPipeline(loop, operators, executor.device, executor.memory, executor.bound, calls)
        elif lanes or any(task.host for task in program.tasks):
            made = LanesPipeline(loop, operators, executor.memory, device=executor.device, calls=calls, one_issuer=not lanes)
        else:
            made = Pipeline(loop, operators, executor.device, executor.memory, calls)
        self._made[key] = made
        return made

    def results(
        self, pipeline: Pipeline | LanesPipeline | GraphPipeline | None, items: Iterable[object], bound: Mapping[str, torch.Tensor],
        names: Sequence[str],
    ) -> Iterator[Mapping[str, torch.Tensor]]:  # fmt: skip
        """The outputs of each item, in order."""
        program = self.schedule.program
        tensors = bound_items(program, items, names, bound, self.location, self.written)
        if pipeline is None:
            yield from self._one_by_one(tensors)
            return
        written = [name for name in names if name in self.written]
        if written:
            tensors = apart(program, tensors, names, written, pipeline.loop.inflight)
        raised: list[Exception] = []
        yield from pipeline.run(until_raised(tensors, raised), bound)
        if raised:
            raise raised.pop()

    def _one_by_one(self, items: Iterator[dict[str, torch.Tensor]]) -> Iterator[Mapping[str, torch.Tensor]]:
        """The outputs of a call for each item, which is pulled when the host tensors of the one before are free again."""
        from streamgraph.executors.launch import in_item

        for number, item in enumerate(items):
            try:
                finished = self.executor.run(item)
            except TaskError as error:
                raise in_item(error, number) from error.__cause__
            try:
                yield finished.outputs
            finally:
                finished.inputs_free()

    @property
    def source(self) -> str:
        """The text of the functions that issue the iterations of the loops made so far."""
        found = [(made.loop.inflight, getattr(made, "source", "")) for made in self._made.values()]
        return "".join(f"\n# loop, inflight={inflight}\n{text}" for inflight, text in found if text)

    def runs_on(self, thread: int) -> bool:
        """Whether that thread, by its ident, is one that a loop made for its tasks."""
        from streamgraph.executors.pipeline import Pipeline

        return any(made.runs_on(thread) for made in self._made.values() if not isinstance(made, Pipeline))

    def close(self) -> None:
        """Drop the streams of all loops. None may be under way."""
        for pipeline in self._made.values():
            pipeline.close()
        self._made.clear()


def planner_options(schedule: Schedule) -> dict[str, Any]:
    """The planner's options of a schedule, for its loop, whose releases are its own. Measured costs are not in a schedule."""
    options: dict[str, Any] = {key: value for key, value in schedule.options if key in ("streams", "order", "policy", "issue")}
    if options.get("streams", "auto") != "auto":
        options["streams"] = int(options["streams"])
    return options
