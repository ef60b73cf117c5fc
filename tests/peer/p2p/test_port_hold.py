"""Test the port that the host's thread holds, and when a dead thread is restarted."""

from __future__ import annotations

import fcntl
import socket
from pathlib import Path

import pytest

from peer.p2p import port_hold
from peer.p2p.port_hold import PortHold
from peer.p2p.supervision import RestartBackoff
from rollcast.runtime.errors import PortInUse

HOST = "127.0.0.1"


def test_a_port_is_held_by_one(tmp_path: Path) -> None:
    first = PortHold(HOST, 0, tmp_path)
    assert first.port > 0
    with pytest.raises(PortInUse, match="p2p links"):
        PortHold(HOST, first.port, tmp_path)
    first.release()
    first.release()
    assert not list(tmp_path.iterdir())
    PortHold(HOST, first.port, tmp_path).release()


def test_a_file_removed_between_opening_and_locking_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, []

    def lock_late(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(next(tmp_path.iterdir()))
            removed[0].unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    hold = PortHold(HOST, port_hold._bindable(HOST, 0), tmp_path)
    assert list(tmp_path.iterdir()) == removed
    with pytest.raises(PortInUse, match="p2p links"):
        PortHold(HOST, hold.port, tmp_path)
    hold.release()


def test_another_port_is_chosen_where_a_peer_elsewhere_holds_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = PortHold(HOST, 0, tmp_path)
    bindable, held = port_hold._bindable, [first.port]
    monkeypatch.setattr(port_hold, "_bindable", lambda host, port: held.pop() if held else bindable(host, port))
    second = PortHold(HOST, 0, tmp_path)
    assert second.port != first.port
    for hold in (first, second):
        hold.release()


def test_a_listener_that_would_share_the_port_is_detected(tmp_path: Path) -> None:
    with socket.socket() as other:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            other.setsockopt(socket.SOL_SOCKET, option, 1)
        other.bind((HOST, 0))
        other.listen()
        with pytest.raises(PortInUse):
            PortHold(HOST, other.getsockname()[1], tmp_path)


def test_a_lock_file_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PortInUse):
        PortHold(HOST, 0, tmp_path / "missing")


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    hold = PortHold(HOST, 0, tmp_path)
    hold.release()
    (tmp_path / "elsewhere").touch()
    hold._path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PortInUse):
        PortHold(HOST, hold.port, tmp_path)


def test_each_death_in_a_row_waits_twice_as_long_up_to_a_minute() -> None:
    one = RestartBackoff()
    one.started(0.0)
    assert [one.died(1.0, 1.0) for _ in range(8)] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_the_wait_is_spread() -> None:
    assert [RestartBackoff().died(jitter, 0.0) for jitter in (0.0, 0.5, 1.0)] == [0.5, 0.75, 1.0]


def test_a_thread_that_ran_long_starts_over() -> None:
    one = RestartBackoff()
    one.started(0.0)
    one.died(1.0, 1.0)
    one.died(1.0, 2.0)
    one.started(10.0)
    assert one.died(1.0, 310.0) == 1.0


def test_a_thousand_deaths_overflow_nothing() -> None:
    one = RestartBackoff()
    assert max(one.died(1.0, 0.0) for _ in range(1000)) == 60.0
