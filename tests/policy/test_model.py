from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.attention import segment_attend
from rollcast.policy.config import Llama3Scaling, ModelConfig, YarnScaling
from rollcast.policy.hub.config import write_config
from rollcast.policy.model import rotary_angles, rotary_frequencies
from rollcast.policy.params import Params, bind, initial_params
from tests.policy.tiny import TINY, reference_logits

TOKENS = [3, 1, 4, 1, 5, 9, 2]


def row(tokens: list[int], *, left: int = 0, right: int = 0) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return tokens, positions and segments [1, left + time + right], padded on both sides."""
    padded = np.pad(np.array(tokens, np.int32), (left, right))
    positions = np.pad(np.arange(len(tokens), dtype=np.int32), (left, right))
    segments = np.pad(np.ones(len(tokens), np.int32), (left, right))
    return jnp.asarray(padded[None]), jnp.asarray(positions[None]), jnp.asarray(segments[None])


def forward(
    config: ModelConfig, params: Params, tokens: jax.Array, positions: jax.Array, segments: jax.Array
) -> jax.Array:
    @jax.jit
    def run(params: Params) -> jax.Array:
        model = bind(config, params)
        return model.logits(model(tokens, positions, segment_attend(segments)).states)

    logits: jax.Array = run(params)
    return logits


@pytest.mark.parametrize("tied", [True, False])
def test_logits_agree_with_an_independent_forward_pass(tied: bool) -> None:
    config = TINY.model_copy(update={"tied_embeddings": tied})
    params = initial_params(config, 5)
    logits = forward(config, params, *row(TOKENS))
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits[0], reference_logits(config, params, TOKENS), atol=3e-6)


# Wavelengths of TINY's heads are 6.3, 63, 628 and 6283 tokens: each case of the stretch occurs.
YARN = YarnScaling(factor=4.0, turns_max=20.0, original_context=1000)
STRETCHED = Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=1000)


@pytest.mark.parametrize(
    "flags",
    [
        {"qk_norm": False, "attention_bias": True},
        {"qk_norm": False, "rope_scaling": STRETCHED},
        {"rope_scaling": YARN},
        {"qk_norm": True, "attention_bias": True, "rms_epsilon": 1e-2},
    ],
)
def test_each_family_agrees_with_an_independent_forward_pass(flags: dict[str, Any]) -> None:
    config = TINY.model_copy(update=flags)
    params = {
        name: value + 0.1 if name.endswith(".bias") else value for name, value in initial_params(config, 5).items()
    }
    assert ("layers.0.attention.value.bias" in params) == config.attention_bias
    assert ("layers.0.attention.query_norm.scale" in params) == config.qk_norm
    tokens, positions, segments = row(TOKENS)
    logits = forward(config, params, tokens, positions, segments)
    np.testing.assert_allclose(logits[0], reference_logits(config, params, TOKENS), atol=3e-6)


def test_rope_scaling_stretches_long_wavelengths_only() -> None:
    plain, stretched = (rotary_frequencies(TINY.model_copy(update={"rope_scaling": one})) for one in (None, STRETCHED))
    np.testing.assert_allclose(plain, [1.0, 0.1, 0.01, 0.001], rtol=1e-6)
    middle = (1000 * 0.01 / (2 * np.pi) - 1) / 3
    np.testing.assert_allclose(stretched / plain, [1.0, 1.0, middle + (1 - middle) / 8, 1 / 8], rtol=1e-6)


def test_yarn_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    plain, stretched = (rotary_frequencies(TINY.model_copy(update={"rope_scaling": one})) for one in (None, YARN))
    # Wavelengths of 6.3, 63, 628 and 6,283 tokens. 20 turns of 1,000 tokens lie at dimension 0.9, one at 2.2; rounded
    # outwards, wavelengths are interpolated between dimensions 0 and 3.
    kept = 1 - np.array([0, 1, 2, 3]) / 3
    np.testing.assert_allclose(stretched / plain, kept + (1 - kept) / 4, rtol=1e-6)


@pytest.mark.parametrize("given", [None, 1.5])
def test_yarn_lengthens_rotated_heads_at_every_length(given: float | None) -> None:
    config = TINY.model_copy(update={"rope_scaling": YARN.model_copy(update={"attention_factor": given})})
    cosine, sine = rotary_angles(jnp.array([[0, 5, 100_000]], jnp.int32), config)
    np.testing.assert_allclose(jnp.sqrt(cosine**2 + sine**2), given or 0.1 * np.log(4) + 1, rtol=1e-6)


YARN_CASES = (
    YarnScaling(),
    YarnScaling(factor=2.5, original_context=4096, whole_dimensions=False, attention_factor=1.3),
    YarnScaling(factor=8.0, turns_max=1.1, original_context=64),
)


@pytest.mark.parametrize("scaling", YARN_CASES)
@pytest.mark.parametrize("base", [1e4, 1e6])
def test_yarn_agrees_with_transformers(scaling: YarnScaling, base: float) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = ModelConfig(preset="qwen3-0.6b", rope_base=base, rope_scaling=scaling, context_tokens_max=131_072)
    theirs = transformers.Qwen3Config(**write_config(config, "float32"))
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](theirs, "cpu")
    np.testing.assert_allclose(rotary_frequencies(config), frequencies.numpy(), rtol=1e-6)
    cosine, _ = rotary_angles(jnp.zeros((1, 1), jnp.int32), config)
    np.testing.assert_allclose(cosine, factor, rtol=1e-6)


@pytest.mark.parametrize(("left", "right"), [(4, 0), (0, 4), (2, 2)])
def test_padding_on_either_side_changes_nothing(left: int, right: int) -> None:
    params = initial_params(TINY, 5)
    padded = forward(TINY, params, *row(TOKENS, left=left, right=right))[0, left : left + len(TOKENS)]
    np.testing.assert_allclose(padded, reference_logits(TINY, params, TOKENS), atol=3e-6)


def test_a_row_of_padding_only_stays_finite() -> None:
    tokens = jnp.zeros((1, 4), jnp.int32)
    logits = forward(TINY, initial_params(TINY, 5), tokens, tokens, tokens)
    assert bool(jnp.all(jnp.isfinite(logits)))


def test_bfloat16_computes_in_bfloat16_with_float32_logits() -> None:
    config = TINY.model_copy(update={"precision": "bfloat16"})
    params = initial_params(config, 5)
    logits = forward(config, params, *row(TOKENS))
    exact = reference_logits(config, params, TOKENS)
    assert logits.dtype == jnp.float32
    assert 1e-5 < np.abs(logits[0] - exact).max() < 0.2


def test_a_model_without_experts_does_not_need_the_compiler_of_gpu_kernels() -> None:
    script = "import sys, rollcast.policy.model; print('jax.experimental.pallas' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert result.stdout.strip() == "False"
