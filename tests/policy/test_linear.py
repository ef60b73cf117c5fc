from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from rollcast.policy.linear import Linear


def test_the_kernel_is_read_in_the_activations_precision() -> None:
    layer = Linear(2, 3)
    layer.kernel.set_value(jnp.array([[1.0, 2.0, 3.0], [0.5, 0.25, 1.001]], jnp.float32))
    product = layer(jnp.array([[2.0, 4.0]], jnp.bfloat16))
    assert product.dtype == jnp.bfloat16
    np.testing.assert_array_equal(product.astype(jnp.float32), [[4.0, 5.0, 10.0]])
