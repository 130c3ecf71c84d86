"""Compare: one program, run task after task and run as planned, on the same inputs; which task first wrote other bytes?

Every task's written tensors are hashed right after it, on its own lane and stream: nothing is added to the schedule, and nothing waits. The
hash is a sum of 64-bit words times odd weights, in integers, so it is the same on every run. A verified schedule keeps every
declared order; so where bytes differ, an operator touches memory that its task does not declare, or is not deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from streamgraph.binding import Given, bind, made_up, written_in_place
from streamgraph.calls import Call, gpus, operands, type_text
from streamgraph.cost import Measured
from streamgraph.machine import AnyMachine
from streamgraph.model import Program
from streamgraph.outputs import with_outputs
from streamgraph.plan import Order, Release, Spec, Streams, as_program, issue_of, plan
from streamgraph.portfolio import Policy
from streamgraph.returned import tensors_in
from streamgraph.runner import ExecutorName
from streamgraph.schedule import Schedule
from streamgraph.storages import Mode

if TYPE_CHECKING:
    import torch

    from streamgraph.operators import Operator, Operators

Digest = tuple[str, "torch.Tensor"]
"""The type of a written tensor, and the hash of its bytes as i64[2]."""

_CHUNK = 1 << 22  # words hashed at a time, which bounds the extra memory
_WEIGHTS = (-7046029254386353131, 6364136223846793005)  # odd; golden-ratio and Knuth's MMIX multipliers


@dataclass(frozen=True, slots=True)
class Delta:
    """How two tensors differ: `count` of `total` elements, the first of them at `index`, the largest distance (None if not a number)."""

    count: int
    total: int
    index: tuple[int, ...]
    largest: float | None


@dataclass(frozen=True, slots=True)
class Compared:
    """One result, or an input that the program changes in place, and how the planned run's differs (None: it does not)."""

    name: str
    type: str
    delta: Delta | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The first task, in declaration order, whose written bytes differ, and the tensors that do."""

    task: str
    lane: str
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `tasks` counts those compared, `differing` names those that differ, in declaration order.

    `repeatable` says, where something differs, whether two runs of task after task agree with each other (None: not tried).
    """

    schedule: Schedule
    executor: str
    device: str
    tasks: int
    results: tuple[Compared, ...]
    first: Difference | None
    differing: tuple[str, ...]
    repeatable: bool | None
    made_up: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether every task wrote the same bytes, and every result is the same."""
        return not self.differing and all(result.delta is None for result in self.results)


def compare(
    spec: Spec,
    inputs: Given | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    ops: Operators | None = None,
    device: str = "auto",
    executor: ExecutorName = "auto",
    streams: Streams = "auto",
    order: Order = "declared",
    release: Release = "default",
    policy: Policy = "auto",
    costs: Measured | None = None,
    machine: AnyMachine = None,
    outputs: Iterable[str] | None = None,
    seed: int = 0,
) -> Comparison:
    """Run a spec task after task, and as planned, on the same inputs, and compare the bytes that every task writes.

    It is planned as `run` would plan it for this executor. Args and errors as `streamgraph.run`. The inputs stay as they are: what the
    program changes in place is copied first. Torch's generators are seeded before each run, and restored.
    """
    import torch

    from streamgraph.executors.choose import chosen
    from streamgraph.executors.device import find
    from streamgraph.executors.watched import copied, watched_executor

    if outputs is not None:
        spec = with_outputs(as_program(spec, params), outputs)
        params = None
    schedule = plan(
        spec, params=params, streams=streams, order=order, release=release, policy=policy, costs=costs, machine=machine,
        issue=issue_of(executor),
    )  # fmt: skip
    program = schedule.program
    where = find(device, schedule.program)
    location = where.location
    name = chosen(executor, location)
    invented = made_up(program, inputs or {}, location, seed)
    written = written_in_place(program, schedule.accesses)
    tensors = bind(program, {**invented, **(inputs or {})}, location, written=written)

    def once(which: str) -> tuple[_Witness, dict[str, torch.Tensor]]:
        fresh = {key: copied(value) if key in written else value for key, value in tensors.items()}
        torch.manual_seed(seed)
        witness = _Witness()
        running = watched_executor(schedule, which, ops, where, seed, witness.watched)
        try:
            finished = running.run(fresh)
            if location.type == "cuda":
                torch.cuda.synchronize(location)
            results = {**finished.outputs, **{f"{key} (input)": fresh[key] for key in written}}
        finally:
            running.close()
        return witness, results

    with torch.random.fork_rng(devices=gpus(program, location)):
        reference, expected = once("sequential")
        planned, found = once(name)
        differing = reference.differs(planned, program)
        results = tuple(Compared(key, type_text(value), delta(value, found[key])) for key, value in expected.items())
        repeatable = None
        if differing or any(result.delta is not None for result in results):
            repeatable = not reference.differs(once("sequential")[0], program)
    first = None
    if differing:
        task = next(iter(differing))
        first = Difference(task, schedule.lane_of[task], differing[task])
    return Comparison(
        schedule, name, str(location), len(program.tasks), results, first, tuple(differing), repeatable, tuple(invented)
    )


def delta(expected: torch.Tensor, found: torch.Tensor) -> Delta | None:
    """How two tensors of one type differ, bit by bit: NaN equals the same NaN, and 0.0 is not -0.0. None if they do not."""
    import torch

    mine, its = expected.detach().cpu().contiguous(), found.detach().cpu().contiguous()
    if mine.shape != its.shape or mine.dtype != its.dtype:
        return Delta(max(mine.numel(), its.numel()), mine.numel(), (), None)
    if mine.numel() == 0:
        return None
    size = mine.element_size()
    unequal = (_bytes(mine).reshape(-1, size) != _bytes(its).reshape(-1, size)).any(dim=1)
    count = int(unequal.sum())
    if count == 0:
        return None
    first = int(unequal.to(torch.uint8).argmax())
    index: list[int] = []
    for extent in reversed(mine.shape):
        index.insert(0, first % extent)
        first //= extent
    wide = torch.complex128 if mine.is_complex() else torch.float64
    distance = float((mine.to(wide) - its.to(wide)).abs().max())
    return Delta(count, mine.numel(), tuple(index), distance if distance == distance and distance != float("inf") else None)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, as u8[n]."""
    import torch

    return tensor.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


