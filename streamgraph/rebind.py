"""Binding again: a call's tensors are compared with what the program declares, in the cheapest way that can say yes.

`bind` words every problem, and builds texts and tables for it: some 10 us for a single tensor. A runner that is called again and again can
say yes with a few comparisons; whenever it cannot, `bind` is asked, so that what is accepted and what is refused stays the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from streamgraph.binding import Given, bind
from streamgraph.calls import place, torch_dtype
from streamgraph.model import Program

if TYPE_CHECKING:
    import torch


MOST = 1024  # pinned tensors that are remembered


class Binder:
    """What `bind` does for one program, over and over. `written` are the inputs that some task changes in place."""

    def __init__(self, program: Program, bound: Mapping[str, torch.Tensor], device: torch.device, written: Sequence[str]) -> None:
        import torch

        self.program, self.bound, self.device, self.written = program, dict(bound), device, tuple(written)
        self._plain, self._strided = (torch.Tensor, torch.nn.Parameter), torch.strided
        on_cpu = device.type == "cpu"
        # By name: dtype, shape, device, and whether it must be pinned. A tensor without a declared type may have any.
        self._wanted: dict[str, tuple[torch.dtype | None, tuple[int, ...] | None, torch.device, bool]] = {}
        for tensor in program.inputs:
            kind = tensor.type
            self._wanted[tensor.name] = (
                torch_dtype(kind) if kind is not None else None, kind.shape if kind is not None else None, place(tensor.device, device),
                tensor.pinned and tensor.device == "cpu" and not on_cpu,
            )  # fmt: skip
        self._families = {family.name: family.members for family in program.families if len(family.keys) == 1}
        self._seen_apart: dict[str, tuple[weakref.ref[torch.Tensor], int, tuple[int, ...]]] = {}
        # Which were found to be pinned, since asking takes a call of the driver; by `id`, which is one tensor's while that lives.
        self._pinned: dict[int, weakref.ref[torch.Tensor]] = {}

    def __call__(self, given: Given) -> dict[str, torch.Tensor]:
        """One checked tensor per input. See `bind`."""
        tensors = self.bound.copy()
        for name, value in given.items():
            if self._fits(name, value):
                tensors[name] = value  # type: ignore[assignment]
                continue
            members = self._families.get(name)
            if members is None:
                return self._bind(given)
            if not isinstance(value, list | tuple) or len(value) != len(members):
                return self._bind(given)
            for member, part in zip(members, value, strict=True):
                if not self._fits(member, part):
                    return self._bind(given)
                tensors[member] = part
        if len(tensors) != len(self._wanted) or (self.written and not self._apart(tensors, given)):
            return self._bind(given)
        return tensors

    def _apart(self, tensors: Mapping[str, torch.Tensor], given: Given) -> bool:
        """Whether it is known that what a task changes in place shares bytes with no other tensor: all were looked at together before."""
        if not given:
            return True  # the bound ones, when they were bound
        if self._seen_apart.keys() != given.keys():
            return False
        for name, (seen, address, shape) in self._seen_apart.items():
            tensor = tensors.get(name)  # a family's name is none: its members are looked at again
            if tensor is None or seen() is not tensor or tensor.data_ptr() != address or tensor.shape != shape:
                return False
        return True

    def _fits(self, name: str, value: object) -> bool:
        wanted = self._wanted.get(name)
        # A subclass may answer these questions as it likes.
        if wanted is None or type(value) not in self._plain:
            return False
        dtype, shape, device, pinned = wanted
        tensor: torch.Tensor = value  # type: ignore[assignment]
        if (dtype is not None and (tensor.dtype != dtype or tensor.shape != shape)) or tensor.device != device:
            return False
        if tensor.layout != self._strided or tensor.is_quantized:
            return False
        if not pinned:
            return True
        known = self._pinned.get(id(tensor))
        if known is not None and known() is tensor:
            return True
        if not tensor.is_pinned():
            return False
        if len(self._pinned) >= MOST:
            self._pinned.clear()
        self._pinned[id(tensor)] = weakref.ref(tensor)
        return True

    def _bind(self, given: Given) -> dict[str, torch.Tensor]:
        tensors = bind(self.program, given, self.device, bound=self.bound, written=self.written)
        if self.written:
            fresh = [(name, tensors[name]) for name in given if name in tensors]
            self._seen_apart = {name: (weakref.ref(tensor), tensor.data_ptr(), tensor.shape) for name, tensor in fresh}
        return tensors
