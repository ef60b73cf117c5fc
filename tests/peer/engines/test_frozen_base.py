"""Test that a run's frozen weights are loaded once, and that adapters over them make the versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
import pytest

from peer.engines.base import VersionState, WarmUp
from peer.engines.jax_engine import JaxEngine
from rollcast.policy.config import LoraConfig, adapted
from rollcast.policy.lora import initial_adapters, merged
from rollcast.policy.norm_noise import noisy_shapes
from rollcast.policy.params import initial_params
from rollcast.runtime.errors import CorruptChunk, MalformedMessage
from rollcast.wire.ids import Version
from rollcast.wire.rollouts import Sampling
from rollcast.wire.versions.records import BaseRef, VersionRecord
from tests.peer.engines.engine_conformance import SAMPLING, activated, check_that_rollouts_finish, generate, requests
from tests.peer.engines.test_jax_engine import MODEL, jax_version

ADAPTED = adapted(MODEL, LoraConfig(rank=2, alpha=4))
WHOLE = initial_params(MODEL, seed=0)


def adapters_of(seed: int) -> dict[str, np.ndarray]:
    """Return adapters with which the model computes something else than its base."""
    random = np.random.default_rng(seed)
    made = initial_adapters(ADAPTED, seed)
    return {name: random.standard_normal(one.shape, np.float32) * np.float32(3.0) for name, one in made.items()}


def state_of(version: tuple[VersionRecord, bytes], base: VersionState | None = None) -> VersionState:
    record, state = version
    if base is not None:
        record = replace(record, base=BaseRef(base.record.version, base.record.state_hash))
    return VersionState(record, memoryview(state), base=base)


BASE = state_of(jax_version(0, ADAPTED, WHOLE))
FIRST, SECOND = (state_of(jax_version(seed, ADAPTED, adapters_of(seed)), BASE) for seed in (1, 2))


def whole(seed: int) -> VersionState:
    """Return the version that these adapters and the base make together, as a model without adapters."""
    params = {name: merged(ADAPTED, name, np.asarray(one), adapters_of(seed)) for name, one in WHOLE.items()}
    return state_of(jax_version(seed, MODEL, params))


async def drawn(engine: JaxEngine, version: VersionState) -> tuple[list[tuple[int, ...]], list[float]]:
    """Return the tokens of each rollout under a version, and the log-probabilities of all of them."""
    assert await engine.load(version) == version.record.state_hash
    await engine.activate(version.record.version)
    made = await generate(engine, requests(4))
    return [one.token_ids for one in made], [logprob for one in made for logprob in one.logprobs]


async def test_adapters_generate_what_the_merged_model_does() -> None:
    adapted_engine, plain_engine = JaxEngine(concurrent_rollouts=4), JaxEngine(concurrent_rollouts=4)
    made = [await drawn(adapted_engine, one) for one in (BASE, FIRST, SECOND)]
    plain = [await drawn(plain_engine, one) for one in (state_of(jax_version(0, MODEL, WHOLE)), whole(1), whole(2))]
    for (tokens, logprobs), (expected_tokens, expected) in zip(made, plain, strict=True):
        assert tokens == expected_tokens
        np.testing.assert_allclose(logprobs, expected, atol=1e-5)
    assert max(abs(a - b) for a, b in zip(made[1][1], made[2][1], strict=True)) > 0.01, "else the test shows nothing"
    await adapted_engine.close()
    await plain_engine.close()


async def test_the_base_is_copied_once_and_one_program_serves_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    put = jax.device_put

    def count(tensors: dict[str, np.ndarray], *args: object) -> object:
        copied.append(sum(one.nbytes for one in jax.tree.leaves(tensors)))
        return put(tensors, *args)

    engine = JaxEngine(concurrent_rollouts=4, versions_on_device="one")
    engine.expect(WarmUp(prompt_tokens_max=16, sampling=SAMPLING))
    monkeypatch.setattr(jax, "device_put", count)
    await engine.load(BASE)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, _seconds, **_: compiled.append(name))
    try:
        await engine.activate(Version(0))
        await generate(engine, requests(2))
        for version in (FIRST, SECOND):
            await drawn(engine, version)
    finally:
        jax.monitoring.clear_event_listeners()
    await engine.close()
    assert not [name for name in compiled if "backend_compile" in name]
    assert sum(copied) == len(BASE.state) + 3 * len(FIRST.state), "zeros stand for the first version's adapters"


async def test_a_version_with_noise_computes_with_its_own_scales() -> None:
    noisy = adapted(MODEL, LoraConfig(rank=2, alpha=4, noise_start=0.3, noise_steps=10))
    scales = {name: WHOLE[name] + np.float32(0.3) * (index + 1) for index, name in enumerate(noisy_shapes(noisy))}
    base = state_of(jax_version(0, noisy, WHOLE))
    versions = [base, state_of(jax_version(1, noisy, adapters_of(1) | scales), base)]
    expected = {name: merged(ADAPTED, name, np.asarray(one), adapters_of(1)) for name, one in (WHOLE | scales).items()}
    plain = [state_of(jax_version(at, MODEL, params)) for at, params in enumerate((WHOLE, expected))]
    noisy_engine, plain_engine = JaxEngine(concurrent_rollouts=4), JaxEngine(concurrent_rollouts=4)
    for own, whole_model in zip(versions, plain, strict=True):
        found, wanted = await drawn(noisy_engine, own), await drawn(plain_engine, whole_model)
        assert found[0] == wanted[0]
        np.testing.assert_allclose(found[1], wanted[1], atol=1e-5)
    await noisy_engine.close()
    await plain_engine.close()


async def test_rollouts_finish_under_their_adapters_while_others_begin_with_newer_ones() -> None:
    versions = (BASE, FIRST, SECOND)
    alone, both = JaxEngine(concurrent_rollouts=4), JaxEngine(concurrent_rollouts=4)
    expected = []
    for version in versions:
        await activated(alone, version)
        expected.append(await generate(alone, requests(2, sampling=Sampling(1.0, 6, ()))))
    await check_that_rollouts_finish(both, versions, expected, new_tokens=6)
    await alone.close()
    await both.close()


async def test_versions_of_all_weights_are_one_at_a_time() -> None:
    engine = JaxEngine(concurrent_rollouts=4)
    engine.expect(WarmUp(prompt_tokens_max=16, sampling=SAMPLING, at_version_swap="finish"))
    await activated(engine, state_of(jax_version(0, MODEL, WHOLE)))
    generation = engine.begin(requests(1))
    assert generation.versions_free is None
    with pytest.raises(ValueError, match="room"):
        generation.renew("finish")
    await engine.close()


async def test_a_late_joiner_loads_the_base_with_the_newest_adapters() -> None:
    joiner, veteran = JaxEngine(concurrent_rollouts=4), JaxEngine(concurrent_rollouts=4)
    await drawn(veteran, BASE)
    assert await drawn(joiner, SECOND) == await drawn(veteran, SECOND)
    await joiner.close()
    await veteran.close()


def spoilt(version: VersionState) -> VersionState:
    state = bytearray(version.state)
    state[5] ^= 1
    return replace(version, state=memoryview(state))


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (lambda: replace(FIRST, base=spoilt(BASE)), CorruptChunk),
        (lambda: replace(FIRST, base=None), MalformedMessage),
        (lambda: replace(FIRST, base=SECOND), MalformedMessage),
    ],
    ids=["another base", "no base", "adapters as a base"],
)
async def test_adapters_without_their_base_are_refused(
    version: Callable[[], VersionState], error: type[Exception]
) -> None:
    engine = JaxEngine(concurrent_rollouts=4)
    with pytest.raises(error):
        await engine.load(version())
    await engine.close()


async def test_a_changed_state_is_seen_in_the_hash() -> None:
    engine = JaxEngine(concurrent_rollouts=4)
    for version in (BASE, FIRST):
        assert await engine.load(spoilt(version)) != version.record.state_hash
    assert await engine.load(BASE) == BASE.record.state_hash
    await engine.close()
