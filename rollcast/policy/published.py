"""List published architectures by name: the values of their `config.json`, as fields of ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _qwen3(width: int, layers: int, query_heads: int, feed_forward_width: int, *, tied: bool) -> dict[str, Any]:
    """Return the values of a Qwen3 model (Qwen3 Technical Report, 2025, table 1)."""
    return {
        "vocabulary_size": 151_936,
        "layers": layers,
        "width": width,
        "query_heads": query_heads,
        "key_value_heads": 8,
        "head_size": 128,
        "feed_forward_width": feed_forward_width,
        "rope_base": 1e6,
        "rms_epsilon": 1e-6,
        "tied_embeddings": tied,
        "qk_norm": True,
        "attention_bias": False,
        "context_tokens_max": 40_960,
        "precision": "bfloat16",
    }


def _qwen3_moe(
    width: int, layers: int, query_heads: int, expert_width: int, *, feed_forward_width: int
) -> dict[str, Any]:
    """Return the values of a Qwen3 mixture of experts (Qwen3 Technical Report, 2025, table 2).

    feed_forward_width is that of dense layers, which the published files give although there are none.
    """
    return _qwen3(width, layers, query_heads, feed_forward_width, tied=False) | {
        "key_value_heads": 4,
        "experts": 128,
        "experts_per_token": 8,
        "expert_width": expert_width,
        "normalised_routes": True,
        "balance_coefficient": 0.001,
    }


def _qwen25(
    width: int,
    layers: int,
    heads: tuple[int, int],
    feed_forward_width: int,
    *,
    tied: bool,
    head_size: int = 128,
    vocabulary_size: int = 151_936,
) -> dict[str, Any]:
    """Return the values of an instruction-tuned Qwen2.5 model (Qwen2.5 Technical Report, 2024, table 1)."""
    return {
        "vocabulary_size": vocabulary_size,
        "layers": layers,
        "width": width,
        "query_heads": heads[0],
        "key_value_heads": heads[1],
        "head_size": head_size,
        "feed_forward_width": feed_forward_width,
        "rope_base": 1e6,
        "rms_epsilon": 1e-6,
        "tied_embeddings": tied,
        "qk_norm": False,
        "attention_bias": True,
        "context_tokens_max": 32_768,
        "precision": "bfloat16",
    }


def _llama3(
    width: int,
    layers: int,
    query_heads: int,
    feed_forward_width: int,
    *,
    tied: bool = False,
    head_size: int = 128,
    rope_factor: float | None,
) -> dict[str, Any]:
    """Return the values of a Llama 3 model (The Llama 3 Herd of Models, 2024, table 3; model cards of 3.1 to 3.3)."""
    scaling = {"kind": "llama3", "factor": rope_factor} if rope_factor is not None else None
    return {
        "vocabulary_size": 128_256,
        "layers": layers,
        "width": width,
        "query_heads": query_heads,
        "key_value_heads": 8,
        "head_size": head_size,
        "feed_forward_width": feed_forward_width,
        "rope_base": 5e5,
        "rope_scaling": scaling,
        "rms_epsilon": 1e-5,
        "tied_embeddings": tied,
        "qk_norm": False,
        "attention_bias": False,
        "context_tokens_max": 131_072 if scaling else 8192,
        "precision": "bfloat16",
    }


#: The values of each architecture by its name. Qwen2.5's 7B and larger models have a larger, padded vocabulary.
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
    "qwen3-4b-2507": _qwen3(2560, 36, 32, 9728, tied=True) | {"rope_base": 5e6, "context_tokens_max": 262_144},
    "qwen3-8b": _qwen3(4096, 36, 32, 12_288, tied=False),
    "qwen3-14b": _qwen3(5120, 40, 40, 17_408, tied=False),
    "qwen3-32b": _qwen3(5120, 64, 64, 25_600, tied=False),
    "qwen3-30b-a3b": _qwen3_moe(2048, 48, 32, 768, feed_forward_width=6144),
    "qwen3-30b-a3b-2507": _qwen3_moe(2048, 48, 32, 768, feed_forward_width=6144)
    | {"rope_base": 1e7, "context_tokens_max": 262_144},
    "qwen3-235b-a22b": _qwen3_moe(4096, 94, 64, 1536, feed_forward_width=12_288),
    "qwen2.5-0.5b": _qwen25(896, 24, (14, 2), 4864, tied=True, head_size=64),
    "qwen2.5-1.5b": _qwen25(1536, 28, (12, 2), 8960, tied=True),
    "qwen2.5-3b": _qwen25(2048, 36, (16, 2), 11_008, tied=True),
    "qwen2.5-7b": _qwen25(3584, 28, (28, 4), 18_944, tied=False, vocabulary_size=152_064),
    "qwen2.5-14b": _qwen25(5120, 48, (40, 8), 13_824, tied=False, vocabulary_size=152_064),
    "qwen2.5-32b": _qwen25(5120, 64, (40, 8), 27_648, tied=False, vocabulary_size=152_064),
    "llama-3-8b": _llama3(4096, 32, 32, 14_336, rope_factor=None),
    "llama-3.1-8b": _llama3(4096, 32, 32, 14_336, rope_factor=8.0),
    "llama-3.2-1b": _llama3(2048, 16, 32, 8192, tied=True, head_size=64, rope_factor=32.0),
    "llama-3.2-3b": _llama3(3072, 28, 24, 8192, tied=True, rope_factor=32.0),
    "llama-3.3-70b": _llama3(8192, 80, 64, 28_672, rope_factor=8.0),
}
