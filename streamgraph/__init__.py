"""streamgraph: declare what each task reads and writes; get a race-free multi-stream schedule, proved, drawn, and run.

The map, in the order in which a program passes through; imports point from later to earlier:

    errors       exceptions and the catalogue of codes
    model        Tensor, Task, Program: what was declared, frozen
    storages     names -> storages: which bytes each task reads and writes
    views        `batch[0:2]` -> a box of its storage
    validate     all that is wrong with a Program; the copies that outputs need
    builder      Graph, the Python front end          -> Program
    spec/        YAML, the other front end            -> Program
    hazards      Program -> RAW, WAR, WAW, after; the networkx DAG
    schedule     the steps: launch, record, wait, hostwait, release, record_stream; text both ways
    cost         a time for every task: measured, declared, or guessed from sizes
    passes/      assign -> sync -> lifetime -> emit
    verify       Schedule -> violations; shares nothing with hazards and passes
    simulate     Schedule + costs -> Timeline
    explain      why a task waits, and why not
    saved        Schedule <-> JSON
    render/      text, SVG, Mermaid, DOT
    plan         plan(spec) -> Schedule: one line per pass, then verify
    calls        how a task's operator is called, and what it may return
    registry     torch's operators and their schemas; what is refused
    aten         a call -> the overload that fits it
    operators    names -> callables: the caller's, torch's, copy
    sharing      whether tensors share bytes
    binding      the caller's tensors -> the program's inputs
    files        inputs from files, outputs to files
    executors/   sequential (the reference), lanes (host threads), eager (CUDA streams)
    result       what a run gives back
    runner       run, compile, Runner
    compare      sequential and planned on the same inputs: the first task that differs
    doctor       what this machine has
    commands/    one module per group of commands
    cli          the `streamgraph` command

Nothing here imports torch until something is run.
"""

from streamgraph.builder import Graph, Handle
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
from streamgraph.result import Result
from streamgraph.runner import Runner, compile, run
from streamgraph.schedule import Schedule

__version__ = "0.1.0"

__all__ = [
    "BindingError",
    "DeviceError",
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
    "plan",
    "run",
]
