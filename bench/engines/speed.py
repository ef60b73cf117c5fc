"""Time the same completions with the jax engine, vLLM and transformers, which take turns.

Every engine computes in float32 on the processor, without early stops. Prompts are given in groups of 8 that share one,
as in reinforcement learning, and each by itself.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.engines.common import complete, engine_of, random_version, ready, requests
from bench.learner.sampler import GROUP, generate, transformers_model
from peer.engines.base import Engine
from rollcast.policy.config import ModelConfig
from rollcast.policy.params import initial_params

BATCHES = (1, 8, 64)


async def speeds(config: ModelConfig, arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Return tokens/s of each engine at each batch size, and the ratios jax / vLLM."""
    version = random_version(config, folder)
    lengths = arguments.prompt, arguments.tokens
    reference = transformers_model(config, initial_params(config, 0)) if arguments.transformers else None
    vllm = engine_of("vllm", max(BATCHES), arguments.python, folder)
    figures: dict[str, float] = {}
    try:
        await ready(vllm, version, *lengths)
        for batch in BATCHES:
            jax = engine_of("jax", batch, None, folder)
            try:
                await ready(jax, version, *lengths)
                for group in sorted({1, min(batch, GROUP)}):
                    form = f"b{batch}" if group > 1 or batch == 1 else f"b{batch}_no_prefix"
                    engines: dict[str, Any] = {"jax": jax, "vllm": vllm}
                    if reference is not None:
                        engines["transformers"] = reference
                    times = await _turns(config, engines, batch, group, arguments)
                    tokens = batch * arguments.tokens
                    figures |= {f"{name}_tokens_s_{form}": tokens / one for name, one in times.items()}
                    figures[f"jax_per_vllm_{form}"] = times["vllm"] / times["jax"]
            finally:
                await jax.close()
    finally:
        await vllm.close()
    return figures


async def _turns(
    config: ModelConfig, engines: dict[str, Any], batch: int, group: int, arguments: argparse.Namespace
) -> dict[str, float]:
    """Return the median seconds of each engine for one batch. A first, untimed round warms all of them."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(arguments.rounds + 1):
        # New prompts in each round, so that no prefix is in a cache from the round before.
        asked = requests(config, batch, arguments.prompt, arguments.tokens, group=group, seed=turn)
        for name, engine in engines.items():
            if name == "transformers":
                begun_s = time.perf_counter()
                generate(engine, [one.prompt_token_ids for one in asked], arguments.tokens)
                seconds = time.perf_counter() - begun_s
            else:
                seconds = await _seconds(engine, asked, arguments.tokens)
            if turn:
                times[name].append(seconds)
    return {name: median(values) for name, values in times.items()}


async def _seconds(engine: Engine, asked: Any, tokens: int) -> float:
    made, seconds = await complete(engine, asked)
    assert all(len(one[0]) == tokens for one in made)
    return seconds
