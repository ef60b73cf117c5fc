"""Test the coordinator's own dial-backs, over loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.core.events.actions import TryAddress
from coordinator.core.events.reach_events import DialBackEnded
from coordinator.core.reach.dial_settings import DialBackSettings
from coordinator.shell import dial_back
from coordinator.shell.dial_back import BackDialer
from rollcast.wire.identity.tls import TlsCredentials, new_tls_key
from rollcast.wire.ids import PeerId
from tests.peer.links.link_run import LinkRun
from tests.wire.links.test_tcp import listening


class World:
    def __init__(self, run: LinkRun) -> None:
        self.run = run
        self.found: asyncio.Queue[DialBackEnded] = asyncio.Queue()
        key = new_tls_key()
        certificate = run.ca.issue_coordinator(key.csr_pem(), ["127.0.0.1"])
        credentials = TlsCredentials(run.ca.certificate_pem, certificate, key.private_pem)
        self.dialer = BackDialer(credentials, run.run_id, DialBackSettings(), self.found.put_nowait)

    async def tried(self, peer_id: PeerId, address: str, host: str = "") -> DialBackEnded:
        self.dialer.take(TryAddress(1, peer_id, address, host))
        async with asyncio.timeout(10.0):
            return await self.found.get()


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    made = World(LinkRun(folder))
    yield made
    await made.dialer.close()


async def test_a_peer_that_answers_is_reached_also_by_name(tmp_path: Path) -> None:
    async with world(tmp_path) as one, listening(one.run) as (peer_id, address):
        assert await one.tried(peer_id, address) == DialBackEnded(PeerId(""), 1, True)
        named = address.replace("127.0.0.1", "localhost")
        assert await one.tried(peer_id, named, "127.0.0.1") == DialBackEnded(PeerId(""), 1, True, address=address)


async def test_missing_and_wrong_listeners_do_not_count(tmp_path: Path) -> None:
    async with world(tmp_path) as one, listening(one.run) as (_, address):
        other = one.run.member("peer")[0]
        found = await one.tried(other, address)
        assert not found.reached
        assert "is answered by" in found.problem
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        found = await one.tried(other, f"127.0.0.1:{port}")
        assert found == DialBackEnded(PeerId(""), 1, False, "Connection refused")


@pytest.mark.parametrize("name", ["localhost", "no-such-name.invalid"])
async def test_a_name_that_leads_elsewhere_is_not_tried(tmp_path: Path, name: str) -> None:
    async with world(tmp_path) as one, listening(one.run) as (peer_id, address):
        found = await one.tried(peer_id, f"{name}:{address.rpartition(':')[2]}", "192.0.2.1")
        assert (found.reached, found.tried, found.address) == (False, False, "")
        assert name in found.problem


async def test_unanswered_name_lookups_do_not_block_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: go_on.wait(10.0) and [])
    monkeypatch.setattr(dial_back, "_RESOLVE_S", 0.1)
    async with world(tmp_path) as one:
        try:
            for number in range(64):
                one.dialer.take(TryAddress(number, PeerId("x"), "slow.example:7", "192.0.2.1"))
            async with asyncio.timeout(5.0):
                found = [await one.found.get() for _ in range(64)]
                await asyncio.to_thread(lambda: None)
        finally:
            go_on.set()
        assert {(each.tried, each.problem) for each in found} == {(False, "no answer")}
