from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollcast.policy.config import LoraConfig, ModelConfig, adapted
from rollcast.policy.logits import Tiles
from rollcast.policy.logprobs import Forward, completion_logprobs
from rollcast.policy.lora import absent_adapters, adapter_shapes, adapter_specs, initial_adapters, merged
from rollcast.policy.params import Params, initial_params
from rollcast.policy.products.grouped import Kernel, grouped_matmul
from rollcast.policy.products.linear import Flow, fp8_matmul
from rollcast.policy.products.quantise import WEIGHT_BLOCK, quantise
from rollcast.policy.sampling.sampler import Sampler, SampleRequest
from rollcast.policy.snapshot import Snapshot, freeze, merged_params, tensor_specs, thaw
from rollcast.runtime.errors import ConfigError, MalformedMessage
from rollcast.wire.rollouts import Sampling
from tests.policy.test_model import forward
from tests.policy.tiny import TINY, TINY_EXPERTS, reference_logits

LORA = LoraConfig(rank=3, alpha=5.0)
DENSE = adapted(TINY.model_copy(update={"layers": 1}), LORA)
TOKENS = jnp.array([[1, 2, 3, 4, 5, 6]], jnp.int32)
INPUTS = (TOKENS, jnp.arange(6, dtype=jnp.int32)[None], jnp.ones((1, 6), jnp.int32))


def some_adapters(config: ModelConfig) -> Params:
    random = np.random.default_rng(7)
    shapes = adapter_shapes(config).items()
    return {name: jnp.asarray(0.3 * random.standard_normal(shape), jnp.float32) for name, shape in shapes}


def adapter_gradients(config: ModelConfig, base: Params, adapters: Params) -> Params:
    return jax.jit(jax.grad(lambda own: score(config, base | own)))(adapters)


def score(config: ModelConfig, params: Params) -> jax.Array:
    """Return a sum that depends on log-probabilities alone, from tiles as large models use them."""
    found = completion_logprobs(config, params, *INPUTS, jnp.ones(1, jnp.float32), forward=Forward(tiles=Tiles(8)))
    return jnp.sum(jnp.square(found.logprobs))


def test_the_layer_is_that_of_the_paper() -> None:
    base, adapters = initial_params(DENSE, 3), some_adapters(DENSE)
    kernels = {name: np.asarray(value, np.float64) for name, value in base.items()}
    for stem in {name.rpartition(".")[0] for name in adapters}:
        a, b = (np.asarray(adapters[f"{stem}.lora_{end}"], np.float64) for end in "ab")
        kernels[f"{stem}.kernel"] = kernels[f"{stem}.kernel"] + 5.0 / 3.0 * (a @ b)
    found = forward(DENSE, base | adapters, *INPUTS)[0]
    np.testing.assert_allclose(found, reference_logits(DENSE, kernels, TOKENS[0].tolist()), atol=2e-5)
    folded = {name: merged(DENSE, name, np.asarray(value), adapters) for name, value in base.items()}
    for name, value in kernels.items():
        np.testing.assert_allclose(folded[name], value, atol=1e-6)


@pytest.mark.parametrize("model", [DENSE, adapted(TINY_EXPERTS.model_copy(update={"layers": 1}), LORA)])
def test_gradients_are_those_of_the_merged_kernels(model: ModelConfig) -> None:
    base, adapters = initial_params(model, 3), some_adapters(model)
    folded = {name: jnp.asarray(merged(model, name, np.asarray(value), adapters)) for name, value in base.items()}
    of_kernels = jax.jit(jax.grad(lambda params: score(model, params)))(folded)
    found = adapter_gradients(model, base, adapters)
    assert found.keys() == adapters.keys()
    for name, value in found.items():
        stem, _, end = name.rpartition(".")
        kernel = of_kernels[f"{stem}.kernel"] * (5.0 / 3.0)
        expected = kernel @ adapters[f"{stem}.lora_b"].T if end == "lora_a" else adapters[f"{stem}.lora_a"].T @ kernel
        np.testing.assert_allclose(value, expected, atol=1e-5 * float(jnp.max(jnp.abs(expected))) + 1e-6)


