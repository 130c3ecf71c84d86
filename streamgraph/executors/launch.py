"""One launch: a task's call is evaluated, made, checked on a runner's first run, and what it returns is put into the cells."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch

from streamgraph.calls import LISTED, Call, describe, place, torch_dtype
from streamgraph.errors import Location, Problem, TaskError, quoted
from streamgraph.executors.device import Device, Stream
from streamgraph.executors.memory import Cells
from streamgraph.operators import Operator
from streamgraph.returned import check_alias, check_kept, check_returned, check_shapes, empty_for, layouts, run_copy

_OURS = str(Path(__file__).resolve().parents[1])


def launch(operator: Operator, cells: Cells, location: torch.device, lane: str, *, check: bool) -> None:
    """Call the task's operator on the current stream. With `check`, what it returns must be what the task declares, in memory of its own.

    No reference to an argument or a result stays behind: a release that follows drops the last one.

    Raises:
        TaskError: SG602, SG603, SG503 of the checks.
        BaseException: what the operator raised, as it is; `failure` words it.
    """
    call = operator.call
    if call.is_copy:
        returned = run_copy(call, cells, location, lane)
    else:
        positional, keywords = call.arguments(cells)
        before = layouts(call, positional, keywords) if check else ()
        result = operator.function(*positional, **keywords)
        if check:
            check_kept(call, before, lane)
            returned = check_returned(call, result, cells, location, lane)
            check_alias(call, returned, cells, operator.constants(), lane)
        elif call.returns:
            returned = result if call.returns_sequence else (result,)
        else:
            return
    for target, tensor in zip(call.returns, returned, strict=True):
        cells[target.storage] = tensor


def copy_call(call: Call, location: torch.device, lane: str) -> Callable[..., torch.Tensor]:
    """The built-in `copy` of one task as a function: of the source, and with `out` of the target. What `run_copy` does, looked up once.

    Raises, when called:
        TaskError: SG503 if the shapes differ.
    """
    if not call.returns:

        def into(*source: torch.Tensor, out: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
            (given,) = (*source, *named.values())
            if given.shape != out.shape:
                check_shapes(call, given, out, lane)
            return out.copy_(given, non_blocking=True)

        return into
    (returned,) = call.returns
    options: dict[str, Any] = {"device": place(returned.device, location)}
    if returned.type is not None:
        options["dtype"] = torch_dtype(returned.type)
    if returned.pinned and options["device"].type == "cpu" and location.type == "cuda":
        options["pin_memory"] = True
    shape = returned.type.shape if returned.type is not None else None

    def anew(*source: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        (given,) = (*source, *named.values())
        if shape is not None and given.shape != shape:
            check_shapes(call, given, empty_for(returned, given, location), lane)
        return torch.empty_like(given, **options).copy_(given, non_blocking=True)

    return anew


def check_stream(device: Device, stream: Stream, operator: Operator, lane: str) -> None:
    """SG607 if a task left another stream or device current than it found, which was `stream` of `device`."""
    if not device.is_current(stream):
        raise left_another_stream([operator.call], lane)


def left_another_stream(suspects: Sequence[Call], lane: str) -> TaskError:
    """SG607 for one of these tasks of a lane."""
    names = ", ".join(f"'{call.task}'" for call in suspects[:LISTED]) + ", …" * (len(suspects) > LISTED)
    who = f"task {names}" if len(suspects) == 1 else f"one of the tasks {names}"
    message = f"{who} @{lane} left another stream or device current than it found"
    remedy = "use `with torch.cuda.stream(...)`, which puts the old one back"
    return TaskError(Problem("SG607", message, suspects[0].location, remedy), suspects[0].task, lane)


def in_item(error: BaseException, iteration: int) -> BaseException:
    """A task's error with the item that it happened in."""
    if not isinstance(error, TaskError):
        return error
    (problem, *_) = error.problems
    told = Problem(problem.code, f"item {iteration}: {problem.message}", problem.location, problem.help, problem.related)
    wrapped = TaskError(told, error.task, error.lane)
    wrapped.__cause__ = error.__cause__
    return wrapped


def failure(error: BaseException, operator: Operator, cells: Cells, lane: str) -> BaseException:
    """What to raise for an error inside a launch: a `TaskError` with the call, its types and the user's own line.

    `KeyboardInterrupt`, `SystemExit` and their like pass as they are: they are no failure of the task.
    """
    if isinstance(error, TaskError) or not isinstance(error, Exception):
        return error
    said = str(error).strip().split("\n")[0]  # torch adds a C++ trace; the cause has all of it
    words = f"raised {type(error).__name__}" + (f": {said}" if said else "")
    message = f"task '{operator.call.task}' @{lane}: {describe(operator.call, cells)} {quoted(words, 500)}"
    frame = _frame_of_user(error)
    problem = Problem("SG601", message, operator.call.location, None, (("raised here", frame),) if frame is not None else ())
    wrapped = TaskError(problem, operator.call.task, lane)
    wrapped.__cause__ = error
    return wrapped


def _frame_of_user(error: BaseException) -> Location | None:
    """The innermost line that is neither ours nor torch's: where the person who reads this can change something."""
    torch_root = str(Path(torch.__file__).resolve().parent)
    found = None
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, torch_root, "<")):
            found = Location(file, line, 1, 1, linecache.getline(file, line).rstrip())
    if found is None:
        return None
    indent = len(found.text) - len(found.text.lstrip())
    return Location(found.file, found.line, indent + 1, max(1, len(found.text) - indent), found.text)
