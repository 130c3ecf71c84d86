"""Types and times as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamgraph.model import DTYPE_BYTES, LONG_NAMES, TORCH_NAMES, TensorType, parse_time, parse_type


@given(dtype=st.sampled_from(sorted(DTYPE_BYTES)), shape=st.lists(st.integers(0, 2000), max_size=3))
def test_a_type_reads_back_from_its_own_text(dtype: str, shape: list[int]) -> None:
    made = TensorType(dtype, tuple(shape))
    assert parse_type(str(made)) == made


def test_long_names_of_dtypes_are_understood() -> None:
    assert parse_type("float16[8, 3]") == parse_type("f16[8,3]")
    assert set(LONG_NAMES.values()) == set(TORCH_NAMES) == set(DTYPE_BYTES)


@pytest.mark.parametrize(
    "text", ["f16", "f16[-1]", "f16[8", "f99[3]", "f16[3.5]", "f16[a]", "[3]", "", "f32[4294967296, 4294967296]", "f32[1e3]"]
)
def test_what_is_no_type_says_why(text: str) -> None:
    with pytest.raises(ValueError, match=r"type|dtype|size|bytes"):
        parse_type(text)


@pytest.mark.parametrize(("text", "us"), [("120us", 120.0), ("1.5ms", 1500.0), ("2s", 2e6), ("0us", 0.0), ("3 µs", 3.0)])
def test_times_are_microseconds(text: str, us: float) -> None:
    assert parse_time(text) == us


@pytest.mark.parametrize("text", ["120", "-1us", ".nan", "inf", "1:30", "0x10us", "1e3us", "1_000us", "5min", "us"])
def test_a_time_without_a_unit_or_number_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="us"):
        parse_time(text)


def test_sizes_are_in_bytes() -> None:
    assert (parse_type("f16[8, 3]").bytes, parse_type("f32[]").bytes, parse_type("u8[0]").bytes) == (48, 4, 0)
