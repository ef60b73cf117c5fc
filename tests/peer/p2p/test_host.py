"""Trigger each fault of py-libp2p that a peer must avoid."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peer.links.addresses import parse
from peer.links.transport import LinkLimits
from peer.p2p.streams.buffers import LinkBuffers
from peer.p2p.streams.limits import HostLimits
from peer.p2p.transport import P2pTransport
from rollcast.runtime.errors import PortInUse, Unreachable, WaitTimedOut
from rollcast.wire.identity.identity import Identity
from rollcast.wire.ids import PeerId
from rollcast.wire.links.frames import NO_STRIPE
from tests.peer.links.link_run import LinkRun
from tests.peer.links.transport_conformance import LIMITS, PAYLOAD, Pair, anyone, push, want

pytest.importorskip("libp2p")
trio = pytest.importorskip("trio")

WAIT_S = 60.0


@asynccontextmanager
async def p2p_pair(
    folder: Path, limits: LinkLimits = LIMITS, host_limits: HostLimits | None = None
) -> AsyncIterator[Pair]:
    run = LinkRun(folder)
    ends = [run.member("peer") for _ in range(2)]
    listener, dialler = (
        P2pTransport(
            run.identities[peer_id],
            credentials,
            run.run_id,
            anyone,
            limits=limits,
            host_limits=host_limits,
            jitter=lambda: 0.0,
        )
        for peer_id, credentials in ends
    )
    pair = Pair(run, listener, dialler, ends[0][0], ends[1][0])
    pair.address = await listener.start(pair.accept)
    try:
        async with asyncio.timeout(WAIT_S):
            yield pair
    finally:
        await asyncio.gather(dialler.close(), listener.close())


def in_libp2p(transport: Any, call: Callable[[], None]) -> None:
    """Call a function in the transport's libp2p thread."""
    assert transport._thread._call_host(call)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - it changes in another thread
        await asyncio.sleep(0.02)


async def in_trio(transport: Any, work: Callable[[Any], Awaitable[Any]]) -> Any:
    """Return the result of ``work(host)`` in the transport's libp2p thread, on its libp2p host."""
    thread = transport._thread
    result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def do() -> None:
        try:
            value, error = await work(thread._host._host), None
        except Exception as problem:
            value, error = None, problem
        thread._call_loop(lambda: result.set_exception(error) if error else result.set_result(value))

    in_libp2p(transport, lambda: thread._nursery.start_soon(do))
    return await result


async def test_a_frozen_end_is_given_up(tmp_path: Path) -> None:
    limits = replace(LIMITS, silence_timeout_s=0.9)
    thawed = threading.Event()

    def freeze() -> None:
        thawed.wait(WAIT_S)

    async with p2p_pair(tmp_path, limits) as pair:
        dialled, _ = await pair.ends()
        await asyncio.sleep(2 * limits.silence_timeout_s)
        assert dialled.over is None, "an idle link gives signs of life"
        in_libp2p(pair.listener, freeze)
        reason = (await dialled.ended())[0]
        thawed.set()
        assert "sent nothing for 0.9 s" in reason


async def test_a_thread_that_dies_ends_its_links_and_is_restarted(tmp_path: Path) -> None:
    async def die() -> None:
        raise RuntimeError("on purpose")

    async with p2p_pair(tmp_path) as pair:
        dialled, accepted = await pair.ends()
        listener: Any = pair.listener
        in_libp2p(listener, lambda: listener._thread._nursery.start_soon(die))
        await dialled.ended()
        await accepted.ended()
        await until(lambda: not listener.running)
        with pytest.raises(Unreachable, match="cannot reach"):
            await listener.dial(pair.dialler_id, "/ip4/127.0.0.1/tcp/9")
        await until(lambda: listener.running)
        again, _ = await pair.ends()
        assert again.over is None, "on the same port"


async def test_a_thread_that_begins_too_late_ends_and_the_next_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peer.p2p import thread

    def threads() -> int:
        return sum(one.name == "libp2p" for one in threading.enumerate())

    async with p2p_pair(tmp_path) as pair:
        with monkeypatch.context() as late:
            late.setattr(thread, "_START_S", 0.05)
            late.setattr(thread.HostThread, "_runs", lambda _self: None)
            with pytest.raises(WaitTimedOut):
                await pair.dialler.dial(pair.peer_id, pair.address)
        await until(lambda: threads() == 1)
        dialled, accepted = await pair.ends()
        dialled.link.send(want(1))
        assert (await accepted.message()).want.version == 1
        assert pair.dialler.running  # type: ignore[attr-defined]


