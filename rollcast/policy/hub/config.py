"""Read the Hugging Face Hub's `config.json` as our ModelConfig, and write it from one.

transformers up to 4 writes `rope_theta` and `rope_scaling` at the top level, transformers 5 both in `rope_parameters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollcast.policy.config import Llama3Scaling, ModelConfig, YarnScaling
from rollcast.runtime.errors import ModelError
from rollcast.wire.text.model_folder import CONFIG, ModelFolder

#: The Hub's architecture by model_type.
FAMILIES = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
}
LAYERS_MAX = 1024

_MISSING = object()
#: Keys that, if present, must have one of these values, because our model lacks what other values ask for.
_REQUIRED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("hidden_act", ("silu",)),
    ("use_sliding_window", (False, None)),
    ("mlp_bias", (False, None)),
    ("quantization_config", (None,)),
    ("attention_dropout", (0, 0.0, None)),
)
_REQUIRED_OF_EXPERTS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("decoder_sparse_step", (1,)),
    ("mlp_only_layers", ([], None)),
    ("shared_expert_intermediate_size", (0, None)),
    ("n_shared_experts", (0, None)),
)
_ROPE_KEYS = {"rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor"}
_ROPE_KEYS |= {"original_max_position_embeddings", "partial_rotary_factor", "attention_factor", "beta_fast"}
_ROPE_KEYS |= {"beta_slow", "mscale", "mscale_all_dim", "truncate"}


def model_config(folder: Path, **precision: Any) -> ModelConfig:
    """Return the architecture of the model in a folder; ``precision``: the fields that no config.json has.

    Raises:
        ModelError: there is no config.json, or its architecture is not supported.
    """
    return read_config(ModelFolder(folder).read_json(CONFIG), str(folder / CONFIG), **precision)


def read_config(values: Mapping[str, Any], source: str, **precision: Any) -> ModelConfig:
    """Return the architecture that a config.json describes.

    ``source`` names the file in errors; ``precision`` are the fields of ModelConfig that no config.json has.

    Raises:
        ModelError: the architecture is not supported, has a component that we lack, or a value is out of range.
    """
    family = values.get("model_type")
    if family not in FAMILIES:
        raise ModelError(
            f"{source}: the architecture {str(family)[:60]!r} is not supported",
            cause=f"model_type must be one of {', '.join(FAMILIES)}",
            fix="use a Qwen3, Qwen3-MoE, Qwen2.5 or Llama 3 model",
        )
    _refuse_what_we_lack(values, family, source)
    heads = _value(values, "num_attention_heads", source)
    width = _value(values, "hidden_size", source)
    head_size = values.get("head_dim")
    if head_size is None:
        if not (isinstance(heads, int) and isinstance(width, int)) or heads < 1 or width % heads:
            raise ModelError(f"{source}: hidden_size {width!r} is not a multiple of num_attention_heads {heads!r}")
        head_size = width // heads
    key_value_heads = values.get("num_key_value_heads")
    rope_base, rope_scaling = _rope(values, source)
    fields = {
        "vocabulary_size": _value(values, "vocab_size", source),
        "layers": _value(values, "num_hidden_layers", source),
        "width": width,
        "query_heads": heads,
        "key_value_heads": heads if key_value_heads is None else key_value_heads,
        "head_size": head_size,
        "feed_forward_width": _value(values, "intermediate_size", source),
        "rope_base": rope_base,
        "rope_scaling": rope_scaling,
        "rms_epsilon": values.get("rms_norm_eps", 1e-6),
        "tied_embeddings": values.get("tie_word_embeddings", False),
        "qk_norm": family in ("qwen3", "qwen3_moe"),
        "attention_bias": family == "qwen2",
        "context_tokens_max": _context(values, rope_scaling),
        **(_experts(values, source) if family == "qwen3_moe" else {}),
    }
    return _checked(fields | precision, source)


def write_config(config: ModelConfig, dtype: str, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the content of a model's config.json.

    ``dtype`` is that of the weights next to it; ``base`` has further keys, from the model that training started from.

    Raises:
        ModelError: no family has this combination of biases and normalised queries.
    """
    family = family_of(config)
    replaced = {"rope_scaling", "torch_dtype", "num_local_experts"}
    kept = {name: value for name, value in (base or {}).items() if name not in replaced}
    return (
        kept
        | {
            "architectures": [FAMILIES[family]],
            "model_type": family,
            "vocab_size": config.vocabulary_size,
            "hidden_size": config.width,
            "intermediate_size": config.feed_forward_width,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.query_heads,
            "num_key_value_heads": config.key_value_heads,
            "head_dim": config.head_size,
            "hidden_act": "silu",
            "max_position_embeddings": config.context_tokens_max,
            "rms_norm_eps": config.rms_epsilon,
            "rope_theta": config.rope_base,
            "rope_parameters": {"rope_theta": config.rope_base, **_written_scaling(config.rope_scaling)},
            "tie_word_embeddings": config.tied_embeddings,
            "dtype": dtype,
        }
        | ({"use_sliding_window": False} if family.startswith("qwen") else {})
        | (_written_experts(config) if config.experts else {})
    )