def test_codes_of_a_kernel_give_the_products_and_gradients_of_its_master() -> None:
    random = np.random.default_rng(5)
    x, master = (jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in [(3, 130), (130, 6)])

    def run(kernel: Any) -> Any:
        product, pull = jax.vjp(lambda x: fp8_matmul(x, kernel), x)
        return product, pull(product)

    found, expected = jax.jit(lambda: (run(quantise(master, WEIGHT_BLOCK)), run(master)))()
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_codes_of_experts_give_the_products_and_gradients_of_their_masters() -> None:
    random = np.random.default_rng(6)
    x, master = (jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in [(5, 130), (2, 130, 6)])
    sizes = jnp.array([2, 3], jnp.int32)

    def run(kernel: Kernel, flow: Flow) -> Any:
        product, pull = jax.vjp(lambda x: grouped_matmul(x, kernel, sizes, flow), x)
        return product, pull(product)

    def both() -> Any:
        codes = Kernel(*quantise(master, WEIGHT_BLOCK))
        return run(codes, "fp8-codes"), run(Kernel(master, None), "fp8-master")

    jax.tree.map(np.testing.assert_array_equal, *jax.jit(both)())


def equations(jaxpr: Any) -> list[Any]:
    inner = [part for equation in jaxpr.eqns for part in jax.tree.leaves(list(equation.params.values()))]
    nested = [getattr(part, "jaxpr", part) for part in inner if hasattr(part, "eqns") or hasattr(part, "jaxpr")]
    return [*jaxpr.eqns, *(one for part in nested for one in equations(part))]


def test_a_frozen_kernel_has_no_product_for_its_gradient() -> None:
    config = DENSE.model_copy(update={"precision": "bfloat16"})
    base = {name: value.astype(jnp.bfloat16) for name, value in initial_params(config, 3).items()}
    adapters = some_adapters(config)
    traced = jax.make_jaxpr(jax.grad(lambda own: score(config, base | own)))(adapters)
    shapes = {tuple(var.aval.shape) for one in equations(traced.jaxpr) for var in one.outvars if "dot" in str(one)}
    assert adapters["layers.0.feed_forward.up.lora_b"].shape in shapes
    assert not {base[f"layers.0.{name}.kernel"].shape for name in ("attention.query", "feed_forward.up")} & shapes


PACKED = adapted(
    TINY.model_copy(update={"layers": 1, "feed_forward_width": 32}), LoraConfig(rank=3, alpha=5.0, base="nvfp4")
)


@pytest.fixture(scope="module")
def packed_base() -> Snapshot:
    return freeze(PACKED, initial_params(PACKED, 3))


def test_a_base_of_4_bits_is_published_as_codes(packed_base: Snapshot) -> None:
    assert packed_base.tensors == tensor_specs(PACKED)
    in_bfloat16 = tensor_specs(PACKED.model_copy(update={"precision": "bfloat16"}))
    found = {spec.name: (spec.dtype, spec.shape) for spec in in_bfloat16}
    name = "layers.0.feed_forward.down.kernel"
    assert found[name] == ("uint8", (16, 16))
    assert found[f"{name}_scale"] == ("float8_e4m3fn", (2, 16))
    assert found[f"{name}_tensor_scale"] == ("float32", (1,))
    assert found["embedding"][0] == found["layers.0.attention_norm.scale"][0] == "bfloat16"
    assert freeze(PACKED, thaw(PACKED, packed_base.tensors, packed_base.state_bytes)) == packed_base


