"""Collector: Python's cyclic garbage collector rests while planning and verifying make millions of objects and no cycles.

It would go through all of them again and again, and take up to half of the time. What it would have freed elsewhere waits until then.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def uncollected(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function with the collector switched off while it runs, and left as it was found, whatever happens."""

    @functools.wraps(function)
    def run(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        if not gc.isenabled():
            return function(*arguments, **keywords)
        gc.disable()
        try:
            return function(*arguments, **keywords)
        finally:
            gc.enable()

    return run
