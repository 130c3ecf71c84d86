"""Python source: a schedule becomes plain torch code that does the same, to read, to keep, and to own. It needs nothing but torch.

The code has one function, `run(inputs, ops)`: `inputs` maps the program's inputs to tensors (members singly: `frame@0`), `ops` the
operators that are not torch's own to callables. Streams, events and buffers are made in the first call. What it leaves out is what
a runner adds: checks of what is passed and returned, and coming to rest after an error.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import assert_never

from streamgraph.calls import Call, Operand, Slot, prepare
from streamgraph.devices import first_device
from streamgraph.errors import quoted
from streamgraph.model import CPU, DEVICE, HOST, MAIN, TORCH_NAMES, Kind, Task, TensorType
from streamgraph.operators import resolve
from streamgraph.schedule import HostWait, Launch, Record, RecordStream, Release, Schedule, Step, Wait
from streamgraph.storages import Storage
from streamgraph.switches import switches, user

_TAKEN = frozenset({"torch", "hashlib", "device", "inputs", "ops", "main", "run", "prepare", "lanes", "events", "buffers", "left", "last"})
_PRIORITY = {"high": -1, "normal": 0, "low": 0}


def to_python(schedule: Schedule) -> str:
    """The code. It runs on `device`, a constant at its top, or on the program's devices; lane `main` is the caller's current stream."""
    return "\n".join(_Source(schedule).lines()) + "\n"


class _Names:
    """One Python name for each thing, close to its own."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], str] = {}
        self.used: set[str] = set(_TAKEN)

    def __call__(self, kind: str, name: str) -> str:
        key = (kind, name)
        if key not in self.of:
            plain = re.sub(r"\W+", "_", name).strip("_") or kind
            plain = f"{kind}_{plain}" if plain[0].isdigit() or keyword.iskeyword(plain) or plain in self.used else plain
            found, number = plain, 2
            while found in self.used:
                found, number = f"{plain}_{number}", number + 1
            self.of[key] = found
            self.used.add(found)
        return self.of[key]


