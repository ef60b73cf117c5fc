from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.model.version_bytes import Precision, delta_share

precisions = st.sampled_from(["bf16", "fp8"])
learning_rates = st.floats(1e-8, 1e-2)


@pytest.mark.parametrize(
    ("learning_rate", "steps", "precision", "low", "high"),
    [  # the whole table of the design notes
        (1e-6, 1, "bf16", 0.007, 0.009),
        (1e-6, 8, "bf16", 0.027, 0.037),
        (3e-6, 1, "bf16", 0.015, 0.020),
        (1e-5, 1, "bf16", 0.034, 0.045),
        (1e-5, 8, "bf16", 0.11, 0.165),
        (1e-6, 1, "fp8", 0.0012, 0.0014),
        (1e-6, 8, "fp8", 0.005, 0.006),
        (3e-6, 1, "fp8", 0.0028, 0.0030),
        (1e-5, 1, "fp8", 0.006, 0.007),
        (1e-5, 8, "fp8", 0.025, 0.029),
    ],
)
def test_shares_are_those_measured(
    learning_rate: float, steps: int, precision: Precision, low: float, high: float
) -> None:
    assert low <= delta_share(learning_rate, steps, precision) <= high


@given(precisions, learning_rates, learning_rates, st.integers(1, 64), st.integers(1, 64))
def test_larger_steps_and_more_of_them_change_more(
    precision: Precision, one: float, other: float, few: int, many: int
) -> None:
    low, high = sorted((one, other))
    less, more = sorted((few, many))
    assert 0 < delta_share(low, less, precision) <= delta_share(high, more, precision) * (1 + 1e-12)
    assert delta_share(high, more, precision) <= 0.78


@given(precisions, learning_rates, st.integers(1, 64))
def test_one_squashed_delta_is_no_larger_than_all_of_them(precision: Precision, rate: float, steps: int) -> None:
    assert delta_share(rate, steps, precision) <= steps * delta_share(rate, 1, precision)


def test_nonsense_is_refused() -> None:
    for wrong in ((0.0, 1), (-1.0, 1), (1e-6, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            delta_share(*wrong)
