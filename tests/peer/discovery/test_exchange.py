"""Test which records are sent to which peer, with simulated sessions and links."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from peer.discovery.address_book import AddressBook
from peer.discovery.book_file import BookFile
from peer.discovery.exchange import RECORDS_SENT, Exchange
from peer.discovery.own_record import OwnRecord
from peer.links.neighbours import Neighbour
from peer.links.transport import Link
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.peer_record import PeerRecord, read_record, sign_record
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.limits import PEER_RECORDS_MAX
from rollcast.wire.proto import rollcast_pb2 as pb

NOW = 1_800_000_000.0
RUN = RunId("run-1")


class PlayedLink:
    def __init__(self, role: str = "peer") -> None:
        self.identity = Identity.generate()
        self.peer_id = self.identity.peer_id
        self.role = role
        self.sent: list[pb.LinkMessage] = []
        self.closed = ""

    def send(self, message: pb.LinkMessage) -> None:
        self.sent.append(message)

    def close(self, reason: str, code: str = "") -> None:
        self.closed = code

    @property
    def told(self) -> list[set[PeerId]]:
        """Return the peers whose records were sent, message by message."""
        return [{read_record(one).peer_id for one in message.peer_records.records} for message in self.sent]


class Around:
    """An exchange with its session, links and relay."""

    def __init__(self, folder: Path) -> None:
        self.identity = Identity.generate()
        self.addresses: tuple[str, ...] = ("own:1",)
        self.given: list[PeerRecord] = []
        self.learned: dict[PeerId, tuple[str, ...]] = {}
        self.holders: list[tuple[Neighbour, ...]] = []
        self.file = BookFile(folder / "peers.pb", RUN)
        self.exchange = Exchange(
            OwnRecord(self.identity, RUN, "peer"),
            AddressBook(self.identity.peer_id),
            self.file,
            cast(Any, SimpleNamespace(know_holders=self.holders.append)),
            run_id=RUN,
            learn=self.learned.__setitem__,
            addresses=lambda: self.addresses,
            send=lambda message: self.given.append(read_record(message.peer_records.records[0])),
            random=Random(1),
            unix_time=lambda: NOW,
        )
        self.clock = 100.0
        self.exchange._loop = cast(Any, SimpleNamespace(time=lambda: self.clock))

    def link(self, role: str = "peer") -> PlayedLink:
        link = PlayedLink(role)
        self.exchange.linked(cast(Link, link))
        return link

    def refresh(self, seconds: float = 3.0) -> None:
        self.clock += seconds
        self.exchange.refresh()

    def hears(self, link: PlayedLink, *records: pb.Signed) -> None:
        self.exchange.records_received(cast(Link, link), pb.PeerRecords(records=records))

    @property
    def dialable(self) -> set[PeerId]:
        return {holder.peer_id for holder in self.holders[-1]}


def record(identity: Identity, *addresses: str, sequence: int = 1, run_id: RunId = RUN) -> pb.Signed:
    body = PeerRecord(run_id, identity.peer_id, "peer", sequence, addresses or ("a:1",), int(NOW) + 600)
    return sign_record(body, identity)


async def test_the_own_record_is_sent_in_every_session_and_on_every_change(tmp_path: Path) -> None:
    around = Around(tmp_path)
    around.exchange.opened(pb.Welcome())
    around.exchange.opened(pb.Welcome())
    around.refresh()
    assert [one.addresses for one in around.given] == [("own:1",)] * 2
    around.addresses = ("own:2",)
    around.refresh()
    around.refresh()
    assert [one.addresses for one in around.given[2:]] == [("own:2",)]


async def test_a_new_link_is_sent_the_own_record_and_others_and_again_later(tmp_path: Path) -> None:
    around = Around(tmp_path)
    other = Identity.generate()
    around.exchange.received(pb.CoordinatorMessage(peer_records=pb.PeerRecords(records=[record(other)])))
    link, learner = around.link(), around.link("learner")
    around.refresh()
    assert link.told == [{around.identity.peer_id, other.peer_id}]
    assert learner.sent == []
    around.refresh(60.0)
    assert len(link.told) == 1
    around.refresh(400.0)
    assert len(link.told) == 2
    around.addresses = ("own:2",)
    around.refresh()
    assert len(link.told) == 3
    around.exchange.unlinked(cast(Link, link))
    around.refresh(400.0)
    assert len(link.told) == 3


async def test_received_records_can_be_dialled(tmp_path: Path) -> None:
    around = Around(tmp_path)
    link, third = around.link(), Identity.generate()
    around.hears(link, record(link.identity), record(third, "t:1", "/ip4/192.0.2.1/tcp/1"))
    around.refresh()
    assert around.dialable == {link.peer_id, third.peer_id}
    (neighbour,) = [one for one in around.holders[-1] if one.peer_id == third.peer_id]
    assert around.learned[third.peer_id] == ("t:1", "/ip4/192.0.2.1/tcp/1")
    assert (neighbour.address, neighbour.we_dial, neighbour.role) == ("t:1 /ip4/192.0.2.1/tcp/1", True, "peer")


async def test_a_record_that_does_not_verify_is_dropped_alone(tmp_path: Path) -> None:
    around = Around(tmp_path)
    link, good, other_run = around.link(), Identity.generate(), Identity.generate()
    forged = record(Identity.generate())
    forged.signature = bytes(64)
    around.hears(link, forged, record(other_run, run_id=RunId("run-2")), record(good))
    around.refresh()
    assert around.dialable == {good.peer_id}
    assert link.closed == ""


async def test_a_message_with_too_many_records_ends_the_link(tmp_path: Path) -> None:
    around = Around(tmp_path)
    link = around.link()
    around.hears(link, *[pb.Signed()] * (PEER_RECORDS_MAX + 1))
    assert link.closed == MalformedMessage.code


async def test_a_peer_that_sends_too_often_is_ignored(tmp_path: Path) -> None:
    around = Around(tmp_path)
    link = around.link()
    others = [Identity.generate() for _ in range(12)]
    for other in others:
        around.hears(link, record(other))
    around.refresh()
    assert 3 <= len(around.dialable) <= 6
    around.clock += 120.0
    around.hears(link, record(others[-1]))
    around.refresh()
    assert others[-1].peer_id in around.dialable


async def test_a_message_has_a_bounded_number_of_records(tmp_path: Path) -> None:
    around = Around(tmp_path)
    for _ in range(3):
        records = [record(Identity.generate()) for _ in range(PEER_RECORDS_MAX)]
        around.exchange.received(pb.CoordinatorMessage(peer_records=pb.PeerRecords(records=records)))
    link = around.link()
    around.refresh()
    assert len(link.told[0]) == 1 + RECORDS_SENT


async def test_a_restarted_peer_loads_the_peers_that_it_met(tmp_path: Path) -> None:
    before, met = Around(tmp_path), Identity.generate()
    before.exchange.received(pb.CoordinatorMessage(peer_records=pb.PeerRecords(records=[record(met)])))
    task = asyncio.create_task(before.exchange.run())
    async with asyncio.timeout(5.0):
        while not before.file.read(NOW):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    after = Around(tmp_path)
    task = asyncio.create_task(after.exchange.run())
    async with asyncio.timeout(5.0):
        while not after.holders:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    assert after.dialable == {met.peer_id}


async def test_a_nearby_peer_is_offered_at_once(tmp_path: Path) -> None:
    around = Around(tmp_path)
    around.refresh()
    around.exchange.found_nearby(PeerId("near"), "peer", ("192.168.0.2:1",))
    around.refresh(0.0)
    assert around.dialable == {"near"}
    assert around.holders[-1][0].lan
    assert around.learned == {"near": ("192.168.0.2:1",)}


async def test_hints_are_offered_as_far_away_and_last(tmp_path: Path) -> None:
    around = Around(tmp_path)
    around.exchange.found_nearby(PeerId("near"), "peer", ("192.168.0.2:1",))
    around.exchange.hinted(PeerId("far"), ("/ip4/192.0.2.1/tcp/4001",))
    around.refresh()
    assert [(one.peer_id, one.lan) for one in around.holders[-1]] == [("near", True), ("far", False)]
    assert around.exchange.known(9) == [("near", "192.168.0.2:1"), ("far", "/ip4/192.0.2.1/tcp/4001")]
