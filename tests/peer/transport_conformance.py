"""What every transport of chunk links must do. Subclass TransportConformance in a test module of its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from peer.transport import Admission, ChunkTransport, Link, LinkClosed, LinkLimits
from rollcast.runtime.errors import ProtocolMismatch, RollcastError, WrongKey
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.link import ChunkFrame, LinkMessageFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.tls import Caller, TlsCredentials
from tests.peer.link_run import LinkRun

WAIT_S = 10.0
LIMITS = LinkLimits(dial_timeout_s=3.0, handshake_timeout_s=1.0, hello_timeout_s=1.0, write_timeout_s=1.0)


def anyone(_caller: Caller) -> str:
    return ""


class Pair:
    """A listening transport, a dialling one, and the links that the first accepted."""

    def __init__(
        self, run: LinkRun, listener: ChunkTransport, dialler: ChunkTransport, peer_id: PeerId, address: str
    ) -> None:
        self.run = run
        self.listener = listener
        self.dialler = dialler
        self.peer_id = peer_id
        self.address = address
        self.accepted: asyncio.Queue[Link] = asyncio.Queue()

    async def link(self) -> tuple[Link, Link]:
        dialled = await self.dialler.dial(self.peer_id, self.address)
        return dialled, await self.accepted.get()


class TransportConformance(ABC):
    """Subclass it and implement ``make``."""

    @abstractmethod
    def make(self, credentials: TlsCredentials, run_id: RunId, admit: Admission, limits: LinkLimits) -> ChunkTransport:
        """A transport, not started, that listens on loopback."""

    @asynccontextmanager
    async def pair(
        self, folder: Path, *, admit: Admission = anyone, dialler_run: LinkRun | None = None
    ) -> AsyncIterator[Pair]:
        run = LinkRun(folder)
        peer_id, credentials = run.member("peer")
        listener = self.make(credentials, run.run_id, admit, LIMITS)
        other = dialler_run or run
        dialler = self.make(other.member("peer")[1], other.run_id, anyone, LIMITS)
        pair = Pair(run, listener, dialler, peer_id, "")

        async def hold(link: Link) -> None:
            ended = asyncio.Event()
            close = link.close

            async def close_and_end() -> None:
                ended.set()
                await close()

            link.close = close_and_end  # type: ignore[method-assign]
            pair.accepted.put_nowait(link)
            await ended.wait()

        pair.address = await listener.start(hold)
        try:
            async with asyncio.timeout(WAIT_S):
                yield pair
        finally:
            while not pair.accepted.empty():
                await pair.accepted.get_nowait().close()
            await dialler.close()
            await listener.close()

    async def test_each_end_knows_the_other(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            dialled, accepted = await pair.link()
            assert (dialled.peer_id, dialled.role, dialled.dialled) == (pair.peer_id, "peer", True)
            assert (accepted.role, accepted.dialled) == ("peer", False)
            await accepted.close()

    @pytest.mark.parametrize("pusher", ["dialler", "acceptor"])
    async def test_chunks_flow_whoever_dialled(self, tmp_path: Path, pusher: str) -> None:
        async with self.pair(tmp_path) as pair:
            dialled, accepted = await pair.link()
            sender, receiver = (dialled, accepted) if pusher == "dialler" else (accepted, dialled)
            for index in range(20):
                await sender.send_chunk(7, 0, index, bytes([index]) * 1000)
                frame = await receiver.receive()
                assert isinstance(frame, ChunkFrame)
                assert (frame.version, frame.index, bytes(frame.payload)) == (7, index, bytes([index]) * 1000)
                await receiver.send(pb.LinkMessage(credit=pb.Credit(version=7, chunks=index + 1)))
                answer = await sender.receive()
                assert isinstance(answer, LinkMessageFrame)
                assert answer.message.credit.chunks == index + 1
            await accepted.close()

    async def test_both_directions_at_once(self, tmp_path: Path) -> None:
        count, payload = 100, b"x" * 65536
        async with self.pair(tmp_path) as pair:
            ends = await pair.link()

            async def push(link: Link) -> None:
                for index in range(count):
                    await link.send_chunk(1, 0, index, payload)

            async def pull(link: Link) -> int:
                size = 0
                for _ in range(count):
                    frame = await link.receive()
                    assert isinstance(frame, ChunkFrame)
                    size += len(frame.payload)
                return size

            results = await asyncio.gather(*(push(end) for end in ends), *(pull(end) for end in ends))
            assert results[2:] == [count * len(payload)] * 2
            assert ends[0].bytes_sent > count * len(payload)
            assert ends[0].bytes_received > count * len(payload)
            await ends[1].close()

    @pytest.mark.parametrize("closer", [0, 1])
    async def test_a_close_shows_at_the_other_end(self, tmp_path: Path, closer: int) -> None:
        async with self.pair(tmp_path) as pair:
            ends = await pair.link()
            await ends[closer].close()
            with pytest.raises(LinkClosed):
                await ends[1 - closer].receive()
            with pytest.raises(LinkClosed):
                await ends[closer].send(pb.LinkMessage(want=pb.Want()))
            await ends[1].close()

    async def test_a_reader_that_stops_holds_the_sender_and_then_loses_the_link(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            dialled, accepted = await pair.link()

            async def flood() -> None:
                for index in range(10_000):
                    await dialled.send_chunk(1, 0, index, b"x" * 65536)

            with pytest.raises(LinkClosed):
                await flood()
            assert dialled.bytes_sent < 64 << 20, "what waits is bounded"
            await accepted.close()
            await dialled.close()

    async def test_a_dial_reaches_the_named_peer_or_nobody(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            somebody_else = LinkRun(tmp_path / "x").member("peer")[0]
            with pytest.raises(WrongKey):
                await pair.dialler.dial(somebody_else, pair.address)
            assert pair.accepted.empty()

    @pytest.mark.parametrize("renewed", ["listener", "dialler"])
    async def test_a_renewed_certificate_is_shown_on_new_links(self, tmp_path: Path, renewed: str) -> None:
        async with self.pair(tmp_path) as pair:
            old = await pair.link()
            peer_id, credentials = pair.run.member("origin")
            getattr(pair, renewed).renew(credentials)
            if renewed == "listener":
                pair.peer_id = peer_id
            dialled, accepted = await pair.link()
            assert (dialled if renewed == "listener" else accepted).peer_id == peer_id
            await old[0].send(pb.LinkMessage(want=pb.Want(version=1)))
            assert isinstance(await old[1].receive(), LinkMessageFrame), "the old link stays"
            await old[1].close()
            await accepted.close()

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

    async def test_a_protocol_mismatch_names_the_side_to_upgrade(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.pair(tmp_path) as pair:
            future = pb.ProtocolRange(min=90, max=91)
            ranges = iter([future, pb.ProtocolRange(min=1, max=1)])
            monkeypatch.setattr("peer.transport.range_to_pb", lambda: next(ranges))
            with pytest.raises(ProtocolMismatch):
                await pair.dialler.dial(pair.peer_id, pair.address)

    async def test_nobody_there_is_an_error_in_time(self, tmp_path: Path) -> None:
        async with self.pair(tmp_path) as pair:
            await pair.listener.close()
            with pytest.raises(RollcastError):
                await pair.dialler.dial(pair.peer_id, pair.address)
