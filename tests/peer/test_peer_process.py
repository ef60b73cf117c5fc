"""Test signals to a peer process during long rollouts: SIGTERM, SIGKILL, SIGSTOP and SIGCONT."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from peer.engines.base import GenerateRequest
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import partial_from_pb
from rollcast.wire.rollouts import LeaseGrant
from tests.peer.engines.fake_engine import next_token
from tests.peer.joined_peer import joined_config, keep_version, welcome_to
from tests.peer.scripted_coordinator import (
    RUN_ID,
    ScriptedCoordinator,
    ScriptedSession,
    leases,
    scripted_coordinator,
)
from tests.peer.versions import announcement_of, version_record
from tests.peer.worker.core.worker_samples import grant

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from peer.config import PeerConfig
from peer.service import run
from rollcast.runtime.process import run_process
from tests.peer.engines.fake_engine import FakeEngine
config = PeerConfig.model_validate_json(sys.argv[1])
sys.exit(run_process(lambda stop: run(config, stop, engine_factory=lambda _: FakeEngine(token_s=0.01))))
"""
WELCOME = welcome_to(RUN_ID, partial_interval_s=0.1, heartbeat_timeout_s=0.3)
HEARTBEAT_TIMEOUT_S = 0.3
RUNNING = grant(1, 4, max_new_tokens=100_000, stop_token_ids=())
WAITING = grant(2, 4, max_new_tokens=100_000, stop_token_ids=())


@dataclass
class PeerProcess:
    """A real process, and the coordinator's end of its session."""

    coordinator: ScriptedCoordinator
    process: asyncio.subprocess.Process
    session: ScriptedSession

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 20.0)


@asynccontextmanager
async def generating_peer(folder: Path) -> AsyncIterator[PeerProcess]:
    """Return a peer with four endless rollouts in progress and four more waiting; it has reported the first tokens."""
    async with scripted_coordinator(folder) as coordinator:
        config = joined_config(folder / "peer", coordinator, engine={"concurrent_rollouts": 4, "slice_s": 0.1})
        keep_version(folder / "peer", 2)
        as_json = json.dumps({**config.model_dump(mode="json"), "invite": config.invite.get_secret_value()})
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, as_json, cwd=ROOT)
        try:
            async with asyncio.timeout(30.0):
                session = await coordinator.sessions.get()
            session.send(WELCOME)
            session.send(pb.CoordinatorMessage(announcement=announcement_of(2)))
            await session.expect("work_request")
            session.send(leases(RUNNING, WAITING))
            await session.expect("partial_rollout")
            yield PeerProcess(coordinator, process, session)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def tokens_reported(session: ScriptedSession) -> dict[int, list[int]]:
    """Return each sample's tokens from its partial results, and assert that these follow each other without a gap."""
    told: dict[int, list[int]] = {}
    for message in session.received:
        if message.HasField("partial_rollout"):
            partial = partial_from_pb(message.partial_rollout)
            tokens = told.setdefault(partial.sample_index, [])
            assert partial.position == len(tokens)
            tokens += [token for part in partial.segments for token in part.token_ids]
    return told


def whole(lease: LeaseGrant, index: int, count: int) -> tuple[int, ...]:
    """Return the first ``count`` tokens of a slot under version 2."""
    request = GenerateRequest(lease.prompt_token_ids, lease.slots[index].seed, lease.sampling)
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.append(next_token(version_record(2)[1], request, tokens)[0])
    return tuple(tokens)


async def test_stopped_continued_and_told_to_stop(tmp_path: Path) -> None:
    async with generating_peer(tmp_path) as peer:
        peer.process.send_signal(signal.SIGSTOP)
        sequence = max(item.heartbeat.sequence for item in peer.session.received)
        with pytest.raises(TimeoutError):  # so the coordinator finds the session dead
            async with asyncio.timeout(HEARTBEAT_TIMEOUT_S):
                await peer.session.expect("heartbeat", lambda beat: beat.sequence > sequence + 1)
        peer.session.end()
        peer.process.send_signal(signal.SIGCONT)
        session = await peer.coordinator.next_session(WELCOME)
        await session.expect("partial_rollout", lambda partial: partial.sample_index == 3)

        begun_s = time.monotonic()
        peer.process.terminate()
        assert await peer.ended() == 0
        assert time.monotonic() - begun_s < 2.0
        assert session.kinds()[-1] == "goodbye"
        assert (await session.expect("lease_return")).lease_ids == [2]
        told, uploaded = tokens_reported(session), peer.coordinator.uploaded
        assert sorted((item.lease_id, item.sample_index) for item in uploaded) == [(1, index) for index in range(4)]
        for item in uploaded:
            tokens = item.completion_token_ids
            assert (item.finish_reason, tokens) == ("interrupted", whole(RUNNING, item.sample_index, len(tokens)))
            assert list(tokens[: len(told[item.sample_index])]) == told[item.sample_index]


async def test_reported_tokens_of_a_killed_peer_are_not_lost(tmp_path: Path) -> None:
    async with generating_peer(tmp_path) as peer:
        await peer.session.expect("partial_rollout", lambda partial: partial.position > 0 and partial.sample_index == 3)
        peer.process.kill()
        assert await peer.ended() == -signal.SIGKILL
        await asyncio.wait_for(peer.session.ended.wait(), 10.0)
        told = tokens_reported(peer.session)
        assert set(told) == {0, 1, 2, 3}
        for index, tokens in told.items():
            assert tuple(tokens) == whole(RUNNING, index, len(tokens))
