"""The operator of two_gpus.streamgraph.yaml: one stage of the network. It need not know on which GPU it runs."""

from __future__ import annotations

import torch

LAYERS = 4


def stage(h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Some layers that share a weight, as f32[rows, width]: tanh(h @ weight), scaled to keep its variance."""
    for _ in range(LAYERS):
        h = torch.tanh(h @ weight / weight.shape[0] ** 0.5)
    return h
