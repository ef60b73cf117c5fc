"""Test what the vllm engine makes of a run's base and adapters; with a real vLLM, that it computes as the jax engine.

The last test needs vLLM's environment, see test_conformance.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from peer.engines.base import Engine, VersionState, WarmUp
from peer.engines.jax_engine import JaxEngine
from peer.engines.vllm.adapters import rank_max, stage_adapters
from peer.engines.vllm.engine import VllmSettings, vllm_engine
from rollcast.policy.config import LoraConfig, ModelConfig, adapted
from rollcast.policy.hub.load import load_params
from rollcast.policy.lora import initial_adapters
from rollcast.policy.params import initial_params
from rollcast.runtime.errors import CorruptChunk, MalformedMessage, StoreError
from rollcast.wire.rollouts import Sampling
from rollcast.wire.versions.safetensors import header_length, parse_header
from tests.peer.engines.engine_conformance import SAMPLING, activated, check_that_rollouts_finish, generate, requests
from tests.peer.engines.test_frozen_base import spoilt, state_of
from tests.peer.engines.test_jax_engine import jax_version
from tests.peer.engines.vllm.test_engine import completed, engine_of, is_right

PLAIN = ModelConfig(
    vocabulary_size=24, layers=2, width=32, query_heads=2, key_value_heads=1, head_size=32, feed_forward_width=32
)
MODEL = adapted(PLAIN, LoraConfig(rank=4, alpha=8))
WEIGHTS = initial_params(MODEL, seed=0)


def adapters_of(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = {name: one.shape for name, one in initial_adapters(MODEL, seed).items()}
    return {name: random.standard_normal(shape, np.float32) * np.float32(0.3) for name, shape in shapes.items()}


BASE = state_of(jax_version(0, MODEL, WEIGHTS))
FIRST, SECOND = (state_of(jax_version(seed, MODEL, adapters_of(seed)), BASE) for seed in (1, 2))


def test_the_base_is_written_once_and_adapters_beside_it(tmp_path: Path) -> None:
    staged = [stage_adapters(one, tmp_path, one.record.state_hash) for one in (BASE, FIRST, SECOND)]
    bases = {one.base for one in staged}
    assert len(bases) == 1
    (base,) = bases
    assert base is not None
    written = load_params(PLAIN, base)
    assert all(np.array_equal(written[name], WEIGHTS[name]) for name in WEIGHTS)
    for one in staged:
        assert one.adapters is not None
        data = (one.adapters / "adapter_model.safetensors").read_bytes()
        tensors = parse_header(data[8 : 8 + header_length(data[:8])])
        assert "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight" in tensors
        one.discard()
        assert not one.adapters.exists()
    assert base.exists()
    assert len({one.salt for one in staged}) == 3


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (lambda: replace(FIRST, base=spoilt(BASE)), CorruptChunk),
        (lambda: replace(FIRST, record=replace(FIRST.record, base=None), base=None), MalformedMessage),
    ],
    ids=["another base", "no base"],
)
def test_adapters_without_their_base_are_refused(
    version: Callable[[], VersionState], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        stage_adapters(version(), tmp_path, FIRST.record.state_hash)


def test_noise_on_scales_is_refused(tmp_path: Path) -> None:
    noisy = adapted(PLAIN, LoraConfig(rank=4, noise_start=0.01, noise_steps=100))
    version = state_of(jax_version(0, noisy, initial_params(noisy, 0)))
    with pytest.raises(MalformedMessage, match="noise") as refused:
        stage_adapters(version, tmp_path, version.record.state_hash)
    assert 'engine.kind = "jax"' in refused.value.fix


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "bases").write_text("in the way")
    with pytest.raises(StoreError, match="version 1"):
        stage_adapters(FIRST, tmp_path, FIRST.record.state_hash)


@pytest.mark.parametrize(("rank", "most"), [(1, 1), (2, 8), (8, 8), (9, 16), (512, 512)])
def test_vllm_is_started_for_a_rank_that_it_has(rank: int, most: int) -> None:
    assert rank_max(rank) == most


async def test_versions_of_one_base_are_adapters_of_one_server(tmp_path: Path) -> None:
    async with engine_of("good", tmp_path) as engine:
        for version in (BASE, FIRST, SECOND):
            assert await engine.load(version) == version.record.state_hash
            await engine.activate(version.record.version)
            assert is_right(await completed(engine, 2))
            assert engine.last_swap is not None
            assert (engine.last_swap.version, engine.last_swap.moved_bytes) == (
                version.record.version,
                len(version.state),
            )
        assert engine.supervisor.life == 1
    assert held(tmp_path) == [["0"], ["1"], ["2"]]


async def test_a_server_holds_the_adapters_of_rollouts_that_finish_beside_newer_ones(tmp_path: Path) -> None:
    async with engine_of("dies-once", tmp_path) as engine:
        engine.expect(WarmUp(16, SAMPLING, at_version_swap="finish"))
        await activated(engine, BASE)
        going = engine.begin(requests(1))
        (first,) = await going.next_slice(1)
        await activated(engine, FIRST)
        going.renew("finish")
        going.add(requests(1))
        made = await going.next_slice(1)
        assert [one.version for one in (first, *made)] == [0, 0, 1]
        assert staged(tmp_path) == 2
        await activated(engine, SECOND)
        with pytest.raises(ValueError, match="room"):
            going.renew("finish")
        going.renew("continue")
        assert {one.version for one in await going.next_slice(1)} == {2}
    assert held(tmp_path) == [["0"], ["0", "1"], ["2"]], "the second life gets both"


def staged(folder: Path) -> int:
    """Return how many versions have files."""
    return len(list(folder.glob("workspace/*/versions/*-*")))


def held(folder: Path) -> list[list[str]]:
    """Return the versions whose adapters the fake server was told to hold, each time."""
    lines = (folder / "adapted").read_text().splitlines()
    return [[salt.partition("-")[0] for salt in line.split()] for line in lines]


@pytest.mark.vllm
@pytest.mark.timeout(600)
async def test_adapters_sample_the_tokens_of_the_jax_engine(tmp_path: Path) -> None:
    python = os.environ.get("ROLLCAST_VLLM_PYTHON")
    ours: Engine = vllm_engine(VllmSettings(concurrent_rollouts=4), None if python is None else Path(python), tmp_path)
    theirs: Engine = JaxEngine(concurrent_rollouts=4)
    long, expected = requests(2, sampling=Sampling(1.0, 120, ())), []
    for version in (BASE, FIRST, SECOND):
        await activated(theirs, version)
        expected.append(await generate(theirs, long))
    logprobs = [[logprob for one in made for logprob in one.logprobs] for made in expected]
    assert max(abs(a - b) for a, b in zip(*logprobs[1:], strict=True)) > 0.01, "else the test shows nothing"
    await check_that_rollouts_finish(ours, (BASE, FIRST, SECOND), expected, new_tokens=120)
    await ours.close()
    await theirs.close()