def test_learner_and_sampler_compute_with_the_numbers_of_a_base_of_4_bits(packed_base: Snapshot) -> None:
    base, adapters = thaw(PACKED, packed_base.tensors, packed_base.state_bytes), some_adapters(PACKED)
    sampler = Sampler(PACKED, prompt_tokens_max=4, new_tokens_max=2, batch_size=1)
    sampled = sampler.generate(base | adapters, [SampleRequest((1, 2, 3, 4), seed=1)], Sampling(1.0, 2, ()))[0]
    tokens = (1, 2, 3, 4, *sampled.token_ids)
    rows = (jnp.array([tokens], jnp.int32), *INPUTS[1:], jnp.ones(1, jnp.float32))
    learned = jax.jit(completion_logprobs, static_argnums=0)(PACKED, base | adapters, *rows).logprobs
    np.testing.assert_allclose(sampled.logprobs, learned[0, 4:], atol=5e-6)
    logits = reference_logits(PACKED, merged_params(PACKED, base, adapters), list(tokens))
    expected = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(learned[0, 1:], expected[range(5), tokens[1:]], atol=2e-5)


def test_fresh_and_absent_adapters_change_nothing() -> None:
    config = DENSE.model_copy(update={"precision": "bfloat16"})
    base = initial_params(config, 3)
    alone = forward(config, base, *INPUTS)
    for adapters in (initial_adapters(config, 1), absent_adapters(config)):
        with_zeros = base | {name: jnp.asarray(value) for name, value in adapters.items()}
        np.testing.assert_array_equal(forward(config, with_zeros, *INPUTS), alone)


def test_fresh_adapters_follow_the_seed_and_not_the_base() -> None:
    first, again, other = (initial_adapters(DENSE, seed) for seed in (3, 3, 4))
    name = "layers.0.attention.query.lora_a"
    assert np.array_equal(first[name], again[name])
    assert not np.array_equal(first[name], other[name])
    assert np.max(np.abs(first[name])) <= 0.25  # 1 / sqrt(16)
    assert np.std(first[name]) == pytest.approx(0.25 / 3**0.5, rel=0.2)


def test_a_version_of_adapters_is_a_state_of_its_own() -> None:
    config = adapted(TINY.model_copy(update={"precision": "bfloat16"}), LoraConfig(rank=2, targets=("attention.key",)))
    assert adapter_shapes(config) == {
        f"layers.{layer}.attention.key.lora_{end}": shape
        for layer in (0, 1)
        for end, shape in (("a", (16, 2)), ("b", (2, 16)))
    }
    frozen = freeze(config, some_adapters(config))
    assert frozen.tensors == adapter_specs(config)
    assert len(frozen.state_bytes) == 2 * 2 * (16 * 2 + 2 * 16)
    found = thaw(config, frozen.tensors, frozen.state_bytes)
    assert {leaf.dtype for leaf in found.values()} == {jnp.dtype(jnp.bfloat16)}
    with pytest.raises(MalformedMessage, match="tensors"):
        thaw(TINY, frozen.tensors, frozen.state_bytes)


def test_an_adapter_version_of_8b_with_rank_16_has_87_megabytes() -> None:
    model = adapted(ModelConfig.model_validate({"preset": "qwen3-8b"}), LoraConfig(rank=16))
    assert sum(spec.size_bytes for spec in adapter_specs(model)) == pytest.approx(87e6, rel=0.01)


@pytest.mark.parametrize(
    ("model", "lora", "problem"),
    [
        (TINY_EXPERTS, {"targets": ["feed_forward.gate"]}, "attention.key"),
        (TINY.model_copy(update={"precision": "fp8-naive"}), {}, "fp8-naive"),
        (PACKED.model_copy(update={"lora": None, "precision": "fp8"}), {"base": "nvfp4"}, "choose bfloat16"),
        (PACKED.model_copy(update={"lora": None, "width": 24}), {"base": "nvfp4"}, "16 divides"),
    ],
)
def test_impossible_adapters_are_refused(model: ModelConfig, lora: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        adapted(model, LoraConfig.model_validate(lora))


@pytest.mark.parametrize(
    ("values", "problem"),
    [({"rank": 0}, "rank"), ({"alpha": 0.0}, "alpha"), ({"targets": ["q_proj"]}, "attention.query")],
)
def test_values_out_of_range_are_refused(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        LoraConfig.model_validate(values)
