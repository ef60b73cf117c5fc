"""Write model folders as the Hub has them, small and with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.save import save_model
from rollcast.policy.params import Params, initial_params
from rollcast.wire.versions.safetensors import format_header
from tests.policy.tiny import TINY, TINY_EXPERTS

FAMILIES = {
    "qwen3": TINY.model_copy(update={"tied_embeddings": False}),
    "qwen3_moe": TINY_EXPERTS,
    "qwen2": TINY.model_copy(update={"qk_norm": False, "attention_bias": True}),
    "llama": TINY.model_copy(update={"qk_norm": False, "tied_embeddings": False}),
}


def random_params(config: ModelConfig, seed: int = 3) -> Params:
    """Return parameters like those of initial_params, with biases and scales that are not trivial."""
    random = np.random.default_rng(seed)
    return {
        name: value + random.normal(0, 0.1, value.shape).astype(np.float32)
        if name.endswith(("bias", "scale"))
        else value
        for name, value in initial_params(config, seed).items()
    }


def model_folder(folder: Path, config: ModelConfig, params: Params, **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_model(config, params, folder, settings.pop("dtype", "float32"), **settings)
    return folder


def write_weights(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write one safetensors file of any arrays."""
    entries = [(name, str(value.dtype), value.shape) for name, value in tensors.items()]
    path.write_bytes(format_header(entries) + b"".join(value.tobytes() for value in tensors.values()))


def change_json(path: Path, **changed: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
