from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from rollcast.policy.attention import kernel_for, segment_attend, within_segments


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


def test_each_device_gets_the_kernel_that_it_has() -> None:
    assert kernel_for("cpu", 512, 64, jnp.float32) == "dense"
    assert kernel_for("cpu", 513, 64, jnp.float32) == "blocks"
    assert kernel_for("gpu", 4096, 128, jnp.bfloat16) == "cudnn"
    assert kernel_for("gpu", 4096, 128, jnp.float32) == "blocks"
    assert kernel_for("tpu", 4096, 128, jnp.bfloat16) == "splash"
    assert kernel_for("tpu", 4097, 128, jnp.bfloat16) == "blocks"
    assert kernel_for("tpu", 256, 64, jnp.bfloat16) == "dense"