async def test_a_link_that_comes_when_its_dial_is_cancelled_ends(tmp_path: Path) -> None:
    from peer.p2p.host import OpenLink

    async with p2p_pair(tmp_path) as pair:
        await pair.ends()
        transport: Any = pair.dialler
        thread, dials = transport._thread, list[Any]()
        thread._spawn = lambda _work, *arguments: dials.append(arguments[-1])
        dial = asyncio.create_task(thread.dial(pair.peer_id, parse(pair.address, PeerId(pair.peer_id)), 5.0))
        await until(lambda: dials)
        buffers = LinkBuffers(1 << 20, thread._call_loop)
        dials[0].set_result(OpenLink(PeerId(pair.peer_id), buffers, "", None, False))
        dial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dial
        assert buffers.aborted


async def test_a_second_daemon_does_not_share_the_port(tmp_path: Path) -> None:
    async with p2p_pair(tmp_path) as pair:
        peer_id, credentials = pair.run.member("peer")
        port = int(pair.address.rpartition("/")[2])
        second = P2pTransport(pair.run.identities[peer_id], credentials, pair.run.run_id, anyone, port=port)
        with pytest.raises(PortInUse):
            await second.start(pair.accept)
        await second.close()


async def test_only_noise_is_accepted(tmp_path: Path) -> None:
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.network.config import RetryConfig
    from libp2p.peer.id import ID
    from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport
    from multiaddr import Multiaddr

    async with p2p_pair(tmp_path) as pair:
        listen_id = ID.from_string(pair.peer_id)
        await pair.dialler.dial(pair.peer_id, pair.address)

        async def dial_in_the_clear(_host: Any) -> str:
            key_pair = create_new_key_pair()
            clear = new_host(key_pair=key_pair, sec_opt={PLAINTEXT_PROTOCOL_ID: InsecureTransport(key_pair)})
            clear.get_network().retry_config = RetryConfig(max_retries=0)
            async with clear.run([]):
                try:
                    await clear.get_network().dial_addr(Multiaddr(pair.address), listen_id)
                except Exception as error:
                    return str(error)
            return "connected"

        assert "failed to upgrade security" in await in_trio(pair.dialler, dial_in_the_clear)


async def test_a_stranger_is_closed_and_a_link_is_not(tmp_path: Path) -> None:
    from libp2p.peer.id import ID
    from multiaddr import Multiaddr

    async with p2p_pair(tmp_path, host_limits=HostLimits(strangers_timeout_s=0.4)) as pair:
        dialled, accepted = await pair.ends()

        async def connect(host: Any) -> Any:
            return await host.get_network().dial_addr(Multiaddr(pair.address), ID.from_string(pair.peer_id))

        connection = await in_trio(pair.dialler, connect)
        await until(lambda: connection.is_closed)
        dialled.link.send(want(1))
        assert (await accepted.message()).want.version == 1


async def connect(host: Any, pair: Pair) -> Any:
    """Open a connection from the dialler and send nothing on it."""
    from libp2p.peer.id import ID
    from multiaddr import Multiaddr

    return await host.get_network().dial_addr(Multiaddr(pair.address), ID.from_string(pair.peer_id))


async def test_strangers_are_few_and_do_not_keep_members_out(tmp_path: Path) -> None:
    async with p2p_pair(tmp_path, host_limits=HostLimits(strangers_most=2)) as pair:
        listener: Any = pair.listener
        await pair.dialler._run_thread()  # type: ignore[attr-defined]
        connections = [await in_trio(pair.dialler, lambda host: connect(host, pair)) for _ in range(4)]
        await until(lambda: sum(one.is_closed for one in connections) == 2)
        listener.expect([pair.dialler_id])
        dialled, accepted = await pair.ends()
        dialled.link.send(want(1))
        assert (await accepted.message()).want.version == 1


