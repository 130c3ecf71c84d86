"""The figures of a result: its smallest element, the mean and the largest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamgraph.commands.report import many

if TYPE_CHECKING:
    import torch

STATISTICS = ("smallest", "mean", "largest", "remark")


def statistics_of(tensor: torch.Tensor) -> tuple[float | None, float | None, float | None, str]:
    """The smallest element, the mean and the largest, of those that are finite; and a remark about the others."""
    import torch

    value = tensor.detach().cpu()
    if value.numel() == 0:
        return None, None, None, "no elements"
    if value.is_complex():
        value = value.abs()
        remark = "absolute values"
    else:
        remark = ""
    wide = value.to(torch.float64)
    finite = wide[torch.isfinite(wide)]
    odd = wide.numel() - finite.numel()
    if odd:
        remark = f"{many(odd, 'element')} not finite"
    if finite.numel() == 0:
        return None, None, None, remark
    return float(finite.min()), float(finite.mean()), float(finite.max()), remark
