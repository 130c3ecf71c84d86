"""Graph: a schedule captured once as a CUDA graph, and replayed from then on.

    call 1      an eager run, checked, on the streams that will be captured: kernels and workspaces are loaded before any capture
    call 2      the steps are captured (nothing runs), then replayed
    call 3 ...  inputs are copied in, the graph is replayed, outputs are copied out

An input that was bound for good is read where it lies; one that is bound at each call has a static tensor, into which it is copied. Outputs
are copies too, so that no later replay changes them. The graph runs on the caller's stream, as one piece of work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch

from streamgraph.binding import written_in_place
from streamgraph.calls import type_text
from streamgraph.errors import BindingError, DeviceError, Problem
from streamgraph.executors import Finished
from streamgraph.executors.capture import Captures, Graph, capturing, issue, lanes_for, results
from streamgraph.executors.device import Device, Event, Stream
from streamgraph.executors.direct import direct
from streamgraph.executors.eager import EagerExecutor
from streamgraph.executors.memory import Memory
from streamgraph.executors.modes import task_mode
from streamgraph.model import MAIN
from streamgraph.operators import Operator
from streamgraph.schedule import Schedule


@dataclass(frozen=True, slots=True)
class _Copied:
    """The inputs that are copied before a replay, and those that tasks change and that are copied back, by where they lie."""

    device: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    device_back: tuple[str, ...] = ()
    host_back: tuple[str, ...] = ()


class GraphExecutor:
    """Runs a schedule without host tasks as a CUDA graph; `SplitExecutor` takes those that have some.

    `bound` are the inputs whose tensors stay the same in every call.

    Raises:
        DeviceError: SG606 no device, or no allocator, that captures.
    """

    def __init__(
        self, schedule: Schedule, operators: Sequence[Operator], device: Device, seed: int, bound: Mapping[str, torch.Tensor]
    ) -> None:
        if isinstance(device, Captures) and not device.captures_memory():
            message = "executor 'graph' needs PyTorch's own allocator, and this process uses another one (backend:cudaMallocAsync)"
            raise DeviceError(Problem("SG606", message, None, "leave `backend` out of PYTORCH_CUDA_ALLOC_CONF, or use executor='eager'"))
        if not isinstance(device, Captures):
            message = f"executor 'graph' captures CUDA graphs, and this run is on {device.location}"
            raise DeviceError(Problem("SG606", message, None, "use executor='auto', which suits every device"))
        self.schedule, self.device, self._captures = schedule, device, device
        self._eager = EagerExecutor(schedule, operators, device, seed)
        self._operators = {operator.call.task: operator for operator in operators}
        self._bound = dict(bound)
        self._host = {t.name for t in schedule.program.inputs if t.device == "cpu"}
        self._host_outputs = tuple(n for n, number in schedule.accesses.outputs if schedule.accesses.storages[number].host)
        self._result_memory = ResultMemory()
        self._stream: Stream | None = None  # lane 0 of the eager run and of the capture
        self._last: Stream | None = None  # the caller's stream of the latest run
        self._came_on: dict[str, Stream] = {}
        self._graph: Graph | None = None
        self._static: dict[str, torch.Tensor] = {}  # what the graph reads, by input
        self._results: dict[str, torch.Tensor] = {}  # what the graph writes, by output
        each_call = [tensor for tensor in schedule.program.inputs if tensor.name not in bound]
        written = written_in_place(schedule.program, schedule.accesses)
        on_device = tuple(tensor.name for tensor in each_call if tensor.device != "cpu")
        on_host = tuple(tensor.name for tensor in each_call if tensor.device == "cpu")
        self._copied = _Copied(
            on_device, on_host, tuple(n for n in on_device if n in written), tuple(n for n in on_host if n in written)
        )
        self._direct = direct(device)
        self._key: Hashable = None  # of the stream `_last`
        self._done: Event | None = None  # the end of the latest replay, where the host has to know

    @property
    def memory(self) -> Memory:
        """Buffers, and which storages there are."""
        return self._eager.memory

    @property
    def bound(self) -> Mapping[str, torch.Tensor]:
        """The inputs that stay for good."""
        return self._bound

    @property
    def streams(self) -> Mapping[str, Stream]:
        """Under `main`, the stream that the latest call came on."""
        return self._came_on

    @property
    def captured(self) -> bool:
        """Whether the next call replays a graph."""
        return self._graph is not None

    def run(self, inputs: Mapping[str, torch.Tensor]) -> Finished:
        """Replay, or what must come before it. See `Executor.run`."""
        direct = self._direct
        if self._ready() and direct.current() == self._key and direct.device_is_current() and not direct.is_capturing():
            assert self._last is not None
            return self._replay(self._last, inputs)
        return self._run_apart(inputs)

    def _ready(self) -> bool:
        return self._graph is not None

    def _run_apart(self, inputs: Mapping[str, torch.Tensor]) -> Finished:
        """A run that is not the same as the one before it."""
        device = self.device
        if device.is_capturing() or not self.schedule.lane_of:
            return self._eager.run(inputs)  # joins the caller's capture; or there is nothing to capture
        main, device_before = device.current_stream(), device.current_device()
        try:
            if device_before != (device.location.index or 0):
                device.set_stream(main)
            if self._last is not None and self._last.cuda_stream != main.cuda_stream:
                self._eager.follow(main, self._last)
            self._last, self._key = main, self._direct.current()
            self._came_on[MAIN] = main
            if self._eager.first or self._eager.broken is not None:
                return self._run_eagerly(main, inputs)
            if not self.captured:
                self._check(inputs)
                self._capture(main, inputs)
            return self._replay(main, inputs)
        finally:
            device.set_stream(main)
            if device_before != device.current_device():
                device.set_device(device_before)

    def _run_eagerly(self, main: Stream, inputs: Mapping[str, torch.Tensor]) -> Finished:
        """A run with the capture stream as lane 0, between the caller's work before it and after it."""
        if self._stream is None or self._stream.cuda_stream == main.cuda_stream:
            self._stream = self.device.new_stream("normal", {main.cuda_stream})
        self._eager.follow(self._stream, main)
        self.device.set_stream(self._stream)
        finished = self._eager.run(inputs)
        self._eager.follow(main, self._stream)
        for name, tensor in finished.outputs.items():
            if name not in self._host_outputs:
                self.device.record_stream(tensor, main)  # the allocator knows the stream that it was made on
        return finished

    def _check(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """SG613 for inputs that the graph cannot take."""
        problems: list[Problem] = []
        for name, tensor in inputs.items():
            static = self._static.get(name)
            if name in self._bound:
                if tensor is not self._bound[name]:
                    message = f"input '{name}' was bound for good, so the CUDA graph reads that tensor; this call binds another"
                    problems.append(Problem("SG613", message, None, "bind it at each call instead of in `compile`, and it is copied in"))
            elif static is not None and (static.shape, static.dtype) != (tensor.shape, tensor.dtype):
                message = f"input '{name}' is {type_text(tensor)}, but the CUDA graph was captured with {type_text(static)}"
                problems.append(Problem("SG613", message, None, "compile a second runner for other shapes"))
        if problems:
            raise BindingError(*problems)

    def _capture(self, main: Stream, inputs: Mapping[str, torch.Tensor]) -> None:
        """Record the steps. Nothing is run.

        Raises:
            TaskError: a task raised, or did what cannot be captured.
            RunnerError: SG614.
        """
        device, eager, stream = self.device, self._eager, self._stream
        assert stream is not None
        static = {name: tensor if name in self._bound else self._static_like(name, tensor) for name, tensor in inputs.items()}
        eager.drop_left_over()
        streams = lanes_for(self.schedule, eager.streams, device, stream)
        graph = self._captures.new_graph()
        device.set_stream(stream)
        try:
            with capturing(graph, self.schedule.program.name), task_mode():
                cells = eager.memory.begin(static)
                issue(self.schedule, self._operators, device, streams, cells, eager.number)
        finally:
            device.set_stream(main)
        # Values that the steps left over go here: they are memory of the graph, and nothing else is made in it.
        self._static, self._results, self._graph = static, results(self.schedule, cells), graph

    def _static_like(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        on_gpu = self.device.location.type == "cuda"
        with torch.inference_mode(False), torch.no_grad():
            return torch.empty_like(tensor, pin_memory=name in self._host and on_gpu)

    def _replay(self, main: Stream, inputs: Mapping[str, torch.Tensor]) -> Finished:
        self._check(inputs)
        gradients = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            return self._replay_unchecked(main, inputs)
        finally:
            torch._C._set_grad_enabled(gradients)

    def _replay_unchecked(self, main: Stream, inputs: Mapping[str, torch.Tensor]) -> Finished:
        assert self._graph is not None
        device, captures, copied = self.device, self._captures, self._copied
        for name in copied.device:
            captures.copy(self._static[name], inputs[name])
        if copied.host and self._done is not None:
            self._done.synchronize()  # the replay before this one may still read them
        for name in copied.host:
            self._static[name].copy_(inputs[name])
        self._graph.replay()
        outputs = {name: tensor if name in self._host_outputs else captures.clone(tensor) for name, tensor in self._results.items()}
        for name in copied.device_back:
            captures.copy(inputs[name], self._static[name])
        if copied.host or copied.host_back or self._host_outputs:
            self._done = self._done or device.new_event()
            device.record(self._done, main)
            # Pinned memory takes some 30 us to get: get it while the device is at work.
            taken = {name: self._result_memory.like(name, self._results[name]) for name in self._host_outputs}
            if copied.host_back or taken:
                self._done.synchronize()
            for name, tensor in taken.items():
                outputs[name] = tensor.copy_(self._results[name])
            for name in copied.host_back:
                inputs[name].copy_(self._static[name])
        return Finished(outputs, self._inputs_free(main))

    def _inputs_free(self, main: Stream) -> Callable[[], None]:
        """What each call binds was copied, or is a host tensor that the graph reads where it lies: then until the replay is done."""
        reads_host = any(name in self._bound for name in self._host)
        device = self.device

        def wait() -> None:
            if reads_host:
                tail = device.new_event()
                device.record(tail, main)
                tail.synchronize()

        return wait

    def runs_on(self, thread: int) -> bool:
        """Never: tasks run on the caller's thread. See `Executor.runs_on`."""
        return False

    def close(self) -> None:
        """Wait for the latest replay, and give the graph and all memory back. See `Executor.close`."""
        if self._last is not None and self._eager.broken is None:
            end = self.device.new_event()
            self.device.record(end, self._last)
            end.synchronize()
        self._results = {}
        self._static = {}
        self._bound = {}
        if self._graph is not None:
            self._graph.reset()
            self._graph = None
        self._eager.close()


class ResultMemory:
    """New host memory for results. Whether what it is to hold is pinned takes a call of the driver to tell: that is asked once."""

    def __init__(self) -> None:
        self._pinned: dict[str, bool] = {}

    def like(self, output: str, tensor: torch.Tensor) -> torch.Tensor:
        """Memory for an output, which lies in `tensor` now, and will again."""
        if output not in self._pinned:
            self._pinned[output] = tensor.is_pinned()
        return torch.empty_like(tensor, pin_memory=self._pinned[output])
