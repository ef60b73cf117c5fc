"""Compare the sampler's tokens per second with ``transformers`` generate (torch on the CPU): same model and work.

Both sample the same number of tokens for the same prompts, batch by batch, in groups that share a prompt as in RL; no
completion stops early. ``ratio_bN`` is ours / theirs at batch N, the median of rounds in which the two take turns.

``roofline_share`` is the geometric mean over the batches of the machine's least time for a decode step / the time that
one takes. The least time is measured in the same run: the weights' products at each batch size as successive plain
matrix products, which are limited by the memory's bandwidth at batch 1 and the processor's rate at batch 256, plus the
bytes of all keys and values that a step reads, at the bandwidth of a long sum.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.learner.parity import libraries
from bench.machine import Outcome
from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.save import save_model
from rollcast.policy.params import Params, initial_params
from rollcast.policy.sampling.kv_cache import page_bytes
from rollcast.policy.sampling.sampler import PAGE_TOKENS, Sampler, SampleRequest
from rollcast.policy.shapes import parameter_count, parameter_shapes
from rollcast.wire.rollouts import Sampling

BATCHES = (1, 8, 64, 256)
GROUP = 8  # samples of a prompt
BANDWIDTH_BYTES = 1 << 28
REPEATS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens generated for each prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, action="append", help=f"{', '.join(map(str, BATCHES))} by default")


def run(arguments: argparse.Namespace) -> Outcome:
    config = model(arguments)
    params = initial_params(config, 0)
    theirs = transformers_model(config, params)
    bandwidth = _bandwidth()
    figures: dict[str, float] = {}
    shares = []
    batches = arguments.batch or list(BATCHES)
    for batch in batches:
        one = compare(config, params, theirs, batch, arguments)
        attainable_s = products_s(config, batch) + cache_bytes(config, batch, arguments) / bandwidth
        shares.append(attainable_s / one["step_s"])
        figures[f"ratio_b{batch}"] = one["theirs_s"] / one["ours_s"]
        figures[f"tokens_s_b{batch}"] = batch * arguments.tokens / one["ours_s"]
        figures[f"transformers_tokens_s_b{batch}"] = batch * arguments.tokens / one["theirs_s"]
        figures[f"roofline_share_b{batch}"] = shares[-1]
    figures["roofline_share"] = math.exp(sum(map(math.log, shares)) / len(shares))
    figures |= {"bandwidth_gbyte_s": bandwidth / 1e9, "parameters": float(parameter_count(config))}
    settings = {
        name: getattr(arguments, name) for name in ("layers", "width", "vocabulary", "prompt", "tokens", "rounds")
    }
    return Outcome(settings | {"batches": batches, "group": GROUP, "precision": config.precision}, figures)


def model(arguments: argparse.Namespace) -> ModelConfig:
    """Return the configuration of a Qwen3 in float32, of 41.6 million parameters by default."""
    return ModelConfig(
        vocabulary_size=arguments.vocabulary,
        layers=arguments.layers,
        width=arguments.width,
        query_heads=arguments.width // 64,
        key_value_heads=arguments.width // 128,
        head_size=64,
        feed_forward_width=3 * arguments.width,
    )


def compare(
    config: ModelConfig, params: Params, theirs: Any, batch: int, arguments: argparse.Namespace
) -> dict[str, float]:
    """Return the median seconds of the whole work by each, and of one decode step of the sampler."""
    sampler = Sampler(config, arguments.prompt, arguments.tokens, batch)
    sampling = Sampling(1.0, arguments.tokens, ())
    random = np.random.default_rng(batch)
    groups = random.integers(0, config.vocabulary_size, (-(-batch // GROUP), arguments.prompt))
    prompts = [tuple(int(token) for token in groups[index // GROUP]) for index in range(batch)]
    requests = [SampleRequest(prompt, index) for index, prompt in enumerate(prompts)]
    sampler.compile(params)
    times: dict[str, list[float]] = {"ours_s": [], "theirs_s": [], "step_s": []}
    for _ in range(arguments.rounds):
        begun = time.perf_counter()
        drawing = sampler.begin(params, requests, sampling)
        drawing.generate(1)
        first = time.perf_counter()
        left = arguments.tokens - 1
        while not drawing.finished:
            drawing.generate(arguments.tokens)
        ended = time.perf_counter()
        times["ours_s"].append(ended - begun)
        times["step_s"].append((ended - first) / left)
        times["theirs_s"].append(_seconds(lambda: generate(theirs, prompts, arguments.tokens)))
    return {name: median(values) for name, values in times.items()}


def generate(theirs: Any, prompts: list[tuple[int, ...]], tokens: int) -> None:
    """Sample from the whole distribution with transformers, as many tokens for each."""
    import torch

    ids = torch.tensor(prompts)
    with torch.inference_mode():
        made = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert made.shape == (len(prompts), len(prompts[0]) + tokens)


def transformers_model(config: ModelConfig, params: Params) -> Any:
    """Return the model that transformers loads from an export of these weights."""
    _, transformers = libraries()
    with tempfile.TemporaryDirectory(prefix="rollcast-bench-") as folder:
        save_model(config, params, Path(folder), "float32")
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def products_s(config: ModelConfig, batch: int) -> float:
    """Return the seconds of the products of one decode step, with different weights one after the other."""
    shapes = [shape for name, shape in parameter_shapes(config).items() if name.endswith(".kernel")]
    if config.tied_embeddings:
        shapes.append((config.width, config.vocabulary_size))
    weights = [jnp.ones(shape, jnp.float32) for shape in shapes]

    def in_a_row(weights: list[jax.Array], start: jax.Array) -> jax.Array:
        def turn(_: jax.Array, carry: jax.Array) -> jax.Array:
            for weight in weights:
                # Each product needs all of the one before, so that none can be left out or cut down.
                carry = carry + 1e-6 * (carry[:, : weight.shape[0]] @ weight).max(axis=1, keepdims=True)
            return carry

        return jax.lax.fori_loop(0, REPEATS, turn, start)

    products = jax.jit(in_a_row)
    start = jnp.ones((batch, max(shape[0] for shape in shapes)), jnp.float32)
    jax.block_until_ready(products(weights, start))
    return min(_seconds(lambda: jax.block_until_ready(products(weights, start))) for _ in range(REPEATS)) / REPEATS


def cache_bytes(config: ModelConfig, batch: int, arguments: argparse.Namespace) -> float:
    """Return the bytes of keys and values that a decode step reads in the middle of a completion."""
    context_tokens: float = arguments.prompt + arguments.tokens / 2
    return batch * context_tokens * page_bytes(config, PAGE_TOKENS) / PAGE_TOKENS


def _bandwidth() -> float:
    """Return the bytes a second that a sum over a long array reads."""
    array = jnp.ones(BANDWIDTH_BYTES // 4, jnp.float32).reshape(2, -1)
    add = jax.jit(lambda array: array.sum(axis=1))
    jax.block_until_ready(add(array))
    fastest_s: float = min(_seconds(lambda: jax.block_until_ready(add(array))) for _ in range(REPEATS))
    return BANDWIDTH_BYTES / fastest_s


def _seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
