"""Certificates are renewed over the session once two thirds of their life have passed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from peer.session.renewal import Renewal
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA, TlsCredentials
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.scripted_coordinator import RUN_ID, peer_credentials


@pytest.fixture
def ca(tmp_path: Path) -> RunCA:
    return RunCA.create(tmp_path / "ca", RUN_ID)


def test_renewal_is_due_after_two_thirds_of_the_life(ca: RunCA, tmp_path: Path) -> None:
    credentials = peer_credentials(ca, Identity.generate(), lifetime_s=90_000.0)
    renewal = Renewal(credentials, folder=tmp_path, send=print, renewed=print, random=Random(0))
    assert renewal.due_in_s == pytest.approx(60_000.0, rel=0.01)


async def renewed_with(ca: RunCA, folder: Path, identity: Identity, answering: Identity) -> list[TlsCredentials]:
    """Let a renewal that is due be answered with a certificate of ``answering``."""
    renewed: asyncio.Queue[TlsCredentials] = asyncio.Queue()
    requests: asyncio.Queue[pb.PeerMessage] = asyncio.Queue()
    renewal = Renewal(
        peer_credentials(ca, identity, lifetime_s=1.0),
        folder=folder,
        send=requests.put_nowait,
        renewed=renewed.put_nowait,
        random=Random(0),
    )
    running = asyncio.create_task(renewal.run())
    request = await asyncio.wait_for(requests.get(), 5.0)
    csr_pem = request.certificate_request.csr_pem
    renewal.received(ca.issue(csr_pem, peer_id=answering.peer_id, role="peer", lifetime_s=3600.0))
    renewal.received(b"a second answer that nobody asked for")
    try:
        return [await asyncio.wait_for(renewed.get(), 0.5)]
    except TimeoutError:
        return []
    finally:
        running.cancel()


async def test_a_new_certificate_is_kept_and_handed_on(ca: RunCA, tmp_path: Path) -> None:
    identity = Identity.generate()
    (fresh,) = await renewed_with(ca, tmp_path, identity, identity)
    assert fresh.caller.peer_id == identity.peer_id
    assert TlsCredentials.load(tmp_path) == fresh


async def test_a_certificate_for_somebody_else_is_not_taken(ca: RunCA, tmp_path: Path) -> None:
    assert await renewed_with(ca, tmp_path, Identity.generate(), Identity.generate()) == []
    assert not (tmp_path / "credentials.pem").exists()
