"""Whether somebody answers as who they should be; no link comes of it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from peer.config import LinkConfig
from peer.links.direct import DirectTransport
from peer.links.transport import Link, LinkReceiver
from rollcast.runtime.errors import Unreachable, WaitTimedOut, WrongKey
from rollcast.wire.ids import PeerId
from rollcast.wire.links.probe import probe_link
from tests.peer.links.link_run import LinkRun
from tests.peer.links.transport_conformance import anyone


def nobody(_link: Link) -> LinkReceiver:
    raise AssertionError("a link was opened")


@asynccontextmanager
async def listening(run: LinkRun) -> AsyncIterator[tuple[PeerId, str]]:
    peer_id, credentials = run.member("peer")
    transport = DirectTransport(LinkConfig(), credentials, run.run_id, anyone)
    address = await transport.start(nobody)
    yield peer_id, address
    await transport.close()


async def test_who_answers_is_who_was_looked_for(tmp_path: Path) -> None:
    run, other_run = LinkRun(tmp_path), LinkRun(tmp_path, "run-2")
    prober, credentials = run.member("peer")
    async with listening(run) as (peer_id, address):
        await probe_link(peer_id, address, credentials=credentials, run_id=run.run_id)
        with pytest.raises(WrongKey):
            await probe_link(prober, address, credentials=credentials, run_id=run.run_id)
        stranger = other_run.member("peer")[1]
        with pytest.raises(WrongKey):
            await probe_link(peer_id, address, credentials=stranger, run_id=other_run.run_id)


async def test_nobody_or_nothing_answers(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    peer_id, credentials = run.member("peer")
    silent = socket.create_server(("127.0.0.1", 0))
    port = silent.getsockname()[1]
    address = f"127.0.0.1:{port}"
    with silent, pytest.raises(WaitTimedOut):
        await probe_link(peer_id, address, credentials=credentials, run_id=run.run_id, deadline_s=0.1)
    for wrong in (address, "127.0.0.1", ":1", "127.0.0.1:x", "127.0.0.1:99999"):
        with pytest.raises(Unreachable):
            await probe_link(peer_id, wrong, credentials=credentials, run_id=run.run_id)
