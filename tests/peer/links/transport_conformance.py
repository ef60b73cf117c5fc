"""Check what every transport of chunk links must do: subclass TransportConformance in a test module for each."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from peer.links.transport import Admission, ChunkTransport, Link, LinkLimits, LinkReceiver
from rollcast.runtime.errors import ProtocolMismatch, RollcastError, WrongKey
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import Caller, TlsCredentials
from rollcast.wire.ids import PeerId, RunId, StripeId
from rollcast.wire.links.frames import NO_STRIPE
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.links.link_ends import End
from tests.peer.links.link_run import LinkRun

# On a busy machine everything takes longer: what a test waits for to run out, the test makes short itself.
WAIT_S = 40.0
LIMITS = LinkLimits(dial_timeout_s=20.0, handshake_timeout_s=10.0, hello_timeout_s=10.0, write_timeout_s=WAIT_S)
PAYLOAD = b"x" * 65536


def anyone(_caller: Caller) -> str:
    return ""


def want(version: int) -> pb.LinkMessage:
    return pb.LinkMessage(want=pb.Want(version=version))


def push(link: Link, count: int, payload: bytes = PAYLOAD) -> End:
    """Return an end that sends ``count`` chunks, each after ``drained``, and closes nothing."""
    left = iter(range(count))

    def next_chunk(link: Link) -> None:
        for index in left:
            link.send_chunk(1, 0, index, payload, NO_STRIPE)
            return

    end = End(link, next_chunk)
    link.start(end)
    next_chunk(link)
    return end


class Pair:
    """A listening transport, a dialling one, and the links that the first accepted."""

    def __init__(
        self,
        run: LinkRun,
        listener: ChunkTransport,
        dialler: ChunkTransport,
        peer_id: PeerId,
        dialler_id: PeerId | None = None,
    ) -> None:
        self.run = run
        self.dialler_id = dialler_id
        self.listener = listener
        self.dialler = dialler
        self.peer_id = peer_id
        self.address = ""
        self.accepted: asyncio.Queue[End] = asyncio.Queue()

    def accept(self, link: Link) -> LinkReceiver:
        end = End(link)
        self.accepted.put_nowait(end)
        return end

    async def dial(self) -> tuple[Link, End]:
        """Return the dialled link, not started, and the accepted end."""
        link = await self.dialler.dial(self.peer_id, self.address)
        return link, await self.accepted.get()

    async def ends(self) -> tuple[End, End]:
        link, accepted = await self.dial()
        dialled = End(link)
        link.start(dialled)
        return dialled, accepted


class TransportConformance(ABC):
    """Subclass it and implement ``make``."""

    @abstractmethod
    def make(
        self, identity: Identity, credentials: TlsCredentials, run_id: RunId, admit: Admission, limits: LinkLimits
    ) -> ChunkTransport:
        """Return a transport, not started, that listens on loopback."""

    @asynccontextmanager
    async def pair(
        self,
        folder: Path,
        *,
        admit: Admission = anyone,
        dialler_run: LinkRun | None = None,
        limits: LinkLimits = LIMITS,
    ) -> AsyncIterator[Pair]:
        run = LinkRun(folder)
        peer_id, credentials = run.member("peer")
        listener = self.make(run.identities[peer_id], credentials, run.run_id, admit, limits)
        other = dialler_run or run
        dialler_id, shown = other.member("peer")
        dialler = self.make(other.identities[dialler_id], shown, other.run_id, anyone, limits)
        pair = Pair(run, listener, dialler, peer_id, dialler_id)
        pair.address = await listener.start(pair.accept)
        try:
            async with asyncio.timeout(WAIT_S):
                yield pair
        finally:
            await asyncio.gather(dialler.close(), listener.close())

    async def test_each_end_has_the_others_identity(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            dialled, accepted = await pair.ends()
            assert (dialled.link.peer_id, dialled.link.role, dialled.link.dialled) == (pair.peer_id, "peer", True)
            assert (accepted.link.role, accepted.link.dialled) == ("peer", False)
            assert dialled.link.transport == accepted.link.transport != ""

    @pytest.mark.parametrize("pusher", [0, 1])
    async def test_chunks_and_messages_flow_whoever_dialled(self, tmp_path: Path, pusher: int) -> None:
        async with self.pair(tmp_path) as pair:
            ends = await pair.ends()
            sender, receiver = ends[pusher], ends[1 - pusher]
            for index in range(20):
                sender.link.send_chunk(7, 2, index, bytes([index]) * 1000, StripeId(3))
                frame = await receiver.chunk()
                assert (frame.version, frame.encoding_id, frame.index, frame.stripe) == (7, 2, index, 3)
                assert bytes(frame.payload) == bytes([index]) * 1000
                receiver.link.send(want(index))
                assert (await sender.message()).want.version == index
            assert sender.drained_times == 20

    async def test_both_directions_at_once(self, tmp_path: Path) -> None:
        count = 100
        async with self.pair(tmp_path) as pair:
            link, accepted = await pair.dial()
            dialled = push(link, count)
            answers = push(accepted.link, count)  # replaces the receiver
            for end in (dialled, answers):
                await end.until(lambda end=end: len(end.came) == count and end.drained_times == count)
                assert end.link.bytes_sent > count * len(PAYLOAD)
                assert end.link.bytes_received > count * len(PAYLOAD)
                while end.link.measure().unsent_bytes:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.001)

    async def test_frames_before_the_start_are_kept(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            link, accepted = await pair.dial()
            for version in range(3):
                accepted.link.send(want(version))
            accepted.link.send_chunk(1, 0, 0, PAYLOAD, NO_STRIPE)
            await accepted.until(lambda: accepted.drained_times)
            end = End(link)
            link.start(end)
            assert not end.came, "not from within start"
            assert [(await end.message()).want.version for _ in range(3)] == [0, 1, 2]
            await end.chunk()

    async def test_a_link_that_ended_before_its_start_reports_it_afterwards(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            link, accepted = await pair.dial()
            accepted.link.send(want(4))
            accepted.link.close("enough", "RC999")
            await accepted.ended()
            end = End(link)
            link.start(end)
            assert (await end.message()).want.version == 4
            assert await end.ended() == ("enough", "RC999")

    @pytest.mark.parametrize("closer", [0, 1])
    async def test_a_close_shows_at_both_ends_with_its_reason(self, tmp_path: Path, closer: int) -> None:
        async with self.pair(tmp_path) as pair:
            ends = await pair.ends()
            ends[closer].link.send(want(1))
            ends[closer].link.close("too many links", "RC777")
            assert ends[closer].over is None, "not from within close"
            assert await ends[1 - closer].ended() == ("too many links", "RC777")
            assert len(ends[1 - closer].came) == 1, "what was sent before arrives"
            assert await ends[closer].ended() == ("too many links", "")
            for end in ends:
                end.link.send(want(2))
                end.link.send_chunk(1, 0, 0, PAYLOAD, NO_STRIPE)
                end.link.close("again")

    async def test_a_close_without_a_reason_is_a_plain_end(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            dialled, accepted = await pair.ends()
            dialled.link.close("")
            assert (await accepted.ended())[1] == (await dialled.ended())[1] == ""

    async def test_a_paused_reader_gets_nothing_and_then_everything(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            dialled, accepted = await pair.ends()
            accepted.link.pause_reading()
            for version in range(10):
                dialled.link.send(want(version))
            dialled.link.send_chunk(1, 0, 0, PAYLOAD, NO_STRIPE)
            await dialled.until(lambda: dialled.drained_times)
            await asyncio.sleep(0)
            assert not accepted.came
            accepted.link.resume_reading()
            assert [(await accepted.message()).want.version for _ in range(10)] == list(range(10))
            await accepted.chunk()

    async def test_a_reader_that_stops_holds_the_sender_and_then_loses_the_link(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path, limits=replace(LIMITS, write_timeout_s=0.5)) as pair:
            link, accepted = await pair.dial()
            accepted.link.pause_reading()
            dialled = push(link, 10_000)
            await dialled.until(lambda: link.measure().unsent_bytes)
            assert "took no bytes" in (await dialled.ended())[0]
            assert link.bytes_sent < 64 << 20, "what waits is bounded"

    async def test_messages_that_are_not_read_end_the_link(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            dialled, accepted = await pair.ends()
            accepted.link.pause_reading()
            messages = 0
            hashes = pb.LinkMessage(chunk_list=pb.ChunkList(hashes=bytes(8 << 20)))
            while dialled.over is None:
                dialled.link.send(hashes)
                messages += 1
                await asyncio.sleep(0)
            assert messages < 10
            assert "too many messages" in dialled.over[0]

    async def test_a_flood_of_messages_comes_in_batches(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            dialled, accepted = await pair.ends()
            for version in range(2000):
                dialled.link.send(want(version))
            await accepted.until(lambda: len(accepted.came) == 2000)
            assert accepted.batches >= 2000 // 256

    async def test_a_dial_reaches_the_named_peer_or_fails(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            somebody_else = LinkRun(tmp_path / "x").member("peer")[0]
            with pytest.raises(WrongKey):
                await pair.dialler.dial(somebody_else, pair.address)
            assert pair.accepted.empty()

    @pytest.mark.parametrize("renewed", ["listener", "dialler"])
    async def test_a_renewed_certificate_is_shown_on_new_links(self, tmp_path: Path, renewed: str) -> None:
        async with self.pair(tmp_path) as pair:
            old = await pair.ends()
            peer_id = pair.peer_id if renewed == "listener" else pair.dialler_id
            assert peer_id is not None
            getattr(pair, renewed).renew(pair.run.credentials(peer_id, "origin"))
            dialled, accepted = await pair.ends()
            renewed_end = dialled if renewed == "listener" else accepted
            assert (renewed_end.link.peer_id, renewed_end.link.role) == (peer_id, "origin")
            old[0].link.send(want(1))
            assert (await old[1].message()).want.version == 1, "the old link stays"

    async def test_another_run_is_refused(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path, dialler_run=LinkRun(tmp_path, "run-2")) as pair:
            with pytest.raises(RollcastError):
                await pair.dialler.dial(pair.peer_id, pair.address)
            assert pair.accepted.empty()

    async def test_a_caller_who_is_not_admitted_is_told_why(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path, admit=lambda caller: f"no {caller.role} here") as pair:
            with pytest.raises(RollcastError, match="refused a chunk link") as caught:
                await pair.dialler.dial(pair.peer_id, pair.address)
            assert "no peer here" in caught.value.cause
            assert pair.accepted.empty()

    @pytest.mark.parametrize("newer", [0, 1])
    async def test_a_protocol_mismatch_names_the_side_to_upgrade(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: int
    ) -> None:
        async with self.pair(tmp_path) as pair:
            ranges = [pb.ProtocolRange(min=1, max=1), pb.ProtocolRange(min=1, max=1)]
            ranges[newer] = pb.ProtocolRange(min=90, max=91)
            calls = iter(ranges)
            monkeypatch.setattr("rollcast.wire.links.handshake.range_to_pb", lambda: next(calls))
            with pytest.raises(ProtocolMismatch):
                await pair.dialler.dial(pair.peer_id, pair.address)

    async def test_an_unanswered_dial_is_an_error_in_time(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            await pair.listener.close()
            with pytest.raises(RollcastError):
                await pair.dialler.dial(pair.peer_id, pair.address)