class _Source:
    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.program = schedule, schedule.program
        self.storages = schedule.accesses.storages
        self.labelled = {storage.label: storage for storage in self.storages}
        self.name = _Names()
        self.calls, self.torchs = self._calls()
        self.wanted: dict[str, None] = {}  # keys of `ops`
        lanes = [lane for lane in schedule.lanes[1:] if not lane.is_host]
        self.lanes = {lane.name: _PRIORITY[lane.priority] for lane in lanes}
        host_events = {step.event for step in schedule.steps if isinstance(step, Record) and step.lane == HOST}
        self.events = [event for event in schedule.event_task if event not in host_events]
        self.host_events = host_events
        self.stream = {MAIN: "main", HOST: "main"} | {lane: self.name("lane", f"lane {lane}") for lane in self.lanes}
        self.switches = switches(schedule)
        self.first, self.devices = first_device(self.program), self.program.devices
        self.others = self.devices[1:]
        self.receiving = dict.fromkeys(
            (lane, target) for task, target in self.switches.targets.items() if (lane := schedule.lane_of[task]) != MAIN
        )
        self.at = {(lane, schedule.device_of[lane]): variable for lane, variable in self.stream.items() if lane != HOST}
        self.at |= {(MAIN, device): self.name("lane", f"main on {device}") for device in self.others}
        self.at |= {place: self.name("lane", f"{place[0]} to {place[1]}") for place in self.receiving}
        self.event = {event: self.name("event", event if event == "entry" else f"event {event.removeprefix('e')}") for event in self.events}

    def _calls(self) -> tuple[dict[str, Call], dict[str, str]]:
        """The call of each task by its name, and the path of torch's own operators."""
        calls = {call.task: call for call in prepare(self.program, self.schedule.accesses)}
        paths: dict[str, str] = {}
        if any(_is_torchs(task) for task in self.program.tasks):
            # Which overload fits, and how constants are passed to it, is in the schema, and that is in torch.
            for operator in resolve(self.program, _anything, "cuda", self.schedule.accesses):
                task = self.program.tasks[self.program.index_of_task[operator.call.task]]
                if _is_torchs(task):
                    calls[task.name], paths[task.name] = operator.call, f"torch.ops.{operator.function}"
        return calls, paths

    def lines(self) -> Iterator[str]:
        body = list(self.body())
        buffers = [storage for storage in self.storages if storage.kind is Kind.BUFFER]
        random = any(self.program.tensor_named[storage.tensor].init == "random" for storage in buffers)
        inputs = [tensor.name for tensor in self.program.inputs]
        yield f'"""{quoted(self.program.name)}: {self.schedule.counts}. Plain torch, written by streamgraph.'
        yield ""
        yield f"    inputs   {', '.join(map(quoted, inputs)) or 'none'}"
        yield f"    ops      {', '.join(map(quoted, self.wanted)) or 'none'}"
        yield ""
        yield "Call `run` on the same stream each time, or on streams other than those of its lanes. Under autocast, switch its cache off."
        if self.others:
            yield f"It runs on {' and '.join(self.devices)}; call it with {self.first} as the current device."
        yield '"""'
        yield ""
        yield from ["import hashlib", ""] * random
        yield "import torch"
        yield ""
        yield f'device = torch.device("{self.first if self.devices else "cuda"}")'
        yield "lanes, events, buffers = {}, {}, {}  # made in the first run"
        yield "left = {}  # values that their lanes may not drop yet when a run ends; the next run drops them"
        yield "last = []  # the stream of the run before"
        yield ""
        yield from self.prepare(buffers)
        yield from _RANDOM * random
        yield ""
        yield ""
        yield "@torch.no_grad()"
        yield "def run(inputs, ops):"
        yield f'    """The outputs by name: {", ".join(quoted(name) for name, _ in self.schedule.accesses.outputs) or "none"}."""'
        yield "    main = torch.cuda.current_stream(device)"
        for device in self.others:
            yield f"    {self.at[MAIN, device]} = torch.cuda.current_stream({device!r})"
        yield f"    prepare({', '.join(['main', *(self.at[MAIN, device] for device in self.others)])})"
        for lane, variable in self.stream.items():
            if lane in self.lanes:
                yield f"    {variable} = lanes[{lane!r}]"
        for lane, device in self.receiving:
            yield f"    {self.at[lane, device]} = lanes[{f'{lane} to {device}'!r}]  # only new memory is taken from it: no task runs there"
        for event, variable in self.event.items():
            yield f"    {variable} = events[{event!r}]"
        for storage in self.storages:
            if storage.kind is Kind.BUFFER:
                yield f"    {self.variable(storage)} = buffers[{storage.label!r}]"
            elif storage.kind is Kind.INPUT:
                yield f"    {self.variable(storage)} = inputs[{storage.tensor!r}]"
        yield ""
        yield from body

    def prepare(self, buffers: Sequence[Storage]) -> Iterator[str]:
        yield ""
        yield f"def prepare(main{', *others' if self.others else ''}):"
        yield f"    taken = {{main.cuda_stream{', *(other.cuda_stream for other in others)' if self.others else ''}}}"
        yield "    if last and last[0] != main:"
        yield '        assert main not in lanes.values(), "this stream is a lane of the schedule: call `run` on another one"'
        yield "        main.wait_stream(last[0])"
        yield "    last[:] = [main]"
        made = [(lane, priority, self.schedule.device_of[lane]) for lane, priority in self.lanes.items()]
        made += [(f"{lane} to {device}", 0, device) for lane, device in self.receiving]
        if made and self.others:
            yield f"    for name, priority, on in {made!r}:"
        elif made:
            yield f"    for name, priority in {list(self.lanes.items())!r}:"
        if made:
            yield "        # PyTorch hands out 32 streams in turn, then the same ones again: two lanes on one stream would be one lane."
            yield "        for _ in range(64):"
            yield "            if name in lanes and lanes[name].cuda_stream not in taken:"
            yield "                break"
            yield f"            lanes[name] = torch.cuda.Stream({'on' if self.others else 'device'}, priority=priority)"
            yield "        else:"
            yield '            raise RuntimeError(f"no stream is left for lane {name}")'
            yield "        taken.add(lanes[name].cuda_stream)"
        if self.events:
            yield "    if not events:"
            yield f"        events.update((name, torch.cuda.Event()) for name in {self.events!r})"
        if buffers:
            yield "    if not buffers:"
            for storage in buffers:
                yield f"        buffers[{storage.label!r}] = {self.initial(storage)}"

    def where(self, device: str, pinned: bool) -> str:
        if device == CPU:
            return f'device="cpu"{", pin_memory=True" if pinned else ""}'
        return "device=device" if device in (DEVICE, self.first) else f'device="{device}"'

    def initial(self, storage: Storage) -> str:
        tensor = self.program.tensor_named[storage.tensor]
        assert tensor.type is not None
        where = self.where(tensor.device, tensor.pinned)
        dtype, shape = f"torch.{TORCH_NAMES[tensor.type.dtype]}", tensor.type.shape
        match tensor.init or "zeros":
            case "zeros" | "ones" | "empty" as init:
                return f"torch.{init}({shape}, dtype={dtype}, {where})"
            case "arange":
                made = f"torch.arange({tensor.type.elements}).to({dtype}).reshape({shape})"
            case _:
                made = f"random({tensor.name!r}, {shape}, {dtype})"
        return f"torch.empty({shape}, dtype={dtype}, {where}).copy_({made})"

    # --- the steps ---

    def body(self) -> Iterator[str]:
        for device in self.others:
            yield f"    main.wait_stream({self.at[MAIN, device]})"
        inside: tuple[str, ...] = ()  # the streams whose `with` block is open
        for step in self.schedule.steps:
            streams = () if not isinstance(step, Launch | Release) else inside if isinstance(step, Release) else self.around(step)
            if streams and streams != inside:
                yield f"    with {', '.join(f'torch.cuda.stream({stream})' for stream in streams)}:"
            inside = streams
            for text in self.step(step):
                yield ("        " if inside else "    ") + text
        for label in self.left():
            yield f"    left[{label!r}] = {self.variable(self.labelled[label])}  # its lane does not know yet that all uses are over"
        for device in self.others:
            yield f"    {self.at[MAIN, device]}.wait_stream(main)"
        results = ", ".join(f"{name!r}: {self.variable(self.storages[number])}" for name, number in self.schedule.accesses.outputs)
        yield f"    return {{{results}}}"

    def around(self, step: Launch) -> tuple[str, ...]:
        """The streams to be current for a launch; none on `main`, which is current as it is."""
        if step.lane in (MAIN, HOST):
            return ()
        target = self.switches.targets.get(step.task)
        return (*([self.at[step.lane, target]] if target is not None else []), self.stream[step.lane])

    def step(self, step: Step) -> Iterator[str]:
        match step:
            case Launch(task, lane):
                yield from self.launch(self.calls[task])
                if task in self.switches.targets:
                    target = self.at[lane, self.switches.targets[task]]
                    yield _said(f"{self.stream[lane]}.wait_stream({target})", "where it ends if the two have no access to each other")
            case Record(event, lane):
                if lane != HOST:
                    yield _said(f"{self.event[event]}.record({self.stream[lane]})", f"after {step.task}")
            case Wait(event, lane, why):
                if event not in self.host_events:
                    yield _said(f"{self.stream[lane]}.wait_event({self.event[event]})", *why)
            case HostWait(event, previous, why):
                yield _said(f"{self.event[event]}.synchronize()", *["as the run before recorded it"] * previous, *why)
            case Release(label, lane, previous, why):
                place = self.switches.received.get(self.storages.index(self.labelled[label]))
                if place is not None:
                    yield _said(f"{self.at[place]}.wait_stream({self.stream[lane]})", "the stream that its memory was taken from")
                if previous:
                    yield _said(f"left.pop({label!r}, None)", *why)
                else:
                    yield _said(f"del {self.variable(self.labelled[label])}", f"memory of lane {lane}", *why)
            case RecordStream(label, lane, why):
                number = self.storages.index(self.labelled[label])
                yield _said(f"{self.variable(self.labelled[label])}.record_stream({self.at[user(self.schedule, number, lane)]})", *why)
            case _:
                assert_never(step)

    def left(self) -> list[str]:
        released = {step.storage for step in self.schedule.steps if isinstance(step, Release) and not step.previous}
        kept = self.schedule.accesses.output_storages
        return [
            storage.label for number, storage in enumerate(self.storages)
            if storage.kind is Kind.VALUE and number not in kept and storage.label not in released
        ]  # fmt: skip

    def launch(self, call: Call) -> Iterator[str]:
        about = call.task + (", on the host" if call.host else "")
        if call.is_copy:
            yield from self.copy(call, about)
            return
        arguments = [self.slot(slot) for slot in call.positional]
        named = [(name, self.slot(slot)) for name, slot in call.keywords]
        named += [(name, _constant(value) or self.wants(f"{call.task}.{name}")) for name, value in call.const]
        spread = any(not name.isidentifier() or keyword.iskeyword(name) for name, _ in named)
        arguments += [f"**{{{', '.join(f'{name!r}: {text}' for name, text in named)}}}"] if spread else [f"{n}={t}" for n, t in named]
        targets = [self.variable(self.storages[returned.storage]) for returned in call.returns]
        result = f"{', '.join(targets)}{',' if call.returns_sequence and len(targets) == 1 else ''} = " if targets else ""
        function = self.torchs.get(call.task) or self.wants(self.key(call.task))
        yield _said(f"{result}{function}({', '.join(arguments)})", about)

    def copy(self, call: Call, about: str) -> Iterator[str]:
        keywords = dict(call.keywords)
        (source,) = call.positional or tuple(slot for name, slot in call.keywords if name != "out")
        if not call.returns:
            yield _said(f"{self.slot(keywords['out'])}.copy_({self.slot(source)}, non_blocking=True)", about)
            return
        (returned,) = call.returns
        storage = self.storages[returned.storage]
        dtype = f"dtype=torch.{TORCH_NAMES[returned.type.dtype]}, " if isinstance(returned.type, TensorType) else ""
        made = f"torch.empty_like({self.slot(source)}, {dtype}{self.where(returned.device, returned.pinned)})"
        yield _said(f"{self.variable(storage)} = {made}.copy_({self.slot(source)}, non_blocking=True)", about)

    def wants(self, key: str) -> str:
        self.wanted[key] = None
        return f"ops[{key!r}]"

    def key(self, task_name: str) -> str:
        """An operator goes by its name; callables that share one go by their tasks."""
        task = self.program.tasks[self.program.index_of_task[task_name]]
        same = {id(other.function) for other in self.program.tasks if other.operator == task.operator}
        return task.operator if len(same) == 1 else task.name

    def slot(self, slot: Slot) -> str:
        if isinstance(slot, Operand):
            index = ", ".join(str(part) if isinstance(part, int) else f"{part[0]}:{part[1]}" for part in slot.index)
            return self.variable(self.storages[slot.storage]) + (f"[{index}]" if index else "")
        items = [self.slot(item) for item in slot.items]
        return f"[{', '.join(items)}]" if slot.is_list else f"({', '.join(items)},)"

    def variable(self, storage: Storage) -> str:
        return self.name("tensor", storage.label)


