"""Test links through holes: the conformance suite, with either end as TLS's server, and faults of holes alone.

Between processes of one machine there is no router; tests/bench/reach/test_holes.py has real ones.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest

from peer.config import LinkConfig
from peer.links.traffic import LinkTraffic
from peer.links.transport import Admission, ChunkTransport, LinkLimits
from peer.punching import holes
from peer.punching.port import PunchPort
from peer.punching.transport import PunchTransport, event_of
from rollcast.runtime.errors import MalformedMessage, Unreachable, WrongKey
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import RunId
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.links.link_run import LinkRun
from tests.peer.links.transport_conformance import TransportConformance, want
from tests.peer.punching.matchmaking import Matchmaking, Server


class TestPunchTransport(TransportConformance):
    server: Server = "other"
    version: Literal[4, 6] = 4

    @pytest.fixture(autouse=True)
    def _matchmaking(self) -> None:
        self.matchmaking = Matchmaking(self.server, version=self.version)

    def make(
        self, identity: Identity, credentials: TlsCredentials, run_id: RunId, admit: Admission, limits: LinkLimits
    ) -> ChunkTransport:
        config = LinkConfig()
        transport = PunchTransport(
            config,
            credentials,
            run_id,
            admit,
            limits,
            traffic=LinkTraffic(config),
            open_port=lambda version: PunchPort("127.0.0.1" if version == 4 else "::1"),
        )
        return self.matchmaking.join(identity.peer_id, transport)

    @pytest.mark.parametrize("renewed", ["listener", "dialler"])
    async def test_a_renewed_certificate_is_shown_on_new_links(self, tmp_path: Path, renewed: str) -> None:
        """Two ports have only one connection between them, so the next link can open once the last one has closed."""
        async with self.pair(tmp_path) as pair:
            for end in (old := await pair.ends()):
                end.link.close("")
            for end in old:
                await end.ended()
            peer_id = pair.peer_id if renewed == "listener" else pair.dialler_id
            assert peer_id is not None
            getattr(pair, renewed).renew(pair.run.credentials(peer_id, "origin"))
            dialled, accepted = await pair.ends()
            renewed_end = dialled if renewed == "listener" else accepted
            assert (renewed_end.link.peer_id, renewed_end.link.role) == (peer_id, "origin")

    async def test_an_unanswered_dial_is_an_error_in_time(self, tmp_path: Path) -> None:
        self.matchmaking.deadline_s = 0.3
        await super().test_an_unanswered_dial_is_an_error_in_time(tmp_path)

    async def test_both_ends_call_it_punched_and_report_it(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            dialled, accepted = await pair.ends()
            assert dialled.link.transport == accepted.link.transport == "punched"
            assert list(self.matchmaking.outcomes.values()) == [[True], [True]]

    @pytest.mark.parametrize("blind", [0, 1])
    async def test_one_end_need_not_know_where_the_other_is(self, tmp_path: Path, blind: int) -> None:
        self.matchmaking.knows = (blind != 0, blind != 1)
        async with self.pair(tmp_path) as pair:
            dialled, accepted = await pair.ends()
            dialled.link.send(want(3))
            assert (await accepted.message()).want.version == 3

    async def test_a_hole_that_does_not_open_ends_in_time_and_is_not_retried_at_once(self, tmp_path: Path) -> None:
        self.matchmaking.knows = (False, False)
        self.matchmaking.deadline_s = 0.1
        async with self.pair(tmp_path) as pair:
            with pytest.raises(Unreachable, match="cannot punch a hole"):
                await pair.dial()
            await asyncio.sleep(0.05)
            assert list(self.matchmaking.outcomes.values()) == [[False], [False]]
            with pytest.raises(Unreachable) as caught:
                await pair.dial()
            assert "after 1 failures" in caught.value.what

    async def test_without_the_coordinator_open_links_continue_and_dials_fail(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            dialled, accepted = await pair.ends()
            assert isinstance(pair.dialler, PunchTransport)
            pair.dialler.lost()
            with pytest.raises(Unreachable) as caught:
                await pair.dial()
            assert "coordinator" in caught.value.what
            assert "unreachable" in caught.value.what
            accepted.link.send(want(4))
            assert (await dialled.message()).want.version == 4

    async def test_a_link_that_comes_when_its_dial_is_cancelled_ends(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            transport: Any = pair.dialler
            dial = asyncio.create_task(pair.dial())
            deliver = transport._deliver

            def delivered(*arguments: Any) -> None:
                deliver(*arguments)
                dial.cancel()

            transport._deliver = delivered
            with pytest.raises(asyncio.CancelledError):
                await dial
            await (await pair.accepted.get()).ended()

    async def test_a_hole_that_opens_when_its_time_is_over_is_closed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.pair(tmp_path) as pair:
            transport: Any = pair.dialler
            take = holes._Attempt.take

            def taken(attempt: Any, *arguments: Any) -> None:
                take(attempt, *arguments)
                if attempt.order.asked:
                    for task in transport._background._tasks:
                        task.cancel()

            monkeypatch.setattr(holes._Attempt, "take", taken)
            dial = asyncio.create_task(pair.dial())
            await (await pair.accepted.get()).ended()
            dial.cancel()


class TestPunchTransportWhereTheAskerServes(TestPunchTransport):
    server = "asker"

    @pytest.mark.parametrize("newer", [1])
    async def test_a_protocol_mismatch_names_the_side_to_upgrade(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: int
    ) -> None:
        """Expect a link at the server: it greets last, so a mismatch that only the client sees ends an open link."""
        await super().test_a_protocol_mismatch_names_the_side_to_upgrade(tmp_path, monkeypatch, newer)


class TestPunchTransportOverIpv6(TestPunchTransport):
    version = 6
    # Over IPv6 both ends know where the other is, or neither dials.
    test_one_end_need_not_know_where_the_other_is = None  # type: ignore[assignment]


async def test_a_closed_transport_opens_no_port(tmp_path: Path) -> None:
    run, config = LinkRun(tmp_path), LinkConfig()
    _, credentials = run.member("peer")
    transport = PunchTransport(
        config,
        credentials,
        run.run_id,
        lambda peer_id, role: "",
        LinkLimits(),
        traffic=LinkTraffic(config),
        open_port=lambda version: PunchPort("127.0.0.1" if version == 4 else "::1"),
    )
    await transport.close()
    with pytest.raises(OSError, match="closed"):
        _ = transport.port(4)


@pytest.mark.parametrize("deadline_s", [0.0, -1.0, 60.0, float("nan")])
def test_an_order_has_a_deadline(deadline_s: float) -> None:
    with pytest.raises(MalformedMessage):
        event_of(pb.Punch(peer_id=Identity.generate().peer_id, deadline_s=deadline_s))


def test_an_order_names_a_peer() -> None:
    with pytest.raises(WrongKey):
        event_of(pb.Punch(peer_id="nobody", deadline_s=3.0))
