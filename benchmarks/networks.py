"""How much do several streams gain on published networks, and is `policy="auto"` the best plan there is?

Each subject's tasks are profiled on the device. Then every policy on 2 to 16 streams, one stream, and `auto` plan it for a CUDA graph, and
all plans are captured and replayed in turn, beside the module itself in a one-stream graph. The fastest few, `auto` and one stream then
meet once more, with more repeats: the best of thirty plans is partly luck.

    python benchmarks/networks.py                                     the four networks, against their targets
    python benchmarks/networks.py --subjects inception nasnet fsdp    programs of `programs.py`
    python benchmarks/networks.py --nodes                             one task per operator instead of one per chain
"""

from __future__ import annotations

import gzip
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from measure import Paper, captured, environment, markdown, parser
from subjects import NETWORKS, SUBJECTS, Subject, subject

import streamgraph as sg
from streamgraph.bench import turns
from streamgraph.machine import Machine, as_machine
from streamgraph.passes.policies import POLICIES
from streamgraph.schedule import Schedule
from streamgraph.simulate import simulate

STREAMS = (2, 4, 8, 16)
PROMISING = 8  # plans that `streamgraph tune` would measure beside one stream and `auto`
TARGETS = {"inception_v3": 1.60, "googlenet": 1.88, "nasnet_large": 2.00, "pnasnet_large": 1.72}
FINALISTS = 3
LEAD = 2_000_000  # clock cycles, some 1 ms, that the device is kept busy, in which the host issues a replay


@dataclass(frozen=True)
class Plan:
    """A schedule, and who made it."""

    policy: str
    streams: int | str
    schedule: Schedule
    predicted: float

    @property
    def label(self) -> str:
        return "one stream" if self.policy == "single" else f"{self.policy}, {self.streams}"


PER_LANE = ", per lane"


def candidates(case: Subject, machine: Machine, policies: Sequence[str], counts: Sequence[int], per_lane: Sequence[int]) -> list[Plan]:
    """One stream, `auto`, and each of these policies on so many streams; equal ones once. On `per_lane` streams as for eager runs too."""

    def plan(policy: str, streams: int | str, order: str = "declared", issue: str = "captured") -> Plan:
        schedule = sg.plan(
            case.program, policy=policy, streams=streams, order=order, costs=costs, machine=machine, issue=issue  # type: ignore[arg-type]
        )
        predicted = simulate(schedule, costs, machine=machine, issue="captured").makespan
        name = policy + ", order auto" * (order != "declared") + PER_LANE * (issue != "captured")
        return Plan(name, streams, schedule, predicted - machine.replay)  # when measured, the host is ahead

    costs = case.costs

    found = [plan("single", 1), plan("auto", "auto"), plan("auto", "auto", "auto")]
    seen = {one.schedule.steps for one in found}
    for policy in policies:
        for streams in counts if policy != "single" else ():
            made = plan(policy, streams)
            if made.schedule.steps not in seen:
                found.append(made)
            seen.add(made.schedule.steps)
    # Steps are the same but for what is urgent: lanes have the priority instead, as they have where steps are issued one by one.
    return found + [plan(policy, streams, issue="eager") for policy in policies for streams in per_lane if policy != "single"]


def replayed(calls: Sequence[Callable[[], object]], repeats: int) -> list[list[float]]:
    """Microseconds of the device for each call, in turns, while the host is ahead of it."""
    times: list[list[float]] = [[] for _ in calls]
    on_gpu = torch.cuda.is_available()
    for repeat, order in enumerate(turns(len(calls), repeats + 1)):
        for number in order:
            if not on_gpu:
                begun = time.perf_counter()
                calls[number]()
                times[number].append((time.perf_counter() - begun) * 1e6)
                continue
            torch.cuda._sleep(LEAD)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            result = calls[number]()
            end.record()
            end.synchronize()
            if repeat:  # the first replay uploads the graph
                times[number].append(begin.elapsed_time(end) * 1e3)
            del result
    return times


def captured_runner(case: Subject, schedule: Schedule, stack: ExitStack) -> sg.Runner:
    """A runner whose next call replays."""
    runner = stack.enter_context(case.runner(schedule, "graph" if case.location.type == "cuda" else "lanes"))
    for _ in range(2):
        runner()
    return runner


