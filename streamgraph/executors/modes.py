"""The thread-local state of torch that tasks run under: the current stream, gradients and casts, and what a lane's thread takes over from
the caller at each run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from streamgraph.executors.device import Device, Stream

AUTOCAST = ("cpu", "cuda")  # the kinds of devices whose casts are carried along


class on_stream:
    """The stream is current; afterwards the stream and the device that were.

    A class, as `task_mode`: loops enter both for each item, and generators take twice as long. Where the stream is current already, which
    is what happens, nobody asks which one was: that makes an object (`torch.cuda.current_stream`, 4 us on an H200).
    """

    __slots__ = ("_before", "_device", "_stream")

    def __init__(self, device: Device, stream: Stream) -> None:
        self._device, self._stream = device, stream

    def __enter__(self) -> None:
        device, stream = self._device, self._stream
        self._before: tuple[Stream, int] | None = None
        if not device.is_current(stream):
            self._before = device.current_stream(), device.current_device()
            device.set_stream(stream)

    def __exit__(self, *raised: object) -> None:
        device = self._device
        before, index = self._before or (self._stream, None)
        device.set_stream(before)
        if index is not None and index != device.current_device():
            device.set_device(index)


class task_mode:
    """No gradients, and no cache of casts: autocast keeps the casts of weights for all streams, without an order between them.

    A cast that one lane makes and another finds in the cache would be a race that no declaration shows.
    """

    __slots__ = ("_cached", "_gradients")

    def __enter__(self) -> None:
        self._gradients, self._cached = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
        torch._C._set_grad_enabled(False)
        torch.set_autocast_cache_enabled(False)

    def __exit__(self, *raised: object) -> None:
        torch.set_autocast_cache_enabled(self._cached)
        torch._C._set_grad_enabled(self._gradients)


@dataclass(frozen=True, slots=True)
class CallerState:
    """Inference mode, autocast and the number of intra-op threads of the thread that called `take`."""

    inference: bool
    threads: int
    autocast: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def take(cls) -> CallerState:
        """The state of this thread."""
        autocast = tuple((kind, torch.get_autocast_dtype(kind)) for kind in AUTOCAST if torch.is_autocast_enabled(kind))
        return cls(torch.is_inference_mode_enabled(), torch.get_num_threads(), autocast)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give this thread the state, and `task_mode`; afterwards it has its own again: it may be the caller's."""
        # OpenMP keeps the number of threads per thread, and ATen the number that a new thread begins with (measured with torch 2.13: a
        # thread that sets 2 leaves its parent at 1, and later threads begin with 2). Setting the caller's own number makes every lane
        # split its work as the caller would, so that results are the same bits, and tells new threads nothing new.
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        with ExitStack() as stack:
            if self.inference != torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(self.inference))
            wanted = dict(self.autocast)
            for kind in AUTOCAST:
                enabled = torch.is_autocast_enabled(kind)
                if enabled or kind in wanted:
                    # Not torch.autocast: its exit empties the cache of casts that the caller's own autocast region shares.
                    stack.callback(torch.set_autocast_dtype, kind, torch.get_autocast_dtype(kind))
                    stack.callback(torch.set_autocast_enabled, kind, enabled)
                    torch.set_autocast_dtype(kind, wanted.get(kind, torch.get_autocast_dtype(kind)))
                    torch.set_autocast_enabled(kind, kind in wanted)
            stack.enter_context(task_mode())
            yield
