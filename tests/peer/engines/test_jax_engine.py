"""Test that the JAX engine passes the conformance suite, and its compilation cache."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from peer.engines.base import Engine, VersionState, WarmUp
from peer.engines.device_weights import DeviceRoom
from peer.engines.jax_engine import JaxEngine
from rollcast.policy.config import ModelConfig, described_model
from rollcast.policy.params import Params, initial_params
from rollcast.policy.sizing.hardware import USABLE_SHARE
from rollcast.policy.sizing.memory import PeerShape, paged_tokens, peer_memory
from rollcast.policy.snapshot import freeze
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.state_hash import state_hash
from tests.compiling import printed_on_eight_devices
from tests.peer.engines.engine_conformance import SAMPLING, EngineConformance, RefusesNonsense, generate, requests

MODEL = ModelConfig(
    vocabulary_size=24, layers=1, width=16, query_heads=2, key_value_heads=1, head_size=8, feed_forward_width=16
)
LONGEST = 32  # tokens of the longest prompt and completion, as the engine rounds them


def jax_version(version: int, model: ModelConfig = MODEL, params: Params | None = None) -> tuple[VersionRecord, bytes]:
    snapshot = freeze(model, initial_params(model, seed=version) if params is None else params)
    record = VersionRecord(
        run_id=RunId("run-1"),
        epoch=Epoch(0),
        version=Version(version),
        parent_hash=b"",
        state_hash=state_hash(snapshot.state_bytes),
        state_size_bytes=len(snapshot.state_bytes),
        tensors=snapshot.tensors,
        model_json=model.model_dump_json(),
    )
    return record, snapshot.state_bytes


class TestJaxEngine(EngineConformance, RefusesNonsense):
    def make_engine(self) -> Engine:
        return JaxEngine(concurrent_rollouts=4)

    def make_version(self, version: int) -> tuple[VersionRecord, bytes]:
        return jax_version(version)

    async def test_a_model_that_this_release_does_not_know_is_refused(self, engine: Engine) -> None:
        record, state = jax_version(0)
        strange = VersionRecord(
            record.run_id, record.epoch, record.version, b"", b"", len(state), record.tensors, '{"mixture": 8}'
        )
        with pytest.raises(MalformedMessage, match="this release cannot run"):
            await engine.load(VersionState(strange, memoryview(state)))

    async def test_sampling_is_random_and_not_greedy(self, engine: Engine) -> None:
        await self.put(engine, 0)
        drawn = await generate(engine, [requests(1, first_seed=seed)[0] for seed in range(32)])
        assert len({item.token_ids[0] for item in drawn}) > 4


class TestJaxEngineWithOneVersionOnItsDevice(TestJaxEngine):
    def make_engine(self) -> Engine:
        return JaxEngine(concurrent_rollouts=4, versions_on_device="one")


class TestJaxEngineOnASmallDevice(TestJaxEngine):
    """Its cache has room for two of the four rows: the other requests wait."""

    @pytest.fixture(autouse=True)
    def memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        two = PeerShape(4, LONGEST, 2 * paged_tokens(LONGEST), versions_on_device=1)
        needed = peer_memory(described_model(jax_version(0)[0]), two).peak
        monkeypatch.setattr(DeviceRoom, "memory_bytes", property(lambda _: int(needed / USABLE_SHARE) + 1))

    async def test_the_cache_holds_what_the_device_has_room_for(self, engine: Engine) -> None:
        assert isinstance(engine, JaxEngine)
        tokens = engine._cache_for(described_model(jax_version(0)[0]), LONGEST)
        assert 2 * paged_tokens(LONGEST) <= tokens < 3 * paged_tokens(LONGEST)


def test_a_model_divided_among_devices_generates_what_one_device_does() -> None:
    found = printed_on_eight_devices("tests.peer.engines.generate_on_devices")
    assert found["same"]
    assert "2 x cpu" in found["account"]
    assert "Placement(devices=2, versions=1)" in found["account"]
    assert "memory for one version, which the next one replaces in place" in found["account"]
    assert found["refused"].startswith("RC101: engine.devices is 9, and this process sees 8")
    assert found["every"] == 8


async def test_the_first_batch_compiles_nothing_after_a_warm_up() -> None:
    engine = JaxEngine(concurrent_rollouts=5)  # a shape that no other test has compiled
    engine.expect(WarmUp(prompt_tokens_max=16, sampling=SAMPLING))
    for version in (0, 1):
        record, state = jax_version(version)
        await engine.load(VersionState(record, memoryview(state)))
        if not version:
            await engine.activate(record.version)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, _seconds, **_: compiled.append(name))
    try:
        generation = engine.begin(requests(3))
        await generation.next_slice(1)
        await engine.activate(record.version)
        generation.renew()
        await generation.next_slice(SAMPLING.max_new_tokens)
    finally:
        jax.monitoring.clear_event_listeners()
    await engine.close()
    assert not [name for name in compiled if "backend_compile" in name]


@pytest.mark.usefixtures("restored_compilation_cache")
async def test_the_compilation_cache_is_filled(tmp_path: Path) -> None:
    engine = JaxEngine(concurrent_rollouts=3, compilation_cache=tmp_path / "cache")
    try:
        engine.expect(WarmUp(prompt_tokens_max=8, sampling=SAMPLING))
        record, state = jax_version(0)
        await engine.load(VersionState(record, memoryview(state)))
        assert list((tmp_path / "cache").iterdir())
    finally:
        await engine.close()
