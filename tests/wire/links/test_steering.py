"""Test that a socket follows what is measured of its path."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from rollcast.wire.links import steering
from rollcast.wire.links.congestion import PathFigures
from rollcast.wire.links.steering import LinkSteering
from rollcast.wire.links.tcp import AUTO, SocketOptions
from rollcast.wire.links.uplink_share import UplinkShare


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near


def lossy(steered: LinkSteering, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        figures = PathFigures(100 * number, number, 0.081, 0.08)
        monkeypatch.setattr(steering, "measure_path", lambda _sock, figures=figures: figures)
        steered.sending(number / 4)


def test_losses_change_the_control_of_an_open_socket(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "BBR", "reno")  # which every kernel has
    monkeypatch.setattr(steering, "bbr_problem", lambda: "")
    steered = LinkSteering(sock, SocketOptions(congestion_control=AUTO))
    lossy(steered, monkeypatch)
    assert steered.congestion_control == "reno"
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"reno\0")
    assert steered.lost_share == pytest.approx(0.01)


def test_where_bbr_is_missing_the_link_keeps_its_control(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "bbr_problem", lambda: "the kernel does not have it; it offers reno, cubic")
    steered = LinkSteering(sock, SocketOptions(congestion_control=AUTO))
    before = steered.congestion_control
    lossy(steered, monkeypatch)
    assert steered.congestion_control == before
    assert steered.lost_share > 0.0, "it is told all the same"


def test_a_control_that_was_set_stays(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "bbr_problem", lambda: "")
    steered = LinkSteering(sock, SocketOptions(congestion_control="reno"))
    lossy(steered, monkeypatch)
    assert steered.congestion_control == "reno"


def test_only_far_paths_are_paced(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    def ceiling() -> int:
        return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, 47, 8), "little")

    steered = LinkSteering(sock, SocketOptions())
    monkeypatch.setattr(steering, "measure_path", lambda _sock: PathFigures(0, 0, 0.02, 0.0002))
    steered.sending(1.0)
    assert ceiling() == 2**64 - 1
    monkeypatch.setattr(steering, "measure_path", lambda _sock: PathFigures(0, 0, 0.02, 0.01))
    steered.sending(2.0)
    assert ceiling() == 1 << 40


@pytest.mark.parametrize(("least_rtt_s", "shares"), [(0.002, False), (0.02, True)])
def test_links_beyond_the_local_network_share_the_uplink(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch, least_rtt_s: float, shares: bool
) -> None:
    share = UplinkShare()
    monkeypatch.setattr(steering, "_SHARE", share)
    monkeypatch.setattr(steering, "measure_path", lambda _sock: PathFigures(0, 0, least_rtt_s + 0.05, least_rtt_s))
    acknowledged = iter(range(0, 1 << 40, 100_000))
    monkeypatch.setattr(steering, "acknowledged_bytes", lambda _sock: next(acknowledged))
    steered, other = LinkSteering(sock, SocketOptions()), LinkSteering(sock, SocketOptions())
    for number in range(20):
        other.waits(1 << 20, 1.0 + number * 0.3)
        steered.waits(1 << 20, 1.0 + number * 0.3)
        steered.waits(100, 1.299 + number * 0.3)
    ceiling = int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, 47, 8), "little")
    assert (ceiling < 1 << 20) == shares
    steered.ended(20.0)


def test_the_window_grows_with_the_rate_and_the_round_trip(
    sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    monkeypatch.setattr(steering, "open_window", lambda _sock, size_bytes, _wake_bytes: opened.append(size_bytes))
    monkeypatch.setattr(steering, "measure_path", lambda _sock: PathFigures(0, 0, 0.11, 0.1))
    steered = LinkSteering(sock, SocketOptions())
    for number in range(8):
        steered.received(25_000_000 * number, 1, 10.0 + number / 4)  # 100 MB/s: 10 MB under way
    assert opened == [32 << 20]
    steered.received(1 << 40, 1, 60.0)  # after a pause
    assert opened == [32 << 20]


def test_a_window_that_caps_the_rate_does_not_grow(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "open_window", lambda *_: pytest.fail("it grew"))
    steered = LinkSteering(sock, SocketOptions())
    steered.fix_window()
    for number in range(8):
        steered.received(1 << 30 << number, 1, 10.0 + number / 4)
