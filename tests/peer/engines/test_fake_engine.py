"""Check that the fake engine of other tests passes the conformance suite."""

from __future__ import annotations

from peer.engines.base import Engine, VersionState
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.rollouts import Sampling
from rollcast.wire.versions.records import VersionRecord
from rollcast.wire.versions.state_hash import state_hash
from tests.peer.engines.engine_conformance import (
    EngineConformance,
    activated,
    check_that_rollouts_finish,
    generate,
    requests,
)
from tests.peer.engines.fake_engine import FakeEngine


def fake_version(version: int) -> tuple[VersionRecord, bytes]:
    state = f"weights of version {version} ".encode() * 40
    record = VersionRecord(
        RunId("run-1"), Epoch(0), Version(version), b"", state_hash(state), len(state), tensors=(), model_json="{}"
    )
    return record, state


class TestFakeEngine(EngineConformance):
    knows_its_logprobs = False

    def make_engine(self) -> Engine:
        return FakeEngine()

    def make_version(self, version: int) -> tuple[VersionRecord, bytes]:
        return fake_version(version)


async def test_rollouts_of_several_versions_end_under_their_own() -> None:
    made = [fake_version(version) for version in range(3)]
    versions = [VersionState(record, memoryview(state)) for record, state in made]
    alone, expected = FakeEngine(), []
    for version in versions:
        await activated(alone, version)
        expected.append(await generate(alone, requests(2, sampling=Sampling(1.0, 6, ()))))
    await check_that_rollouts_finish(FakeEngine(versions=2), versions, expected, new_tokens=6)
