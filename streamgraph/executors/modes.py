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


@contextmanager
def on_stream(device: Device, stream: Stream) -> Iterator[None]:
    """The stream is current; afterwards the stream and the device that were."""
    before, index = device.current_stream(), device.current_device()
    try:
        device.set_stream(stream)
        yield
    finally:
        device.set_stream(before)
        if index != device.current_device():
            device.set_device(index)


@contextmanager
def task_mode() -> Iterator[None]:
    """No gradients, and no cache of casts: autocast keeps the casts of weights for all streams, without an order between them.

    A cast that one lane makes and another finds in the cache would be a race that no declaration shows.
    """
    cached = torch.is_autocast_cache_enabled()
    with torch.no_grad():
        if cached:
            torch.set_autocast_cache_enabled(False)
        try:
            yield
        finally:
            if cached:
                torch.set_autocast_cache_enabled(True)


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
