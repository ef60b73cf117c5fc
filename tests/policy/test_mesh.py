"""Test where a model's tensors lie on a mesh."""

from __future__ import annotations

from typing import Any

import pytest
from jax.sharding import AbstractMesh, AxisType

from rollcast.policy.mesh import sharding_of

LAYER = "layers.0."


def abstract(data: int, fsdp: int, tensor: int) -> Any:
    return AbstractMesh((data, fsdp, tensor), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        (LAYER + "attention.query.kernel", (16, 32), ("fsdp", "tensor")),
        (LAYER + "feed_forward.down.kernel", (32, 16), (("tensor", "fsdp"), None)),
        (LAYER + "feed_forward.down.kernel", (6, 16), ("tensor", None)),  # by 2 x 2 it does not divide
        ("layers.feed_forward.down.kernel", (5, 32, 16), (None, ("tensor", "fsdp"), None)),
        ("layers.attention_norm.scale", (5, 16), ()),
        (LAYER + "feed_forward.expert_down.kernel", (8, 32, 16), (("fsdp", "tensor"), None, None)),
        ("layers.feed_forward.expert_gate.kernel", (5, 7, 16, 32), (None, None, None, None)),
        (LAYER + "feed_forward.expert_up.kernel_scale", (6, 1, 2), ("fsdp", None, None)),
        (LAYER + "feed_forward.router.kernel", (16, 8), ()),
        (LAYER + "attention.query.kernel_scale", (4, 8), ("fsdp", "tensor")),
        (LAYER + "attention.key.bias", (8,), ("tensor",)),
        ("embedding", (64, 16), ("tensor", "fsdp")),
        ("embedding", (7, 16), (None, "fsdp")),
        ("head.kernel", (16, 64), ("fsdp", "tensor")),
        (LAYER + "attention.key.kernel", (16, 7), ("fsdp", None)),
        (LAYER + "attention_norm.scale", (16,), ()),
        ("value.kernel", (16, 1), ()),
        (LAYER + "attention.query.lora_a", (16, 4), ("fsdp", None)),
        ("layers.attention.query.lora_b", (5, 4, 32), (None, None, "tensor")),
        (LAYER + "feed_forward.down.lora_a", (32, 4), (("tensor", "fsdp"), None)),
        (LAYER + "feed_forward.down.lora_b", (4, 16), (None, None)),
    ],
)
def test_tensors_lie_by_the_ends_of_their_names(name: str, shape: tuple[int, ...], expected: Any) -> None:
    assert tuple(sharding_of(abstract(2, 2, 2), name, shape).spec) == expected
