"""Test the choice of an attention kernel, and kernels on a mesh of devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from rollcast.policy import attention
from rollcast.policy.attention import Device, KernelChoice, kernel_for, segment_attend
from rollcast.policy.kernels import splash
from rollcast.policy.shapes import head_copies

CPU, TPU = Device("cpu"), Device("tpu")
HOPPER, AMPERE, TURING = (Device("gpu", capability) for capability in (9.0, 8.6, 7.5))


def test_packed_sequences_mix_as_they_do_alone() -> None:
    random = np.random.default_rng(3)
    queries, keys, values = (jnp.asarray(random.normal(size=(1, 5, 2, 4)), jnp.float32) for _ in range(3))
    packed = segment_attend(jnp.array([[1, 1, 2, 2, 2]], jnp.int32))(0, queries, keys, values)
    alone = segment_attend(jnp.ones((1, 3), jnp.int32))(0, queries[:, 2:], keys[:, 2:], values[:, 2:])
    np.testing.assert_allclose(packed[:, 2:], alone, atol=1e-6)


@pytest.mark.parametrize(
    ("device", "time", "head_size", "dtype", "packed", "kernel", "reason"),
    [
        (CPU, 512, 64, jnp.float32, True, "dense", ""),
        (CPU, 513, 64, jnp.float32, True, "blocks", ""),
        (HOPPER, 4096, 128, jnp.bfloat16, True, "cudnn", ""),
        (HOPPER, 4097, 256, jnp.bfloat16, True, "cudnn", ""),
        (HOPPER, 4096, 128, jnp.float32, True, "blocks", "bfloat16 and float16"),
        (HOPPER, 4096, 100, jnp.bfloat16, True, "blocks", "head sizes up to 256"),
        (AMPERE, 4096, 128, jnp.bfloat16, False, "cudnn", ""),
        (AMPERE, 4096, 128, jnp.bfloat16, True, "blocks", "several sequences in a row"),
        (AMPERE, 4096, 256, jnp.bfloat16, False, "blocks", "head sizes up to 128"),
        (TURING, 256, 128, jnp.float16, False, "dense", "compute capability 8.0"),
        (TPU, 4096, 128, jnp.bfloat16, True, "splash", ""),
        (TPU, 4097, 64, jnp.float32, True, "splash", ""),
        (TPU, 100, 64, jnp.bfloat16, True, "dense", "100 tokens"),
        (TPU, 4096, 20, jnp.bfloat16, True, "blocks", "head sizes that 8 divides"),
    ],
)
def test_each_device_gets_its_best_kernel_or_the_reason_why_not(
    device: Device, time: int, head_size: int, dtype: Any, packed: bool, kernel: str, reason: str
) -> None:
    choice = kernel_for(device, time, head_size, dtype, packed=packed)
    assert choice.kernel == kernel
    assert reason in choice.reason
    assert bool(reason) == bool(choice.reason)


def test_a_kernel_that_fails_its_check_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "this_device", lambda: HOPPER)
    monkeypatch.setattr(attention, "refusal", lambda *, packed: "off")
    found = attention.kernel_here(4096, 128, jnp.bfloat16, packed=True)
    assert found == KernelChoice("blocks", "off")


@pytest.mark.parametrize(
    ("query_heads", "key_value_heads", "shards", "copies"),
    [(32, 8, 1, 1), (32, 8, 8, 1), (32, 8, 16, 2), (16, 2, 4, 2), (64, 8, 32, 4), (12, 2, 3, 3), (8, 8, 16, 0)],
)
def test_key_heads_are_repeated_until_every_device_has_whole_groups(
    query_heads: int, key_value_heads: int, shards: int, copies: int
) -> None:
    assert head_copies(query_heads, key_value_heads, shards) == copies
    if copies:
        assert query_heads % (key_value_heads * copies) == key_value_heads * copies % shards == 0


@pytest.mark.parametrize("tensor", [1, 4, 8])
@pytest.mark.parametrize("kernel", ["splash", "cudnn"])
def test_kernels_are_lowered_for_key_heads_that_the_mesh_does_not_divide(
    monkeypatch: pytest.MonkeyPatch, tensor: int, kernel: attention.Kernel
) -> None:
    heads_of_a_device = []

    def plain(queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array, **_: Any) -> jax.Array:
        heads_of_a_device.append((queries.shape[2], keys.shape[2]))
        assert queries.shape[1] % 128 == 0
        return queries

    monkeypatch.setattr(splash, "splash_attention", plain)
    monkeypatch.setattr(attention, "cudnn_attention", plain)
    mesh = AbstractMesh((2, 1, tensor), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    queries, keys = (jax.ShapeDtypeStruct((2, 300, heads, 64), jnp.bfloat16) for heads in (4, 2))
    attend = segment_attend(jnp.ones((2, 300), jnp.int32), kernel, mesh)
    found = jax.eval_shape(lambda queries, keys: attend(0, queries, keys, keys), queries, keys)
    assert found.shape == queries.shape
    assert heads_of_a_device == [{1: (4, 2), 4: (1, 1), 8: (4, 2)}[tensor]]


def test_repeated_heads_change_nothing() -> None:
    random = np.random.default_rng(2)
    shapes = [(1, 6, heads, 4) for heads in (8, 2, 2)]
    queries, keys, values = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
    expected = segment_attend(jnp.ones((1, 6), jnp.int32), "dense")(0, queries, keys, values)
    keys, values = (jnp.repeat(array, head_copies(8, 2, 4), axis=2) for array in (keys, values))
    shares = [
        segment_attend(jnp.ones((1, 6), jnp.int32), "dense")(
            0, queries[:, :, 2 * own : 2 * own + 2], keys[:, :, own : own + 1], values[:, :, own : own + 1]
        )
        for own in range(4)
    ]
    np.testing.assert_allclose(jnp.concatenate(shares, axis=2), expected, atol=1e-6)
