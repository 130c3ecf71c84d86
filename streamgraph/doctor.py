"""Doctor: what this machine has for running schedules, and what stands in for what it lacks. Changes nothing.

Imports torch when it is called, and starts CUDA where there is some.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import streamgraph

OK, INFO, MISSING = "ok", "info", "missing"
OPTIONAL = (
    ("numpy", "numpy", "inputs and results as .npy; without it results are saved as .pt"),
    ("PIL", "pillow", "images as inputs (--input frame=photo.jpg)"),
    ("safetensors", "safetensors", "inputs from .safetensors files"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact. `state` is `ok`, `info` or `missing`; `remark` says what follows from it, or what to do."""

    topic: str
    value: str
    state: str = OK
    remark: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """Plain data for `--json`."""
        return {"topic": self.topic, "value": self.value, "state": self.state, "remark": self.remark}


def examine() -> tuple[Finding, ...]:
    """All findings, in reading order: software, device, environment, optional packages."""
    return (*_software(), *_torch(), *_environment(), *_optional())


def _software() -> Iterator[Finding]:
    yield Finding("streamgraph", streamgraph.__version__, INFO)
    yield Finding("Python", f"{platform.python_version()} ({platform.system()} {platform.machine()})", INFO)
    for package in ("networkx", "pydantic", "PyYAML", "click", "rich"):
        found = _version(package)
        yield Finding(package, found or "not installed", OK if found else MISSING, None if found else f"pip install {package}")
    if _version("PyYAML"):
        import yaml

        if not hasattr(yaml, "CSafeLoader"):
            yield Finding("libyaml", "PyYAML was built without it", INFO, "large specs are read about ten times more slowly")


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", "not installed", MISSING, f"planning, checking and drawing work; `run` does not ({error})")
        return
    yield Finding("torch", torch.__version__)
    yield Finding("CPU threads", str(torch.get_num_threads()), INFO)
    if torch.version.cuda is None and torch.version.hip is None:
        yield Finding("CUDA", "this build of torch has none", MISSING, "`run` uses the CPU: results are real, times are simulated")
        return
    yield Finding("CUDA", torch.version.cuda or f"ROCm {torch.version.hip} (not tried)")
    if not torch.cuda.is_available():
        yield Finding("CUDA device", "none that torch can use", MISSING, "`run` uses the CPU: results are real, times are simulated")
        return
    yield from _device(torch.cuda.current_device())


def _device(index: int) -> Iterator[Finding]:
    import torch

    from streamgraph.executors.node_priority import driver

    count = torch.cuda.device_count()
    facts = torch.cuda.get_device_properties(index)
    more = f", device {index} of {count}" if count > 1 else ""
    yield Finding("CUDA device", f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, {facts.multi_processor_count} multiprocessors{more}")
    for other in (number for number in range(count) if number != index):
        its = torch.cuda.get_device_properties(other)
        straight = torch.cuda.can_device_access_peer(index, other)
        way = "straight there" if straight else "through host memory"
        yield Finding(f"CUDA device {other}", f"{its.name}, {its.total_memory / 2**30:.0f} GiB", OK, f"copies from device {index} go {way}")
    for name, priority in (("normal", 0), ("high", -1)):
        made = [torch.cuda.Stream(index, priority=priority) for _ in range(70)]  # type: ignore[no-untyped-call]
        handles = {stream.cuda_stream for stream in made}
        remark = "PyTorch hands the same ones out again after these: a schedule has no more of a priority" if name == "normal" else None
        yield Finding(f"streams, {name} priority", str(len(handles)), OK, remark)
    yield Finding("pinned memory", *_pinned())
    backend = torch.cuda.get_allocator_backend()
    remark = None if backend == "native" else "executor='graph' needs the native allocator: no `backend` in PYTORCH_CUDA_ALLOC_CONF"
    yield Finding("CUDA allocator", backend, OK if backend == "native" else INFO, remark)
    capturing = torch.cuda.is_current_stream_capturing()
    yield Finding("CUDA graphs", "a capture is under way" if capturing else "can be captured" if backend == "native" else "no", INFO)
    remark = None if driver() is not None else "urgent launches go without it; it takes a driver of CUDA 12.3 or later"
    yield Finding("priority per launch in them", "yes" if remark is None else "no", INFO, remark)


def _pinned() -> tuple[str, str, str | None]:
    import torch

    try:
        torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        return str(error).partition("\n")[0], MISSING, "copies between host and device cannot overlap anything"
    return "works", OK, None


def _environment() -> Iterator[Finding]:
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if connections is None:
        yield Finding("CUDA_DEVICE_MAX_CONNECTIONS", "not set: the driver's default is 8", INFO)
    else:
        few = connections.isdigit() and int(connections) < 8
        remark = f"work of more than {connections} streams shares queues to the device and can be held up by each other" if few else None
        yield Finding("CUDA_DEVICE_MAX_CONNECTIONS", connections, INFO, remark)
    blocking = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
    if blocking:
        yield Finding("CUDA_LAUNCH_BLOCKING", "set", INFO, "every launch waits for its kernel: nothing overlaps. Unset it")
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_CUDA_SANITIZER"):
        if name in os.environ:
            yield Finding(name, os.environ[name], INFO)


def _optional() -> Iterator[Finding]:
    for module, package, use in OPTIONAL:
        # A package that is imported already may be a stand-in without a spec.
        here = module in sys.modules or importlib.util.find_spec(module) is not None
        if here:
            yield Finding(package, _version(package) or "here")
        else:
            yield Finding(package, "not installed", MISSING, f"would serve {use}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