async def test_a_stranger_that_floods_is_cut(tmp_path: Path) -> None:
    async def flood(host: Any, pair: Pair) -> int:
        """Return how many bytes of an endless message the host accepted."""
        connection = await connect(host, pair)
        stream = await connection.new_stream()
        stream.muxed_stream.send_window = 1 << 40
        await stream.write(b"\xff\xff\xff\xff\xff\x7f")  # its length
        sent = 0
        try:
            while sent < 256 << 20:
                await stream.write(bytes(32 << 10))
                sent += 32 << 10
        except Exception:  # libp2p raises many kinds
            await until_closed(connection)
        return sent

    async def until_closed(connection: Any) -> None:
        import trio

        with trio.fail_after(WAIT_S):
            await connection.event_closed.wait()

    async with p2p_pair(tmp_path) as pair:
        await pair.dialler._run_thread()  # type: ignore[attr-defined]
        assert await in_trio(pair.dialler, lambda host: flood(host, pair)) < 64 << 20, "what the kernels hold"


async def test_a_peer_that_shows_anothers_certificate_is_refused_for_a_while(tmp_path: Path) -> None:
    async with p2p_pair(tmp_path) as pair:
        listener: Any = pair.listener
        _, credentials = pair.run.member("peer")
        impostor = P2pTransport(Identity.generate(), credentials, pair.run.run_id, anyone, limits=LIMITS)
        with pytest.raises(Unreachable):
            await impostor.dial(pair.peer_id, pair.address)
        connection = await in_trio(impostor, lambda host: connect(host, pair))
        await until(lambda: connection.is_closed)
        await impostor.close()
        assert listener.running


async def test_no_certificate_of_a_refused_peer_is_checked(tmp_path: Path) -> None:
    from peer.p2p.circuits.wire import show_certificate

    async with p2p_pair(tmp_path) as pair:
        listener: Any = pair.listener
        judged: list[PeerId] = []
        is_certificate_of = listener.is_certificate_of
        listener.is_certificate_of = lambda peer_id, der: judged.append(peer_id) or is_certificate_of(peer_id, der)
        await pair.dialler._run_thread()  # type: ignore[attr-defined]

        async def show(host: Any) -> list[str]:
            connection = await connect(host, pair)
            answers = []
            for _ in range(4):
                try:
                    answers.append(str(await show_certificate(connection, b"none of the run's")))
                except Exception as error:  # libp2p raises many kinds
                    answers.append(type(error).__name__)
            return answers

        answers = await in_trio(pair.dialler, show)
        assert answers[0] == "False"
        assert len(judged) == 1


async def test_a_stranger_has_one_link_to_prove_its_membership(tmp_path: Path) -> None:
    from peer.p2p.circuits.wire import open_stream
    from peer.p2p.streams.opening import PROTOCOL, encode_opening

    async with p2p_pair(tmp_path, host_limits=HostLimits(opening_timeout_s=WAIT_S)) as pair:
        await pair.dialler._run_thread()  # type: ignore[attr-defined]

        async def open_lanes(host: Any) -> None:
            connection = await connect(host, pair)
            for number in range(8):
                try:
                    await open_stream(connection, PROTOCOL, encode_opening("up", bytes([number] * 16)))
                except Exception:  # libp2p raises many kinds, and this one is closed
                    continue

        async def waiting(_host: Any) -> int:
            return len(pair.listener._thread._host._waiting)  # type: ignore[attr-defined]

        await in_trio(pair.dialler, open_lanes)
        while await in_trio(pair.listener, waiting) < 2:  # noqa: ASYNC110 - see until
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        assert await in_trio(pair.listener, waiting) == 2


async def test_hosts_of_a_star_do_not_dial_each_other(tmp_path: Path) -> None:
    async with p2p_pair(tmp_path) as pair:
        dialled, accepted = await pair.ends()
        dialled.link.close("")
        await accepted.ended()

        async def count(host: Any) -> int:
            return len(host.get_network().get_connections())

        while await in_trio(pair.dialler, count):  # noqa: ASYNC110 - see until
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        assert await in_trio(pair.dialler, count) == 0, "nobody is dialled because a connection ended"


async def test_a_host_limits_its_links_and_nothing_by_share_of_memory(tmp_path: Path) -> None:
    async with p2p_pair(tmp_path, host_limits=HostLimits(links_most=1)) as pair:
        await pair.ends()
        with pytest.raises(Unreachable, match="too many p2p links"):
            await pair.dialler.dial(pair.peer_id, pair.address)


