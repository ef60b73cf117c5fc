from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rollcast.policy.config import LoraConfig, adapted
from rollcast.policy.hub.adapter import save_adapter
from rollcast.policy.lora import adapter_shapes
from rollcast.runtime.errors import ModelError
from tests.policy.tiny import TINY

CONFIG = adapted(TINY, LoraConfig(rank=3, alpha=6.0, targets=("attention.query", "feed_forward.down")))


def test_the_files_are_those_of_peft(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    params = {name: random.standard_normal(shape, np.float32) for name, shape in adapter_shapes(CONFIG).items()}
    written = save_adapter(CONFIG, params, tmp_path, "float32", base_name="Qwen/Qwen3-8B")
    described = json.loads((tmp_path / "adapter_config.json").read_text())
    assert {name: described[name] for name in ("peft_type", "r", "lora_alpha", "target_modules")} == {
        "peft_type": "LORA",
        "r": 3,
        "lora_alpha": 6.0,
        "target_modules": ["down_proj", "q_proj"],
    }
    assert described["base_model_name_or_path"] == "Qwen/Qwen3-8B"
    library = pytest.importorskip("safetensors.numpy")
    found = library.load_file(tmp_path / "adapter_model.safetensors")
    assert written == sum(value.nbytes for value in found.values()) == sum(value.nbytes for value in params.values())
    # PEFT computes x @ lora_A.T @ lora_B.T * alpha / r (peft/tuners/lora/layer.py).
    stem = "base_model.model.model.layers.1.self_attn.q_proj"
    delta = found[f"{stem}.lora_B.weight"] @ found[f"{stem}.lora_A.weight"]
    ours = params["layers.1.attention.query.lora_a"] @ params["layers.1.attention.query.lora_b"]
    np.testing.assert_allclose(delta.T, ours, atol=1e-6)
    assert "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight" in found


def test_a_model_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="trains all weights"):
        save_adapter(TINY, {}, tmp_path)
