"""Save adapters in the form of the library PEFT: adapter_model.safetensors and adapter_config.json.

PEFT stores both matrices of an adapter transposed, as the Hub does kernels, and computes W x + B (A x) alpha / r.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.names import hf_names
from rollcast.policy.hub.save import FILE_DTYPES, FileDtype
from rollcast.policy.lora import A, adapter_shapes
from rollcast.runtime.errors import ModelError
from rollcast.runtime.run_folder import fsync_folder
from rollcast.wire.versions.safetensors import format_header

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


def peft_name(name: str) -> str:
    """Return PEFT's name of a tensor of an adapter."""
    stem, _, end = name.rpartition(".")
    module = hf_names(f"{stem}.kernel", ())[0].removesuffix(".weight")
    return f"base_model.model.{module}.lora_{'A' if end == A else 'B'}.weight"


def save_adapter(
    config: ModelConfig, params: Mapping[str, Any], folder: Path, dtype: FileDtype = "bfloat16", *, base_name: str = ""
) -> int:
    """Write both files into a folder that exists; returns the bytes of the weights.

    Args:
        params: arrays by our names; those that are no adapter's are ignored.
        base_name: the base's name on the Hub, or its path; empty: unknown.

    Raises:
        ModelError: the model has no adapters, or the disk refuses.
    """
    if config.lora is None:
        raise ModelError("the run trains all weights", cause="it has no adapters", fix="export it without --adapter")
    shapes = adapter_shapes(config)
    ordered = sorted(shapes, key=peft_name)
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name or None,
        "r": config.lora.rank,
        "lora_alpha": config.lora.alpha,
        "target_modules": sorted({peft_name(name).split(".")[-3] for name in ordered}),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    written = 0
    try:
        with (folder / ADAPTER_WEIGHTS).open("wb") as out:
            out.write(format_header([(peft_name(name), dtype, shapes[name][::-1]) for name in ordered]))
            for name in ordered:
                turned = np.ascontiguousarray(np.asarray(params[name]).T, dtype=FILE_DTYPES[dtype])
                written += out.write(turned.view(np.uint8).data)
            out.flush()
            os.fsync(out.fileno())
        (folder / ADAPTER_CONFIG).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        fsync_folder(folder)
    except OSError as error:
        raise ModelError(f"cannot write adapters to {folder}", cause=str(error), fix="free some space") from None
    return written
