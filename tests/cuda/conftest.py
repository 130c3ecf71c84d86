"""Tests that need an NVIDIA GPU: skipped, with the reason, where there is none; failed there if STREAMGRAPH_REQUIRE_CUDA=1."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """A GPU with nothing under way, and as it was found: the same stream and device, no more memory in use."""
    if not torch.cuda.is_available():
        if os.environ.get("STREAMGRAPH_REQUIRE_CUDA") == "1":
            pytest.fail("STREAMGRAPH_REQUIRE_CUDA=1, but torch finds no GPU")
        pytest.skip("torch finds no GPU")
    _settle()
    stream, device, allocated = torch.cuda.current_stream(), torch.cuda.current_device(), torch.cuda.memory_allocated()
    yield
    _settle()
    assert torch.cuda.current_stream() == stream
    assert torch.cuda.current_device() == device
    assert torch.cuda.memory_allocated() == allocated, "a test left device memory in use"


def _settle() -> None:
    """Nothing runs any more, and nothing is kept but what somebody holds: cuBLAS has workspaces for the streams that it has seen."""
    torch.cuda.synchronize()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
