"""Plan: a spec becomes a proved Schedule. One line per pass, then the verifier, which shares nothing with them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias, Union, get_args

from streamgraph.builder import Graph
from streamgraph.collector import uncollected
from streamgraph.cost import Measured, task_costs
from streamgraph.errors import Problem, SpecError, quoted
from streamgraph.hazards import Dag, build_dag, ensure_acyclic, find_hazards
from streamgraph.machine import AnyMachine, as_machine
from streamgraph.model import Program
from streamgraph.passes.assign import Assignment
from streamgraph.passes.emit import emit
from streamgraph.passes.lifetime import place_releases
from streamgraph.passes.policies import POLICIES
from streamgraph.passes.sync import synchronize
from streamgraph.passes.work import work_of
from streamgraph.portfolio import Policy, choose
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate
from streamgraph.storages import Accesses, trace
from streamgraph.verify import ensure

Spec: TypeAlias = Union[str, "os.PathLike[str]", Mapping[str, Any], Graph, Program, Schedule]
"""What can be planned and run: the path of a YAML file, a mapping of the same form, a Graph, a Program, or a Schedule already made."""
Streams: TypeAlias = Union[int, Literal["auto"]]
Order: TypeAlias = Literal["declared", "auto"]
Release: TypeAlias = Literal["default", "early"]
Issue: TypeAlias = Literal["eager", "captured"]


@uncollected
def plan(
    spec: Spec,
    *,
    params: Mapping[str, Any] | None = None,
    streams: Streams = "auto",
    order: Order = "declared",
    release: Release = "default",
    policy: Policy = "auto",
    costs: Measured | None = None,
    machine: AnyMachine = None,
    issue: Issue = "eager",
) -> Schedule:
    """The race-free schedule of a spec, with the fewest waits, events and record_stream calls for its lanes and issue order.

    Pure: needs no GPU and imports no torch. Deterministic: the same spec gives the same text.

    Args:
        spec: the path of a YAML file, a mapping of the same form, a `Graph`, a `Program`, or a `Schedule`, which is verified and returned.
        params: values for the spec's `params`, by name.
        streams: how many lanes tasks without a pin may use, `main` included; pinned lanes come on top. "auto" chooses by estimate.
        order: "declared" issues in the topological order nearest to declaration order; "auto" issues the longest remaining path first.
        release: "default" drops each value where its lane covers all uses; "early" drops it right after its last use, at the price of
            a wait or a record_stream.
        policy: who decides on lanes: "auto" tries all policies and keeps the one that is simulated to be fastest, if that is worth its
            waits, else one stream; or the name of one, for example "critical_path" (see `streamgraph.passes.policies`). `schedule.notes`
            says what the others gave.
        costs: measured microseconds by task name, or the path of a costs file; the other tasks use what they declare, or a guess from
            sizes.
        machine: what the simulation assumes: a `Machine`, the name of a shipped profile (`gpu`, `h200`, `cpu`) or the path of one.
        issue: whether the steps will be issued one by one ("eager") or replayed as a CUDA graph ("captured"), where launches cost the host
            nothing and more lanes pay off, and where launches may be `urgent`: of high priority, on lanes of any.

    Raises:
        SpecError: the spec is wrong; all problems at once.
        VerificationError: the schedule is not safe. For one that was planned here, that is a defect in streamgraph.
    """
    check_options(streams, order, release, policy, issue)
    if isinstance(spec, Schedule):
        return ensure(spec)
    on = as_machine(machine)
    program = as_program(spec, params)
    accesses = trace(program)[0]
    dag = build_dag(program, find_hazards(program, accesses))
    ensure_acyclic(program, dag)
    times = task_costs(program, accesses, costs, on)
    work = work_of(program, dag, accesses, times.microseconds, order, captured=issue == "captured")
    options: tuple[tuple[str, str], ...] = (("streams", str(streams)), ("order", order), ("release", release), ("policy", policy))
    if issue != "eager":
        options += (("issue", issue),)
    draft = partial(draft_schedule, program, dag, accesses, release, options)
    clock = partial(simulate, costs=times, machine=on, issue=issue)
    choice = choose(work, policy, streams, draft, clock, on.model_error, on.launch if issue == "eager" else 0.0)
    schedule = replace(choice.schedule, notes=choice.notes)
    del dag, work, draft, choice  # most of the memory, and nothing of it concerns the verifier
    return ensure(schedule)


def issue_of(executor: str) -> Issue:
    """How an executor issues steps. In a CUDA graph launches cost the host nothing, so more lanes may pay off."""
    return "captured" if executor == "graph" else "eager"


def draft_schedule(
    program: Program,
    dag: Dag,
    accesses: Accesses,
    release: Release,
    options: tuple[tuple[str, str], ...],
    assignment: Assignment,
) -> Schedule:
    """The schedule of one assignment, not yet verified."""
    sync = synchronize(assignment, dag, accesses)
    lifetimes = place_releases(assignment, accesses, sync, release)
    if lifetimes.release_edges:
        sync = synchronize(assignment, dag, accesses, lifetimes.release_edges)
        lifetimes = place_releases(assignment, accesses, sync, release)
    return emit(program, dag, accesses, assignment, sync, lifetimes, options)


def as_program(spec: Spec, params: Mapping[str, Any] | None = None) -> Program:
    """The program that a spec declares. `params` are for YAML; a Graph or Program has none left.

    Raises:
        SpecError: all that is wrong with it.
    """
    if isinstance(spec, str | os.PathLike | Mapping):
        from streamgraph.spec import load

        return load(spec, params).program
    if params:
        raise SpecError(Problem("SG109", f"params were given, but a {type(spec).__name__} has none", None, "build it with those values"))
    match spec:
        case Graph():
            return spec.program()
        case Program():
            from streamgraph.validate import check, finish

            program = finish(spec)
            errors = [problem for problem in check(program) if problem.severity == "error"]
            if errors:
                raise SpecError(*errors)
            return program
        case Schedule():
            return spec.program
        case _:
            kind = quoted(type(spec).__name__)
            remedy = "pass the path of a YAML file, a mapping, a Graph, a Program or a Schedule"
            raise SpecError(Problem("SG103", f"a spec cannot be a {kind}", None, remedy))


def check_options(streams: object, order: object, release: object, policy: object = "auto", issue: object = "eager") -> None:
    """Raise SG105 for options that have no meaning, all at once."""
    problems = []
    whole = isinstance(streams, int) and not isinstance(streams, bool) and streams >= 1
    if streams != "auto" and not whole:
        problems.append(Problem("SG105", f"streams is {quoted(repr(streams))}", None, "streams must be 'auto' or a whole number from 1"))
    choices = (
        ("order", order, get_args(Order)), ("release", release, get_args(Release)), ("policy", policy, ("auto", *POLICIES)),
        ("issue", issue, get_args(Issue)),
    )  # fmt: skip
    for name, value, allowed in choices:
        if value not in allowed:
            problems.append(Problem("SG105", f"{name} is {quoted(repr(value))}", None, f"{name} must be one of: {', '.join(allowed)}"))
    if problems:
        raise SpecError(*problems)