def family_of(config: ModelConfig) -> str:
    """Return the model_type of the family that has this combination of biases and normalised queries.

    Raises:
        ModelError: no family has it.
    """
    match (config.qk_norm, config.attention_bias, bool(config.experts)):
        case (True, False, is_mixture):
            return "qwen3_moe" if is_mixture else "qwen3"
        case (False, True, False):
            return "qwen2"
        case (False, False, False):
            return "llama"
    raise ModelError(
        "no published architecture has these biases, normalised queries and experts together",
        cause=f"model.qk_norm is {config.qk_norm}, model.attention_bias {config.attention_bias}, model.experts "
        f"{config.experts}",
        fix="set qk_norm and no attention_bias for a model with experts; in a dense one set at most one of them",
    )


def _refuse_what_we_lack(values: Mapping[str, Any], family: str, source: str) -> None:
    wanted = [*_REQUIRED] + ([] if family == "qwen2" else [("attention_bias", (False, None))])
    wanted += _REQUIRED_OF_EXPERTS if family == "qwen3_moe" else ()
    for name, allowed in wanted:
        value = values.get(name, _MISSING)
        if value is not _MISSING and value not in allowed:
            raise ModelError(
                f"{source}: {name} = {str(value)[:60]!r} is not supported",
                cause=f"this model can only have {' or '.join(map(repr, allowed))}",
                fix="use a model without it",
            )
    kinds = values.get("layer_types")
    if isinstance(kinds, list) and set(map(str, kinds)) - {"full_attention"}:
        raise ModelError(f"{source}: layers without full attention are not supported", fix="use a model without them")


