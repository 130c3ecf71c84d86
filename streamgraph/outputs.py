"""Outputs: a Program and names of tensors become the same program with other results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from streamgraph.errors import Problem, SpecError, quoted
from streamgraph.model import OUTPUT_PREFIX, Kind, Output, Program
from streamgraph.names import near


def with_outputs(program: Program, names: Iterable[str]) -> Program:
    """The program with these outputs instead of its own. `plan` adds the copies that they need.

    Raises:
        SpecError: SG210 for every name that is no tensor and no family.
    """
    families = {family.name: family.members for family in program.families}
    outputs: list[Output] = []
    problems: list[Problem] = []
    for name in [names] if isinstance(names, str) else names:
        tensor = program.tensor_named.get(name)
        members = families.get(name.removesuffix("@*"))
        if tensor is not None and tensor.kind is not Kind.RESOURCE and not name.startswith(OUTPUT_PREFIX):
            outputs.append(Output(name, name))
        elif members is not None:
            outputs += [Output(member, member) for member in members]
        else:
            known = [t.name for t in program.tensors if not t.name.startswith(OUTPUT_PREFIX)]
            hint = near(name, [*known, *families])
            remedy = f"did you mean '{hint}'?" if hint else f"name a tensor or a family, such as {', '.join((*known, *families)[:5])}"
            problems.append(Problem("SG210", f"the output '{quoted(name)}' names no tensor of '{program.name}'", None, remedy))
    if problems:
        raise SpecError(*problems)
    return replace(
        program,
        tensors=tuple(tensor for tensor in program.tensors if not tensor.name.startswith(OUTPUT_PREFIX)),
        tasks=tuple(task for task in program.tasks if not task.name.startswith(OUTPUT_PREFIX)),
        outputs=tuple(dict.fromkeys(outputs)),
    )
