"""Node priority: the kernels that a stream is given while it is captured become nodes of another priority than the stream has.

In a graph a priority belongs to a kernel's node, which gets the stream's when it is captured (`cuGraphKernelNodeSetAttribute` in the CUDA
driver API; PyTorch instantiates graphs with `USE_NODE_PRIORITY`, so that replays heed it). So a launch needs no other stream for a priority
of its own: its lane stays one stream, with that stream's memory and workspaces and without an edge more. Which nodes a launch has made, the
driver says: those between what the stream's next node would have followed before it and what it would follow now.

The driver is called directly: PyTorch has no call for this, and `cuda.bindings` is not everywhere.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
KERNEL = 0  # CU_GRAPH_NODE_TYPE_KERNEL
PRIORITY = 8  # CU_LAUNCH_ATTRIBUTE_PRIORITY
CALLS = ("cuStreamGetCaptureInfo_v3", "cuGraphNodeGetDependencies_v2", "cuGraphNodeGetType", "cuGraphKernelNodeSetAttribute")


class _Value(ctypes.Union):
    """CUlaunchAttributeValue."""

    _fields_ = (("priority", ctypes.c_int), ("pad", ctypes.c_char * 64))


@contextmanager
def node_priority(stream: int, priority: int) -> Iterator[None]:
    """Kernels that the stream of this handle is given inside get that priority, if it is being captured; CUDA's "higher" is lower.

    Nothing happens where the driver cannot be asked (it is older than CUDA 12.3, or not NVIDIA's): a priority orders nothing.
    """
    before = _tails(stream)
    yield
    seen, left = set(before), list(_tails(stream))
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            left += _dependencies(node)
            _set(node, priority)


@cache
def driver() -> ctypes.CDLL | None:
    """The driver's library, if it has all that is needed."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        for name in CALLS:
            getattr(library, name)
    except (OSError, AttributeError):
        return None
    return library


def _tails(stream: int) -> tuple[int, ...]:
    """What the stream's next node would depend on; nothing if it is not captured."""
    library = driver()
    if library is None:
        return ()
    status, number, graph, count = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_size_t()
    nodes, edges = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_void_p()
    out = [ctypes.byref(each) for each in (status, number, graph, nodes, edges, count)]
    failed = library.cuStreamGetCaptureInfo_v3(ctypes.c_void_p(stream), *out)
    return tuple(node for node in nodes[: count.value] if node) if not failed and status.value == ACTIVE else ()


def _dependencies(node: int) -> list[int]:
    """The nodes right before this one."""
    library, count = driver(), ctypes.c_size_t()
    assert library is not None
    if library.cuGraphNodeGetDependencies_v2(ctypes.c_void_p(node), None, None, ctypes.byref(count)) or not count.value:
        return []
    nodes, edges = (ctypes.c_void_p * count.value)(), (ctypes.c_uint64 * count.value)()  # CUgraphEdgeData has 8 bytes
    failed = library.cuGraphNodeGetDependencies_v2(ctypes.c_void_p(node), nodes, edges, ctypes.byref(count))
    return [] if failed else [earlier for earlier in nodes if earlier]


def _set(node: int, priority: int) -> None:
    library, kind = driver(), ctypes.c_int(-1)
    assert library is not None
    library.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
    if kind.value == KERNEL:
        library.cuGraphKernelNodeSetAttribute(ctypes.c_void_p(node), ctypes.c_int(PRIORITY), ctypes.byref(_Value(priority=priority)))
