"""Measure how far the log-probabilities of learner and rollout differ, by precision.

The learner scores sampled rollouts with its masters in the training forward pass; the sampler used a frozen snapshot.
``FLOW_mean``, ``FLOW_p99``: of |log p learner - log p rollout| over the tokens that the trained demonstration policy
sampled. ``FLOW_outside``: share of them whose ratio lies outside [0.8, 1.28]. ``FLOW_identical``: 1 where masters and
snapshot give the same bits at the same shapes. ``random_...``: the same with 26 M random weights, the worst case.
``ratio``: naive_mean / unified_mean.

With --search the demonstration is trained by bf16, unified fp8 and naive fp8 in several settings instead, see
``bench.learner.precision_search``.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bench.learner import precision_search
from bench.learner.demonstration import Demonstration
from bench.machine import Outcome
from learner.training.micro_batches import inputs
from learner.training.packing import Example, pack_examples
from learner.training.trainer import Trainer
from rollcast.cli.files import load
from rollcast.cli.up_config import UpConfig
from rollcast.policy.compilation import use_compilation_cache
from rollcast.policy.config import ModelConfig
from rollcast.policy.logprobs import completion_logprobs
from rollcast.policy.params import Params, initial_params
from rollcast.policy.sampling.sampler import Sampler, SampleRequest
from rollcast.policy.snapshot import freeze, thaw
from rollcast.wire.rollouts import Sampling

FLOWS: dict[str, dict[str, str]] = {
    "f32": {"precision": "float32"},
    "bf16": {"precision": "bfloat16"},
    "unified": {"precision": "fp8", "carrier": "float32"},
    "unified_bf16": {"precision": "fp8", "carrier": "bfloat16"},
    "naive": {"precision": "fp8-naive"},
}
CLIP = (0.8, 1.28)  # the ratios between which the demonstration's objective has a gradient

#: Untied, because a tied head of the initial embedding hardly tells one token from another.
RANDOM_MODEL = ModelConfig(
    vocabulary_size=1024,
    layers=8,
    width=512,
    query_heads=8,
    key_value_heads=4,
    head_size=64,
    feed_forward_width=1536,
    tied_embeddings=False,
)
RANDOM_PROMPTS, RANDOM_PROMPT_TOKENS, RANDOM_NEW_TOKENS = 32, 16, 48
SAMPLER_ROWS = 256

Prompts = Sequence[tuple[int, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, default=Path("configs/local.toml"))
    parser.add_argument("--set", action="append", default=[], help="override a setting of the file: section.key=value")
    parser.add_argument("--steps", type=int, default=100, help="RL steps of the table's policy and of the search")
    parser.add_argument("--samples", type=int, default=2, help="completions of each held-out problem")
    parser.add_argument("--no-random", action="store_true", help="leave out the random policy")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "rollcast-precision")
    precision_search.add_arguments(parser)


def run(arguments: argparse.Namespace) -> Outcome:
    use_compilation_cache(arguments.cache / "compiled")
    config = load(arguments.config, "up", arguments.set)
    assert isinstance(config, UpConfig)
    if arguments.search:
        return precision_search.run(arguments, config)
    demonstration = Demonstration(config, config.coordinator.run.seed, arguments.cache)
    masters = _trained(demonstration, config, arguments.steps, arguments.cache)
    figures = {"trained_exact": demonstration.accuracy(masters)}
    problems = demonstration.held_out_prompts(config.learner.evaluation_problems)
    prompts = [prompt for prompt in problems for _ in range(arguments.samples)]
    figures |= _table("", demonstration.model, masters, prompts, demonstration.sampling)
    figures["ratio"] = figures["naive_mean"] / max(figures["unified_mean"], sys.float_info.min)
    if not arguments.no_random:
        random = np.random.default_rng(0)
        tokens = random.integers(2, RANDOM_MODEL.vocabulary_size, (RANDOM_PROMPTS, RANDOM_PROMPT_TOKENS))
        sampling = Sampling(1.0, RANDOM_NEW_TOKENS, stop_token_ids=())
        figures |= _table(
            "random_", RANDOM_MODEL, initial_params(RANDOM_MODEL, 0), [tuple(row.tolist()) for row in tokens], sampling
        )
    settings = {
        "config": str(arguments.config),
        "set": arguments.set,
        "steps": arguments.steps,
        "samples": arguments.samples,
        "random_model": RANDOM_MODEL.model_dump(mode="json"),
    }
    return Outcome(settings, figures)


def _trained(demonstration: Demonstration, config: UpConfig, steps: int, cache: Path) -> Params:
    """Return the demonstration's policy after RL in float32, kept between runs."""
    name = hashlib.blake2b(f"{steps}\n{config.model_dump_json()}".encode(), digest_size=8).hexdigest()
    path = cache / f"trained-{name}.npz"
    if not path.exists():
        learner = demonstration.learner({}, config.learner.optimiser.learning_rate)
        trainer = Trainer(demonstration.model, learner)
        demonstration.train(learner, trainer, staleness=0, steps=steps)
        unfinished = path.with_suffix(".unfinished.npz")
        found: dict[str, Any] = {name: np.asarray(leaf) for name, leaf in trainer.params().items()}
        np.savez(unfinished, **found)
        unfinished.rename(path)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: jax.numpy.asarray(array) for name, array in arrays.items()}


def _table(prefix: str, model: ModelConfig, masters: Params, prompts: Prompts, sampling: Sampling) -> dict[str, float]:
    figures: dict[str, float] = {}
    for flow, precision in FLOWS.items():
        found = mismatch(ModelConfig.model_validate(model.model_dump() | precision), masters, prompts, sampling)
        figures |= {f"{prefix}{flow}_{key}": value for key, value in found.items()}
        print(f"{prefix}{flow}: {found}", file=sys.stderr)
    return figures


def mismatch(model: ModelConfig, masters: Params, prompts: Prompts, sampling: Sampling) -> dict[str, float]:
    """Return mean and p99 of the difference in log p, its share outside the clip, and whether the bits are identical.

    Every prompt is completed from a snapshot of the masters, f32 by name, and scored by them.
    """
    snapshot = freeze(model, masters)
    frozen = thaw(model, snapshot.tensors, snapshot.state_bytes)
    longest = max(map(len, prompts))
    sampler = Sampler(model, longest, sampling.max_new_tokens, min(SAMPLER_ROWS, len(prompts)))
    drawn = sampler.generate(frozen, [SampleRequest(prompt, seed) for seed, prompt in enumerate(prompts)], sampling)
    examples = [Example.of(prompt, one.token_ids) for prompt, one in zip(prompts, drawn, strict=True)]
    packed = pack_examples([[one] for one in examples], time=longest + sampling.max_new_tokens)

    @jax.jit  # type: ignore[untyped-decorator]
    def score(params: Params, inputs: dict[str, Any]) -> jax.Array:
        return completion_logprobs(model, params, **inputs).logprobs

    learner = np.asarray(score(masters, inputs(packed)))
    rollout = np.concatenate([np.asarray(one.logprobs, np.float64) for one in drawn])
    differences = learner[packed.loss_mask] - rollout
    ratios = np.exp(differences)
    return {
        "mean": float(np.mean(np.abs(differences))),
        "p99": float(np.quantile(np.abs(differences), 0.99)),
        "outside": float(np.mean((ratios < CLIP[0]) | (ratios > CLIP[1]))),
        "identical": float(np.array_equal(learner, score(frozen, inputs(packed)))),
    }
