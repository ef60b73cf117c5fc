"""Test the blocks of splash attention, and its values in interpreted form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.kernels.dense import attend_where, within_segments
from rollcast.policy.kernels.splash import splash_attention, splash_block


@pytest.mark.parametrize(("time", "block"), [(128, 128), (300, 128), (512, 512), (513, 128), (4000, 512), (32768, 512)])
def test_blocks_are_large_without_lengthening_rows_much(time: int, block: int) -> None:
    assert splash_block(time) == block


@pytest.mark.parametrize("head_size", [64, 128])
def test_values_equal_those_of_whole_scores(head_size: int) -> None:
    random = np.random.default_rng(0)
    segments = jnp.array([[1] * 100 + [2] * 60 + [0] * 96], jnp.int32)
    arrays = [jnp.asarray(random.normal(size=(1, 256, heads, head_size)), jnp.float32) for heads in (4, 2, 2)]
    run = jax.jit(lambda *arrays: splash_attention(*arrays, segments, block=128, interpret=True))
    expected = attend_where(*arrays, within_segments(segments))
    np.testing.assert_allclose(run(*arrays)[:, :160], expected[:, :160], atol=1e-5)
