"""Test the measurement with the real engine on the demonstration's model, and its arithmetic with a fake engine."""

from __future__ import annotations

import pytest

from peer.config import EngineConfig, PeerConfig
from peer.donor.machine.decode_speed import decode_record, timed_decode
from peer.engines.base import VersionState
from peer.startup import make_engine
from rollcast.policy.config import ModelConfig
from rollcast.policy.shapes import parameter_count
from rollcast.policy.sizing.memory import snapshot_bytes
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.versions.state_hash import state_hash
from tests.peer.engines.fake_engine import FakeEngine

MODEL = ModelConfig(vocabulary_size=32, layers=1, width=16, query_heads=2, key_value_heads=1, feed_forward_width=16)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "fp8"])
def test_a_version_of_zeros_has_the_runs_shape(precision: str) -> None:
    model = MODEL.model_copy(update={"precision": precision})
    record, state = decode_record(model)
    assert len(state) == record.state_size_bytes
    assert record.state_hash == state_hash(state)
    if precision != "fp8":
        assert len(state) == snapshot_bytes(model)


def test_a_model_without_a_vocabulary_cannot_be_measured() -> None:
    with pytest.raises(ValueError, match="vocabulary"):
        decode_record(ModelConfig())


async def test_the_peers_own_engine_is_measured() -> None:
    engine = make_engine(PeerConfig(engine=EngineConfig(kind="jax", concurrent_rollouts=2)))
    said: list[str] = []
    try:
        found = await timed_decode(
            engine, MODEL, concurrent_rollouts=2, new_tokens=24, seconds=0.05, progress=said.append
        )
    finally:
        await engine.close()
    assert found.tokens_per_s == pytest.approx(found.tokens / found.seconds)
    assert 0 < found.tokens <= 2 * 23
    assert found.parameters == parameter_count(MODEL)
    assert "jax" in found.hardware
    assert len(said) == 2


async def test_rollouts_that_end_early_end_the_measurement() -> None:
    engine = FakeEngine(token_s=0.001)
    found = await timed_decode(engine, MODEL, concurrent_rollouts=3, new_tokens=40, seconds=60.0)
    assert found.concurrent_rollouts == 3
    assert found.tokens <= 3 * 40
    assert found.ready_s >= 0.0


async def test_an_engines_error_is_passed_on() -> None:
    class Refusing(FakeEngine):
        async def load(self, version: VersionState) -> bytes:
            raise MalformedMessage("no such model")

    with pytest.raises(MalformedMessage, match="no such model"):
        await timed_decode(Refusing(), MODEL, concurrent_rollouts=1, new_tokens=4)
