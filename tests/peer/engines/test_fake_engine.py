"""Check that the fake engine of other tests passes the conformance suite."""

from __future__ import annotations

from peer.engines.base import Engine
from rollcast.wire.ids import Epoch, RunId, Version
from rollcast.wire.versions.records import VersionRecord, state_hash
from tests.peer.engines.engine_conformance import EngineConformance
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
