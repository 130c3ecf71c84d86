"""Run: a spec and tensors become results. `compile` plans once and makes a Runner that runs many times; `run` does both, once.

The runner binds inputs, allows one run at a time, and hands out results. How steps are executed is the executor's business.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from streamgraph.binding import Given, bind, made_up, written_in_place
from streamgraph.errors import DeviceError, Problem, RunnerError, SpecError, quoted
from streamgraph.model import OUTPUT_PREFIX, Kind, Output, Program
from streamgraph.plan import Order, Release, Spec, Streams, as_program, plan
from streamgraph.result import Result
from streamgraph.schedule import Schedule
from streamgraph.validate import near

if TYPE_CHECKING:
    from streamgraph.executors import Executor
    from streamgraph.executors.device import Device
    from streamgraph.operators import Operators

ExecutorName: TypeAlias = Literal["auto", "sequential", "lanes", "eager", "graph"]


def run(
    spec: Spec,
    inputs: Given | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    ops: Operators | None = None,
    device: str = "auto",
    executor: ExecutorName = "auto",
    streams: Streams = "auto",
    order: Order = "declared",
    release: Release = "default",
    costs: Mapping[str, float] | None = None,
    outputs: Iterable[str] | None = None,
    seed: int = 0,
) -> Result:
    """The outputs of one run. Inputs that are not given but declare `init` are made up, and `result.made_up` lists them.

    Args and errors as `compile`. On a GPU it returns when everything is issued, and waits only for outputs in host memory.
    """
    options = _Options(device, executor, seed)
    schedule = _schedule(spec, params, streams, order, release, costs, outputs)
    if options.simulated:
        return Result({}, schedule, costs=costs)
    invented = made_up(schedule.program, inputs or {}, _find(options.device).location, seed)
    with Runner(schedule, ops=ops, device=device, executor=executor, costs=costs, seed=seed) as runner:
        return runner._run({**invented, **(inputs or {})}, tuple(invented))


def compile(
    spec: Spec,
    inputs: Given | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    ops: Operators | None = None,
    device: str = "auto",
    executor: ExecutorName = "auto",
    streams: Streams = "auto",
    order: Order = "declared",
    release: Release = "default",
    costs: Mapping[str, float] | None = None,
    outputs: Iterable[str] | None = None,
    seed: int = 0,
) -> Runner:
    """A runner: the spec planned, verified, its operators found, and `inputs` bound for good.

    Args:
        spec: the path of a YAML file, a mapping of the same form, a Graph, a Program, or a Schedule, which is verified and run as it is.
        inputs: tensors by input name; a family takes a (nested) list. What is left out is bound at each call.
        params: values for the spec's `params`.
        ops: the operators that the spec names: a mapping, a module, or a function from a Task to its callable.
        device: "auto" (CUDA where there is some, else the CPU), "cpu", "cuda", "cuda:1", or "sim": runs nothing and predicts times.
        executor: "auto" ("lanes" on the CPU, "eager" on CUDA), "sequential" (the reference), "lanes", "eager".
        streams, order, release, costs: as for `plan`; a Schedule has them behind it.
        outputs: the results to return instead of those that the spec lists: any tensor's name, a family's for all its members.
        seed: for buffers and inputs that declare `init: random`. The same name and seed give the same bytes on every device.

    Raises:
        SpecError: the spec is wrong, or an output names nothing.
        VerificationError: a Schedule that is not safe.
        OperatorError: operators that are missing or do not fit.
        BindingError: tensors that do not fit.
        DeviceError: SG606, that device or executor is not here.
    """
    schedule = _schedule(spec, params, streams, order, release, costs, outputs)
    return Runner(schedule, inputs, ops=ops, device=device, executor=executor, costs=costs, seed=seed)


class Runner:
    """Runs one schedule, many times. Make one with `compile`; close it, or use it in a `with`, to drop its buffers.

    Buffers keep their contents from call to call. One call at a time: a second one while the first is under way is an error.
    """

    def __init__(
        self,
        schedule: Schedule,
        inputs: Given | None = None,
        *,
        ops: Operators | None = None,
        device: str = "auto",
        executor: ExecutorName = "auto",
        costs: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        options = _Options(device, executor, seed)
        self.schedule = schedule
        self._costs = costs
        self._running = threading.Lock()
        self._on_thread: int | None = None  # the thread that is in a call
        self._closed = False
        self._executor: Executor | None = None
        if options.simulated:
            return
        device_layer = _find(options.device)
        self._location = device_layer.location
        self._written = written_in_place(schedule.program, schedule.accesses)
        self._bound = bind(schedule.program, inputs or {}, self._location, written=self._written, complete=False)
        self._executor = _executor(schedule, ops, options, device_layer)
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
        return self._run({**(inputs or {}), **named})

    def _run(self, given: Given, made_up: tuple[str, ...] = ()) -> Result:
        if not self._running.acquire(blocking=False):
            message = f"the runner of '{self.schedule.program.name}' is already running"
            raise RunnerError(Problem("SG605", message, None, "wait for the call to return, or make a second runner with `compile`"))
        try:
            self._on_thread = threading.get_ident()
            if self._closed:
                message = f"the runner of '{self.schedule.program.name}' is closed"
                raise RunnerError(Problem("SG604", message, None, "make a new one with `compile`, or call it inside the `with`"))
            if self._executor is None:
                return Result({}, self.schedule, costs=self._costs)
            tensors = bind(self.schedule.program, given, self._location, bound=self._bound, written=self._written)
            finished = self._executor.run(tensors)
            return Result(
                finished.outputs, self.schedule, made_up=made_up, costs=self._costs, inputs_free=finished.inputs_free
            )
        finally:
            self._on_thread = None
            self._running.release()

    def close(self) -> None:
        """Drop the buffers, the bound inputs and all that runs left over, and end the threads. Waits for a call under way elsewhere.

        Closing twice is closing once. Results stay valid.

        Raises:
            RunnerError: SG605 from inside one of the runner's own tasks.
        """
        own = threading.get_ident()
        if self._on_thread == own or (self._on_thread is not None and self._executor is not None and self._executor.runs_on(own)):
            message = f"the runner of '{self.schedule.program.name}' cannot be closed by one of its own tasks"
            raise RunnerError(Problem("SG605", message, None, "close it after the call has returned"))
        with self._running:
            if not self._closed and self._executor is not None:
                self._finalizer()
                self._bound = {}
            self._closed = True

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Runner of '{self.schedule.program.name}': {self.schedule.counts}{', closed' if self._closed else ''}>"


def _find(device: str) -> Device:
    from streamgraph.executors.device import find

    return find(device)


class _Options:
    """Where and how, checked by name; whether it is here is found out later."""

    def __init__(self, device: str, executor: str, seed: int) -> None:
        known = get_args(ExecutorName)
        kind, _, index = device.partition(":")
        if kind not in ("auto", "cpu", "cuda", "sim") or (index and (kind != "cuda" or not index.isdigit())):
            remedy = "one of: auto, cpu, cuda, cuda:0, sim"
            raise DeviceError(Problem("SG606", f"unknown device '{quoted(device)}'", None, remedy))
        if executor not in known:
            raise DeviceError(Problem("SG606", f"unknown executor '{quoted(executor)}'", None, f"one of: {', '.join(known)}"))
        if executor == "graph":
            message = "the executor 'graph' (captured CUDA graphs) does not exist yet"
            raise DeviceError(Problem("SG606", message, None, "use executor='eager'"))
        self.device, self.executor, self.seed = device, executor, seed
        self.simulated = kind == "sim"


def _schedule(
    spec: Spec,
    params: Mapping[str, Any] | None,
    streams: Streams,
    order: Order,
    release: Release,
    costs: Mapping[str, float] | None,
    outputs: Iterable[str] | None,
) -> Schedule:
    if outputs is None:
        return plan(spec, params=params, streams=streams, order=order, release=release, costs=costs)
    if isinstance(spec, Schedule):
        message = "a Schedule returns the outputs that it was planned with"
        raise SpecError(Problem("SG212", message, None, "pass `outputs` together with the spec that it was planned from"))
    program = with_outputs(as_program(spec, params), outputs)
    return plan(program, streams=streams, order=order, release=release, costs=costs)


def with_outputs(program: Program, names: Iterable[str]) -> Program:
    """The program with these outputs instead of its own. `plan` adds the copies that they need.

    Raises:
        SpecError: SG210 for every name that is no tensor and no family.
    """
    families = {family.name: family.members for family in program.families}
    outputs: list[Output] = []
    problems: list[Problem] = []
    for name in [names] if isinstance(names, str) else names:
        tensor = program.tensor_named.get(name)
        members = families.get(name.removesuffix("@*"))
        if tensor is not None and tensor.kind is not Kind.RESOURCE and not name.startswith(OUTPUT_PREFIX):
            outputs.append(Output(name, name))
        elif members is not None:
            outputs += [Output(member, member) for member in members]
        else:
            known = [t.name for t in program.tensors if not t.name.startswith(OUTPUT_PREFIX)]
            hint = near(name, [*known, *families])
            remedy = f"did you mean '{hint}'?" if hint else None
            problems.append(Problem("SG210", f"the output '{quoted(name)}' names no tensor of '{program.name}'", None, remedy))
    if problems:
        raise SpecError(*problems)
    return replace(
        program,
        tensors=tuple(tensor for tensor in program.tensors if not tensor.name.startswith(OUTPUT_PREFIX)),
        tasks=tuple(task for task in program.tasks if not task.name.startswith(OUTPUT_PREFIX)),
        outputs=tuple(dict.fromkeys(outputs)),
    )


def _executor(schedule: Schedule, ops: Operators | None, options: _Options, device: Device) -> Executor:
    from streamgraph.operators import resolve

    location = device.location
    on_cpu = location.type == "cpu"
    name = options.executor if options.executor != "auto" else ("lanes" if on_cpu else "eager")
    if name == "lanes" and not on_cpu:
        message = "the executor 'lanes' (a host thread per lane) runs on the CPU only, so far"
        raise DeviceError(Problem("SG606", message, None, f"use executor='eager' on {location}, or device='cpu'"))
    if name == "sequential":
        from streamgraph.executors.sequential import SequentialExecutor, without_rings

        return SequentialExecutor(schedule.program, resolve(without_rings(schedule.program), ops, str(location)), device, options.seed)
    operators = resolve(schedule.program, ops, str(location), schedule.accesses)
    if name == "lanes":
        from streamgraph.executors.lanes import LanesExecutor

        return LanesExecutor(schedule, operators, options.seed)
    from streamgraph.executors.eager import EagerExecutor

    return EagerExecutor(schedule, operators, device, options.seed)
