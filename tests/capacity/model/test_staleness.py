from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.model.staleness import staleness_needed


@pytest.mark.parametrize(
    ("t_bcast_s", "t_gen_s", "t_train_s", "kappa", "needed"),
    [
        (0.0, 0.0, 60.0, 1, 1),
        (10.0, 50.0, 60.0, 1, 2),
        (10.0, 51.0, 60.0, 1, 3),
        (30.0, 120.0, 60.0, 1, 4),
        (30.0, 120.0, 60.0, 4, 7),
        (0.2, 0.6, 1.0, 1, 2),
    ],
)
def test_worked_examples(t_bcast_s: float, t_gen_s: float, t_train_s: float, kappa: int, needed: int) -> None:
    found = staleness_needed(t_bcast_s=t_bcast_s, t_gen_p90_s=t_gen_s, t_train_s=t_train_s, publish_every_steps=kappa)
    assert found == needed


milliseconds = st.integers(0, 10**6)


@settings(max_examples=100, deadline=None)
@given(milliseconds, milliseconds, st.integers(1, 10**6), st.integers(1, 50), milliseconds)
def test_it_is_the_age_of_the_oldest_rollout_and_rises_with_every_delay(
    bcast_ms: int, gen_ms: int, train_ms: int, kappa: int, more_ms: int
) -> None:
    def needed(bcast: int, gen: int) -> int:
        return staleness_needed(t_bcast_s=bcast, t_gen_p90_s=gen, t_train_s=train_ms, publish_every_steps=kappa)

    assert needed(bcast_ms, gen_ms) == kappa + math.ceil((bcast_ms + gen_ms) / train_ms)
    assert needed(bcast_ms + more_ms, gen_ms) >= needed(bcast_ms, gen_ms)
    assert needed(bcast_ms, gen_ms + more_ms) == needed(bcast_ms + more_ms, gen_ms)


@pytest.mark.parametrize(
    "wrong", [{"t_bcast_s": -1.0}, {"t_gen_p90_s": -1.0}, {"t_train_s": 0.0}, {"publish_every_steps": 0}]
)
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    values = {"t_bcast_s": 1.0, "t_gen_p90_s": 1.0, "t_train_s": 1.0, "publish_every_steps": 1}
    with pytest.raises(ValueError, match="at least 1"):
        staleness_needed(**{**values, **wrong})  # type: ignore[arg-type]