def _experts(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the fields of experts; transformers 5 writes their number as num_local_experts."""
    number = "num_local_experts" if "num_experts" not in values else "num_experts"
    return {
        "experts": _value(values, number, source),
        "experts_per_token": _value(values, "num_experts_per_tok", source),
        "expert_width": _value(values, "moe_intermediate_size", source),
        "normalised_routes": values.get("norm_topk_prob", False),
        "balance_coefficient": values.get("router_aux_loss_coef", 0.001),
    }


def _written_experts(config: ModelConfig) -> dict[str, Any]:
    return {
        "num_experts": config.experts,
        "num_experts_per_tok": config.experts_per_token,
        "moe_intermediate_size": config.expert_width,
        "norm_topk_prob": config.normalised_routes,
        "router_aux_loss_coef": config.balance_coefficient,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _rope(values: Mapping[str, Any], source: str) -> tuple[Any, Llama3Scaling | YarnScaling | None]:
    parameters = values.get("rope_parameters") or {}
    scaling = values.get("rope_scaling") or {}
    if not isinstance(parameters, dict) or not isinstance(scaling, dict):
        raise ModelError(f"{source}: rope_parameters or rope_scaling is not an object")
    found = {**scaling, **parameters}
    bases = [found["rope_theta"]] if "rope_theta" in found else []
    if "rope_theta" in values:
        bases.append(values["rope_theta"])
    if len(set(map(str, map(_number, bases)))) > 1:
        raise ModelError(f"{source}: two different values of rope_theta, {bases[0]!r} and {bases[1]!r}")
    kind = found.get("rope_type", found.get("type", "default"))
    readers: dict[str, Callable[..., Llama3Scaling | YarnScaling | None]] = {
        "default": lambda *_: None,
        "llama3": _llama3,
        "yarn": _yarn,
    }
    if str(kind) not in readers or set(found) - _ROPE_KEYS or found.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(
            f"{source}: rotary scaling {str(kind)[:60]!r} is not supported",
            cause="only the plain one, that of Llama 3.1 and YaRN are",
            fix="set rope_scaling to null in a copy of config.json if the original context is enough",
        )
    try:
        return bases[0] if bases else 10_000.0, readers[str(kind)](found, source)
    except ValidationError as error:
        raise _out_of_range(source, error) from None


def _llama3(found: Mapping[str, Any], source: str) -> Llama3Scaling:
    return Llama3Scaling.model_validate(
        {
            "factor": _value(found, "factor", source),
            "low_frequency_factor": _value(found, "low_freq_factor", source),
            "high_frequency_factor": _value(found, "high_freq_factor", source),
            "original_context": _value(found, "original_max_position_embeddings", source),
        }
    )


def _yarn(found: Mapping[str, Any], source: str) -> YarnScaling:
    names = {"beta_fast": "turns_max", "beta_slow": "turns_min", "truncate": "whole_dimensions"}
    names |= {"attention_factor": "attention_factor"}
    scaling = YarnScaling.model_validate(
        {
            "factor": _value(found, "factor", source),
            "original_context": _value(found, "original_max_position_embeddings", source),
            **{own: found[name] for name, own in names.items() if found.get(name) is not None},
        }
    )
    scales = found.get("mscale"), found.get("mscale_all_dim")
    if scaling.attention_factor is not None or not all(scales):
        return scaling
    above, below = (0.1 * _real(scale, source) * math.log(scaling.factor) + 1.0 for scale in scales)
    return YarnScaling.model_validate(scaling.model_dump() | {"attention_factor": above / below})


def _real(value: Any, source: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"{source}: {str(value)[:60]!r} is not a number", fix="take the model's own config.json")
    return float(value)


def _written_scaling(scaling: Llama3Scaling | YarnScaling | None) -> dict[str, Any]:
    """Return the keys of rope_parameters that describe a scaling, for transformers."""
    if scaling is None:
        return {"rope_type": "default"}
    written: dict[str, Any] = {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_context,
    }
    if scaling.kind == "llama3":
        return written | {
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
        }
    written |= {"beta_fast": scaling.turns_max, "beta_slow": scaling.turns_min, "truncate": scaling.whole_dimensions}
    return written | ({} if scaling.attention_factor is None else {"attention_factor": scaling.attention_factor})


def _context(values: Mapping[str, Any], scaling: Llama3Scaling | YarnScaling | None) -> Any:
    """Return the longest context. Files with YaRN may give that of the training without it."""
    given = values.get("max_position_embeddings", 32_768)
    if scaling is None or scaling.kind != "yarn" or not isinstance(given, int):
        return given
    return max(given, int(scaling.factor * scaling.original_context))


def _checked(fields: dict[str, Any], source: str) -> ModelConfig:
    try:
        config = ModelConfig.model_validate(fields)
    except ValidationError as error:
        raise _out_of_range(source, error) from None
    if config.layers > LAYERS_MAX or config.vocabulary_size < 1:
        raise ModelError(f"{source}: {config.layers} layers, {config.vocabulary_size} tokens: not a model")
    if config.query_heads % config.key_value_heads or config.head_size % 2:
        raise ModelError(
            f"{source}: {config.query_heads} query heads, {config.key_value_heads} key-value heads of "
            f"{config.head_size}: they do not divide"
        )
    return config


def _value(values: Mapping[str, Any], name: str, source: str) -> Any:
    if name not in values:
        raise ModelError(f"{source}: {name} is missing", fix="take the model's own config.json")
    return values[name]


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, int | float) else value


def _out_of_range(source: str, error: ValidationError) -> ModelError:
    problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5])
    return ModelError(f"{source}: values out of range", cause=problems, fix="take the model's own config.json")
