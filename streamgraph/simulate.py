"""A virtual clock: a Schedule, a time per task and a machine become a Timeline.

The rules, which are CUDA's as far as they go:

- One host thread issues the steps in order, and each call takes it a little time. A task cannot start before it was issued. In a captured
  graph (`issue="captured"`) everything is issued at once, and each wait of a task after its first costs the device a little instead.
- A lane runs its launches in order. A wait holds the lane until the event's lane had come to the record, and then until word of that has
  come over (`handover`).
- A host task and a host wait hold the issuing thread. A wait whose event nothing has recorded yet is no wait, as in CUDA.
- Each copy engine (`h2d`, `d2h`) serves one copy at a time, whichever is ready first.
- Kernels side by side share the device. Each has a `fill`, the share of the device that it keeps busy when alone, and a share of the
  memory's bandwidth. While the fills or the bandwidths of all that runs add up to more than 1, every kernel runs slower by that sum:
  processor sharing (Kleinrock, "Time-shared systems: a theoretical treatment", Journal of the ACM 14(2), 1967). Below that sum they meet as
  well, on multiprocessors and in caches that they share by chance: every kernel runs slower by `interference` times what the others fill,
  on average over the kernels. On an H200, pairs of equal kernels of convolutional networks took 1.2 to 1.34 times as long as one, where
  the first rule alone says 1.03 to 1.13; the benchmark `prediction.py` holds both rules against whole programs. A copy takes its share
  of the bandwidth and keeps its own speed, which the link sets.
- Kernels of high priority (of such a lane; in a captured graph of an `urgent` launch too) go first, block by block: they slow each other
  down as above, and of the others they feel only the interference, of `contention.YIELDED` of what those fill. The others share what is
  left, so that as much gets done as without priorities. On an H200 two priorities made captured networks that fill the device (NASNet-A,
  PNASNet-5) up to 6 % faster, and did next to nothing where branches are short and joined often (GoogLeNet, Inception-v3).

Where it is off: many lanes (8 and more) of a program that fills the device are up to 3 % faster than predicted, few (2 to 4) up to 8 %
slower, since a `fill` is measured with four copies of one kernel. Plans that differ by less than some 2 % are therefore ranked by chance;
`streamgraph tune` measures the most promising ones.

Not modelled: two kernels that need different parts of the device slow each other down here as if they needed the same. What the previous
run left over (`previous`) counts as done. A lane per thread is not told apart from the single issuing thread.
"""

from __future__ import annotations

from typing import Literal

from streamgraph.clock import Clock
from streamgraph.cost import Costs, Measured, task_costs
from streamgraph.errors import Problem, ScheduleError, quoted
from streamgraph.machine import AnyMachine, as_machine
from streamgraph.model import HOST
from streamgraph.schedule import HostWait, Launch, Record, Schedule, Step
from streamgraph.timeline import ENGINE, FIFO, ISSUE, START, WAIT, TaskTime, Timeline, WaitTime

__all__ = ["ENGINE", "FIFO", "ISSUE", "START", "WAIT", "TaskTime", "Timeline", "WaitTime", "simulate"]


def simulate(
    schedule: Schedule,
    costs: Measured | Costs | None = None,
    *,
    machine: AnyMachine = None,
    issue: Literal["eager", "captured"] = "eager",
) -> Timeline:
    """The timeline of one run.

    The same schedule, costs and machine always give the same timeline. Time is O((steps) log lanes), for a bounded number of lanes.

    Args:
        schedule: what is run.
        costs: measured microseconds by task name, or the path of a costs file (others fall back, see `cost.task_costs`), or ready Costs.
        machine: a Machine, a shipped profile's name (`gpu`, `h200`, `cpu`) or a file; None is `gpu`.
        issue: "eager": one thread issues step by step; "captured": the steps are replayed as one CUDA graph.

    Raises:
        ScheduleError: SG702 if the steps launch something that is no task of the program.
        SpecError: what is wrong with costs or machine.
    """
    unknown = [s.task for s in schedule.steps if isinstance(s, Launch) and s.task not in schedule.program.index_of_task]
    if unknown:
        message = "the schedule launches '{}', which is no task of the program"
        raise ScheduleError(*(Problem("SG702", message.format(quoted(name))) for name in unknown))
    on = as_machine(machine)
    ready = costs if isinstance(costs, Costs) else task_costs(schedule.program, schedule.accesses, costs, on)

    def alone() -> float:
        return Clock(schedule, _on_one_stream(schedule), ready, on, issue == "captured").play().makespan

    return Timeline(schedule, ready, on, issue, Clock(schedule, schedule.steps, ready, on, issue == "captured").play(), alone)


def _on_one_stream(schedule: Schedule) -> tuple[Step, ...]:
    """The same launches in the same order on `main`, with no event but those that the host waits for."""
    main = schedule.lanes[0].name if schedule.lanes else "main"
    for_host = {step.event for step in schedule.steps if isinstance(step, HostWait)}
    steps: list[Step] = []
    for step in schedule.steps:
        match step:
            case Launch(task, lane):
                steps.append(Launch(task, lane if lane == HOST else main))  # a kernel alone needs no priority
            case Record(event, lane, task) if event in for_host:
                steps.append(Record(event, lane if lane == HOST else main, task))
            case HostWait():
                steps.append(step)
            case _:
                pass  # releases stay out as well: they cost about the same either way
    return tuple(steps)
