"""Views: a cut folds to one box of its storage, exactly as slicing an array does, and never out of bounds."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgraph.model import Kind, Tensor, TensorType
from streamgraph.views import Item, UntypedBase, cut, parse_cut, view


def tensor(*shape: int) -> Tensor:
    return Tensor("base", Kind.BUFFER, TensorType("f32", shape), "cpu", True)


@st.composite
def items(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Item, ...]:
    """Legal items for a shape; negative numbers and omitted ends as Python allows them."""
    result: list[Item] = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        if size and draw(st.booleans()):
            at = draw(st.integers(0, size - 1))
            result.append(draw(st.sampled_from([at, at - size])))
            continue
        start = draw(st.integers(0, size))
        stop = draw(st.integers(start, size))
        ends: list[int | None] = []
        for end, omitted in ((start, 0), (stop, size)):
            ends.append(draw(st.sampled_from([end, *([end - size] if end < size else []), *([None] if end == omitted else [])])))
        result.append(slice(*ends))
    return tuple(result)


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def elements(shape: tuple[int, ...]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """An array as a mapping from index to the place in the storage: here, the index itself."""
    return {index: index for index in itertools.product(*(range(size) for size in shape))}


def sliced(array: dict[tuple[int, ...], tuple[int, ...]], shape: tuple[int, ...], what: tuple[Item, ...]) -> list[tuple[int, ...]]:
    """The places that Python's own slicing selects, in order."""
    ranges = [range(size)[item] if isinstance(item, slice) else [range(size)[item]] for item, size in zip(what, shape, strict=False)]
    ranges += [range(size) for size in shape[len(what) :]]
    return [array[index] for index in itertools.product(*ranges)]


def boxed(index: tuple[int | tuple[int, int], ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*([part] if isinstance(part, int) else range(*part) for part in index)))


@given(st.data(), shapes)
@settings(max_examples=150)
def test_a_view_selects_what_slicing_selects(data: st.DataObject, shape: tuple[int, ...]) -> None:
    what = data.draw(items(shape))
    name, index, view_shape = cut(tensor(*shape), what)
    assert name == "base"
    assert boxed(index) == sliced(elements(shape), shape, what)
    assert view_shape == tuple(part[1] - part[0] for part in index if not isinstance(part, int))


@given(st.data(), shapes)
@settings(max_examples=150)
def test_a_view_of_a_view_folds_to_the_base(data: st.DataObject, shape: tuple[int, ...]) -> None:
    base = tensor(*shape)
    outer = view("outer", base, data.draw(items(shape)))
    assert outer.type is not None
    what = data.draw(items(outer.type.shape))
    inner = view("inner", outer, what)
    assert inner.base == "base"
    assert len(inner.index) == len(shape)
    seen = dict(zip(elements(outer.type.shape), boxed(outer.index), strict=True))
    assert boxed(inner.index) == sliced(seen, outer.type.shape, what)
    assert (inner.device, inner.pinned, inner.type and inner.type.dtype) == ("cpu", True, "f32")


@given(st.data(), shapes)
@settings(max_examples=100)
def test_text_and_slices_say_the_same(data: st.DataObject, shape: tuple[int, ...]) -> None:
    what = data.draw(items(shape))
    shown = [f"{'' if i.start is None else i.start}:{'' if i.stop is None else i.stop}" if isinstance(i, slice) else str(i) for i in what]
    assert parse_cut(f"a.b@0@x[{', '.join(shown)}]") == ("a.b@0@x", what)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("batch[0:2, :, 3]", (slice(0, 2), slice(None), 3)),
        (" x [ -1 ] ", (-1,)),
        ("x[1:]", (slice(1, None),)),
        ("x[:-1:1]", (slice(None, -1),)),
        ("x[::]", (slice(None),)),
        ("x[]", ()),
    ],
)
def test_cuts_parse(text: str, items: tuple[Item, ...]) -> None:
    assert parse_cut(text)[1] == items


@pytest.mark.parametrize("text", ["x", "x[0", "x[0:4:2]", "x[a]", "x[0][1]", "[0]", "x[0,]", "x[1:2:3:4]", "x y[0]", "x[1.5]", "x@[0]"])
def test_what_is_no_cut_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a (view|slice)"):
        parse_cut(text)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ((0, 0, 0), "3 dimensions are given"),
        ((4,), "4 is outside"),
        ((-5,), "-5 is outside"),
        ((slice(0, 5),), "0:5 does not fit a dimension of size 4"),
        ((slice(3, 1),), "3:1 does not fit"),
        ((slice(-9, None),), "-9: does not fit"),
        ((slice(0, 4, 2),), "the step 2"),
        ((slice(0.5, 1),), "not a whole number"),
        ((True,), "not a slice"),
        ((None,), "not a slice"),
        ((...,), "not a slice"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(items: tuple[Item, ...], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        cut(tensor(4, 2), items)


def test_a_base_needs_a_type() -> None:
    with pytest.raises(UntypedBase, match="needs the type of 'v'"):
        cut(Tensor("v", Kind.VALUE), (0,))


def test_a_resource_has_no_parts() -> None:
    with pytest.raises(ValueError, match="resource"):
        cut(Tensor("r", Kind.RESOURCE), ())
