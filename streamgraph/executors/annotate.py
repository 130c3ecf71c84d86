"""Annotate: tasks under their own names in torch.profiler (`record_function`) and, on a GPU, in Nsight (NVTX ranges).

It is asked for by `STREAMGRAPH_ANNOTATE=1`, when a runner is made, and by a profiled run. Without it no operator is touched, so it costs
nothing. torch.profiler sees the calling thread; the other lanes' threads it sees with
`experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)`. A replayed CUDA graph calls no operator: there only
the run that is captured shows names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from streamgraph.executors.watched import copy_call
from streamgraph.operators import Operator

VARIABLE = "STREAMGRAPH_ANNOTATE"


def is_asked_for() -> bool:
    """Whether the environment asks for names: set, and neither empty nor 0."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def named(function: Callable[..., Any], task: str, location: torch.device) -> Callable[..., Any]:
    """The function, inside ranges of that name."""
    return partial(_with_nvtx if location.type == "cuda" else _in_range, function, task)


def as_asked(operators: Sequence[Operator], location: torch.device) -> tuple[Operator, ...]:
    """The operators, with names if the environment asks for them, else as they are."""
    return tuple(_annotated(operator, location) for operator in operators) if is_asked_for() else tuple(operators)


def _annotated(operator: Operator, location: torch.device) -> Operator:
    call = operator.call
    function: Callable[..., Any] = partial(copy_call, call, location) if call.is_copy else operator.function
    return replace(operator, function=named(function, call.task, location), call=replace(call, is_copy=False))


def _in_range(function: Callable[..., Any], task: str, *positional: Any, **keywords: Any) -> Any:
    with torch.profiler.record_function(task):
        return function(*positional, **keywords)


def _with_nvtx(function: Callable[..., Any], task: str, *positional: Any, **keywords: Any) -> Any:
    torch.cuda.nvtx.range_push(task)  # type: ignore[no-untyped-call]
    try:
        return _in_range(function, task, *positional, **keywords)
    finally:
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]
