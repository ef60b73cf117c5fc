from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from rollcast.policy.attention import segment_attend, within_segments


def test_a_token_sees_itself_and_what_is_before_it_in_its_own_sequence() -> None:
    seen = within_segments(jnp.array([[1, 1, 2, 2, 0]], jnp.int32))[0]
    assert np.asarray(seen).astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0],
    ]


def test_packed_sequences_mix_as_they_do_alone() -> None:
    random = np.random.default_rng(3)
    queries, keys, values = (jnp.asarray(random.normal(size=(1, 5, 2, 4)), jnp.float32) for _ in range(3))
    packed = segment_attend(jnp.array([[1, 1, 2, 2, 2]], jnp.int32))(0, queries, keys, values)
    alone = segment_attend(jnp.ones((1, 3), jnp.int32))(0, queries[:, 2:], keys[:, 2:], values[:, 2:])
    np.testing.assert_allclose(packed[:, 2:], alone, atol=1e-6)
