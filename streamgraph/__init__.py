"""streamgraph: declare what each task reads and writes; get a race-free multi-stream schedule, proved, drawn, and run.

The map, in the order in which a program passes through; imports point from later to earlier:

    errors       exceptions and the catalogue of codes
    collector    the garbage collector rests while a plan is made
    model        Tensor, Task, Program: what was declared, frozen
    names        what may be a name, and which one was meant
    seats        members of a ring -> slots, and turns in them
    storages     names -> storages: which bytes each task reads and writes
    devices      which GPU each tensor and each task belongs to
    views        `batch[0:2]` -> a box of its storage
    task_checks  all that is wrong with single tasks
    validate     all that is wrong with a Program; the copies that outputs need
    builder      Graph, the Python front end          -> Program
    spec/        YAML, the other front end            -> Program
    frontier     boxes of one storage, found by what they meet
    hazards      Program -> RAW, WAR, WAW, after; the networkx DAG
    steps        launch, record, wait, hostwait, release, record_stream; text both ways
    schedule     a program with its steps: what all that follows reads
    machine      what a computer costs and holds: shipped profiles, or measured
    cost         a time for every task, and its share of the device: measured, declared, or guessed from sizes
    passes/      assign -> sync -> lifetime -> emit
    verify       Schedule -> violations; shares nothing with hazards and passes
    timeline     what a simulated run was like; lower bounds
    contention   how fast kernels run that run side by side
    clock        the virtual clock
    simulate     Schedule + costs + machine -> Timeline
    measured     real starts and ends of tasks -> Timeline
    switches     which streams are to be made current, and when
    paths        what leads from one task to another, with the fewest waits
    certificate  each wait with what goes wrong without it
    explain      why a task waits, and why not
    saved        Schedule <-> JSON
    render/      text, SVG, Mermaid, DOT
    outputs      a Program with other results
    portfolio    every policy and lane count, simulated: the best one that is worth it
    plan         plan(spec) -> Schedule: one line per pass, then verify
    difference   what changed between two plans
    iterations   a Program written out for several iterations, one after another
    loop         what is issued for item after item, with waits that reach back
    copy_lanes   a lane for each direction of a loop's copies
    plan_loop    Program -> Loop: the iterations planned as one, and the one that repeats
    loop_waits   the waits that every iteration has: how far back, why, and what goes wrong without
    rings        what is odd about a loop's rings over iterations
    calls        how a task's operator is called
    returned     what it may give back; the built-in copy
    registry     torch's operators and their schemas; what is refused
    aten         a call -> the overload that fits it
    operators    names -> callables: the caller's, torch's, copy
    python_source  Schedule -> plain torch code
    sharing      whether tensors share bytes
    binding      the caller's tensors -> the program's inputs
    files        inputs from files, outputs to files
    rebind       binding again, in a few comparisons
    executors/   sequential (the reference), lanes (host threads), eager (CUDA streams), compiled, graph (CUDA graphs)
    measuring    a schedule and tensors -> measured timeline: runs with a stopwatch, beside the tasks one after another
    result       what a run gives back
    looping      a runner and items -> results, while later items are under way
    runner       a Schedule and tensors -> results, many times
    run          a spec and tensors -> results: run, compile
    prefetch     layers with weights in host memory -> a runner that streams them
    compare      sequential and planned on the same inputs: the first task that differs
    bench        every executor on the same inputs: how long a run takes, and which is worth it
    tune         several plans in turn on the device: the fastest
    doctor       what this machine has
    calibration  what this machine costs: measured, a profile
    commands/    one module per group of commands
    cli          the `streamgraph` command

Nothing here imports torch until something is run.
"""

from streamgraph.builder import Graph, Handle
from streamgraph.difference import Difference, diff
from streamgraph.errors import (
    BindingError,
    DeviceError,
    OperatorError,
    Problem,
    RunnerError,
    ScheduleError,
    SpecError,
    StreamgraphError,
    TaskError,
    VerificationError,
)
from streamgraph.model import Program
from streamgraph.plan import plan
from streamgraph.prefetch import prefetch
from streamgraph.result import Result
from streamgraph.run import compile, run
from streamgraph.runner import Runner
from streamgraph.schedule import Schedule

__version__ = "0.1.0"

__all__ = [
    "BindingError",
    "DeviceError",
    "Difference",
    "Graph",
    "Handle",
    "OperatorError",
    "Problem",
    "Program",
    "Result",
    "Runner",
    "RunnerError",
    "Schedule",
    "ScheduleError",
    "SpecError",
    "StreamgraphError",
    "TaskError",
    "VerificationError",
    "compile",
    "diff",
    "plan",
    "prefetch",
    "run",
]
