"""Test that cuDNN's kernel gets lengths and offsets, and nothing of [time, time]; it runs on a GPU only."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused

from rollcast.policy.attention import segment_attend
from rollcast.policy.kernels import cudnn
from rollcast.policy.kernels.dense import attend_where, within_segments

TIME = 257


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jax lower for a Hopper GPU and its cuDNN; neither is here."""
    monkeypatch.setattr(fused, "check_compute_capability", lambda _needed: True)
    monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91000)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("packed", [False, True])
def test_values_and_gradients_are_computed_without_a_mask_for_odd_lengths_too(packed: bool) -> None:
    query = jax.ShapeDtypeStruct((2, TIME, 4, 64), jnp.bfloat16)
    key = jax.ShapeDtypeStruct((2, TIME, 2, 64), jnp.bfloat16)
    segments = jax.ShapeDtypeStruct((2, TIME), jnp.int32)

    def total(query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array) -> jax.Array:
        attend = segment_attend(segments, "cudnn", packed=packed)
        return jnp.sum(attend(0, query, key, value).astype(jnp.float32))

    traced = jax.jit(jax.grad(total, argnums=(0, 1, 2))).trace(query, key, key, segments)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "custom_call @__cudnn" in line]
    assert [line.count("__cudnn$fmhaSoftmax") for line in calls] == [1, 1]
    assert all("PADDING_CAUSAL" in line and "Bias" not in line for line in calls)
    assert not re.search(r"tensor<(\d+x)*384x384x", text)  # the row's length in whole tiles


def test_lengths_and_starts_are_those_of_the_sequences() -> None:
    segments = jnp.array([[1, 1, 1, 2, 3, 3, 0, 0], [0] * 8], jnp.int32)
    lengths, starts = cudnn.sequence_places(segments)
    assert lengths.shape == (2, cudnn.ROW_SEQUENCES_MAX)
    assert starts.shape == (2, cudnn.ROW_SEQUENCES_MAX + 1)
    assert lengths[0, :4].tolist() == [3, 1, 2, -1]
    assert starts[0, :4].tolist() == [0, 3, 4, -1]
    assert set(lengths[1].tolist()) == set(starts[1].tolist()) == {-1}


def test_a_machine_without_the_kernel_learns_why() -> None:
    assert cudnn.refusal(packed=True).startswith("cuDNN's kernel failed its check: ")


def test_a_kernel_that_is_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cudnn.refusal.cache_clear()
    monkeypatch.setattr(cudnn, "_difference", lambda *, packed: 0.3)
    assert cudnn.refusal(packed=False) == "cuDNN's kernel is 0.3 off in its check"
    cudnn.refusal.cache_clear()


@pytest.mark.parametrize("packed", [False, True])
def test_the_check_accepts_right_results_and_sees_wrong_ones(monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    def right(
        queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array, *, packed: bool
    ) -> jax.Array:
        return attend_where(queries, keys, values, within_segments(segments))

    def wrong(
        queries: jax.Array, keys: jax.Array, values: jax.Array, segments: jax.Array, *, packed: bool
    ) -> jax.Array:
        return attend_where(queries, keys, values, within_segments(jnp.minimum(segments, 1))) * jnp.where(packed, 1, 2)

    monkeypatch.setattr(cudnn, "cudnn_attention", right)
    assert cudnn._difference(packed=packed) < cudnn._CHECK_DIFFERENCE_MAX
    monkeypatch.setattr(cudnn, "cudnn_attention", wrong)
    assert cudnn._difference(packed=packed) > cudnn._CHECK_DIFFERENCE_MAX
