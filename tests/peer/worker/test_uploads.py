"""Test uploads of finished rollouts to a scripted coordinator: the stream and its errors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from peer.worker import uploads as uploads_module
from peer.worker.core.events import Verdict
from peer.worker.uploads import MESSAGE_BYTES_MAX, MESSAGE_ROLLOUTS_MAX, Uploader, UploadStream, in_messages
from rollcast.runtime.errors import Unreachable, WaitTimedOut
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA
from rollcast.wire.ids import LeaseId
from rollcast.wire.joining.grpc_client import open_channel
from rollcast.wire.proto import rollcast_pb2_grpc
from tests.peer.scripted_coordinator import RUN_ID, ScriptedCoordinator, peer_credentials, scripted_coordinator
from tests.peer.worker.core.worker_samples import grant, rollout, segment, work


@asynccontextmanager
async def an_uploader(folder: Path) -> AsyncIterator[tuple[ScriptedCoordinator, Uploader]]:
    async with scripted_coordinator(folder) as coordinator:
        credentials = peer_credentials(coordinator.ca, Identity.generate())
        async with open_channel(coordinator.address, credentials) as channel:
            stub = rollcast_pb2_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]
            yield coordinator, Uploader(lambda: stub)


async def test_uploads_return_a_verdict_for_every_rollout(tmp_path: Path) -> None:
    async with an_uploader(tmp_path) as (coordinator, uploader):
        coordinator.judge = lambda item: "fenced" if item.sample_index == 1 else ""
        rollouts = tuple(rollout(item) for item in work(grant(1, slots=130)))
        verdicts = await uploader.upload(rollouts)
        assert len(verdicts) == 130
        assert verdicts[:2] == (Verdict(LeaseId(1), 0, True, ""), Verdict(LeaseId(1), 1, False, "fenced"))
        assert coordinator.uploaded == [item for item in rollouts if item.sample_index != 1]


async def test_an_upload_without_a_coordinator_is_unreachable(tmp_path: Path) -> None:
    async with an_uploader(tmp_path) as (coordinator, uploader):
        await coordinator.stop()
        with pytest.raises(Unreachable):
            await uploader.upload(tuple(rollout(item) for item in work(grant(1))))


async def test_a_session_that_ends_under_an_upload_fails_it(tmp_path: Path) -> None:
    """The channel cancels the call, which must not look like a request to stop this process."""
    credentials = peer_credentials(RunCA.create(tmp_path / "ca", RUN_ID), Identity.generate())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        channel = open_channel(f"127.0.0.1:{silent.getsockname()[1]}", credentials)
        stub = rollcast_pb2_grpc.CoordinatorStub(channel)  # type: ignore[no-untyped-call]
        rollouts = tuple(rollout(item) for item in work(grant(1)))
        uploads = [asyncio.create_task(Uploader(lambda: stub).upload(rollouts)) for _ in range(2)]
        await asyncio.wait(uploads, timeout=0.1)
        uploads[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploads[0]
        await channel.close(None)
        with pytest.raises(Unreachable, match="lost while uploading rollouts"):
            await uploads[1]


async def test_an_upload_without_a_session_fails_at_once() -> None:
    with pytest.raises(Unreachable):
        await Uploader(lambda: None).upload(())


async def test_uploads_share_one_stream_and_each_gets_its_own_verdicts(tmp_path: Path) -> None:
    async with an_uploader(tmp_path) as (coordinator, uploader):
        made = [tuple(rollout(item) for item in work(grant(lease, slots=3))) for lease in (1, 2, 3)]
        found = await asyncio.gather(*map(uploader.upload, made))
        assert [[(one.lease_id, one.sample_index) for one in verdicts] for verdicts in found] == [
            [(lease, index) for index in range(3)] for lease in (1, 2, 3)
        ]
        assert coordinator.streams == 1


async def test_a_stream_without_uploads_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads_module, "STREAM_IDLE_S", 0.0)
    async with an_uploader(tmp_path) as (coordinator, uploader):
        for lease in (1, 2):
            assert await uploader.upload(tuple(rollout(item) for item in work(grant(lease))))
            assert uploader._stream is not None
            await asyncio.wait_for(uploader._stream._ended, 10.0)
        assert coordinator.streams == 2


async def test_a_stream_that_is_not_answered_in_time_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replies could no longer be told apart: the next upload must not take those of this one."""
    async with an_uploader(tmp_path) as (coordinator, uploader):
        coordinator.answers.clear()
        monkeypatch.setattr(uploads_module, "UPLOAD_TIMEOUT_S", 0.2)
        with pytest.raises(WaitTimedOut, match="verdicts"):
            await uploader.upload(tuple(rollout(item) for item in work(grant(1))))
        monkeypatch.undo()
        coordinator.answers.set()
        verdicts = await uploader.upload(tuple(rollout(item) for item in work(grant(2))))
        assert {one.lease_id for one in verdicts} == {2}
        assert coordinator.streams == 2


class _CancelledCall:
    """A connected call that another upload on the same stream has cancelled, as grpc.aio behaves then."""

    _cython_call = SimpleNamespace(cancel=lambda details: None)

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        pass

    def cancel(self) -> None:
        pass

    async def wait_for_connection(self) -> None:
        pass

    async def write(self, message: object) -> None:
        raise asyncio.InvalidStateError

    async def read(self) -> object:
        raise asyncio.CancelledError


async def test_an_upload_on_a_stream_that_another_upload_has_cancelled_fails_and_is_not_cancelled() -> None:
    """A cancelled upload would count as under way for ever."""
    stream = UploadStream(_CancelledCall())
    with pytest.raises(Unreachable, match="lost while uploading rollouts"):
        await asyncio.create_task(stream.exchange([b""], 10.0))
    assert stream.is_over


def test_messages_are_bounded_in_rollouts_and_in_bytes() -> None:
    many = [rollout(item) for item in work(grant(1, slots=MESSAGE_ROLLOUTS_MAX + 1))]
    assert [len(message.rollouts) for message in in_messages(many)] == [MESSAGE_ROLLOUTS_MAX, 1]
    long = [rollout(item, segment((70_000,) * 60_000)) for item in work(grant(1, slots=5))]
    messages = list(in_messages(long))
    assert sum(len(message.rollouts) for message in messages) == 5
    assert all(message.ByteSize() < 2 * MESSAGE_BYTES_MAX for message in messages)
