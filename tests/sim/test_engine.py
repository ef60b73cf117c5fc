"""Test the simulated rollout engine."""

from __future__ import annotations

import pytest

from rollcast.sim.engine import tokens_of


@pytest.mark.parametrize("seed", [0, 7, 2**63 + 5])
def test_tokens_follow_from_the_seed_and_the_position_alone(seed: int) -> None:
    whole = [2 + (seed + position * 2654435761) % 61 for position in range(200)]
    assert tokens_of(seed, 0, 200) == whole
    assert tokens_of(seed, 60, 61) == whole[60:61]
    assert tokens_of(seed, 61, 183) == whole[61:183]
    assert tokens_of(seed, 5, 5) == []
