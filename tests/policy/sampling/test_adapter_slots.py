from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from rollcast.policy.config import LoraConfig, adapted
from rollcast.policy.lora import adapter_shapes
from rollcast.policy.params import Params, bind, initial_params
from rollcast.policy.sampling.adapter_slots import choose, side_by_side
from tests.policy.tiny import TINY

ADAPTED = adapted(TINY, LoraConfig(rank=2, alpha=4))


def adapters_of(seed: int) -> Params:
    random = np.random.default_rng(seed)
    return {
        name: jnp.asarray(random.standard_normal(shape, np.float32)) for name, shape in adapter_shapes(ADAPTED).items()
    }


def test_each_row_is_computed_with_the_adapters_of_its_slot() -> None:
    base, versions = initial_params(TINY, 0), [adapters_of(seed) for seed in range(3)]
    together = bind(ADAPTED, {**base, **side_by_side(versions)})
    rows = jnp.asarray([2, 0, 1, 0], jnp.int32)
    choose(together, 3, rows)
    x = jnp.asarray(np.random.default_rng(9).standard_normal((4, 5, TINY.width), np.float32))
    found = together.layers[0].feed_forward(x)
    for row, slot in enumerate(rows.tolist()):
        alone = bind(ADAPTED, {**base, **versions[slot]})
        np.testing.assert_allclose(found[row], alone.layers[0].feed_forward(x[row : row + 1])[0], rtol=1e-5, atol=1e-5)
