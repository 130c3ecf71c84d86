"""The verifier: a Schedule and its Program become the violations of the order that the program demands; none means that it is safe.

It takes what must be ordered from the Program and what is ordered from the steps, and shares nothing with the planner:

    clocks       the steps, played for two runs back to back -> what each task has seen of every lane
    structure    steps that are missing, repeated, or mean nothing where they stand
    conflicts    accesses -> neighbouring tasks that conflict and are not ordered
    order        all pairs that must be ordered and are not: conflicts, `after`, host order, entry, exit, releases
    violation    a fault or a pair -> facts, a sentence in the user's names, and the missing edge
    check        all of it: `verify` and `ensure`

What is ordered although nothing demands it is no violation: that a plan is minimal is shown by taking steps away and looking here.
"""

from streamgraph.verify.check import ensure, verify
from streamgraph.verify.violation import Violation

__all__ = ["Violation", "ensure", "verify"]
