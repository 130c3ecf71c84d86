"""Policies: Work becomes a Placement, an issue order and a stream for every task that is not pinned. One module each, one signature.

Each is written from its description in the source that its docstring names, with our cost model, and keeps our pins: pinned tasks and host
tasks stay where they are, and free tasks stay off pinned lanes. `single`, `critical_path`, `earliest_free`, `longest_path` and `levels`
keep within `limit` streams by themselves. `max_concurrency` and `opara` know no bound: they take as many streams as they like, and
`assign.fold` puts those together that follow each other in time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from streamgraph.passes.policies.critical_path import critical_path
from streamgraph.passes.policies.earliest_free import earliest_free
from streamgraph.passes.policies.levels import levels
from streamgraph.passes.policies.longest_path import longest_path
from streamgraph.passes.policies.max_concurrency import max_concurrency
from streamgraph.passes.policies.opara import opara
from streamgraph.passes.policies.single import single
from streamgraph.passes.policies.urgent import urgent
from streamgraph.passes.work import Placement, Work

PolicyName: TypeAlias = Literal[
    "single", "critical_path", "earliest_free", "max_concurrency", "opara", "longest_path", "levels", "urgent"
]

POLICIES: Mapping[PolicyName, Callable[[Work, int], Placement]] = {
    "single": single,
    "critical_path": critical_path,
    "earliest_free": earliest_free,
    "max_concurrency": max_concurrency,
    "opara": opara,
    "longest_path": longest_path,
    "levels": levels,
    "urgent": urgent,
}
