"""Operators of fsdp.streamgraph.yaml. The ranks are simulated: one tensor holds the shards of all, one row per rank."""

from __future__ import annotations

import torch


def all_gather(shards: torch.Tensor, out: torch.Tensor) -> None:
    """f32[ranks, n / ranks, m] -> out: f32[n, m], the parameter that the ranks hold together."""
    out.copy_(shards.reshape(out.shape))


def forward(act: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    """One layer: tanh(act @ full), scaled to keep its variance."""
    return torch.tanh(act @ full / full.shape[0] ** 0.5)


def squared_error(act: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean squared error, and its gradient up to a factor."""
    delta = act - target
    return delta.square().mean(), delta


def backward(delta: torch.Tensor, before: torch.Tensor, after: torch.Tensor, full: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The gradient for the layer below, returned; and each rank's gradient of `full`, from its own part of the batch, into `out`."""
    ranks = out.shape[0]
    inner = delta * (1 - after.square()) / full.shape[0] ** 0.5
    torch.bmm(before.reshape(ranks, -1, before.shape[1]).mT, inner.reshape(ranks, -1, inner.shape[1]), out=out)
    return inner @ full.T


def reduce_scatter(gradient: torch.Tensor) -> torch.Tensor:
    """f32[ranks, n, m] -> f32[ranks, n / ranks, m]: the mean over the ranks, each of which keeps its own rows."""
    ranks, _, columns = gradient.shape
    return gradient.mean(dim=0).reshape(ranks, -1, columns)
