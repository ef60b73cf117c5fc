from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.config import MeshConfig
from learner.training.mesh import make_mesh
from learner.training.micro_batches import FORWARD_ROWS, ForwardPasses, Gradients, inputs, parts, rows_each
from rollcast.policy.params import Params
from tests.learner.tiny import TIME, tiny_batch

MESH = make_mesh(MeshConfig())


@pytest.mark.parametrize("rows", [1, 3, 5, 64])
def test_gradients_of_parts_add_up_to_those_of_the_whole(rows: int) -> None:
    values = np.arange(16.0, dtype=np.float32).reshape(8, 2)

    def loss(params: Params, part: jax.Array, sequences: int) -> tuple[jax.Array, dict[str, jax.Array]]:
        assert part.shape[0] <= rows
        total = jnp.sum(part * params["slope"] ** 2)
        return total, {"loss": total, "sequences": jnp.float32(sequences)}

    gradients, metrics = Gradients(loss, MESH, 2 * rows).of({"slope": jnp.float32(3.0)}, values, 1)
    assert float(gradients["slope"]) == pytest.approx(6.0 * 120.0)
    assert float(metrics["loss"]) == pytest.approx(9.0 * 120.0)


def test_a_forward_pass_sees_every_row_once_in_passes_of_one_size() -> None:
    batch = tiny_batch([0.0] * (FORWARD_ROWS + 3))
    sizes = []

    def first_token(_params: Params, arrays: dict[str, Any]) -> jax.Array:
        sizes.append(arrays["tokens"].shape)
        return arrays["tokens"].astype(jnp.float32)

    np.testing.assert_array_equal(ForwardPasses(first_token, MESH, 1 << 20)({}, batch), batch.tokens)
    assert sizes == [(FORWARD_ROWS, TIME)], "one form for all passes"
    assert set(inputs(batch)) == {"tokens", "positions", "segments", "temperature"}


def test_the_last_part_is_filled_up_with_nothing() -> None:
    found = list(parts({"a": np.ones((5, 2), np.float32), "b": None}, 3))
    assert [part["a"][:, 0].tolist() for part in found] == [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("rows", "tokens", "shards", "vary", "expected"),
    [
        (256, 640, 1, False, 64),
        (100, 640, 1, False, 50),  # two even parts
        (100, 640, 1, True, 64),
        (100, 640, 8, False, 56),
        (3, 640, 8, False, 8),
        (10, 5, 4, False, 4),  # a row is longer than a part: one a device
    ],
)
def test_parts_are_even_multiples_of_the_devices(
    rows: int, tokens: int, shards: int, vary: bool, expected: int
) -> None:
    assert rows_each(rows, 10, tokens, shards, vary=vary) == expected
