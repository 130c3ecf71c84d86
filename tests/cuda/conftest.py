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
    torch.cuda.synchronize()
    gc.collect()
    stream, device, allocated = torch.cuda.current_stream(), torch.cuda.current_device(), torch.cuda.memory_allocated()
    yield
    torch.cuda.synchronize()
    gc.collect()
    assert torch.cuda.current_stream() == stream
    assert torch.cuda.current_device() == device
    assert torch.cuda.memory_allocated() == allocated, "a test left device memory in use"
