"""Streams beyond PyTorch's pool, made through `cuda.bindings` where that is installed.

They are made once per process and used again by later runners, like those of the pool, and never destroyed: PyTorch's allocator keeps free
memory by stream handle, and CUDA may give the handle of a destroyed stream to a new one while work of the old one is still under way.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec

import torch

_made: dict[tuple[int, int], list[torch.cuda.ExternalStream]] = {}


def more_streams() -> bool:
    """Whether `cuda.bindings` is installed."""
    try:
        return find_spec("cuda.bindings.runtime") is not None
    except ModuleNotFoundError:
        return False


def further_stream(location: torch.device, priority: int, taken: Collection[int]) -> torch.cuda.ExternalStream:
    """A stream of that device and priority whose handle is none of `taken`: one that was made before, or a new one.

    Raises:
        RuntimeError: CUDA makes no more.
    """
    assert location.index is not None
    made = _made.setdefault((location.index, priority), [])
    for stream in made:
        if stream.cuda_stream not in taken:
            return stream
    from cuda.bindings import runtime  # type: ignore[import-not-found,unused-ignore]

    with torch.cuda.device(location):
        # Non-blocking, as PyTorch's are: not ordered with the legacy default stream.
        status, handle = runtime.cudaStreamCreateWithPriority(runtime.cudaStreamNonBlocking, priority)
    if int(status) != 0:
        raise RuntimeError(f"cudaStreamCreateWithPriority: {runtime.cudaGetErrorName(status)[1]}")
    stream = torch.cuda.ExternalStream(int(handle), device=location)  # type: ignore[no-untyped-call]
    made.append(stream)
    return stream
