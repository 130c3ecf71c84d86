"""Run: a spec and tensors become results. `compile` plans once and makes a Runner that runs many times; `run` does both, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from streamgraph.binding import Given, bind, by_name, made_up, written_in_place
from streamgraph.cost import Measured
from streamgraph.errors import Problem, RunnerError, SpecError, quoted
from streamgraph.machine import AnyMachine
from streamgraph.outputs import with_outputs
from streamgraph.plan import Order, Release, Spec, Streams, as_program, issue_of, plan
from streamgraph.portfolio import Policy
from streamgraph.result import Result
from streamgraph.runner import SIMULATED, ExecutorName, Options, Runner, find_device, predicted
from streamgraph.schedule import Schedule

if TYPE_CHECKING:
    from streamgraph.operators import Operators


@overload
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
    policy: Policy = "auto",
    costs: Measured | None = None,
    machine: AnyMachine = None,
    outputs: Iterable[str] | None = None,
    seed: int = 0,
    iterations: None = None,
    profile: bool = False,
) -> Result: ...


@overload
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
    policy: Policy = "auto",
    costs: Measured | None = None,
    machine: AnyMachine = None,
    outputs: Iterable[str] | None = None,
    seed: int = 0,
    iterations: int,
) -> list[Result]: ...


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
    policy: Policy = "auto",
    costs: Measured | None = None,
    machine: AnyMachine = None,
    outputs: Iterable[str] | None = None,
    seed: int = 0,
    iterations: int | None = None,
    profile: bool = False,
) -> Result | list[Result]:
    """The outputs of one run. Inputs that are not given but declare `init` are made up, and `result.made_up` lists them.

    With `iterations`, the results of so many runs on the same inputs, in order: what a loop of calls would give, with iterations
    overlapping as in `Runner.map`; state goes on from one to the next. When it returns, nothing is running any more.

    With `profile`, `result.measured` is the timeline of a real run (`measuring.measure`): before the run whose results are returned, on
    copies of what the program changes, every task is called some dozen times more. Not together with `iterations`, nor for a CUDA graph.

    Args and errors as `compile`; with `iterations` also SG105 (no whole number from 1), and SG608 or SG615 as `Runner.map`. Without, it
    returns on a GPU when everything is issued, and waits only for outputs in host memory.
    """
    if iterations is not None and (isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1):
        raise SpecError(Problem("SG105", f"iterations is {quoted(repr(iterations))}", None, "iterations must be a whole number from 1"))
    options = Options(device, executor, seed)
    planner = partial(
        plan, streams=streams, order=order, release=release, policy=policy, costs=costs, machine=machine, issue=issue_of(executor)
    )
    schedule = _schedule(spec, params, outputs, planner)
    if profile and (options.simulated or iterations is not None):
        message = "a simulated run takes no time that could be measured" if options.simulated else "`profile` measures single runs"
        raise RunnerError(Problem("SG608", message, None, "leave `profile` out, or run once on a device: device='cpu' or 'cuda'"))
    if options.simulated:
        if iterations is not None:
            raise RunnerError(SIMULATED)
        return Result({}, schedule, predict=partial(predicted, schedule, costs, machine, issue_of(executor)))
    found = find_device(options.device, schedule)
    inputs = by_name(schedule.program, inputs)
    invented = made_up(schedule.program, inputs, found.location, seed)
    given = {**invented, **inputs}
    bound = given if iterations is not None else None
    measured = None
    if profile:
        from streamgraph.measuring import measure

        tensors = bind(schedule.program, given, found.location, written=written_in_place(schedule.program, schedule.accesses))
        expected = predicted(schedule, costs, machine, issue_of(executor))
        measured = measure(schedule, tensors, expected, device=found, ops=ops, executor=executor, seed=seed)
    with Runner(schedule, bound, ops=ops, device=device, executor=executor, costs=costs, machine=machine, seed=seed) as runner:
        if iterations is None:
            result = runner._run(given, tuple(invented))
            result.measured = measured
            return result
        results = list(runner.map({} for _ in range(iterations)))
    for result in results:
        result.made_up = tuple(invented)
    return results


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
    policy: Policy = "auto",
    costs: Measured | None = None,
    machine: AnyMachine = None,
    outputs: Iterable[str] | None = None,
    seed: int = 0,
) -> Runner:
    """A runner: the spec planned, verified, its operators found, and `inputs` bound for good.

    Args:
        spec: the path of a YAML file, a mapping of the same form, a Graph, a Program, or a Schedule, which is verified and run as it is.
        inputs: tensors by input name; a family takes a (nested) list. What is left out is bound at each call.
        params: values for the spec's `params`.
        ops: the operators that the spec names: a mapping, a module, or a function from a Task to its callable.
        device: "auto" (CUDA where there is some, else the CPU), "cpu", "cuda", "cuda:1" (or a torch.device), or "sim": predicts times.
        executor: "auto" ("lanes" on the CPU, "eager" on CUDA), "sequential" (the reference), "lanes" (a host thread per lane), "eager" (one
            thread issues to all streams, from the second run on by a compiled function), "graph" (a CUDA graph, replayed from then on).
        streams, order, release, policy, costs, machine: as for `plan`; a Schedule has them behind it.
        outputs: the results to return instead of those that the spec lists: any tensor's name, a family's for all its members.
        seed: for buffers and inputs that declare `init: random`. The same name and seed give the same bytes on every device.

    Raises:
        SpecError: the spec is wrong, or an output names nothing.
        VerificationError: a Schedule that is not safe.
        OperatorError: operators that are missing or do not fit.
        BindingError: tensors that do not fit.
        DeviceError: SG606, that device or executor is not here.
    """
    planner = partial(
        plan, streams=streams, order=order, release=release, policy=policy, costs=costs, machine=machine, issue=issue_of(executor)
    )
    schedule = _schedule(spec, params, outputs, planner)
    return Runner(schedule, inputs, ops=ops, device=device, executor=executor, costs=costs, machine=machine, seed=seed)


def _schedule(
    spec: Spec, params: Mapping[str, Any] | None, outputs: Iterable[str] | None, planner: Callable[..., Schedule]
) -> Schedule:
    if outputs is None:
        return planner(spec, params=params)
    if isinstance(spec, Schedule):
        message = "a Schedule returns the outputs that it was planned with"
        raise SpecError(Problem("SG212", message, None, "pass `outputs` together with the spec that it was planned from"))
    return planner(with_outputs(as_program(spec, params), outputs))
