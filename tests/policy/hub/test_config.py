"""Test configurations and tensor names of Hugging Face's architectures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollcast.policy.config import Llama3Scaling, ModelConfig, YarnScaling
from rollcast.policy.hub.config import family_of, read_config, write_config
from rollcast.policy.hub.names import hf_names, hf_shape, is_transposed, may_be_ignored
from rollcast.policy.published import ARCHITECTURES
from rollcast.policy.shapes import parameter_shapes
from rollcast.runtime.errors import ModelError
from tests.policy.tiny import TINY, TINY_EXPERTS

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 40960,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

STRETCH = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}

# As in the model card of Qwen3, which keeps max_position_embeddings at 40,960.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}

LLAMA = (QWEN3 | {"model_type": "llama", "rope_scaling": STRETCH, "mlp_bias": False}) | {"rms_norm_eps": 1e-5}


QWEN3_MOE = QWEN3 | {
    "decoder_sparse_step": 1,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
}


def read(values: dict[str, Any], **precision: Any) -> ModelConfig:
    return read_config(values, "config.json", **precision)


def test_a_published_file_is_its_preset() -> None:
    assert read(QWEN3, precision="bfloat16") == ModelConfig(preset="qwen3-4b")
    assert read(QWEN3_MOE, precision="bfloat16") == ModelConfig(preset="qwen3-30b-a3b")


def test_the_number_of_experts_is_read_by_both_of_its_names() -> None:
    renamed = {name: value for name, value in QWEN3_MOE.items() if name != "num_experts"} | {"num_local_experts": 64}
    config = read(renamed)
    assert config.experts == 64
    assert read(write_config(config, "bfloat16", renamed)) == config


def test_heads_and_their_size_have_the_librarys_defaults() -> None:
    values = {name: value for name, value in QWEN3.items() if name not in {"head_dim", "num_key_value_heads"}}
    config = read(values | {"model_type": "qwen2", "attention_bias": True})
    assert (config.head_size, config.key_value_heads) == (80, 32)
    assert (config.qk_norm, config.attention_bias) == (False, True)


def test_rotary_settings_are_read_in_both_places() -> None:
    before = read(LLAMA)
    without = {name: value for name, value in LLAMA.items() if name not in {"rope_theta", "rope_scaling"}}
    after = read(without | {"rope_parameters": STRETCH | {"rope_theta": 1e6}})
    assert before == after
    assert before.rope_scaling == Llama3Scaling()
    assert read(QWEN3 | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}).rope_base == 1e6


def test_yarn_is_read_and_written_again() -> None:
    config = read(QWEN3 | {"rope_scaling": YARN})
    assert config.rope_scaling == YarnScaling()
    assert config.context_tokens_max == 131_072
    assert read(write_config(config, "bfloat16")) == config
    given = YARN | {"beta_fast": 16, "beta_slow": 2, "truncate": False, "attention_factor": 1.5, "mscale": None}
    config = read(QWEN3 | {"rope_parameters": given | {"rope_theta": 1e6}})
    assert config.rope_scaling == YarnScaling(turns_max=16, turns_min=2, whole_dimensions=False, attention_factor=1.5)
    assert read(write_config(config, "bfloat16")) == config


def test_the_scales_of_some_yarn_models_become_one_attention_factor() -> None:
    scaling = read(QWEN3 | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}}).rope_scaling
    assert isinstance(scaling, YarnScaling)
    assert scaling.attention_factor == pytest.approx((0.1 * np.log(4) + 1) / (0.05 * np.log(4) + 1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "gemma3"}, "architecture 'gemma3' is not supported"),
        ({"model_type": None}, "architecture 'None'"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["sliding_attention"]}, "full attention"),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rotary scaling 'longrope'"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "rotary scaling \"\\['yarn'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "original_max_position_embeddings is missing"),
        ({"rope_scaling": YARN | {"beta_fast": 0.5}}, "turns_max must be above turns_min"),
        ({"rope_scaling": YARN | {"mscale": "large", "mscale_all_dim": 1.0}}, "'large' is not a number"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is missing"),
        ({"rope_scaling": STRETCH | {"factor": 0.1}}, "out of range"),
        ({"rope_scaling": []}, None),
        ({"rope_scaling": [1]}, "not an object"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "two different values of rope_theta"),
        ({"hidden_size": "wide"}, "out of range"),
        ({"hidden_size": 7, "head_dim": None}, "not a multiple"),
        ({"num_hidden_layers": 10**6}, "not a model"),
        ({"num_key_value_heads": 5}, "do not divide"),
        (QWEN3_MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step = '2'"),
        (QWEN3_MOE | {"mlp_only_layers": [0]}, r"mlp_only_layers = '\[0\]'"),
        (QWEN3_MOE | {"shared_expert_intermediate_size": 512}, "shared_expert_intermediate_size"),
        (QWEN3_MOE | {"num_experts_per_tok": 129}, "out of range"),
        (QWEN3_MOE | {"moe_intermediate_size": 0}, "out of range"),
    ],
)
def test_unsupported_configurations_are_refused(changed: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert read(QWEN3 | changed).rope_scaling is None
        return
    with pytest.raises(ModelError, match=message):
        read(QWEN3 | changed)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ModelError, match="vocab_size is missing"):
        read({name: value for name, value in QWEN3.items() if name != "vocab_size"})


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-30b-a3b", "qwen2.5-7b", "llama-3.1-8b", "llama-3.2-1b"])
def test_a_written_configuration_reads_back(name: str) -> None:
    config = ModelConfig.model_validate(dict(ARCHITECTURES[name]))
    written = write_config(config, "bfloat16", {"eos_token_id": 7, "torch_dtype": "float16"})
    assert (written["eos_token_id"], written["dtype"], "torch_dtype" in written) == (7, "bfloat16", False)
    assert read(written, precision="bfloat16") == config


def test_a_mixed_architecture_has_no_family() -> None:
    with pytest.raises(ModelError, match="biases, normalised queries and experts together"):
        family_of(ModelConfig(qk_norm=True, attention_bias=True))


def test_every_parameter_has_its_own_name() -> None:
    config = TINY.model_copy(update={"attention_bias": True, "tied_embeddings": False})
    names = [one for name, shape in parameter_shapes(config).items() for one in hf_names(name, shape)]
    assert len(set(names)) == len(names)
    assert {"lm_head.weight", "model.layers.1.self_attn.k_norm.weight", "model.layers.0.self_attn.v_proj.bias"} <= set(
        names
    )


@pytest.mark.parametrize(
    "name", ["head", "layers.0.attention.query", "layers.x.attention.query.kernel", "layers.0.mlp.kernel"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(KeyError):
        hf_names(name, (2, 2, 2))


def test_each_expert_has_tensors_of_its_own() -> None:
    kernel = "layers.1.feed_forward.expert_down.kernel"
    shape = parameter_shapes(TINY_EXPERTS)[kernel]
    assert hf_names(kernel, shape) == [f"model.layers.1.mlp.experts.{one}.down_proj.weight" for one in range(6)]
    assert hf_shape(kernel, shape) == (TINY_EXPERTS.width, TINY_EXPERTS.expert_width)
    assert hf_names("layers.0.feed_forward.router.kernel", (16, 6)) == ["model.layers.0.mlp.gate.weight"]


def test_kernels_lie_the_other_way_round() -> None:
    assert is_transposed("head.kernel")
    assert not is_transposed("embedding")


def test_derived_tensors_may_be_ignored() -> None:
    assert may_be_ignored("lm_head.weight", tied=True)
    assert not may_be_ignored("lm_head.weight", tied=False)
    assert may_be_ignored("model.layers.11.self_attn.rotary_emb.inv_freq", tied=False)
