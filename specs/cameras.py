"""Operators of cameras.streamgraph.yaml: what each camera's frame goes through, and what is read off the detector's heat map."""

from __future__ import annotations

import torch


def preprocess(frame: torch.Tensor) -> torch.Tensor:
    """u8[3, h, w] -> f32[3, h / 2, w / 2]: halved in size, zero mean and unit deviation per channel."""
    small = torch.nn.functional.avg_pool2d(frame.float(), 2)
    centred = small - small.mean(dim=(1, 2), keepdim=True)
    return centred / (centred.square().mean(dim=(1, 2), keepdim=True).sqrt() + 1e-6)


def strongest(heat: torch.Tensor) -> torch.Tensor:
    """f32[n, 1, h, w] -> f32[n, 3]: row, column and strength of the hottest point of each picture."""
    strength, place = heat.flatten(1).max(dim=1)
    width = heat.shape[-1]
    return torch.stack([(place // width).float(), (place % width).float(), strength], dim=1)