def _is_torchs(task: Task) -> bool:
    return task.function is None and task.operator.startswith("aten.")


def _anything(task: Task) -> Any:
    """Stands in for the caller's operators, whose signatures are not known here."""
    return None if _is_torchs(task) else lambda *positional, **keywords: None


def _said(code: str, *why: object) -> str:
    return f"{code:<56}  # {quoted('; '.join(map(str, why)), 400)}" if why else code


def _constant(value: object) -> str | None:
    """A constant as Python writes it; None for what is no plain data."""
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, list | tuple):
        parts = [_constant(item) for item in value]
        inner = ", ".join(part for part in parts if part is not None)
        if None in parts:
            return None
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(parts) == 1 else ''})"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if kind == "torch.device":
        return f'torch.device("{value}")'
    return str(value) if kind in ("torch.dtype", "torch.layout", "torch.memory_format") else None


_RANDOM = [
    "", "",
    "def random(name, shape, dtype, seed=0):",
    '    """The bytes that `init: random` stands for: they depend on the name and the seed alone."""',
    '    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()',
    '    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "little"))',
    "    if dtype == torch.bool:",
    "        return torch.randint(0, 2, shape, generator=generator).to(dtype)",
    "    if dtype.is_complex or dtype.is_floating_point:",
    "        wide = dtype if dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128) else torch.float32",
    "        return torch.randn(shape, generator=generator, dtype=wide).to(dtype)",
    "    return torch.randint(0, 128, shape, generator=generator).to(dtype)",
]  # fmt: skip
