"""Test that the benchmark of a swap sees a second copy of the weights, and none where one replaces the other."""

from __future__ import annotations

import pytest

from bench.engines.jax_swap import NEW_TOKENS, ROLLOUTS, swapped
from peer.engines.device_weights import VersionsOnDevice
from rollcast.policy.config import ModelConfig

TINY = ModelConfig(
    vocabulary_size=64, layers=1, width=32, query_heads=2, key_value_heads=1, head_size=16, feed_forward_width=64
)


@pytest.mark.parametrize(("versions", "least", "most"), [("one", -0.01, 0.05), ("two", 0.95, 1.05)])
async def test_a_swap_in_place_needs_no_second_copy(versions: VersionsOnDevice, least: float, most: float) -> None:
    found = await swapped(TINY, versions)
    assert least <= found["extra_share"] <= most
    assert found["kept_tokens"] == ROLLOUTS * NEW_TOKENS // 2
