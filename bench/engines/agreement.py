"""Compare the tokens and log-probabilities of vLLM with those of the jax engine, for the same seeds.

Once two engines sample different tokens the rest of a completion differs too, so tokens are compared up to the first
difference: ``vllm_tokens_equal_*`` is the share of all tokens that come before it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from bench.engines.common import complete, engine_of, random_version, ready, requests
from bench.learner.sampler import GROUP
from rollcast.policy.config import ModelConfig

REQUESTS = 64
SHORT = {"float32": "f32", "bfloat16": "bf16"}


async def agreement(config: ModelConfig, arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Return the share of equal tokens and the distribution of |log p of vLLM - log p of jax|, for each precision."""
    figures: dict[str, float] = {}
    for precision, short in SHORT.items():
        model = config.model_copy(update={"precision": precision})
        version = random_version(model, folder)
        asked = requests(model, REQUESTS, arguments.prompt, arguments.tokens, group=GROUP)
        made = {}
        for kind in ("jax", "vllm"):
            engine = engine_of(kind, REQUESTS, arguments.python if kind == "vllm" else None, folder)
            try:
                await ready(engine, version, arguments.prompt, arguments.tokens)
                made[kind], _ = await complete(engine, asked)
            finally:
                await engine.close()
        equal = 0
        differences: list[float] = []
        for (ours, our_logprobs), (their_tokens, their_logprobs) in zip(made["jax"], made["vllm"], strict=True):
            same = equal_prefix(ours, their_tokens)
            equal += same
            differences.extend(np.abs(np.subtract(our_logprobs[:same], their_logprobs[:same])))
        figures[f"vllm_tokens_equal_{short}"] = equal / (REQUESTS * arguments.tokens)
        figures[f"vllm_logprob_difference_mean_{short}"] = float(np.mean(differences))
        for percent in (50, 99, 100):
            figures[f"vllm_logprob_difference_p{percent}_{short}"] = float(np.percentile(differences, percent))
    return figures


def equal_prefix(first: list[int], second: list[int]) -> int:
    """Return how many tokens two completions begin with in common."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
