"""Test attention with whole scores and in blocks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.kernels import flash
from rollcast.policy.kernels.dense import attend_where, within_segments

SEGMENTS = [[1] * 5 + [2] * 4 + [0] * 2, [1] * 11]


def test_values_and_gradients_equal_those_of_whole_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "BLOCK", 4)  # three blocks, the last one filled up
    random = np.random.default_rng(0)
    segments = jnp.array(SEGMENTS, jnp.int32)
    arrays = [jnp.asarray(random.normal(size=(2, 11, heads, 8)), jnp.float32) for heads in (4, 2, 2)]
    given = jnp.asarray(random.normal(size=(2, 11, 4, 8)), jnp.float32)
    given *= (segments > 0).astype(jnp.float32)[..., None, None]

    def in_blocks(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(flash.flash_attention(*arrays, segments) * given)

    def whole(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(attend_where(*arrays, within_segments(segments)) * given)

    found, gradients = jax.jit(jax.value_and_grad(in_blocks, argnums=(0, 1, 2)))(*arrays)
    expected, expected_gradients = jax.jit(jax.value_and_grad(whole, argnums=(0, 1, 2)))(*arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for one, other in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_scores_are_never_whole() -> None:
    time = 2 * flash.BLOCK
    queries = jax.ShapeDtypeStruct((1, time, 2, 8), jnp.bfloat16)
    segments = jax.ShapeDtypeStruct((1, time), jnp.int32)

    def total(queries: jax.Array, segments: jax.Array) -> jax.Array:
        return jnp.sum(flash.flash_attention(queries, queries, queries, segments).astype(jnp.float32))

    text = str(jax.make_jaxpr(jax.grad(total))(queries, segments))
    assert f"{flash.BLOCK},{flash.BLOCK}]" in text
    assert f"{time},{time}]" not in text


def test_a_token_sees_itself_and_the_earlier_ones_of_its_sequence() -> None:
    seen = within_segments(jnp.array([[1, 1, 2, 2, 0]], jnp.int32))[0]
    assert np.asarray(seen).astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0],
    ]
