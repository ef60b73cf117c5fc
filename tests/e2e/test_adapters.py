"""Test a run of adapters with real processes: kills of every role and a late peer, and what is on each disk."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollcast.cli.processes import Fleet
from rollcast.cli.watch import run_fleet
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.records import PREVIOUS_ID
from tests.e2e.slow_peer import slow_down
from tests.e2e.test_run import SLICE_S, SLOW, make_fleet

STEPS, GROUPS, SAMPLES = 24, 16, 4
KILLED = ("peer-1", "origin", "coordinator", "learner")  # in this order, each two steps after the one before
EVERY_STEPS = 2


class Kills:
    """Kills one process after the other while the peers are slow, then waits for a late peer and the restarted one."""

    def __init__(self, fleet: Fleet, slow: Path) -> None:
        self.fleet = fleet
        self.slow = slow
        slow_down(slow, SLICE_S)
        self.killed: list[str] = []
        self._accepted: dict[str, int] = {}

    def on_status(self, status: Mapping[str, Any], _ended: Mapping[str, int]) -> None:
        accepted = {peer["name"]: peer["accepted"] for peer in status["peers"]}
        step = int(status["step"])
        if len(self.killed) < len(KILLED):
            if step >= EVERY_STEPS * (1 + len(self.killed)):
                name = KILLED[len(self.killed)]
                self.killed.append(name)
                self.fleet.kill(name)
                if len(self.killed) == len(KILLED):
                    self.fleet.add_peer("peer-late")
                    self._accepted = accepted
            return
        restarted_works = accepted.get("peer-1", 0) > self._accepted.get("peer-1", 0)
        if accepted.get("peer-late") and restarted_works:
            self.slow.unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_a_run_of_adapters_survives_kills_of_every_role_and_a_late_peer(tmp_path: Path) -> None:
    fleet = make_fleet(
        tmp_path,
        f"coordinator.run.steps={STEPS}",
        "peers=2",
        "learner.lora={rank=4}",
        "learner.checkpoint.every_steps=4",
        "peer.store.keep_versions=2",
    )
    slow = tmp_path / "slow"
    fleet.programs |= {name: [*SLOW, str(slow)] for name in ("peer-1", "peer-2", "peer-late")}
    fleet.restart_peers = True
    kills = Kills(fleet, slow)

    async def follow() -> bool:
        return await run_fleet(fleet, lambda _endpoints: None, kills.on_status, asyncio.Event())

    try:
        assert asyncio.run(follow())
    finally:
        fleet.kill_all()

    assert dict(fleet.restarts) == dict.fromkeys(KILLED, 1)
    summary = json.loads(fleet.folder.summary.read_text())
    assert summary["staleness_max_trained"] <= summary["staleness_limit"]
    assert summary["rollouts"]["trained"] == STEPS * GROUPS * SAMPLES
    assert summary["rollouts"]["open"] == 0
    for name in ("peer-1", "peer-2", "peer-late", "origin"):
        _assert_one_base(fleet, name)


def _assert_one_base(fleet: Fleet, name: str) -> None:
    """Check that a process holds the base once, and over it the newest versions, which are adapters alone."""
    root = fleet.folder.root / (name if name == "origin" else f"peers/{name}")
    (folder,) = (root / "versions").iterdir()
    store = ChunkStore(folder, keep_versions=2)
    try:
        newest = store.versions()[-1]
        while (delta := store.get(newest + 1, PREVIOUS_ID)) is not None:  # states in memory ended with the process
            newest = store.materialise(delta).version
        first, *later = [version for version in range(newest + 1) if store.get(version) is not None]
        assert first == 0
        assert STEPS in later
        base = store.get(0)
        assert base is not None
        base.verify_state()
        for version in later:
            adapters = store.get(version)
            assert adapters is not None
            assert adapters.verified.base is not None
            assert adapters.verified.base.record_hash == base.verified.record_hash
            assert adapters.verified.record.state_size_bytes * 5 < base.verified.record.state_size_bytes
    finally:
        store.close()