def differences(case: Subject, found: Mapping[str, torch.Tensor]) -> list[str]:
    """What is wrong with a result: bit for bit as one task after another, and close to what the module computes."""
    with case.runner(sg.plan(case.program, streams=1), "sequential") as runner:
        expected = dict(runner())
    wrong = [f"{name} differs from the tasks one after another" for name, value in expected.items() if not torch.equal(value, found[name])]
    if case.module is not None:
        with torch.no_grad():
            own = case.module(case.example)
        (value,) = found.values()
        if not (torch.allclose(value, own, rtol=1e-3, atol=1e-4 * float(own.abs().max())) and bool(own.isfinite().all())):
            wrong.append(f"differs from the module by {float((value - own).abs().max()):.2g}, of up to {float(own.abs().max()):.2g}")
    return wrong


@dataclass
class Found:
    """What came out for one subject: medians of the final round, in microseconds."""

    one: float
    auto: float
    best: float
    best_label: str
    module: float | None
    tuned: float
    tuned_label: str


def measure(case: Subject, make_plans: Callable[[Subject], list[Plan]], repeats: int, paper: Paper, raw: Path | None) -> Found:
    """Print the table of one subject's plans, and what the final round gave."""
    begun = time.perf_counter()
    profile = case.profile
    planned = time.perf_counter()
    plans = make_plans(case)
    ready = time.perf_counter()
    with ExitStack() as stack:
        runners = [captured_runner(case, plan.schedule, stack) for plan in plans]
        calls: list[Callable[[], object]] = [*runners]
        if case.module is not None:
            with torch.no_grad():
                plain = partial(case.module, case.example)
                calls.append(captured(plain, stack) if case.location.type == "cuda" else plain)
        compiled = time.perf_counter()
        rough = replayed(calls, max(5, repeats // 3))
        medians = [statistics.median(times) for times in rough]
        usual = [number for number in range(1, len(plans)) if not plans[number].policy.endswith(PER_LANE)]
        promising = sorted(usual, key=lambda number: plans[number].predicted)[: PROMISING + 1]
        ranked = sorted(range(2, len(plans)), key=medians.__getitem__)[:FINALISTS]
        ranked += [number for number in sorted(promising, key=medians.__getitem__)[:FINALISTS] if number > 1 and number not in ranked]
        finalists = [0, 1, *ranked, *range(len(plans), len(calls))]
        final = replayed([calls[number] for number in finalists], repeats)
        last = {number: statistics.median(times) for number, times in zip(finalists, final, strict=True)}
        wrong = differences(case, dict(runners[1]()))
    ended = time.perf_counter()
    paper.say(f"#### {case.name}\n")
    paper.say(f"{len(case.program.tasks)} tasks; alone they take {profile.alone / 1e3:.2f} ms, in their places "
              f"{(profile.in_place or 0.0) / 1e3:.2f} ms. {'; '.join(wrong) if wrong else 'Results as they should be.'}\n")  # fmt: skip
    rows = []
    for number in sorted(range(len(plans)), key=lambda number: last.get(number, medians[number])):
        plan, took = plans[number], last.get(number, medians[number])
        counts = plan.schedule.counts
        again = f"{last[number] / 1e3:.3f}" if number in last else ""
        rows.append([plan.label, str(counts.lanes), str(counts.waits), f"{plan.predicted / 1e3:.3f}", f"{medians[number] / 1e3:.3f}", again,
                     f"{plan.predicted / took:.2f}", f"{last[0] / took:.2f}"])  # fmt: skip
    head = ["plan", "lanes", "waits", "predicted, ms", "measured", "again", "predicted / measured", "one stream / this"]
    paper.say(markdown(head, rows) + "\n")
    print(f"{case}; planned in {ready - planned:.1f} s, captured in {compiled - ready:.1f} s, replayed in {ended - compiled:.1f} s, "
          f"all in {ended - begun:.1f} s", flush=True)  # fmt: skip
    if raw is not None:
        data = case.raw() | {"plans": [
            {"policy": p.policy, "streams": p.streams, "predicted": p.predicted, "measured": rough[n],
             "again": final[finalists.index(n)] if n in last else None, "steps": [str(step) for step in p.schedule.steps],
             "lanes": [(lane.name, lane.priority) for lane in p.schedule.lanes]}
            for n, p in enumerate(plans)], "module": final[-1] if case.module is not None else None}  # fmt: skip
        with gzip.open(raw / f"{case.name}.json.gz", "wt") as file:
            json.dump(data, file)
    best = min(ranked, key=last.__getitem__, default=1)
    tuned = min((number for number in {1, *promising} if number in last), key=last.__getitem__)
    paper.failed |= bool(wrong)
    module = last[len(plans)] if case.module is not None else None
    return Found(last[0], last[1], last[best], plans[best].label, module, min(last[0], last[tuned]), plans[tuned].label)


def base(one: Found) -> float:
    """The faster of the two ways to run everything on one stream."""
    return min(one.one, one.module or one.one)


def main() -> None:
    options = parser(__doc__, 21)
    options.add_argument("--subjects", nargs="*", default=list(NETWORKS), choices=list(SUBJECTS))
    options.add_argument("--policies", nargs="*", default=list(POLICIES), choices=list(POLICIES))
    options.add_argument("--streams", nargs="*", type=int, default=list(STREAMS))
    options.add_argument("--per-lane", nargs="*", type=int, default=[], help="numbers of streams to try lanes of high priority on as well")
    options.add_argument("--machine", default="h200", help="a shipped profile or a file")
    options.add_argument("--nodes", action="store_true", help="one task per operator instead of one per chain")
    options.add_argument("--raw", type=Path, help="a folder for everything that was measured, as JSON")
    given = options.parse_args()
    paper = Paper(given.output)
    plans = partial(candidates, machine=as_machine(given.machine), policies=given.policies, counts=given.streams, per_lane=given.per_lane)
    if given.raw:
        given.raw.mkdir(parents=True, exist_ok=True)
    location = torch.device("cuda", torch.cuda.current_device()) if given.device == "cuda" else torch.device("cpu")
    paper.say(f"### Networks\n\n{environment(given.repeats)}\n")
    rows = []
    found: dict[str, Found] = {}
    for name in given.subjects:
        torch.backends.cuda.matmul.allow_tf32 = name not in NETWORKS
        case = None
        try:
            case = subject(name, location, given.small, not given.nodes)
            one = found[name] = measure(case, plans, given.repeats, paper, given.raw)
        except Exception as error:  # the others are worth having all the same
            paper.failed = True
            paper.say(f"- {name}: {type(error).__name__}: {str(error)[:500]}")
            continue
        finally:
            del case
            if given.device == "cuda":
                torch.cuda.empty_cache()
        module = f"{one.module / 1e3:.3f}" if one.module is not None else ""
        rows.append([name, module, f"{one.one / 1e3:.3f}", f"{one.auto / 1e3:.3f}", f"{one.best / 1e3:.3f}", one.best_label,
                     f"{one.tuned / 1e3:.3f}", one.tuned_label, f"{base(one) / one.auto:.2f}", f"{base(one) / one.tuned:.2f}",
                     f"{one.auto / min(one.best, one.auto):.3f}", f"{one.tuned / min(one.best, one.auto):.3f}"])  # fmt: skip
    head = ["subject", "module, one stream, ms", "one stream", "auto", "best other", "which", "tuned", "which", "one stream / auto",
            "one stream / tuned", "auto / best", "tuned / best"]  # fmt: skip
    paper.say(markdown(head, rows) + "\n")
    for name, one in found.items():
        if name in TARGETS:
            gain = base(one) / one.tuned
            paper.failed |= gain < TARGETS[name]
            paper.say(f"- {name}: **{gain:.2f}x** the same operators on one stream ({base(one) / one.auto:.2f}x without measuring), "
                      f"target {TARGETS[name]:.2f}x: {'met' if gain >= TARGETS[name] else 'MISSED'}")  # fmt: skip
    paper.target("auto against the best plan, worst subject", max(one.auto / min(one.best, one.auto) for one in found.values()), 1.01)
    paper.target("tuned against the best plan, worst subject", max(one.tuned / min(one.best, one.auto) for one in found.values()), 1.01)
    paper.target("auto against one stream, worst subject", max(one.auto / one.one for one in found.values()), 1.01)
    paper.end(given.device)


if __name__ == "__main__":
    main()
