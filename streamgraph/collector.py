"""Collector: Python's cyclic garbage collector rests while reading, planning and verifying make millions of objects and no cycles.

It would go through all of them again and again, and take up to half of the time. What it would have freed elsewhere waits until then.
Afterwards the new objects count as old ones. Else the first thing that the collector did would be to go through them all: 1.3 seconds of
6.6 for a spec of 100,000 tasks.
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
            if not gc.get_freeze_count():  # thawing would thaw what someone else has frozen as well
                gc.freeze()
                gc.unfreeze()  # into the oldest generation, and none of them is looked at
            gc.enable()

    return run
