"""Test that certificates are renewed over the session after two thirds of their life, and replaced with the invite
if they expired while the coordinator was unreachable.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from random import Random
from typing import Any

import pytest

from peer.session import setup
from peer.session.renewal import Renewal
from peer.session.setup import http_url_of, session_of
from peer.startup import join_run
from rollcast.runtime.errors import Unreachable
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import RunCA, TlsCredentials
from rollcast.wire.joining.diagnose import HopFailed
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import range_to_pb
from tests.peer.joined_peer import joined_config
from tests.peer.scripted_coordinator import RUN_ID, peer_credentials, scripted_coordinator, welcome
from tests.peer.session.test_session import Listener
from tests.peer.versions import LEARNER


async def test_a_certificate_that_has_ended_is_replaced_with_the_invite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        config = joined_config(tmp_path / "peer", coordinator).model_copy(update={"coordinators": ("127.0.0.2",)})
        place = await join_run(config)
        assert place.enrolment.grpc_addresses[1] == f"127.0.0.2:{coordinator.address.rpartition(':')[2]}"
        ended = peer_credentials(coordinator.ca, place.identity, lifetime_s=0.001)
        fresh = peer_credentials(coordinator.ca, place.identity)
        asked: list[Any] = []

        async def enrol(*arguments: Any, also: tuple[str, ...]) -> Any:
            asked.append((*arguments, also))
            if len(asked) == 1:
                raise Unreachable("the coordinator is still away")
            return replace(place.enrolment, credentials=fresh)

        monkeypatch.setattr(setup, "enrol", enrol)
        told: list[TlsCredentials] = []
        renewal = Renewal(ended, folder=tmp_path, send=lambda _: None, renewed=told.append, random=Random(0))
        session = session_of(
            config,
            place,
            lambda: renewal,
            hello=lambda: pb.Hello(protocol=range_to_pb()),
            heartbeat=pb.Heartbeat,
            listener=Listener(),
            random=Random(0),
        )
        seen: list[HopFailed] = []
        monkeypatch.setattr(session.search, "failed", lambda hop, now: seen.append(hop))
        running = asyncio.create_task(session.run())
        await coordinator.next_session(welcome(learner_public_key=LEARNER.public_key))
        assert told == [fresh]
        assert [hop.hop for hop in seen] == ["certificate"]
        assert "certificate has expired" in seen[0].reason
        assert [call[-1] for call in asked] == [("127.0.0.2",)] * 2
        assert asked[0][0] == place.invite
        await session.close("done")
        await running


async def test_the_http_address_follows_the_address_of_the_last_session(tmp_path: Path) -> None:
    async with scripted_coordinator(tmp_path) as coordinator:
        config = joined_config(tmp_path / "peer", coordinator).model_copy(update={"coordinators": ("127.0.0.2:5:6",)})
        place = await join_run(config)
        assert http_url_of(config, place, "127.0.0.2:5") == "http://127.0.0.2:6"
        assert http_url_of(config, place, coordinator.address) == place.invite.http_url
        assert http_url_of(config, place, "elsewhere:1") == place.enrolment.http_url


@pytest.fixture
def ca(tmp_path: Path) -> RunCA:
    return RunCA.create(tmp_path / "ca", RUN_ID)


def test_renewal_is_due_after_two_thirds_of_the_life(ca: RunCA, tmp_path: Path) -> None:
    credentials = peer_credentials(ca, Identity.generate(), lifetime_s=90_000.0)
    renewal = Renewal(credentials, folder=tmp_path, send=print, renewed=print, random=Random(0))
    assert renewal.due_in_s == pytest.approx(60_000.0, rel=0.01)


class Ahead(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Ahead:
        return super().now(tz) + timedelta(days=400)


def test_a_clock_that_was_ahead_does_not_put_the_renewal_off(
    ca: RunCA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = peer_credentials(ca, Identity.generate(), lifetime_s=90_000.0)
    with monkeypatch.context() as patch:
        patch.setattr("rollcast.wire.identity.tls.datetime", Ahead)
        renewal = Renewal(credentials, folder=tmp_path, send=print, renewed=print, random=Random(0))
        assert renewal.due_in_s < 0.0
    assert 0.0 < renewal.due_in_s <= credentials.valid_for_s + 1.0


async def test_a_clock_that_is_ahead_has_certificates_renewed_ever_more_seldom(
    ca: RunCA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    identity, delays, renewed = Identity.generate(), iter([0.0, 0.0, 60.0]), asyncio.Semaphore(0)

    def answer(request: pb.PeerMessage) -> None:
        csr_pem = request.certificate_request.csr_pem
        renewal.received(ca.issue(csr_pem, peer_id=identity.peer_id, role="peer", lifetime_s=3600.0))

    monkeypatch.setattr("rollcast.wire.identity.tls.datetime", Ahead)
    monkeypatch.setattr("peer.session.renewal.backoff_delays_s", lambda *_, **__: delays)
    credentials = peer_credentials(ca, identity, lifetime_s=90_000.0)
    renewal = Renewal(credentials, folder=tmp_path, send=answer, renewed=lambda _: renewed.release(), random=Random(0))
    running = asyncio.create_task(renewal.run())
    for _ in range(3):
        await asyncio.wait_for(renewed.acquire(), 5.0)
    while next(delays, None) is not None:  # the last one is taken once the certificate is saved
        pytest.fail("a renewal that does not help began the delays anew")
    running.cancel()
    assert "RC206" in capsys.readouterr().out


async def renewed_with(ca: RunCA, folder: Path, identity: Identity, answering: Identity) -> list[TlsCredentials]:
    """Answer a renewal that is due with a certificate of ``answering``."""
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


async def test_a_new_certificate_is_saved_and_passed_on(ca: RunCA, tmp_path: Path) -> None:
    identity = Identity.generate()
    (fresh,) = await renewed_with(ca, tmp_path, identity, identity)
    assert fresh.caller.peer_id == identity.peer_id
    assert TlsCredentials.load(tmp_path) == fresh


async def test_a_new_certificate_is_used_although_the_disk_refuses_it(ca: RunCA, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    identity = Identity.generate()
    (fresh,) = await renewed_with(ca, tmp_path / "file", identity, identity)
    assert fresh.caller.peer_id == identity.peer_id


async def test_a_certificate_for_another_peer_is_rejected(ca: RunCA, tmp_path: Path) -> None:
    assert await renewed_with(ca, tmp_path, Identity.generate(), Identity.generate()) == []
    assert not (tmp_path / "credentials.pem").exists()