class _Witness:
    """Notes what each task wrote, as digests that stay on the device until they are compared."""

    def __init__(self) -> None:
        self.digests: dict[str, tuple[tuple[str, Digest], ...]] = {}

    def watched(self, operator: Operator, location: torch.device) -> Operator:
        """The operator, noted. A copy becomes a plain call that does the same, since executors do not call its function."""
        from streamgraph.executors.watched import copy_call

        call = operator.call
        function = partial(copy_call, call, location) if call.is_copy else operator.function
        # What a device task writes to host memory may still be on its way when the call returns: it is hashed on the stream as well.
        noted = partial(self._noted, call, function, not call.host and location.type != "cpu")
        return replace(operator, function=noted, call=replace(call, is_copy=False))

    def _noted(self, call: Call, function: Any, on_device: bool, *positional: Any, **keywords: Any) -> Any:
        result = function(*positional, **keywords)
        slots = [*zip(call.positional, positional, strict=True), *((slot, keywords[name]) for name, slot in call.keywords)]
        written = [pair for slot, value in slots for pair in zip(operands(slot), tensors_in(value), strict=True)]
        noted = [(operand.tensor, _digest(tensor, on_device)) for operand, tensor in written if operand.mode is not Mode.READ]
        if call.returns:
            returned = tuple(result) if call.returns_sequence else (result,)
            # What is not a tensor is an error that the executor finds right after this.
            pairs = zip(call.returns, returned, strict=False)
            noted += [(place.tensor, _digest(value, on_device)) for place, value in pairs if _is_tensor(value)]
        self.digests[call.task] = tuple(noted)
        return result

    def differs(self, other: _Witness, program: Program) -> dict[str, tuple[str, ...]]:
        """The tensors that differ, by task, in declaration order."""
        found: dict[str, tuple[str, ...]] = {}
        for task in program.tasks:
            pairs = zip(self.digests[task.name], other.digests[task.name], strict=True)
            names = tuple(name for (name, mine), (_, its) in pairs if mine[0] != its[0] or mine[1].tolist() != its[1].tolist())
            if names:
                found[task.name] = names
        return found


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _digest(tensor: torch.Tensor, on_device: bool = False) -> Digest:
    """The type and the hash, computed where the tensor is; `on_device`, host memory on the current device, whose stream writes it.

    Nothing waits for it.
    """
    import torch

    here = tensor.detach().to("cuda", non_blocking=True) if on_device and not tensor.is_cuda else tensor.detach()
    flat = _bytes(here.contiguous())
    if flat.storage_offset() % 8:
        flat = flat.clone()
    whole = flat.numel() // 8 * 8
    total = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for number, part in enumerate((*torch.split(flat[:whole].view(torch.int64), _CHUNK), flat[whole:].to(torch.int64))):
        place = torch.arange(1, part.numel() + 1, dtype=torch.int64, device=part.device) + number * _CHUNK
        mixed = part ^ (part >> 29)
        for column, weight in enumerate(_WEIGHTS):
            total[column] += (mixed * (place * weight | 1)).sum()
    return type_text(tensor), total
