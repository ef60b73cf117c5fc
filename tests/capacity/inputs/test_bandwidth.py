"""Test that bandwidths are parsed in Mbit/s and in other units."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.inputs.bandwidth import mbit_per_second


@given(st.floats(0.001, 1e6), st.sampled_from(["", "Mbit/s", " Mbit/s", "Mbps", "Mb/s"]))
def test_bandwidths_are_in_mbit_unless_they_say_otherwise(value: float, unit: str) -> None:
    text = f"{value:.3f}"
    assert mbit_per_second(text + unit) == float(text)


@pytest.mark.parametrize(
    ("text", "mbit"), [("2.5Gbit/s", 2500), ("125 MB/s", 1000), ("1Gbps", 1000), ("500kbit/s", 0.5), ("1GiB/s", 8589.9)]
)
def test_bandwidths_of_other_units(text: str, mbit: float) -> None:
    assert mbit_per_second(text) == pytest.approx(mbit, rel=1e-4)


@given(st.text(max_size=20))
def test_no_text_gives_a_bandwidth_that_is_none(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert 0 < mbit_per_second(text) <= 1e7


@pytest.mark.parametrize("text", ["inf", "nan", "0", "-5", "1e300", "fast", "10 furlongs/s", "1 2"])
def test_what_is_no_bandwidth_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"bandwidth|range"):
        mbit_per_second(text)
