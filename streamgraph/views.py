"""Views: `batch[0:2, :, 3]` becomes a box of the storage it is a part of, whatever views lie in between.

Slices have step 1, so that a view is one box of its base and two views conflict exactly when their boxes meet in every dimension.
Bounds are checked and never clipped: a slice that runs past the end is a mistake here, unlike in Python.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from streamgraph.errors import Location
from streamgraph.model import MEMBER, Index, Kind, Tensor, TensorType

Item: TypeAlias = "int | slice"
"""One entry between the brackets: an integer takes its dimension away, a step-1 slice keeps a part of it."""

_CUT = re.compile(r"\s*(?P<name>[^\[\]\s]+)\s*\[(?P<items>[^\[\]]*)\]\s*\Z")
_NUMBER = re.compile(r"\s*(-?[0-9]{1,18})\s*\Z")
_BOUND = re.compile(r"\s*(-?[0-9]{1,18})?\s*\Z")


class UntypedBase(ValueError):
    """A view of a tensor whose `type` is not declared: there is no shape to cut (SG307)."""


def parse_cut(text: str) -> tuple[str, tuple[Item, ...]]:
    """The name and the items that `text` spells: `"batch[0:2, :, 3]"` is `("batch", (slice(0, 2), slice(None, None), 3))`.

    Raises:
        ValueError: with a sentence for the person who wrote it.
    """
    match = _CUT.match(text)
    if match is None or MEMBER.match(match["name"]) is None:
        raise ValueError(f"'{text}' is not a view: write a tensor's name and one slice or number per dimension, like batch[0:2, :, 3]")
    return match["name"], tuple(_item(part) for part in match["items"].split(",")) if match["items"].strip() else ()


def _item(text: str) -> Item:
    number = _NUMBER.match(text)
    if number is not None:
        return int(number[1])
    parts = text.split(":")
    bounds = [_BOUND.match(part) for part in parts[:2]]
    if len(parts) not in (2, 3) or None in bounds or (len(parts) == 3 and parts[2].strip() not in ("", "1")):
        raise ValueError(f"'{text.strip()}' is not a slice: write start:stop, ':' or a whole number; the step is always 1")
    start, stop = (int(bound[1]) if bound is not None and bound[1] else None for bound in bounds)
    return slice(start, stop)


def cut(base: Tensor, items: Sequence[Item]) -> tuple[str, Index, tuple[int, ...]]:
    """What `base[items]` is: the name of the storage's own tensor, the index into all of its dimensions, and the view's shape.

    A view of a view folds to the tensor at the bottom. Trailing dimensions may be left out. Negative numbers count from the end.

    Raises:
        UntypedBase: `base` has no type.
        ValueError: with a sentence: too many dimensions, out of bounds, a step, something that is no slice.
    """
    if base.kind is Kind.RESOURCE:
        raise ValueError(f"'{base.name}' is a resource: it has no elements to view")
    if base.type is None:
        raise UntypedBase(f"a view of '{base.name}' needs the type of '{base.name}', to know its shape")
    shape = base.type.shape
    if len(items) > len(shape):
        raise ValueError(f"{len(items)} dimensions are given, but '{base.name}' is {base.type} and has {len(shape)}")
    padded = (*items, *(slice(None) for _ in shape[len(items) :]))
    own: Index = tuple(_place(item, size, base) for item, size in zip(padded, shape, strict=True))
    if base.kind is not Kind.VIEW:
        name, index = base.name, own
    else:
        rest = iter(own)  # one entry for each dimension that the base kept
        name = base.base if base.base is not None else base.name
        index = tuple(part if isinstance(part, int) else _inside(part[0], next(rest)) for part in base.index)
    return name, index, tuple(part[1] - part[0] for part in own if not isinstance(part, int))


def _place(item: object, size: int, base: Tensor) -> int | tuple[int, int]:
    if isinstance(item, int) and not isinstance(item, bool):
        at = item + size if item < 0 else item
        if not 0 <= at < size:
            raise ValueError(f"{item} is outside a dimension of size {size} of '{base.name}', which is {base.type}")
        return at
    if not isinstance(item, slice):
        raise ValueError(f"{item!r} is not a slice: a view takes slices and whole numbers, one per dimension")
    if item.step not in (None, 1):
        raise ValueError(f"the step {item.step} is not allowed: the step of a view is always 1")
    for bound in (item.start, item.stop):
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
            raise ValueError(f"{bound!r} is not a whole number")
    start = 0 if item.start is None else item.start
    stop = size if item.stop is None else item.stop
    start, stop = (bound + size if bound < 0 else bound for bound in (start, stop))
    if not 0 <= start <= stop <= size:
        asked = f"{'' if item.start is None else item.start}:{'' if item.stop is None else item.stop}"
        raise ValueError(f"{asked} does not fit a dimension of size {size} of '{base.name}', which is {base.type}")
    return (start, stop)


def _inside(offset: int, part: int | tuple[int, int]) -> int | tuple[int, int]:
    return part + offset if isinstance(part, int) else (part[0] + offset, part[1] + offset)


def view(name: str, base: Tensor, items: Sequence[Item], note: str | None = None, location: Location | None = None) -> Tensor:
    """The tensor that `name` declares as `base[items]`: dtype, device and pinning of its base, and the shape of the part.

    Raises:
        UntypedBase, ValueError: as `cut` does.
    """
    bottom, index, shape = cut(base, items)
    assert base.type is not None, "bug in streamgraph: cut accepted a base without a type"
    dtype = base.type.dtype
    return Tensor(
        name, Kind.VIEW, TensorType(dtype, shape), base.device, base.pinned, base=bottom, index=index, note=note, location=location
    )
