"""Test how far ahead a link is given bytes; the streams' tests run it on sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollcast.wire.links.output import LinkOutput, SendPace


def sent(pace: SendPace, bytes_per_second: float, seconds: float, begin_s: float = 0.0) -> float:
    """Let a socket take pieces of 64 KiB at a rate without a pause; return when it ends."""
    now, size_bytes = begin_s, 64 << 10
    while now < begin_s + seconds:
        pace.blocked(now)
        now += size_bytes / bytes_per_second
        pace.emptied(size_bytes, now)
    return now


def test_a_slow_link_is_given_nothing_ahead() -> None:
    pace = SendPace()
    assert pace.ahead_bytes == 0
    sent(pace, 25e6, 1.0)
    assert pace.bytes_per_second == pytest.approx(25e6)
    assert pace.ahead_bytes == 0


def test_a_fast_link_is_given_two_milliseconds_ahead_and_less_as_soon_as_it_is_slow() -> None:
    pace = SendPace()
    now = sent(pace, 200e6, 1.0)
    assert pace.ahead_bytes == 256 << 10
    sent(pace, 20e6, 0.2, now)
    assert pace.ahead_bytes == 0


def test_time_without_anything_to_send_does_not_count() -> None:
    pace = SendPace()
    now = 0.0
    for _ in range(100):
        now = sent(pace, 100e6, 0.02, now) + 1.0
    assert pace.bytes_per_second in (0.0, pytest.approx(100e6))


def test_a_link_that_never_lets_bytes_wait_is_as_fast_as_it_is_given_them() -> None:
    pace = SendPace()
    assert not any(pace.taken_at_once(64 << 10, chunk * 0.0002) for chunk in range(200)), "for 40 ms"
    assert any(pace.taken_at_once(64 << 10, chunk * 0.0002) for chunk in range(200, 300))
    assert pace.ahead_bytes == 512 << 10
    assert not any(pace.taken_at_once(64 << 10, 1 + chunk * 0.01) for chunk in range(50)), "pauses between chunks"
    assert pace.ahead_bytes == 512 << 10


def test_what_a_window_took_at_once_does_not_count_once_bytes_wait() -> None:
    pace = SendPace()
    for chunk in range(200):
        pace.taken_at_once(64 << 10, chunk * 0.0002)
    sent(pace, 25e6, 0.06, begin_s=200 * 0.0002)
    assert pace.bytes_per_second == pytest.approx(25e6)


class Socket:
    """A transport over a socket that takes everything until it is ``slow``, and TLS that changes nothing."""

    def __init__(self) -> None:
        self.slow = False
        self.breaks = False
        self.writes = 0
        self.held_bytes = 0
        self.sent = bytearray()
        self._encrypted = bytearray()
        closed: Any = SimpleNamespace(fileno=lambda: -1)  # nothing is known of it, so its link is not limited
        tls: Any = SimpleNamespace(write=self._encrypted.extend, output=self._output)
        self.output = LinkOutput(cast(Any, _Tls(self._encrypted, tls)), cast(Any, self), closed)
        self.now = 0.0

    def is_closing(self) -> bool:
        return self.breaks and self.writes > 0

    def write(self, data: memoryview) -> None:
        self.writes += 1
        self.sent += data
        if self.slow:
            self.held_bytes += len(data)
            self.output.paused(self.now)

    def get_write_buffer_size(self) -> int:
        return self.held_bytes

    def take_all(self) -> None:
        self.held_bytes = 0
        self.output.resumed(self.now)

    def _output(self) -> bytes:
        data = bytes(self._encrypted)
        self._encrypted.clear()
        return data


class _Tls:
    def __init__(self, encrypted: bytearray, functions: Any) -> None:
        self._encrypted = encrypted
        self.write, self.output = functions.write, functions.output

    @property
    def has_output(self) -> bool:
        return bool(self._encrypted)


def test_bytes_leave_in_order_and_wait_as_plaintext_while_the_socket_is_full() -> None:
    socket = Socket()
    data = bytes(range(256)) * 4096
    socket.output.write(b"head", data)
    assert socket.output.full
    socket.slow = True
    socket.output.pump(socket.now)
    assert socket.held_bytes == 256 << 10, "one piece"
    assert socket.output.waiting_bytes == 4 + len(data)
    socket.slow = False
    socket.take_all()
    socket.output.pump(socket.now)
    assert (bytes(socket.sent), socket.output.waiting_bytes) == (b"head" + data, 0)
    socket.slow = True
    socket.output.write(data)
    socket.output.pump(socket.now, everything=True)
    assert socket.held_bytes == len(data)


def test_what_an_idle_socket_took_at_once_does_not_make_a_slow_link_fast() -> None:
    socket = Socket()
    for _ in range(64):
        socket.output.write(bytes(1 << 20))
        socket.output.pump(socket.now)
    socket.slow = True
    socket.output.write(bytes(100_000))
    socket.output.pump(socket.now)
    socket.now += 0.1
    socket.take_all()
    assert socket.output._pace.bytes_per_second == pytest.approx(1e6)
    socket.output.write(b"x")
    assert socket.output.full, "nothing may wait ahead"


@pytest.mark.parametrize("everything", [False, True])
def test_nothing_more_is_written_once_the_connection_is_lost(everything: bool) -> None:
    socket = Socket()
    socket.breaks = True
    socket.output.write(bytes(8 << 20))
    assert socket.output.pump(socket.now, everything=everything) == 0.0
    assert socket.writes == 1
    socket.output.pump(socket.now, everything=everything)
    assert socket.writes == 1
