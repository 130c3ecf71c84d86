"""Runner: a Schedule and tensors become results, many times.

It binds inputs, allows one run at a time, and hands out results. How steps are executed is the executor's business.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from streamgraph.binding import Given, bind, by_name, written_in_place
from streamgraph.cost import Measured
from streamgraph.errors import DeviceError, Problem, RunnerError, quoted
from streamgraph.looping import Looper
from streamgraph.machine import AnyMachine
from streamgraph.plan import Issue, issue_of
from streamgraph.rebind import Binder
from streamgraph.result import Result
from streamgraph.schedule import Schedule

if TYPE_CHECKING:
    from streamgraph.executors import Executor
    from streamgraph.executors.device import Device
    from streamgraph.executors.graph_pipeline import GraphPipeline
    from streamgraph.executors.lanes_pipeline import LanesPipeline
    from streamgraph.executors.pipeline import Pipeline
    from streamgraph.operators import Operators
    from streamgraph.timeline import Timeline

ExecutorName: TypeAlias = Literal["auto", "sequential", "lanes", "eager", "graph"]
SIMULATED = Problem("SG608", "a simulated runner maps nothing", None, "run on a device: device='cpu' or 'cuda'")


class Runner:
    """Runs one schedule, many times. Make one with `compile`; close it, or use it in a `with`, to drop its buffers.

    Buffers keep their contents from call to call. One call at a time: a second one while the first is under way is an error.
    `executor` is the name of the executor, also where "auto" chose it, and "sim" where nothing is run.
    """

    def __init__(
        self,
        schedule: Schedule,
        inputs: Given | None = None,
        *,
        ops: Operators | None = None,
        device: str = "auto",
        executor: ExecutorName = "auto",
        costs: Measured | None = None,
        machine: AnyMachine = None,
        seed: int = 0,
    ) -> None:
        options = Options(device, executor, seed)
        self.schedule = schedule
        self._predict = partial(predicted, schedule, costs, machine, issue_of(executor))
        self._running = threading.Lock()
        self._on_thread: int | None = None  # the thread that is in a call
        self._closed = False
        self._executor: Executor | None = None
        self._ops = ops
        self._looper: Looper | None = None
        self._mapping: weakref.ref[Generator[Result, None, None]] | None = None
        self.executor = "sim"
        if options.simulated:
            return
        from streamgraph.executors.choose import chosen, make_executor

        device_layer = find_device(options.device, schedule)
        self._location = device_layer.location
        self.executor = chosen(options.executor, self._location)
        self._written = written_in_place(schedule.program, schedule.accesses)
        self._bound = bind(schedule.program, by_name(schedule.program, inputs), self._location, written=self._written, complete=False)
        self._executor = make_executor(schedule, ops, options.executor, device_layer, seed, self._bound)
        self._bind = Binder(schedule.program, self._bound, self._location, self._written)
        # Lanes and left-over values must be wound up in order even if nobody calls `close`.
        self._finalizer = weakref.finalize(self, self._executor.close)
        self._finalizer.atexit = False

    def __call__(self, inputs: Given | None = None, /, **named: object) -> Result:
        """Run once on the bound tensors and these, which replace bound ones for this call.

        On a GPU it returns when everything is issued; results in host memory are there.

        Raises:
            BindingError: everything that is wrong with the tensors.
            RunnerError: SG604 closed, SG605 already running.
            TaskError: a task raised, or returned what it may not.
        """
        return self._run({**by_name(self.schedule.program, inputs), **named} if inputs is not None else named)

    def _run(self, given: Given, made_up: tuple[str, ...] = ()) -> Result:
        self._begin()
        try:
            if self._executor is None:
                return Result({}, self.schedule, predict=self._predict)
            finished = self._executor.run(self._bind(given))
            return Result(
                finished.outputs, self.schedule, made_up=made_up, predict=self._predict, inputs_free=finished.inputs_free
            )
        finally:
            self._on_thread = None
            self._running.release()

    def map(self, items: Iterable[object], *, inflight: int | None = None) -> Iterator[Result]:
        """Run once for each item, with up to `inflight` items under way before the loop body sees the first of their results.

        Results come in order, and are what a plain loop of calls would give; iterations overlap where memory and lanes allow, and
        buffers carry over. The loop body must not change what the program reads (make it a task), and what a task changes in place must
        not be another item's memory; `inflight=1` is the plain loop, where both are allowed. A source may refill the host tensors of an
        item once `inflight` more items have been pulled. Closing the generator early waits for what is under way. What the source itself
        raises is raised when the results of the items before it have been given.

        Args:
            items: mappings from the unbound inputs to tensors, tuples in the order of the unbound inputs, or tensors if there is one.
            inflight: by default the largest number of slots of a ring over iterations, at least 2.

        Raises:
            SpecError: SG105, `inflight` is no whole number from 1.
            BindingError: an item does not fit; it is named by its number. SG504 also for what a task changes in place of two items.
            RunnerError: SG604 closed, SG605 already running, SG615 the loop repeats too late for executor "graph".
            TaskError: a task raised; the message names the item. No wrong result has been given, and nothing is running.
        """
        if self._executor is None:
            raise RunnerError(SIMULATED)
        if self._looper is None:
            self._looper = Looper(self.schedule, self._executor, self._ops, self._location, self._written)
        names = tuple(tensor.name for tensor in self.schedule.program.inputs if tensor.name not in self._bound)
        pipeline = self._looper.pipeline(frozenset(names), inflight)
        mapped = self._mapped(self._looper, pipeline, items, names)
        self._mapping = weakref.ref(mapped)
        return mapped

    def _mapped(
        self, looper: Looper, pipeline: Pipeline | LanesPipeline | GraphPipeline | None, items: Iterable[object], names: tuple[str, ...]
    ) -> Generator[Result, None, None]:
        self._begin()
        try:
            for outputs in looper.results(pipeline, items, self._bound, names):
                self._on_thread = None
                yield Result(outputs, self.schedule, predict=self._predict, inputs_free=_paced)
                self._on_thread = threading.get_ident()
        finally:
            self._on_thread = None
            self._running.release()

    def _begin(self) -> None:
        """Take the runner for one run, or raise SG605; SG604 if it is closed."""
        if not self._running.acquire(blocking=False):
            message = f"the runner of '{self.schedule.program.name}' is already running"
            remedy = "wait for the call to return, exhaust or close its loop (`map`), or make a second runner with `compile`"
            raise RunnerError(Problem("SG605", message, None, remedy))
        if self._closed:
            self._running.release()
            message = f"the runner of '{self.schedule.program.name}' is closed"
            raise RunnerError(Problem("SG604", message, None, "make a new one with `compile`, or call it inside the `with`"))
        self._on_thread = threading.get_ident()

    def close(self) -> None:
        """Drop the buffers, the bound inputs and all that runs left over, and end the threads. Waits for a call under way elsewhere.

        Closing twice is closing once. Results stay valid.

        Raises:
            RunnerError: SG605 from inside one of the runner's own tasks.
        """
        own = threading.get_ident()
        makers = [maker for maker in (self._executor, self._looper) if maker is not None]
        if self._on_thread == own or (self._on_thread is not None and any(maker.runs_on(own) for maker in makers)):
            message = f"the runner of '{self.schedule.program.name}' cannot be closed by one of its own tasks"
            raise RunnerError(Problem("SG605", message, None, "close it after the call has returned"))
        mapped = self._mapping() if self._mapping is not None else None
        if mapped is not None:
            with suppress(ValueError):  # it is in the middle of an item, on another thread: wait for it below
                mapped.close()
        with self._running:
            if not self._closed and self._looper is not None:
                self._looper.close()
            if not self._closed and self._executor is not None:
                self._finalizer()
                self._bound = self._bind.bound = {}
            self._closed = True

    @property
    def source(self) -> str:
        """The text of the functions that executor "eager" calls: for a call, then for each loop so far. For code to keep, see
        `schedule.to_python()`.

        Raises:
            RunnerError: SG612 for an executor that has none.
        """
        text = getattr(self._executor, "source", None)
        if isinstance(text, str) and self._looper is not None:
            text += self._looper.source
        if not isinstance(text, str):
            message = f"the runner of '{self.schedule.program.name}' compiles nothing"
            raise RunnerError(Problem("SG612", message, None, "compile with executor='eager'; `schedule.to_python()` needs no runner"))
        return text

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<Runner of '{self.schedule.program.name}', executor \"{self.executor}\": {self.schedule.counts}{state}>"


def find_device(device: str, schedule: Schedule) -> Device:
    """The device of a run.

    Raises:
        DeviceError: SG606, it is not here.
    """
    from streamgraph.executors.device import find

    return find(device, schedule.program)


def _paced() -> None:
    message = "the items of a loop are not freed one by one"
    raise RunnerError(Problem("SG608", message, None, "an item's tensors may be refilled once `inflight` more items have been pulled"))


class Options:
    """Where and how, checked by name; whether it is here is found out later."""

    def __init__(self, device: str, executor: str, seed: int) -> None:
        known = get_args(ExecutorName)
        device = str(device)  # a torch.device says the same
        kind, _, index = device.partition(":")
        if kind not in ("auto", "cpu", "cuda", "sim") or (index and (kind != "cuda" or not index.isdigit())):
            remedy = "one of: auto, cpu, cuda, cuda:0, sim"
            raise DeviceError(Problem("SG606", f"unknown device '{quoted(device)}'", None, remedy))
        if executor not in known:
            raise DeviceError(Problem("SG606", f"unknown executor '{quoted(executor)}'", None, f"one of: {', '.join(known)}"))
        self.device, self.executor, self.seed = device, executor, seed
        self.simulated = kind == "sim"


def predicted(schedule: Schedule, costs: Measured | None, machine: AnyMachine, issue: Issue) -> Timeline:
    """What a run would be like."""
    from streamgraph.simulate import simulate

    return simulate(schedule, costs, machine=machine, issue=issue)
