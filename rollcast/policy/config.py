"""Architecture of the policy, as it travels in every version record."""

from __future__ import annotations

from pydantic import Field

from rollcast.runtime.config import ConfigModel


class ModelConfig(ConfigModel):
    """A decoder-only transformer of the Qwen3 family. Defaults: the 0.3 M demonstration model."""

    vocabulary_size: int = Field(0, ge=0)
    """Tokens; 0 until the tokenizer is known."""
    layers: int = Field(2, ge=1)
    """Transformer blocks."""
    width: int = Field(128, ge=8)
    """Size of the residual stream."""
    query_heads: int = Field(8, ge=1)
    """Attention heads."""
    key_value_heads: int = Field(4, ge=1)
    """Heads of keys and values (grouped-query attention)."""
    head_size: int = Field(16, ge=2)
    """Size of one head."""
    feed_forward_width: int = Field(256, ge=8)
    """Inner size of SwiGLU."""
    rope_base: float = Field(10_000.0, gt=0.0)
    """Base of the rotary position embedding."""
    rms_epsilon: float = Field(1e-6, gt=0.0)
    """Added inside RMSNorm's root."""
    tied_embeddings: bool = True
    """Whether the output head is the embedding's transpose."""
    precision: str = Field("float32", pattern=r"^(float32|bfloat16)$")
    """dtype of the snapshot and of the forward pass."""