async def test_records_of_ended_connections_are_discarded(tmp_path: Path) -> None:
    """Without the fix, libp2p counts each against its limit, and keeps a task for it, until the host ends."""

    async def connections(host: Any) -> int:
        return len(host.get_network().get_connections())

    async def handlers(_host: Any) -> int:
        root = trio.lowlevel.current_root_task()
        assert root is not None
        tasks, count = [root], 0
        while tasks:
            task = tasks.pop()
            count += task.name.endswith("_run_handler")
            tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        return count

    async with p2p_pair(tmp_path, host_limits=HostLimits(links_most=1)) as pair:
        for _ in range(4):  # of two connections each; the host may have four
            link, accepted = await pair.dial()
            link.close("enough")
            await accepted.ended()
            for end in (pair.listener, pair.dialler):
                while await in_trio(end, connections) or await in_trio(end, handlers):  # noqa: ASYNC110 - see until
                    await asyncio.sleep(0.02)


async def test_a_peer_that_sends_more_than_granted_is_cut(tmp_path: Path) -> None:
    async with p2p_pair(tmp_path, host_limits=HostLimits(window_bytes=1 << 20)) as pair:
        link, accepted = await pair.dial()
        accepted.link.pause_reading()

        async def flood(host: Any) -> None:
            for connection in host.get_network().get_connections():
                for stream in connection.get_streams():
                    stream.muxed_stream.send_window = 1 << 40

        await in_trio(pair.dialler, flood)
        dialled = push(link, 1000)
        reason = (await accepted.ended())[0]
        assert "more than it may" in reason or "closed" in reason
        await dialled.ended()
        assert link.bytes_sent < 64 << 20


@pytest.mark.slow
async def test_a_reader_may_pause_for_longer_than_yamux_allows(tmp_path: Path) -> None:
    limits = replace(LIMITS, write_timeout_s=15.0)
    async with p2p_pair(tmp_path, limits, HostLimits(window_bytes=1 << 20)) as pair:
        link, accepted = await pair.dial()
        accepted.link.pause_reading()
        dialled = push(link, 500)
        await asyncio.sleep(7.0)
        assert dialled.over is None
        assert dialled.drained_times < 500
        accepted.link.resume_reading()
        await accepted.until(lambda: len(accepted.came) == 500)


async def test_a_stream_that_is_no_lane_is_closed(tmp_path: Path) -> None:
    from libp2p.peer.id import ID
    from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
    from multiaddr import Multiaddr

    from peer.p2p.streams.opening import PROTOCOL

    async with p2p_pair(tmp_path, host_limits=HostLimits(opening_timeout_s=4.0)) as pair:
        await pair.ends()

        async def open_with(host: Any, data: bytes) -> str:
            connection = await host.get_network().dial_addr(Multiaddr(pair.address), ID.from_string(pair.peer_id))
            stream = await connection.new_stream()
            await host.multiselect_client.select_one_of([PROTOCOL], MultiselectCommunicator(stream))
            await stream.write(data)
            try:
                return "data" if await stream.read(1) else "end"
            except Exception as error:
                return type(error).__name__

        for data in (b"\x07" + os.urandom(16), b"\x00" + bytes(16), b"\x01"):
            ended = await in_trio(pair.dialler, lambda host, data=data: open_with(host, data))
            assert ended in ("end", "StreamReset", "StreamEOF")
        assert pair.accepted.empty()


async def test_a_certificate_of_another_peer_is_refused(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    async with p2p_pair(tmp_path) as pair:
        somebody_else, credentials = run.member("origin")
        impostor = P2pTransport(Identity.generate(), credentials, pair.run.run_id, anyone, limits=LIMITS)
        assert somebody_else != impostor._identity.peer_id
        with pytest.raises(Unreachable, match="refused a chunk link"):
            await impostor.dial(pair.peer_id, pair.address)
        await impostor.close()
        assert pair.accepted.empty()


async def test_chunks_of_every_size_arrive_whole(tmp_path: Path) -> None:
    async with p2p_pair(tmp_path) as pair:
        dialled, accepted = await pair.ends()
        for size in (1, 65_484, 65_485, 65_507, 65_519, 65_536, 1 << 20):
            payload = os.urandom(size)
            dialled.link.send_chunk(1, 0, 0, payload, NO_STRIPE)
            assert bytes((await accepted.chunk()).payload) == payload
        assert len(PAYLOAD) == 65_536
