"""Test how many tokens a real vLLM samples as the jax engine does, alone and divided, and after a crash.

Needs vLLM's environment, see test_conformance. Each test starts vLLM anew.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from peer.engines.base import CompletionSlice, Engine, GenerateRequest, VersionState, WarmUp
from peer.engines.jax_engine import JaxEngine
from peer.engines.vllm.engine import VllmEngine, VllmSettings, vllm_engine
from rollcast.policy.config import ModelConfig
from rollcast.wire.rollouts import Sampling
from tests.peer.engines.engine_conformance import generate
from tests.peer.engines.test_jax_engine import jax_version

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

MODEL = ModelConfig(
    vocabulary_size=97, layers=2, width=64, query_heads=4, key_value_heads=2, head_size=32, feed_forward_width=64
)
NEW_TOKENS = 48
REQUESTS = [
    GenerateRequest((5, 6, 7 + index % 3), 2**63 + index, Sampling(0.7 if index % 2 else 1.0, NEW_TOKENS, ()))
    for index in range(16)
]


@asynccontextmanager
async def started(
    model: ModelConfig, folder: Path, tensor_parallel: int = 1, new_tokens: int = NEW_TOKENS
) -> AsyncIterator[VllmEngine]:
    """Yield an engine with version 0 of a model; afterwards no process of it may be left."""
    python = os.environ.get("ROLLCAST_VLLM_PYTHON")
    settings = VllmSettings(concurrent_rollouts=16, tensor_parallel=tensor_parallel)
    engine = vllm_engine(settings, None if python is None else Path(python), folder)
    processes: list[psutil.Process] = []
    try:
        await put(engine, model, new_tokens)
        processes = psutil.Process().children(recursive=True)
        yield engine
        processes += psutil.Process().children(recursive=True)
    finally:
        await engine.close()
    assert len(processes) >= 3  # the server, vLLM's core, its workers
    assert [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []


async def put(engine: Engine, model: ModelConfig, new_tokens: int = NEW_TOKENS) -> None:
    record, state = jax_version(0, model)
    engine.expect(WarmUp(16, Sampling(1.0, new_tokens, ())))
    await engine.load(VersionState(record, memoryview(state)))
    await engine.activate(record.version)


async def by_jax(
    model: ModelConfig, requests: Sequence[GenerateRequest] = REQUESTS, new_tokens: int = NEW_TOKENS
) -> list[CompletionSlice]:
    engine = JaxEngine(concurrent_rollouts=16)
    await put(engine, model, new_tokens)
    made = await generate(engine, requests)
    await engine.close()
    return made


def agreement(ours: Sequence[CompletionSlice], theirs: Sequence[CompletionSlice]) -> tuple[float, float]:
    """Return the share of tokens before each rollout's first that differs, and their mean difference of log p."""
    differences: list[float] = []
    for one, two in zip(ours, theirs, strict=True):
        for index, token in enumerate(one.token_ids):
            if token != two.token_ids[index]:
                break
            differences.append(abs(one.logprobs[index] - two.logprobs[index]))
    share = len(differences) / sum(len(one.token_ids) for one in theirs)
    print(f"{share:.1%} of the tokens agree, their log-probabilities within {max(differences):.1e}")
    return share, sum(differences) / len(differences)


@pytest.mark.parametrize(
    ("changed", "share_least", "nats_most"),
    [
        ({"precision": "bfloat16"}, 0.8, 0.02),
        ({"qk_norm": False, "attention_bias": True, "width": 128}, 1.0, 1e-5),
        ({"qk_norm": False, "tied_embeddings": False}, 1.0, 1e-5),
    ],
    ids=["qwen3-bfloat16", "qwen2", "llama"],
)
async def test_it_samples_the_tokens_of_the_jax_engine(
    changed: dict[str, object], share_least: float, nats_most: float, tmp_path: Path
) -> None:
    model = MODEL.model_copy(update=changed)
    async with started(model, tmp_path) as engine:
        share, nats = agreement(await generate(engine, REQUESTS), await by_jax(model))
    assert share >= share_least
    assert nats <= nats_most


async def test_a_turn_after_a_long_prefix_has_the_tokens_of_the_jax_engine(tmp_path: Path) -> None:
    """Test assistant turns of an episode: 600 tokens were said before, in other pages and blocks than the prompt."""
    before, new_tokens = 600, 648
    turns = [
        GenerateRequest(
            (5, 6, 7),
            2**63 + index,
            Sampling(1.0, new_tokens, ()),
            tuple((11 * place + index) % 90 + 5 for place in range(before)),
            before,
        )
        for index in range(4)
    ]
    async with started(MODEL, tmp_path, new_tokens=new_tokens) as engine:
        made = await generate(engine, turns)
        share, nats = agreement(made, await by_jax(MODEL, turns, new_tokens))
    assert [len(one.token_ids) for one in made] == [new_tokens - before] * 4
    assert share == 1.0
    assert nats <= 1e-5


async def test_a_model_that_is_divided_samples_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")  # a node of memory for each worker is not to be had
    async with started(MODEL, tmp_path, tensor_parallel=2) as engine:
        share, nats = agreement(await generate(engine, REQUESTS), await by_jax(MODEL))
    assert share == 1.0
    assert nats <= 1e-5


async def test_rollouts_survive_a_worker_that_is_killed(tmp_path: Path) -> None:
    async with started(MODEL, tmp_path) as engine:
        generation = engine.begin(REQUESTS)
        made: dict[int, list[CompletionSlice]] = {index: [] for index in range(len(REQUESTS))}
        for new in await generation.next_slice(2):  # on a slow machine not of every rollout
            made[new.request].append(new)
        killed = [one for one in psutil.Process().children(recursive=True) if "Worker" in one.name()]
        assert killed
        for process in killed:
            process.kill()
        while not all(pieces and pieces[-1].finish_reason for pieces in made.values()):
            for new in await generation.next_slice(NEW_TOKENS):
                made[new.request].append(new)
        await generate(engine, REQUESTS)  # vLLM may have sampled all tokens of the others before it was killed
        assert engine.supervisor.life == 2
    whole = [token for index in range(len(REQUESTS)) for piece in made[index] for token in piece.token_ids]
    assert whole == [token for one in await by_jax(MODEL) for token in one.token_ids]
