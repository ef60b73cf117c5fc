"""Test the options of TCP links, and probes of whether a member answers, which open no link."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from peer.config import LinkConfig
from peer.links.direct import DirectTransport
from peer.links.transport import Link, LinkReceiver
from rollcast.runtime.errors import ConfigError, Unreachable, WaitTimedOut, WrongKey
from rollcast.wire.ids import PeerId
from rollcast.wire.links.congestion import PathFigures
from rollcast.wire.links.probe import probe_link
from rollcast.wire.links.tcp import (
    UNCAPPED,
    SocketFigures,
    SocketOptions,
    acknowledged_bytes,
    check_congestion_control,
    measure,
    measure_path,
    set_receive_bytes,
    tune,
    use_congestion_control,
    window_bytes_for,
)
from tests.peer.links.link_run import LinkRun
from tests.peer.links.transport_conformance import anyone


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


def test_small_frames_do_not_wait_and_a_silent_host_shows(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    tune(near, SocketOptions(silence_timeout_s=20.0))
    assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
    assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
    assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000


def test_a_link_begins_with_a_window_that_keeps_growing(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _ = pair
    tune(near, SocketOptions())
    most = int(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()[2])
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= min(4 << 20, most // 2)
    assert near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1, "the first byte wakes"


def test_congestion_control_and_pacing_are_per_socket(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    assert tune(near, SocketOptions(congestion_control="reno", pacing_bytes_per_second=125_000)) == "reno"
    assert near.getsockopt(socket.SOL_SOCKET, 47) == 125_000
    for unpaced in (0, UNCAPPED):
        assert tune(far, SocketOptions(pacing_bytes_per_second=unpaced))
    assert int.from_bytes(far.getsockopt(socket.SOL_SOCKET, 47, 8), "little") == 2**64 - 1, "not paced"


def test_a_missing_congestion_control_is_named_with_the_available_ones() -> None:
    check_congestion_control("")
    check_congestion_control("auto")
    check_congestion_control("reno")
    with pytest.raises(ConfigError) as caught:
        check_congestion_control("warp")
    assert "reno" in caught.value.cause


def test_figures_of_a_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    near, _far = pair
    near.setblocking(False)
    assert measure(near).unsent_bytes == 0
    assert 0 < measure(near).rtt_s < 1.0
    try:
        while True:
            near.send(bytes(1 << 16))
    except BlockingIOError:
        assert measure(near).unsent_bytes > 0
    near.close()
    assert measure(near) == SocketFigures()


def test_the_path_of_a_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    near.sendall(bytes(1 << 16))
    assert len(far.recv(1 << 16)) > 0
    found = measure_path(near)
    assert found.sent_segments > 0
    assert found.lost_segments == 0
    assert 0 < found.least_rtt_s <= found.rtt_s + 1e-6
    assert 0.0 <= measure(near).window_limited_share <= 1.0
    acknowledged = acknowledged_bytes(near)
    assert acknowledged is not None
    assert 0 < acknowledged <= (1 << 16) + 1, "the handshake counts as one byte"
    near.close()
    assert measure_path(near) == PathFigures()
    assert acknowledged_bytes(near) is None


@pytest.mark.parametrize(
    ("bytes_per_second", "rtt_s", "mib"), [(0, 0, 4), (1e6, 0.2, 4), (125e6, 0.08, 32), (3e9, 0.2, 256)]
)
def test_the_window_is_twice_what_the_path_holds(bytes_per_second: float, rtt_s: float, mib: int) -> None:
    assert window_bytes_for(bytes_per_second, rtt_s) == mib << 20


def test_an_open_connection_changes_its_control_only_to_one_that_exists(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, _ = pair
    assert use_congestion_control(near, "reno") == "reno"
    assert use_congestion_control(near, "warp") == "reno"


def test_little_waits_to_be_read_where_it_should_not(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    set_receive_bytes(far, 64 << 10)
    near.setblocking(False)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
    sent = 0
    try:
        while True:
            sent += near.send(bytes(1 << 14))
    except BlockingIOError:
        assert sent < 512 << 10


def nobody(_link: Link) -> LinkReceiver:
    raise AssertionError("a link was opened")


@asynccontextmanager
async def listening(run: LinkRun) -> AsyncIterator[tuple[PeerId, str]]:
    peer_id, credentials = run.member("peer")
    transport = DirectTransport(LinkConfig(), credentials, run.run_id, anyone)
    address = await transport.start(nobody)
    yield peer_id, address
    await transport.close()


async def test_the_expected_peer_answers_a_probe(tmp_path: Path) -> None:
    run, other_run = LinkRun(tmp_path), LinkRun(tmp_path, "run-2")
    prober, credentials = run.member("peer")
    async with listening(run) as (peer_id, address):
        await probe_link(peer_id, address, credentials=credentials, run_id=run.run_id)
        with pytest.raises(WrongKey):
            await probe_link(prober, address, credentials=credentials, run_id=run.run_id)
        stranger = other_run.member("peer")[1]
        with pytest.raises(WrongKey):
            await probe_link(peer_id, address, credentials=stranger, run_id=other_run.run_id)


async def test_a_probe_without_an_answer_fails(tmp_path: Path) -> None:
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
