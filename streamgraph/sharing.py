"""Two tensors become a yes or no: do they share a byte? And one: does an element of it share a byte with another?

Exact wherever it is cheap: byte ranges that do not meet, strides that nest, and up to `LISTED` elements by listing their offsets. Beyond
that the answer is yes, since a wrong no is silent corruption. (The general question is an NP-hard one: numpy.shares_memory says the same.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LISTED = 1 << 20  # elements whose offsets are listed; some 8 MB each time


def share_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether some byte belongs to both. Tensors without elements share nothing."""
    import torch

    if first.device != second.device or first.numel() == 0 or second.numel() == 0:
        return False
    if first.data_ptr() >= _stop(second) or second.data_ptr() >= _stop(first):
        return False
    if _is_solid(first) or _is_solid(second):
        # Ranges meet, one has every byte of its own: they share one, unless the other reaches beyond it on both sides, across a hole.
        solid, other = (first, second) if _is_solid(first) else (second, first)
        if _is_solid(other) or solid.data_ptr() <= other.data_ptr() or _stop(other) <= _stop(solid):
            return True
    if first.numel() > LISTED or second.numel() > LISTED:
        return True
    base = min(first.data_ptr(), second.data_ptr())
    return bool(torch.isin(_bytes(first, base), _bytes(second, base)).any())


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements share a byte, as in what `expand` returns."""
    if tensor.numel() <= 1:
        return False
    reach = 1  # elements that the dimensions so far may touch, from the first to beyond the last
    nested = True
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1):
        if stride == 0:
            return True
        nested = nested and stride >= reach
        reach += stride * (size - 1)
    if nested:
        return False
    if tensor.numel() > LISTED:
        return True
    ordered = _offsets(tensor).sort().values
    return bool((ordered[1:] == ordered[:-1]).any())


def _stop(tensor: torch.Tensor) -> int:
    last = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return tensor.data_ptr() + (last + 1) * tensor.element_size()


def _is_solid(tensor: torch.Tensor) -> bool:
    """Whether the tensor holds every byte between its first and its last."""
    return _stop(tensor) - tensor.data_ptr() == tensor.numel() * tensor.element_size() and not overlaps_itself(tensor)


def _offsets(tensor: torch.Tensor) -> torch.Tensor:
    """The offset of every element from the first one, in elements."""
    import torch

    offsets = torch.zeros((), dtype=torch.int64)
    for stride, size in zip(tensor.stride(), tensor.shape, strict=True):
        offsets = offsets.unsqueeze(-1) + torch.arange(size) * stride
    return offsets.flatten()


def _bytes(tensor: torch.Tensor, base: int) -> torch.Tensor:
    """The position of every byte, counted from address `base`."""
    import torch

    starts = _offsets(tensor) * tensor.element_size() + (tensor.data_ptr() - base)
    return (starts.unsqueeze(-1) + torch.arange(tensor.element_size())).flatten()
